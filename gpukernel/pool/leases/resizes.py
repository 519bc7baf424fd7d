"""Resizes that are under way: calls that wait until the workers of a lease have their new caps."""

from __future__ import annotations

import asyncio

from gpukernel.pool.scheduling import resize
from gpukernel.pool.store.store import Store

__all__ = ["Resizes"]

RESIZE_SECONDS = 8.0


class Resizes:
    """The resizes of one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, set[asyncio.Event]] = {}

    async def wait(self, lease_id: str) -> bool:
        """Wait until a resize is over; return False where it was given up because a server did not answer in time."""
        waiter = asyncio.Event()
        self._waiting.setdefault(lease_id, set()).add(waiter)
        try:
            async with asyncio.timeout(RESIZE_SECONDS):
                while resize.outcome(self._store, lease_id)[0]:
                    waiter.clear()
                    await waiter.wait()
        except TimeoutError:
            late = "its GPU server did not answer in time; the slice keeps the size that it has."
            if resize.grows(self._store, lease_id):
                late = "its GPU server has not answered yet; the memory is promised, and the cap follows when it does."
            resize.give_up(self._store, lease_id, late)
            return False
        finally:
            self._waiting[lease_id].discard(waiter)
            if not self._waiting[lease_id]:
                del self._waiting[lease_id]
        return True

    def changed(self, lease_id: str) -> None:
        """Have the calls that wait for a resize of this lease look again."""
        for waiter in self._waiting.get(lease_id, ()):
            waiter.set()

    def all_changed(self) -> None:
        """Have every call that waits for a resize look again."""
        for lease_id in self._waiting:
            self.changed(lease_id)
