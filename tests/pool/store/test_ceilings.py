"""A ceiling lends no more than its reserve, whoever asks, as the database keeps it: on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpukernel.common.model import Holder
from gpukernel.pool.domain.placement import MIB, Placement
from gpukernel.pool.store.database import Conflict
from gpukernel.pool.store.store import Store
from tests.pool.store.test_device_reports import A, device, report

NOW = 1000.0
GIB = 2**30


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    found = Store(database)
    found.clock.start()
    report(found, [device(0, A)])
    found.deciders.delegate("s/0", "slurm", "root", NOW)
    yield found
    found.close()


def grant(store: Store, key: str, size: int, *, ceiling: bool = False, within: str = "") -> str:
    """Write a lease down with no question asked."""
    (one,) = store.devices.all()
    with store.deciding() as (db, row):
        policy = store.policy.current(db, row.policy_version)
        return store.leases.grant(
            db, policy, key, Holder("anna"), "", [Placement(one, size)], 20, 0.0, NOW, NOW,
            decided_by="slurm", ceiling=ceiling, within=within,
        ).id  # fmt: skip


def test_the_database_refuses_what_the_reserve_does_not_have(store: Store) -> None:
    pod = grant(store, "pod", GIB, ceiling=True)  # of which its own worker has 1 MiB
    inside = grant(store, "one", GIB - 101 * MIB, within=pod)
    with pytest.raises(Conflict):
        grant(store, "two", 101 * MIB, within=pod)
    assert grant(store, "three", 100 * MIB, within=pod)
    with pytest.raises(Conflict):
        grant(store, "four", MIB, within=pod)
    with pytest.raises(Conflict):
        grant(store, "five", MIB, within=inside)  # no ceiling


def test_two_pools_that_lend_at_once_lend_what_there_is(store: Store, database: str) -> None:
    pod = grant(store, "pod", GIB, ceiling=True)

    def lends(pool: int) -> int:
        own, granted = Store(database), 0
        for number in range(12):
            try:
                grant(own, f"{pool}-{number}", 100 * MIB, within=pod)
            except Conflict:
                continue
            granted += 1
        own.close()
        return granted

    with ThreadPoolExecutor(2) as both:
        assert sum(both.map(lends, (1, 2))) == 10
