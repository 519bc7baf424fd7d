"""``gpukernel smi --kernels``: which tier of the simulated GPU runs each kernel of a slice."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import RenderableType

from gpukernel.cli.tables import no_watch
from gpukernel.cli.terminal.charset import make_console, terminal_width
from gpukernel.cli.terminal.formats import Format, print_data, print_names
from gpukernel.cli.terminal.listing import Column, Listing
from gpukernel.cli.terminal.output import NOT_THERE, Problem
from gpukernel.cli.terminal.watching import keep_showing
from gpukernel.remoting.lease_file import LeaseFileError, lease_file_path, read_lease_file
from gpukernel.remoting.profile.figures import KernelTier
from gpukernel.remoting.profile.question import NotCounted, kernels_of
from gpukernel.remoting.profile.table import duration, short_name
from gpukernel.remoting.worker_query import WorkerSilent

__all__ = ["show_kernels"]

OUTSIDE = (
    "Only a slice itself knows its kernels: say it inside one, as “gpukernel client -- gpukernel smi --kernels” or in a notebook as "
    "“!gpukernel smi --kernels”."
)


def show_kernels(form: Format, watch: float | None) -> None:
    """Print the kernels of this slice once, or every `watch` seconds, those that took longest first."""
    if watch is not None:
        no_watch(form)
        keep_showing(lambda: _picture(_look(), form), watch)
        return
    found = _look()
    if form in (Format.JSON, Format.YAML):
        print_data(found, form)
    elif form is Format.NAME:
        print_names(one.name for one in found)
    else:
        make_console().print(_picture(found, form), soft_wrap=form is Format.WIDE)


def _look() -> list[KernelTier]:
    place = lease_file_path(os.environ)
    if not place:
        raise Problem(OUTSIDE, NOT_THERE)
    try:
        lease = read_lease_file(Path(place))
    except LeaseFileError as error:
        raise Problem(str(error), NOT_THERE) from None
    if lease.state != "live":
        raise Problem(
            "This slice's lease is over; start the program or the kernel again for another.", NOT_THERE
        )
    try:
        return kernels_of(lease.devices, lease.secret)
    except (NotCounted, WorkerSilent) as error:
        raise Problem(str(error)) from None


def _picture(kernels: Sequence[KernelTier], form: Format) -> RenderableType:
    if not kernels:
        return "No kernel has run on this slice."
    return _listing(kernels).text(terminal_width(), wide=form is Format.WIDE)


def _tier(one: KernelTier) -> str:
    return "compiled" if one.compiled else "interpreter"


def _listing(kernels: Sequence[KernelTier]) -> Listing[KernelTier]:
    devices = len({one.device for one in kernels}) > 1
    return Listing(
        [
            *([Column[KernelTier]("Device", lambda one: str(one.device), right=True)] if devices else []),
            Column("Kernel", lambda one: short_name(one.name), least=12),
            Column("Tier", _tier),
            Column("Launches", lambda one: str(one.launches), right=True),
            Column("Compiled", lambda one: str(one.compiled_launches), drop=3, right=True),
            Column("Time", lambda one: duration(one.seconds), right=True),
            Column(
                "Compiling",
                lambda one: duration(one.compile_seconds) if one.compile_seconds else "",
                drop=2,
                right=True,
            ),
            Column("Why not compiled", lambda one: one.reason, drop=1, least=16),
        ],
        kernels,
        lambda one: f"{one.device} {one.name}",
    )
