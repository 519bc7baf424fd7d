"""The change log: numbers without gaps in the order of commits, whoever commits when; and a reader that knows when it missed something."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from gpukernel.pool.store import changes as log
from gpukernel.pool.store.changes import LeaseChange, LogEntry
from gpukernel.pool.store.connection.compiled_sql import CompiledSql
from gpukernel.pool.store.schema import changes
from gpukernel.pool.store.store import Store


@contextmanager
def stores(url: str, count: int = 2) -> Iterator[list[Store]]:
    opened = [Store(url) for _ in range(count)]
    for number, store in enumerate(opened):
        store.changes.pool = f"p{number}"
        store.changes.catch_up()
    yield opened
    for store in opened:
        store.close()


def told(store: Store, *ids: str) -> None:
    with store.deciding():
        for lease_id in ids:
            store.changes.lease("told", lease_id)


def ids(entries: list[LogEntry] | None) -> list[str]:
    assert entries is not None
    return [change.lease_id for entry in entries for change in entry.leases]


def numbers(store: Store) -> list[int]:
    with store.reader.connect() as db:
        return list(db.execute(sa.select(changes.c.number).order_by(changes.c.number)).scalars())


def test_a_transaction_is_one_entry_and_each_reader_reads_it_once(new_postgresql: Callable[..., str]) -> None:
    with stores(new_postgresql(), 3) as (one, two, three):
        with one.deciding():
            one.changes.lease("granted", "a", "k “ü”", ["s", "t"])
            one.changes.lease("told", "a")
            one.changes.lease("told", "a")
            one.changes.server("s")
        assert two.changes.news() == [
            LogEntry(
                "p0", (LeaseChange("granted", "a", "k “ü”", ("s", "t")), LeaseChange("told", "a")), ("s",)
            )
        ]
        told(two, "b")
        assert ids(two.changes.news()) == ["b"]
        assert ids(three.changes.news()) == ["a", "a", "b"]
        assert two.changes.news() == three.changes.news() == []


def test_what_is_rolled_back_leaves_no_entry_and_no_gap(new_postgresql: Callable[..., str]) -> None:
    with stores(new_postgresql()) as (one, two):
        written = []
        one.changes.on_written = lambda told: written.append(1)
        with contextlib.suppress(ZeroDivisionError), one.deciding():
            one.changes.lease("told", "never")
            raise ZeroDivisionError
        with one.deciding():
            pass
        assert written == []
        told(one, "a")
        assert written == [1]
        assert ids(two.changes.news()) == ["a"]
        assert numbers(one) == [1]


def test_a_change_without_the_lock_of_the_ledger_is_an_error(database: str) -> None:
    store = Store(database)
    with store.deciding():
        pass  # the lock of an earlier transaction is none
    with store.transaction(), pytest.raises(RuntimeError, match="hold the ledger's lock"):
        store.changes.lease("told", "a")
    store.close()


def test_a_pool_alone_on_its_database_writes_no_log(tmp_path: Path) -> None:
    with stores(f"sqlite:///{tmp_path}/pool.db", 1) as (store,):
        told(store, "a")
        assert numbers(store) == []


def test_a_reader_sees_no_later_entry_before_an_earlier_one(new_postgresql: Callable[..., str]) -> None:
    """Transactions of four writers, which keep what they write for different times, are read while they commit."""
    with stores(new_postgresql(), 5) as (reader, *writers):
        each, over = 60, threading.Event()

        def write(number: int, store: Store) -> None:
            for turn in range(each):
                with store.deciding() as (db, _):
                    store.changes.lease("told", f"{number} {turn}")
                    db.execute(sa.text(f"SELECT pg_sleep({0.0005 * ((turn * 7 + number) % 4)})"))

        threads = [threading.Thread(target=write, args=(n, store)) for n, store in enumerate(writers)]
        for thread in threads:
            thread.start()

        def wait() -> None:
            for thread in threads:
                thread.join()
            over.set()

        threading.Thread(target=wait).start()
        seen: list[str] = []
        while not over.is_set():
            seen += ids(reader.changes.news())
        seen += ids(reader.changes.news())
        assert sorted(seen) == sorted(f"{n} {turn}" for n in range(4) for turn in range(each))
        for n in range(4):
            assert [one for one in seen if one.startswith(f"{n} ")] == [f"{n} {t}" for t in range(each)]
        assert numbers(reader) == list(range(1, 4 * each + 1))


def test_old_entries_are_removed_and_who_missed_one_reads_everything(
    new_postgresql: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "KEEP", 10)
    monkeypatch.setattr(log, "TRIM_EVERY", 5)
    with stores(new_postgresql()) as (busy, asleep):
        for number in range(40):
            told(busy, str(number))
            assert ids(busy.changes.news()) == [str(number)]
            busy.changes.trim()
            assert len(numbers(busy)) < 10 + 5
        assert numbers(busy)[-1] == 40
        assert asleep.changes.news() is None
        assert asleep.changes.news() is None, "it has read everything only after it took the log for read"
        asleep.changes.catch_up()
        told(busy, "new")
        assert ids(asleep.changes.news()) == ["new"]


def test_pools_that_start_while_one_is_asleep_do_not_hide_entries_from_it(
    new_postgresql: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "KEEP", 2)
    monkeypatch.setattr(log, "TRIM_EVERY", 1)
    url = new_postgresql()
    with stores(url, 1) as (asleep,):
        told(asleep, "first")
        asleep.changes.news()
        for _ in range(3):  # each believes to be alone, and keeps the numbers going
            with stores(url, 1) as (new,):
                told(new, "a", "b")
                new.changes.news()
                new.changes.trim()
        assert numbers(asleep) == [3, 4]
        assert asleep.changes.news() is None


def test_more_than_can_be_read_at_once_is_everything(
    new_postgresql: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with stores(new_postgresql()) as (busy, reader):
        for number in range(4):
            told(busy, str(number))
        monkeypatch.setattr(log, "MOST_AT_ONCE", 3)
        assert reader.changes.news() is None


def test_a_new_connection_means_to_read_everything(new_postgresql: Callable[..., str]) -> None:
    """The server behind it may be another one, without the last commits, whose numbers mean other changes by now."""
    with stores(new_postgresql()) as (one, two):
        told(one, "a")
        assert ids(two.changes.news()) == ["a"]
        mine = CompiledSql(sa.text("SELECT pg_backend_pid() AS pid")).first(two.changes.reading()).pid
        with one.engine.connect() as db:
            db.execute(sa.text(f"SELECT pg_terminate_backend({mine})"))
        with pytest.raises(sa.exc.DBAPIError):
            two.changes.news()
        assert two.changes.news() is None
        two.changes.catch_up()
        assert two.changes.news() == []


def test_the_servers_of_a_lease_that_ends_are_told_with_it(new_postgresql: Callable[..., str]) -> None:
    with stores(new_postgresql()) as (one, two):
        with one.deciding() as (db, _):
            for statement in (
                "INSERT INTO devices (id, server, index, name, memory_bytes, promised_bytes, compute_capability, multiprocessors) "
                "VALUES ('s/0', 's', 0, 'V100', 9, 0, '', 0), ('t/0', 't', 0, 'V100', 9, 0, '', 0)",
                "INSERT INTO leases (id, key, person, server, course, description, secret, state, epoch, created, expires, ttl_seconds, ended, "
                "end_reason) VALUES ('a', 'k', 'p', '', '', '', '', 'live', 1, 0, 0, 1, 0, '')",
                "INSERT INTO slices (lease_id, ordinal, device_id, memory_bytes, weight, worker, endpoints, memory_used_bytes, "
                "memory_peak_bytes, cuda_calls, launches, gpu_seconds, connections, idle_seconds) VALUES "
                "('a', 0, 's/0', 1, 1, 'gone', '', 0, 0, 0, 0, 0, 0, 0), ('a', 1, 't/0', 1, 1, 'ready', '', 0, 0, 0, 0, 0, 0, 0)",
            ):
                db.execute(sa.text(statement))
            one.changes.lease("ends", "a")
        news = two.changes.news()
        assert news is not None
        assert news[0].leases == (LeaseChange("ends", "a", "", ("t",)),), "no worker is left on the other one"


def test_what_is_refused_with_the_commit_is_told_to_nobody(new_postgresql: Callable[..., str]) -> None:
    with stores(new_postgresql()) as (one, two):
        written = list[str]()
        one.changes.on_writing = lambda leases: "news"
        one.changes.on_written = written.append
        refused = CompiledSql(sa.text("UPDATE ledger SET id = 2"))

        def refuse() -> None:
            with one.deciding() as (db, _):
                one.changes.lease("told", "never")
                refused.soon(db, {})

        with pytest.raises(sa.exc.IntegrityError):
            refuse()
        with one.deciding():
            pass
        assert written == []
        assert ids(two.changes.news()) == []
