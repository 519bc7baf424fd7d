"""``list-gpus``, ``leases`` and ``top``: the pool's devices, who holds them, and who waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.text import Text

from gpukernel.cli.terminal.charset import make_console, terminal_width
from gpukernel.cli.terminal.formats import Format, present, print_data, print_names
from gpukernel.cli.terminal.listing import Column, Listing
from gpukernel.cli.terminal.output import USAGE, Problem, age, bar, failure, size
from gpukernel.cli.terminal.watching import keep_showing
from gpukernel.client.pool import PoolClient
from gpukernel.common.address import resolve_address
from gpukernel.common.errors import PoolError
from gpukernel.common.model import Device, Lease, Slice, SliceRequest, Waiting

__all__ = [
    "Held",
    "ask_pool",
    "asks",
    "device_listing",
    "held_slices",
    "lease_listing",
    "leases",
    "list_gpus",
    "no_watch",
    "of_size",
    "queue_listing",
    "top",
    "use_listing",
]

T = TypeVar("T")

NO_DEVICES = "The pool has no devices yet; add some with “gpukernel agent”."


def ask_pool(pool: str | None, state: Path | None, call: Callable[[PoolClient], Awaitable[T]]) -> T:
    """Ask the pool one thing; a `PoolError` becomes a `Problem`."""

    async def ask() -> T:
        async with PoolClient(resolve_address(pool, state)) as client:
            return await call(client)

    try:
        return asyncio.run(ask())
    except PoolError as error:
        raise failure(error) from None


def of_size(part: int, whole: int) -> str:
    """Return two sizes in one unit: ``16.0 of 32.0 GiB``."""
    number, unit = size(whole).split()
    return f"{part / 2**30:.1f} of {number} GiB" if unit == "GiB" else f"{part / 2**20:.0f} of {number} MiB"


def device_listing(devices: Sequence[Device], bar_width: int = 10) -> Listing[Device]:
    """Return the devices, and how much of each is promised and free."""
    return Listing(
        [
            Column("Device", lambda d: d.id),
            Column("Model", lambda d: d.name, drop=3, least=20),
            Column("Promised", lambda d: bar(d.promised_bytes, d.memory_bytes, bar_width), drop=4),
            Column("%", lambda d: f"{d.promised_bytes / max(d.memory_bytes, 1):.0%}", drop=1, right=True),
            Column("Free", lambda d: of_size(d.memory_bytes - d.promised_bytes, d.memory_bytes), right=True),
            Column("Leases", lambda d: str(d.leases), drop=2, right=True),
            Column("State", lambda d: d.condition, least=12),
            Column("Capability", lambda d: d.compute_capability, right=True, wide=True),
            Column("Multiprocessors", lambda d: str(d.multiprocessors or ""), right=True, wide=True),
        ],
        devices,
        lambda d: d.id,
        lambda d: not d.available,
    )


@dataclass(frozen=True)
class Held:
    """One slice of a lease, as a row; `busy` is the share of the last seconds in which it computed, None where not known."""

    lease: Lease
    piece: Slice
    busy: float | None = None


def held_slices(leases: Sequence[Lease]) -> list[Held]:
    """Return the slices of leases as rows."""
    return [Held(lease, piece) for lease in leases for piece in lease.slices]


def _state(held: Held) -> str:
    lease = held.lease
    if lease.gives_way and not lease.end_reason:
        return f"gives way at {time.strftime('%H:%M:%S', time.localtime(lease.gives_way))}"
    return f"{lease.state}: {lease.end_reason}" if lease.end_reason else lease.state


def _device(held: Held) -> str:
    return f"{held.piece.device_id} direct" if held.lease.mode == "direct" else held.piece.device_id


def lease_listing(rows: Sequence[Held]) -> Listing[Held]:
    """Return who holds which slices."""
    ended = any(one.lease.end_reason for one in rows)
    return Listing(
        [
            Column("Lease", lambda h: h.lease.id[:8], once=True),
            Column("Person", lambda h: h.lease.holder.person, least=8, once=True),
            Column("What", lambda h: h.lease.holder.description, drop=1, least=14, once=True),
            Column("Device", _device, drop=3),
            Column("Slice", lambda h: size(h.piece.memory_bytes), right=True),
            Column("Peak", lambda h: size(h.piece.usage.memory_peak_bytes), drop=5, right=True),
            Column("Calls", lambda h: f"{h.piece.usage.cuda_calls:,}", drop=6, right=True),
            Column("Age", lambda h: age(h.lease.created), drop=2, right=True),
            Column("State", _state, drop=0 if ended else 4, least=16 if ended else 0, once=True),
            Column("Course", lambda h: h.lease.holder.course, wide=True),
            Column("Class", lambda h: h.lease.priority, wide=True, once=True),
            Column("Decided by", lambda h: h.lease.decided_by, wide=True, once=True),
            Column("Key", lambda h: h.lease.key, wide=True, once=True),
            Column("Host", lambda h: h.lease.holder.server, wide=True),
            Column("Model", lambda h: h.piece.device_name, wide=True),
            Column("GPU time", lambda h: f"{h.piece.usage.gpu_seconds:.1f} s", right=True, wide=True),
        ],
        rows,
        lambda h: h.lease.id,
    )


def use_listing(rows: Sequence[Held]) -> Listing[Held]:
    """Return who uses how much of which slice, as ``top`` shows it."""
    return Listing(
        [
            Column("Lease", lambda h: h.lease.id[:8], drop=1, once=True),
            Column("Person", lambda h: h.lease.holder.person, least=8, once=True),
            Column("Course", lambda h: h.lease.holder.course, drop=6, once=True),
            Column("What", lambda h: h.lease.holder.description, drop=3, least=12, once=True),
            Column("Device", _device, drop=5),
            Column("Used", lambda h: bar(h.piece.usage.memory_used_bytes, h.piece.memory_bytes), drop=7),
            Column(
                "Memory", lambda h: of_size(h.piece.usage.memory_used_bytes, h.piece.memory_bytes), right=True
            ),
            Column("GPU", lambda h: "-" if h.busy is None else f"{h.busy:.0%}", right=True),
            Column("Age", lambda h: age(h.lease.created), drop=4, right=True),
        ],
        rows,
        lambda h: h.lease.id,
    )


def queue_listing(waiting: Sequence[Waiting]) -> Listing[Waiting]:
    """Return who waits for what."""
    return Listing(
        [
            Column("Place", lambda w: str(w.position), right=True),
            Column("Person", lambda w: w.holder.person, least=8),
            Column("Course", lambda w: w.holder.course, drop=3, least=6),
            Column("What", lambda w: w.holder.description, drop=2, least=12),
            Column("Asks for", lambda w: asks(w.slice), least=16),
            Column("Since", lambda w: age(w.since), drop=1, right=True),
            Column("Why", lambda w: w.reason, wide=True),
        ],
        waiting,
        lambda w: w.key,
    )


def asks(request: SliceRequest) -> str:
    """Return in a few words what a request asks for."""
    what = (
        f"{request.share:g}" if request.share is not None else f"{(request.memory_bytes or 0) // 2**20} MiB"
    )
    return f"{request.devices} × {what} of {request.model or 'any device'}"


def no_watch(form: Format) -> None:
    """Refuse to watch what is made for programs."""
    if form not in (Format.TABLE, Format.WIDE):
        raise Problem(f"--watch shows a table; ask for -o {form} again and again instead.", USAGE)


def list_gpus(pool: str | None, state: Path | None, form: Format, watch: float | None = None) -> None:
    """Print the devices."""

    def ask() -> list[Device]:
        return ask_pool(pool, state, lambda client: client.devices())

    if watch is None:
        devices = ask()
        present(devices, device_listing(devices), form, NO_DEVICES)
        return
    no_watch(form)

    def picture() -> RenderableType:
        found = device_listing(ask())
        return found.text(terminal_width(), wide=form is Format.WIDE) if found.rows else NO_DEVICES

    keep_showing(picture, watch)


def leases(
    all: bool,
    pool: str | None,
    state: Path | None,
    form: Format,
    watch: float | None = None,
    wanted: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Print the leases, then the queue; those that are `wanted`, by the names of filters."""

    def ask() -> tuple[list[Lease], list[Waiting]]:
        return ask_pool(pool, state, lambda client: client.leases(include_ended=all, **wanted))

    def picture() -> RenderableType:
        found, waiting = ask()
        if not found and not waiting:
            if wanted:
                return "There is no such lease."
            return "Nobody holds a slice." if not all else "Nobody has held a slice yet."
        wide, width = form is Format.WIDE, terminal_width()
        parts: list[Text] = []
        if found:
            parts.append(lease_listing(held_slices(found)).text(width, wide=wide))
        if waiting:
            title = Text("\nWaiting" if found else "Waiting", "bold")
            parts += [title, queue_listing(waiting).text(width, wide=wide)]
        return Text("\n", no_wrap=True, overflow="ignore").join(parts)

    if watch is not None:
        no_watch(form)
        keep_showing(picture, watch)
    elif form in (Format.TABLE, Format.WIDE):
        make_console().print(picture(), soft_wrap=form is Format.WIDE)
    elif form is Format.NAME:
        print_names(lease.id for lease in ask()[0])
    else:
        print_data(ask()[0], form)


def top(every: float, times: int, pool: str | None, state: Path | None) -> None:
    """Print devices, leases and queue every `every` seconds, `times` times; 0: until Ctrl-C."""
    before: dict[tuple[str, str], float] = {}

    async def ask(client: PoolClient) -> tuple[list[Device], list[Lease], list[Waiting]]:
        return await client.devices(), *await client.leases()

    def picture() -> RenderableType:
        devices, leases, waiting = ask_pool(pool, state, ask)
        return _picture(devices, _with_use(leases, before, every), waiting)

    keep_showing(picture, every, times)


def _with_use(leases: Sequence[Lease], before: dict[tuple[str, str], float], every: float) -> list[Held]:
    """Return the slices with the share of the last `every` seconds in which they computed; `before` keeps the figures for the next."""
    rows = []
    for one in held_slices(leases):
        key = one.lease.id, one.piece.device_id
        now = one.piece.usage.gpu_seconds
        busy = min(max(now - before[key], 0) / every, 1) if key in before else None
        before[key] = now
        rows.append(Held(one.lease, one.piece, busy))
    return rows


def _picture(devices: list[Device], rows: list[Held], waiting: list[Waiting]) -> RenderableType:
    width = terminal_width()
    parts: list[RenderableType] = [device_listing(devices, 20).text(width) if devices else NO_DEVICES, ""]
    parts.append(use_listing(rows).text(width) if rows else "Nobody holds a slice.")
    if waiting:
        parts += ["", Text("Waiting", "bold"), queue_listing(waiting).text(width)]
    return Group(*parts)
