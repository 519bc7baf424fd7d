"""Peer credentials: a unix socket that records the account of each connection and hands it on to gRPC.

The front (`gpukernel.pool.doors.front`) accepts the connection, and the kernel is asked who is at its other end (``SO_PEERCRED``, unix(7)).
A pool in a container without root may not know an account by its number: all such have one number, and need a token.
A TCP address is served the same way, where the kernel knows no account.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

from gpukernel.pool.auth.identity import CERTIFIED, NOBODY, REMOTE, Identity
from gpukernel.pool.doors.connections import Connections
from gpukernel.pool.doors.front import serve_front

__all__ = ["listen_on_tcp", "serve_tcp", "serve_with_peer_credentials"]

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_ALL_ACCOUNTS, _USUALLY_UNKNOWN = 2**32 - 1, 65534
_BACKLOG = 4096  # of the kernel, which allows less on some machines: a unix socket whose backlog is full refuses whoever comes


@contextlib.asynccontextmanager
async def serve_with_peer_credentials(
    path: Path,
    behind: Path,
    identity: Identity,
    *,
    everybody: bool,
    accounts: bool = True,
    connections: Connections | None = None,
) -> AsyncIterator[None]:
    """Listen at `path` for as long as the context lasts; gRPC listens at `behind`.

    Parameters
    ----------
    everybody
        Every account of this machine may connect, else the pool's own and root only.
    accounts
        Whether an account is believed; else everybody needs a token.
    connections
        Where connections are counted, with those of other listeners.
    """

    unknown = _unknown_account()

    def came(peer: str, end: socket.socket) -> str:
        packed = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(packed)
        identity.connected(peer, uid if accounts and uid != unknown else NOBODY)
        return f"account {uid}" if accounts else f"account {uid} in a container"

    listener = _listening(path, 0o666 if everybody else 0o600)
    async with serve_front(
        listener, behind, Connections() if connections is None else connections, came, identity.disconnected
    ):
        yield


@contextlib.asynccontextmanager
async def serve_tcp(
    listener: socket.socket,
    behind: Path,
    identity: Identity,
    connections: Connections,
    *,
    require_certificates: bool = False,
) -> AsyncIterator[None]:
    """Serve a listening TCP socket for as long as the context lasts; gRPC listens at `behind`, and asks for certificates there or not."""

    def came(peer: str, end: socket.socket) -> str:
        identity.connected(peer, CERTIFIED if require_certificates else REMOTE)
        return f"address {network_of(end.getpeername()[0])}"

    async with serve_front(listener, behind, connections, came, identity.disconnected):
        yield


def network_of(address: str) -> str:
    """Return who an address belongs to, as far as places and rates go: of IPv6 the network of one host, which has 2⁶⁴ addresses."""
    there = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(there, ipaddress.IPv4Address):
        return str(there)
    if there.ipv4_mapped is not None:
        return str(there.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(there), 64), strict=False))


def listen_on_tcp(address: str) -> socket.socket:
    """Return a socket that listens at ``HOST:PORT``; raises `OSError` where that cannot be, ValueError where it is no address."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "::"
    family, *_, where = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(where, family=family, backlog=_BACKLOG, dualstack_ipv6=both)


def _unknown_account() -> int | None:
    """Return the number that accounts have which this user namespace does not know (user_namespaces(7)); None where it knows all."""
    try:
        counts = [int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except OSError:
        return None  # a kernel without user namespaces
    if sum(counts) >= _ALL_ACCOUNTS:
        return None
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except OSError:
        return _USUALLY_UNKNOWN


def _listening(path: Path, mode: int) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(_BACKLOG)
    path.chmod(mode)
    return listener
