"""The table of a slice in direct mode, which the agent makes and the slice's programs map.

A slice in direct mode is a directory that its holder may enter, with one file, ``table``: the cap, the device's facts, and a
slot for each program (``native/wire/slice_table.h`` has the same layout).  Programs map it and write what they hold; the agent
reads and writes with `os.pread` and `os.pwrite` alone, since a mapping of a file that its users can truncate could end it.
"""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpukernel import native
from gpukernel.remoting.usage import SliceUsage
from gpukernel.remoting.worker import WorkerStartFailed

__all__ = ["Slot", "Table", "TableBroken", "describe"]

_MAGIC, _VERSION, _SLOTS = 0x7463657269644B47, 1, 256
_HEADER = struct.Struct(
    "<QIIQdQQII"
)  # magic, version, ended, limit, weight, peak, past launches, used slots, unused
_ENDED, _LIMIT, _GPU_SHARE = 12, 16, 52
_TIME_SLICING, _FACTS, _UUID = 56, 1016, 1016 + 256
_FIRST_SLOT = 4096
_SLOT = struct.Struct("<iIQQQQQqd64s")
_OVERHEAD, _GPU_SECONDS = 32, 56
_SIZE = _FIRST_SLOT + _SLOTS * _SLOT.size


class TableBroken(Exception):
    """An error: the table is not what the agent made, since its users wrote over it or cut it short."""


@dataclass(frozen=True)
class Slot:
    """One program's own account: bytes that it asked for, and bytes measured beside them."""

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
    def make(
        cls, path: Path, memory_bytes: int, weight: float, time_slicing: Path | None, facts: bytes
    ) -> Table:
        """Lay down a new table with a cap of `memory_bytes` on the device that `facts` describes."""
        shared = str(time_slicing or "").encode()
        if len(shared) >= _FACTS - _TIME_SLICING:
            raise OSError(f"{time_slicing} is too long a path")
        header = _HEADER.pack(_MAGIC, _VERSION, 0, memory_bytes, weight, 0, 0, 0, 0)
        text = header + shared.ljust(_FACTS - _TIME_SLICING, b"\0") + facts
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, text, 0)
            os.ftruncate(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        return cls(path)

    def close(self) -> None:
        """Close the file; it stays."""
        os.close(self._file)

    def _read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._file, size, offset)
        if len(data) != size:
            raise TableBroken(f"{self.path} was cut short by a program of its slice")
        return data

    def end(self) -> None:
        """Have programs get nothing any more."""
        os.pwrite(self._file, struct.pack("<I", 1), _ENDED)

    def limit(self, memory_bytes: int, weight: float) -> None:
        """Change the cap and the weight; programs may have more by now, and then get nothing until they have less."""
        os.pwrite(self._file, struct.pack("<Qd", memory_bytes, weight), _LIMIT)

    @property
    def weight(self) -> float:
        """The slice's weight in time slicing."""
        return float(_HEADER.unpack(self._read(0, _HEADER.size))[4])

    @property
    def figures(self) -> tuple[int, int]:
        """The highest sum of bytes so far, and the launches of programs that have gone."""
        header = _HEADER.unpack(self._read(0, _HEADER.size))
        return header[5], header[6]

    def usage(self) -> SliceUsage:
        """Return what the slice's programs hold and did, as far as it is known."""
        limit, peak, past = (_HEADER.unpack(self._read(0, _HEADER.size))[at] for at in (3, 5, 6))
        (share,) = struct.unpack("<f", self._read(_GPU_SHARE, 4))
        slots = self.slots()
        return SliceUsage(
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
        return _uuid_text(self._read(_UUID, 16))

    def slots(self) -> list[Slot]:
        """Return the programs, as they say themselves."""
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
        """Write what the device holds for a program (unless it counted something in between) and did for it."""
        place = _FIRST_SLOT + slot.number * _SLOT.size
        now = _SLOT.unpack(self._read(place, _SLOT.size))
        if (now[0], now[2]) != (slot.pid, slot.start):
            return
        os.pwrite(self._file, struct.pack("<d", gpu_seconds), place + _GPU_SECONDS)
        if memory_bytes is not None and now[4] == slot.counted_bytes:
            overhead = max(0, memory_bytes - slot.counted_bytes)
            os.pwrite(self._file, struct.pack("<Q", overhead), place + _OVERHEAD)

    def busy(self, share: float) -> None:
        """Write the part of the device's time that the slice's programs had lately, 0 to 1."""
        os.pwrite(self._file, struct.pack("<f", share), _GPU_SHARE)

    def clear(self, slot: Slot) -> None:
        """Free the slot of a program that is dead, and with it its bytes."""
        place = _FIRST_SLOT + slot.number * _SLOT.size
        now = _SLOT.unpack(self._read(place, _SLOT.size))
        if (now[0], now[2]) == (slot.pid, slot.start):
            os.pwrite(self._file, bytes(_SLOT.size), place)


def _uuid_text(raw: bytes) -> str:
    """Return ``GPU-8a7b…`` of 16 bytes."""
    digits = raw.hex()
    return "GPU-" + "-".join(digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))


def describe(library: Path | str, device: int, env: Mapping[str, str]) -> bytes:
    """Return the facts of `device` in the CUDA library `library`, as tables hold them.

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
