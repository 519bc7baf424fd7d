"""A pool that stands still with a lock, where PostgreSQL's own time limit does not count, holds the others up no longer than they wait."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from gpukernel.pool.store import database
from gpukernel.pool.store.connection import frozen
from gpukernel.pool.store.connection.frozen import FrozenPools
from gpukernel.pool.store.store import Store

_STANDS = """
import contextlib, os, signal, sys
import psycopg
from gpukernel.pool.store.database import is_away
from gpukernel.pool.store.store import Store
import sqlalchemy as sa

store, how = Store(sys.argv[1]), sys.argv[2]

pipeline = psycopg.Connection.pipeline

@contextlib.contextmanager
def unsent(connection):
    with pipeline(connection) as it:
        yield it
        print("stands", flush=True)  # what was executed is sent, and its end is not
        os.kill(os.getpid(), signal.SIGSTOP)

try:
    if how == "between two messages":
        psycopg.Connection.pipeline = unsent
    with store.deciding() as (db, row):
        if how == "between two statements":  # as if PostgreSQL's limit were late
            db.exec_driver_sql("SET idle_in_transaction_session_timeout = 0")
        print("stands", flush=True)
        if how == "between two statements":
            os.kill(os.getpid(), signal.SIGSTOP)
        db.exec_driver_sql("SELECT repeat('x', 1000000) FROM generate_series(1, 100), pg_sleep(0.5)")
except sa.exc.DBAPIError as error:
    assert is_away(error), error
    print("was ended", flush=True)
psycopg.Connection.pipeline = pipeline
with store.deciding() as (db, row):
    store.next_epoch(db)
print("goes on", flush=True)
"""

_COMPUTES = sa.text("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_LOCK_WAIT", "SET lock_timeout = '1500ms'")
    monkeypatch.setattr(frozen, "STANDS_SECONDS", 1.0)


@pytest.fixture
def url(new_postgresql: Callable[..., str]) -> str:
    return new_postgresql()


@pytest.fixture
def connect(url: str) -> Iterator[Callable[[], sa.Connection]]:
    store = Store(url)
    yield lambda: store.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    store.close()


@pytest.mark.parametrize("how", ["between two messages", "between two statements", "before it reads"])
def test_a_pool_that_stands_still_with_the_lock_is_ended_and_goes_on_later(
    url: str, how: str, hurried: None
) -> None:
    store = Store(url)
    other = subprocess.Popen([sys.executable, "-c", _STANDS, url, how], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "stands\n"
        if how == "before it reads":
            with store.reader.connect() as db:
                while not db.execute(_COMPUTES).all():
                    db.rollback()
            other.send_signal(signal.SIGSTOP)
        with pytest.raises(sa.exc.OperationalError, match="lock timeout"), store.deciding():
            pass
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


def in_a_pipeline(url: str, name: str = "gpukernel-pool") -> psycopg.Connection[Any]:
    """A connection with the ledger's lock, between two messages."""
    one = psycopg.connect(url, application_name=name)
    one.pgconn.enter_pipeline_mode()
    for text in (b"BEGIN", b"SELECT epoch FROM ledger FOR UPDATE"):
        one.pgconn.send_query_params(text, None)
    one.pgconn.send_flush_request()
    one.pgconn.flush()
    return one


def is_there(connect: Callable[[], sa.Connection], pid: int) -> bool:
    with connect() as db:
        found = sa.text("SELECT 1 FROM pg_stat_activity WHERE pid = :pid AND wait_event_type = 'Client'")
        return bool(db.execute(found, {"pid": pid}).all())


def waits(connect: Callable[[], sa.Connection], pid: int, seconds: float) -> None:
    """Wait until PostgreSQL has waited for this client for so long."""
    with connect() as db:
        asked = sa.text(
            "SELECT pg_sleep(0.05), clock_timestamp() - state_change > make_interval(secs => :seconds)"
            " AND wait_event_type = 'Client' AS long FROM pg_stat_activity WHERE pid = :pid"
        )
        while not db.execute(asked, {"pid": pid, "seconds": seconds}).one().long:
            pass


def test_nobody_is_ended_who_moves_between_two_looks(
    url: str, connect: Callable[[], sa.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frozen, "STANDS_SECONDS", 0.3)
    one = in_a_pipeline(url)
    pid = one.pgconn.backend_pid
    looks = list[float]()

    def moves(seconds: float) -> None:
        looks.append(seconds)
        one.pgconn.send_query_params(b"SELECT 1", None)
        one.pgconn.send_flush_request()
        one.pgconn.flush()
        waits(connect, pid, 0.3)

    monkeypatch.setattr(frozen.time, "sleep", moves)
    waits(connect, pid, 0.3)
    FrozenPools(connect).end()
    assert looks
    assert is_there(connect, pid)
    monkeypatch.setattr(frozen.time, "sleep", looks.append)
    FrozenPools(connect).end()
    assert not is_there(connect, pid)
    one.close()


def test_nobody_is_ended_who_is_no_pool_or_has_not_stood_for_long(
    url: str, connect: Callable[[], sa.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    other, reads = in_a_pipeline(url, "psql"), psycopg.connect(url, application_name="gpukernel-pool")
    reads.pgconn.send_query(b"SELECT repeat('x', 1000000) FROM generate_series(1, 100)")
    reads.pgconn.flush()
    pids = [one.pgconn.backend_pid for one in (other, reads)]
    monkeypatch.setattr(frozen, "STANDS_SECONDS", 0.1)
    for pid in pids:
        waits(connect, pid, 0.1)
    FrozenPools(connect).end()
    assert all(is_there(connect, pid) for pid in pids)
    other.close()
    monkeypatch.undo()
    short = in_a_pipeline(url)
    waits(connect, short.pgconn.backend_pid, 0.1)
    FrozenPools(connect).end()
    assert is_there(connect, short.pgconn.backend_pid)
    for one in (reads, short):
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
