"""Kills pool processes with SIGKILL at every transaction boundary of a scripted workload, and looks at what they left.

A program of its own, because it forks: ``python -m tests.pool.crashing DATABASE MOMENTS STRIDE JOBS`` runs each chapter of the workload
again and again, killed just before and just after its first commit, its second …  (every STRIDE-th), and MOMENTS times killed at
random.  After each death another pool starts on the same database, with the workers that are really alive, and everything is compared
with what holders, workers, administrators and a JupyterHub know.  Where the database is shared, a second pool works on it all the
time.  Prints what it did as JSON.

Chapters are what makes every boundary affordable: to reach the last commit of one, only its own have to be made again.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect

import gpukernel.common.proto.admin_pb2 as admin_pb
import gpukernel.common.proto.hub_pb2 as hub_pb
import gpukernel.common.proto.reservations_pb2 as reservations_pb
from gpukernel.common.bounds import Bounds
from gpukernel.common.course import Course
from gpukernel.common.course_file import read_courses, write_courses
from gpukernel.common.errors import Refused
from gpukernel.common.model import Holder, Lease, PlacedOn, SliceRequest, Usage
from gpukernel.common.policy import Policy
from gpukernel.common.reservations import Reservation
from gpukernel.pool.auth.identity import Identity
from gpukernel.pool.leases import resizes
from gpukernel.pool.leases.placed_leases import PlacedLeases
from gpukernel.pool.rpc.administration import AdministrationService
from gpukernel.pool.rpc.hub import HubService
from gpukernel.pool.rpc.reservations import ReservationsService
from gpukernel.pool.store import database, schema
from gpukernel.pool.store.database import open_database
from gpukernel.pool.store.store import Store
from tests.pool.books import check_books, check_placements
from tests.pool.world import START, Agent, World

MIB = 2**20
MODELS = {"s": "Tesla V100", "t": "Tesla T4"}
COURSE = Course("ml", members={"*": "student"})
COURSES = """
timezone: UTC
courses:
  ml:
    weight: 2
    groups: [ml101]
    students: "*"
    quota: {devices: 4}
  phys: {students: "*"}
"""
EMPTY = write_courses(Policy())
PHYS = Holder("carl", course="phys")
ANNA, BEN = Holder("anna", course="ml"), Holder("ben", course="ml")


class Diary:
    """The knowledge of holders and workers, a line each: it outlives the pool."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a", buffering=1)

    def note(self, *words: Any) -> None:
        self._file.write(json.dumps(words) + "\n")

    def lines(self) -> list[list[Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


class WritingAgent(Agent):
    """Workers that outlive the pool."""

    diary: Diary

    def start_worker(self, lease: Lease, device_id: str, memory_bytes: int, weight: float) -> None:
        self.diary.note("worker", self.name, lease.id, device_id, memory_bytes)
        super().start_worker(lease, device_id, memory_bytes, weight)

    def stop_worker(self, lease_id: str, device_id: str, reason: str) -> None:
        self.diary.note("worker", self.name, lease_id, device_id, 0)
        super().stop_worker(lease_id, device_id, reason)

    def limit_worker(self, lease_id: str, device_id: str, memory_bytes: int, weight: float) -> None:
        if (lease_id, device_id) in self.alive:
            self.diary.note("worker", self.name, lease_id, device_id, memory_bytes)
        super().limit_worker(lease_id, device_id, memory_bytes, weight)


def new_world(url: str, diary: Diary, server: str) -> World:
    """A pool, and a server whose workers are those that the diary knows."""
    world = World.__new__(World)
    world.now = START
    world.store = Store(url)
    from gpukernel.pool.leases.manager import LeaseManager

    world.manager = LeaseManager(world.store, lambda: world.now)
    agent = WritingAgent(world.manager, server, devices=2)
    agent.diary = diary
    # Each pool's holders want what its own server has: the other one may be dead.
    uuids = [f"GPU-{server}000000{device.index}" for device in agent.devices]  # engines name them by these
    agent.devices = [
        replace(device, name=MODELS[server], uuid=uuid, id=f"{server}/{uuid}")
        for device, uuid in zip(agent.devices, uuids, strict=True)
    ]
    for kind, *rest in diary.lines():
        if kind == "worker" and rest[0] == server:
            _, lease_id, device_id, size = rest
            agent.caps[lease_id, device_id] = size
            (agent.alive.add if size else agent.alive.discard)((lease_id, device_id))
    world.agent = agent
    agent.attach()
    return world


class Story:
    """The steps of one pool's holders; each is noted before it begins and after it ended."""

    def __init__(self, world: World, diary: Diary, name: str) -> None:
        self.world, self.diary, self.name = world, diary, name

    async def get(
        self, key: str, share: float, holder: Holder = ANNA, devices: int = 1, longest: float = 0
    ) -> Lease:
        self.diary.note("asks", f"{self.name}-{key}")
        wanted = SliceRequest(share=share, devices=devices, model=MODELS[self.world.agent.name])
        asked = self.world.manager.acquire(f"{self.name}-{key}", wanted, holder, -1, 0, longest)
        async for event in asked:
            if isinstance(event, Lease):
                self.diary.note("granted", f"{self.name}-{key}", event.id)
                return event
        raise AssertionError

    def may_end(self, *leases: Lease) -> None:
        """Somebody has a reason to end them."""
        for lease in leases:
            self.diary.note("ends", lease.id)

    def end(self, lease: Lease) -> None:
        self.diary.note("ends", lease.id)
        self.world.manager.end(lease.id, "released")
        self.diary.note("ended", lease.id)

    async def resize(self, lease: Lease, share: float) -> None:
        self.diary.note("resizes", lease.id)
        changed = await self.world.manager.resize(lease.id, SliceRequest(share=share))
        assert changed is not None
        self.diary.note("resized", lease.id, [piece.memory_bytes for piece in changed.slices])

    async def leases(self, courses: bool) -> None:
        """Slices that come, grow, shrink, wait, die and go."""
        world = self.world
        if courses:
            world.rule(COURSE, quotas={"course:ml": Bounds(devices=4), "student:ml": Bounds(leases=5)})
        a = await self.get("a", 0.3)
        b = await self.get("b", 0.45, BEN, devices=2)
        waiting = asyncio.create_task(self.get("c", 0.65, BEN))
        given_up = asyncio.create_task(self.get("d", 0.9))
        await asyncio.sleep(0)
        server = world.agent.name
        world.sessions.heartbeat(server, {(a.id, a.slices[0].device_id): Usage(cuda_calls=5, connections=1)})
        world.manager.renew(a.id)
        world.manager.renew(b.id)
        try:
            await self.resize(a, 0.32)
        except Refused:
            self.diary.note("refused", a.id)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        await self.resize(b, 0.2)
        self.end(b)
        c = await waiting
        world.manager.tick()
        await self.resize(a, 0.1)
        self.diary.note("ends", c.id)
        (piece,) = c.slices
        self.diary.note("worker", server, c.id, piece.device_id, 0)
        world.agent.alive.discard((c.id, piece.device_id))
        world.sessions.worker_ended(server, c.id, piece.device_id, "it died")
        d = await self.get("e", 1.0, BEN)
        self.end(d)
        self.end(a)

    async def reservations(self) -> None:
        """Courses from a file, and room that is reserved, borrowed, taken back and given up."""
        office = Office(self.world, self.diary)
        await office.import_courses(COURSES)
        later = await office.reserve(begins=22 * 60 + 20, devices=1.5)
        # What ends before the window opens may borrow its room; what does not has to wait.
        borrowed = await self.get("borrowed", 0.9, PHYS, longest=300)
        lasting = asyncio.create_task(self.get("lasting", 0.9, PHYS))
        own = await self.get("own", 1.0)
        assert not lasting.done()
        await office.remove(later)
        self.end(own)
        kept = await lasting
        # Whoever is in the way of one that preempts is told before, and leaves when it opens.
        self.may_end(borrowed, kept)
        soon = await office.reserve(begins=22 * 60 + 14, devices=1, preempt=True)
        told = [self.world.manager.lease(lease.id) for lease in (borrowed, kept)]
        assert sum(one is not None and "borrowed time" in one.notice for one in told) == 1
        await office.remove(soon)
        await office.reserve(begins=22 * 60 + 13, devices=1, preempt=True)
        left = [lease for lease in (borrowed, kept) if self.state(lease) == "live"]
        assert len(left) == 1
        again = await self.get("again", 1.0)
        # The file says everything: reservations that it does not name are over.
        await office.import_courses(COURSES.replace("weight: 2", "weight: 1"))
        self.end(again)
        self.end(left[0])

    async def engines(self) -> None:
        """A device that goes to an engine and back, and what the engine places there by key, again and again."""
        kernel = await self.get("kernel", 0.3)
        (uuid,) = {one.uuid for one in self.world.agent.devices} - {piece.uuid for piece in kernel.slices}
        self.delegate(uuid, "slurm")
        first = await self.place("first", uuid, 8192 * MIB)
        second = await self.place("second", uuid, 24_576 * MIB)
        assert (await self.place("first", uuid, 8192 * MIB)).id == first.id
        waiting = asyncio.create_task(self.get("waits", 1.0))
        await asyncio.sleep(0)
        self.delegate(uuid, "pool", when_free=True)
        for lease in (first, second, first):
            await self.release(lease)
        self.end(await waiting)
        self.delegate(uuid, "kubernetes")
        self.delegate(uuid, "pool")
        self.end(kernel)

    def delegate(self, uuid: str, to: str, *, when_free: bool = False) -> None:
        self.diary.note("delegates", uuid, to)
        given = PlacedLeases(self.world.manager).delegate(uuid, to, "root", when_free=when_free)
        self.diary.note("delegated", uuid, given.decided_by, given.next_decider)

    async def place(self, key: str, uuid: str, size: int) -> Lease:
        self.diary.note("asks", f"{self.name}-{key}")
        placed = PlacedLeases(self.world.manager)
        lease = await placed.acquire("slurm", f"{self.name}-{key}", [PlacedOn(uuid, size)], ANNA, 300)
        assert lease.state == "live"
        self.diary.note("placed", lease.key, lease.id, uuid, size)
        return lease

    async def release(self, lease: Lease) -> None:
        self.diary.note("ends", lease.id)
        await PlacedLeases(self.world.manager).release("slurm", lease.key, "", 300)
        self.diary.note("ended", lease.id)

    def state(self, lease: Lease) -> str:
        found = self.world.manager.lease(lease.id)
        return found.state if found else ""

    async def servers(self) -> None:
        """A JupyterHub's servers, with what they hold and wait for."""
        office, at_work = Office(self.world, self.diary), Holder("anna", "hub", "ml")
        await office.import_courses(COURSES)
        await office.groups("anna", "ml101")
        await office.open("anna")
        await office.open("ben")
        held = await self.get("held", 0.5, at_work)
        two = await self.get("two", 0.3, at_work, devices=2)
        bens = await self.get("bens", 0.2, Holder("ben", "hub", "ml"))
        queued = asyncio.create_task(self.get("queued", 1.0, at_work))
        await asyncio.sleep(0)
        self.may_end(held, two)
        await office.close("anna")
        (given_up,) = await asyncio.gather(queued, return_exceptions=True)
        assert isinstance(given_up, Refused)
        assert self.state(bens) == "live"
        await office.close("anna")  # once more changes nothing
        await office.open("anna")
        third = await self.get("third", 0.5, at_work)
        self.may_end(third)
        await office.open("anna")  # started again without having been stopped
        assert self.state(third) in ("ending", "ended")
        await office.groups("anna")
        self.may_end(bens)
        await office.close("ben")
        await office.close("anna")


class Office:
    """The calls of administrators and a JupyterHub, each noted before and after: the services that gRPC calls, called as root."""

    def __init__(self, world: World, diary: Diary) -> None:
        self.world, self.diary = world, diary
        manager, store = world.manager, world.store
        self.identity = Identity(store)
        self.identity.connected(AsRoot.PEER, 0)
        self.administration = AdministrationService(manager, store, self.identity)
        self.booking = ReservationsService(manager, store, self.identity)
        self.hub = HubService(manager, store, self.identity)

    def policy(self) -> str:
        return write_courses(self.world.store.policy.current())

    async def _ruling(self, after: str, call: Awaitable[Any]) -> Any:
        """A change of rules is made whole or not at all; `after`: what is to come, where the test knows the file."""
        self.diary.note("rules", after)
        reply = await call
        self.diary.note("ruled", self.policy())
        return reply

    async def import_courses(self, text: str) -> None:
        request = admin_pb.ImportCoursesRequest(yaml=text)
        after = write_courses(read_courses(text))
        await self._ruling(after, self.administration.ImportCourses(request, AsRoot()))
        assert self.policy() == after

    async def reserve(self, *, begins: int, devices: float, preempt: bool = False) -> str:
        new = Reservation("ml", (1,), "", begins, 23 * 60, devices, MODELS["s"], preempt)
        before = self.world.store.policy.current()
        after = write_courses(replace(before, reservations=(*before.reservations, new)))
        message = reservations_pb.Reservation(
            course="ml",
            days=[1],
            begins=begins,
            ends=23 * 60,
            devices=devices,
            model=MODELS["s"],
            preempt=preempt,
        )
        request = reservations_pb.AddReservationRequest(reservation=message)
        reply = await self._ruling(after, self.booking.AddReservation(request, AsRoot()))
        assert self.policy() == after
        return str(reply.reservation.id)

    async def remove(self, identifier: str) -> None:
        before = self.world.store.policy.current()
        left = tuple(one for one in before.reservations if one.id != identifier)
        request = reservations_pb.RemoveReservationRequest(id=identifier)
        after = write_courses(replace(before, reservations=left))
        await self._ruling(after, self.booking.RemoveReservation(request, AsRoot()))

    async def groups(self, person: str, *groups: str) -> None:
        self.diary.note("groups", person, groups)
        await self.hub.SetGroups(hub_pb.SetGroupsRequest(person=person, groups=groups), AsRoot())
        self.diary.note("grouped", person, groups)

    async def open(self, person: str) -> None:
        self.diary.note("opens", person)
        request = hub_pb.OpenServerRequest(person=person, server="hub", course="ml")
        self.diary.note("opened", person, (await self.hub.OpenServer(request, AsRoot())).token)

    async def close(self, person: str) -> None:
        self.diary.note("closes", person)
        await self.hub.CloseServer(hub_pb.CloseServerRequest(person=person, server="hub"), AsRoot())
        self.diary.note("closed", person)

    # --- what it looks at afterwards ---

    async def check(self) -> None:
        """After a death: what was said to be done is done, what was not is whole or not there, and asking again finishes it."""
        lines = self.diary.lines()
        policy = [(kind, rest[0]) for kind, *rest in lines if kind in ("rules", "ruled")]
        if policy:
            possible = {text for kind, text in policy[-2:] if kind == "ruled"}
            possible |= {policy[-1][1]} | ({EMPTY} if len(policy) == 1 else set())
            # A reservation that is written down counts even where the room for it was not found yet.
            assert self.policy() in possible, "rules that nobody has made"
        check_placements(self.world.store, self.world.now)
        said = [(kind, *rest) for kind, *rest in lines if kind in ("groups", "grouped")]
        for kind, person, groups in said[-1:]:
            known = {tuple(groups)} if kind == "grouped" else {tuple(groups), ("ml101",), ()}
            assert self.world.store.policy.current().groups.get(person, frozenset()) in {
                frozenset(one) for one in known
            }
        for person in {rest[0] for kind, *rest in lines if kind in ("opens", "opened", "closes", "closed")}:
            own = [
                (kind, *rest[1:])
                for kind, *rest in lines
                if rest[:1] == [person] and kind[:4] in ("open", "clos")
            ]
            await self._check_server(person, own)

    async def _check_server(self, person: str, story: list[Any]) -> None:
        (kind, *token), opened = story[-1], self._opened(person)
        held = [
            lease
            for lease in self.world.manager.leases(False)
            if (lease.holder.person, lease.holder.server) == (person, "hub")
        ]
        assert len(opened) <= 1, "a server has two tokens"
        if kind == "opened":
            caller = self.identity.caller(AsRoot.PEER, f"Bearer {token[0]}", self.world.now)
            assert caller is not None
            assert (caller.name, caller.server, caller.course) == (person, "hub", "ml")
        if kind == "closed":
            assert not opened
            assert all(lease.state in ("ending", "ended") for lease in held), (
                "a server that is closed holds something"
            )
        if kind == "closes":  # the Hub does not know whether it was heard, and says it again
            await self.hub.CloseServer(hub_pb.CloseServerRequest(person=person, server="hub"), AsRoot())
            assert not self._opened(person)
            for lease in held:
                found = self.world.manager.lease(lease.id)
                assert found is not None
                assert found.state in ("ending", "ended")
            assert not any(one.holder.person == person for one in self.world.manager.waiting())
        if kind == "opens":
            request = hub_pb.OpenServerRequest(person=person, server="hub", course="ml")
            if person == "ben" or self.world.store.policy.current().courses:
                assert (await self.hub.OpenServer(request, AsRoot())).token
                assert len(self._opened(person)) == 1

    def _opened(self, person: str) -> list[Any]:
        wanted = (
            schema.tokens.c.person == person,
            schema.tokens.c.revoked.is_(None),
            schema.tokens.c.server == "hub",
        )
        with self.world.store.reader.connect() as db:
            return list(db.execute(sa.select(schema.tokens).where(*wanted)))


class AsRoot:
    """A call within this process, as gRPC would bring root's: no server and no threads, since stories fork."""

    PEER = "unix:story"

    def peer(self) -> str:
        return self.PEER

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def auth_context(self) -> dict[str, Any]:
        return {}

    async def abort(self, code: Any, sentence: str) -> None:
        raise AssertionError(f"{code}: {sentence}")


CHAPTERS = ("leases", "reservations", "servers", "engines")
AGAIN = 5  # times that a boundary is tried which was reached on one of its sides only


def in_child(work: Callable[[], None]) -> int:
    """Its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def ended(pid: int) -> int:
    """The exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_story(
    url: str,
    diary: Diary,
    server: str,
    chapter: str = "leases",
    at: int = 0,
    after: bool = False,
    name: str = "p",
) -> None:
    """A chapter; this process kills itself at commit number `at`."""
    commits = 0

    def counting(commit: Callable[..., None]) -> Callable[..., None]:
        def counted(*arguments: Any) -> None:
            nonlocal commits
            commits += 1
            if commits == at and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            commit(*arguments)
            if commits == at and after:
                os.kill(os.getpid(), signal.SIGKILL)

        return counted

    def in_a_transaction(dialect: Any, connection: Any) -> None:
        driver = getattr(connection, "dbapi_connection", connection)
        # What `compiled_sql.commit` has committed together with other statements was counted there.
        over = hasattr(driver, "pgconn") and not driver.pgconn.transaction_status
        (commit if over else counted_commit)(dialect, connection)

    commit = DefaultDialect.do_commit
    counted_commit = counting(commit)
    DefaultDialect.do_commit = in_a_transaction  # type: ignore[method-assign]
    database.commit = counting(database.commit)  # type: ignore[attr-defined]
    resizes.RESIZE_SECONDS = 300.0  # a machine that is busy is no reason for a refusal

    async def within() -> None:
        async with asyncio.timeout(300):  # where the machine is busy a story takes long
            world = new_world(url, diary, server)

            async def look_often() -> None:  # in place of the clock and of the other pool's calls
                while world.store.shared:
                    await asyncio.sleep(0.05)
                    world.manager.look()
                    world.manager.schedule()

            looking = asyncio.create_task(look_often())
            story = Story(world, diary, name)
            await (story.leases(server == "s") if chapter == "leases" else getattr(story, chapter)())
            looking.cancel()

    asyncio.run(within())
    diary.note("commits", commits)


def look(url: str, diary: Diary, server: str, server_b: str = "") -> None:
    """Start a pool on what is left and compare it with what the diary knows."""

    async def within() -> None:
        world = new_world(url, diary, server)
        worlds = [world] + ([new_world(url, diary, server_b)] if server_b else [])
        for _ in range(2):
            for one in worlds:
                one.manager.tick()
        caps = {
            (lease_id, device_id): one.agent.caps[lease_id, device_id]
            for one in worlds
            for lease_id, device_id in one.agent.alive
        }
        check_books(world.store, caps, world.store.policy.current())
        await Office(world, diary).check()
        now = {lease.id: lease for lease in world.manager.leases(False)}
        lines = diary.lines()
        asked = {rest[0] for kind, *rest in lines if kind == "asks"}
        ending = {rest[0] for kind, *rest in lines if kind == "ends"}
        over = {rest[0] for kind, *rest in lines if kind == "ended"}
        assert {lease.key for lease in now.values()} <= asked
        assert not over & set(now), "a lease that was given back lives again"
        sizes: dict[str, list[int] | None] = {}
        for kind, *rest in lines:
            if kind in ("resizes", "resized"):
                sizes[rest[0]] = rest[1] if kind == "resized" else None
            if kind == "granted" and rest[1] not in ending:
                assert rest[1] in now, "a lease that was granted is lost"
                assert now[rest[1]].state == "live"
                again = await Story(world, diary, "").world.get(rest[0])
                assert again.id == rest[1], "one use has two leases"
            if kind == "placed" and rest[1] not in ending:
                key, lease_id, uuid, size_there = rest
                assert now[lease_id].state == "live", "a lease that was placed is lost"
                asks_again = Story(world, diary, key.partition("-")[0])
                placed = await asks_again.place(key.partition("-")[2], uuid, size_there)
                assert placed.id == lease_id, "one key has two leases"
        check_deciders(world, lines)
        for lease_id, size in sizes.items():
            if size is not None and lease_id not in ending:
                assert [piece.memory_bytes for piece in now[lease_id].slices] == size
        for _ in range(5):  # what becomes free may be granted to who waited a moment ago
            for lease in world.manager.leases(False):
                world.manager.end(lease.id, "the end")
            for one in worlds:
                one.manager.tick()
        for one in worlds:
            one.store.close()
        with open_database(url).connect() as db:
            assert not db.execute(sa.select(sa.func.sum(schema.devices.c.promised_bytes))).scalar()
            assert not db.execute(sa.select(sa.func.sum(schema.quota_usage.c.share_held))).scalar()

    asyncio.run(within())


def check_deciders(world: World, lines: list[list[Any]]) -> None:
    """Fail where a device has a decider that nobody gave it, or lost the one that it was given."""
    for device in world.manager.devices():
        possible = {"pool"}
        for kind, *rest in lines:
            if kind == "delegates" and rest[0] == device.uuid:
                possible.add(rest[1])
            elif kind == "delegated" and rest[0] == device.uuid:
                possible = {rest[1], rest[2] or rest[1]}
        assert device.decided_by in possible


def main(address: str, moments: int, stride: int, jobs: int) -> None:
    """Each of `jobs` processes takes its part of the boundaries and moments."""
    begin, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="gpukernel-crash-"))

    def part(number: int) -> None:
        counts = kill_at(address, moments // jobs + (number < moments % jobs), stride, number, jobs)
        (folder / str(number)).write_text(json.dumps(counts))

    at_work = [in_child(functools.partial(part, number)) for number in range(jobs)]
    assert [ended(pid) for pid in at_work] == [0] * jobs
    counts = [json.loads((folder / str(number)).read_text()) for number in range(jobs)]
    shutil.rmtree(folder)
    done = {name: sum(one[name] for one in counts) for name in counts[0]}
    print(json.dumps({**done, "seconds": round(time.monotonic() - begin)}))


def kill_at(address: str, moments: int, stride: int, first: int, jobs: int) -> dict[str, int]:
    """Kill at boundary `first` and every `jobs`-th after it, counted in strides; then at random moments."""
    done = {"boundaries": 0, "killed": 0, "random": 0, "random_killed": 0}
    folder = Path(tempfile.mkdtemp(prefix="gpukernel-crash-"))
    numbers = iter(range(100_000))
    shared = address.startswith("postgresql")

    def database(template: str = "") -> str:
        number = next(numbers)
        if not shared:
            path = folder / f"{number}.db"
            if template:
                shutil.copy(template.removeprefix("sqlite:///"), path)
            return f"sqlite:///{path}"
        name = f"crash{os.getpid()}_{number}"
        url = address.replace("postgresql://", "postgresql+psycopg://").replace("DATABASE", "postgres")
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as db:
            like = sa.make_url(template).database if template else "template1"
            db.execute(sa.text(f"CREATE DATABASE {name} TEMPLATE {like}"))
        engine.dispose()
        return address.replace("DATABASE", name)

    def one(chapter: str, at: int, after: bool, kill_after: float | None = None) -> tuple[int, Diary]:
        # Making the tables is one transaction: with its boundary, but not again for every other one.
        url, diary = database("" if at == 1 else empty), Diary(folder / f"{next(numbers)}.diary")
        beside = []
        if shared:
            beside.append(in_child(lambda: run_story(url, diary, "t", name="q")))
        pid = in_child(lambda: run_story(url, diary, "s", chapter, at, after))
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(pid, signal.SIGKILL)
        status = ended(pid)
        assert status in (0, -signal.SIGKILL), f"the pool ended with {status}"
        for other in beside:
            assert ended(other) == 0, "the other pool did not get through"
        looking = in_child(lambda: look(url, diary, "s", "t" if shared else ""))
        assert ended(looking) == 0, (
            f"{chapter}, commit {at}, {'after' if after else 'before'}, {kill_after}: {diary.path}"
        )
        return status, diary

    empty = database()
    assert ended(in_child(lambda: Store(empty).close())) == 0
    length = {}
    for chapter in CHAPTERS:
        started = time.monotonic()
        status, _ = one(chapter, 0, False)
        length[chapter] = (time.monotonic() - started) / 2
        assert status == 0
        # Not every chapter begins at the same number, so that a stride meets other kinds of commits in each.
        at = 1 + CHAPTERS.index(chapter) % stride + first * stride
        while at < 10_000:
            statuses = [one(chapter, at, after)[0] for after in (False, True)]
            # Beside another pool a story has a few commits more or less each time, so that its last ones are not always reached.
            for _ in range(AGAIN):
                if 0 not in statuses or not any(statuses):
                    break
                again = statuses.index(0)
                statuses[again] = one(chapter, at, bool(again))[0]
            done["killed"] += sum(status < 0 for status in statuses)
            if not any(statuses):
                break
            done["boundaries"], at = done["boundaries"] + 1, at + stride * jobs
    chance = random.Random(4 + first)
    for number in range(moments):
        chapter = CHAPTERS[(number + first) % len(CHAPTERS)]
        status, _ = one(chapter, 0, False, chance.uniform(0, length[chapter]))
        done["random"] += 1
        done["random_killed"] += status < 0
    shutil.rmtree(folder)
    return done


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) for word in sys.argv[2:5]))
