"""The reach of a supply of GPU servers, such as ``gpukernel slurm supply``, to tokens and servers: what it has made itself.

A supply's token makes tokens of agents.  Their names begin with its own, so that the pool knows them again; what it has not made, it neither
sees, revokes nor forgets.  An administrator who gives two supplies' tokens one name has made them one.
"""

from __future__ import annotations

import gpukernel.common.proto.admin_pb2 as pb
from gpukernel.common.errors import Refused
from gpukernel.pool.auth.identity import Caller
from gpukernel.pool.auth.tokens import Token, show_token
from gpukernel.pool.domain.placement import MIB, DeviceClass
from gpukernel.pool.store.device_reports import MADE_BY
from gpukernel.pool.store.store import Store

__all__ = [
    "announced",
    "is_made_by",
    "refusal_to_forget",
    "refusal_to_make",
    "refusal_to_revoke",
    "token_name",
]

AGENT = "agent"
LONGEST_SECONDS = 3600.0
"""Seconds for which an announcement counts at most: a supply that is gone makes nobody wait for longer."""
MOST_DEVICES = 64
LARGEST_BYTES = 1 << 50


def token_name(caller: Caller, name: str) -> str:
    """Return the name of a token that the caller makes."""
    return f"{_prefix(caller)}{name}" if caller.role == "supply" else name


def is_made_by(caller: Caller, token: Token) -> bool:
    """Return whether a token is within the caller's reach."""
    return caller.role != "supply" or (token.scope == AGENT and token.name.startswith(_prefix(caller)))


def refusal_to_make(caller: Caller, request: pb.CreateTokenRequest) -> str:
    """Return why the caller may not make a token; empty where it may."""
    if request.scope == "supply" and MADE_BY.strip() in request.name:
        return "The name of a supply's token has no colon: the names of what it makes begin with it and one."
    if caller.role != "supply" or (request.scope == AGENT and not request.person and not request.without_end):
        return ""
    return f"{caller.name} may make tokens of scope agent that end, and no others."


def refusal_to_revoke(store: Store, caller: Caller, identifier: str) -> str:
    """Return why the caller may not revoke a token; empty where it may."""
    if caller.role != "supply":
        return ""
    token = show_token(store, identifier)
    if token is not None and is_made_by(caller, token):
        return ""
    return f"{caller.name} may revoke the tokens only that it has made."


def refusal_to_forget(store: Store, caller: Caller, server: str, steady: float) -> str:
    """Return why the caller may not forget a GPU server; empty where it enrolled with a token within the caller's reach."""
    if caller.role != "supply":
        return ""
    credential = next((one.credential for one in store.servers.all(steady) if one.name == server), "")
    token = show_token(store, credential.removeprefix("token "))
    if token is not None and is_made_by(caller, token):
        return ""
    return f"{caller.name} may forget the GPU servers only that enrolled with its tokens."


def announced(caller: Caller, request: pb.AnnounceDevicesRequest) -> tuple[str, list[DeviceClass]]:
    """Return the token by which a supply announces devices, and their kinds.

    Raises
    ------
    Refused
        ``invalid`` where there is no token of the pool, or that makes no sense.
    """
    token = next(iter(sorted(caller.tokens)), "")
    if not token:
        raise Refused("invalid", "A supply announces devices with a token of its own: --scope supply.")
    if not request.supply or not request.supply.isprintable():
        raise Refused("invalid", "A supply that announces devices has a name.")
    if not 0 <= request.valid_seconds <= LONGEST_SECONDS:
        raise Refused(
            "invalid", f"Devices are announced for {LONGEST_SECONDS:.0f} s at most, and then again."
        )
    for one in request.devices:
        name = f"“{one.name[:60]}”"
        if not (one.name and len(one.name) <= 256 and one.name.isprintable()):
            raise Refused("invalid", f"{name} is no name of a model.")
        if not (MIB <= one.memory_bytes <= LARGEST_BYTES and 1 <= one.count <= MOST_DEVICES):
            raise Refused(
                "invalid", f"{name}: {one.count} devices of {one.memory_bytes} bytes are not possible."
            )
    return token, [DeviceClass(one.name, one.memory_bytes, one.count) for one in request.devices]


def _prefix(caller: Caller) -> str:
    return f"{caller.name}{MADE_BY}"
