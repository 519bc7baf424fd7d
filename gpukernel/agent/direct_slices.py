"""The slices in direct mode of this server: made, adopted, resized and ended.

There is no worker here: programs use the device themselves, and the library in them keeps the cap.  The agent is the judge of
that, by the device's own account of each process (`gpukernel.agent.processes`).

Guarantees
----------
* A slice's programs are dead before its memory is reported free.
* A lease whose programs hold more than its cap and a margin, for `direct_slice.OVER_SECONDS`, ends, and its programs with it.
* A process is stopped only where it is the slice's user's, whatever a table says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from gpukernel.agent.direct_slice import DirectSlice
from gpukernel.agent.inventory import Inventory
from gpukernel.agent.keys import Key, LogFields, lease_only
from gpukernel.agent.processes import (
    Processes,
    ProcessIdentity,
    ProcessUsage,
    environment_of,
    identity,
)
from gpukernel.agent.termination import terminate
from gpukernel.common.model import Usage
from gpukernel.remoting.direct_environment import DRIVER_VARIABLE
from gpukernel.remoting.direct_table import Table, TableBroken, describe
from gpukernel.remoting.lease_file import (
    DIRECT_ENDPOINT,
    LeaseFileError,
    lease_file_path,
    read_lease_file,
)
from gpukernel.remoting.worker import WorkerStartFailed

__all__ = ["DirectSlices"]

log = logging.getLogger(__name__)

ORDER_SECONDS = 5.0


class DirectSlices:
    """The slices in direct mode, made and ended like workers in `gpukernel.agent.workers.Workers`.

    Parameters
    ----------
    state
        ``direct`` below it holds for each slice a directory ``LEASE-INDEX`` for its user and a record of the agent's own.
    time_slicing
        Directory of the files by which a device's programs and workers share its time.
    processes
        The devices' own account; None where direct mode is not allowed.
    ended
        Called with key and reason when a slice's programs are dead.
    lease_over
        Called with a lease's id and a reason to end it; returns whether the pool was there to hear it.
    clock
        Seconds, for how long a slice has been over its cap.
    about
        Gives what a log line about a slice carries.
    """

    def __init__(
        self,
        state: Path,
        time_slicing: Path,
        inventory: Inventory,
        processes: Processes | None,
        ended: Callable[[Key, str], None],
        lease_over: Callable[[str, str], bool],
        clock: Callable[[], float] = time.monotonic,
        about: LogFields = lease_only,
    ) -> None:
        self._state = state / "direct"
        self._time_slicing = time_slicing
        self._inventory = inventory
        self._processes = processes
        self._ended = ended
        self._lease_over = lease_over
        self._clock = clock
        self._about = about
        self._slices: dict[Key, DirectSlice] = {}
        self._facts: dict[int, bytes] = {}
        self._orders: defaultdict[Key, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._ending: set[asyncio.Task[None]] = set()
        self._state.mkdir(parents=True, exist_ok=True)
        self._state.chmod(0o711)

    def __contains__(self, key: Key) -> bool:
        return key in self._slices or key in self._orders

    def endpoints(self) -> dict[Key, tuple[str, ...]]:
        """Return the slices and where their users find them."""
        return {key: (f"{DIRECT_ENDPOINT}{one.directory}",) for key, one in self._slices.items()}

    def statuses(self, keys: Collection[Key] | None = None) -> dict[Key, Usage]:
        """Return what the slices' programs use, or those of `keys`; a slice whose table is broken is left out."""
        found = {}
        for key, one in self._slices.items():
            if keys is None or key in keys:
                with contextlib.suppress(TableBroken):
                    found[key] = one.usage(self._processes)
        return found

    # --- beginning ---

    def adopt(self) -> None:
        """Take up the slices that an earlier agent made, and clear away what is no slice."""
        for half in self._state.glob("*.new"):
            half.unlink()
        for record in self._state.glob("*.json"):
            lease_id, _, index = record.stem.rpartition("-")
            try:
                self._slices[lease_id, int(index)] = DirectSlice.adopt(record)
                log.info("slice in direct mode adopted", extra=self._about((lease_id, int(index))))
            except (OSError, ValueError, KeyError):
                record.unlink(missing_ok=True)
        known = {one.directory for one in self._slices.values()}
        for path in self._state.iterdir():
            if path.is_dir() and path not in known:
                shutil.rmtree(path, ignore_errors=True)

    async def start(self, key: Key, memory_bytes: int, weight: float, user: int) -> tuple[str, ...]:
        """Make a slice for the programs of `user`, and return its endpoints.

        Raises
        ------
        WorkerStartFailed
            With a sentence.
        """
        async with self._orders[key]:
            if self._processes is None:
                raise WorkerStartFailed("this server's agent does not allow direct mode")
            if os.getuid() not in (0, user):
                raise WorkerStartFailed(
                    f"this server's agent runs as user {os.getuid()} and cannot serve user {user} in direct mode; "
                    "it must run as root for that"
                )
            try:
                self._slices[key] = await self._make(key, memory_bytes, weight, user)
            except OSError as error:
                shutil.rmtree(self._directory(key), ignore_errors=True)
                raise WorkerStartFailed(f"the slice's table cannot be made: {error}") from None
            return self.endpoints()[key]

    def _directory(self, key: Key) -> Path:
        return self._state / f"{key[0]}-{key[1]}"

    async def _make(self, key: Key, memory_bytes: int, weight: float, user: int) -> DirectSlice:
        directory, index = self._directory(key), key[1]
        environment = self._inventory.worker_environment(index)
        if index not in self._facts:
            device = self._inventory.worker_device(index)
            self._facts[index] = await asyncio.to_thread(
                describe, self._inventory.library, device, environment
            )
        shared = self._time_slicing / str(index)
        if user != os.getuid():
            # The user's programs must be able to write there: the directory is not the agent's alone.
            self._time_slicing.chmod(0o711)
            shared.touch()
            shared.chmod(0o666)
        directory.mkdir(mode=0o700)
        table = Table.make(directory / "table", memory_bytes, weight, shared, self._facts[index])
        if self._inventory.simulated:
            names = ("GPUKERNEL_SIMGPU", "GPUKERNEL_SIMGPU_PROCESSES")
            lines = [
                f"{DRIVER_VARIABLE}={self._inventory.library}",
                *(f"{n}={environment[n]}" for n in names),
            ]
            (directory / "environment").write_text("\n".join(lines) + "\n")
        if user != os.getuid():
            for path in (*directory.iterdir(), directory):
                os.chown(path, user, -1)
        one = DirectSlice(directory, memory_bytes, weight, user, table)
        one.record()
        return one

    # --- resizing ---

    async def limit(self, key: Key, memory_bytes: int, weight: float) -> int | None:
        """Change a slice's cap and weight.

        Returns
        -------
        int or None
            0, or the bytes that its programs hold where those are more than the new cap; None where there is no such slice.
        """
        async with self._orders[key]:
            one = self._slices.get(key)
            if one is None:
                self._orders.pop(key, None)
                return None
            self._check_one(key, one, {use.pid: use for use in self._on(key[1])})  # what they hold now
            before, smaller = one.memory_bytes, memory_bytes < one.memory_bytes
            try:
                if smaller and (used := self._held_bytes(one)) > memory_bytes:
                    return used
                one.table.limit(memory_bytes, weight)
                # A program that took the last of the old cap meanwhile keeps it.
                if smaller and (used := self._held_bytes(one)) > memory_bytes:
                    one.table.limit(before, one.weight)
                    return used
                one.memory_bytes, one.weight = memory_bytes, weight
                one.record()
            except TableBroken:
                return None  # the watch ends it
            return 0

    def _held_bytes(self, one: DirectSlice) -> int:
        return one.held_bytes(one.members(self._processes)[0])

    # --- the cap ---

    def check(self, index: int, uses: Mapping[int, ProcessUsage]) -> set[int]:
        """Measure the slices of device `index` by `uses`, its processes by pid; return the pids of their programs.

        A slice that is over its cap, or whose table is broken, is ended.
        """
        claimed: set[int] = set()
        for key, one in list(self._slices.items()):
            if key[1] == index:
                claimed |= self._check_one(key, one, uses)
        return claimed

    def _check_one(self, key: Key, one: DirectSlice, uses: Mapping[int, ProcessUsage]) -> set[int]:
        try:
            members, dead = one.members(self._processes)
            for slot in dead:
                one.table.clear(slot)
            one.measure(members, uses, self._clock())
        except TableBroken as broken:
            self.end(key, f"its programs wrote over the table of the slice: {broken}")
            return set()
        if sentence := one.over_cap(members, self._clock()):
            self.end(key, sentence)
        return {process.pid for process, _ in members}

    def lease_of(self, process: ProcessIdentity) -> str:
        """Return the lease that a process was started under, by its environment; empty where it is none of these."""
        path = lease_file_path(environment_of(process.pid))
        with contextlib.suppress(LeaseFileError):
            lease_id = read_lease_file(path).lease
            if any(key[0] == lease_id for key in self._slices):
                return lease_id
        return ""

    # --- the end ---

    def end(self, key: Key, reason: str) -> bool:
        """Have a slice end for `reason`, in the background; return whether there is such a slice."""
        one = self._slices.get(key)
        if one is None:
            return False
        if not one.ending:
            one.ending = True
            task = asyncio.create_task(self._ask_to_end(key, one, reason))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        return True

    async def _ask_to_end(self, key: Key, one: DirectSlice, reason: str) -> None:
        """Have the pool end the lease, so that its reason is there before the programs are gone; without a pool the agent does."""
        with contextlib.suppress(OSError):
            one.table.end()
        if self._lease_over(key[0], reason):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ORDER_SECONDS):
                    await one.stop_ordered.wait()
                    return
        await self.stop(key, reason)

    async def stop(self, key: Key, reason: str = "stopped") -> None:
        """End the slice's programs, then the slice; `ended` follows, also where there was none."""
        async with self._orders[key]:
            one = self._slices.get(key)
            if one is not None:
                one.ending = True
                one.stop_ordered.set()
                with contextlib.suppress(OSError):
                    one.table.end()
                await terminate(self._programs(key, one))
                del self._slices[key]
                one.table.close()
                shutil.rmtree(one.directory, ignore_errors=True)
                one.directory.with_suffix(".json").unlink(missing_ok=True)
        self._orders.pop(key, None)
        self._ended(key, reason)

    async def stop_all(self) -> None:
        """End every slice."""
        await asyncio.gather(*(self.stop(key) for key in list(self._slices)))

    def _programs(self, key: Key, one: DirectSlice) -> list[ProcessIdentity]:
        """Return what must end with the slice: those in its table, and those on its device that were started under its lease."""
        found: dict[int, ProcessIdentity] = {}
        with contextlib.suppress(TableBroken):
            found = {process.pid: process for process, _ in one.members(self._processes)[0]}
        for use in self._on(key[1]):
            process = identity(use.pid)
            if process and process.pid not in found and self.lease_of(process) == key[0]:
                found[process.pid] = process
        return [process for process in found.values() if process.user == one.user]

    def _on(self, index: int) -> list[ProcessUsage]:
        return self._processes.on(index) if self._processes else []
