"""The slice as its notebook sees it: show, release, acquire and resize it, and measure a cell.

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
from dataclasses import dataclass, replace
from typing import Any

from gpukernel.jupyter.kernel_status import KernelStatus, size_words
from gpukernel.jupyter.trouble.next_step import Trouble
from gpukernel.remoting.lease_file import LeaseFile, LeaseFileError, lease_file_path, read_lease_file
from gpukernel.remoting.profile.figures import ProfiledKernels
from gpukernel.remoting.profile.question import NotCounted, begin_profile, end_profile
from gpukernel.remoting.usage import SliceUsage
from gpukernel.remoting.worker_query import WorkerSilent, usage_of

__all__ = [
    "CellProfile",
    "Figures",
    "SliceError",
    "acquire",
    "counted",
    "holds_slice",
    "measure",
    "memory_check",
    "profile",
    "release",
    "report",
    "resize",
    "status",
    "use",
]

MIB = 2**20
KEEPS_OLD = "Libraries that used CUDA before in this kernel keep what they had on the slice that is gone: restart the kernel to use them."
REAL_CHECK = "The strict memory check is the simulated GPU's; this slice is on a real one, which checks as hardware does."
DIRECT_CHECK = "In direct mode the memory check cannot change while a kernel runs: start the kernel with GPUKERNEL_MEMCHECK=strict in its environment, which simulated GPUs go by."


class SliceError(RuntimeError):
    """The notebook's request cannot be met; the text is a sentence."""


# --- who keeps the slice ---------------------------------------------------------------------------------------


def _lease_file() -> LeaseFile:
    path = lease_file_path(os.environ)
    if not path:
        raise SliceError(
            "This program has no slice: choose a kernel on a slice, or start it with “gpukernel run”."
        )
    try:
        return read_lease_file(path)
    except LeaseFileError as error:
        raise SliceError(str(error)) from None


@contextlib.contextmanager
def kernel_socket(
    command: str, size: dict[str, Any] | None = None, seconds: float | None = 30
) -> Iterator[Any]:
    """Give the lines that the kernel socket (`gpukernel.jupyter.kernel_socket`) answers to one request; raises `SliceError`."""
    lease = _lease_file()
    if not lease.socket:
        raise SliceError("This slice came with the program and ends with it; only kernels can change theirs.")
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(seconds)
        try:
            link.connect(lease.socket)
            text = json.dumps(size) if size else ""
            link.sendall(f"{command} {lease.kernel} {text}".strip().encode() + b"\n")
            with link.makefile("r", encoding="utf-8") as answers:
                yield answers
        except OSError as error:
            raise SliceError(
                f"The Jupyter server that keeps this kernel's slice does not answer ({error})."
            ) from None


def _ask(command: str, size: dict[str, Any] | None = None) -> KernelStatus:
    with kernel_socket(command, size) as answers:
        kind, _, rest = answers.readline().strip().partition(" ")
    if kind != "ok":
        raise SliceError(rest or "The Jupyter server that keeps this kernel's slice has gone.")
    try:
        return KernelStatus.from_json(json.loads(rest))
    except ValueError:
        raise SliceError(
            "The Jupyter server that keeps this kernel's slice runs another version of gpukernel; restart the server."
        ) from None


# --- what there is ---------------------------------------------------------------------------------------------


def use() -> tuple[SliceUsage, ...]:
    """Return what each device of the slice has used, asked of its worker now; empty without a slice.

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


def holds_slice() -> bool:
    """Return whether there is a slice now, as the lease file says."""
    with contextlib.suppress(SliceError):
        return _lease_file().state == "live"
    return False


def status() -> KernelStatus:
    """Return the slice, its use, the time left."""
    return _measured(_ask("show"))


def _measured(status: KernelStatus) -> KernelStatus:
    """Return `status` with what the workers say now; where one does not answer, it stays what the pool says."""
    if (
        not status.lease_id or status.trouble == "fault"
    ):  # after a fault a worker admits nobody, and the wait is long
        return status
    with contextlib.suppress(SliceError):
        return status.with_use(use())
    return status


# --- changing it -----------------------------------------------------------------------------------------------


def _wanted(share: float | None, memory_mib: int | None, model: str = "") -> dict[str, Any]:
    if share is not None and not 0 < share <= 1:
        raise SliceError(f"A share lies above 0 and up to 1, for example 0.02; {share:g} does not.")
    size = {"share": share, "memory_mib": memory_mib, "model": model}
    return {name: value for name, value in size.items() if value}


def acquire(share: float | None = None, *, memory_mib: int | None = None, model: str = "") -> KernelStatus:
    """Acquire a slice: wait in the queue, with the place as one line, until it comes.  Interrupting leaves the queue.

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
    with kernel_socket("acquire", _wanted(share, memory_mib, model), seconds=None) as answers:
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


def report(trouble: Trouble) -> KernelStatus:
    """Tell whoever keeps the slice what became of the latest cell; ``gpukernel.jupyter.trouble.cells`` does so by itself.

    Raises
    ------
    SliceError
        Nobody keeps it.
    """
    return _ask("report", {"trouble": trouble})


def release() -> KernelStatus:
    """Give the slice back; what is on the GPU is gone, and CUDA calls fail until there is another."""
    return _measured(_ask("release"))


def resize(share: float | None = None, *, memory_mib: int | None = None) -> KernelStatus:
    """Make the slice larger or smaller while it is in use.

    Raises
    ------
    SliceError
        The pool says no, with the figure that stands in the way, or cannot resize.
    """
    if not (size := _wanted(share, memory_mib)):
        raise SliceError("Name the new size, for example %gpu resize 0.05.")
    return _measured(_ask("resize", size))


MEMORY_CHECKS = ("hardware", "strict")


def memory_check(how: str = "") -> str:
    """Have the simulated GPU check kernels' accesses as hardware does, or strictly, from now on; return how it does.

    Raises
    ------
    SliceError
        The GPU is a real one, which knows one check only; or the slice is in direct mode.
    """
    if how:
        if _in_direct_mode():
            raise SliceError(DIRECT_CHECK)
        os.environ["GPUKERNEL_MEMCHECK"] = how
        if (cuda := _libcuda()) is not None and not cuda.gpukernel_memory_check(int(how == "strict")):
            raise SliceError(REAL_CHECK)
    now = os.environ.get("GPUKERNEL_MEMCHECK", "")
    return now if now in MEMORY_CHECKS else MEMORY_CHECKS[0]


def _libcuda() -> ctypes.CDLL | None:
    """Return the shim, where this process has loaded it already."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for line in maps:
            if "libcuda.so" in line:
                loaded = ctypes.CDLL(line.split(maxsplit=5)[5].strip())
                return loaded if hasattr(loaded, "gpukernel_counters") else None
    return None


def _used_by_libraries() -> bool:
    """Return whether something is loaded that keeps contexts and modules of its own."""
    return any(name in sys.modules for name in ("numba.cuda", "cuda.core", "torch", "jax", "cupy", "pycuda"))


# --- measuring -------------------------------------------------------------------------------------------------


@dataclass
class Figures:
    """The work done on the slice between two moments; memory in bytes, times in seconds.  All zero where there was no
    slice.

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
                f"{_short(self.seconds)} · memory {size_words(self.peak_bytes)}{part} · {launches} "
                "(in direct mode nobody counts GPU time and bytes moved)"
            )
        return (
            f"GPU time {_short(self.gpu_seconds)} of {_short(self.seconds)} · peak memory {size_words(self.peak_bytes)}{part} · "
            f"{size_words(self.to_device_bytes)} to the GPU, {size_words(self.to_host_bytes)} back · "
            f"{launches}"
        )

    __repr__ = __str__


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def counted() -> tuple[int, int, int]:
    """Return launches, bytes to the device, bytes to the host of this process so far."""
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


def _all_used(begin_anew: bool = False) -> tuple[SliceUsage, ...]:
    lease = _lease_file()
    if lease.state != "live":
        return ()
    with contextlib.suppress(WorkerSilent):
        return tuple(usage_of(endpoints, lease.secret, begin_anew=begin_anew) for endpoints in lease.devices)
    return ()


@contextlib.contextmanager
def measure() -> Iterator[Figures]:
    """Fill the given `Figures` when the block ends, after waiting for the work that it launched."""
    figures = Figures()
    _finish()
    before, done, began = _all_used(begin_anew=True), counted(), time.perf_counter()
    try:
        yield figures
    finally:
        _finish()
        figures.seconds = time.perf_counter() - began
        after, now = _all_used(), counted()
        gpu_before = sum(one.gpu_seconds for one in before) if len(before) == len(after) else 0.0
        figures.gpu_seconds = max(0.0, sum(one.gpu_seconds for one in after) - gpu_before)
        figures.peak_bytes = sum(one.peak_bytes for one in after)
        figures.limit_bytes = sum(one.limit_bytes for one in after)
        figures.launches, figures.to_device_bytes, figures.to_host_bytes = (
            max(0, b - a) for a, b in zip(done, now, strict=True)
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


class CellProfile:
    """The work of a cell's kernels: a table as text, with a picture in a notebook; `data` has every count."""

    def __init__(self) -> None:
        self.counted = ProfiledKernels()

    def data(self) -> dict[str, Any]:
        """Return all counts and what follows from them as dictionaries, lists, texts and numbers, ready for JSON."""
        return self.counted.data()

    def __repr__(self) -> str:
        from gpukernel.remoting.profile.table import text_table

        return text_table(self.counted)

    def _repr_html_(self) -> str:
        from gpukernel.remoting.profile.picture import html_picture

        return html_picture(self.counted)


@contextlib.contextmanager
def profile() -> Iterator[CellProfile]:
    """Fill the given `CellProfile` when the block ends, after waiting for the kernels that it launched.

    All programs on this slice are counted, and their kernels are interpreted meanwhile.

    Raises
    ------
    SliceError
        There is no slice, its devices are real ones, or a worker does not answer.
    """
    lease = _lease_file()
    if lease.state != "live":
        raise SliceError("This kernel has no slice now: %gpu acquire gets one.")
    found = CellProfile()
    _finish()
    try:
        begin_profile(lease.devices, lease.secret)
    except (NotCounted, WorkerSilent) as error:
        raise SliceError(str(error)) from None
    try:
        yield found
    finally:
        _finish()
        try:
            found.counted = end_profile(lease.devices, lease.secret)
        except (NotCounted, WorkerSilent) as error:
            print(f"gpukernel: there is no profile of the cell: {error}.", file=sys.stderr)
