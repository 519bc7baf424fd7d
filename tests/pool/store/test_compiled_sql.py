"""Statements that go to the driver as they are, on both kinds of databases."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError

from gpukernel.common.model import Device
from gpukernel.pool.store.connection.compiled_sql import CompiledSql
from gpukernel.pool.store.schema import devices, servers
from gpukernel.pool.store.store import Store

ADD = CompiledSql(servers.insert())
NAMES = CompiledSql(
    sa.select(servers.c.name).where(servers.c.name.in_(sa.bindparam("names", expanding=True)))
)
ALL = CompiledSql(sa.select(servers).order_by(servers.c.name))
SEEN = CompiledSql(
    servers.update().where(servers.c.name == sa.bindparam("which")).values(heard=sa.bindparam("when"))
)


def test_an_insert_gives_the_other_columns_their_defaults(database: str) -> None:
    store = Store(database)
    with store.transaction() as db:
        ADD.run(db, name="a")
        ADD.run(db, name="b", heard=3.0)
        assert [(row.name, row.pool, row.heard, bool(row.draining)) for row in ALL.rows(db)] == [
            ("a", "", 0.0, False),
            ("b", "", 3.0, False),
        ]
    store.close()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 8, 9])
def test_a_list_of_any_length_means_what_it_says(database: str, count: int) -> None:
    store = Store(database)
    with store.transaction() as db:
        ADD.each(db, [{"name": str(number)} for number in range(10)])
        wanted = [str(number) for number in range(count)]
        assert sorted(row.name for row in NAMES.rows(db, names=wanted)) == wanted
    store.close()


def test_each_tells_how_many_rows_were_changed(database: str) -> None:
    store = Store(database)
    with store.transaction() as db:
        ADD.each(db, [{"name": name} for name in "abc"])
        assert SEEN.each(db, [{"which": name, "when": 1.0} for name in "bcd"]) == 2
        assert SEEN.each(db, []) == 0
    store.close()


def test_what_the_database_refuses_is_an_error_of_sqlalchemy_and_undoes_the_transaction(
    database: str,
) -> None:
    store = Store(database)
    with pytest.raises(IntegrityError), store.transaction() as db:
        ADD.each(db, [{"name": "a"}, {"name": "a"}])
    with store.transaction() as db:
        assert ALL.rows(db) == []
    store.close()


def test_a_connection_that_breaks_fails_once(database: str) -> None:
    if database.startswith("sqlite"):
        pytest.skip("a file has no connection that breaks")
    store = Store(database)
    with store.engine.begin() as other:
        ours = sa.func.pg_backend_pid() != sa.literal_column("pid")
        activity = sa.table("pg_stat_activity", sa.column("datname"), sa.column("backend_type"))
        end = sa.select(sa.func.pg_terminate_backend(sa.literal_column("pid")))
        here = activity.c.datname == sa.func.current_database()
        clients = activity.c.backend_type == "client backend"  # PostgreSQL tidies up by itself, too
        assert other.execute(end.select_from(activity).where(ours, here, clients)).scalars().all() == [True]
    with pytest.raises(DBAPIError):
        store.leases.all()
    with store.transaction() as db:
        ADD.run(db, name="a")
    assert store.servers.away_since(0.0) == []
    store.close()


def test_the_log_is_written_back_in_a_thread_while_the_connection_is_open(tmp_path: Path) -> None:
    store = Store.in_directory(tmp_path)
    store.servers.register("s", [Device("s/0", "s", 0, "Tesla V100", 2**35)], "p", 0.0)
    (tmp_path / "copy").mkdir()

    def devices_in_the_file() -> int:
        shutil.copy(tmp_path / "pool.db", tmp_path / "copy")
        engine = sa.create_engine(f"sqlite:///{tmp_path}/copy/pool.db")
        try:
            with engine.connect() as db:
                if not sa.inspect(db).has_table("devices"):
                    return 0
                return db.execute(sa.select(sa.func.count()).select_from(devices)).scalar_one()
        finally:
            engine.dispose()

    assert devices_in_the_file() == 0
    thread = threading.Thread(target=store.write_back)
    thread.start()
    thread.join()
    assert devices_in_the_file() == 1
    store.close()
