"""One slice in direct mode: its directory, its table, and what its programs hold of the device."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpukernel.agent.processes import Processes, ProcessIdentity, ProcessUsage, identity
from gpukernel.common.model import Usage
from gpukernel.remoting.direct_table import Slot, Table

__all__ = ["DirectSlice"]

OVER_SECONDS = 3.0
SHARE_SECONDS = 2.0
MARGIN_SHARE, MARGIN_BYTES = 0.02, 32 * 2**20

Member = tuple[ProcessIdentity, Slot]


@dataclass(eq=False)
class DirectSlice:
    """A slice, its cap in bytes and its programs; methods that read the table raise `TableBroken`.

    Attributes
    ----------
    directory
        The slice's directory, which belongs to its user; the agent's own record lies beside it.
    ending
        Somebody has begun to end the slice.
    stop_ordered
        Set when the order to end the slice has come.
    """

    directory: Path
    memory_bytes: int
    weight: float
    user: int
    table: Table
    peak_bytes: int = 0
    ending: bool = False
    stop_ordered: asyncio.Event = field(default_factory=asyncio.Event)
    _measured_bytes: dict[int, int] = field(default_factory=dict)  # by process, as last seen
    _gpu_seconds: dict[tuple[int, int], float] = field(default_factory=dict)  # by pid and start
    _recent: list[tuple[float, float]] = field(default_factory=list)  # time and seconds of compute
    _over_since: float | None = None

    @classmethod
    def adopt(cls, record: Path) -> DirectSlice:
        """Return the slice that `record` of an earlier agent describes.

        Raises
        ------
        OSError, ValueError, KeyError
            When the record or the table cannot be read.
        """
        directory = record.with_suffix("")
        kept = json.loads(record.read_text())
        table = Table(directory / "table")
        return cls(directory, kept["memory_bytes"], kept["weight"], kept["user"], table)

    @property
    def device_index(self) -> int:
        """The device's index on this server."""
        return int(self.directory.name.rpartition("-")[2])

    def record(self) -> None:
        """Write for a later agent what the user must not change."""
        kept = {"memory_bytes": self.memory_bytes, "weight": self.weight, "user": self.user}
        path = self.directory.with_suffix(".json")
        new = path.with_suffix(".new")
        new.write_text(json.dumps(kept))
        new.replace(path)

    def members(self, processes: Processes | None) -> tuple[list[Member], list[Slot]]:
        """Return the living programs with their slots, and the slots of dead ones.

        A program in another PID namespace is found through the device's list, where it stands with this machine's number.
        """
        slots = self.table.slots()
        own = os.stat("/proc/self/ns/pid").st_ino
        living, dead = [], []
        for slot in slots:
            if slot.pid_namespace != own:
                continue
            process = identity(slot.pid)
            if process is not None and (process.start, process.user) == (slot.start, self.user):
                living.append((process, slot))
            else:
                dead.append(slot)
        elsewhere = {(s.pid, s.start, s.pid_namespace): s for s in slots if s.pid_namespace != own}
        if elsewhere and processes is not None:
            for use in processes.on(self.device_index):
                process = identity(use.pid)
                if process is None or process.user != self.user:
                    continue
                slot_of = elsewhere.get((process.inner_pid, process.start, process.pid_namespace))
                if slot_of:
                    living.append((process, slot_of))
        return living, dead

    def measure(self, members: Iterable[Member], uses: Mapping[int, ProcessUsage], now: float) -> None:
        """Take over what the device says of the programs, and tell them through the table."""
        self._measured_bytes = {}
        for process, slot in members:
            use = uses.get(process.pid)
            if use is None:
                continue
            self._gpu_seconds[process.pid, process.start] = use.gpu_seconds
            self.table.measured(slot, use.memory_bytes, use.gpu_seconds)
            if use.memory_bytes is not None:
                self._measured_bytes[process.pid] = use.memory_bytes
        self.table.busy(self._share_of_time(now))

    def _share_of_time(self, now: float) -> float:
        """Return the part of the last `SHARE_SECONDS` in which the device worked for the slice, 0 to 1."""
        self._recent = [(at, seconds) for at, seconds in self._recent if now - at <= SHARE_SECONDS]
        self._recent.append((now, sum(self._gpu_seconds.values())))
        (began, first), (_, last) = self._recent[0], self._recent[-1]
        return min(1.0, (last - first) / (now - began)) if now > began else 0.0

    def over_cap(self, members: Iterable[Member], now: float) -> str:
        """Return a sentence once the measured bytes have exceeded cap and margin for `OVER_SECONDS`; else an empty one."""
        used = sum(self._measured_bytes.values())
        if used <= self.memory_bytes + max(MARGIN_BYTES, int(self.memory_bytes * MARGIN_SHARE)):
            self._over_since = None
        elif self._over_since is None:
            self._over_since = now
        elif now - self._over_since >= OVER_SECONDS:
            names = ", ".join(
                f"{p.command} (process {p.pid})" for p, _ in members if p.pid in self._measured_bytes
            )
            return (
                f"its programs held {used // 2**20} MiB of the device, more than the slice's "
                f"{self.memory_bytes // 2**20} MiB: {names}"
            )
        return ""

    def held_bytes(self, members: Iterable[Member]) -> int:
        """Return the bytes that the programs hold, by the larger of their own account and the device's."""
        counted = sum(slot.counted_bytes + slot.overhead_bytes for _, slot in members)
        return max(counted, sum(self._measured_bytes.values()))

    def usage(self, processes: Processes | None) -> Usage:
        """Return what the programs use, for the pool."""
        members, _ = self.members(processes)
        peak, launches = self.table.figures
        launches += sum(slot.launches for _, slot in members)
        used = self.held_bytes(members)
        self.peak_bytes = max(self.peak_bytes, min(peak, self.memory_bytes), used)
        last = max((slot.last_launch for _, slot in members), default=0.0)
        return Usage(
            memory_used_bytes=used,
            memory_peak_bytes=self.peak_bytes,
            cuda_calls=launches,  # calls that go straight to the driver are not counted
            launches=launches,
            gpu_seconds=sum(self._gpu_seconds.values()),
            connections=len(members),
            idle_seconds=max(0.0, time.monotonic() - last) if members else 0.0,
        )
