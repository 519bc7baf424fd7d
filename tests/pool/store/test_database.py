"""The database's shape: made by migrations, from nothing or from what older pools left."""

from __future__ import annotations

from pathlib import Path

import alembic.command
import alembic.config
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

import gpukernel.pool.store as store_package
from gpukernel.common.bounds import Account
from gpukernel.common.errors import PoolError
from gpukernel.pool.scheduling.pending_requests import PendingRequests
from gpukernel.pool.store import quota_usage, schema
from gpukernel.pool.store.database import NEWEST, database_url, open_database
from gpukernel.pool.store.store import Store
from gpukernel.pool.store.usage_log import held_between
from tests.pool.store.older_databases import make_old, make_previous, plain_engine


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


def test_a_database_of_the_previous_version_keeps_every_row_under_the_new_names(database: str) -> None:
    make_previous(database)
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


def test_the_newest_migration_goes_back_and_forth(database: str) -> None:
    make_previous(database)
    engine = open_database(database)
    config = alembic.config.Config()
    config.set_main_option("script_location", str(Path(str(store_package.__file__)).parent / "migrations"))
    config.set_main_option("recursive_version_locations", "true")

    def columns() -> dict[str, set[str]]:
        shape = sa.inspect(engine)
        return {table: {c["name"] for c in shape.get_columns(table)} for table in shape.get_table_names()}

    newest = columns()
    with engine.begin() as db:
        config.attributes["connection"] = db
        alembic.command.downgrade(config, "0023_ceilings")
    gone = {table: names - columns()[table] for table, names in newest.items() if names != columns()[table]}
    assert gone == {
        "leases": {"priority", "gives_way", "gives_way_to", "gives_way_for"},
        "ledger": {"half_life", "notice", "least_run"},
        "quota_usage": {"recent", "interactive_held", "interactive_ceiling"},
        "quotas": {"interactive"},
        "requests": {"priority", "claims", "claims_from"},
        "tokens": {"announced", "made_with"},
    }
    engine.dispose()
    engine = open_database(database)
    assert columns() == newest
    with engine.connect() as db:
        assert db.execute(sa.select(schema.leases.c.priority)).scalars().all() == ["interactive"]
        # What is held counts as interactive, so that its end can take it away again.
        held = db.execute(sa.select(schema.quota_usage)).all()
        assert {row.interactive_held for row in held} == {row.share_held for row in held} == {500_000}
    engine.dispose()


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


def test_the_address_may_be_in_a_file_which_no_environment_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUKERNEL_DATABASE", raising=False)
    file = tmp_path / "url"
    monkeypatch.setenv("GPUKERNEL_DATABASE_FILE", str(file))
    file.write_text("postgresql://pool:secret@db/pool\nand a remark\n")
    assert database_url(tmp_path) == "postgresql://pool:secret@db/pool"
    for text, said in (("\n", "first line is empty"), (None, "cannot be read: No such file")):
        file.write_text(text) if text else file.unlink()
        with pytest.raises(PoolError, match=said):
            database_url(tmp_path)
    file.write_bytes(b"\xff")
    with pytest.raises(PoolError, match="it is no text"):
        database_url(tmp_path)
    monkeypatch.setenv("GPUKERNEL_DATABASE", "postgresql://db/pool")
    with pytest.raises(PoolError, match="exclude each other"):
        database_url(tmp_path)


def test_an_address_that_is_none_is_refused_without_its_password() -> None:
    with pytest.raises(PoolError, match="no database") as refused:
        open_database("postgresql//pool:hunter2@db/pool")
    assert "hunter2" not in str(refused.value)


def test_a_sqlite_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlite3.dbapi2.sqlite_version_info", (3, 34, 1))
    with pytest.raises(PoolError, match=r"needs SQLite 3\.35 or newer, and this Python has 3\.34\.1"):
        open_database(f"sqlite:///{tmp_path}/pool.db")
