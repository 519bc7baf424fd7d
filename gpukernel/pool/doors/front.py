"""The front: a listener that takes every connection in, knows where it comes from, and hands it on to gRPC's own socket.

gRPC's Python server tells neither the account at the other end of a unix socket nor gives a connection up that it would rather lose.  So this
listener accepts the connection and connects to gRPC's socket, which only the pool's account may open, from an address that nobody else
knows.  gRPC names that address as the peer of every call on the connection.

Guarantees
----------
* Bytes pass unchanged, no faster than the other side takes them; TLS is gRPC's business behind this.
* gRPC hears of a connection once its first bytes are those of HTTP/2 or TLS.  Who is silent, or sends anything else, costs a place here and
  nothing there.
* Where descriptors run out, the oldest stranger goes, and the listener rests (`REST_SECONDS`, twice as long each time) instead of spinning.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from gpukernel.pool.doors.connections import Arrival, Connections

__all__ = ["serve_front"]

log = logging.getLogger(__name__)

HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TLS_HANDSHAKE = 0x16
"""The beginning of every gRPC connection (RFC 9113, section 3.4), and of every one over TLS (RFC 8446, section 5.1): clients speak first."""

ACCEPTED_AT_ONCE = 16
"""Connections that are taken in before the loop goes on with what those before sent."""

REST_SECONDS = 0.05
LONGEST_REST_SECONDS = 2.0
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@contextlib.asynccontextmanager
async def serve_front(
    listener: socket.socket,
    behind: Path,
    connections: Connections,
    came: Callable[[str, socket.socket], str],
    went: Callable[[str], None],
) -> AsyncIterator[None]:
    """Take in the connections of `listener` for as long as the context lasts; gRPC listens at `behind`.

    Parameters
    ----------
    came
        Is told of a connection before gRPC hears of it: what gRPC will call it, and its socket; returns the account or address that it comes
        from.
    went
        Is told that it is over.
    """
    visits: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()
    listener.setblocking(False)

    async def accept() -> None:
        rest = REST_SECONDS
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    log.warning("a connection was not accepted: %s", error)
                    continue
                log.warning("descriptors have run out: %s; the oldest stranger goes", error.strerror)
                connections.make_room()
                await asyncio.sleep(rest)
                rest = min(2 * rest, LONGEST_REST_SECONDS)
                continue
            rest = REST_SECONDS
            for one in (accepted, *_who_waits(listener, ACCEPTED_AT_ONCE - 1)):
                visit = asyncio.create_task(_pass_through(one, behind, connections, came, went))
                visits.add(visit)
                visit.add_done_callback(visits.discard)
            # A few at a time, so that who is sent away is gone before the next come: a crowd that waited here would take all descriptors at once.
            # Not one by one: a busy loop goes round seventy times a second, and strangers that keep coming would keep everybody else waiting.
            await asyncio.sleep(0)

    async def expire() -> None:
        while True:
            await asyncio.sleep(1.0)
            connections.expire(loop.time())

    work = [asyncio.create_task(accept()), asyncio.create_task(expire())]
    try:
        yield
    finally:
        listener.close()
        for task in (*work, *visits):
            task.cancel()
        await asyncio.gather(*work, *visits, return_exceptions=True)


def _who_waits(listener: socket.socket, most: int) -> Iterator[socket.socket]:
    """Accept connections that wait at a listener; errors are the next `sock_accept`'s to meet."""
    for _ in range(most):
        try:
            accepted, _ = listener.accept()
        except OSError:
            return
        accepted.setblocking(False)
        yield accepted


class _End(asyncio.Protocol):
    """One end of a pair of connections, each of which forwards to the other, no faster than that is taken."""

    transport: asyncio.Transport

    def __init__(self, other: _End | None = None, heard: Callable[[int], None] | None = None) -> None:
        self.other = other
        self._heard = heard
        self._early = b""
        loop = asyncio.get_running_loop()
        self.spoke: asyncio.Future[Any] = loop.create_future()  # the first bytes
        self.lost: asyncio.Future[Any] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._heard is not None:
            self._heard(len(data))
        if self.other is not None:
            self.other.transport.write(data)
        else:
            # Not paused before, in connection_made: up to Python 3.11.2 a transport reads on after that all the same.
            self._early += data
            self.transport.pause_reading()
            if not self.spoke.done():
                self.spoke.set_result(data)

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


def _may_be_grpc(first: bytes) -> bool:
    """Return whether a connection's first bytes, at least one, begin HTTP/2 or TLS."""
    return first[0] == TLS_HANDSHAKE or HTTP2.startswith(first[: len(HTTP2)])


async def _pass_through(
    accepted: socket.socket,
    behind: Path,
    connections: Connections,
    came: Callable[[str, socket.socket], str],
    went: Callable[[str], None],
) -> None:
    loop = asyncio.get_running_loop()
    name = f"gpukernel-{secrets.token_hex(16)}"
    peer = f"unix-abstract:{name}"
    with contextlib.ExitStack() as stack:
        stack.callback(accepted.close)
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stack.callback(went, peer)
        connection = Arrival(peer, came(peer, accepted))
        closing = asyncio.Event()
        connection.close = closing.set
        connections.opened(connection)
        stack.callback(connections.closed, connection)
        if closing.is_set():
            return
        with contextlib.suppress(OSError):
            _, theirs = await loop.connect_accepted_socket(
                lambda: _End(heard=lambda size: connections.heard(connection, size)), accepted
            )
            # Not closed: as long as bytes of theirs are unsent the loop would keep the number of a descriptor that is another's by then.
            stack.callback(theirs.transport.abort)
            told: asyncio.Future[Any] = asyncio.ensure_future(closing.wait())
            stack.callback(told.cancel)
            await asyncio.wait([theirs.spoke, theirs.lost, told], return_when=asyncio.FIRST_COMPLETED)
            if told.done() or not theirs.spoke.done() or not _may_be_grpc(theirs.spoke.result()):
                return
            ours = socket.socket(socket.AF_UNIX)
            stack.callback(ours.close)
            ours.setblocking(False)
            ours.bind(f"\0{name}")
            await loop.sock_connect(ours, str(behind))
            _, there = await loop.create_unix_connection(lambda: _End(theirs), sock=ours)
            stack.callback(there.transport.abort)
            theirs.meet(there)
            # Neither side speaks on after the other has ended.
            await asyncio.wait([theirs.lost, there.lost, told], return_when=asyncio.FIRST_COMPLETED)
