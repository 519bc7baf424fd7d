"""A slice as its notebook sees it: look, release, acquire, resize, and measure a cell.

Loaded into a kernel on a slice, so it needs nothing but the standard library; ``%gpu`` of `gpukernel.jupyter.magics` is
made of these functions.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpukernel.remoting.questions import Use, WorkerSilent, usage_of

__all__ = [
    "Figures",
    "SliceError",
    "Status",
    "acquire",
    "measure",
    "release",
    "resize",
    "status",
    "use",
]

LEASE_FILE_VARIABLE = (
    "GPUKERNEL_LEASE_FILE"  # as gpukernel.remoting.environment has it, without what that imports
)
MIB = 2**20
KEEPS_OLD = "Libraries that used CUDA before in this kernel keep what they had on the slice that is gone: restart the kernel to use them."


class SliceError(RuntimeError):
    """What was asked for cannot be; the text is a sentence."""


# --- who keeps the slice ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _LeaseFile:
    state: str = ""
    reason: str = ""
    secret: str = field(default="", repr=False)
    key: str = ""
    desk: str = ""
    devices: tuple[tuple[str, ...], ...] = ()


def _lease_file() -> _LeaseFile:
    path = os.environ.get(LEASE_FILE_VARIABLE)
    if not path:
        raise SliceError(
            "This program has no slice: choose a kernel on a slice, or start it with “gpukernel run”."
        )
    values: dict[str, Any] = {}
    devices: list[tuple[str, ...]] = []
    try:
        for line in Path(path).read_text().splitlines():
            word, _, rest = line.partition(" ")
            if word == "device":
                devices.append(tuple(rest.split()[1:]))
            elif word in _LeaseFile.__dataclass_fields__:
                values[word] = rest
    except OSError as error:
        raise SliceError(f"The lease file {path} cannot be read: {error.strerror}.") from None
    return _LeaseFile(**values, devices=tuple(devices))


@contextlib.contextmanager
def desk(command: str, size: dict[str, Any] | None = None, seconds: float | None = 30) -> Iterator[Any]:
    """The lines that the desk (`gpukernel.jupyter.desk`) answers to one request; raises `SliceError`."""
    lease = _lease_file()
    if not lease.desk:
        raise SliceError("This slice came with the program and ends with it; only kernels can change theirs.")
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(seconds)
        try:
            link.connect(lease.desk)
            text = json.dumps(size) if size else ""
            link.sendall(f"{command} {lease.key} {text}".strip().encode() + b"\n")
            with link.makefile("r", encoding="utf-8") as answers:
                yield answers
        except OSError as error:
            raise SliceError(
                f"The Jupyter server that keeps this kernel's slice does not answer ({error})."
            ) from None


def _ask(command: str, size: dict[str, Any] | None = None) -> dict[str, Any]:
    with desk(command, size) as answers:
        kind, _, rest = answers.readline().strip().partition(" ")
    if kind != "ok":
        raise SliceError(rest or "The Jupyter server that keeps this kernel's slice has gone.")
    answer: dict[str, Any] = json.loads(rest)
    return answer


# --- what there is ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Status:
    """The slice now.

    Attributes
    ----------
    state
        ``live``, ``waiting``, ``none`` or ``ended``; `sentence` says why where there is no slice.
    what
        The size that was asked for, in words.
    devices
        Of each device: ``id``, ``name``, ``memory_bytes``, ``used_bytes``, ``gpu_share`` (the busy part of the last second, 0 to 1),
        ``gpu_seconds``.
    held_seconds, left_seconds
        Since when, and how long still; None where nothing bounds it.
    notice
        What the pool wants its holder to know.
    """

    state: str
    what: str
    sentence: str = ""
    notice: str = ""
    held_seconds: float = 0.0
    left_seconds: float | None = None
    devices: tuple[dict[str, Any], ...] = ()

    def __str__(self) -> str:
        if self.state == "waiting":
            return self.sentence
        if self.state != "live":
            why = f": {self.sentence}" if self.sentence else ""
            return f"No slice now{why.rstrip('.')}. “%gpu acquire”, or the first use of CUDA, asks for {self.what}."
        lines = []
        for device in self.devices:
            used, limit = device["used_bytes"], device["memory_bytes"]
            busy = f", {device['gpu_share']:.0%} busy" if device["gpu_share"] is not None else ""
            lines += [
                f"{self.what} on {device['id']}, {device['name']}",
                f"  memory  {_bar(used / limit)} {_size(used)} of {_size(limit)}",
                f"  compute {_bar(device['gpu_share'] or 0)} {device['gpu_seconds']:.1f} s of GPU time{busy}",
            ]
        left = f"{_time(self.left_seconds)} left" if self.left_seconds is not None else "no end set"
        lines.append(f"  held for {_time(self.held_seconds)}, {left}")
        if self.notice:
            lines.append(f"  {self.notice}")
        return "\n".join(lines)

    __repr__ = __str__


def _bar(part: float, width: int = 20) -> str:
    full = round(min(max(part, 0), 1) * width)
    return "█" * full + "░" * (width - full)


def _size(count: float) -> str:
    if count < 1024:
        return f"{count:.0f} bytes"
    return f"{count / 1024:.0f} KiB" if count < MIB else f"{count / MIB:,.0f} MiB"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def use() -> tuple[Use, ...]:
    """What each device of the slice has used, asked of its worker now; empty without a slice.

    Raises
    ------
    SliceError
        A worker does not answer.
    """
    lease = _lease_file()
    if lease.state != "live":
        return ()
    try:
        return tuple(usage_of(endpoints, lease.secret) for endpoints in lease.devices)
    except WorkerSilent as error:
        raise SliceError(str(error)) from None


def status() -> Status:
    """The slice, its use, the time left."""
    return _status(_ask("show"))


def _status(shown: dict[str, Any]) -> Status:
    lease = shown["lease"]
    if lease is None:
        sentence = shown["words"] or shown["sentence"]
        return Status(shown["state"], shown["what"], sentence)
    try:
        now: tuple[Use | None, ...] = use()
    except SliceError:
        now = ()
    devices = []
    for number, piece in enumerate(lease["slices"]):
        fresh = now[number] if number < len(now) else None
        devices.append(
            {
                "id": piece["device_id"],
                "name": piece["device_name"],
                "memory_bytes": fresh.limit_bytes if fresh else piece["memory_bytes"],
                "used_bytes": fresh.used_bytes if fresh else piece["usage"]["memory_used_bytes"],
                "gpu_share": fresh.gpu_share if fresh else None,
                "gpu_seconds": fresh.gpu_seconds if fresh else piece["usage"]["gpu_seconds"],
            }
        )
    until = lease.get("until") or 0.0
    return Status(
        state=shown["state"],
        what=shown["what"],
        notice=lease.get("notice", ""),
        held_seconds=max(0.0, time.time() - lease["created"]),
        left_seconds=max(0.0, until - time.time()) if until else None,
        devices=tuple(devices),
    )


# --- changing it -----------------------------------------------------------------------------------------------


def _wanted(share: float | None, memory_mib: int | None, model: str = "") -> dict[str, Any]:
    if share is not None and not 0 < share <= 1:
        raise SliceError(f"A share lies above 0 and up to 1, for example 0.02; {share:g} does not.")
    size = {"share": share, "memory_mib": memory_mib, "model": model}
    return {name: value for name, value in size.items() if value}


def acquire(share: float | None = None, *, memory_mib: int | None = None, model: str = "") -> Status:
    """Have a slice: waits in the queue, with the place as one line, until it comes.  Interrupting leaves the queue.

    Parameters
    ----------
    share, memory_mib, model
        The size; without one, what the kernel was started with.

    Raises
    ------
    SliceError
        There will be no such slice.
    """
    width = 0
    with desk("acquire", _wanted(share, memory_mib, model), seconds=None) as answers:
        try:
            for line in answers:
                kind, _, rest = line.strip().partition(" ")
                if kind == "waiting":
                    width = max(width, len(rest))
                    print(f"\rgpukernel: {rest:{width}}", end="", flush=True)
                elif kind == "live":
                    break
                else:
                    raise SliceError(rest)
            else:
                raise SliceError("The Jupyter server that keeps this kernel's slice has gone.")
        except KeyboardInterrupt:
            with contextlib.suppress(SliceError):
                _ask("cancel")
            raise
        finally:
            if width:
                print(flush=True)
    # Where CUDA was in use before, cuInit has the shim change over to the new slice.
    if (cuda := _libcuda()) is not None and cuda.cuInit(0) == 0 and _used_by_libraries():
        return replace(status(), notice=KEEPS_OLD)
    return status()


def release() -> Status:
    """Give the slice back; what is on the GPU is gone, and CUDA calls fail until there is another."""
    return _status(_ask("release"))


def resize(share: float | None = None, *, memory_mib: int | None = None) -> Status:
    """Make the slice larger or smaller while it is in use.

    Raises
    ------
    SliceError
        The pool says no, with the figure that stands in the way, or cannot resize.
    """
    if not (size := _wanted(share, memory_mib)):
        raise SliceError("Name the new size, for example %gpu resize 0.05.")
    return _status(_ask("resize", size))


def _libcuda() -> ctypes.CDLL | None:
    """The shim, where this process has loaded it already."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for line in maps:
            if "libcuda.so" in line:
                loaded = ctypes.CDLL(line.split(maxsplit=5)[5].strip())
                return loaded if hasattr(loaded, "gpukernel_counters") else None
    return None


def _used_by_libraries() -> bool:
    """Whether something is loaded that keeps contexts and modules of its own."""
    return any(name in sys.modules for name in ("numba.cuda", "cuda.core", "torch", "jax", "cupy", "pycuda"))


# --- measuring -------------------------------------------------------------------------------------------------


@dataclass
class Figures:
    """What was done on the slice between two moments; memory in bytes, times in seconds.  All zero where there was no slice.

    In direct mode (`direct`) nobody counts GPU time and bytes moved, and the peak is a guess: the slice's where it has grown, else what
    is in use now.
    """

    seconds: float = 0.0
    gpu_seconds: float = 0.0
    peak_bytes: int = 0
    limit_bytes: int = 0
    to_device_bytes: int = 0
    to_host_bytes: int = 0
    launches: int = 0
    direct: bool = False

    def __str__(self) -> str:
        part = f" ({self.peak_bytes / self.limit_bytes:.0%} of the slice)" if self.limit_bytes else ""
        launches = f"{self.launches:,} {'launch' if self.launches == 1 else 'launches'}"
        if self.direct:
            return (
                f"{_short(self.seconds)} · memory {_size(self.peak_bytes)}{part} · {launches} "
                "(in direct mode nobody counts GPU time and bytes moved)"
            )
        return (
            f"GPU time {_short(self.gpu_seconds)} of {_short(self.seconds)} · peak memory {_size(self.peak_bytes)}{part} · "
            f"{_size(self.to_device_bytes)} to the GPU, {_size(self.to_host_bytes)} back · "
            f"{launches}"
        )

    __repr__ = __str__


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _counted() -> tuple[int, int, int]:
    """Launches, bytes to the device, bytes to the host of this process so far."""
    if (cuda := _libcuda()) is None:
        return (0, 0, 0)
    figures = (ctypes.c_uint64 * 3)()
    cuda.gpukernel_counters(figures)
    return (figures[0], figures[1], figures[2])


def _in_direct_mode() -> bool:
    return any(way.startswith("direct:") for ways in _lease_file().devices for way in ways)


def _finish() -> None:
    """Wait for what this process has launched, where it uses CUDA at all."""
    if (cuda := _libcuda()) is not None:
        cuda.cuCtxSynchronize()


def _all_used(begin_anew: bool = False) -> tuple[Use, ...]:
    lease = _lease_file()
    if lease.state != "live":
        return ()
    with contextlib.suppress(WorkerSilent):
        return tuple(usage_of(endpoints, lease.secret, begin_anew=begin_anew) for endpoints in lease.devices)
    return ()


@contextlib.contextmanager
def measure() -> Iterator[Figures]:
    """Fills the `Figures` that it gives when its block ends; waits for the work that the block launched."""
    figures = Figures()
    _finish()
    before, counted, began = _all_used(begin_anew=True), _counted(), time.perf_counter()
    try:
        yield figures
    finally:
        _finish()
        figures.seconds = time.perf_counter() - began
        after, now = _all_used(), _counted()
        gpu_before = sum(one.gpu_seconds for one in before) if len(before) == len(after) else 0.0
        figures.gpu_seconds = max(0.0, sum(one.gpu_seconds for one in after) - gpu_before)
        figures.peak_bytes = sum(one.peak_bytes for one in after)
        figures.limit_bytes = sum(one.limit_bytes for one in after)
        figures.launches, figures.to_device_bytes, figures.to_host_bytes = (
            max(0, b - a) for a, b in zip(counted, now, strict=True)
        )
        if _in_direct_mode():
            figures.direct = True
            figures.launches = max(
                0, sum(one.launches for one in after) - sum(one.launches for one in before)
            )
            figures.peak_bytes = sum(
                now.peak_bytes if now.peak_bytes > then.peak_bytes else max(then.used_bytes, now.used_bytes)
                for then, now in zip(before, after, strict=False)
            )
