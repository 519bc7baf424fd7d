"""Slices in direct mode: their directories, and the watch over who uses the devices.

There is no worker here: programs use the device themselves, and the library in them keeps the cap.  The agent is the judge of
that, by the device's own account of each process (`gpukernel.agent.processes`).

Guarantees
----------
* A slice's programs are dead before its memory is reported free.
* A lease whose programs hold more than its cap and a margin, for `OVER_SECONDS`, ends, and its programs with it.
* A process that has been on a device for `STRANGER_SECONDS` and is neither a worker nor in a slice's table is stopped; the lease
  that it was started under ends with a sentence that says so.  Root's processes are only named in the log.
* A process is stopped only where it is the slice's user's, whatever a table says.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpukernel.agent.inventory import Inventory
from gpukernel.agent.processes import Identity, Nvml, Processes, Simulated, Use, environment_of, identity
from gpukernel.agent.workers import Key
from gpukernel.logs import fields
from gpukernel.pool.model import Usage
from gpukernel.remoting.direct import DRIVER_VARIABLE, ENDPOINT, Slot, Table, TableBroken, describe
from gpukernel.remoting.environment import LEASE_FILE_VARIABLE
from gpukernel.remoting.worker import WorkerStartFailed

__all__ = ["DirectSlices", "watched"]

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
OVER_SECONDS = 3.0
STRANGER_SECONDS = 2.0
TERM_SECONDS = 3.0
KILL_SECONDS = 10.0
ORDER_SECONDS = 5.0
SHARE_SECONDS = 2.0
MARGIN_SHARE, MARGIN_BYTES = 0.02, 32 * 2**20


def watched(inventory: Inventory, state: Path) -> tuple[Inventory, Processes]:
    """`inventory` and the account of who uses its devices; simulated ones are told to keep one below `state`."""
    if not inventory.simulated:
        return inventory, Nvml()
    directory = state / "simulated-processes"
    directory.mkdir(exist_ok=True)
    directory.chmod(0o1777 if os.getuid() == 0 else 0o700)  # every user's programs list themselves
    return replace(inventory, processes=str(directory)), Simulated(directory)


@dataclass(eq=False)
class _Slice:
    directory: Path
    memory_bytes: int
    weight: float
    user: int
    table: Table
    over_since: float | None = None
    measured: dict[int, int] = field(default_factory=dict)  # bytes by process, as last seen
    seconds: dict[tuple[int, int], float] = field(default_factory=dict)  # of compute, by pid and start
    peak_bytes: int = 0
    stopping: bool = False
    ordered: asyncio.Event = field(default_factory=asyncio.Event)  # that it ends
    looked: list[tuple[float, float]] = field(default_factory=list)  # time and seconds of compute, of late

    def record(self) -> None:
        """Note for a later agent what the user must not change."""
        kept = {"memory_bytes": self.memory_bytes, "weight": self.weight, "user": self.user}
        path = self.directory.with_suffix(".json")
        new = path.with_suffix(".new")
        new.write_text(json.dumps(kept))
        new.replace(path)

    def share_of_time(self, now: float) -> float:
        """How much of the last `SHARE_SECONDS` the device worked for it, 0 to 1."""
        self.looked = [look for look in self.looked if now - look[0] <= SHARE_SECONDS]
        self.looked.append((now, sum(self.seconds.values())))
        (began, first), (_, last) = self.looked[0], self.looked[-1]
        return min(1.0, (last - first) / (now - began)) if now > began else 0.0


class DirectSlices:
    """Makes, adopts, watches and ends slices in direct mode, as `gpukernel.agent.workers.Workers` does for workers.

    Parameters
    ----------
    state
        ``direct`` below it holds for each slice a directory ``LEASE-INDEX`` for its user and a record of the agent's own.
    turns
        Directory of the files by which a device's programs and workers take turns.
    processes
        The devices' own account; None where direct mode is not allowed, and there is nothing to watch.
    ended
        Called with key and reason when a slice's programs are dead.
    lease_over
        Called with a lease's id and a reason to end it; tells whether the pool was there to hear it.
    workers
        The process ids of the workers now.
    clock
        Seconds, for the times above.
    about
        Gives what a log line about a slice carries.
    """

    def __init__(
        self,
        state: Path,
        turns: Path,
        inventory: Inventory,
        processes: Processes | None,
        ended: Callable[[Key, str], None],
        lease_over: Callable[[str, str], bool],
        workers: Callable[[], Collection[int]],
        clock: Callable[[], float] = time.monotonic,
        about: Callable[[Key], dict[str, dict[str, str]]] = lambda key: fields(lease=key[0]),
    ) -> None:
        self._state = state / "direct"
        self._turns = turns
        self._inventory = inventory
        self._processes = processes
        self._ended = ended
        self._lease_over = lease_over
        self._workers = workers
        self._clock = clock
        self._about = about
        self._slices: dict[Key, _Slice] = {}
        self._facts: dict[int, bytes] = {}
        self._strangers: dict[tuple[int, int, int], float] = {}
        self._orders: defaultdict[Key, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._stopping: set[asyncio.Task[None]] = set()
        self._state.mkdir(parents=True, exist_ok=True)
        self._state.chmod(0o711)

    def __contains__(self, key: Key) -> bool:
        return key in self._slices or key in self._orders

    def endpoints(self) -> dict[Key, tuple[str, ...]]:
        """The slices and where their users find them."""
        return {key: (f"{ENDPOINT}{one.directory}",) for key, one in self._slices.items()}

    # --- their life ---

    def adopt(self) -> None:
        """Take up the slices that an earlier agent made; clear away what is no slice."""
        for half in self._state.glob("*.new"):
            half.unlink()
        for record in self._state.glob("*.json"):
            directory = record.with_suffix("")
            lease_id, _, index = directory.name.rpartition("-")
            try:
                kept = json.loads(record.read_text())
                self._slices[lease_id, int(index)] = _Slice(
                    directory, kept["memory_bytes"], kept["weight"], kept["user"], Table(directory / "table")
                )
                log.info("slice in direct mode adopted", extra=self._about((lease_id, int(index))))
            except (OSError, ValueError, KeyError):
                record.unlink(missing_ok=True)
        known = {one.directory for one in self._slices.values()}
        for path in self._state.iterdir():
            if path.is_dir() and path not in known:
                shutil.rmtree(path, ignore_errors=True)

    async def start(self, key: Key, memory_bytes: int, weight: float, user: int) -> tuple[str, ...]:
        """Make a slice for the programs of `user`; returns its endpoints.

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

    async def _make(self, key: Key, memory_bytes: int, weight: float, user: int) -> _Slice:
        directory, index = self._directory(key), key[1]
        environment = self._inventory.worker_environment(index)
        if index not in self._facts:
            device = self._inventory.worker_device(index)
            self._facts[index] = await asyncio.to_thread(
                describe, self._inventory.library, device, environment
            )
        turns = self._turns / str(index)
        if (
            user != os.getuid()
        ):  # then its programs must be able to write there, and this room is not the agent's alone
            self._turns.chmod(0o711)
            turns.touch()
            turns.chmod(0o666)
        directory.mkdir(mode=0o700)
        table = Table.make(directory / "table", memory_bytes, weight, turns, self._facts[index])
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
        one = _Slice(directory, memory_bytes, weight, user, table)
        one.record()
        return one

    async def limit(self, key: Key, memory_bytes: int, weight: float) -> int | None:
        """Change a slice's cap and weight; returns 0, or the bytes that its programs hold where those are more; None: there is none."""
        async with self._orders[key]:
            one = self._slices.get(key)
            if one is None:
                self._orders.pop(key, None)
                return None
            self._judge(key, one, {use.pid: use for use in self._uses(key[1])})  # what they hold now
            before, smaller = one.memory_bytes, memory_bytes < one.memory_bytes
            try:
                if smaller and (used := _used(one, self._members(one)[0])) > memory_bytes:
                    return used
                one.table.limit(memory_bytes, weight)
                # A program that took the last of the old cap meanwhile keeps it.
                if smaller and (used := _used(one, self._members(one)[0])) > memory_bytes:
                    one.table.limit(before, one.weight)
                    return used
                one.memory_bytes, one.weight = memory_bytes, weight
                one.record()
            except TableBroken:
                return None  # the watch ends it
            return 0

    async def stop(self, key: Key, reason: str = "stopped") -> None:
        """End the slice's programs, then the slice; `ended` follows, also where there was none."""
        async with self._orders[key]:
            one = self._slices.get(key)
            if one is not None:
                one.stopping = True
                one.ordered.set()
                with contextlib.suppress(OSError):
                    one.table.end()
                await _end(self._programs(key, one))
                del self._slices[key]
                one.table.close()
                shutil.rmtree(one.directory, ignore_errors=True)
                one.directory.with_suffix(".json").unlink(missing_ok=True)
        self._orders.pop(key, None)
        self._ended(key, reason)

    async def stop_all(self) -> None:
        """End every slice."""
        await asyncio.gather(*(self.stop(key) for key in list(self._slices)))

    def _programs(self, key: Key, one: _Slice) -> list[Identity]:
        """What must end with the slice: those in its table, and those on its device that were started under its lease."""
        found: dict[int, Identity] = {}
        with contextlib.suppress(TableBroken):
            found = {process.pid: process for process, _ in self._members(one)[0]}
        for use in self._uses(key[1]):
            process = identity(use.pid)
            if process and process.pid not in found and self._lease_of(process) == key[0]:
                found[process.pid] = process
        return [process for process in found.values() if process.user == one.user]

    # --- what they use ---

    def _uses(self, index: int) -> list[Use]:
        return self._processes.on(index) if self._processes else []

    def _members(self, one: _Slice) -> tuple[list[tuple[Identity, Slot]], list[Slot]]:
        """The living programs of a slice with their slots, and the slots of dead ones; raises `TableBroken`.

        A program in another PID namespace is found through the device's list, where it stands with this machine's number.
        """
        slots = one.table.slots()
        own = os.stat("/proc/self/ns/pid").st_ino
        living, dead = [], []
        for slot in slots:
            if slot.pid_namespace != own:
                continue
            process = identity(slot.pid)
            if process is not None and (process.start, process.user) == (slot.start, one.user):
                living.append((process, slot))
            else:
                dead.append(slot)
        elsewhere = {(s.pid, s.start, s.pid_namespace): s for s in slots if s.pid_namespace != own}
        if elsewhere:
            index = int(one.directory.name.rpartition("-")[2])
            for use in self._uses(index):
                process = identity(use.pid)
                if process is None or process.user != one.user:
                    continue
                slot_of = elsewhere.get((process.inner_pid, process.start, process.pid_namespace))
                if slot_of:
                    living.append((process, slot_of))
        return living, dead

    def statuses(self, keys: Collection[Key] | None = None) -> dict[Key, Usage]:
        """What the slices' programs use, by the larger of their own account and the device's."""
        found = {}
        for key, one in self._slices.items():
            if keys is not None and key not in keys:
                continue
            with contextlib.suppress(TableBroken):
                members, _ = self._members(one)
                peak, launches = one.table.figures
                launches += sum(slot.launches for _, slot in members)
                used = _used(one, members)
                one.peak_bytes = max(one.peak_bytes, min(peak, one.memory_bytes), used)
                last = max((slot.last_launch for _, slot in members), default=0.0)
                found[key] = Usage(
                    memory_used_bytes=used,
                    memory_peak_bytes=one.peak_bytes,
                    cuda_calls=launches,  # what is passed straight on nobody counts
                    launches=launches,
                    gpu_seconds=sum(one.seconds.values()),
                    connections=len(members),
                    idle_seconds=max(0.0, time.monotonic() - last) if members else 0.0,
                )
        return found

    # --- the watch ---

    async def watch(self) -> None:
        """Look every `LOOK_SECONDS` until cancelled."""
        while self._processes is not None:
            try:
                self.look()
            except Exception:  # a device's list that failed once must not end the watch
                log.exception("the devices' processes could not be looked at")
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Compare who uses the devices with who may."""
        workers = set(self._workers())
        seen: set[tuple[int, int, int]] = set()
        for device in self._inventory.devices:
            uses = {use.pid: use for use in self._uses(device.index)}
            claimed: set[int] = set()
            for key, one in list(self._slices.items()):
                if key[1] == device.index:
                    claimed |= self._judge(key, one, uses)
            for use in uses.values():
                if use.pid in workers or use.pid in claimed:
                    continue
                process = identity(use.pid)
                if process is not None:
                    seen.add((device.index, process.pid, process.start))
                    self._stranger(device.index, process)
        for gone in self._strangers.keys() - seen:
            del self._strangers[gone]

    def _judge(self, key: Key, one: _Slice, uses: dict[int, Use]) -> set[int]:
        """Measure a slice's programs; ends it where they hold too much.  Returns who they are."""
        try:
            members, dead = self._members(one)
            for slot in dead:
                one.table.clear(slot)
            one.measured = {}
            for process, slot in members:
                use = uses.get(process.pid)
                if use is None:
                    continue
                one.seconds[process.pid, process.start] = use.gpu_seconds
                one.table.measured(slot, use.memory_bytes, use.gpu_seconds)
                if use.memory_bytes is not None:
                    one.measured[process.pid] = use.memory_bytes
            one.table.busy(one.share_of_time(self._clock()))
        except TableBroken as broken:
            self._end_for(key, one, f"its programs wrote over the table of the slice: {broken}")
            return set()
        used = sum(one.measured.values())
        if used <= one.memory_bytes + max(MARGIN_BYTES, int(one.memory_bytes * MARGIN_SHARE)):
            one.over_since = None
        elif one.over_since is None:
            one.over_since = self._clock()
        elif self._clock() - one.over_since >= OVER_SECONDS:
            names = ", ".join(f"{p.command} (process {p.pid})" for p, _ in members if p.pid in one.measured)
            self._end_for(
                key,
                one,
                f"its programs held {used // 2**20} MiB of the device, more than the slice's "
                f"{one.memory_bytes // 2**20} MiB: {names}",
            )
        return {process.pid for process, _ in members}

    def _stranger(self, index: int, process: Identity) -> None:
        """A process that uses the device without a slice: known for long enough it is stopped."""
        known = (index, process.pid, process.start)
        since = self._strangers.setdefault(known, self._clock())
        if self._clock() - since < STRANGER_SECONDS:
            return
        if process.user == 0 and os.getuid() == 0 and not self._lease_of(process):
            if self._clock() - since < STRANGER_SECONDS + LOOK_SECONDS:
                log.warning("root's process %d (%s) uses device %d", process.pid, process.command, index)
            return
        sentence = (
            f"{process.command} (process {process.pid}) used the device past its slice: it loaded the driver's "
            "library itself; leave LD_LIBRARY_PATH as the slice has it"
        )
        lease_id = self._lease_of(process)
        log.warning("stopped: %s", sentence, extra=self._about((lease_id, index)))
        one = self._slices.get((lease_id, index))
        if one is not None:
            self._end_for((lease_id, index), one, sentence)
        else:
            self._later(_end([process]))

    def _end_for(self, key: Key, one: _Slice, reason: str) -> None:
        if not one.stopping:
            one.stopping = True
            self._later(self._ask_to_end(key, one, reason))

    async def _ask_to_end(self, key: Key, one: _Slice, reason: str) -> None:
        """The pool ends the lease, so that its reason is there before the programs are gone; without a pool the agent does."""
        with contextlib.suppress(OSError):
            one.table.end()
        if self._lease_over(key[0], reason):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ORDER_SECONDS):
                    await one.ordered.wait()
                    return
        await self.stop(key, reason)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    def _lease_of(self, process: Identity) -> str:
        """The lease that a process was started under, by its environment; empty where there is none of these."""
        path = environment_of(process.pid).get(LEASE_FILE_VARIABLE, "")
        with contextlib.suppress(OSError):
            for line in Path(path).read_text().splitlines():
                if line.startswith("lease "):
                    lease_id = line.split()[1]
                    if any(key[0] == lease_id for key in self._slices):
                        return lease_id
        return ""


def _used(one: _Slice, members: Iterable[tuple[Identity, Slot]]) -> int:
    """Bytes that the slice's programs hold, by the larger of their own account and the device's."""
    said = sum(slot.counted_bytes + slot.overhead_bytes for _, slot in members)
    return max(said, sum(one.measured.values()))


async def _end(processes: Iterable[Identity]) -> None:
    """SIGTERM, and SIGKILL where that is not enough; returns when they are dead, or after `KILL_SECONDS`."""
    await asyncio.gather(*(_end_one(process) for process in processes))


async def _end_one(process: Identity) -> None:
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return
    dead = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        now = identity(process.pid)
        if now is None or (now.start, now.user) != (process.start, process.user):
            return
        loop.add_reader(descriptor, dead.set)
        for number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            try:
                signal.pidfd_send_signal(descriptor, number)
            except PermissionError:
                log.error("process %d (%s) cannot be stopped by this agent", process.pid, process.command)
                return
            except ProcessLookupError:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await dead.wait()
                    return
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
