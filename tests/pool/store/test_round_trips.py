"""Statements that go to PostgreSQL together mean what they mean one by one, and SQLite does the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, InvalidRequestError

from gpukernel.pool.store.connection import compiled_sql
from gpukernel.pool.store.connection.compiled_sql import CompiledSql, rows_of, send_queued
from gpukernel.pool.store.schema import servers
from gpukernel.pool.store.store import Store
from tests.pool.world import World

ADD = CompiledSql(servers.insert())
NAMES = CompiledSql(sa.select(servers.c.name).order_by(servers.c.name))
NAMED = CompiledSql(sa.select(servers.c.name, servers.c.heard).where(servers.c.name == sa.bindparam("which")))
SEEN = CompiledSql(
    servers.update().where(servers.c.name == sa.bindparam("which")).values(heard=sa.bindparam("when"))
)


def names(db: sa.Connection) -> list[str]:
    """The names in the table, as this connection sees them."""
    return [row.name for row in NAMES.rows(db)]


def of_others(store: Store) -> list[str]:
    """The names in the table, as everybody else sees them."""
    with store.reader.connect() as db:
        return list(db.execute(sa.select(servers.c.name).order_by(servers.c.name)).scalars())


def test_what_is_queued_goes_before_the_next_statement_of_either_kind(database: str) -> None:
    store = Store(database)
    with store.transaction() as db:
        ADD.soon(db, {"name": "a"}, {"name": "b"})
        assert names(db) == ["a", "b"]
        ADD.soon(db, {"name": "c"})
        assert db.execute(sa.select(sa.func.count()).select_from(servers)).scalar_one() == 3
        SEEN.soon(db, {"which": "c", "when": 2.0})
        assert SEEN.run(db, which="c", when=3.0) == 1
        assert [row.heard for row in NAMED.rows(db, which="c")] == [3.0]
        ADD.soon(db)
        ADD.soon(db, {"name": "d"})
        if store.shared:  # and nobody else before the commit
            assert of_others(store) == []
    assert of_others(store) == ["a", "b", "c", "d"]
    store.close()


def test_a_transaction_of_nothing_but_queued_statements_is_committed(database: str) -> None:
    store = Store(database)
    with store.transaction() as db:
        ADD.soon(db, {"name": "a"})
    with store.transaction():
        pass
    assert of_others(store) == ["a"]
    store.close()


@pytest.mark.parametrize("then", ["a statement", "sqlalchemy", "send", "commit"])
def test_what_the_database_refuses_is_raised_by_what_comes_next_and_undoes_everything(
    database: str, then: str
) -> None:
    store = Store(database)
    reached = False

    def work() -> None:
        nonlocal reached
        with store.transaction() as db:
            ADD.run(db, name="first")
            ADD.soon(db, {"name": "a"})
            ADD.soon(db, {"name": "a"})
            reached = True
            if then == "a statement":
                names(db)
            elif then == "sqlalchemy":
                db.execute(sa.select(servers.c.name))
            elif then == "send":
                send_queued(db)

    with pytest.raises(IntegrityError) as refused:
        work()
    assert reached == store.shared  # SQLite refuses at once
    assert "servers" in str(refused.value.orig)
    with store.transaction() as db:
        assert names(db) == []
        ADD.soon(db, {"name": "b"})
    assert of_others(store) == ["b"]
    store.close()


def test_a_savepoint_holds_what_was_queued_in_it_and_no_more(database: str) -> None:
    store = Store(database)

    def work(db: sa.Connection) -> None:
        with db.begin_nested():
            ADD.soon(db, {"name": "b"}, {"name": "a"})
            send_queued(db)

    with store.transaction() as db:
        ADD.soon(db, {"name": "a"})
        with pytest.raises(IntegrityError):
            work(db)
        ADD.soon(db, {"name": "c"})
        with db.begin_nested():
            ADD.soon(db, {"name": "d"})
        assert names(db) == ["a", "c", "d"]
    assert of_others(store) == ["a", "c", "d"]
    store.close()


def test_an_error_in_between_forgets_what_was_queued(database: str) -> None:
    store = Store(database)

    def work(*, sent: bool) -> None:
        with store.transaction() as db:
            if sent:
                names(db)
            ADD.soon(db, {"name": "a"})
            raise ZeroDivisionError

    for sent in (False, True):
        with pytest.raises(ZeroDivisionError):
            work(sent=sent)
        with store.reading() as db:
            assert names(db) == []
    with store.transaction() as db:
        ADD.soon(db, {"name": "b"})
    assert of_others(store) == ["b"]
    store.close()


def test_several_queries_are_answered_in_their_order(database: str) -> None:
    store = Store(database)
    with store.transaction() as db:
        ADD.soon(db, {"name": "a", "heard": 1.0}, {"name": "b", "heard": 2.0})
        everybody, one, nobody = rows_of(
            db, (NAMES, {}), (NAMED, {"which": "a"}), (NAMED, {"which": "missing"})
        )
        assert [row.name for row in everybody] == ["a", "b"]
        assert [(row.name, row.heard) for row in one] == [("a", 1.0)]
        assert nobody == []
    with store.reading() as db:
        assert [len(rows) for rows in rows_of(db, (NAMED, {"which": "b"}), (NAMES, {}))] == [1, 2]
    store.close()


def test_reading_sees_the_transaction_under_way_and_needs_none(database: str) -> None:
    store = Store(database)
    with store.transaction() as db:
        ADD.soon(db, {"name": "a"})
        with store.reading() as reads:
            assert names(reads) == ["a"]
        ADD.soon(db, {"name": "b"})
    with store.reading() as db, store.reading() as again:
        assert names(db) == names(again) == ["a", "b"]
        assert db.execute(sa.select(servers.c.name)).scalars().all() == ["a", "b"]
    if store.shared:  # what is written while one reads would be a transaction by itself
        with pytest.raises(InvalidRequestError), store.reading(), store.transaction():
            raise AssertionError
    with store.transaction() as db:
        assert names(db) == ["a", "b"]
    store.close()


def _break_connection(store: Store, db: sa.Connection) -> None:
    pid = db.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    with store.engine.begin() as other:
        other.execute(sa.select(sa.func.pg_terminate_backend(pid)))


@pytest.mark.postgresql
@pytest.mark.parametrize("then", ["a statement", "commit"])
def test_a_connection_that_breaks_under_queued_statements_is_lost_and_the_next_is_whole(
    new_postgresql: Any, then: str
) -> None:
    store = Store(new_postgresql())

    def work() -> None:
        with store.transaction() as db:
            ADD.run(db, name="before")
            _break_connection(store, db)
            ADD.soon(db, {"name": "a"})
            if then == "a statement":
                names(db)

    with pytest.raises(DBAPIError) as lost:
        work()
    assert lost.value.connection_invalidated
    with store.transaction() as db:
        assert names(db) == []
        ADD.soon(db, {"name": "b"})
    with store.reading() as db:
        assert names(db) == of_others(store) == ["b"]
    store.close()


@pytest.mark.postgresql
def test_a_grant_and_its_answer_take_few_trips(new_postgresql: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trips: list[str] = []
    send = compiled_sql._send

    def counted(db: sa.Connection, *asked: Any, **how: Any) -> Any:
        trips.append(" + ".join(text[:40] for text, _ in asked))
        return send(db, *asked, **how)

    async def within() -> list[str]:
        world = World(new_postgresql())
        world.manager.look()
        await world.get("first")
        monkeypatch.setattr(compiled_sql, "_send", counted)
        await world.get("second")
        monkeypatch.undo()
        found = list(trips)
        world.store.close()
        return found

    found = asyncio.run(within())
    assert 0 < len(found) <= 9, "\n".join(found)
