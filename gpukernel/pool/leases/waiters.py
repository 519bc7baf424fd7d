"""The calls that wait in this pool process: for a place in the queue, or for the workers of a lease to start."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, KeysView
from dataclasses import dataclass, field

from gpukernel.common.model import Lease

__all__ = ["Waiter", "Waiters"]

A_FEW = 8
"""The number of waiting calls that are told their places within one turn of the loop."""


@dataclass(eq=False)
class Waiter:
    """A call that waits here."""

    key: str
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    lease_id: str = ""
    lease: Lease | None = None  # as it was committed last, where nothing has happened to it since
    ours: bool = False  # this process has granted it
    replaced: bool = False
    given_up: str = ""  # why nobody waits for it any more
    asks_again: bool = False  # its request may be lost
    traceparent: str = ""  # of its call, where that is traced

    def replace(self) -> None:
        """Tell the call that the same request was made again elsewhere."""
        self.replaced = True
        self.changed.set()


class Waiters:
    """The waiting calls of one event loop: by key while they are in the queue, then by lease."""

    def __init__(self) -> None:
        self._queued: dict[str, Waiter] = {}
        self._starting: dict[str, Waiter] = {}
        self._watched: dict[str, set[asyncio.Event]] = {}  # by lease
        self._stale = False  # places of a crowd may have changed
        self._notifier: asyncio.Task[None] | None = None

    def keys(self) -> KeysView[str]:
        """Return the keys of the calls in the queue, as they are at any time."""
        return self._queued.keys()

    def enter(self, key: str, traceparent: str = "") -> Waiter:
        """Add a call; the same use that asks again keeps its place, and its older call is replaced."""
        if (other := self._queued.get(key)) is not None:
            other.replace()
        waiter = self._queued[key] = Waiter(key, traceparent=traceparent)
        return waiter

    def queued(self, key: str) -> Waiter | None:
        """Return the call that waits in the queue with a key."""
        return self._queued.get(key)

    def is_awaited(self, name: str) -> bool:
        """Return whether a call here waits for a grant under this key, or for the lease of this id to start."""
        return name in self._queued or name in self._starting

    def leave(self, waiter: Waiter) -> bool:
        """Remove a call; return whether it was in the queue."""
        if self._starting.get(waiter.lease_id) is waiter:
            del self._starting[waiter.lease_id]
        if self._queued.get(waiter.key) is waiter:
            del self._queued[waiter.key]
            return True
        return False

    def serve(self, key: str, lease_id: str, lease: Lease | None = None, *, ours: bool = False) -> bool:
        """Give this lease to the call that waits for `key` here, which reads it unless it is given; return whether one does.

        `ours`: this process has granted it, as it has one that is given.
        """
        if (waiter := self._queued.pop(key, None)) is not None:
            if (older := self._starting.get(lease_id)) is not None:
                older.replace()
            waiter.lease_id, waiter.lease = lease_id, lease
            waiter.ours = ours or lease is not None or (older is not None and older.ours)
            self._starting[lease_id] = waiter
            waiter.changed.set()
            return True
        return False

    def lease_changed(self, lease_id: str, lease: Lease | None = None) -> None:
        """Tell the call that waits for a lease to start, and those that watch it; each reads the lease again unless `lease` is given."""
        for changed in self._watched.get(lease_id, ()):
            changed.set()
        if waiter := self._starting.get(lease_id):
            waiter.lease = lease
            waiter.changed.set()

    def leases_changed(self) -> None:
        """Tell every call that waits for a lease to start, or watches one."""
        for lease_id in {*self._starting, *self._watched}:
            self.lease_changed(lease_id)

    def ask_again(self) -> None:
        """Have every call in the queue make its request again."""
        for waiter in self._queued.values():
            waiter.asks_again = True
            waiter.changed.set()

    @contextlib.contextmanager
    def watching(self, lease_id: str) -> Iterator[asyncio.Event]:
        """Give an event that is set whenever a lease may have changed."""
        changed = asyncio.Event()
        self._watched.setdefault(lease_id, set()).add(changed)
        try:
            yield changed
        finally:
            self._watched[lease_id].discard(changed)
            if not self._watched[lease_id]:
                del self._watched[lease_id]

    def places_changed(self) -> None:
        """Tell every call in the queue."""
        if len(self._queued) <= A_FEW:
            for waiter in self._queued.values():
                waiter.changed.set()
        else:
            self._stale = True
            if self._notifier is None or self._notifier.done():
                self._notifier = asyncio.get_running_loop().create_task(self._tell_crowd())

    async def _tell_crowd(self) -> None:
        """Tell a crowd its places, a few at a time, in a quarter of the time at most; once more where they change meanwhile.

        gRPC takes in one new call for each turn of the loop.  If a turn told hundreds their places, renewals would come in too late.
        """
        clock = asyncio.get_running_loop().time
        while self._stale:
            self._stale = False
            crowd = iter(list(self._queued))
            while keys := list(itertools.islice(crowd, A_FEW)):
                begin = clock()
                for key in keys:
                    if waiter := self._queued.get(key):
                        waiter.changed.set()
                await asyncio.sleep(0)  # they are told in this turn
                await asyncio.sleep(3 * (clock() - begin))
