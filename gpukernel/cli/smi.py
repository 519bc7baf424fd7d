"""``gpukernel smi``: one's own slices and what runs on them.

Inside a slice the figures come from its workers, through the NVML library beside the shim, as they do for every
NVML tool.  Elsewhere they come from the pool's leases, which agents bring up to date every two seconds; the pool
knows neither programs nor utilisation.
"""

from __future__ import annotations

import ctypes
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from gpukernel import native
from gpukernel.cli.tables import ask_pool, no_watch, of_size
from gpukernel.cli.terminal.charset import make_console, terminal_width
from gpukernel.cli.terminal.formats import Format, print_data, print_names
from gpukernel.cli.terminal.listing import Column, Listing
from gpukernel.cli.terminal.output import NOT_THERE, Problem, bar, size
from gpukernel.cli.terminal.watching import keep_showing
from gpukernel.common.account import own_names
from gpukernel.remoting.lease_file import LeaseFileError, lease_file_path, read_lease_file

__all__ = ["smi"]


@dataclass(frozen=True)
class Program:
    """A program on a slice; `memory_bytes` is what it has allocated."""

    pid: int
    command: str
    memory_bytes: int


@dataclass(frozen=True)
class SliceUse:
    """One slice and its use: memory in bytes, `gpu_share` of the last second from 0 to 1, `gpu_seconds` in all.

    `lease` is the lease's id and `device` the place among its devices, from 0.  What the source does not know is
    None: the pool `gpu_share` and `programs`, a slice's workers `gpu_seconds`.
    """

    lease: str
    device: int
    model: str
    memory_bytes: int
    memory_used_bytes: int
    connections: int
    gpu_share: float | None = None
    gpu_seconds: float | None = None
    programs: tuple[Program, ...] | None = None


def smi(watch: float | None, pool: str | None, state: Path | None, form: Format) -> None:
    """Print one's own slices once, or every `watch` seconds until interrupted."""
    lease_file = lease_file_path(os.environ)

    def look() -> list[SliceUse]:
        return _of_this_slice(Path(lease_file)) if lease_file else _of_the_pool(pool, state)

    if watch is not None:
        no_watch(form)
        keep_showing(lambda: _picture(look(), form), watch)
    elif form in (Format.TABLE, Format.WIDE):
        make_console().print(_picture(look(), form), soft_wrap=form is Format.WIDE)
    elif form is Format.NAME:
        print_names(dict.fromkeys(one.lease for one in look()))
    else:
        print_data(look(), form)


def _of_the_pool(pool: str | None, state: Path | None) -> list[SliceUse]:
    mine = {*own_names(), os.environ.get("JUPYTERHUB_USER")}
    leases, _ = ask_pool(pool, state, lambda client: client.leases())
    return [
        SliceUse(
            lease=lease.id,
            device=number,
            model=piece.device_name,
            memory_bytes=piece.memory_bytes,
            memory_used_bytes=piece.usage.memory_used_bytes,
            connections=piece.usage.connections,
            gpu_seconds=piece.usage.gpu_seconds,
        )
        for lease in leases
        if lease.state == "live" and lease.holder.person in mine
        for number, piece in enumerate(lease.slices)
    ]


def _of_this_slice(lease_file: Path) -> list[SliceUse]:
    import pynvml as nvml

    try:
        lease = read_lease_file(lease_file).lease
    except LeaseFileError as error:
        raise Problem(str(error), NOT_THERE) from None
    # Loaded by its path it is the library that pynvml then finds by name, also without LD_LIBRARY_PATH.
    ctypes.CDLL(str(native.nvml_library()))
    try:
        nvml.nvmlInit()
        return [_device(nvml, lease, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError_DriverNotLoaded:
        raise Problem(
            "This slice's lease is over; start the program or the kernel again for another.", NOT_THERE
        ) from None
    except nvml.NVMLError as error:
        raise Problem(
            f"This slice's worker does not answer ({error}); its lease may be over: see “gpukernel leases --all”."
        ) from None


def _device(nvml: Any, lease: str, index: int) -> SliceUse:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    programs = [
        Program(one.pid, _command(one.pid, nvml.nvmlSystemGetProcessName(one.pid)), one.usedGpuMemory)
        for one in running
    ]
    return SliceUse(
        lease=lease,
        device=index,
        model=nvml.nvmlDeviceGetName(handle),
        memory_bytes=memory.total,
        memory_used_bytes=memory.used,
        connections=len(programs),
        gpu_share=nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        programs=tuple(programs),
    )


def _command(pid: int, name: str) -> str:
    """Return the command line of `pid` where it is `name` that runs there: it may be the number of another machine."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return name
    return shlex.join(words) if words[0] == name else name


def _picture(slices: list[SliceUse], form: Format) -> RenderableType:
    if not slices:
        return "You hold no slice."
    inside = slices[0].programs is not None
    width, wide = terminal_width(), form is Format.WIDE

    def busy(one: SliceUse) -> str:
        return f"{one.gpu_seconds:.1f} s" if one.gpu_share is None else f"{one.gpu_share:.0%}"

    table = Listing(
        [
            Column("Lease", lambda one: one.lease[:8], drop=1),
            Column("Device", lambda one: str(one.device), right=True),
            Column("Model", lambda one: one.model, drop=3, least=14),
            Column("Memory", lambda one: bar(one.memory_used_bytes, one.memory_bytes), drop=4),
            Column("Use", lambda one: of_size(one.memory_used_bytes, one.memory_bytes), right=True),
            Column("GPU" if inside else "GPU time", busy, right=True),
            Column("Programs", lambda one: str(one.connections), drop=2, right=True),
        ],
        slices,
        lambda one: f"{one.lease} {one.device}",
    )
    rows = [(one.device, program) for one in slices for program in one.programs or ()]
    programs = Listing(
        [
            Column("Device", lambda row: str(row[0]), right=True),
            Column("PID", lambda row: str(row[1].pid), right=True),
            Column("Memory", lambda row: size(row[1].memory_bytes), right=True),
            Column("Program", lambda row: row[1].command, least=12),
        ],
        rows,
        lambda row: str(row[1].pid),
    )
    shown = table.text(width, wide=wide)
    return Group(shown, "", programs.text(width, wide=wide)) if rows else shown
