"""Peer credentials: a unix socket that records the account of each connection and hands it on to gRPC.

gRPC's Python server does not tell the account at the other end of a unix socket.  So this listener accepts the connection, asks the
kernel (``SO_PEERCRED``, unix(7)), and connects to gRPC's own socket, which only the pool's account may open, from an
address that nobody else knows.  gRPC names that address as the peer of every call on the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from gpukernel.pool.auth.identity import NOBODY, Identity

__all__ = ["serve_with_peer_credentials"]

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


@contextlib.asynccontextmanager
async def serve_with_peer_credentials(
    path: Path, behind: Path, identity: Identity, *, everybody: bool, accounts: bool = True
) -> AsyncIterator[None]:
    """Listen at `path` for as long as the context lasts; gRPC listens at `behind`.

    Parameters
    ----------
    everybody
        Every account of this machine may connect, else the pool's own and root only.
    accounts
        Whether an account is believed; else everybody needs a token.
    """
    visits: set[asyncio.Task[None]] = set()

    def met(theirs: _End) -> None:
        visit = asyncio.create_task(_pass_through(theirs, behind, identity, accounts=accounts))
        visits.add(visit)
        visit.add_done_callback(visits.discard)

    listener = _listening(path, 0o666 if everybody else 0o600)
    server = await asyncio.get_running_loop().create_unix_server(lambda: _End(met=met), sock=listener)
    try:
        yield
    finally:
        server.close()
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)


def _listening(path: Path, mode: int) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(512)
    path.chmod(mode)
    return listener


class _End(asyncio.Protocol):
    """One end of a pair of connections, each of which forwards to the other, no faster than that is taken."""

    transport: asyncio.Transport

    def __init__(self, other: _End | None = None, met: Callable[[_End], None] | None = None) -> None:
        self.other, self._met = other, met
        self._early = b""
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self._met is not None:
            self._met(self)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self.other is not None:
            self.other.transport.write(data)
        else:
            # Not paused before, in connection_made: up to Python 3.11.2 a transport reads on after that all the same.
            self._early += data
            self.transport.pause_reading()

    def meet(self, other: _End) -> None:
        """Forward to `other` what was received so far, and from now on."""
        self.other = other
        if self._early:
            other.transport.write(self._early)
            self._early = b""
        self.transport.resume_reading()

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        if not self.lost.done():
            self.lost.set_result(None)


async def _pass_through(theirs: _End, behind: Path, identity: Identity, *, accounts: bool) -> None:
    end: socket.socket = theirs.transport.get_extra_info("socket")
    packed = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(packed)
    name = f"gpukernel-{secrets.token_hex(16)}"
    peer = f"unix-abstract:{name}"
    ours = socket.socket(socket.AF_UNIX)
    ours.setblocking(False)
    identity.connected(peer, uid if accounts else NOBODY)
    try:
        ours.bind(f"\0{name}")
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            await loop.sock_connect(ours, str(behind))
            inner, there = await loop.create_unix_connection(lambda: _End(theirs), sock=ours)
            try:
                theirs.meet(there)
                # Neither side speaks on after the other has ended.
                await asyncio.wait([theirs.lost, there.lost], return_when=asyncio.FIRST_COMPLETED)
            finally:
                inner.close()
    finally:
        theirs.transport.close()
        ours.close()
        identity.disconnected(peer)
