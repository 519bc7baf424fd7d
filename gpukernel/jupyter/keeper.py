"""Holds the leases of all kernels that this process has started.

A synchronous ``KernelManager`` may run every provisioner call in an event loop of its own, and a gRPC channel
belongs to one loop.  So one daemon thread with one loop owns the pool's clients; provisioners of any loop ask it.

Guarantees
----------
* A lease that is held is renewed four times within its time to live, whatever the caller's loop does.
* A kernel process that ends by itself gives its lease back after `GRACE_SECONDS`, unless it is started again first.
* Calls for one key run one after the other: a release never overtakes the acquire that follows it.
* When this process ends, leases whose kernels have ended too are given back at once (a console's kernel ends with it).
* When this process dies, nothing renews any more, and the pool ends the leases.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import threading
from collections import defaultdict
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from gpukernel.pool.client import PoolClient
    from gpukernel.pool.model import Device, Holder, Lease, SliceRequest, Waiting

__all__ = ["GRACE_SECONDS", "LeaseKeeper", "Look", "SliceUnavailable", "keeper"]

T = TypeVar("T")

GRACE_SECONDS = 5.0
"""How long a dead kernel keeps its slice, so that a restart finds it again (Jupyter looks every 3 s)."""

_RELEASE_SECONDS = 10.0
_LAST_SECONDS = 1.0


class SliceUnavailable(RuntimeError):
    """The kernel got no slice; the text is one sentence for the person who started it."""


@dataclass(frozen=True)
class Look:
    """What the pool shows to its people."""

    devices: list[Device]
    leases: list[Lease]
    waiting: list[Waiting]


class LeaseKeeper:
    """The thread that acquires, renews and releases; use `keeper` to get this process's own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._clients: dict[str, PoolClient] = {}
        self._renewals: dict[str, asyncio.Task[None]] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._watched: dict[str, tuple[str, str, int]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        threading.Thread(target=self._loop.run_forever, name="gpukernel leases", daemon=True).start()

    async def acquire(
        self, address: str, key: str, slice_: SliceRequest, holder: Holder, wait_seconds: float
    ) -> Lease:
        """The live lease of `key`, or a new one; it is renewed from now on.

        Raises
        ------
        SliceUnavailable
            When the pool refuses, cannot be reached, or has nothing free within `wait_seconds`.
        """
        return await self._ask(self._acquire(address, key, slice_, holder, wait_seconds))

    async def watch(self, address: str, key: str, lease_id: str, pid: int) -> None:
        """Release `lease_id` some seconds after process `pid` has ended, unless `key` is acquired again."""
        await self._ask(self._start_watch(address, key, lease_id, pid))

    async def interrupt(self, address: str, lease_id: str) -> None:
        """The kernel was interrupted: GPU work that does not end by itself ends; a pool that is away changes nothing."""
        await self._ask(self._interrupt(address, lease_id))

    async def release(self, address: str, key: str, lease_id: str, reason: str) -> None:
        """Give the lease back; where the pool cannot be reached, stop renewing and leave it to expiry."""
        await self._ask(self._release(address, key, lease_id, reason))

    async def look(self, address: str) -> Look:
        """The pool's devices, leases and queue; raises `gpukernel.pool.errors.PoolError`."""
        return await self._ask(self._look(address))

    async def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    # --- in the keeper's loop --------------------------------------------------------------------------------

    async def _client(self, address: str) -> PoolClient:
        from gpukernel.pool.client import PoolClient

        if address not in self._clients:
            self._clients[address] = await PoolClient(address).__aenter__()
        return self._clients[address]

    async def _forget_client(self, address: str) -> None:
        if client := self._clients.pop(address, None):
            await client.__aexit__(None, None, None)

    async def _look(self, address: str) -> Look:
        client = await self._client(address)
        devices, (leases, waiting) = await asyncio.gather(client.devices(), client.leases())
        return Look(devices, leases, waiting)

    async def _acquire(
        self, address: str, key: str, slice_: SliceRequest, holder: Holder, wait_seconds: float
    ) -> Lease:
        from gpukernel.pool.errors import PoolError, PoolUnreachable, Refused
        from gpukernel.pool.model import Lease

        if watch := self._watches.pop(key, None):
            watch.cancel()
        async with self._locks[key]:
            position = 0
            try:
                client = await self._client(address)
                async for event in client.acquire(key, slice_, holder, wait_seconds=wait_seconds):
                    if isinstance(event, Lease):
                        self._renew_from_now_on(address, key, event)
                        return event
                    position = event.position
            except Refused as refusal:
                sentence = str(refusal)
                if position and "position" not in sentence:
                    sentence = (
                        f"{sentence.rstrip('.')}; your position in the queue was {position}. "
                        "Try again later, or take a smaller slice."
                    )
                raise SliceUnavailable(sentence) from None
            except PoolUnreachable as error:
                await self._forget_client(address)
                raise SliceUnavailable(str(error)) from None
            except PoolError as error:
                raise SliceUnavailable(str(error)) from None
        raise SliceUnavailable(
            f"The pool at {address} ended the call without an answer; start the kernel again."
        )

    async def _interrupt(self, address: str, lease_id: str) -> None:
        from gpukernel.pool.errors import PoolError

        with contextlib.suppress(PoolError):
            await (await self._client(address)).interrupt(lease_id)

    def _renew_from_now_on(self, address: str, key: str, lease: Lease) -> None:
        if old := self._renewals.pop(key, None):
            old.cancel()
        every = max(lease.ttl_seconds / 4, 0.05)
        self._renewals[key] = self._loop.create_task(self._renew(address, lease.id, every))

    async def _renew(self, address: str, lease_id: str, every: float) -> None:
        from gpukernel.pool.errors import LeaseEnded, PoolError, PoolUnreachable

        while True:
            await asyncio.sleep(every)
            try:
                client = await self._client(address)
                if (await client.renew(lease_id)).state == "ended":
                    return
            except LeaseEnded:
                return
            except PoolUnreachable:
                continue  # the pool may come back: its database remembers the lease
            except PoolError:
                return

    async def _start_watch(self, address: str, key: str, lease_id: str, pid: int) -> None:
        if old := self._watches.pop(key, None):
            old.cancel()
        self._watches[key] = self._loop.create_task(self._watch(address, key, lease_id, pid))
        self._watched[key] = (address, lease_id, pid)

    async def _watch(self, address: str, key: str, lease_id: str, pid: int) -> None:
        await self._process_end(pid)
        await asyncio.sleep(GRACE_SECONDS)
        self._watches.pop(key, None)
        await self._release(address, key, lease_id, "the kernel ended by itself")

    async def _process_end(self, pid: int) -> None:
        """Wait for `pid` without reaping it: that is for whoever started it."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        ended = asyncio.Event()
        self._loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)

    async def _release(self, address: str, key: str, lease_id: str, reason: str) -> None:
        from gpukernel.pool.errors import PoolError

        if watch := self._watches.pop(key, None):
            watch.cancel()
        self._watched.pop(key, None)
        async with self._locks[key]:
            if renewal := self._renewals.pop(key, None):
                renewal.cancel()
            with contextlib.suppress(PoolError, TimeoutError):
                client = await self._client(address)
                await asyncio.wait_for(client.release(lease_id, reason), _RELEASE_SECONDS)
        if not self._locks[key].locked():
            self._locks.pop(key, None)

    async def _close(self) -> None:
        async def release_if_dead(key: str, address: str, lease_id: str, pid: int) -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process_end(pid), _LAST_SECONDS)
                await self._release(
                    address, key, lease_id, "the kernel ended with the program that started it"
                )

        watched = list(self._watched.items())
        await asyncio.gather(*(release_if_dead(key, *rest) for key, rest in watched))
        for task in [*self._renewals.values(), *self._watches.values()]:
            task.cancel()
        for address in list(self._clients):
            await self._forget_client(address)

    def close(self) -> None:
        """Stop renewing and close the channels (at the end of the process)."""
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_LAST_SECONDS + 2)


@functools.cache
def keeper() -> LeaseKeeper:
    """This process's keeper of leases; it starts with the first call."""
    instance = LeaseKeeper()
    atexit.register(instance.close)
    return instance
