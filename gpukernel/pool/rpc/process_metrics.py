"""Metrics of the parts that keep several pools one: servers and pools, fences, engines, decisions, commits, the change log, outages."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from gpukernel.pool.leases.manager import POOL_GRACE
from gpukernel.pool.store.counters import Counter, Counters
from gpukernel.pool.store.schema import IN_USE, devices, leases, pools, servers, slices, total

__all__ = ["Family", "part_families"]

Family = tuple[str, str, str, list[tuple[dict[str, str], float]]]
"""Name, kind, help, and samples with their labels."""

_COUNTED: tuple[tuple[Counter, str], ...] = (
    ("decisions", "Scheduling cycles of this pool."),
    ("decision_seconds", "Seconds that scheduling cycles of this pool took."),
    ("commit_waits", "Answers of this pool that waited until PostgreSQL had its commits on disk."),
    ("commit_wait_seconds", "Seconds that those answers waited."),
    ("changes_read", "Entries of the change log that this pool has read."),
    ("everything_read", "Times that this pool read everything in place of the change log."),
    ("database_outages", "Outages of the database that this pool has seen end."),
    ("database_errors", "Seconds in which this pool's clock had no answer of the database."),
)


def part_families(db: sa.Connection, counters: Counters, attached: int, steady: float) -> Iterator[Family]:
    """Yield what the database and this process know; `attached` agents speak to it, and `steady` is the time."""
    state = sa.case(
        (servers.c.away_since.is_not(None), "away"), (servers.c.draining, "draining"), else_="attached"
    )
    query = sa.select(state.label("state"), sa.func.count().label("number")).where(
        servers.c.forgotten.is_(False)
    )
    found = {row.state: row.number for row in db.execute(query.group_by(state))}
    yield (
        "gpukernel_servers",
        "gauge",
        "GPU servers, by whether their agent speaks to a pool.",
        [({"state": one}, float(found.get(one, 0))) for one in ("attached", "draining", "away")],
    )
    yield "gpukernel_agents", "gauge", "Agents that speak to this pool.", [({}, float(attached))]
    alive = sa.select(sa.func.count()).where(pools.c.seen >= steady - POOL_GRACE)
    yield (
        "gpukernel_pools",
        "gauge",
        "Pools that live on this database.",
        [({}, float(db.execute(alive).scalar_one()))],
    )
    unheard = sa.or_(slices.c.fenced_until.is_not(None), servers.c.away_since.is_not(None))
    fenced = (
        sa.select(total(slices.c.memory_bytes))
        .join(devices, devices.c.id == slices.c.device_id)
        .join(servers, servers.c.name == devices.c.server)
        .where(IN_USE, unheard)
    )
    yield (
        "gpukernel_fenced_bytes",
        "gauge",
        "Memory that is kept for workers that no agent answers for, until they cannot live any more.",
        [({}, float(db.execute(fenced).scalar_one() or 0))],
    )
    by = sa.select(leases.c.decided_by, sa.func.count().label("number")).where(leases.c.state != "ended")
    deciders = {row.decided_by: row.number for row in db.execute(by.group_by(leases.c.decided_by))}
    yield (
        "gpukernel_leases_by_decider",
        "gauge",
        "Leases that have not ended, by who chose their devices: the pool, or an engine that placed them.",
        [
            ({"decided_by": one}, float(deciders.get(one, 0)))
            for one in sorted({"pool", "kubernetes", "slurm", *deciders})
        ],
    )
    for name, help_ in _COUNTED:
        yield f"gpukernel_{name}_total", "counter", help_, [({}, counters.value(name))]
