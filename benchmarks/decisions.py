"""The pool's own work: the time of a grant, grants a second, the longest pause of its loops, a class that arrives at once, and the memory of a lease.

Decisions are made by a real pool on a real SQLite file; its GPU servers are stand-ins that call every worker ready at once,
except in the last table, whose workers are real.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from asyncio.events import Handle
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import grpc
import sqlalchemy as sa

import gpukernel.common.proto.pool_pb2 as pb
from benchmarks.report import Table, mebibytes
from gpukernel.client.pool import PoolClient
from gpukernel.common.address import resolve_address
from gpukernel.common.bounds import Bounds, Subject
from gpukernel.common.course import Course
from gpukernel.common.model import Device, Holder, Lease, Queued, SliceRequest
from gpukernel.embedded import EmbeddedPool
from gpukernel.pool.domain.fencing import NOBODY, Registration
from gpukernel.pool.leases.agent_sessions import AgentSessions
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.rpc.garbage import collect_by_the_clock
from gpukernel.pool.rpc.server import RunningPool, serve
from gpukernel.pool.scheduling.pending_request import PendingRequest
from gpukernel.pool.store import schema
from gpukernel.pool.store.policy import write_policy
from gpukernel.pool.store.store import Store

GIB = 2**30
MEMORY = 32 * GIB
SLICE = SliceRequest(share=0.02)
HOLDER = Holder("benchmark", course="ml101")


class PromptServer:
    """A GPU server whose workers are ready at once, and which has none."""

    def __init__(self, manager: LeaseManager, devices: int, name: str = "s") -> None:
        self.sessions, self.name = AgentSessions(manager), name
        self.attachment = self.sessions.attach(
            name, self, self.found(devices), {}, "", self.registration(name)
        )

    def found(self, devices: int) -> list[Device]:
        """Return what its machine has."""
        return [Device(f"{self.name}/{i}", self.name, i, "Tesla V100", MEMORY) for i in range(devices)]

    @staticmethod
    def registration(_: str) -> Registration:
        """Return who its agent is: one of a version that says nothing about itself."""
        return NOBODY

    def start_worker(self, lease: Lease, device_id: str, memory_bytes: int, weight: float) -> None:
        self.sessions.worker_ready(self.name, lease.id, device_id, ("unix:/x",))

    def start_direct(self, *_: object) -> None:
        raise NotImplementedError

    def stop_worker(self, lease_id: str, device_id: str, reason: str) -> None:
        self.sessions.worker_ended(self.name, lease_id, device_id, "stopped")

    def interrupt_worker(self, lease_id: str, device_id: str) -> None: ...

    def limit_worker(self, lease_id: str, device_id: str, memory_bytes: int, weight: float) -> None: ...


class Times:
    """The times of something, in seconds: on the clock, and of this process' processor time."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self.processors: list[float] = []

    def __enter__(self) -> None:
        self._begin = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.taken.append(time.perf_counter() - self._begin[0])
        self.processors.append(time.process_time() - self._begin[1])

    @property
    def median(self) -> float:
        return statistics.median(self.taken)

    @property
    def rate(self) -> float:
        return len(self.taken) / sum(self.taken)

    @property
    def processor(self) -> float:
        return sum(self.processors) / len(self.taken)

    def figures(self) -> list[str]:
        """Return median, 99th percentile and mean processor time."""
        last = sorted(self.taken)[math.ceil(len(self.taken) * 0.99) - 1]
        return [milliseconds(one) for one in (self.median, last, self.processor)]


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


@asynccontextmanager
async def running(devices: int) -> AsyncIterator[RunningPool]:
    with tempfile.TemporaryDirectory(prefix="gpukernel-") as folder:
        async with serve(Path(folder)) as pool:
            PromptServer(pool.manager, devices)
            yield pool


@asynccontextmanager
async def elsewhere(live: int) -> AsyncIterator[tuple[str, str]]:
    """Run a pool with `live` leases and an echo in a process of their own, as people's pools are; yield their addresses."""
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        f"from benchmarks import decisions; decisions.stand({live})",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        pool, _, echo = (await program.stdout.readline()).decode().strip().partition(" ")
        if not echo:
            raise RuntimeError("the pool did not start")
        yield pool, echo
    finally:
        program.stdin.close()
        await program.wait()


def stand(live: int) -> None:
    """Be `elsewhere`'s pool, until standard input ends."""

    async def echo(request: bytes, _: object) -> bytes:
        return request

    async def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with running(live // 50 + 2) as pool:
                bare, address = grpc.aio.server(), f"unix:{folder}/echo.sock"
                method = {"echo": grpc.unary_unary_rpc_method_handler(echo)}
                bare.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", method),))
                bare.add_insecure_port(address)
                await bare.start()
                for number in range(live):
                    await get(pool.manager, f"live {number}")
                collecting = asyncio.create_task(collect_by_the_clock())  # as `gpukernel pool` does
                print(pool.address, address, flush=True)
                await asyncio.to_thread(sys.stdin.read)
                await bare.stop(None)
                collecting.cancel()

    asyncio.run(work())


async def get(manager: LeaseManager, key: str) -> Lease:
    async for event in manager.acquire(key, SLICE, HOLDER, 0, 3600):
        if isinstance(event, Lease):
            return event
    raise AssertionError


def file_size(path: Path) -> int:
    return path.stat().st_size


def bare_transaction(folder: Path) -> Times:
    """Measure a transaction that changes one row, in SQLite as the pool sets it: no decision can cost less."""
    db = sqlite3.connect(folder / "bare.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    db.execute("CREATE TABLE t (n INTEGER)")
    db.execute("INSERT INTO t VALUES (0)")
    times = Times()
    for _ in range(300):
        with times:
            db.execute("BEGIN IMMEDIATE")
            db.execute("UPDATE t SET n = n + 1")
            db.execute("COMMIT")
    db.close()
    return times


async def grants(live: int = 400, count: int = 600) -> Table:
    """Measure acquire to grant beside `live` leases, from a client over the unix socket and inside the pool."""
    table = Table(
        "A grant beside 400 live leases",
        ["figure", "median", "p99", "processor", "÷ bare transaction", "aim"],
        notes="Acquire to grant, the lease on disk. Bare transaction: one row changed in SQLite as the pool sets it. "
        "The workers are stand-ins that are ready at once. The client of the pool is another process, and has a connection; its processor time is its own, as with the bare call. "
        f"Load of the machine's {os.cpu_count()} processors meanwhile: {os.getloadavg()[0]:.1f}.",
    )
    async with running((live + count) // 50 + 2) as pool:
        for number in range(live):
            await get(pool.manager, f"live {number}")
        with tempfile.TemporaryDirectory() as folder:
            bare = bare_transaction(Path(folder))
        inside, granting, outside, renewing, calling = (Times() for _ in range(5))
        leases = []
        for number in range(count):
            with inside:
                leases.append(await get(pool.manager, f"in {number}"))
        for lease in leases:
            pool.manager.end(lease.id, "done")
        for number in range(count):
            with granting:
                pool.manager.end((await get(pool.manager, f"in {number}")).id, "done")
    async with (
        elsewhere(live) as (address, echo),
        PoolClient(address) as client,
        grpc.aio.insecure_channel(echo) as channel,
    ):
        call = channel.unary_unary("/bare/echo")
        await client.acquire_now("the first", SLICE, HOLDER)
        await call(b"")
        for number in range(count):
            with calling:
                await call(bytes(100))
            with outside:
                lease = await client.acquire_now(f"out {number}", SLICE, HOLDER)
            with renewing:
                await client.renew(lease.id)
            await client.release(lease.id)
    for name, times, aim in (
        ("a grant inside the pool", inside, ""),
        ("a grant and its release inside the pool", granting, ""),
        ("a grant for a client", outside, "p99 ≤ 10 ms"),
        ("a renewal for a client", renewing, ""),
        ("bare transaction", bare, ""),
        ("bare call of gRPC's to another process", calling, ""),
    ):
        table.rows.append([name, *times.figures(), f"{times.median / bare.median:.1f}", aim])
    table.rows.append(["grants a second, one after the other", f"{inside.rate:.0f}", "", "", "", "≥ 500"])
    table.rows.append(["the same by processor time", f"{1 / inside.processor:.0f}", "", "", "", ""])
    return table


async def a_class(people: int = 200) -> Table:
    """Measure a class: everybody asks within a second, over connections of their own, and 100 slices are there."""
    async with running(2) as pool:
        granted: list[float] = []
        told: list[float] = []
        begin = time.perf_counter()

        async def person(number: int) -> None:
            await asyncio.sleep(number / people)
            async with PoolClient(pool.address) as client:
                holder = Holder(f"person {number}", course="ml101")
                async for event in client.acquire(f"class {number}", SLICE, holder, ttl_seconds=3600):
                    if isinstance(event, Queued):
                        told.append(time.perf_counter() - begin)
                        return
                    granted.append(time.perf_counter() - begin)

        await asyncio.gather(*(person(number) for number in range(people)))
    return Table(
        "A class of 200 that arrives within one second",
        ["figure", "value"],
        [
            ["granted at once", str(len(granted))],
            ["told their place", str(len(told))],
            ["last grant or place, after the first arrival", f"{max(granted + told):.2f} s"],
        ],
        notes="The pool has 100 such slices; each person has a connection of their own.",
    )


def flood(address: str) -> None:
    """Flood a pool as an administrator, whose calls nobody counts: lists, grants and streams that name many leases."""
    names = [f"{number:016x}" for number in range(1000)]

    async def hold(client: PoolClient) -> None:
        while True:
            call = client._pool.Hold()
            await call.write(pb.HoldRequest(hold=names))
            for _ in names:
                await call.read()
            call.cancel()

    async def look(client: PoolClient) -> None:
        while True:
            await client.leases(include_ended=True)

    async def take(client: PoolClient, number: int) -> None:
        while True:
            await client.release((await client.acquire_now(f"flood {number}", SLICE, HOLDER)).id)

    async def work() -> None:
        async with PoolClient(address) as client:
            await asyncio.gather(
                *(hold(client) for _ in range(4)), *(look(client) for _ in range(4)), take(client, 1)
            )

    asyncio.run(work())


async def pauses(live: int = 300, seconds: float = 10) -> Table:
    """Measure the longest callback of the pool's two event loops while a process floods it."""
    longest: dict[str, tuple[float, float]] = {}
    run = Handle._run

    def timed(handle: Handle) -> None:
        begin, processor = time.perf_counter(), time.thread_time()
        run(handle)
        took = time.perf_counter() - begin, time.thread_time() - processor
        name = threading.current_thread().name
        longest[name] = max(longest.get(name, took), took)

    async with running(live // 50 + 2) as pool:
        for number in range(live):
            await get(pool.manager, f"live {number}")
        code = f"from benchmarks import decisions; decisions.flood({pool.address!r})"
        program = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
        await asyncio.sleep(2)
        with mock.patch.object(Handle, "_run", timed):
            await asyncio.sleep(seconds)
        program.kill()
        await program.wait()
    names = {"gpukernel-io": "the I/O loop", "MainThread": "the deciding loop"}
    return Table(
        "The longest pause of the pool's loops under a flood",
        ["loop", "on the clock", "processor", "aim"],
        [
            [names[name], milliseconds(took[0]), milliseconds(took[1]), "≤ 50 ms"]
            for name, took in sorted(longest.items())
            if name in names
        ],
        notes=f"Beside {live} live leases, for {seconds:g} s: an administrator's process that nobody slows down lists leases, takes slices, "
        "and names 1,000 leases in each message of four streams.",
    )


def fill(store: Store, leases: int) -> None:
    """Write as many leases as the pool would hold after granting them one by one, in one go; 40 of 50 on each device."""
    share, memory = 20_000, int(0.02 * MEMORY) // 2**20 * 2**20
    devices = max(leases // 40, 1) + 1
    with store.engine.begin() as db:
        db.execute(schema.servers.insert().values(name="big", pool="", away_since=None))
        per = [min(40, leases - 40 * d) for d in range(devices)]
        db.execute(
            schema.devices.insert(),
            [
                {
                    "id": f"big/{d}",
                    "server": "big",
                    "index": d,
                    "name": "Tesla V100",
                    "memory_bytes": MEMORY,
                    "promised_bytes": max(per[d], 0) * memory,
                    "compute_capability": "7.0",
                    "multiprocessors": 80,
                    "available": True,
                }
                for d in range(devices)
            ],
        )
        now = time.time()
        common = {
            "person": "benchmark",
            "server": "",
            "course": "ml101",
            "description": "",
            "secret": "0" * 64,
            "state": "live",
            "created": now,
            "expires": now + 1e6,
            "ttl_seconds": 1e6,
            "until": None,
            "share": share,
            "memory_bytes": memory,
        }
        db.execute(
            schema.leases.insert(),
            [{"id": f"{n:016x}", "key": f"big {n}", "epoch": n + 1, **common} for n in range(leases)],
        )
        db.execute(
            schema.slices.insert(),
            [
                {
                    "lease_id": f"{n:016x}",
                    "ordinal": 0,
                    "device_id": f"big/{n // 40}",
                    "memory_bytes": memory,
                    "limit_bytes": memory,
                    "weight": 0.02,
                    "worker": "ready",
                    "endpoints": "unix:/x",
                }
                for n in range(leases)
            ],
        )
        spans = [
            {"lease_id": f"{n:016x}", "begins": now, "ends": None, "share": share, "memory_bytes": memory}
            for n in range(leases)
        ]
        db.execute(schema.usage_log.insert(), spans)
        held = {"share_held": share * leases, "memory_held": memory * leases, "leases_held": leases}
        keys = (
            ("pool", "", ""),
            ("course", "ml101", ""),
            ("member", "ml101", "benchmark"),
            ("person", "", "benchmark"),
        )
        db.execute(
            schema.quota_usage.insert(),
            [{"kind": k, "course": c, "person": p, "settled": now, **held} for k, c, p in keys],
        )
        db.execute(
            schema.ledger.update().values(
                epoch=leases + 1, devices_version=schema.ledger.c.devices_version + 1
            )
        )


async def growth(sizes: Sequence[int] = (10, 1_000, 100_000), count: int = 200) -> Table:
    """Measure one decision with ever more leases in the book."""
    table = Table(
        "One decision in ever larger pools",
        [
            "live leases",
            "median",
            "p99",
            "processor",
            "÷ 10 leases",
            "a second of the clock",
            "database per lease",
        ],
        notes="Acquire to grant inside the pool; 40 leases on each simulated V100. Aim: no faster than the logarithm, by processor time. "
        "A second of the clock: processor time of what the pool does every second.",
    )
    first = 0.0
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="gpukernel-") as folder:
            path = Path(folder, "pool.db")
            store = Store(f"sqlite:///{path}")
            empty = file_size(path)
            fill(store, size)
            store.write_back()  # as a pool does every second
            manager = LeaseManager(store)
            with store.engine.begin() as db:  # as if the agent of those devices were attached
                db.execute(schema.devices.update().values(available=True))
                db.execute(schema.servers.update().values(away_since=None))
                db.execute(
                    sa.update(schema.ledger).values(devices_version=schema.ledger.c.devices_version + 1)
                )
            manager.orders._agents["big"] = _Ready(manager)
            times, ticks = Times(), Times()
            for number in range(count):
                with times:
                    lease = await get(manager, f"more {number}")
                manager.end(lease.id, "done")
            for _ in range(10):
                with ticks:
                    manager.tick()
            store.close()  # the last connection writes everything into the one file
            bytes_each = (file_size(path) - empty) / size
        first = first or times.processor
        cost = f"{bytes_each / 1024:.1f} KiB" if size > 100 else ""
        growth, second = f"{times.processor / first:.2f}", milliseconds(ticks.processor)
        table.rows.append([f"{size:,}", *times.figures(), growth, second, cost])
    return table


async def queues(sizes: Sequence[int] = (50, 5_000), count: int = 100) -> Table:
    """Measure a decision beside ever more requests that wait: for room in one class and in all, for quotas, and while leases give way."""
    table = Table(
        "One decision beside ever more that wait",
        ["waiting", "requests", "median", "p99", "processor", "÷ 50 waiting"],
        notes="A full pool of 64 simulated V100, one lease on each; a request for a whole one comes, waits and leaves: two decisions, its place and reason, and what is told to all. "
        "The pools of a kind take turns; processor: the median. Course quotas: every course holds what it may. Own quotas: so does every person. "
        "Giving way: the leases are batch, and of the interactive requests ahead each has made as many give way as it may. Aim: at most 2.",
    )
    for name in ("interactive", "all classes", "course quotas", "own quotas", "giving way"):
        async with AsyncExitStack() as stack:
            pools = [(await stack.enter_async_context(_beside(size, name)), Times()) for size in sizes]
            for number in range(count):
                for manager, times in pools:
                    holder = replace(HOLDER, course="course 0")
                    call = manager.acquire(f"asks {number}", SliceRequest(share=1.0), holder, -1, 3600)
                    with times:
                        await anext(call)
                        await call.aclose()
        first = statistics.median(pools[0][1].processors)
        for size, (_, times) in zip(sizes, pools, strict=True):
            processor = statistics.median(times.processors)
            figures = [*times.figures()[:2], milliseconds(processor), f"{processor / first:.2f}"]
            table.rows.append([f"{size:,}", name, *figures])
    return table


@asynccontextmanager
async def _beside(size: int, name: str) -> AsyncIterator[LeaseManager]:
    """Run a pool in which `size` requests wait."""
    whole = SliceRequest(share=1.0)
    classes = ("interactive",) if name == "interactive" else ("interactive", "batch", "scavenger")
    quotas = {
        "course quotas": {Subject("course", course=f"course {n}"): Bounds(leases=1) for n in range(20)},
        "own quotas": {Subject("person", person="*"): Bounds(leases=1)},
    }.get(name, {})
    async with running(64) as pool:
        manager = pool.manager
        held = replace(whole, priority="batch" if name == "giving way" else "interactive")
        for number in range(64):
            async for _event in manager.acquire(f"held {number}", held, HOLDER, -1, 3600):
                pass
        with manager.store.deciding() as (db, row):
            now = manager.now()
            before = manager.store.policy.current(db, row.policy_version)
            courses = {f"course {n}": Course(f"course {n}", members={"*": "student"}) for n in range(20)}
            after = replace(before, courses=courses, quotas=quotas, least_run=0.0, notice=3600.0)
            write_policy(db, before, after, "the benchmark", now)
            whose = [("course", f"course {n}", "") for n in range(20 if name == "course quotas" else 0)]
            whose += [("person", "", f"person {n}") for n in range(size if name == "own quotas" else 0)]
            books = [
                {"kind": k, "course": c, "person": p, "settled": now, "leases_held": 1} for k, c, p in whose
            ]
            db.execute(schema.quota_usage.insert(), books) if books else None
        with manager.store.deciding() as (db, row):
            manager._queue._requests.refresh(db, row.queue_version)
            for number in range(size):
                entry = PendingRequest(
                    f"waits {number}",
                    replace(whole, priority=classes[number % len(classes)]),
                    Holder(f"person {number}", course=f"course {number % 20}"),
                    "student",
                    3600,
                    0.0,
                    now - 60.0,
                    manager.id,
                    manager.steady(),
                    1_000_000,
                    number + 1,
                )
                manager.waiters.enter(entry.key, "")
                manager._queue._requests.put(db, entry)
        for _ in range(8):  # whoever may give way does
            manager.schedule()
        gc.collect()
        yield manager


class _Ready(PromptServer):
    def __init__(self, manager: LeaseManager) -> None:
        self.sessions, self.name = AgentSessions(manager), "big"


async def real(leases: int = 400) -> Table:
    """Measure eight simulated V100s, fifty slices each, every one with its worker."""
    from benchmarks.pool import worker_memory

    with EmbeddedPool("v100:8") as pool:
        assert pool.process is not None
        status = Path(f"/proc/{pool.process.pid}/status")

        def resident() -> int:
            line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
            return int(line.split()[1]) * 1024

        before = resident()
        async with PoolClient(resolve_address(None, pool.state)) as client:
            begin = time.perf_counter()
            slots = asyncio.Semaphore(8)

            async def one(number: int) -> None:
                async with slots:
                    await client.acquire_now(f"real {number}", SLICE, HOLDER, ttl_seconds=3600)

            await asyncio.gather(*(one(number) for number in range(leases)))
            took = time.perf_counter() - begin
            held = [lease for lease in (await client.leases())[0] if lease.state == "live"]
            workers, after = worker_memory(), resident()
    return Table(
        "400 leases at once, each with a worker",
        ["figure", "value"],
        [
            ["live leases on 8 simulated V100", str(len(held))],
            ["workers", str(len(workers))],
            ["time until the last is live", f"{took:.1f} s"],
            ["proportional memory of all workers", mebibytes(sum(w.pss for w in workers))],
            ["pool and agent, per lease", f"{(after - before) / leases / 1024:.0f} KiB"],
        ],
    )


async def measure() -> list[Table]:
    """Return every table."""
    return [await grants(), await pauses(), await a_class(), await growth(), await queues(), await real()]
