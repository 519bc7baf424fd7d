"""An upgrade of an older database that is killed, cut off or begun twice at once: whole or not at all, and nothing is lost.

The ordinary suite kills an upgrade at some of its moments; ``make crashes`` at each.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import alembic.command
import pytest
import sqlalchemy as sa

from gpukernel.pool.store import database
from gpukernel.pool.store.database import NEWEST, open_database
from gpukernel.pool.store.store import Store
from tests.conftest import eventually
from tests.pool.store.older_databases import make_old, make_previous, plain_engine

STRIDE = int(os.environ.get("GPUKERNEL_CRASH_STRIDE", "25"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900 if STRIDE > 1 else 0)]

UPGRADING = [sys.executable, "-m", "tests.pool.store.upgrading"]

# What 0012 calls otherwise, and what later migrations add.
TABLES = {"accounts": "quota_usage", "spans": "usage_log", "pins": "reservation_placements"}
COLUMNS = {"line_version": "queue_version", "rules_version": "policy_version"}

CEILINGS = {"reserve_bytes": 0, "lent_bytes": 0, "lent_by": None}
ADDED: dict[str, dict[str, Any]] = {
    "servers": {
        "confinement": "[]",
        **dict.fromkeys(("credential", "machine", "place", "instance"), ""),
        **dict.fromkeys(("epoch", "heard", "settling", "forgotten", "quiet"), 0),
        "fenced_until": 1e18,
    },
    "devices": {"uuid": "", "decided_by": "pool", "next_decider": ""},
    "leases": {
        "decided_by": "pool",
        "ceiling": 0,
        "priority": "interactive",
        "gives_way": None,
        **dict.fromkeys(("caller", "within", "gives_way_to", "gives_way_for"), ""),
    },
    "quotas": {"interactive": None},
    "requests": {"on_device": "", "priority": "interactive", "claims": "", "claims_from": 0.0},
    "slices": {"confirmed": 1, "fenced_until": None, "idle_since": None, "decided_by": "pool", **CEILINGS},
    "tokens": {"renewed": None, "inside": 0, "announced": ""},
}
CLOCK = {"id": 1, "steady": 0.0, "wall": 0.0, "boot": "", "since_boot": 0.0}

Contents = dict[str, list[dict[str, Any]]]


def contents(url: str) -> Contents:
    """Every row of every table."""
    engine = plain_engine(url)
    with engine.connect() as db:
        found = {}
        for table in sa.inspect(db).get_table_names():
            rows = [dict(row._mapping) for row in db.execute(sa.text(f'SELECT * FROM "{table}"'))]
            found[table] = sorted(rows, key=repr)
    engine.dispose()
    return found


def renamed(before: Contents) -> Contents:
    """Return what 0012 and later migrations make of `before`."""
    after = {
        TABLES.get(table, table): [
            {COLUMNS.get(name, name): value for name, value in row.items()} | ADDED.get(table, {})
            for row in rows
        ]
        for table, rows in before.items()
    }
    after["ledger"] = [
        {**row, "half_life": 604800.0, "notice": 60.0, "least_run": 600.0} for row in after["ledger"]
    ]
    classes = {"recent": 0.0, "interactive_ceiling": None}
    after["quota_usage"] = [
        {**row, **classes, "interactive_held": row["share_held"]} for row in after["quota_usage"]
    ]
    for lease in after["leases"]:
        lease["span"] = None if lease["until"] is None else lease["until"] - lease["created"]
    for server in after["servers"]:
        del server["seen"]  # the pools are asked since 0019
    new = {"clock": [CLOCK], "changes": [], "pools": []}
    return {**after, **new, "alembic_version": [{"version_num": NEWEST}]}


@pytest.fixture(params=["sqlite", "postgresql"])
def copies(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[[Callable[[str], None]], Iterator[str]]:
    """Copies of one database, each for itself."""

    def of(make: Callable[[str], None]) -> Iterator[str]:
        if request.param == "sqlite":
            make(f"sqlite:///{tmp_path}/original.db")
            for number in itertools.count():
                copy = tmp_path / f"copy-{number}.db"
                shutil.copyfile(tmp_path / "original.db", copy)
                yield f"sqlite:///{copy}"
        new = request.getfixturevalue("new_postgresql")
        original = new()
        make(original)
        while True:
            yield new(original)

    return of


def start(url: str) -> subprocess.Popen[str]:
    """A process that is about to open the database, once it is told."""
    process = subprocess.Popen(
        [*UPGRADING, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_what_the_upgrade_renames_keeps_every_row(copies: Callable[..., Iterator[str]]) -> None:
    url = next(copies(make_previous))
    before = contents(url)
    assert all(before[table] for table in (*TABLES, "ledger", "leases", "slices", "requests"))
    Store(url).close()
    assert contents(url) == renamed(before)


@pytest.mark.parametrize(
    ("make", "stride", "least"),
    [(make_previous, -(-STRIDE // 3), 9), pytest.param(make_old, STRIDE, 40, marks=pytest.mark.thorough)],
)
def test_whenever_an_upgrade_is_killed_the_next_start_finishes_it(
    copies: Callable[..., Iterator[str]], make: Callable[[str], None], stride: int, least: int
) -> None:
    each = copies(make)
    before = contents(next(each))
    Store(whole := next(each)).close()
    after = contents(whole)
    found = []
    for moment in itertools.count(0, stride):
        url = next(each)
        done = subprocess.run([*UPGRADING, url, str(moment)], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        found.append(contents(url))
        Store(url).close()
        assert contents(url) == after
    assert moment >= least
    # Nothing has changed before the transaction's end, and everything after it.
    assert all(one == before for one in found[:-1])
    assert found[-1] in ([after] if stride == 1 else [before, after])


def test_two_pools_that_start_at_once_upgrade_once(copies: Callable[..., Iterator[str]]) -> None:
    each = copies(make_previous)
    after = renamed(contents(next(each)))
    for url in itertools.islice(each, 3):
        pools = [start(url) for _ in range(2)]
        for pool in pools:
            tell(pool)
        said = [pool.communicate() for pool in pools]
        assert [pool.returncode for pool in pools] == [0, 0], said
        assert contents(url) == after


def test_an_upgrade_may_take_long_between_its_statements(
    new_postgresql: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_previous(url := new_postgresql())
    before = contents(url)
    upgrade = alembic.command.upgrade
    monkeypatch.setattr(database, "_IDLE", "SET idle_in_transaction_session_timeout = '100ms'")
    monkeypatch.setattr(alembic.command, "upgrade", lambda *to: (time.sleep(0.5), upgrade(*to)))
    open_database(url).dispose()
    assert contents(url) == renamed(before)


class Blocked:
    """An upgrade on PostgreSQL that waits in its middle, for a table that somebody reads."""

    def __init__(self, url: str) -> None:
        make_previous(url)
        self.url, self.before = url, contents(url)
        self.engine = plain_engine(url)
        self.reader = self.engine.connect()
        self.reader.execute(sa.text("LOCK TABLE spans IN ACCESS SHARE MODE"))
        self.process = start(url)
        tell(self.process)
        eventually(lambda: self.waiting() == ["relation"])

    def waiting(self) -> list[str]:
        """Return what sessions of this database wait for."""
        query = (
            "SELECT locktype FROM pg_locks JOIN pg_database ON pg_database.oid = database "
            "WHERE NOT granted AND datname = current_database() ORDER BY locktype"
        )
        with self.engine.connect() as db:
            return list(db.execute(sa.text(query)).scalars())

    def end(self) -> None:
        self.reader.close()
        self.engine.dispose()


def test_a_start_waits_for_what_the_server_still_does_for_one_that_was_killed(
    new_postgresql: Callable[..., str],
) -> None:
    blocked = Blocked(new_postgresql())
    blocked.process.kill()
    blocked.process.communicate()
    second = start(blocked.url)
    tell(second)
    # PostgreSQL does not notice that nobody waits for the answer any more.
    eventually(lambda: blocked.waiting() == ["advisory", "relation"])
    blocked.end()
    _, errors = second.communicate()
    assert (second.returncode, errors) == (0, "")
    assert contents(blocked.url) == renamed(blocked.before)


def test_an_upgrade_that_loses_its_connection_says_so_and_the_next_start_finishes_it(
    new_postgresql: Callable[..., str],
) -> None:
    blocked = Blocked(new_postgresql())
    with blocked.engine.connect() as db:
        end = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted AND locktype = 'relation'"
        assert db.execute(sa.text(end)).scalars().all() == [True]
    _, errors = blocked.process.communicate()
    assert blocked.process.returncode == 1
    assert errors.startswith("The database cannot be used: ")
    assert "Traceback" not in errors
    blocked.end()
    assert contents(blocked.url) == blocked.before
    Store(blocked.url).close()
    assert contents(blocked.url) == renamed(blocked.before)
