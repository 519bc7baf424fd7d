"""Lists of leases, as the database gives them while pools decide: on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from gpukernel.common.model import Lease
from gpukernel.pool.store.lease_queries import LeaseSelection
from gpukernel.pool.store.store import Store
from tests.pool.store.test_deciders import gone, grant
from tests.pool.store.test_device_reports import A, device, report


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    found = Store(database)
    found.clock.start()
    report(found, [device(0, A)])
    yield found
    found.close()


def test_a_lease_that_ends_while_a_list_is_read_is_in_it_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = grant(store, A, "pool")
    read, reads = LeaseSelection.read, 0

    def and_end(self: LeaseSelection, *words: Any, **others: Any) -> list[Lease]:
        nonlocal reads
        found = read(self, *words, **others)
        reads += 1
        if reads == 1:
            gone(store, lease, A)
        return found

    monkeypatch.setattr(LeaseSelection, "read", and_end)

    def work(db: sa.Connection) -> list[Lease]:
        return store.leases.all(include_ended=True, db=db)

    assert [one.id for one in asyncio.run(store.read(work))] == [lease]
    assert reads == 2
