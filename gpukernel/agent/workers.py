"""The workers of this server: one for each lease and device, in a directory of its own, found again after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path

from gpukernel.agent.confinement import ACCOUNTS, Confinement, WorkerPlaces, mps_environment
from gpukernel.agent.container_sockets import ContainerSockets
from gpukernel.agent.image_cache import ImageCache
from gpukernel.agent.inventory import Inventory
from gpukernel.agent.keys import Key, LogFields, lease_only
from gpukernel.agent.worker_log import WorkerLog
from gpukernel.common.address import make_container_sockets, rename_state
from gpukernel.common.model import Rung
from gpukernel.common.telemetry.tracing import TRACEPARENT
from gpukernel.remoting.worker import (
    HOST_MEMORY,
    WorkerGone,
    WorkerHandle,
    WorkerStartFailed,
    WorkerStatus,
    adopt_worker,
    start_worker,
)

__all__ = ["Workers"]

log = logging.getLogger(__name__)

STOP_SECONDS = 3.0
STATUS_SECONDS = 1.0

MOST_OF_A_DEVICE = 128
"""Workers of one device.  Each takes a process with some 20 MiB and, on a real device, a context, of which no slice is charged; what is said of
all of them fits into the messages between agent and pool (`gpukernel.pool.doors.field_bounds`)."""


class Workers:
    """The workers of one server: started, adopted and stopped; `ended` is called with key and reason when one is dead, whoever killed it.

    Parameters
    ----------
    state
        ``workers`` below it holds one directory for each worker, ``LEASE-INDEX``, where the part before the last dash
        is the lease; ``time-slicing`` holds one file for each device, by which its workers share its time; ``images``
        the module images that programs sent, so that none is sent twice.  ``containers`` holds a second name for the socket of each
        worker that programs connect to: what a container may be given.
    tcp_host
        Address at which workers listen on TCP too; empty for unix sockets only.
    watchdog_seconds
        Work that does not end within this time is ended; 0: never.
    about
        Gives what a log line about a worker carries.
    host_memory
        Bytes of this machine's own memory that the programs of one lease may make its worker take.
    tls
        Whoever comes over TCP must speak TLS.
    confinement
        The rungs of confinement (`gpukernel.agent.confinement`): ``auto``, ``off``, or names.
    accounts
        The first account of workers and how many there are.

    Raises
    ------
    ConfinementImpossible
        When a rung is asked for by name that this machine lacks.
    """

    def __init__(
        self,
        state: Path,
        inventory: Inventory,
        tcp_host: str,
        ended: Callable[[Key, str], None],
        watchdog_seconds: float = 0.0,
        about: LogFields = lease_only,
        host_memory: int = HOST_MEMORY,
        tls: bool = False,
        confinement: str = "auto",
        accounts: tuple[int, int] = ACCOUNTS,
    ) -> None:
        self._directory = state / "workers"
        self.time_slicing = state / "time-slicing"
        rename_state(state / "turns", self.time_slicing)  # its name in version 0.1
        self._images = state / "images"
        self._watchdog_seconds = watchdog_seconds
        self._host_memory = host_memory
        self._inventory = inventory
        self._tcp_host = tcp_host
        self._tls = tls
        self._ended = ended
        self._about = about
        self._handles: dict[Key, WorkerHandle] = {}
        self._starting: set[Key] = set()
        self._logs: dict[Key, WorkerLog] = {}
        self._reasons: dict[Key, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # An order to stop waits for an unfinished start: a worker reported dead must never appear afterwards.
        self._orders: defaultdict[Key, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._sockets = ContainerSockets(make_container_sockets(state))
        self._directory.mkdir(parents=True, exist_ok=True)
        self._directory.chmod(0o711)
        self.time_slicing.mkdir(mode=0o700, exist_ok=True)
        self._images.mkdir(mode=0o700, exist_ok=True)
        self._image_cache = ImageCache(self._images)
        self._asked: dict[Key, asyncio.Task[WorkerStatus | None]] = {}
        self.confinement = Confinement(
            confinement, inventory, state, WorkerPlaces(self.time_slicing, self._images), accounts
        )

    def rungs(self) -> tuple[Rung, ...]:
        """Return what bounds a worker, from outside in: its own book of host memory comes first."""
        book = Rung("host-memory", True, f"{self._host_memory >> 20} MiB for a slice")
        return (book, *self.confinement.rungs)

    def pids(self) -> list[int]:
        """Return the process ids of the living workers."""
        return [handle.pid for handle in self._handles.values()]

    def endpoints(self) -> dict[Key, tuple[str, ...]]:
        """Return the living workers and the addresses at which they listen."""
        return {key: self._sockets.with_links(key, handle.endpoints) for key, handle in self._handles.items()}

    async def adopt(self) -> None:
        """Find the workers that an earlier agent left; clear away what is left of dead ones."""
        for path in sorted(self._directory.iterdir()):
            lease_id, _, index = path.name.rpartition("-")
            handle = await adopt_worker(path) if index.isdigit() else None
            if handle is None:
                shutil.rmtree(path, ignore_errors=True)
                self._sockets.remove(path.name)
                continue
            key = (lease_id, int(index))
            log.info("worker adopted", extra=self._about(key))
            self.confinement.adopt(key, handle.pid)
            self._keep(key, handle)
        self.confinement.clear_all_but(self._handles)

    def starting(self) -> list[Key]:
        """Return the workers whose start is under way."""
        return [key for key in self._starting if key not in self._handles]

    async def start(
        self,
        key: Key,
        memory_bytes: int,
        weight: float,
        secret: str,
        until: float | None = None,
        wait: float = 0.0,
        traceparent: str = "",
    ) -> tuple[str, ...]:
        """Start a worker and return its endpoints; it ends by itself at `until`, in seconds since the machine's start, unless it hears of a later end.  It starts after `wait` seconds.

        `traceparent`: the trace that its start belongs to, for its environment.

        Raises
        ------
        WorkerStartFailed
            With a sentence.
        """
        there = sum(one[1] == key[1] for one in {*self._handles, *self._starting} - {key})
        if there >= MOST_OF_A_DEVICE:
            raise WorkerStartFailed(f"its device has {there} slices, as many as it may have at a time")
        self._starting.add(key)
        try:
            async with self._orders[key]:
                await asyncio.sleep(wait)
                return await self._start(key, memory_bytes, weight, secret, until, traceparent)
        finally:
            self._starting.discard(key)

    async def _start(
        self,
        key: Key,
        memory_bytes: int,
        weight: float,
        secret: str,
        until: float | None,
        traceparent: str,
    ) -> tuple[str, ...]:
        lease_id, index = key
        directory = self._directory / f"{lease_id}-{index}"
        try:
            directory.mkdir(mode=0o711)
            directory.chmod(0o711)
        except OSError as error:
            raise WorkerStartFailed(f"{directory} cannot be made: {error.strerror}") from None
        try:
            confines = await asyncio.to_thread(
                self.confinement.enter, key, memory_bytes, self._host_memory, weight
            )
        except OSError as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise WorkerStartFailed(f"the worker of lease {lease_id} cannot be confined: {error}") from None
        try:
            handle = await start_worker(
                library=self._inventory.library,
                device=self._inventory.worker_device(index),
                memory_bytes=memory_bytes,
                weight=weight,
                lease_id=lease_id,
                secret=secret,
                directory=directory,
                tcp_host=self._tcp_host or None,
                env={
                    **self._inventory.worker_environment(index),
                    **mps_environment(self._inventory, index, memory_bytes),
                    **({TRACEPARENT.upper(): traceparent} if traceparent else {}),
                },
                time_slicing=self.time_slicing / str(index),
                images=self._images,
                watchdog_seconds=self._watchdog_seconds,
                host_memory=self._host_memory,
                until=until,
                tls=self._tls,
                before=confines.before,
                confinement=confines.options,
            )
        except (WorkerStartFailed, OSError) as error:
            self.confinement.leave(key)
            shutil.rmtree(directory, ignore_errors=True)
            raise WorkerStartFailed(str(error)) from None
        self._keep(key, handle)
        return self._sockets.with_links(key, handle.endpoints)

    def _keep(self, key: Key, handle: WorkerHandle) -> None:
        self._handles[key] = handle
        self._sockets.add(key, handle.endpoints)
        self._logs[key] = WorkerLog(handle.directory)
        task = asyncio.create_task(self._watch(key, handle))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self, key: Key, handle: WorkerHandle) -> None:
        await handle.wait()
        self._log_what_it_says(key, last=True)
        del self._handles[key], self._logs[key]
        self._orders.pop(key, None)
        shutil.rmtree(handle.directory, ignore_errors=True)
        await asyncio.to_thread(self.confinement.leave, key)
        self._sockets.remove(handle.directory.name)
        self._ended(key, self._reasons.pop(key, "its worker ended unexpectedly"))

    def _log_what_it_says(self, key: Key, *, last: bool = False) -> None:
        for line in self._logs[key].new_lines(all_of_it=last):
            log.warning("its worker says: %s", line, extra=self._about(key))

    async def stop(self, key: Key, reason: str, reported: str = "stopped") -> None:
        """Tell the programs `reason`, end the worker; `ended` follows with `reported`, also where there was none."""
        async with self._orders[key]:
            handle = self._handles.get(key)
        if handle is None:
            self._orders.pop(key, None)
            self._ended(key, reported)
            return
        self._reasons[key] = reported
        await handle.stop(reason)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await handle.wait()
        handle.kill()

    async def limit(self, key: Key, memory_bytes: int, weight: float) -> int | None:
        """Change a worker's cap and weight.

        Returns
        -------
        int or None
            0, or the bytes that are allocated where those are more than the new cap; None where the worker is dead.
        """
        async with self._orders[key]:  # two caps must not overtake each other, nor a start
            if (handle := self._handles.get(key)) is None:
                self._orders.pop(key, None)
                return None
            try:
                # More room first and less room afterwards: what the cap allows, the group allows as well.
                confine = self.confinement.change
                await asyncio.to_thread(
                    confine, key, max(memory_bytes, handle.memory_limit), self._host_memory, weight
                )
                await handle.limit(memory_bytes, weight)
                await asyncio.to_thread(confine, key, memory_bytes, self._host_memory, weight)
            except ValueError:
                try:
                    return max((await handle.status()).memory_used_bytes, memory_bytes + 1)
                except WorkerGone:
                    return None
            except WorkerGone:
                return None
            return 0

    async def interrupt(self, key: Key) -> None:
        """Have a worker end the work that does not end by itself."""
        if handle := self._handles.get(key):
            with contextlib.suppress(WorkerGone):
                await handle.interrupt()

    async def stop_all(self, reason: str) -> None:
        """Stop every worker and wait until they are dead."""
        await asyncio.gather(*(self.stop(key, reason, reason) for key in list(self._handles)))
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=STOP_SECONDS)

    async def statuses(
        self, keys: Collection[Key] | None = None, until: float | None = None
    ) -> dict[Key, WorkerStatus]:
        """Return what the workers, or those of `keys`, say of themselves.

        One that does not answer within `STATUS_SECONDS` is left out, and asked again once it has: no worker makes the others wait.
        They may live until `until`, in seconds since the machine's start, and end by themselves then.
        """

        async def ask(handle: WorkerHandle) -> WorkerStatus | None:
            try:
                return await handle.status(until)
            except WorkerGone:
                return None

        for key in self._logs:
            self._log_what_it_says(key)
        await asyncio.to_thread(self._image_cache.prune)
        for key, handle in self._handles.items():
            if (keys is None or key in keys) and key not in self._asked:
                self._asked[key] = asyncio.create_task(ask(handle))
        asked = {k: task for k, task in self._asked.items() if keys is None or k in keys}
        if asked:
            await asyncio.wait(asked.values(), timeout=STATUS_SECONDS)
        answers = {key: task.result() for key, task in asked.items() if task.done()}
        for key in answers:
            self._asked.pop(key, None)
        return {key: status for key, status in answers.items() if status is not None}
