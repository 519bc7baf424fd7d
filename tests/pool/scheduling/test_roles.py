"""People whose role in a course changes while they wait or hold a slice: their quotas are those of the role that they have now."""

from __future__ import annotations

import pytest

from gpukernel.common.bounds import Bounds
from gpukernel.common.course import Course
from gpukernel.common.errors import Refused
from gpukernel.common.model import Holder, SliceRequest
from tests.pool.scheduling.test_own_quotas import asks, gets, has, held, reason
from tests.pool.world import World, story

ANNA, BEN, ZOE = (Holder(name, course="ml") for name in ("anna", "ben", "zoe"))
QUOTAS = {"student:ml": Bounds(devices=0.5)}
STUDENTS = Course("ml", members={"*": "student"})
INSTRUCTED = Course("ml", members={"anna": "instructor", "*": "student"})
AS_STUDENT = "anna, as a student of ml, holds 0.40 of their 0.50 devices; 0.60 more does not fit."


def test_an_instructor_who_waits_becomes_a_student(database: str) -> None:
    """The database would refuse the grant, and with it every decision of the pool."""

    async def tell(world: World) -> None:
        world.rule(INSTRUCTED, quotas=QUOTAS)
        await gets(world, "mine", 0.4, holder=ANNA)
        bens = await gets(world, "ben's", 0.4, holder=BEN)
        await asks(world, "b", 0.6, "batch", ANNA)
        await asks(world, "z", 0.5, "batch", ZOE)
        assert not held(world)
        world.rule(STUDENTS, quotas=QUOTAS)
        assert reason(world, "b") == AS_STUDENT
        world.manager.end(bens.id, "released")
        world.manager.schedule()
        assert has(world, "z")

    story(database, tell)


def test_a_student_who_waits_becomes_an_instructor(database: str) -> None:
    async def tell(world: World) -> None:
        world.rule(STUDENTS, quotas=QUOTAS)
        await gets(world, "mine", 0.4, holder=ANNA)
        await asks(world, "b", 0.4, "batch", ANNA)
        assert held(world) == {"b"}
        world.rule(INSTRUCTED, quotas=QUOTAS)
        assert has(world, "b")

    story(database, tell)


def test_who_waits_and_is_in_the_course_no_more_keeps_the_bounds(database: str) -> None:
    async def tell(world: World) -> None:
        world.rule(Course("ml", members={"anna": "student"}), quotas=QUOTAS)
        await gets(world, "mine", 0.4, holder=ANNA)
        await asks(world, "b", 0.4, "batch", ANNA)
        world.rule(Course("ml", members={"ben": "student"}), quotas=QUOTAS)
        assert held(world) == {"b"}

    story(database, tell)


def test_the_end_of_a_lease_of_an_earlier_role(database: str) -> None:
    async def tell(world: World) -> None:
        world.rule(STUDENTS, quotas=QUOTAS)
        lease = await gets(world, "mine", 0.4, holder=ANNA)
        world.rule(INSTRUCTED, quotas=QUOTAS)
        world.manager.end(lease.id, "released")
        await gets(world, "more", 0.6, holder=ANNA)  # more than a student's

    story(database, tell)


def test_a_lease_of_an_earlier_role_that_grows(database: str) -> None:
    async def tell(world: World) -> None:
        world.rule(INSTRUCTED, quotas=QUOTAS)
        lease = await gets(world, "mine", 0.4, holder=ANNA)
        world.rule(STUDENTS, quotas=QUOTAS)
        with pytest.raises(Refused, match=r"anna, as a student of ml, may hold at most 0\.50 devices"):
            await world.manager.resize(lease.id, SliceRequest(share=0.6))
        world.rule(INSTRUCTED, quotas=QUOTAS)
        await world.manager.resize(lease.id, SliceRequest(share=0.6))

    story(database, tell)
