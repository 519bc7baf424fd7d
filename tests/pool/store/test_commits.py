"""Commits that are on disk a moment later: what anybody outside was told is there after PostgreSQL has crashed, whenever that was."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import sqlalchemy as sa

import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.pool_pb2_grpc as rpc
from gpukernel.client.pool import PoolClient
from gpukernel.common.address import socket_path
from gpukernel.common.errors import DatabaseLost, PoolError
from gpukernel.common.model import Holder, Lease, SliceRequest
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.rpc.server import serve
from gpukernel.pool.store.connection.commits import Commits
from gpukernel.pool.store.database import Database
from gpukernel.pool.store.store import Store
from tests.pool.conftest import _programs

CRASHES = 4
PEOPLE = 6
GIB = 2**30


class FragileDatabase:
    """A PostgreSQL server that may crash, and writes what nobody waits for to its disk seconds later."""

    def __init__(self, programs: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpukernel-pg-"))
        self._programs, self._data, self._who = programs, self.folder / "data", {}
        if os.geteuid() == 0:  # which PostgreSQL refuses to run as
            known = {account.pw_name for account in pwd.getpwall()}
            account = pwd.getpwnam(next(name for name in ("postgres", "nobody") if name in known))
            os.chown(self.folder, account.pw_uid, account.pw_gid)
            self._who = {"user": account.pw_uid, "group": account.pw_gid}
        self._run("initdb", "-D", self._data, "-A", "trust", "-U", getpass.getuser())
        self.url = f"postgresql://{getpass.getuser()}@/postgres?host={self.folder}"

    def _run(self, program: str, *arguments: object) -> None:
        words = [str(self._programs / program), *map(str, arguments)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd=self.folder, **self._who)

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses= -c wal_writer_delay=10s -c fsync=off"
        self._run("pg_ctl", "-D", self._data, "-l", self.folder / "log", "-o", options, "-w", "start")

    def crash(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")

    def rows(self, query: str) -> list[Any]:
        engine = sa.create_engine(self.url.replace("postgresql://", "postgresql+psycopg://"))
        with engine.connect() as db:
            found = list(db.execute(sa.text(query)))
        engine.dispose()
        return found

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self.crash()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def fragile(postgresql: str) -> Iterator[FragileDatabase]:
    del postgresql  # skips where there is none
    programs = _programs()
    assert programs is not None
    server = FragileDatabase(programs)
    try:
        server.start()
        yield server
    finally:
        server.close()


class GpuServer:
    """An agent that calls each worker ready at once, and attaches again whenever its stream ends."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.told: set[str] = set()  # leases for which a worker was ordered

    async def run(self) -> None:
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self._attach()
            await asyncio.sleep(0.05)

    async def _attach(self) -> None:
        sent: asyncio.Queue[pb.AgentMessage] = asyncio.Queue()
        device = pb.Device(id="gpu1/0", name="Tesla V100", server="gpu1", index=0, memory_bytes=1024 * GIB)
        sent.put_nowait(pb.AgentMessage(register=pb.Register(server="gpu1", devices=[device])))

        async def messages() -> AsyncIterator[pb.AgentMessage]:
            while True:
                yield await sent.get()

        async for order in rpc.AgentsStub(self._channel).Attach(messages()):
            kind = order.WhichOneof("message")
            if kind == "start_worker":
                start = order.start_worker
                self.told.add(start.lease_id)
                ready = pb.WorkerReady(
                    lease_id=start.lease_id, device_index=0, endpoints=["unix:/x"], device=start.device
                )
                sent.put_nowait(pb.AgentMessage(worker_ready=ready))
            elif kind == "stop_worker":
                stop = order.stop_worker
                ended = pb.WorkerEnded(
                    lease_id=stop.lease_id, device_index=0, reason="stopped", device=stop.device
                )
                sent.put_nowait(pb.AgentMessage(worker_ended=ended))


async def person(client: PoolClient, name: str, told: set[str]) -> None:
    """Take slices and give every other one back, for ever."""
    number = 0
    while True:
        number += 1
        try:
            async with asyncio.timeout(20):
                events = client.acquire(
                    f"{name} {secrets.token_hex(4)}",
                    SliceRequest(memory_bytes=GIB),
                    Holder(name),
                    ttl_seconds=3600,
                )
                async for event in events:
                    if isinstance(event, Lease):
                        told.add(event.id)
                        if number % 2:
                            await client.release(event.id)
        except (PoolError, TimeoutError):
            await asyncio.sleep(0.05)


@pytest.mark.thorough
def test_who_was_told_of_a_lease_has_it_after_a_crash_of_the_database(
    fragile: FragileDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUKERNEL_DATABASE", fragile.url)

    async def work() -> tuple[set[str], set[str], list[int]]:
        told: set[str] = set()
        after: list[int] = []
        address = f"unix:{socket_path(tmp_path)}"
        async with (
            serve(tmp_path),
            grpc.aio.insecure_channel(address) as channel,
            PoolClient(address) as client,
        ):
            server = GpuServer(channel)
            tasks = [asyncio.create_task(server.run())]
            tasks += [asyncio.create_task(person(client, f"p{n}", told)) for n in range(PEOPLE)]
            for crash in range(CRASHES + 1):
                before = len(told)
                async with asyncio.timeout(60):
                    while len(told) < before + 20:
                        await asyncio.sleep(0.01)
                after.append(len(told) - before)
                if crash < CRASHES:
                    await asyncio.to_thread(fragile.crash)
                    await asyncio.to_thread(fragile.start)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return told, server.told, after

    told, ordered, after = asyncio.run(work())
    assert len(after) == CRASHES + 1
    there = {row.id for row in fragile.rows("SELECT id FROM leases")}
    assert told <= there, f"{len(told - there)} of {len(told)} leases that holders were told of are lost"
    assert ordered <= there, f"{len(ordered - there)} of {len(ordered)} leases with workers are lost"
    promised = fragile.rows("SELECT coalesce(sum(promised_bytes), 0) AS bytes FROM devices")[0].bytes
    used = fragile.rows("SELECT coalesce(sum(memory_bytes), 0) AS bytes FROM slices WHERE worker <> 'gone'")
    assert promised == used[0].bytes


def test_a_commit_is_on_disk_when_it_lasts(fragile: FragileDatabase) -> None:
    async def work() -> None:
        database = Database(fragile.url)
        with database.transaction() as db:
            db.execute(sa.text("CREATE TABLE mine (n integer)"))
        waiting = "SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn() AS bytes"
        assert not database.commits.is_lasting(database.commits.number)
        assert fragile.rows(waiting)[0].bytes > 0
        await database.commits.lasting(database.commits.number)
        assert fragile.rows(waiting)[0].bytes == 0
        number = database.commits.number
        with database.transaction() as db:
            db.execute(sa.text("SELECT n FROM mine"))
        assert database.commits.number == number  # there is nothing to wait for
        database.close()

    asyncio.run(work())


def test_what_is_announced_is_flushed_though_nobody_waits_yet(fragile: FragileDatabase) -> None:
    database = Database(fragile.url)
    waiting = "SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn() AS bytes"
    with database.transaction() as db:
        db.execute(sa.text("CREATE TABLE mine (n integer)"))
    assert fragile.rows(waiting)[0].bytes > 0
    number = database.commits.announce()
    assert number == database.commits.number
    ends = time.monotonic() + 20
    while not database.commits.is_lasting(number):
        assert time.monotonic() < ends
        time.sleep(0.01)
    assert fragile.rows(waiting)[0].bytes == 0
    assert database.commits.announce() == number  # and nothing is left to do
    database.close()


def test_what_was_announced_and_lost_is_flushed_no_more(fragile: FragileDatabase) -> None:
    async def work() -> None:
        database = Database(fragile.url)
        with database.transaction() as db:
            db.execute(sa.text("CREATE TABLE mine (n integer)"))
        fragile.crash()
        number = database.commits.announce()
        ends = time.monotonic() + 20
        while not database.commits.broken:
            assert time.monotonic() < ends
            await asyncio.sleep(0.01)
        with pytest.raises(DatabaseLost):
            await database.commits.lasting(number)
        fragile.start()
        with contextlib.suppress(sa.exc.DBAPIError), database.transaction() as db:
            db.execute(sa.text("SELECT 1"))
        with database.transaction() as db:
            db.execute(sa.text("CREATE TABLE mine (n integer)"))
        await database.commits.lasting(database.commits.announce())
        with pytest.raises(DatabaseLost):
            await database.commits.lasting(number)
        database.close()

    asyncio.run(work())


def test_what_was_written_counts_whatever_became_of_a_part_of_its_transaction(
    fragile: FragileDatabase,
) -> None:
    database = Database(fragile.url)
    with database.transaction() as db:
        db.execute(sa.text("CREATE TABLE mine (n integer)"))
    number = database.commits.number
    with database.transaction() as db:
        db.execute(sa.text("INSERT INTO mine VALUES (1)"))
        with contextlib.suppress(ZeroDivisionError), database.transaction():
            raise ZeroDivisionError
    assert database.commits.number == number + 1
    database.close()


def test_a_part_of_a_transaction_that_loses_its_connection_raises_that(fragile: FragileDatabase) -> None:
    database = Database(fragile.url)
    with (
        pytest.raises(sa.exc.OperationalError, match="terminating connection"),
        database.transaction(),
        database.transaction() as db,
    ):
        db.execute(sa.text("SELECT pg_terminate_backend(pg_backend_pid())"))


def test_nothing_lasts_through_a_crash_before_everything_is_read_again(fragile: FragileDatabase) -> None:
    async def work() -> None:
        database = Database(fragile.url)
        renewed: list[int] = []
        database.on_renewed.append(lambda: renewed.append(1))
        with database.transaction() as db:
            db.execute(sa.text("CREATE TABLE mine (n integer)"))
        number = database.commits.number
        fragile.crash()
        fragile.start()
        with pytest.raises(DatabaseLost):
            await database.commits.lasting(number)
        assert database.commits.broken
        with contextlib.suppress(sa.exc.DBAPIError), database.transaction() as db:
            db.execute(sa.text("SELECT 1"))
        with database.transaction() as db:
            lost = db.execute(sa.text("SELECT to_regclass('mine')")).scalar_one() is None
        assert lost
        assert len(renewed) == 2
        assert database.renewals == 1
        with pytest.raises(DatabaseLost):
            await database.commits.lasting(number)
        await database.commits.lasting(database.commits.number)
        database.close()

    asyncio.run(work())


def test_nothing_waits_with_a_database_of_one_process(tmp_path: Path) -> None:
    async def work() -> None:
        database = Database(f"sqlite:///{tmp_path}/pool.db")
        with database.deciding() as (db, _):
            db.execute(sa.text("UPDATE ledger SET epoch = epoch + 1"))
        assert database.commits.number == 0
        await database.commits.lasting(0)
        database.close()

    asyncio.run(work())


def test_many_wait_for_one_flush() -> None:
    flushes: list[object] = []

    class Connection:
        def execute(self, statement: object) -> None:
            flushes.append(statement)

        def close(self) -> None: ...

    async def work() -> None:
        commits = Commits(Connection)  # type: ignore[arg-type]
        commits.renewed()
        waiting = []
        for _ in range(100):
            commits.made()
            waiting.append(asyncio.create_task(commits.lasting(commits.number)))
        await asyncio.gather(*waiting)
        commits.close()

    asyncio.run(work())
    assert 1 <= len(flushes) < 50


def test_decisions_go_on_without_the_disk_whatever_becomes_of_the_first(fragile: FragileDatabase) -> None:
    database = Database(fragile.url)
    with contextlib.suppress(ZeroDivisionError), database.deciding():
        raise ZeroDivisionError
    with database.transaction() as db:
        assert db.execute(sa.text("SHOW synchronous_commit")).scalar_one() == "off"
    database.close()


def test_nobody_waits_for_signs_of_life(fragile: FragileDatabase) -> None:
    database = Store(fragile.url)
    manager = LeaseManager(database)
    before = database.commits.number
    for _ in range(3):
        manager.tick()
        database.leases.renew(["none"], manager.steady())
    assert database.commits.number - before <= 1  # a look at everything others have done
    database.close()


def test_decisions_go_on_through_a_new_connection_while_a_flush_hangs(fragile: FragileDatabase) -> None:
    async def work() -> None:
        database = Database(fragile.url)
        admin = database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")

        def change() -> int:
            with database.deciding() as (db, _):
                db.execute(sa.text("UPDATE ledger SET epoch = epoch + 1"))
                return int(db.execute(sa.text("SELECT pg_backend_pid()")).scalar_one())

        change()
        for words in ("ALTER SYSTEM SET synchronous_standby_names = 'gone'", "SELECT pg_reload_conf()"):
            admin.exec_driver_sql(words)
        hung = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        waiting: list[asyncio.Task[None]] = []
        while not admin.exec_driver_sql(hung).scalar_one():
            own = change()
            waiting.append(asyncio.create_task(database.commits.lasting(database.commits.number)))
            await asyncio.sleep(0.05)
        admin.exec_driver_sql(f"SELECT pg_terminate_backend({own})")
        with pytest.raises(sa.exc.DBAPIError):
            change()
        rescue = threading.Timer(30, fragile.crash)  # without which a failure would last for ever
        rescue.start()
        change()  # did not come back before the standby did
        rescue.cancel()
        assert isinstance((await asyncio.gather(*waiting, return_exceptions=True))[-1], DatabaseLost)
        for words in ("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"):
            admin.exec_driver_sql(words)
        await database.commits.lasting(database.commits.number)
        admin.close()
        database.close()

    asyncio.run(work())


def test_answers_wait_for_the_disk_whatever_the_server_does_by_default(fragile: FragileDatabase) -> None:
    async def work() -> None:
        Database(fragile.url).close()
        engine = sa.create_engine(fragile.url.replace("postgresql://", "postgresql+psycopg://"))
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as admin:
            admin.exec_driver_sql("ALTER DATABASE postgres SET synchronous_commit = off")
        engine.dispose()
        database = Database(fragile.url)
        with database.deciding() as (db, _):
            db.execute(sa.text("UPDATE ledger SET epoch = epoch + 1"))
        behind = fragile.rows("SELECT pg_current_wal_insert_lsn() AS at")[0].at
        await database.commits.lasting(database.commits.number)
        assert fragile.rows(f"SELECT '{behind}'::pg_lsn - pg_current_wal_flush_lsn() AS bytes")[0].bytes <= 0
        database.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    "error",
    [
        sa.exc.ProgrammingError("SELECT", {}, Exception("permission denied for function")),
        AttributeError("permission denied for function"),
    ],
)
def test_why_nothing_reaches_the_disk_is_in_the_log(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    class Connection:
        def execute(self, statement: object) -> None:
            if "emit" in str(statement):
                raise error

        def close(self) -> None: ...

    async def work() -> None:
        commits = Commits(Connection)  # type: ignore[arg-type]
        commits.renewed()
        with pytest.raises(DatabaseLost):
            async with asyncio.timeout(20):
                await commits.lasting(commits.number)
        commits.close()

    asyncio.run(work())
    assert "permission denied for function" in caplog.text


def test_a_flush_that_failed_is_not_tried_again_for_what_was_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Connection:
        def execute(self, statement: object) -> None:
            if "emit" in str(statement):
                raise sa.exc.DBAPIError("", None, Exception("gone"))

        def close(self) -> None: ...

    commits = Commits(Connection)  # type: ignore[arg-type]
    commits.renewed()
    looks = list[bool]()
    settle = commits._settle
    monkeypatch.setattr(commits, "_settle", lambda: (looks.append(commits.broken), settle()))
    commits.made()
    for _ in range(10):
        commits.announce()
        time.sleep(0.02)
    commits.close()
    assert looks == [True]


def test_every_answer_announces_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announced, awaited = list[int](), list[int]()

    def announce(_: Commits) -> int:
        announced.append(len(announced) + 1)
        return announced[-1]

    async def lasting(_: Commits, number: int) -> None:
        awaited.append(number)

    monkeypatch.setattr(Commits, "announce", announce)
    monkeypatch.setattr(Commits, "lasting", lasting)

    async def work() -> None:
        address = f"unix:{socket_path(tmp_path)}"
        async with serve(tmp_path), PoolClient(address) as client:
            await client.devices()
            assert awaited == announced == [1]
            with pytest.raises(PoolError):  # no GPU server is there
                await anext(client.acquire("k", SliceRequest(memory_bytes=GIB), Holder("anna")))
        assert len(announced) > 1
        assert awaited == announced

    asyncio.run(work())
