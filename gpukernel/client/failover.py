"""Failover: one channel to several pools on one database, each call over the way that answers.

Guarantees
----------
* With one address this is that address's channel, and nothing else.
* A call is sent only over a way whose connection is up, where one is; so what could not be sent anywhere was done nowhere.
* A way that refuses is passed over at once, one that says nothing after `STAGGER_SECONDS`; the token goes only to the pool for which it stands, after
  that pool's certificate was checked.
* Nothing is sent twice here: whether a call may be repeated is for its caller to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gpukernel.common.connection import Connection
from gpukernel.common.fork_safe_grpc import grpc

__all__ = ["CONNECT_SECONDS", "FailoverChannel"]

CONNECT_SECONDS = 6.0
"""Seconds after which none of the pools has answered."""

STAGGER_SECONDS = 1.0
"""Seconds after which the next pool is tried beside one that does not answer."""

_answered: dict[tuple[str, ...], int] = {}
"""The way that answered last, by the addresses: a client that is made for each request does not begin with a dead one each time."""


class FailoverChannel:
    """A channel to the pools of `connection`, bound to the event loop in which it is used.

    It has those methods of `grpc.aio.Channel` that stubs ask for, and adds each pool's token to the calls.

    Attributes
    ----------
    current
        The number of the way that calls take now.
    """

    def __init__(self, connection: Connection) -> None:
        self.ways = connection.ways
        self._addresses = connection.addresses
        self.current = _answered.get(self._addresses, 0) if self.several else 0
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._is_lost = False
        self._connecting = asyncio.Lock()

    @property
    def several(self) -> bool:
        """Return whether there is another way than the first."""
        return len(self.ways) > 1

    @property
    def way(self) -> Connection:
        """Return the connection that calls take now."""
        return self.ways[self.current]

    def lost(self, way: int) -> None:
        """Record that a call over `way` was lost: the next `connect` begins with the way after it."""
        if self.several and way == self.current:
            self._is_lost = True

    async def connect(self, seconds: float = CONNECT_SECONDS) -> bool:
        """Have a way whose connection is up; return whether there is one.  With one address nothing is tried before the call itself."""
        if not self.several or (not self._is_lost and self._is_up(self.current)):
            return True
        async with self._connecting:
            if not self._is_lost and self._is_up(self.current):
                return True
            first = self.current + self._is_lost
            order = [(first + n) % len(self.ways) for n in range(len(self.ways))]
            found = await self._first_up(order, min(seconds, CONNECT_SECONDS))
            if found is None:
                return False
            self.current = _answered[self._addresses] = found
            self._is_lost = False
            return True

    async def _first_up(self, order: list[int], seconds: float) -> int | None:
        """Return the way that is up first, when all are tried one after the other, each with a head start."""
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        trying: dict[asyncio.Task[bool], int] = {}
        left = list(order)
        try:
            while (left or trying) and clock() < end:
                if left:
                    number = left.pop(0)
                    trying[asyncio.create_task(self._up(number))] = number
                patience = min(STAGGER_SECONDS, end - clock()) if left else end - clock()
                done, _ = await asyncio.wait(
                    trying, timeout=max(patience, 0.0), return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    number = trying.pop(task)
                    if task.result():
                        return number
            return None
        finally:
            for task in trying:
                task.cancel()

    async def _up(self, number: int) -> bool:
        """Connect over a way; return whether that worked."""
        if not self._is_up(number):
            await self._close(number)
        channel = self._channel(number)
        state = channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                return False
            await channel.wait_for_state_change(state)
            state = channel.get_state(try_to_connect=True)
        return True

    def _is_up(self, number: int) -> bool:
        channel = self._channels.get(number)
        return channel is not None and channel.get_state() is grpc.ChannelConnectivity.READY

    def _channel(self, number: int) -> grpc.aio.Channel:
        if number not in self._channels:
            self._channels[number] = self.ways[number].channel(one_of_several=self.several)
        return self._channels[number]

    async def _close(self, number: int) -> None:
        if (channel := self._channels.pop(number, None)) is not None:
            await channel.close()

    async def close(self) -> None:
        """Close all connections."""
        for number in tuple(self._channels):
            await self._close(number)

    def _method(self, kind: str, *arguments: Any, **named: Any) -> Callable[..., Any]:
        over: grpc.aio.Channel | None = None  # another one after each failure
        method: Any = None

        def call(*request: Any, metadata: Any = (), **options: Any) -> Any:
            nonlocal over, method
            channel = self._channel(self.current)
            if channel is not over:
                over, method = channel, getattr(channel, kind)(*arguments, **named)
            return method(*request, metadata=(*self.way.metadata, *metadata), **options)

        return call

    def unary_unary(self, *arguments: Any, **named: Any) -> Callable[..., Any]:
        """See `grpc.aio.Channel`."""
        return self._method("unary_unary", *arguments, **named)

    def unary_stream(self, *arguments: Any, **named: Any) -> Callable[..., Any]:
        """See `grpc.aio.Channel`."""
        return self._method("unary_stream", *arguments, **named)

    def stream_unary(self, *arguments: Any, **named: Any) -> Callable[..., Any]:
        """See `grpc.aio.Channel`."""
        return self._method("stream_unary", *arguments, **named)

    def stream_stream(self, *arguments: Any, **named: Any) -> Callable[..., Any]:
        """See `grpc.aio.Channel`."""
        return self._method("stream_stream", *arguments, **named)
