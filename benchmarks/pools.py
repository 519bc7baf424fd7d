"""Several pools on one PostgreSQL database: grants a second, what following the others costs, and the rows that idle heartbeats write.

Each pool is a process of its own, with `AGENTS` GPU servers whose workers are ready at once; the database server is started for the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import pwd
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import sqlalchemy as sa

from benchmarks.decisions import HOLDER, SLICE, PromptServer, Times
from benchmarks.report import Table
from gpukernel.client.pool import PoolClient
from gpukernel.common.model import Holder, Lease, SliceRequest
from gpukernel.pool.domain.fencing import Registration
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.rpc import peers
from gpukernel.pool.rpc.garbage import collect_by_the_clock
from gpukernel.pool.rpc.server import serve
from gpukernel.pool.store.store import Store

AGENTS = 150
HEARTBEAT_SECONDS = 2.0
STOPPING_SECONDS = 0.005
GRANTS = 600
WARM = 20  # grants before those that are measured
REST_SECONDS = 0.05  # after each, in which its worker ends and its memory is free again
TRIPS = 3
"""Bare trips to the database and back after each grant, which show what this machine needs for one meanwhile."""

CHANGES = 100
"""Changes that a pool follows: a third each of grants, beginnings and ends."""

ROUNDS = 5

CLIENTS = 16
"""Clients of each pool, each of which takes one slice after the other."""

FLUSHES = 20
SLOWER_MS = 10  # of a disk as many servers have it

LIVE = 20_000
"""Leases that are live meanwhile, where several pools are compared; they are made `AT_ONCE` at a time."""

AT_ONCE = 100
DEVICES = 2
GIVEN = 4  # devices of each server, where so many leases are live

BUDGET = 0.2
"""Processors of each pool, where they are to have machines of their own: three of them and PostgreSQL fit into two processors."""

PERIOD_MICROSECONDS = 20_000
V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")

SECONDS = 6.0
SETTLE_SECONDS = 3.0


@contextlib.contextmanager
def postgresql(slower: int = 0) -> Iterator[str]:
    """Run a PostgreSQL server with its defaults, on a disk whose flushes take `slower` milliseconds longer; yield the address of its
    databases, with “DATABASE” for a name.
    """
    found = shutil.which("initdb")
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if found is None and not installed:
        sys.exit("The benchmark “pools” needs PostgreSQL (Debian, Ubuntu: apt-get install postgresql).")
    programs = Path(found).parent if found else installed[-1]
    root = os.geteuid() == 0
    known = {account.pw_name for account in pwd.getpwall()}
    user = next(name for name in ("postgres", "nobody") if name in known) if root else getpass.getuser()
    account = pwd.getpwnam(user)  # the server refuses to run as root
    with tempfile.TemporaryDirectory(prefix="gpukernel-pg-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.chown(folder, account.pw_uid, account.pw_gid)

        def run(*command: object) -> None:
            who = {"user": account.pw_uid, "group": account.pw_gid} if root else {}
            words = [str(word) for word in command]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd=folder, **who)  # type: ignore[call-overload]

        data = folder / "data"
        run(programs / "initdb", "-D", data, "-A", "trust", "-U", "pool")
        options = f"-k {folder} -c listen_addresses= -c commit_delay={1000 * slower} -c commit_siblings=0"
        run(programs / "pg_ctl", "-D", data, "-l", folder / "log", "-o", options, "-w", "start")
        try:
            yield f"postgresql://pool@/DATABASE?host={folder}"
        finally:
            run(programs / "pg_ctl", "-D", data, "-m", "immediate", "stop")


class BeatingServer(PromptServer):
    """A GPU server of `PromptServer`'s, whose agent gives signs of life, and whose workers take `STOPPING_SECONDS` to end."""

    over = False  # its pool has ended, and hears nothing

    @staticmethod
    def registration(name: str) -> Registration:
        """Return who its agent is."""
        return Registration("account 0", "machine", name, name)

    def beat(self) -> None:
        """Give one sign of life."""
        self.sessions.heard(self.attachment)

    def stop_worker(self, lease_id: str, device_id: str, reason: str) -> None:
        """Say a moment later that the worker has ended, as an agent does: not within the call that has it ended."""
        asyncio.get_running_loop().call_later(STOPPING_SECONDS, self._stopped, lease_id, device_id, reason)

    def _stopped(self, lease_id: str, device_id: str, reason: str) -> None:
        if not self.over:
            super().stop_worker(lease_id, device_id, reason)

    def close(self, displaced: str = "") -> None:
        """Nothing is to be closed."""


# --- one pool: a process that obeys lines on its standard input ---


def stand(number: int, *, each_waits: bool, servers: int, devices: int) -> None:
    """Be pool `number` until standard input ends; `each_waits`: each commit waits for the disk and holds its locks meanwhile."""
    asyncio.run(_stand(number, each_waits=each_waits, servers=servers, devices=devices))


async def _stand(number: int, *, each_waits: bool, servers: int, devices: int) -> None:
    with tempfile.TemporaryDirectory(prefix="gpukernel-") as folder:
        async with serve(Path(folder)) as pool:
            manager = pool.manager
            if each_waits:
                with manager.store.transaction() as db:
                    db.execute(sa.text("SET SESSION synchronous_commit = on"))
            agents = [BeatingServer(manager, devices, f"p{number}-{n}") for n in range(servers)]
            collecting = asyncio.create_task(collect_by_the_clock())  # as `gpukernel pool` does
            beating = asyncio.create_task(_beat(agents))
            print("here", pool.address, flush=True)
            loop = asyncio.get_running_loop()
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                command, *arguments = line.split()
                assert command in {"work", "hold"}
                if command == "work":
                    print(await _work(manager, number, *map(float, arguments)), flush=True)
                else:
                    print(await _hold(manager, number, servers, int(arguments[0])), flush=True)
            beating.cancel()
            collecting.cancel()
            await asyncio.sleep(4 * STOPPING_SECONDS)  # until the last workers have ended
            for agent in agents:
                agent.over = True


async def _beat(agents: list[BeatingServer]) -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        for agent in agents:
            agent.beat()


async def _work(manager: LeaseManager, number: int, seconds: float, clients: float) -> int:
    """Take and release slices of this pool's servers as fast as possible for a time, by so many clients; return how many."""
    begin, counts = time.perf_counter(), [0] * round(clients)

    async def client(which: int) -> None:
        while time.perf_counter() - begin < seconds:
            await _cycle(manager, f"{number} {which} {counts[which]}", f"p{number}-{which}")
            counts[which] += 1
            await asyncio.sleep(0)

    await asyncio.gather(*map(client, range(len(counts))))
    return sum(counts)


async def _hold(manager: LeaseManager, number: int, servers: int, count: int) -> int:
    """Take `count` slices all over this pool's servers, of two for each person and a hundred courses, and keep them; return how many there are."""

    async def take(which: int) -> bool:
        wanted = SliceRequest(share=0.02, server=f"p{number}-{which % servers}")
        holder = Holder(f"person {number} {which // 2}", course=f"course {which // 2 % 100}")
        async for event in manager.acquire(f"held {number} {which}", wanted, holder, 0, 3600):
            if isinstance(event, Lease):
                return True
        return False

    held = 0
    for begin in range(0, count, AT_ONCE):
        held += sum(await asyncio.gather(*(take(begin + n) for n in range(min(AT_ONCE, count - begin)))))
    return held


async def _cycle(manager: LeaseManager, key: str, server: str) -> None:
    """Take a slice on a server, and release it once its holder may hear of it: three changes."""
    wanted = SliceRequest(share=0.02, server=server)
    async for event in manager.acquire(key, wanted, HOLDER, 0, 3600):
        if isinstance(event, Lease):
            await manager.store.commits.lasting(manager.store.commits.number)
            manager.end(event.id, "done")


# --- the run ---


@contextlib.contextmanager
def budgets(count: int, processors: float) -> Iterator[list[Path]]:
    """Make `count` groups that get so many processors each, and yield the files that take the numbers of their processes.

    Raises
    ------
    OSError
        This account may make no groups, or the system has none.
    """
    made: list[Path] = []
    quota = round(processors * PERIOD_MICROSECONDS)
    try:
        for number in range(count):
            first = (V1 / "cpu.cfs_quota_us").exists() or (V1 / "cpu.shares").exists()
            group = (V1 if first else V2) / f"gpukernel-benchmark-{os.getpid()}-{number}"
            group.mkdir()
            made.append(group)
            if first:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            else:
                (group / "cpu.max").write_text(f"{quota} {PERIOD_MICROSECONDS}")
        yield [group / "cgroup.procs" for group in made]
    finally:
        for group in made:
            # An empty group that stays, of a process that has not gone yet, costs nothing.
            with contextlib.suppress(OSError):
                group.rmdir()


class Process:
    """A pool of `stand`, at `address`."""

    def __init__(self, program: asyncio.subprocess.Process) -> None:
        self._program = program
        self.address = ""

    @classmethod
    async def start(
        cls, url: str, number: int, *, each_waits: bool, servers: int = AGENTS, devices: int = DEVICES
    ) -> Process:
        """Return pool `number` on the database at `url`, once its agents are attached."""
        how = f"each_waits={each_waits}, servers={servers}, devices={devices}"
        code = f"from benchmarks import pools; pools.stand({number}, {how})"
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            code,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "GPUKERNEL_DATABASE": url},
        )
        process = cls(program)
        here, _, process.address = (await process.answer()).partition(" ")
        if here != "here":
            raise RuntimeError("a pool did not start")
        return process

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._program.pid

    async def answer(self) -> str:
        """Return the next line."""
        assert self._program.stdout is not None
        return (await self._program.stdout.readline()).decode().strip()

    async def ask(self, line: str) -> float:
        """Have it do something; return its answer."""
        assert self._program.stdin is not None
        self._program.stdin.write(f"{line}\n".encode())
        await self._program.stdin.drain()
        return float(await self.answer())

    async def end(self) -> None:
        """Stop it."""
        assert self._program.stdin is not None
        self._program.stdin.close()
        await self._program.wait()


def new_database(address: str, name: str) -> str:
    """Make a database; return its address."""
    server = sa.create_engine(_driver(address, "postgres"), isolation_level="AUTOCOMMIT")
    with server.connect() as db:
        db.execute(sa.text(f"CREATE DATABASE {name}"))
    server.dispose()
    return address.replace("DATABASE", name)


@contextlib.asynccontextmanager
async def running(
    address: str,
    name: str,
    count: int,
    *,
    each_waits: bool = False,
    servers: int = AGENTS,
    devices: int = DEVICES,
) -> AsyncIterator[list[Process]]:
    """Run `count` pools on a new database, each with so many servers."""
    url = new_database(address, name)
    found = [
        await Process.start(url, number, each_waits=each_waits, servers=servers, devices=devices)
        for number in range(count)
    ]
    await asyncio.sleep(SETTLE_SECONDS)
    try:
        yield found
    finally:
        for process in found:
            await process.end()


def _driver(address: str, name: str) -> str:
    return address.replace("postgresql://", "postgresql+psycopg://").replace("DATABASE", name)


def _rows(address: str, name: str) -> dict[str, int]:
    """Return the rows that were ever written, by table."""
    engine = sa.create_engine(_driver(address, name))
    with engine.connect() as db:
        query = "SELECT relname, n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_user_tables"
        found = {row[0]: row[1] for row in db.execute(sa.text(query))}
    engine.dispose()
    return found


async def _following(url: str, count: int) -> tuple[float, float, float]:
    """Return the processor seconds that a pool takes to follow `CHANGES` changes, of all the others together: as it does now; where it reads
    everything at each notification; and where it runs a scheduling cycle then as well, as before there was a log.

    The pools are in this process, and notified `1 / NOTIFY_SECONDS` times, so that nothing but their work is measured.
    """
    stores = [Store(url) for _ in range(count)]
    managers = [LeaseManager(store) for store in stores]
    agents = [
        BeatingServer(manager, DEVICES, f"p{number}-{n}")
        for number, manager in enumerate(managers)
        for n in range(AGENTS)
    ]
    follower, others = managers[-1], managers[:-1]
    notifications = round(1 / peers.NOTIFY_SECONDS)

    def read_everything() -> None:
        follower.following._read_all()
        follower.places_changed()

    def read_and_schedule() -> None:
        read_everything()
        follower._queue.run_cycle(follower.now(), set())

    ways = (follower.look, read_everything, read_and_schedule)
    spent: list[list[float]] = [[] for _ in ways]
    key = 0
    for turn in range(3 * ROUNDS):
        follower.look()
        which, total = turn % 3, 0.0
        for notification in range(notifications):
            for _ in range(
                CHANGES // 3 * (notification + 1) // notifications
                - CHANGES // 3 * notification // notifications
            ):
                number = key % len(others)
                await _cycle(others[number], f"{key}", f"p{number}-")
                key += 1
            begin = time.process_time()
            ways[which]()
            total += time.process_time() - begin
        spent[which].append(total)
    for agent in agents:
        agent.over = True
    for store in stores:
        store.close()
    now, everything, cycles = (statistics.median(each) for each in spent)
    return now, everything, cycles


async def _grants(pools: list[Process]) -> float:
    """Return the grants and releases a second of all pools together, each as fast as it can."""
    return sum(await asyncio.gather(*(pool.ask(f"work {SECONDS} {CLIENTS}") for pool in pools))) / SECONDS


@contextlib.contextmanager
def _connected(address: str) -> Iterator[sa.Connection]:
    engine = sa.create_engine(_driver(address, "postgres"), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as db:
            yield db
    finally:
        engine.dispose()


def _checkpoint(address: str) -> None:
    with _connected(address) as db:
        db.execute(sa.text("CHECKPOINT"))


def _flush(address: str) -> float:
    """Return the seconds of a commit that waits for the disk: the median of some."""
    times = []
    with _connected(address) as db:
        for _ in range(FLUSHES):
            begin = time.perf_counter()
            db.execute(sa.text("SELECT pg_logical_emit_message(true, 'benchmark', '')"))
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


async def measure() -> list[Table]:
    """Return the figures of one, two and three pools."""
    followed = Table(
        f"What a pool with {AGENTS} agents takes to follow {CHANGES} changes of others",
        ["pools", "processor", "reading everything", "and scheduling", "aim"],
        notes=f"A third of the changes are grants. The others notify {1 / peers.NOTIFY_SECONDS:.0f} times meanwhile; beside it the same with a look at every agent, call and holder at each "
        f"notification, and with a scheduling cycle as well, as before there was a change log. Medians of {ROUNDS} rounds, interleaved.",
    )
    rates = Table(
        "Several pools on one PostgreSQL database",
        ["flush", "pools", "grants and releases a second", "where each commit waits for the disk", "ratio"],
        notes=f"Each pool is a process with {AGENTS} agents and {CLIENTS} clients, which hear of a lease once it is on disk. Flush: a commit that waits for the disk; the longer one by PostgreSQL's `commit_delay`. Load of the machine's {os.cpu_count()} processors before: {os.getloadavg()[0]:.1f}.",
    )
    beats = Table(
        "Heartbeats of idle agents",
        ["figure", "value", "aim"],
        notes=f"{AGENTS} agents, one heartbeat in {HEARTBEAT_SECONDS:g} s each; rows by PostgreSQL's own count.",
    )
    granting = Table(
        "A grant for a client on PostgreSQL",
        ["pools", "live leases", "median", "p99", "client's processor", "a trip", "its p99", "aim"],
        notes=f"Acquire to grant, {GRANTS} one after the other, each once the last one is over, the lease on disk; {AGENTS} servers, shared equally among the pools, so that with three two of three grants need another pool. A trip: `SELECT 1` and its answer, by turns with the grants. Load of the machine's {os.cpu_count()} processors before: {os.getloadavg()[0]:.1f}.",
    )
    alone = Table(
        f"Several pools with {BUDGET:g} of a processor each, beside {LIVE:,} live leases",
        ["pools that work", "grants and releases a second", "÷ one pool", "aim"],
        notes=f"Three pools with {AGENTS // 3} servers of {GIVEN} devices each; those that work do so on their own servers, at the shorter flush, and the others follow. Each pool is held to its share by cgroups, as if on a machine of its own, and PostgreSQL is not. The median of {ROUNDS} rounds, by turns.",
    )
    with postgresql() as address:
        for count in (2, 3):
            found = await _following(new_database(address, f"followed{count}"), count)
            followed.rows.append([str(count), *(f"{1000 * each:.1f} ms" for each in found), "≤ 5 ms"])
        await _count_rows(address, beats)
        for count in (1, 2, 3):
            name = f"granting{count}"
            async with running(address, name, count, servers=AGENTS // count, devices=GIVEN) as pools:
                await _for_a_client(address, pools, 0, granting)
        await _at_scale(address, alone, granting)
        await _add_rates(address, rates)
    with postgresql(slower=SLOWER_MS) as address:
        await _add_rates(address, rates)
    return [granting, followed, rates, alone, beats]


async def _for_a_client(address: str, pools: list[Process], live: int, granting: Table) -> None:
    """Measure acquire to grant beside `live` leases, from a client in another process than the pools; between two grants a bare trip to the database and back."""
    import psycopg

    grants, trips = Times(), Times()
    with psycopg.connect(address.replace("DATABASE", "postgres"), autocommit=True) as db:
        async with PoolClient(pools[0].address) as client:
            for number in range(WARM + GRANTS):
                counted = number >= WARM
                with grants if counted else contextlib.nullcontext():
                    lease = await client.acquire_now(f"out {number}", SLICE, HOLDER)
                await client.release(lease.id)
                await asyncio.sleep(REST_SECONDS)
                for _ in range(TRIPS if counted else 0):
                    with trips:
                        db.execute("SELECT 1")
    granting.rows.append(
        [str(len(pools)), f"{live:,}", *grants.figures(), *trips.figures()[:2], "p99 ≤ 25 ms"]
    )


async def _add_rates(address: str, rates: Table) -> None:
    flush = f"{1000 * _flush(address):.1f} ms"
    for count in (1, 2, 3):
        async with running(address, f"rates{count}", count) as pools:
            together = await _grants(pools)
        async with running(address, f"waits{count}", count, each_waits=True) as pools:
            each = await _grants(pools)
        rates.rows.append([flush, str(count), f"{together:.0f}", f"{each:.0f}", f"{together / each:.1f}"])


async def _at_scale(address: str, alone: Table, granting: Table) -> None:
    """Measure a client's grants beside `LIVE` leases of three pools, and then one, two and three of them at work with their own share of the processors."""
    async with running(address, "scale", 3, servers=AGENTS // 3, devices=GIVEN) as pools:
        held = sum(await asyncio.gather(*(pool.ask(f"hold {LIVE // 3}") for pool in pools)))
        # These leases are made within minutes here; their pages are written now, not beside what is measured.
        _checkpoint(address)
        await _for_a_client(address, pools, round(held), granting)
        rates: dict[int, list[float]] = {1: [], 2: [], 3: []}
        try:
            with budgets(len(pools), BUDGET) as groups:
                for pool, group in zip(pools, groups, strict=True):
                    group.write_text(str(pool.pid))
                for _ in range(ROUNDS):
                    for count, found in rates.items():
                        found.append(await _grants(pools[:count]))
                for pool in pools:
                    (groups[0].parents[1] / "cgroup.procs").write_text(str(pool.pid))
        except OSError as error:
            alone.rows.append(["—", f"no group may be made here: {error.strerror}", "", ""])
            return
    one = statistics.median(rates[1])
    for count, found in rates.items():
        rate = statistics.median(found)
        alone.rows.append([str(count), f"{rate:.0f}", f"{rate / one:.2f}", "≥ 2" if count == 3 else ""])


async def _count_rows(address: str, beats: Table) -> None:
    async with running(address, "beats", 1):
        await asyncio.sleep(SETTLE_SECONDS)
        before = _rows(address, "beats")
        await asyncio.sleep(3 * SECONDS)
        await asyncio.sleep(1.5)  # PostgreSQL's count is a second old
        after = _rows(address, "beats")
    seconds = 3 * SECONDS + 1.5
    heard = AGENTS * seconds / HEARTBEAT_SECONDS
    rows = {table: after[table] - before[table] for table in after}
    others = {"clock", "pools"}
    of_agents = sum(count for table, count in rows.items() if table not in others)
    beats.rows.append(["heartbeats", f"{heard:.0f}", ""])
    beats.rows.append(["rows that they wrote", f"{of_agents}", "0"])
    of_pool = sum(rows.get(table, 0) for table in others) / seconds
    beats.rows.append(["rows that the pool wrote, a second", f"{of_pool:.1f}", ""])
