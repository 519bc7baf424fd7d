"""``drain``, ``undrain``, ``health``, ``report`` and ``top``: what those do who run a pool or a course."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import datetime
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live

from gpukernel import native
from gpukernel.cli.output import Problem, age, bar, print_json, seconds, size
from gpukernel.cli.quota import ask_admin
from gpukernel.cli.tables import ask_pool, asks, make_table
from gpukernel.pool.address import resolve_address
from gpukernel.pool.admin_client import AdminClient, HeldPart
from gpukernel.pool.client import PoolClient
from gpukernel.pool.errors import NotAllowed, PoolError
from gpukernel.pool.model import Device, Lease, Waiting

__all__ = ["drain", "health", "report", "top", "undrain"]

LOOK_SECONDS = 1.0
SOON_DAYS = 30.0
SLOW_SECONDS = 1.0


# --- servers ---


def drain(server: str, deadline: str, wait: bool, pool: str | None, state: Path | None) -> None:
    """No new leases; with `wait` it returns when none is left."""
    span = seconds(deadline)
    left = ask_admin(pool, state, lambda c: c.drain(server, span))
    end = f", for {deadline} at most" if span and left else ""
    print(f"{server} gets no new leases; {left} are left{end}.")
    while wait and left:
        time.sleep(LOOK_SECONDS)
        devices = ask_pool(pool, state, lambda client: client.devices())
        left = sum(device.leases for device in devices if device.server == server)
    if wait:
        print(f"{server} is empty.")


def undrain(server: str, pool: str | None, state: Path | None) -> None:
    """Leases again."""
    ask_admin(pool, state, lambda c: c.undrain(server))
    print(f"{server} gets leases again.")


# --- health ---


@dataclass(frozen=True)
class Finding:
    """One part: whether it works, what was seen, and what to do where it does not."""

    part: str
    fine: bool
    seen: str
    advice: str = ""


def health(pool: str | None, state: Path | None, json: bool) -> None:
    """Every part, then the exit status."""
    findings = [*_installation(), *_pool(pool, state)]
    if json:
        print_json(findings)
    else:
        console = Console(width=None if sys.stdout.isatty() else 130, highlight=False)
        for finding in findings:
            mark = "[green]ok[/]  " if finding.fine else "[red]not[/] "
            console.print(f"{mark} {finding.part}: ", end="")
            console.print(finding.seen, markup=False)
            if finding.advice:
                console.print(f"       {finding.advice}", markup=False)
    if not all(finding.fine for finding in findings):
        sys.exit(1)


def _installation() -> Iterable[Finding]:
    for part, find in (
        ("shim", native.shim_dir),
        ("worker", native.worker_executable),
        ("simulated GPU", native.simgpu_library),
    ):
        try:
            yield Finding(part, True, str(find()))
        except native.NativePartMissing as error:
            yield Finding(part, False, "missing", str(error))


def _pool(pool: str | None, state: Path | None) -> Iterable[Finding]:
    address = resolve_address(pool, state)
    begin = time.monotonic()
    took = 0.0

    async def ask() -> tuple[list[Device], list[Lease], list[Waiting], list[Finding]]:
        nonlocal address, took
        async with AdminClient(address) as client:
            address = client.address
            found = await client.devices(), *await client.leases()
            took = time.monotonic() - begin
            return *found, [finding async for finding in _certificates(client)]

    try:
        devices, leases, waiting, certificates = asyncio.run(ask())
    except PoolError as error:
        yield Finding("pool", False, address, str(error))
        return
    advice = "The pool's machine or its database is overloaded." if took > SLOW_SECONDS else ""
    yield Finding("pool", not advice, f"{address} answers in {took * 1000:.0f} ms", advice)
    yield from certificates
    if not devices:
        yield Finding(
            "devices", False, "none", "Start “gpukernel agent --pool ADDRESS” on a machine with GPUs."
        )
    for server in dict.fromkeys(device.server for device in devices):
        yield from _server(server, [device for device in devices if device.server == server])
    stuck = [lease for lease in leases if lease.state == "ending" and time.time() - lease.ended > 60]
    if stuck:
        yield Finding(
            "leases",
            False,
            f"{len(stuck)} have been ending for over a minute",
            "Their GPU servers are away, so nobody knows that their workers are dead; start those agents again.",
        )
    yield Finding("queue", True, f"{len(leases)} leases, {len(waiting)} wait")


async def _certificates(client: AdminClient) -> AsyncIterator[Finding]:
    """The pool's, one's own, and for administrators those of everybody, from 30 days before they end."""
    renew = "Its administrator makes a new one with “gpukernel pool init --renew”; nothing is interrupted."
    another = "A new connection file (“gpukernel token create --file”) works beside the old one until that token is revoked."
    for part, days, advice in (
        ("certificate", await client.connection.days_left(), renew),
        ("client certificate", client.connection.certificate_days_left(), another),
    ):
        if days is not None:
            soon = days < SOON_DAYS
            yield Finding(part, not soon, f"good for {days:.0f} days", advice if soon else "")
    with contextlib.suppress(NotAllowed):
        now = time.time()
        ending = [
            f"{token.name} ({token.id}) {(token.certificate_expires - now) / 86400:.0f} days"
            for token in await client.tokens()
            if 0 < token.certificate_expires < now + SOON_DAYS * 86400
            if not token.revoked and not 0 < token.expires < now
        ]
        if ending:
            yield Finding("client certificates", False, f"good for: {', '.join(ending)}", another)


def _server(server: str, devices: list[Device]) -> Iterable[Finding]:
    works = sum(device.available for device in devices)
    troubles = {device.trouble for device in devices if not device.available}
    if troubles == {"away"}:
        yield Finding(
            f"server {server}",
            False,
            "away",
            f"Start “gpukernel agent” on {server} again, or look at its log.",
        )
        return
    if troubles == {"drained"}:
        left = sum(device.leases for device in devices)
        yield Finding(f"server {server}", True, f"drained; {left} leases left")
        return
    yield Finding(f"server {server}", True, f"{works} of {len(devices)} devices in use")
    for device in devices:
        if not device.available:
            yield Finding(
                f"device {device.id}",
                False,
                device.trouble,
                f"Look at the device on {server}; it gets leases again when its agent finds it sound.",
            )


# --- reports ---

_AGO = re.compile(r"\d+(?:\.\d+)? ?(?:s|m|min|h|d)")
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def when(text: str, now: float) -> float:
    """``today``, ``monday`` (the last one), ``2026-09-01``, ``2026-09-01T10:00`` or ``7d`` (ago), in seconds since the epoch."""
    words = text.strip().lower()
    midnight = datetime.datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
    if words == "today":
        return midnight.timestamp()
    if words in _DAYS:
        back = (midnight.weekday() - _DAYS.index(words)) % 7
        return (midnight - datetime.timedelta(days=back)).timestamp()
    if _AGO.fullmatch(words):
        return now - seconds(words)
    try:
        return datetime.datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        raise Problem(
            f"“{text[:40]}” is no time; write today, monday, 2026-09-01, 2026-09-01T10:00 or 7d.", 2
        ) from None


@dataclass
class Line:
    """One line of a report."""

    what: str
    leases: int = 0
    hours: float = 0.0
    device_hours: float = 0.0
    memory_gib_hours: float = 0.0


_BY: dict[str, Callable[[HeldPart], str]] = {
    "person": lambda part: part.person,
    "course": lambda part: part.course or "(none)",
    "day": lambda part: datetime.date.fromtimestamp(part.begins).isoformat(),
    "lease": lambda part: part.lease,
}


def add_up(parts: Iterable[HeldPart], by: str) -> list[Line]:
    """A line for each person, course, day (on which a lease's part began) or lease, the largest first; days in order."""
    lines: dict[str, Line] = {}
    leases: dict[str, set[str]] = {}
    for part in parts:
        name = _BY[by](part)
        line = lines.setdefault(name, Line(name))
        leases.setdefault(name, set()).add(part.lease)
        line.leases = len(leases[name])
        line.hours += part.hours
        line.device_hours += part.device_hours
        line.memory_gib_hours += part.memory_hours
    if by == "day":
        return [lines[name] for name in sorted(lines)]
    return sorted(lines.values(), key=lambda line: (-line.device_hours, line.what))


def report(
    course: str,
    person: str,
    since: str,
    until: str,
    by: str,
    as_csv: bool,
    pool: str | None,
    state: Path | None,
    json: bool,
) -> None:
    """Add up and show."""
    if by not in _BY:
        raise Problem(f"A report has a line for each {', '.join(_BY)}; not {by[:40]}.", 2)
    now = time.time()
    begin, end = when(since, now), when(until, now) if until else 0.0
    lines = add_up(ask_admin(pool, state, lambda c: c.report(begin, end, course, person)), by)
    if json:
        print_json(lines)
        return
    rows = [
        {name: round(v, 4) if isinstance(v, float) else v for name, v in asdict(line).items()}
        for line in lines
    ]
    if as_csv:
        names = [by, *(name for name in Line.__dataclass_fields__ if name != "what")]
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(row.values() for row in rows)
        return
    right = ("Leases", "Hours", "Device-hours", "GiB-hours")
    table = make_table(by.capitalize(), *right, right=right)
    for line in lines:
        figures = (f"{x:.2f}" for x in (line.hours, line.device_hours, line.memory_gib_hours))
        table.add_row(line.what, str(line.leases), *figures)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table if lines else "Nothing was held in that time.")


# --- top ---


def top(every: float, times: int, pool: str | None, state: Path | None) -> None:
    """Devices, leases and queue, again and again."""
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
    held = make_table(*columns, right=("GPU", "Age"))
    for lease in leases:
        for piece in lease.slices:
            busy = before.get((lease.id, piece.device_id))
            before[lease.id, piece.device_id] = piece.usage.gpu_seconds
            share = "" if busy is None else f"{min(max(piece.usage.gpu_seconds - busy, 0) / every, 1):.0%}"
            held.add_row(
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
    parts: list[RenderableType] = [table, held if leases else "Nobody holds a slice."]
    if waiting:
        queue = make_table("Place", "Person", "Course", "Asks for", "Since", right=("Place", "Since"))
        for one in waiting:
            queue.add_row(
                str(one.position), one.holder.person, one.holder.course, asks(one.slice), age(one.since)
            )
        parts.append(queue)
    return Group(*parts)
