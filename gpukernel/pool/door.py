"""The unix socket at which people ask: notes whose each connection is, and hands it on to gRPC.

gRPC's Python server does not tell the account at the other end of a unix socket.  So this door accepts the connection, asks the
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
from collections.abc import AsyncIterator
from pathlib import Path

from gpukernel.pool.identity import NOBODY, Identity

__all__ = ["open_door"]

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_CHUNK = 2**16


@contextlib.asynccontextmanager
async def open_door(
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
    connections: set[asyncio.Task[None]] = set()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            # Cancelled is how a connection ends with the pool; asyncio's streams would log that as a fault.
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await _pass_through(reader, writer, behind, identity, accounts=accounts)
        finally:
            connections.discard(task)
            writer.close()

    server = await asyncio.start_unix_server(accepted, sock=_listening(path, 0o666 if everybody else 0o600))
    try:
        yield
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


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


async def _pass_through(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    behind: Path,
    identity: Identity,
    *,
    accounts: bool,
) -> None:
    theirs: socket.socket = writer.get_extra_info("socket")
    packed = theirs.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(packed)
    name = f"gpukernel-{secrets.token_hex(16)}"
    ours = socket.socket(socket.AF_UNIX)
    ours.setblocking(False)
    peer = f"unix-abstract:{name}"
    identity.connected(peer, uid if accounts else NOBODY)
    try:
        ours.bind(f"\0{name}")
        await asyncio.get_running_loop().sock_connect(ours, str(behind))
        inner_reader, inner_writer = await asyncio.open_unix_connection(sock=ours)
        try:
            ways = [
                asyncio.create_task(_copy(reader, inner_writer)),
                asyncio.create_task(_copy(inner_reader, writer)),
            ]
            try:
                # Neither side speaks on after the other has ended.
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            inner_writer.close()
    finally:
        ours.close()
        identity.disconnected(peer)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()
