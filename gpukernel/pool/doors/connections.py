"""Connections: where each comes from, and places that are apart for the admitted and for strangers.

A connection is a stranger's until a call over it was authenticated.  Strangers have few places: some for each account or address, some
in all; when they are taken, the oldest stranger goes.  A stranger that proves nothing goes after a while.  Who is admitted has places
of their own, so that no number of strangers takes one away.

Every connection passes through here, over unix sockets and over TCP: gRPC's Python server neither counts connections by where they come from
nor says which it would rather lose.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gpukernel.pool.doors.call_rates import TooMany

__all__ = ["Arrival", "Connections"]

STRANGERS = 512
"""Connections that have proven nothing."""

STRANGERS_OF_ONE = 256
"""Such connections of one account, or from one address."""

CONNECTIONS_OF_ONE = 64
"""Admitted connections of one person; a service that speaks for others, and an administrator, have `CONNECTIONS_OF_A_SERVICE`."""

CONNECTIONS_OF_A_SERVICE = 1024

STRANGER_SECONDS = 30.0
"""Seconds after which a connection over which nothing was proven is closed."""

BYTES_OF_STRANGERS = 64 * 2**20
"""Bytes that connections over which nothing was proven have sent, together: they lie in the pool's memory until somebody is known."""


@dataclass(eq=False)
class Arrival:
    """One connection; `peer` is what gRPC calls it, `address` the account or address that it comes from, `close` ends it.

    `sent` counts what it sent while it was a stranger's, `waiting` the calls that wait for others on it to be authenticated.
    """

    peer: str
    address: str
    close: Callable[[], None] = lambda: None
    since: float = 0.0
    admitted: str = ""
    trusted: bool = False
    sent: int = 0
    waiting: int = 0
    proving: asyncio.Lock = field(default_factory=asyncio.Lock)

    @contextlib.contextmanager
    def waiting_to_prove(self, most: int) -> Iterator[None]:
        """Count a call whose credential nobody knows yet.

        Raises
        ------
        TooMany
            With a sentence, where a person was admitted here and `most` such calls wait already: they change credentials with each call.
        """
        if self.admitted and not self.trusted and self.waiting >= most:
            raise TooMany(
                f"{most} calls wait on this connection until it is known who makes them; wait for their answers first.",
                1.0,
            )
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1


class Connections:
    """All connections of one pool process; used in the I/O loop."""

    def __init__(self, strangers: int = STRANGERS, strangers_of_one: int = STRANGERS_OF_ONE) -> None:
        self._strangers_at_most, self._of_one_at_most = strangers, strangers_of_one
        self._by_peer: dict[str, Arrival] = {}
        self._strangers: dict[str, dict[str, Arrival]] = {}  # by address, then by peer, the oldest first
        self._admitted: dict[str, dict[str, Arrival]] = {}  # by name
        self.sent_away = 0
        self._sent = 0

    @classmethod
    def within(cls, descriptors: int) -> Connections:
        """Return connections whose strangers take at most half of the descriptors that a process may have: each takes three."""
        strangers = max(min(STRANGERS, descriptors // 6), 16)
        return cls(strangers, min(STRANGERS_OF_ONE, strangers // 2))

    def of(self, peer: str) -> Arrival:
        """Return the connection that gRPC calls `peer`."""
        return self._by_peer.get(peer) or Arrival(peer, peer)

    def __len__(self) -> int:
        return len(self._by_peer)

    def __iter__(self) -> Iterator[Arrival]:
        return iter(self._by_peer.values())

    def strangers(self) -> int:
        """Return how many connections have proven nothing."""
        return sum(map(len, self._strangers.values()))

    def opened(self, connection: Arrival) -> None:
        """Add a stranger's connection; where strangers have no place left, the oldest one goes."""
        connection.since = asyncio.get_running_loop().time()
        self._by_peer[connection.peer] = connection
        mine = self._strangers.setdefault(connection.address, {})
        mine[connection.peer] = connection
        if len(mine) > self._of_one_at_most:
            self._send_away(next(iter(mine.values())))
        elif self.strangers() > self._strangers_at_most:
            # Of who has the most: a crowd from one address costs nobody else a place.
            most = max(self._strangers.values(), key=len)
            self._send_away(next(iter(most.values())))

    def heard(self, connection: Arrival, size: int) -> None:
        """Count what a connection sends; where strangers have sent too much, the one that sent the most goes."""
        if connection.admitted or connection.peer not in self._by_peer:
            return
        connection.sent += size
        self._sent += size
        if self._sent > BYTES_OF_STRANGERS:
            every = (one for mine in self._strangers.values() for one in mine.values())
            self._send_away(max(every, key=lambda one: one.sent))

    def closed(self, connection: Arrival) -> None:
        """Forget a connection."""
        self._by_peer.pop(connection.peer, None)
        self._leave_strangers(connection)
        if (mine := self._admitted.get(connection.admitted)) is not None:
            mine.pop(connection.peer, None)
            if not mine:
                del self._admitted[connection.admitted]

    def admit(self, connection: Arrival, name: str, *, trusted: bool) -> None:
        """Give a connection, over which a call of `name` was authenticated, a place apart from strangers."""
        if connection.admitted or connection.peer not in self._by_peer:
            return
        self._leave_strangers(connection)
        connection.admitted, connection.trusted = name, trusted
        mine = self._admitted.setdefault(name, {})
        mine[connection.peer] = connection
        if len(mine) > (CONNECTIONS_OF_A_SERVICE if trusted else CONNECTIONS_OF_ONE):
            self._send_away(next(iter(mine.values())))

    def expire(self, now: float) -> None:
        """Close the connections over which nothing was proven for `STRANGER_SECONDS`."""
        for mine in list(self._strangers.values()):
            for connection in list(mine.values()):
                if now - connection.since < STRANGER_SECONDS:
                    break
                self._send_away(connection)

    def make_room(self) -> None:
        """Close the oldest connection of the address with the most strangers: descriptors have run out."""
        if self._strangers:
            self._send_away(next(iter(max(self._strangers.values(), key=len).values())))

    def _send_away(self, connection: Arrival) -> None:
        self.sent_away += 1
        self.closed(connection)
        connection.close()

    def _leave_strangers(self, connection: Arrival) -> None:
        mine = self._strangers.get(connection.address)
        if mine is not None and mine.pop(connection.peer, None) is not None:
            self._sent -= connection.sent
            if not mine:
                del self._strangers[connection.address]
