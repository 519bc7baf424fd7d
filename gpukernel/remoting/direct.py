"""Direct mode's files: what the agent lays down for a slice, and what a program of the slice needs of it.

A slice in direct mode is a directory that its holder may enter, with one file, ``table``: the cap, the device's facts, and a
slot for each program (``native/direct/table.h`` has the same layout).  Programs map it and write what they hold; the agent
reads and writes with `os.pread` and `os.pwrite` alone, since a mapping of a file that its users can truncate could end it.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpukernel import native
from gpukernel.remoting.questions import Use
from gpukernel.remoting.worker import WorkerStartFailed

if TYPE_CHECKING:
    from gpukernel.pool.model import Lease

__all__ = [
    "DRIVER_VARIABLE",
    "DriverNotFound",
    "Slot",
    "Table",
    "TableBroken",
    "describe",
    "direct_directories",
    "direct_environment",
    "find_driver",
    "uuid_text",
]

DRIVER_VARIABLE = "GPUKERNEL_DRIVER"
ENDPOINT = "direct:"

_MAGIC, _VERSION, _SLOTS = 0x7463657269644B47, 1, 256
_HEADER = struct.Struct(
    "<QIIQdQQII"
)  # magic, version, ended, limit, weight, peak, past launches, used slots, unused
_ENDED, _LIMIT, _GPU_SHARE = 12, 16, 52
_TURNS, _FACTS, _UUID = 56, 1016, 1016 + 256
_FIRST_SLOT = 4096
_SLOT = struct.Struct("<iIQQQQQqd64s")
_OVERHEAD, _GPU_SECONDS = 32, 56
_SIZE = _FIRST_SLOT + _SLOTS * _SLOT.size


class TableBroken(Exception):
    """The table is not what the agent made: its users wrote over it, or cut it short."""


class DriverNotFound(Exception):
    """There is no real ``libcuda.so.1`` here; the text is a sentence."""


@dataclass(frozen=True)
class Slot:
    """What one program says of itself: bytes that it asked for, and bytes measured beside them."""

    number: int
    pid: int
    start: int
    pid_namespace: int
    counted_bytes: int
    overhead_bytes: int
    launches: int
    last_launch: float
    gpu_seconds: float
    command: str


class Table:
    """One slice's table, open for as long as the agent keeps the slice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)

    @classmethod
    def make(cls, path: Path, memory_bytes: int, weight: float, turns: Path | None, facts: bytes) -> Table:
        """Lay down a new table with a cap of `memory_bytes` on the device that `facts` describes."""
        way = str(turns or "").encode()
        if len(way) >= _FACTS - _TURNS:
            raise OSError(f"{turns} is too long a path")
        header = _HEADER.pack(_MAGIC, _VERSION, 0, memory_bytes, weight, 0, 0, 0, 0)
        text = header + way.ljust(_FACTS - _TURNS, b"\0") + facts
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, text, 0)
            os.ftruncate(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        return cls(path)

    def close(self) -> None:
        """Forget the file; it stays."""
        os.close(self._file)

    def _read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._file, size, offset)
        if len(data) != size:
            raise TableBroken(f"{self.path} was cut short by a program of its slice")
        return data

    def end(self) -> None:
        """Grant nothing any more."""
        os.pwrite(self._file, struct.pack("<I", 1), _ENDED)

    def limit(self, memory_bytes: int, weight: float) -> None:
        """Change the cap and the weight; programs may have more by now, and then get nothing until they have less."""
        os.pwrite(self._file, struct.pack("<Qd", memory_bytes, weight), _LIMIT)

    @property
    def weight(self) -> float:
        """The slice's weight in turns."""
        return float(_HEADER.unpack(self._read(0, _HEADER.size))[4])

    @property
    def figures(self) -> tuple[int, int]:
        """The highest sum of bytes so far, and the launches of programs that have gone."""
        header = _HEADER.unpack(self._read(0, _HEADER.size))
        return header[5], header[6]

    def use(self) -> Use:
        """What the slice's programs hold and did, as far as it is known."""
        limit, peak, past = (_HEADER.unpack(self._read(0, _HEADER.size))[at] for at in (3, 5, 6))
        (share,) = struct.unpack("<f", self._read(_GPU_SHARE, 4))
        slots = self.slots()
        return Use(
            limit_bytes=limit,
            used_bytes=min(sum(one.counted_bytes + one.overhead_bytes for one in slots), limit),
            gpu_seconds=sum(one.gpu_seconds for one in slots),
            gpu_share=min(max(share, 0.0), 1.0),
            programs=len(slots),
            peak_bytes=peak,
            launches=past + sum(one.launches for one in slots),
        )

    @property
    def uuid(self) -> str:
        """The device's UUID as NVML writes it."""
        return uuid_text(self._read(_UUID, 16))

    def slots(self) -> list[Slot]:
        """The programs, as they say themselves."""
        taken = min(_HEADER.unpack(self._read(0, _HEADER.size))[7], _SLOTS)
        data = self._read(_FIRST_SLOT, taken * _SLOT.size)
        found = []
        for number, fields in enumerate(_SLOT.iter_unpack(data)):
            pid, _, start, namespace, counted, overhead, launches, last, gpu_seconds, command = fields
            if pid > 0:
                words = command.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
                found.append(
                    Slot(
                        number,
                        pid,
                        start,
                        namespace,
                        counted,
                        overhead,
                        launches,
                        last / 1e9,
                        gpu_seconds,
                        words,
                    )
                )
        return found

    def measured(self, slot: Slot, memory_bytes: int | None, gpu_seconds: float) -> None:
        """Tell a program what the device holds for it (unless it counted something in between) and did for it."""
        place = _FIRST_SLOT + slot.number * _SLOT.size
        now = _SLOT.unpack(self._read(place, _SLOT.size))
        if (now[0], now[2]) != (slot.pid, slot.start):
            return
        os.pwrite(self._file, struct.pack("<d", gpu_seconds), place + _GPU_SECONDS)
        if memory_bytes is not None and now[4] == slot.counted_bytes:
            overhead = max(0, memory_bytes - slot.counted_bytes)
            os.pwrite(self._file, struct.pack("<Q", overhead), place + _OVERHEAD)

    def busy(self, share: float) -> None:
        """How much of the device's time the slice's programs had lately, 0 to 1."""
        os.pwrite(self._file, struct.pack("<f", share), _GPU_SHARE)

    def clear(self, slot: Slot) -> None:
        """Its program is dead: its bytes are free."""
        place = _FIRST_SLOT + slot.number * _SLOT.size
        now = _SLOT.unpack(self._read(place, _SLOT.size))
        if (now[0], now[2]) == (slot.pid, slot.start):
            os.pwrite(self._file, bytes(_SLOT.size), place)


def uuid_text(raw: bytes) -> str:
    """``GPU-8a7b…`` of 16 bytes."""
    digits = raw.hex()
    return "GPU-" + "-".join(digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))


def describe(library: Path | str, device: int, env: Mapping[str, str]) -> bytes:
    """The facts of `device` in the CUDA library `library`, as tables hold them.

    Raises
    ------
    WorkerStartFailed
        When the library cannot be loaded or has no such device.
    """
    answer = subprocess.run(
        [native.worker_executable(), "--describe", "--library", str(library), "--device", str(device)],
        env=dict(env),
        capture_output=True,
        check=False,
        timeout=60,
    )
    if answer.returncode:
        reason = answer.stderr.decode(errors="replace").strip()
        raise WorkerStartFailed(f"device {device} of {library} could not be described: {reason}")
    return answer.stdout


# --- what a program needs ---


def direct_directories(lease: Lease) -> list[Path]:
    """The directories of a lease's slices in CUDA order; empty where workers serve it."""
    ways = [endpoint for piece in lease.slices for endpoint in piece.endpoints]
    return [Path(way.removeprefix(ENDPOINT)) for way in ways if way.startswith(ENDPOINT)]


def find_driver(environment: Mapping[str, str]) -> Path:
    """The real ``libcuda.so.1`` of this machine: ``GPUKERNEL_DRIVER``, else where the loader and NVIDIA put it.

    Raises
    ------
    DriverNotFound
        Where there is none, or ``GPUKERNEL_DRIVER`` names what is not there.
    """
    if named := environment.get(DRIVER_VARIABLE):
        if not Path(named).is_file():
            raise DriverNotFound(f"{DRIVER_VARIABLE} names {named}, which is not there.")
        return Path(named).resolve()
    ours = {path.resolve() for path in native.own_drivers()}
    for path in [*_known_to_the_loader(), *_USUAL]:
        if path.is_file() and path.resolve() not in ours:
            return path.resolve()
    raise DriverNotFound(
        "The NVIDIA driver's libcuda.so.1 was not found on this machine; name it in GPUKERNEL_DRIVER, or use "
        "remote mode, which needs no driver here."
    )


_USUAL = [
    Path(folder, "libcuda.so.1")
    for folder in (
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/usr/lib/wsl/lib",
        "/usr/local/nvidia/lib64",
        "/run/opengl-driver/lib",
        "/usr/lib",
    )
]


def _known_to_the_loader() -> list[Path]:
    for command in ("/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            said = subprocess.run([command, "-p"], capture_output=True, text=True, check=False, timeout=10)
            return [
                Path(line.rpartition(" => ")[2])
                for line in said.stdout.splitlines()
                if line.lstrip().startswith("libcuda.so.1 ") and "x86-64" in line
            ]
    return []


def direct_environment(directories: Iterable[Path], base: Mapping[str, str]) -> dict[str, str]:
    """`base`, changed so that ``libcuda.so.1`` is direct mode's, and so that the real one shows the lease's devices alone.

    Raises
    ------
    OSError
        When a slice's directory is not to be reached from here.
    """
    environment = dict(base)
    uuids = []
    for directory in directories:
        table = Table(directory / "table")
        uuids.append(table.uuid)
        table.close()
        with contextlib.suppress(FileNotFoundError):  # of a simulated device only
            for line in (directory / "environment").read_text().splitlines():
                name, _, value = line.partition("=")
                environment[name] = value
    # Numbers count the lease's devices, in CUDA_VISIBLE_DEVICES too; the library counts them again.
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)
    folders = [str(native.direct_dir()), str(native.shim_dir())]
    others = [
        part
        for part in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
        if part and part not in folders
    ]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join([*folders, *others])
    return environment
