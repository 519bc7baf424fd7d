"""The database's shape: made by migrations, from nothing or from what older pools left."""

from __future__ import annotations

from pathlib import Path

import alembic.command
import alembic.config
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from gpukernel.common.bounds import Account
from gpukernel.common.errors import PoolError
from gpukernel.pool.scheduling.pending_requests import PendingRequests
from gpukernel.pool.store import migrations, quota_usage, schema
from gpukernel.pool.store.database import NEWEST, open_database
from gpukernel.pool.store.store import Store
from gpukernel.pool.store.usage_log import held_between

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
    (lease,) = store.leases.all()
    assert (lease.id, lease.state, lease.epoch) == ("one", "live", 7)
    assert {one.id: one.mode for one in store.leases.all(include_ended=True)} == {
        "one": "remote",
        "old": "direct",
    }
    with store.deciding() as (db, row):
        assert row.epoch == 7
        standings = {s.account: s for s in quota_usage.all_standings(db, store.policy.current(), 1000.0)}
    assert set(standings) == {
        Account("pool"),
        Account("course", "ml101"),
        Account("member", "ml101", "anna"),
        Account("person", person="anna"),
    }
    assert {(s.share, s.memory, s.leases) for s in standings.values()} == {(500_000, 16 * 2**30, 1)}
    store.leases.end("one", "done", 1100.0)
    store.leases.worker_gone("one", "s/0", "done", 1100.0)
    with store.deciding() as (db, _):
        assert {s.share for s in quota_usage.all_standings(db, store.policy.current(), 1100.0)} == {0}
    assert store.devices.all()[0].promised_bytes == 0
    store.close()


# What gpukernel 0.1 last wrote under names that 0012 changes.
PREVIOUS = """
INSERT INTO servers (name, pool) VALUES ('s', 'p');
INSERT INTO devices (id, server, "index", name, memory_bytes, promised_bytes, compute_capability, multiprocessors, available)
  VALUES ('s/0', 's', 0, 'Tesla V100', 34359738368, 17179869184, '7.0', 80, true);
INSERT INTO courses (name) VALUES ('ml101');
INSERT INTO leases (id, "key", person, server, course, description, secret, state, epoch, created, expires, ttl_seconds, share,
  memory_bytes, ended, end_reason)
  VALUES ('one', 'k', 'anna', 'host', 'ml101', '', 'ff', 'live', 7, 1000.0, 1020.0, 20.0, 500000, 17179869184, 0.0, '');
INSERT INTO slices (lease_id, ordinal, device_id, memory_bytes, weight, worker, endpoints, memory_used_bytes, memory_peak_bytes,
  cuda_calls, launches, gpu_seconds, connections, idle_seconds)
  VALUES ('one', 0, 's/0', 17179869184, 0.5, 'ready', 'unix:/x', 0, 0, 0, 0, 0.0, 0, 0.0);
INSERT INTO spans (lease_id, begins, ends, share, memory_bytes) VALUES ('one', 1000.0, NULL, 500000, 17179869184);
INSERT INTO accounts (kind, course, person, share_held, memory_held, leases_held, settled, spent_day)
  VALUES ('pool', '', '', 500000, 17179869184, 1, 1000.0, 42.0);
INSERT INTO accounts (kind, course, person, share_held, memory_held, leases_held, settled)
  VALUES ('course', 'ml101', '', 500000, 17179869184, 1, 1000.0);
INSERT INTO accounts (kind, course, person, share_held, memory_held, leases_held, settled)
  VALUES ('member', 'ml101', 'anna', 500000, 17179869184, 1, 1000.0);
INSERT INTO accounts (kind, course, person, share_held, memory_held, leases_held, settled)
  VALUES ('person', '', 'anna', 500000, 17179869184, 1, 1000.0);
INSERT INTO reservations VALUES ('r1', 'ml101', '01234', '', 540, 600, 1.0, 'V100', false);
INSERT INTO pins VALUES ('r1', 's/0', 34359738368, 5000.0);
INSERT INTO requests (key, ticket, person, server, course, role, description, share, memory_bytes, devices, model, ttl_seconds,
  size, since, pool, seen) VALUES ('w', 3, 'ben', '', 'ml101', 'student', '', 0.5, NULL, 1, '', 20.0, 500000, 900.0, 'p', 1000.0);
UPDATE ledger SET epoch = 7, ticket = 3, line_version = 11, devices_version = 12, rules_version = 13
"""


def test_a_database_of_the_previous_version_keeps_every_row_under_the_new_names(database: str) -> None:
    config = alembic.config.Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    engine = plain_engine(database)
    with engine.begin() as db:
        config.attributes["connection"] = db
        alembic.command.upgrade(config, "0011_indices")
        for statement in PREVIOUS.split(";\n"):
            db.exec_driver_sql(statement)
    engine.dispose()

    store = Store(database)
    with store.deciding() as (db, row):
        assert (row.epoch, row.ticket) == (7, 3)
        assert (row.queue_version, row.devices_version, row.policy_version) == (11, 12, 13)
        policy = store.policy.current(db)
        standings = {s.account: s for s in quota_usage.all_standings(db, policy, 1000.0)}
        assert {(s.share, s.memory, s.leases) for s in standings.values()} == {(500_000, 16 * 2**30, 1)}
        assert standings[Account("pool")].spent[0] == 42.0
        (use,) = held_between(db, 1000.0, 4600.0)
        assert (use.lease, use.person, use.device_hours) == ("one", "anna", 0.5)
        placement = db.execute(sa.select(schema.reservation_placements)).one()
        assert tuple(placement) == ("r1", "s/0", 32 * 2**30, 5000.0)
        tables = set(sa.inspect(db).get_table_names())
        assert not tables & {"accounts", "spans", "pins"}
    # The lease lives on, and its end settles the usage.
    store.leases.end("one", "done", 1100.0)
    store.leases.worker_gone("one", "s/0", "done", 1100.0)
    with store.deciding() as (db, _):
        assert {s.share for s in quota_usage.all_standings(db, policy, 1100.0)} == {0}
        assert db.execute(sa.select(schema.usage_log.c.ends)).scalar() == 1100.0
    # Who waited still waits.
    queue = PendingRequests(store, "other")
    with store.deciding() as (db, row):
        queue.refresh(db, row.queue_version)
    assert {request.holder.person: request.ticket for request in queue.by_key.values()} == {"ben": 3}
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


def test_an_error_of_the_database_does_not_show_what_was_written(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path}/pool.db")
    with engine.begin() as db, pytest.raises(sa.exc.StatementError) as error:
        db.execute(schema.leases.insert().values(id="a", secret="hidden-secret"))
    assert "hidden-secret" not in str(error.value)
    engine.dispose()
