"""The database's shape: made by migrations, from nothing or from what older pools left."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from gpukernel.pool import accounts, schema
from gpukernel.pool.database import NEWEST, open_database
from gpukernel.pool.errors import PoolError
from gpukernel.pool.quota import Account
from gpukernel.pool.store import Store

# What gpukernel 0.1 made with `metadata.create_all`, without a word about its version.
OLD = """
CREATE TABLE devices (id VARCHAR NOT NULL, server VARCHAR NOT NULL, "index" INTEGER NOT NULL, name VARCHAR NOT NULL,
  memory_bytes BIGINT NOT NULL, promised_bytes BIGINT NOT NULL, compute_capability VARCHAR NOT NULL, multiprocessors INTEGER NOT NULL,
  PRIMARY KEY (id), CONSTRAINT never_promised_twice CHECK (promised_bytes >= 0 AND promised_bytes <= memory_bytes));
CREATE INDEX ix_devices_server ON devices (server);
CREATE TABLE leases (id VARCHAR NOT NULL, "key" VARCHAR NOT NULL, person VARCHAR NOT NULL, server VARCHAR NOT NULL,
  course VARCHAR NOT NULL, description VARCHAR NOT NULL, secret VARCHAR NOT NULL, state VARCHAR NOT NULL, epoch BIGINT NOT NULL,
  created FLOAT NOT NULL, expires FLOAT NOT NULL, ttl_seconds FLOAT NOT NULL, ended FLOAT NOT NULL, end_reason VARCHAR NOT NULL,
  PRIMARY KEY (id), CONSTRAINT known_state CHECK (state IN ('starting', 'live', 'ending', 'ended')));
CREATE UNIQUE INDEX one_living_lease_a_key ON leases ("key") WHERE state <> 'ended';
CREATE TABLE slices (lease_id VARCHAR NOT NULL, ordinal INTEGER NOT NULL, device_id VARCHAR NOT NULL, memory_bytes BIGINT NOT NULL,
  weight FLOAT NOT NULL, worker VARCHAR NOT NULL, endpoints VARCHAR NOT NULL, memory_used_bytes BIGINT NOT NULL,
  memory_peak_bytes BIGINT NOT NULL, cuda_calls BIGINT NOT NULL, launches BIGINT NOT NULL, gpu_seconds FLOAT NOT NULL,
  connections INTEGER NOT NULL, idle_seconds FLOAT NOT NULL, PRIMARY KEY (lease_id, ordinal),
  CONSTRAINT known_worker CHECK (worker IN ('starting', 'ready', 'gone')),
  FOREIGN KEY(lease_id) REFERENCES leases (id), FOREIGN KEY(device_id) REFERENCES devices (id));
CREATE INDEX ix_slices_device_id ON slices (device_id);
INSERT INTO devices VALUES ('s/0', 's', 0, 'Tesla V100', 34359738368, 17179869184, '7.0', 80);
INSERT INTO leases VALUES ('one', 'k', 'anna', 'host', 'ml101', '', 'ff', 'live', 7, 1000.0, 1020.0, 20.0, 0.0, '');
INSERT INTO leases VALUES ('old', 'j', 'ben', 'host', '', '', 'ee', 'ended', 6, 900.0, 920.0, 20.0, 930.0, 'released');
INSERT INTO slices VALUES ('one', 0, 's/0', 17179869184, 0.5, 'ready', 'unix:/x', 0, 0, 0, 0, 0.0, 0, 0.0);
INSERT INTO slices VALUES ('old', 0, 's/0', 17179869184, 0.5, 'gone', 'direct:/x', 0, 0, 0, 0, 0.0, 0, 0.0);
"""


def plain_engine(url: str) -> sa.Engine:
    return sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))


def make_old(url: str) -> None:
    engine = plain_engine(url)
    with engine.begin() as db:
        for statement in OLD.split(";\n"):
            if statement.strip():
                db.exec_driver_sql(statement)
    engine.dispose()


@pytest.mark.parametrize("before", ["nothing", "old"])
def test_migrations_make_exactly_the_tables_that_the_code_knows(database: str, before: str) -> None:
    if before == "old":
        make_old(database)
    engine = open_database(database)
    with engine.connect() as db:
        context = MigrationContext.configure(db, opts={"compare_type": True, "compare_server_default": False})
        assert compare_metadata(context, schema.metadata) == []
        assert context.get_current_revision() == NEWEST
    engine.dispose()


def test_leases_of_an_older_pool_live_on_and_count_in_every_quota(database: str) -> None:
    make_old(database)
    store = Store(database)
    (lease,) = store.leases()
    assert (lease.id, lease.state, lease.epoch) == ("one", "live", 7)
    assert {one.id: one.mode for one in store.leases(include_ended=True)} == {
        "one": "remote",
        "old": "direct",
    }
    with store.deciding() as (db, row):
        assert row.epoch == 7
        standings = {s.account: s for s in accounts.all_standings(db, store.rules(), 1000.0)}
    assert set(standings) == {
        Account("pool"),
        Account("course", "ml101"),
        Account("member", "ml101", "anna"),
        Account("person", person="anna"),
    }
    assert {(s.share, s.memory, s.leases) for s in standings.values()} == {(500_000, 16 * 2**30, 1)}
    store.end("one", "done", 1100.0)
    store.worker_gone("one", "s/0", "done", 1100.0)
    with store.deciding() as (db, _):
        assert {s.share for s in accounts.all_standings(db, store.rules(), 1100.0)} == {0}
    assert store.devices()[0].promised_bytes == 0
    store.close()


def test_opening_twice_changes_nothing(database: str) -> None:
    for _ in range(2):
        Store(database).close()


def test_a_database_of_a_newer_pool_is_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/pool.db"
    Store(url).close()
    engine = plain_engine(url)
    with engine.begin() as db:
        db.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(PoolError, match="changed by a newer gpukernel"):
        Store(url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense", "is no database"),
        ("sqlite:////nowhere/at/all/pool.db", "cannot be used"),
        ("postgresql://x@/y?host=/nowhere", "cannot be used"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_sentence(url: str, words: str) -> None:
    with pytest.raises(PoolError, match=words):
        open_database(url)
