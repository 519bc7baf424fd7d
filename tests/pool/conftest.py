"""Databases for the pool's tests: SQLite files, and a PostgreSQL server of the tests' own."""

from __future__ import annotations

import getpass
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gpukernel.pool.store.connection.compiled_sql import CompiledSql

_numbers = itertools.count()


def _programs() -> Path | None:
    """Return the folder of PostgreSQL's server programs: Debian keeps them out of PATH."""
    if found := shutil.which("initdb"):
        return Path(found).parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return installed[-1] if installed else None


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The address of a PostgreSQL server without databases, ended with the session."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian, Ubuntu: apt-get install postgresql)")
    # PostgreSQL refuses to run as root.
    user = getpass.getuser()
    if os.geteuid() == 0:
        user = next(n for n in ("postgres", "nobody") if n in {p.pw_name for p in pwd.getpwall()})
    account = pwd.getpwnam(user)
    folder = Path(tempfile.mkdtemp(prefix="gpukernel-pg-"))
    try:
        if os.geteuid() == 0:
            os.chown(folder, account.pw_uid, account.pw_gid)
        who = {"user": account.pw_uid, "group": account.pw_gid} if os.geteuid() == 0 else {}
        quiet = {"stdout": subprocess.DEVNULL, "check": True, "cwd": folder, **who}
        data = folder / "data"
        subprocess.run([programs / "initdb", "-D", data, "-A", "trust", "-U", "pool"], **quiet)
        # Tests do not outlive a power cut.
        options = f"-k {folder} -c listen_addresses= -c fsync=off -c max_connections=50"
        start = [programs / "pg_ctl", "-D", data, "-l", folder / "log", "-o", options, "-w", "start"]
        subprocess.run(start, **quiet)
        try:
            yield f"postgresql://pool@/DATABASE?host={folder}"
        finally:
            subprocess.run([programs / "pg_ctl", "-D", data, "-m", "immediate", "stop"], **quiet)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def new_postgresql(postgresql: str) -> Iterator[Callable[..., str]]:
    """Makes a database, empty or a copy of the one at an address, and gives its address; with the test it is gone, and who is connected to it."""
    server = postgresql.replace("postgresql://", "postgresql+psycopg://").replace("DATABASE", "postgres")
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    made: list[str] = []

    def run(statement: str) -> None:
        with engine.connect() as db:
            db.execute(sa.text(statement))

    def make(template: str = "") -> str:
        name = f"pool{next(_numbers)}"
        run(f"CREATE DATABASE {name}" + (f" TEMPLATE {sa.make_url(template).database}" if template else ""))
        made.append(name)
        return postgresql.replace("DATABASE", name)

    yield make
    # Many a test leaves its pools to the interpreter, and each has connections of its own.
    for name in made:
        run(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/pool.db"
    return request.getfixturevalue("new_postgresql")()


@pytest.fixture(autouse=True)
def _no_database_in_the_io_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test in which a statement is executed in the thread that receives and sends for the pool."""
    found: list[str] = []

    def look(statement: object) -> None:
        if threading.current_thread().name == "gpukernel-io":
            found.append("".join(traceback.format_stack(limit=12)) + str(statement))

    execute, connect = CompiledSql._execute, sa.Engine.connect

    def executed(self: CompiledSql, *arguments: Any) -> Any:
        look(self._what)
        return execute(self, *arguments)

    def connected(self: sa.Engine) -> sa.Connection:
        look("a connection of the engine")
        return connect(self)

    def before(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        look(statement)

    monkeypatch.setattr(CompiledSql, "_execute", executed)
    monkeypatch.setattr(sa.Engine, "connect", connected)
    sa.event.listen(sa.Engine, "before_cursor_execute", before)
    yield
    sa.event.remove(sa.Engine, "before_cursor_execute", before)
    assert found == []
