"""The reach of a supply of GPU servers, such as ``gpukernel slurm supply``, to tokens and servers: what it has made itself.

A supply's token makes tokens of agents.  Their names begin with its own, so that the pool knows them again; what it has not made, it neither
sees, revokes nor forgets.  An administrator who gives two supplies' tokens one name has made them one.
"""

from __future__ import annotations

import gpukernel.common.proto.admin_pb2 as pb
from gpukernel.pool.auth.identity import Caller
from gpukernel.pool.auth.tokens import Token, show_token
from gpukernel.pool.store.store import Store

__all__ = ["is_made_by", "refusal_to_forget", "refusal_to_make", "refusal_to_revoke", "token_name"]

AGENT = "agent"
_BETWEEN = ": "


def token_name(caller: Caller, name: str) -> str:
    """Return the name of a token that the caller makes."""
    return f"{_prefix(caller)}{name}" if caller.role == "supply" else name


def is_made_by(caller: Caller, token: Token) -> bool:
    """Return whether a token is within the caller's reach."""
    return caller.role != "supply" or (token.scope == AGENT and token.name.startswith(_prefix(caller)))


def refusal_to_make(caller: Caller, request: pb.CreateTokenRequest) -> str:
    """Return why the caller may not make a token; empty where it may."""
    if request.scope == "supply" and _BETWEEN.strip() in request.name:
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


def _prefix(caller: Caller) -> str:
    return f"{caller.name}{_BETWEEN}"
