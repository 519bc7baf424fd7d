"""Holds the slices of all kernels that this process has started.

A synchronous ``KernelManager`` may run every provisioner call in an event loop of its own, and a gRPC channel
belongs to one loop.  So one daemon thread with one loop owns the pool's clients; provisioners of any loop ask it.

Guarantees
----------
* A kernel process that ends by itself gives its slice back after `GRACE_SECONDS`, unless it is started again first.
* When this process ends, slices whose kernels have ended too are given back at once (a console's kernel ends with it).
* When this process dies, nothing renews any more, and the pool ends the leases and clears the queue of its places.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpukernel.jupyter.desk import Desk, request_from
from gpukernel.jupyter.holding import Holding, SliceUnavailable
from gpukernel.jupyter.offers import Offer, offers_of, sizes_of

if TYPE_CHECKING:
    from gpukernel.pool.hub_client import HubClient
    from gpukernel.pool.model import Device, Holder, Lease, SliceRequest, Waiting

__all__ = ["GRACE_SECONDS", "LeaseKeeper", "Look", "SliceUnavailable", "keeper"]

T = TypeVar("T")

GRACE_SECONDS = 5.0
"""How long a dead kernel keeps its slice, so that a restart finds it again (Jupyter looks every 3 s)."""

_LAST_SECONDS = 1.0


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
        self._clients: dict[str, HubClient] = {}
        self._holdings: dict[str, Holding] = {}
        self._watches: dict[str, tuple[int, asyncio.Task[None]]] = {}
        self._desk = Desk(self._holdings.get)
        self._listeners: list[Callable[[dict[str, Any]], None]] = []
        self._ending = ""
        threading.Thread(target=self._loop.run_forever, name="gpukernel leases", daemon=True).start()

    async def register(
        self, key: str, address: str, slice_: SliceRequest, holder: Holder, lease_file: Path
    ) -> None:
        """A kernel is about to start: from now on its lease file says what it has, and its programs may ask for a slice."""
        await self._ask(self._register(key, address, slice_, holder, lease_file))

    async def acquire(self, key: str, wait_seconds: float) -> bool:
        """Ask for the slice of `key`; False where it still waits after `wait_seconds`, with its place kept.

        Raises
        ------
        SliceUnavailable
            When the pool refuses or cannot be reached.
        """
        return await self._ask(self._acquire(key, wait_seconds))

    async def environment(self, key: str, base: dict[str, str]) -> dict[str, str]:
        """`base`, changed for the kernel of `key`, which is about to start; raises `SliceUnavailable`."""
        return await self._ask(self._holdings[key].environment(base))

    async def mode(self, key: str) -> str:
        """``remote`` or ``direct``, what the kernel of `key` runs in."""
        return await self._ask(self._mode(key))

    async def watch(self, key: str, pid: int) -> None:
        """Release the slice of `key` some seconds after process `pid` has ended, unless it is started again."""
        await self._ask(self._start_watch(key, pid))

    async def interrupt(self, key: str) -> None:
        """The kernel was interrupted: GPU work that does not end by itself ends, and a cell that waits leaves the queue."""
        await self._ask(self._with(key, lambda holding: holding.interrupt()))

    async def close_key(self, key: str, reason: str) -> None:
        """The kernel is over: its place or its slice goes back."""
        await self._ask(self._end(key, reason))

    async def give_up(self, sentence: str) -> None:
        """This process ends: starts that wait for a slice get `SliceUnavailable` with `sentence`, and so does whoever asks later."""
        await self._ask(self._give_up(sentence))

    async def show(self, *, fresh: bool = True) -> list[dict[str, Any]]:
        """Every kernel of this process, as `Holding.show` describes it, with the ``secret`` of its lease."""
        return await self._ask(self._show(fresh))

    async def do(self, key: str, what: str, size: dict[str, Any]) -> None:
        """``release``, ``acquire``, ``cancel`` or ``resize`` for a kernel; the kernel lives on.  Raises `SliceUnavailable`."""
        await self._ask(self._do(key, what, size))

    async def look(self, address: str) -> Look:
        """The pool's devices, leases and queue; raises `gpukernel.pool.errors.PoolError`."""
        return await self._ask(self._look(address))

    async def offers(self, address: str, course: str, shares: Iterable[float]) -> tuple[Offer, ...]:
        """What this person may have of the pool, for a course or for none; raises as `look` does."""
        return await self._ask(self._offers(address, course, shares))

    async def end_lease(self, address: str, lease_id: str, reason: str) -> None:
        """End a lease that another server of this person may hold; raises `gpukernel.pool.errors.PoolError`."""
        await self._ask(self._end_lease(address, lease_id, reason))

    def listen(self, listener: Callable[[dict[str, Any]], None]) -> None:
        """Call `listener`, in the keeper's thread, whenever a kernel's slice or place changes."""
        self._listeners.append(listener)

    async def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    # --- in the keeper's loop --------------------------------------------------------------------------------

    async def client(self, address: str) -> HubClient:
        """The client of the pool at `address`; it connects again by itself."""
        from gpukernel.pool.hub_client import HubClient

        if address not in self._clients:
            self._clients[address] = await HubClient(address).__aenter__()
        return self._clients[address]

    def patient(self, key: str) -> bool:
        """Whether the kernel of `key` runs, so that it can wait for a pool that is away."""
        return key in self._watches

    def tell(self, holding: Holding) -> None:
        """Something about `holding` is different."""
        if self._listeners:
            notice = getattr(holding.lease, "notice", "") if holding.lease else ""
            event = {
                "kernel_id": holding.key,
                "state": holding.state,
                "what": holding.what(),
                "words": holding.words() if holding.state == "waiting" else "",
                "sentence": holding.sentence,
                "notice": notice,
                "position": holding.queued.position if holding.queued else 0,
                "estimate_seconds": holding.queued.estimate_seconds if holding.queued else -1.0,
            }
            for listener in self._listeners:
                listener(event)

    async def _register(
        self, key: str, address: str, slice_: SliceRequest, holder: Holder, lease_file: Path
    ) -> None:
        if not self._desk.path:
            await self._desk.open()
        if watch := self._watches.pop(key, None):
            watch[1].cancel()
        holding = self._holdings.get(key)
        if holding is None:
            holding = self._holdings[key] = Holding(self, key, address, self._desk.path)
        if holding.state in ("none", "ended"):
            holding.request = slice_
        holding.starts += 1
        if holding.file not in (None, lease_file):
            holding.forget()  # the kernel starts again, with its connection file in another directory
        holding.holder, holding.file = holder, lease_file
        holding.write()

    async def _give_up(self, sentence: str) -> None:
        self._ending = sentence
        starting = [holding for key, holding in self._holdings.items() if not self.patient(key)]
        # A slice that is on its way already would find nobody here; it comes, and goes back with its kernel.
        await asyncio.gather(*(holding.answered(_LAST_SECONDS) for holding in starting))
        for holding in starting:
            holding.leave(sentence)

    async def _acquire(self, key: str, wait_seconds: float) -> bool:
        holding = self._holdings[key]
        await holding.check()
        if self._ending:
            raise SliceUnavailable(self._ending)
        holding.begin()
        if not await holding.settled(wait_seconds):
            mode = holding.request.mode if holding.request else ""
            if mode == "direct":
                holding.leave("no slice came in time")
                raise SliceUnavailable(
                    f"No slice in direct mode was free for {wait_seconds:g} s, and a kernel cannot start without one; "
                    "start it again later, or give its kernelspec a longer wait_seconds, or the mode auto or remote."
                )
            if mode == "auto":
                await holding.wait_for_a_worker()
            if holding.state == "waiting":
                return False
        if holding.state != "live":
            raise SliceUnavailable(holding.sentence or "The request for a slice was cancelled.")
        return True

    async def _with(self, key: str, what: Callable[[Holding], Coroutine[Any, Any, None]]) -> None:
        holding = self._holdings.get(key)
        if holding is None:
            raise SliceUnavailable("This server has no such kernel on a slice.")
        await what(holding)

    async def _mode(self, key: str) -> str:
        holding = self._holdings.get(key)
        return holding.request.mode if holding is not None and holding.request is not None else "remote"

    async def _show(self, fresh: bool) -> list[dict[str, Any]]:
        holdings = list(self._holdings.values())
        shown = await asyncio.gather(*(holding.show(fresh=fresh) for holding in holdings))
        return [
            {**one, "secret": holding.lease.secret if holding.lease else ""}
            for one, holding in zip(shown, holdings, strict=True)
        ]

    async def _do(self, key: str, what: str, size: dict[str, Any]) -> None:
        async def act(holding: Holding) -> None:
            if what == "release":
                holding.may_be_released()
                await holding.release("released in its notebook")
            elif what == "cancel":
                holding.leave("the request was cancelled; run the cell again to queue again")
            elif what == "resize":
                await holding.resize(request_from(size, holding.request))
            else:
                if size and holding.state in ("none", "ended"):
                    holding.request = request_from(size, holding.request)
                await holding.check()
                holding.begin()

        await self._with(key, act)

    async def _look(self, address: str) -> Look:
        client = await self.client(address)
        devices, (leases, waiting) = await asyncio.gather(client.devices(), client.leases())
        return Look(devices, leases, waiting)

    async def _offers(self, address: str, course: str, shares: Iterable[float]) -> tuple[Offer, ...]:
        client = await self.client(address)
        devices, courses = await asyncio.gather(client.devices(), client.courses())
        profile = next((known.course.profile for known in courses if known.course.name == course), None)
        models = [device.name for device in devices if device.available]
        sizes = sizes_of(models, profile.offers if profile else (), shares)
        return offers_of(sizes, await client.estimate(course, sizes), profile.start if profile else "")

    async def _end_lease(self, address: str, lease_id: str, reason: str) -> None:
        await (await self.client(address)).release(lease_id, reason)

    async def _start_watch(self, key: str, pid: int) -> None:
        if old := self._watches.pop(key, None):
            old[1].cancel()
        self._watches[key] = (pid, self._loop.create_task(self._watch(key, pid)))

    async def _watch(self, key: str, pid: int) -> None:
        await self._process_end(pid)
        await asyncio.sleep(GRACE_SECONDS)
        self._watches.pop(key, None)
        await self._end(key, "the kernel ended by itself")

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

    async def _end(self, key: str, reason: str) -> None:
        if watch := self._watches.pop(key, None):
            watch[1].cancel()
        holding = self._holdings.get(key)
        if holding is not None:
            starts = holding.starts
            await holding.release(reason)
            if holding.starts == starts:  # else the kernel was started again meanwhile
                self._holdings.pop(key, None)
                holding.forget()

    async def _close(self) -> None:
        async def end_if_dead(key: str, pid: int) -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process_end(pid), _LAST_SECONDS)
                await self._end(key, "the kernel ended with the program that started it")

        await asyncio.gather(*(end_if_dead(key, pid) for key, (pid, _) in list(self._watches.items())))
        await self._desk.close()
        for client in self._clients.values():
            await client.__aexit__(None, None, None)

    def close(self) -> None:
        """Stop renewing and close the channels (at the end of the process)."""
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_LAST_SECONDS + 2)


_one = threading.Lock()


def keeper() -> LeaseKeeper:
    """This process's keeper of leases; it starts with the first call, from whichever thread that comes."""
    with _one:
        return _keeper()


@functools.cache
def _keeper() -> LeaseKeeper:
    instance = LeaseKeeper()
    atexit.register(instance.close)
    return instance
