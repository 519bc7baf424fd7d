"""Turns of the event loop: one decision in each, so that a hundred calls at once keep no heartbeat waiting for all of them."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["Turns"]


class Turns:
    """The turns of one event loop, which calls take in the order in which they ask."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Return within a turn that nobody else took: at once where this one is free."""
        loop = asyncio.get_running_loop()
        if self._taken or self._waiting:
            mine = loop.create_future()
            self._waiting.append(mine)
            await mine
        else:
            self._taken = True
            loop.call_soon(self._next)

    def _next(self) -> None:
        """Give the next turn away; it is free where nobody waits."""
        self._taken = False
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():
                self._taken = True
                first.set_result(None)
                asyncio.get_running_loop().call_soon(self._next)
                return
