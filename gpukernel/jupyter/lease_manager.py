"""The leases of all kernels that this process has started.

A synchronous ``KernelManager`` may run every provisioner call in an event loop of its own, and a gRPC channel
belongs to one loop.  So one daemon thread with one loop owns the pool's clients; provisioners of any loop ask it.

Guarantees
----------
* A kernel process that ends by itself gives its slice back after `GRACE_SECONDS`, unless it is started again first.
* When this process ends, slices whose kernels have ended too are given back at once (a console's kernel ends with it).
* When this process dies, its keepalive ends with it, and the pool ends the leases and clears the queue of its places.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpukernel.jupyter.errors import SliceUnavailable
from gpukernel.jupyter.kernel_lease import KernelLease
from gpukernel.jupyter.kernel_socket import KernelSocket
from gpukernel.jupyter.kernel_status import KernelStatus
from gpukernel.jupyter.offers import Offer, offers_of, sizes_of
from gpukernel.jupyter.trouble.process import loaded_libraries
from gpukernel.remoting.worker_query import WorkerSilent, usage_of

if TYPE_CHECKING:
    from gpukernel.client.hub import HubClient
    from gpukernel.common.course import Offered
    from gpukernel.common.model import Chance, Holder, Lease, SliceRequest

__all__ = ["GRACE_SECONDS", "KernelLeaseManager", "lease_manager"]

T = TypeVar("T")

log = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""The time for which a dead kernel keeps its slice, so that a restart finds it again (Jupyter looks every 3 s)."""

USE_SECONDS = 0.8
"""Seconds that a worker may take to say how much of its slice is in use."""

ANSWER_SECONDS = 5.0
"""Seconds for which the front end's request for a slice waits to be answered by the pool."""

_LAST_SECONDS = 1.0


class KernelLeaseManager:
    """The thread that acquires, keeps alive and releases; use `lease_manager` to get this process's own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._clients: dict[str, HubClient] = {}
        self._leases: dict[str, KernelLease] = {}
        self._watches: dict[str, tuple[int, asyncio.Task[None]]] = {}
        self._socket = KernelSocket(self._leases.get)
        self._listeners: list[Callable[[KernelStatus], None]] = []
        self._ending = ""
        threading.Thread(target=self._loop.run_forever, name="gpukernel leases", daemon=True).start()

    # --- a kernel's life, as its provisioner tells it ---

    async def register(
        self, key: str, address: str, request: SliceRequest, holder: Holder, lease_file: Path
    ) -> None:
        """Know of a kernel that is about to start: its lease file says what it has, and its programs may ask for a slice."""
        await self._ask(self._register(key, address, request, holder, lease_file))

    async def acquire(self, key: str, wait_seconds: float) -> bool:
        """Ask for the slice of `key`; return False where the kernel starts without it.

        It still waits after `wait_seconds`, with its place kept; or somebody left the queue meanwhile; or the kernel is started again
        and the pool refuses: a restart must not cost the notebook its kernel.  Its first use of CUDA asks again.

        Raises
        ------
        SliceUnavailable
            When the pool refuses or cannot be reached.
        """
        return await self._ask(self._acquire(key, wait_seconds))

    async def environment(self, key: str, base: dict[str, str]) -> dict[str, str]:
        """Return `base`, changed for the kernel of `key`, which is about to start; raises `SliceUnavailable`."""
        return await self._ask(self._environment(key, base))

    async def mode(self, key: str) -> str:
        """Return ``remote`` or ``direct``, what the kernel of `key` runs in."""
        return await self._ask(self._mode(key))

    async def watch(self, key: str, pid: int) -> None:
        """Release the slice of `key` some seconds after process `pid` has ended, unless it is started again."""
        await self._ask(self._start_watch(key, pid))

    async def interrupt(self, key: str, *, ending: bool = False) -> None:
        """Tell that the kernel was interrupted: GPU work that does not end by itself ends, and a cell that waits leaves the queue.

        Where the kernel's process is about to end (`ending`) it keeps its place: a restart finds it again.
        """
        await self._ask(self._interrupt(key, ending))

    async def close_key(self, key: str, reason: str) -> None:
        """Give the place or the slice of a kernel back that is over, also where the caller is cancelled meanwhile."""
        end = asyncio.run_coroutine_threadsafe(self._end(key, reason), self._loop)
        await asyncio.shield(asyncio.wrap_future(end))

    async def give_up(self, sentence: str) -> None:
        """Prepare for the end of this process: starts that wait for a slice, and later ones, get `SliceUnavailable` with `sentence`."""
        await self._ask(self._give_up(sentence))

    # --- what the front end shows and does ---

    async def statuses(self, *, fresh: bool = True, use: bool = False) -> list[KernelStatus]:
        """Return the status of every kernel of this process.

        Parameters
        ----------
        fresh
            Ask the pool first whether the leases live still.
        use
            Ask the slices' workers what is in use now, which takes some 100 µs; otherwise it is what the pool told last.
        """
        return await self._ask(self._statuses(fresh, use))

    async def command(self, key: str, name: str, size: dict[str, Any]) -> None:
        """Carry out ``release``, ``acquire``, ``cancel``, ``keep`` or ``resize`` for a kernel, which lives on; raises `SliceUnavailable`.

        ``acquire`` waits up to `ANSWER_SECONDS` for the pool's answer, so that a refusal is this call's.
        """
        await self._ask(self._command(key, name, size))

    async def waits(self, key: str) -> bool:
        """Return whether a cell of the kernel waits for its slice now."""
        return await self._ask(self._waits(key))

    async def leases(self, address: str) -> list[Lease]:
        """Return the pool's leases; raises `gpukernel.common.errors.PoolError`."""
        return await self._ask(self._pool_leases(address))

    async def offers(self, address: str, course: str, shares: Iterable[float]) -> tuple[Offer, ...]:
        """Return what this person may have of the pool, for a course or for none; raises as `leases` does."""
        return await self._ask(self._offers(address, course, shares))

    async def chance(self, address: str, course: str, size: Offered) -> Chance:
        """Return what this person would get of one size, offered or not; raises as `leases` does."""
        return await self._ask(self._chance(address, course, size))

    async def end_lease(self, address: str, lease_id: str, reason: str) -> None:
        """End a lease that another server of this person may hold; raises `gpukernel.common.errors.PoolError`."""
        await self._ask(self._end_lease(address, lease_id, reason))

    def listen(self, listener: Callable[[KernelStatus], None]) -> None:
        """Call `listener`, in the manager's thread, whenever a kernel's slice or place changes."""
        self._listeners.append(listener)

    async def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    # --- for the leases, in the manager's loop (`gpukernel.jupyter.kernel_lease.LeaseServices`) ---

    async def client(self, address: str) -> HubClient:
        """Return the client of the pool at `address`; it connects again by itself."""
        from gpukernel.client.hub import HubClient

        if address not in self._clients:
            self._clients[address] = await HubClient(address).__aenter__()
        return self._clients[address]

    def runs(self, key: str) -> bool:
        """Return whether the kernel of `key` has started, so that it can wait for a pool that is away."""
        return key in self._watches

    def libraries(self, key: str) -> Set[str]:
        """Return what the kernel of `key` has loaded; empty where it does not run."""
        watch = self._watches.get(key)
        return loaded_libraries(watch[0]) if watch else frozenset()

    def changed(self, lease: KernelLease) -> None:
        """Tell the listeners that `lease` is different."""
        if self._listeners:
            status = lease.status()
            for listener in self._listeners:
                try:
                    listener(status)
                except Exception:  # what shows a lease must not end it
                    log.exception("kernel %s: its status could not be shown", lease.key)

    # --- in the manager's loop ---

    def _lease(self, key: str) -> KernelLease:
        lease = self._leases.get(key)
        if lease is None:
            raise SliceUnavailable("This server has no such kernel on a slice.")
        return lease

    async def _register(
        self, key: str, address: str, request: SliceRequest, holder: Holder, lease_file: Path
    ) -> None:
        await self._socket.open()
        if watch := self._watches.pop(key, None):
            watch[1].cancel()
        lease = self._leases.get(key)
        if lease is None:
            lease = self._leases[key] = KernelLease(self, key, address, self._socket.path)
        if lease.state in ("none", "ended"):
            lease.request = request
        lease.begin()
        if lease.file not in (None, lease_file):
            lease.forget()  # the kernel starts again, with its connection file in another directory
        lease.holder, lease.file = holder, lease_file
        lease.write()

    async def _acquire(self, key: str, wait_seconds: float) -> bool:
        lease = self._lease(key)
        await lease.check()
        if self._ending:
            raise SliceUnavailable(self._ending)
        lease.ask()
        if not await lease.settled(wait_seconds):
            mode = lease.request.mode if lease.request else ""
            if mode == "direct":
                lease.cancel("no slice came in time")
                raise SliceUnavailable(
                    f"No slice in direct mode was free for {wait_seconds:g} s, and a kernel cannot start without one; "
                    "start it again later, or give its kernelspec a longer wait_seconds, or the mode auto or remote."
                )
            if mode == "auto":
                lease.ask_for_remote()
                await lease.answered()  # so no slice in direct mode comes after this
            if lease.state == "waiting":
                return False
        if lease.state != "live":
            left = lease.state == "none" or lease.starts > 1
            if left and not self._ending and not (lease.request and lease.request.mode == "direct"):
                return False
            raise SliceUnavailable(lease.sentence or "The request for a slice was cancelled.")
        return True

    async def _environment(self, key: str, base: dict[str, str]) -> dict[str, str]:
        return await self._lease(key).environment(base)

    async def _mode(self, key: str) -> str:
        lease = self._leases.get(key)
        return lease.request.mode if lease is not None and lease.request is not None else "remote"

    async def _interrupt(self, key: str, ending: bool) -> None:
        await self._lease(key).interrupt(ending=ending)

    async def _command(self, key: str, name: str, size: dict[str, Any]) -> None:
        lease = self._lease(key)
        await lease.command(name, size)
        if name == "acquire":
            await lease.answered(ANSWER_SECONDS)
            if lease.state == "ended":
                raise SliceUnavailable(lease.sentence)

    async def _waits(self, key: str) -> bool:
        lease = self._leases.get(key)
        return lease is not None and lease.state == "waiting" and lease.askers > 0

    async def _give_up(self, sentence: str) -> None:
        self._ending = sentence
        starting = [lease for key, lease in self._leases.items() if not self.runs(key)]
        # A slice that is on its way already would find nobody here; it comes, and goes back with its kernel.
        await asyncio.gather(*(lease.answered(_LAST_SECONDS) for lease in starting))
        for lease in starting:
            lease.cancel(sentence)

    async def _statuses(self, fresh: bool, use: bool) -> list[KernelStatus]:
        leases = list(self._leases.values())
        if fresh:
            await asyncio.gather(*(lease.check() for lease in leases))
        if not use:
            return [lease.status() for lease in leases]
        work = [asyncio.to_thread(_with_use, lease.status(), lease.lease) for lease in leases]
        return await asyncio.gather(*work)

    async def _pool_leases(self, address: str) -> list[Lease]:
        leases, _ = await (await self.client(address)).leases()
        return leases

    async def _offers(self, address: str, course: str, shares: Iterable[float]) -> tuple[Offer, ...]:
        client = await self.client(address)
        devices, courses = await asyncio.gather(client.devices(), client.courses())
        profile = next((known.course.profile for known in courses if known.course.name == course), None)
        models = [device.name for device in devices if device.available]
        sizes = sizes_of(models, profile.offers if profile else (), shares)
        start, priority = (profile.start, profile.priority) if profile else ("", "")
        sizes = [replace(size, priority=size.priority or priority) for size in sizes]
        return offers_of(sizes, await client.estimate(course, sizes), start, priority)

    async def _chance(self, address: str, course: str, size: Offered) -> Chance:
        (found,) = await (await self.client(address)).estimate(course, [size])
        return found

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
        lease = self._leases.get(key)
        if lease is not None:
            starts = lease.starts
            try:
                await lease.release(reason)
            finally:
                if lease.starts == starts:  # else the kernel was started again meanwhile
                    self._leases.pop(key, None)
                    lease.forget()

    async def _close(self) -> None:
        async def end_if_dead(key: str, pid: int) -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process_end(pid), _LAST_SECONDS)
                await self._end(key, "the kernel ended with the program that started it")

        await asyncio.gather(*(end_if_dead(key, pid) for key, (pid, _) in list(self._watches.items())))
        await self._socket.close()
        for client in self._clients.values():
            await client.__aexit__(None, None, None)

    def close(self) -> None:
        """End the keepalive and close the channels (at the end of the process)."""
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_LAST_SECONDS + 2)


def _with_use(status: KernelStatus, lease: Lease | None) -> KernelStatus:
    """Return `status` with the use that the lease's workers tell, or as it is where one does not answer."""
    if lease is None:
        return status
    try:
        uses = [usage_of(piece.endpoints, lease.secret, patience=USE_SECONDS) for piece in lease.slices]
    except WorkerSilent:
        return status
    return status.with_use(uses)


_one = threading.Lock()


def lease_manager() -> KernelLeaseManager:
    """Return this process's lease manager; it starts with the first call, from whichever thread that comes."""
    with _one:
        return _lease_manager()


@functools.cache
def _lease_manager() -> KernelLeaseManager:
    instance = KernelLeaseManager()
    atexit.register(instance.close)
    return instance
