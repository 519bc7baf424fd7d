"""A pool that stands still with a lock, where PostgreSQL's own time limit does not count, holds the others up no longer than they wait."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from gpukernel.pool.store import database
from gpukernel.pool.store.connection import frozen
from gpukernel.pool.store.connection.frozen import FrozenPools
from gpukernel.pool.store.store import Store

_numbers = count()

_STANDS = """
import contextlib, os, signal, sys
import psycopg
from gpukernel.pool.store.database import is_away
from gpukernel.pool.store.store import Store
import sqlalchemy as sa

store, how = Store(sys.argv[1]), sys.argv[2]
pipeline = psycopg.Connection.pipeline

def stand():
    print("stands", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

@contextlib.contextmanager
def unsent(connection):
    with pipeline(connection) as it:
        yield it
        stand()  # what was executed is sent, and its end is not

try:
    if how == "between two messages":
        psycopg.Connection.pipeline = unsent
    with store.deciding() as (db, row):
        # As if PostgreSQL's own limit were late.
        db.exec_driver_sql("SET idle_in_transaction_session_timeout = 0")
        stand()
        db.exec_driver_sql("SELECT 1")
except sa.exc.DBAPIError as error:
    assert is_away(error), error
    print("was ended", flush=True)
psycopg.Connection.pipeline = pipeline
with store.deciding() as (db, row):
    store.next_epoch(db)
print("goes on", flush=True)
"""


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "EVERY_SECONDS", 0.2)
    monkeypatch.setattr(frozen, "ACTIVE_SECONDS", 1.0)
    monkeypatch.setattr(frozen, "IDLE_SECONDS", 1.0)


@pytest.fixture
def superuser(new_postgresql: Callable[..., str]) -> str:
    return new_postgresql()


@pytest.fixture
def url(superuser: str) -> Iterator[str]:
    """A database as a pool has it: its role is nobody's superuser."""
    engine = sa.create_engine(
        superuser.replace("postgresql:", "postgresql+psycopg:"),
        isolation_level="AUTOCOMMIT",
        poolclass=sa.NullPool,
    )
    name, owner = f"login{next(_numbers)}", f"owner{next(_numbers)}"
    with engine.connect() as db:
        for statement in (
            f"CREATE ROLE {owner}",
            f"CREATE ROLE {name} LOGIN IN ROLE {owner}",
            f"GRANT ALL ON SCHEMA public TO {owner}",
        ):
            db.execute(sa.text(statement))
    address = (
        superuser.replace("postgresql://pool@", f"postgresql://{name}@") + f"&options=-c%20role%3D{owner}"
    )
    yield address
    with engine.connect() as db:
        for statement in (
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{name}'",
            f"DROP OWNED BY {owner} CASCADE",
            f"DROP ROLE {name}",
            f"DROP ROLE {owner}",
        ):
            db.execute(sa.text(statement))


@pytest.fixture
def connect(url: str) -> Iterator[Callable[[], sa.Connection]]:
    store = Store(url)
    yield store.engine.connect
    store.close()


@pytest.mark.parametrize("role", ["plain", "with a role of its own"])
@pytest.mark.parametrize("how", ["between two messages", "between two statements"])
def test_a_pool_that_stands_still_with_the_lock_is_ended_and_goes_on_later(
    url: str, superuser: str, how: str, role: str, hurried: None
) -> None:
    url = superuser if role == "plain" else url
    store = Store(url)
    other = subprocess.Popen([sys.executable, "-c", _STANDS, url, how], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "stands\n"
        store.frozen_pools.watch()
        with store.deciding() as (db, row):
            assert store.next_epoch(db) == row.epoch + 1
        other.send_signal(signal.SIGCONT)
        said, _ = other.communicate(timeout=60)
        assert said == "was ended\ngoes on\n"
        with store.deciding() as (_, now):
            assert now.epoch == row.epoch + 2
    finally:
        other.kill()
        other.wait()
        store.close()


def test_nobody_is_ended_whom_the_pool_may_not_see(
    superuser: str, connect: Callable[[], sa.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frozen, "IDLE_SECONDS", 0.1)
    looks = FrozenPools(connect)
    with psycopg.connect(superuser, application_name="gpukernel-pool") as administrator:
        administrator.execute("SELECT * FROM ledger FOR UPDATE")
        for _ in range(3):
            time.sleep(0.2)
            looks.look()
        assert administrator.execute("SELECT 1").fetchone() == (1,)


def test_looks_that_fail_are_said_once_and_go_on(
    connect: Callable[[], sa.Connection], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[None]()

    def fails() -> sa.Connection:
        tried.append(None)
        raise RuntimeError("nobody is there")

    monkeypatch.setattr(frozen, "EVERY_SECONDS", 0.02)
    looks = FrozenPools(fails)
    looks.watch()
    end = time.monotonic() + 30
    while len(tried) < 3:
        assert time.monotonic() < end
    looks.close()
    assert [one.message for one in caplog.records] == ["cannot look for frozen pools: nobody is there"]


def in_a_pipeline(url: str, name: str = "gpukernel-pool") -> psycopg.Connection[Any]:
    """A connection with the ledger's lock, between two messages."""
    one = psycopg.connect(url, application_name=name)
    one.pgconn.enter_pipeline_mode()
    for text in (b"BEGIN", b"SELECT epoch FROM ledger FOR UPDATE"):
        one.pgconn.send_query_params(text, None)
    one.pgconn.send_flush_request()
    one.pgconn.flush()
    return one


@pytest.fixture
def watcher(superuser: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection that sees every session."""
    with psycopg.connect(superuser, autocommit=True) as one:
        yield one


def is_there(watcher: psycopg.Connection[Any], pid: int) -> bool:
    return bool(watcher.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]).fetchall())


def waits(watcher: psycopg.Connection[Any], pid: int, seconds: float) -> None:
    """Wait until PostgreSQL has waited for this client for so long."""
    asked = """
        SELECT 1 FROM pg_stat_activity
        WHERE pid = %s AND clock_timestamp() - state_change > make_interval(secs => %s) AND wait_event_type = 'Client'
    """
    end = time.monotonic() + 30
    while not watcher.execute(asked, [pid, seconds]).fetchall():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_nobody_is_ended_who_moves_between_two_looks(
    url: str,
    connect: Callable[[], sa.Connection],
    watcher: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frozen, "ACTIVE_SECONDS", 0.3)
    one = in_a_pipeline(url)
    pid = one.pgconn.backend_pid
    looks = FrozenPools(connect)
    for _ in range(3):
        waits(watcher, pid, 0.3)
        looks.look()
        one.pgconn.send_query_params(b"SELECT 'moved'", None)
        one.pgconn.send_flush_request()
        one.pgconn.flush()
        answer = None  # there is one to each statement before, and none between two
        while answer is None or not answer.ntuples or answer.get_value(0, 0) != b"moved":
            answer = one.pgconn.get_result()
    waits(watcher, pid, 0.3)
    looks.look()
    assert is_there(watcher, pid)
    looks.look()
    end = time.monotonic() + 30
    while is_there(watcher, pid):
        assert time.monotonic() < end
    one.close()


def test_nobody_is_ended_who_is_no_pool_or_has_not_stood_for_long(
    url: str,
    connect: Callable[[], sa.Connection],
    watcher: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other, reads = in_a_pipeline(url, "psql"), psycopg.connect(url, application_name="gpukernel-pool")
    reads.execute("SELECT 1")  # in a transaction that has written nothing
    pids = [one.pgconn.backend_pid for one in (other, reads)]
    monkeypatch.setattr(frozen, "ACTIVE_SECONDS", 0.1)
    monkeypatch.setattr(frozen, "IDLE_SECONDS", 0.1)
    for pid in pids:
        waits(watcher, pid, 0.1)
    looks = FrozenPools(connect)
    looks.look(), looks.look()
    assert all(is_there(watcher, pid) for pid in pids)
    for one in (other, reads):
        one.close()
    monkeypatch.undo()
    computes = psycopg.connect(url, application_name="gpukernel-pool")
    computes.execute("SELECT epoch FROM ledger FOR UPDATE")
    waits(watcher, computes.info.backend_pid, frozen.ACTIVE_SECONDS + 0.5)
    looks.look(), looks.look()
    assert is_there(watcher, computes.info.backend_pid)
    computes.rollback()
    short = in_a_pipeline(url)
    waits(watcher, short.pgconn.backend_pid, 0.1)
    looks.look(), looks.look()
    assert is_there(watcher, short.pgconn.backend_pid)
    for one in (computes, short):
        one.close()


def test_a_migration_that_computes_is_no_frozen_pool(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = list[str]()

    def upgrade(config: Any, _: str) -> None:
        found = config.attributes["connection"].execute(sa.text("SELECT current_setting('application_name')"))
        names.append(found.scalar_one())

    monkeypatch.setattr(database.alembic.command, "upgrade", upgrade)
    engine = database.open_database(url)
    with engine.connect() as db:
        names.append(db.execute(sa.text("SELECT current_setting('application_name')")).scalar_one())
    engine.dispose()
    assert names == ["gpukernel-migration", "gpukernel-pool"]
