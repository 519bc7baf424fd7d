"""The processes on a device, by the device's own account: NVML's on real machines, the simulated GPU's list on others.

Both give process ids of this machine, whatever the processes say of themselves; `identity` gives what the kernel knows of a process.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from gpukernel.agent.inventory import Inventory

__all__ = [
    "Nvml",
    "ProcessIdentity",
    "ProcessUsage",
    "Processes",
    "Simulated",
    "environment_of",
    "identity",
    "with_account",
]


@dataclass(frozen=True)
class ProcessUsage:
    """One process on one device: the bytes that it holds there (None: not told), and its seconds of compute in all."""

    pid: int
    memory_bytes: int | None
    gpu_seconds: float


class Processes(Protocol):
    """The interface that both sources fill."""

    def on(self, index: int) -> list[ProcessUsage]:
        """Return the processes that have a CUDA context on device `index` now."""
        ...


@dataclass(frozen=True)
class ProcessIdentity:
    """A process, told apart from a later one of the same number by its start.

    `inner_pid` is its number in its own PID namespace, which is what it tells others.
    """

    pid: int
    start: int
    pid_namespace: int
    inner_pid: int
    user: int
    command: str


def identity(pid: int) -> ProcessIdentity | None:
    """Return what the kernel knows of a living process; None where it has ended (a zombie has)."""
    folder = Path("/proc", str(pid))
    try:
        state, *fields = (folder / "stat").read_text().rpartition(")")[2].split()
        if state in "ZX":
            return None
        status = dict(line.partition(":")[::2] for line in (folder / "status").read_text().splitlines())
        words = (folder / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        namespace = 0
        with contextlib.suppress(PermissionError):
            namespace = (folder / "ns/pid").stat().st_ino
        return ProcessIdentity(
            pid=pid,
            start=int(fields[18]),
            pid_namespace=namespace,
            inner_pid=int(status["NSpid"].split()[-1]),
            user=int(status["Uid"].split()[0]),
            command=" ".join(words.split())[:60] or status["Name"].strip(),
        )
    except (OSError, ValueError, KeyError):
        return None


def environment_of(pid: int) -> Mapping[str, str]:
    """Return the environment that a process was started with; empty where it may not be read."""
    try:
        text = Path("/proc", str(pid), "environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(entry.partition("=")[::2] for entry in text.split("\0") if "=" in entry)


class Nvml:
    """NVIDIA's account, for as long as this object lives."""

    def __init__(self, inventory: Inventory) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml: Any = pynvml
        self._inventory = inventory
        self._seen: dict[int, int] = {}
        self._seconds: dict[tuple[int, int], float] = {}

    def on(self, index: int) -> list[ProcessUsage]:
        """Return memory as of now, and compute from the samples that the driver has kept since the last call."""
        handle = self._nvml.nvmlDeviceGetHandleByUUID(self._inventory.uuid(index))
        running = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        self._add_samples(index, handle)
        living = {process.pid for process in running}
        for key in [key for key in self._seconds if key[0] == index and key[1] not in living]:
            del self._seconds[key]
        return [ProcessUsage(p.pid, p.usedGpuMemory, self._seconds.get((index, p.pid), 0.0)) for p in running]

    def _add_samples(self, index: int, handle: Any) -> None:
        since = self._seen.get(index, int(time.time() * 1e6) - 1_000_000)
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(handle, since)
        except self._nvml.NVMLError:  # no samples since then, or a device that takes none
            return
        last: dict[int, int] = {}
        for sample in sorted(samples, key=lambda s: s.timeStamp):
            if sample.timeStamp <= since:
                continue
            span = (sample.timeStamp - last.get(sample.pid, since)) / 1e6
            last[sample.pid] = sample.timeStamp
            key = (index, sample.pid)
            self._seconds[key] = self._seconds.get(key, 0.0) + span * min(sample.smUtil, 100) / 100
        self._seen[index] = max(last.values(), default=since)


class Simulated:
    """The simulated GPU's account: a file for each process in `directory` (``simgpu/driver/devices/machine.h`` has its layout)."""

    _ENTRY = struct.Struct("<QQQ")  # has a context, bytes, busy nanoseconds: for each device

    def __init__(self, directory: Path, positions: Mapping[int, int] = MappingProxyType({})) -> None:
        self.directory = directory
        self._positions = positions

    def on(self, index: int) -> list[ProcessUsage]:
        """Return the processes that list themselves, and clear away the files of those that have ended."""
        found = []
        for path in self.directory.iterdir():
            if not path.name.isdigit():
                continue
            if identity(int(path.name)) is None:
                path.unlink(missing_ok=True)
                continue
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    place = self._positions.get(index, index)
                    entry = os.pread(descriptor, self._ENTRY.size, place * self._ENTRY.size)
                finally:
                    os.close(descriptor)
                if len(entry) == self._ENTRY.size:
                    has_context, used, busy = self._ENTRY.unpack(entry)
                    if has_context:
                        found.append(ProcessUsage(int(path.name), used, busy / 1e9))
        return found


def with_account(inventory: Inventory, state: Path) -> tuple[Inventory, Processes]:
    """Return `inventory` and the account of its devices' processes; simulated devices are told to keep theirs below `state`."""
    if not inventory.simulated:
        return inventory, Nvml(inventory)
    directory = state / "simulated-processes"
    directory.mkdir(exist_ok=True)
    directory.chmod(0o1777 if os.getuid() == 0 else 0o700)  # every user's programs list themselves
    return replace(inventory, processes=str(directory)), Simulated(directory, inventory.positions)
