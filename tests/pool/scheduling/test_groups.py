"""JupyterHub's groups, courses and quotas that change while people wait: roles, bounds and ceilings follow at once, and no decision is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from gpukernel.common.bounds import Bounds
from gpukernel.common.course import Course, Profile
from gpukernel.common.errors import Refused
from gpukernel.common.model import Holder
from gpukernel.common.policy import Policy
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.scheduling.making_way import SETTLES
from gpukernel.pool.store.policy import write_groups
from gpukernel.pool.store.store import Store
from tests.pool.books import check_books, check_heals_nothing, rows
from tests.pool.scheduling.test_giving_way import alive, giving_way
from tests.pool.scheduling.test_kept_order import STEPS, KeptOrderMachine, run_at_random
from tests.pool.scheduling.test_own_quotas import CALLS, asks, gets, has, held, reason
from tests.pool.test_model import TIMES, _on_postgresql, _server
from tests.pool.world import World, story

__all__ = ["_server"]

ML = Course("ml", profile=Profile(groups=("students",), instructor_groups=("staff",)))
OTHER = Course("phys", members={"*": "student"})
ANNA, BEN, ZOE = (Holder(name, course="ml") for name in ("anna", "ben", "zoe"))
QUOTAS = {"student:ml": Bounds(devices=0.5)}
AS_STUDENT = "anna, as a student of ml, holds 0.40 of their 0.50 devices; {} more does not fit."


@pytest.fixture(autouse=True)
def _calls_end() -> Iterator[None]:
    yield
    CALLS.clear()


def hub_says(world: World, person: str, *groups: str) -> None:
    """Do as `Hub.SetGroups`."""
    with world.store.deciding() as (db, row):
        changed = write_groups(db, world.store.policy.current(db, row.policy_version), person, groups)
    if changed:
        world.manager.policy_changed()


def right(world: World) -> None:
    check_books(world.store, {worker: world.agent.caps[worker] for worker in world.agent.alive})
    check_heals_nothing(world.store)
    assert not any(world.manager._queue.refused(one.key) for one in world.manager.waiting())


async def one_waits(world: World, role: str, share: float = 0.4) -> None:
    """Let anna hold 0.4 and wait for more, in a role, and zoe behind her; what is not held ben holds, as "ben's"."""
    world.rule(ML, OTHER, quotas=QUOTAS)
    hub_says(world, "anna", role)
    for student in ("ben", "zoe"):
        hub_says(world, student, "students")
    await gets(world, "mine", 0.4, holder=ANNA)
    await gets(world, "ben's", 0.4, holder=BEN)
    await asks(world, "a", share, "batch", ANNA)
    await asks(world, "z", 0.4, "batch", ZOE)
    assert not has(world, "a")
    assert not has(world, "z")


def ends(world: World, *keys: str) -> None:
    for lease in world.manager.leases(False):
        if lease.key in keys:
            world.manager.end(lease.id, "released")
    world.manager.schedule()


def test_a_student_who_waits_is_promoted(database: str) -> None:
    async def tell(world: World) -> None:
        await one_waits(world, "students")
        ends(world, "ben's")
        assert has(world, "z")
        assert reason(world, "a") == AS_STUDENT.format("0.40")
        ends(world, "z")
        hub_says(world, "anna", "staff")
        assert has(world, "a")
        right(world)

    story(database, tell)


@pytest.mark.parametrize("share", [0.3, 0.6])  # one that may start later, and one that never may
def test_an_instructor_who_waits_is_demoted(database: str, share: float) -> None:
    async def tell(world: World) -> None:
        await one_waits(world, "staff", share)
        hub_says(world, "anna", "students")
        assert held(world) == {"a"}
        ends(world, "ben's")
        assert has(world, "z")
        assert not has(world, "a")
        right(world)
        ends(world, "mine", "z")
        assert has(world, "a") == (share < 0.5)
        hub_says(world, "anna", "staff")
        assert has(world, "a")
        right(world)

    story(database, tell)


@pytest.mark.parametrize("was", ["students", "staff"])
def test_who_waits_is_removed_from_the_course_and_comes_back(database: str, was: str) -> None:
    """The bounds of the last role go on to hold for what waits."""

    async def tell(world: World) -> None:
        await one_waits(world, was)
        hub_says(world, "anna")
        assert held(world) == ({"a"} if was == "students" else set())
        with pytest.raises(Refused, match="anna is not in course ml"):
            await anext(world.ask("another", 0.1, holder=ANNA))
        ends(world, "ben's")
        assert has(world, "a" if was == "staff" else "z")
        assert not has(world, "a", "z")
        right(world)
        hub_says(world, "anna", "staff")
        ends(world, "mine")
        assert has(world, "a", "z")
        right(world)

    story(database, tell)


def test_the_course_is_deleted_and_comes_back(database: str) -> None:
    async def tell(world: World) -> None:
        await one_waits(world, "students")
        world.rule(OTHER)
        right(world)
        ends(world, "ben's")
        assert has(world, "a") or has(world, "z")
        right(world)
        world.rule(ML, OTHER, quotas=QUOTAS)
        right(world)
        ends(world, "mine")
        assert has(world, "a", "z")
        right(world)

    story(database, tell)


def test_all_courses_are_deleted(database: str) -> None:
    async def tell(world: World) -> None:
        await one_waits(world, "students")
        world.rule()
        ends(world, "ben's", "mine")
        assert has(world, "a", "z")
        right(world)

    story(database, tell)


def test_the_groups_of_the_course_change(database: str) -> None:
    async def tell(world: World) -> None:
        await one_waits(world, "students", 0.2)
        assert held(world) == {"a"}
        teaching = Course("ml", profile=Profile(groups=(), instructor_groups=("students",)))
        world.rule(teaching, OTHER, quotas=QUOTAS)
        assert has(world, "a")
        right(world)
        world.rule(ML, OTHER, quotas=QUOTAS)
        right(world)

    story(database, tell)


@pytest.mark.parametrize("first", ["groups", "quotas"])
def test_groups_and_quotas_change_in_one_moment(database: str, first: str) -> None:
    """Between two decisions, in either order: what counts is the bound of the role now."""

    async def tell(world: World) -> None:
        await one_waits(world, "staff", 0.3)

        def groups() -> None:
            with world.store.deciding() as (db, row):
                write_groups(db, world.store.policy.current(db, row.policy_version), "anna", ["students"])

        def quotas() -> None:
            schedule, world.manager.schedule = world.manager.schedule, lambda *_: None  # type: ignore[method-assign]
            world.rule(
                ML, OTHER, quotas={"student:ml": Bounds(devices=0.6), "instructor:ml": Bounds(leases=1)}
            )
            world.manager.schedule = schedule  # type: ignore[method-assign]

        for change in (groups, quotas) if first == "groups" else (quotas, groups):
            change()
        ends(world, "ben's")
        assert reason(world, "a").startswith("anna, as a student of ml, holds 0.40 of their 0.60 devices")
        assert has(world, "z")
        right(world)

    story(database, tell)


def test_nobody_gives_way_any_more_to_who_was_demoted(database: str) -> None:
    async def tell(world: World) -> None:
        world.rule(ML, OTHER, quotas=QUOTAS, notice=8.0, least_run=5.0)
        hub_says(world, "anna", "staff")
        hub_says(world, "ben", "students")
        mine = await gets(world, "mine", 0.4, holder=ANNA)
        bens = await gets(world, "ben's", 0.4, holder=BEN)
        alive(world, mine, bens, seconds=6)
        await asks(world, "a", 0.5, "interactive", ANNA)
        alive(world, mine, bens, seconds=SETTLES + 1)
        assert giving_way(world)
        hub_says(world, "anna", "students")
        assert not giving_way(world)
        (request,) = rows(world.store, "requests")[0]
        assert not request.claims
        right(world)

    story(database, tell)


def test_another_pool_hears_of_it(new_postgresql: Callable[[], str]) -> None:
    """The Hub tells one pool, and people wait in another one, which decides next."""

    async def tell(world: World) -> None:
        await one_waits(world, "staff", 0.3)
        other = Store(address)
        LeaseManager(other, lambda: world.now)
        with other.deciding() as (db, row):
            write_groups(db, other.policy.current(db, row.policy_version), "anna", ["students"])
        ends(world, "ben's")
        assert held(world) == {"a"}
        assert has(world, "z")
        right(world)
        with other.deciding() as (db, row):
            write_groups(db, other.policy.current(db, row.policy_version), "anna", ["staff"])
        ends(world, "z")
        assert has(world, "a")
        right(world)
        other.close()

    address = new_postgresql()
    story(address, tell)


# --- at random ---


class GroupsMachine(KeptOrderMachine):
    """The steps of `KeptOrderMachine`, in which groups, courses and quotas change at any time."""

    @initialize()
    def some_groups(self) -> None:
        self.courses, self.quotas = 3, 0
        self.govern()
        self.hub_says("anna", {"students"})

    @rule(
        person=st.sampled_from(["anna", "ben", "prof", "carl"]),
        groups=st.sets(st.sampled_from(["students", "staff"])),
    )
    def hub_says(self, person: str, groups: set[str]) -> None:
        hub_says(self.world, person, *groups)
        self.settle()

    @rule(courses=st.integers(0, 3), quotas=st.integers(0, 2))
    def courses_change(self, courses: int, quotas: int) -> None:
        self.courses, self.quotas = courses, quotas
        if not courses & 1:
            self.reserved = {one for one in self.reserved if one.course != "ml"}
        if not courses & 2:
            self.reserved = {one for one in self.reserved if one.course != "phys"}
        self.govern()

    @rule(reserved=st.just(set()))
    def reserve(self, reserved: set[Any]) -> None:
        self.reserved = reserved
        self.govern()

    def govern(self) -> None:
        if not hasattr(self, "courses"):
            return
        named = {1: Course("ml", weight=2.0, members={"prof": "instructor"}, profile=ML.profile), 2: OTHER}
        of_ml: tuple[dict[str, Bounds], ...] = (
            {"student:ml": Bounds(devices=0.6), "instructor:ml": Bounds(leases=2)},
            {"student:ml": Bounds(leases=1), "course:ml": Bounds(devices=1.0)},
            {"instructor:ml": Bounds(devices=0.3, interactive=0.25)},
        )
        quotas = {**self.own, **(of_ml[self.quotas] if self.courses & 1 else {})}
        known = {"": True, "ml": self.courses & 1, "phys": self.courses & 2}
        quotas = {
            text: bounds for text, bounds in quotas.items() if "person" in text or known[text.split(":")[1]]
        }
        courses = [course for bit, course in named.items() if self.courses & bit]
        self.world.rule(*courses, quotas=quotas, **(TIMES | {"half_life": self.half_life}))
        self.settle()

    def kept_policy(self) -> Policy:
        return Policy()  # any quota may have been lowered

    @invariant()
    def the_queue_is_in_its_order_and_everybody_who_waits_is_in_it(self) -> None:
        self.world.manager.schedule()
        self.settle()
        keys = {one.key for one in self.world.manager.waiting()} | {lease.key for lease in self.living()}
        assert set(self.tasks) <= keys

    @invariant()
    def the_database_refuses_nothing(self) -> None:
        queue = self.world.manager._queue
        assert not [one.key for one in queue.order() if one.key in queue._refused]


class PostgresqlGroupsMachine(GroupsMachine):
    """The same on PostgreSQL."""

    databases = staticmethod(_on_postgresql)


@pytest.mark.parametrize("machine", [GroupsMachine, PostgresqlGroupsMachine])
@pytest.mark.usefixtures("_server")
def test_at_random(machine: type[GroupsMachine]) -> None:
    steps = STEPS if machine is GroupsMachine else STEPS // 2
    run_at_random(machine, steps, {"cycles": 0, "early": 0, "held": 0})
