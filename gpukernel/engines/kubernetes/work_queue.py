"""A queue of names that are to be looked at: each at most once at a time, and again, later and later, while that fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

__all__ = ["WorkQueue"]

log = logging.getLogger(__name__)

FIRST_SECONDS, LONGEST_SECONDS = 0.2, 30.0


class WorkQueue:
    """Names, and workers that look at them.

    A name that is added while it is looked at is looked at once more afterwards; one that is waiting is there once.

    Parameters
    ----------
    look
        Looks at a name.  True: done; False: again later, with a pause that doubles up to `LONGEST_SECONDS`.  An error is logged and counts
        as False.
    workers
        Names that are looked at at the same time.
    """

    def __init__(self, look: Callable[[str], Awaitable[bool]], workers: int = 16) -> None:
        self._look, self._workers = look, workers
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self._waiting: set[str] = set()
        self._busy: set[str] = set()
        self._once_more: set[str] = set()
        self._pauses: dict[str, float] = {}
        self._later: dict[str, asyncio.TimerHandle] = {}

    def add(self, name: str) -> None:
        """Have a name looked at soon."""
        if (timer := self._later.pop(name, None)) is not None:
            timer.cancel()
        if name in self._busy:
            self._once_more.add(name)
        elif name not in self._waiting:
            self._waiting.add(name)
            self._ready.put_nowait(name)

    @property
    def idle(self) -> bool:
        """Return whether nothing is looked at, waits or is to be looked at again."""
        return not (self._waiting or self._busy or self._later)

    async def run(self) -> None:
        """Look at names, until this is cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            name = await self._ready.get()
            self._waiting.discard(name)
            self._busy.add(name)
            try:
                done = await self._look(name)
            except Exception:
                log.exception("%s could not be looked at", name)
                done = False
            finally:
                self._busy.discard(name)
            if name in self._once_more:
                self._once_more.discard(name)
                self.add(name)
            elif not done:
                pause = self._pauses.get(name, FIRST_SECONDS)
                self._pauses[name] = min(2 * pause, LONGEST_SECONDS)
                self._later[name] = asyncio.get_running_loop().call_later(pause, self.add, name)
            if done:
                self._pauses.pop(name, None)
