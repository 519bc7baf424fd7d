"""Databases for many short runs in one process, one after the other, on one engine: a new one would compile every statement anew."""

from __future__ import annotations

import atexit
import functools
import itertools
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from gpukernel.pool.store import database as database_module
from gpukernel.pool.store.database import open_database
from gpukernel.pool.store.store import Store

__all__ = ["Databases", "PostgresqlDatabases", "SqliteDatabases", "empty_database", "sqlite_databases"]

MEMORY = Path("/dev/shm")  # the disk's speed is no part of this


class Databases:
    """Databases of one kind; `new` makes one, `store` opens it and `remove` ends it.

    Parameters
    ----------
    url
        Of an empty database with all its tables: they are made once, which takes as long as ten steps.
    """

    def __init__(self, url: str) -> None:
        self._place = ""
        self.engine = open_database(url)
        self.engine.dispose()
        sa.event.listen(self.engine, "do_connect", self._elsewhere)

    def _elsewhere(self, _dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]) -> None:
        self.lead(self._place, arguments, options)

    def lead(self, place: str, arguments: list[Any], options: dict[str, Any]) -> None:
        """Have the arguments of a connection lead to `place`."""
        raise NotImplementedError

    def new(self) -> str:
        """Return the place of a new database without rows."""
        raise NotImplementedError

    def remove(self, place: str) -> None:
        """Remove the database at `place`, which nobody has open."""
        raise NotImplementedError

    def store(self, place: str) -> Store:
        """Return the store that a process which starts now has on the database at `place`."""
        self.engine.dispose()
        self._place = place
        opened = database_module.open_database
        database_module.open_database = lambda _: self.engine
        try:
            return Store("")
        finally:
            database_module.open_database = opened


@functools.cache
def empty_database() -> Path:
    """Return the file of an SQLite database without rows."""
    path = Path(tempfile.mkdtemp()) / "empty.db"
    Store(f"sqlite:///{path}").close()
    atexit.register(shutil.rmtree, path.parent)
    return path


class SqliteDatabases(Databases):
    """Files, in memory where the machine has a place for that."""

    def __init__(self) -> None:
        super().__init__(f"sqlite:///{empty_database()}")

    def lead(self, place: str, arguments: list[Any], options: dict[str, Any]) -> None:
        arguments[0] = place

    def new(self) -> str:
        folder = tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None)
        return str(shutil.copy(empty_database(), f"{folder}/pool.db"))

    def remove(self, place: str) -> None:
        shutil.rmtree(Path(place).parent)


sqlite_databases = functools.cache(SqliteDatabases)


class PostgresqlDatabases(Databases):
    """Databases of a server at `address`, as the fixture ``postgresql`` gives it; each is a copy of an empty one."""

    def __init__(self, address: str) -> None:
        self._numbers = itertools.count()
        url = address.replace("postgresql://", "postgresql+psycopg://")
        self._server = sa.create_engine(
            url.replace("DATABASE", "postgres"), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool
        )
        # Several may be of one server.
        self._empty = f"empty{uuid.uuid4().hex}"
        self._do(f"CREATE DATABASE {self._empty}")
        super().__init__(address.replace("DATABASE", self._empty))

    def _do(self, statement: str) -> None:
        with self._server.connect() as db:
            db.execute(sa.text(statement))

    def lead(self, place: str, arguments: list[Any], options: dict[str, Any]) -> None:
        options["dbname"] = place

    def new(self) -> str:
        place = f"{self._empty}run{next(self._numbers)}"
        self._do(f"CREATE DATABASE {place} TEMPLATE {self._empty}")
        return place

    def remove(self, place: str) -> None:
        self._do(f"DROP DATABASE {place} WITH (FORCE)")
