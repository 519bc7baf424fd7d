"""``list-gpus``, ``leases`` and ``top``: the pool's devices, who holds them, and who waits."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gpukernel.cli.output import Problem, age, bar, print_json, size
from gpukernel.client.pool import PoolClient
from gpukernel.common.address import resolve_address
from gpukernel.common.errors import PoolError
from gpukernel.common.logs import one_line
from gpukernel.common.model import Device, Lease, SliceRequest, Waiting

__all__ = ["ask_pool", "asks", "leases", "list_gpus", "make_table", "top"]

T = TypeVar("T")


def ask_pool(pool: str | None, state: Path | None, call: Callable[[PoolClient], Awaitable[T]]) -> T:
    """Ask the pool one thing; a `PoolError` becomes a `Problem`."""

    async def ask() -> T:
        async with PoolClient(resolve_address(pool, state)) as client:
            return await call(client)

    try:
        return asyncio.run(ask())
    except PoolError as error:
        raise Problem(str(error)) from None


class PlainTable(Table):
    """A table whose texts are shown as they are: rich would take what people write for styles, and a terminal for commands."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row; texts in it are plain, what is styled is given as `Text`."""
        super().add_row(*(Text(one_line(one)) if isinstance(one, str) else one for one in cells), **options)


def make_table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table in the style of every command; the columns of `right` are aligned right."""
    table = PlainTable(box=box.SIMPLE_HEAD, header_style="bold")
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=column not in ("What", "State", "Model", "Program"),
        )
    return table


def list_gpus(pool: str | None, state: Path | None, json: bool) -> None:
    """Print the devices."""
    devices = ask_pool(pool, state, lambda client: client.devices())
    if json:
        print_json(devices)
        return
    table = make_table(
        "Device", "Model", "Memory", "Promised", "", "Free", "Leases", right=("Memory", "Free", "Leases")
    )
    for device in devices:
        share = device.promised_bytes / max(device.memory_bytes, 1)
        table.add_row(
            device.id,
            device.name
            if device.available
            else Text(one_line(f"{device.name} ({device.trouble or 'away'})"), "dim"),
            bar(device.promised_bytes, device.memory_bytes),
            f"{share:.0%}",
            f"{size(device.memory_bytes - device.promised_bytes)} of {size(device.memory_bytes)}",
            str(device.leases),
        )
    console = Console(width=None if sys.stdout.isatty() else 130)
    console.print(table if devices else "The pool has no devices yet; add some with “gpukernel agent”.")


def leases(all: bool, pool: str | None, state: Path | None, json: bool) -> None:
    """Print the leases, then the queue."""
    found, waiting = ask_pool(pool, state, lambda client: client.leases(include_ended=all))
    if json:
        print_json(found)
        return
    console = Console(width=None if sys.stdout.isatty() else 130)
    if not found and not waiting:
        console.print("Nobody holds a slice." if not all else "Nobody has held a slice yet.")
        return
    columns = ["Lease", "Person", "What", "Device", "Slice", "Peak", "Calls", "Age", "State"]
    table = make_table(*columns, right=("Slice", "Peak", "Calls", "Age"))
    for lease in found:
        _add(table, lease)
    if found:
        console.print(table)
    if waiting:
        queue = make_table("Place", "Person", "What", "Asks for", "Since", right=("Place", "Since"))
        for one in waiting:
            queue.add_row(
                str(one.position), one.holder.person, one.holder.description, asks(one.slice), age(one.since)
            )
        console.print("[bold]Waiting")
        console.print(queue)


def _add(table: Table, lease: Lease) -> None:
    for number, piece in enumerate(lease.slices):
        usage = piece.usage
        state = f"{lease.state}: {lease.end_reason}" if lease.end_reason else lease.state
        table.add_row(
            lease.id[:8] if number == 0 else "",
            lease.holder.person if number == 0 else "",
            lease.holder.description if number == 0 else "",
            f"{piece.device_id} direct" if lease.mode == "direct" else piece.device_id,
            f"{size(piece.memory_bytes)}",
            size(usage.memory_peak_bytes),
            f"{usage.cuda_calls:,}",
            age(lease.created),
            state if number == 0 else "",
        )


def asks(request: SliceRequest) -> str:
    """Return in a few words what a request asks for."""
    what = (
        f"{request.share:g}" if request.share is not None else f"{(request.memory_bytes or 0) // 2**20} MiB"
    )
    return f"{request.devices} × {what} of {request.model or 'any device'}"


def top(every: float, times: int, pool: str | None, state: Path | None) -> None:
    """Print devices, leases and queue every `every` seconds, `times` times; 0: until Ctrl-C."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    before: dict[tuple[str, str], float] = {}

    async def work() -> None:
        async with PoolClient(resolve_address(pool, state)) as client:
            with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
                shown = 0
                while True:
                    picture = _picture(await client.devices(), *await client.leases(), before, every)
                    if console.is_terminal:
                        live.update(picture, refresh=True)
                    else:
                        console.print(picture)
                    shown += 1
                    if shown == times:
                        return
                    await asyncio.sleep(every)

    try:
        asyncio.run(work())
    except PoolError as error:
        raise Problem(str(error)) from None
    except KeyboardInterrupt:
        pass


def _picture(
    devices: list[Device],
    leases: list[Lease],
    waiting: list[Waiting],
    before: dict[tuple[str, str], float],
    every: float,
) -> RenderableType:
    table = make_table("Device", "Model", "Promised", "", "Leases", right=("Leases",))
    for device in devices:
        table.add_row(
            device.id,
            device.name if device.available else f"{device.name} ({device.trouble})",
            bar(device.promised_bytes, device.memory_bytes, 20),
            f"{size(device.promised_bytes)} of {size(device.memory_bytes)}",
            str(device.leases),
        )
    columns = ("Lease", "Person", "Course", "What", "Device", "Memory", "", "GPU", "Age")
    shown_leases = make_table(*columns, right=("GPU", "Age"))
    for lease in leases:
        for piece in lease.slices:
            busy = before.get((lease.id, piece.device_id))
            before[lease.id, piece.device_id] = piece.usage.gpu_seconds
            share = "" if busy is None else f"{min(max(piece.usage.gpu_seconds - busy, 0) / every, 1):.0%}"
            shown_leases.add_row(
                lease.id[:8],
                lease.holder.person,
                lease.holder.course,
                lease.holder.description[:40],
                piece.device_id,
                bar(piece.usage.memory_used_bytes, piece.memory_bytes),
                f"{size(piece.usage.memory_used_bytes)} of {size(piece.memory_bytes)}",
                share,
                age(lease.created),
            )
    parts: list[RenderableType] = [table, shown_leases if leases else "Nobody holds a slice."]
    if waiting:
        queue = make_table("Place", "Person", "Course", "Asks for", "Since", right=("Place", "Since"))
        for one in waiting:
            queue.add_row(
                str(one.position), one.holder.person, one.holder.course, asks(one.slice), age(one.since)
            )
        parts.append(queue)
    return Group(*parts)
