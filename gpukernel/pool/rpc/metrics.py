"""Metrics for Prometheus, read from the database when they are asked for (text format 0.0.4), and probes for whoever watches the pool.

``GET /metrics`` names devices and courses, and no person.  ``GET /livez`` answers where the pool decides, ``GET /readyz`` where its
database answers too; neither says anything else.

Guarantee: whoever asks, and however often, the pool works on it once in `FRESH_SECONDS` for each path, and on one answer of it at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from gpukernel.common.bounds import MILLION
from gpukernel.common.errors import PoolError
from gpukernel.common.model import Device, Waiting
from gpukernel.common.policy import Policy
from gpukernel.pool.domain.quota import PERIODS
from gpukernel.pool.doors.crossing import answer
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.rpc.process_metrics import part_families
from gpukernel.pool.store import quota_usage
from gpukernel.pool.store.schema import IN_USE, leases, ledger, slices, total
from gpukernel.pool.store.store import Store

__all__ = ["Known", "exposition", "known", "serve_metrics"]

LONGEST_REQUEST = 8192
PATIENCE_SECONDS = 5.0
CONNECTIONS = 32
FRESH_SECONDS = 1.0
"""The time from its beginning for which an answer is everybody's."""

Sample = tuple[dict[str, str], float]


@dataclass(frozen=True)
class Known:
    """The figures that the lease manager knows, read in its own loop."""

    now: float
    policy: Policy
    devices: list[Device]
    waiting: list[Waiting]
    steady: float
    agents: int


def known(manager: LeaseManager) -> Known:
    """Read what the lease manager knows; to be called in its loop."""
    return Known(
        manager.now(),
        manager.policy(),
        manager.devices(),
        manager.waiting(),
        manager.steady(),
        len(manager.orders.servers()),
    )


def exposition(store: Store, known: Known) -> str:
    """Return all metrics in Prometheus' text format; it reads the database, so call it in a thread."""
    return "".join(_family(*family) for family in _families(store, known))


def _ask(store: Store) -> None:
    """Ask the database for next to nothing."""
    with store.reader.connect() as db:
        db.execute(sa.select(sa.literal(1)))


class _Answer:
    """The answer to one path, made once for all who ask while it is made or is fresh."""

    def __init__(self, make: Callable[[], Awaitable[str]]) -> None:
        self._make = make
        self._made: asyncio.Future[str] | None = None
        self._since = 0.0

    async def get(self) -> str:
        """Return it; raises what its making raised."""
        now = asyncio.get_running_loop().time()
        if self._made is None or (self._made.done() and now - self._since >= FRESH_SECONDS):
            self._made, self._since = asyncio.ensure_future(self._make()), now
            self._made.add_done_callback(lambda made: made.cancelled() or made.exception())
        return await asyncio.shield(self._made)  # who is gone ends it for nobody else

    def end(self) -> None:
        """Wait for it no more."""
        if self._made is not None:
            self._made.cancel()


def _family(name: str, kind: str, help_: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inner = ",".join(f'{key}="{_quoted(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{inner}}} {value!r}" if inner else f"{name} {value!r}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _device_families(
    devices: Sequence[Device], used: Mapping[str, int]
) -> Iterator[tuple[str, str, str, list[Sample]]]:
    labels = {
        d.id: {"device": d.label, "server": d.server, "model": d.name} | ({"uuid": d.uuid} if d.uuid else {})
        for d in devices
    }

    def of_devices(figure: Any) -> list[Sample]:
        return [(labels[d.id], float(figure(d))) for d in devices]

    yield (
        "gpukernel_device_memory_bytes",
        "gauge",
        "Memory of a device.",
        of_devices(lambda d: d.memory_bytes),
    )
    yield (
        "gpukernel_device_promised_bytes",
        "gauge",
        "Memory of a device that belongs to leases.",
        of_devices(lambda d: d.promised_bytes),
    )
    yield (
        "gpukernel_device_used_bytes",
        "gauge",
        "Memory of a device that programs have allocated.",
        of_devices(lambda d: used.get(d.id, 0)),
    )
    yield "gpukernel_device_leases", "gauge", "Leases on a device.", of_devices(lambda d: d.leases)
    yield (
        "gpukernel_device_available",
        "gauge",
        "1 where a device may have leases of whoever decides over it; 0 where it is away, drained or broken.",
        of_devices(lambda d: d.works),
    )
    yield (
        "gpukernel_device_decided_by",
        "gauge",
        "1 for the decider of a device: the pool, or an engine that places there.",
        [(labels[d.id] | {"decided_by": d.decided_by}, 1.0) for d in devices],
    )


def _families(store: Store, known: Known) -> Iterator[tuple[str, str, str, list[Sample]]]:
    now, policy = known.now, known.policy
    with store.reader.connect() as db:
        epoch = db.execute(sa.select(ledger.c.epoch)).scalar_one()
        count = sa.select(leases.c.state, sa.func.count()).where(leases.c.state != "ended")
        by_state = {row[0]: row[1] for row in db.execute(count.group_by(leases.c.state))}
        taken = sa.select(slices.c.device_id, total(slices.c.memory_used_bytes))
        taken = taken.where(IN_USE).group_by(slices.c.device_id)
        used = {row[0]: row[1] for row in db.execute(taken)}
        standings = [s for s in quota_usage.all_standings(db, policy, now) if s.account.kind == "course"]
        parts = list(part_families(db, store.counters, known.agents, known.steady))
    devices, waiting = known.devices, known.waiting
    yield from _device_families(devices, used)
    yield from parts
    states = ("starting", "live", "ending")
    yield (
        "gpukernel_leases",
        "gauge",
        "Leases that have not ended, by state.",
        [({"state": state}, float(by_state.get(state, 0))) for state in states],
    )
    yield "gpukernel_grants_total", "counter", "Leases that were ever granted.", [({}, float(epoch))]
    names = sorted(
        {s.account.course for s in standings} | {w.holder.course for w in waiting} | set(policy.courses)
    )
    held = {s.account.course: s for s in standings}
    counts = {name: sum(w.holder.course == name for w in waiting) for name in names}
    yield (
        "gpukernel_waiting",
        "gauge",
        "Requests that wait, by course.",
        [({"course": name}, float(counts[name])) for name in names],
    )
    yield (
        "gpukernel_longest_wait_seconds",
        "gauge",
        "How long the first of those who wait has waited.",
        [({}, max((now - w.since for w in waiting), default=0.0))],
    )
    yield (
        "gpukernel_course_devices",
        "gauge",
        "Devices' worth that a course holds.",
        [({"course": name}, held[name].share / MILLION if name in held else 0.0) for name in names],
    )
    yield (
        "gpukernel_course_devices_quota",
        "gauge",
        "Devices' worth that a course may hold; missing where it is not bounded.",
        [
            ({"course": name}, bound)
            for name in names
            if name in held and (bound := held[name].bounds.devices) is not None
        ],
    )
    yield (
        "gpukernel_course_device_hours",
        "gauge",
        "Device-hours of a course in this day, week and term.",
        [
            ({"course": name, "period": period}, spent / 3600)
            for name in names
            if name in held
            for period, spent in zip(PERIODS, held[name].spent, strict=True)
        ],
    )


@contextlib.asynccontextmanager
async def serve_metrics(
    address: str, store: Store, manager: LeaseManager, deciding: asyncio.AbstractEventLoop
) -> AsyncIterator[None]:
    """Answer ``GET /metrics``, ``/livez`` and ``/readyz`` over HTTP at ``HOST:PORT`` for as long as the context lasts; `deciding` is the manager's loop.

    At most `CONNECTIONS` are open at a time, each for `PATIENCE_SECONDS`; the oldest goes for a new one.  An answer may be `FRESH_SECONDS` old.

    Raises
    ------
    PoolError
        When the address cannot be listened on.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise PoolError(f"“{address[:60]}” is no address for metrics; write HOST:PORT.")

    there: dict[asyncio.StreamWriter, None] = {}

    async def figures() -> Known:
        return known(manager)

    async def decides() -> str:
        return "ok\n"

    async def metrics() -> str:
        return await asyncio.to_thread(exposition, store, await answer(deciding, figures))

    async def alive() -> str:
        return await answer(deciding, decides)

    async def ready() -> str:
        said = await alive()
        await asyncio.to_thread(_ask, store)
        return said

    answers = {b"/metrics": _Answer(metrics), b"/livez": _Answer(alive), b"/readyz": _Answer(ready)}

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(there) >= CONNECTIONS:
            oldest = next(iter(there))
            del there[oldest]
            oldest.transport.abort()
        there[writer] = None
        try:
            await respond(reader, writer)
        finally:
            there.pop(writer, None)

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            async with asyncio.timeout(PATIENCE_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                words = head.split(b"\r\n", 1)[0].split()
                path = words[1].split(b"?")[0] if len(words) == 3 and words[0] == b"GET" else b""
                status, body = "404 Not Found", "The figures are at /metrics.\n"
                if path in answers:
                    try:
                        status, body = "200 OK", await answers[path].get()
                    except sa.exc.SQLAlchemyError:
                        status, body = "503 Service Unavailable", "The database does not answer.\n"
                data = body.encode()
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                    f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode()
                )
                writer.write(data)
                await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(visit, host.strip("[]"), int(port), limit=LONGEST_REQUEST)
    except OSError as error:
        raise PoolError(f"Metrics cannot be served at {address}: {error.strerror or error}.") from None
    try:
        async with server:
            yield
    finally:
        for one in answers.values():
            one.end()
