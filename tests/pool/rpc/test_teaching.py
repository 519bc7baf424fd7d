"""Instructors' work in their courses, over the pool's real socket: allowed, refused for others' courses, said well, written down."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

from gpukernel.client.admin import AdminClient
from gpukernel.common.address import socket_path
from gpukernel.common.bounds import Bounds
from gpukernel.common.errors import LeaseEnded, NotAllowed, PoolError, Refused
from gpukernel.common.model import Holder, Lease, Queued, SliceRequest
from gpukernel.pool.domain.quota import period_start
from gpukernel.pool.rpc.server import RunningPool, serve
from gpukernel.pool.scheduling.reordering import move_request
from gpukernel.pool.store.policy import Course
from gpukernel.pool.store.schema import leases
from gpukernel.pool.store.usage_log import use_by_day
from tests.pool.world import START, Agent, World, story
from tests.ports import free_port

COURSES = """
courses:
  ml101: {instructors: [prof], students: [anna, ben, carl], quota: {devices: 1.5}, each_student: {devices: 0.5}}
  hpc: {instructors: [chief], students: [dora, prof]}
"""


@dataclass
class Classroom:
    """A pool with two courses, and a client for everyone in them."""

    running: RunningPool
    admin: AdminClient
    of: dict[str, AdminClient]

    async def hold(self, person: str, share: float, course: str = "ml101", key: str = "") -> Lease:
        return await self.of[person].acquire_now(
            key or f"{person}-{share}", SliceRequest(share=share), Holder(person, course=course)
        )


def with_classroom(state: Path, tell: Callable[[Classroom], Awaitable[None]], devices: int = 4) -> None:
    @contextlib.asynccontextmanager
    async def classroom() -> AsyncIterator[Classroom]:
        address = f"127.0.0.1:{free_port()}"
        async with contextlib.AsyncExitStack() as stack:
            running = await stack.enter_async_context(serve(state, address))
            Agent(running.manager, "s", devices=devices).attach()
            admin = await stack.enter_async_context(AdminClient(f"unix:{socket_path(state)}"))
            await admin.import_courses(COURSES)
            clients = {}
            for person in ("prof", "chief", "anna", "ben", "carl", "dora"):
                _, secret = await admin.create_token(person, person)
                clients[person] = await stack.enter_async_context(AdminClient(address, secret))
            yield Classroom(running, admin, clients)

    async def run() -> None:
        async with asyncio.timeout(60), classroom() as ready:
            await tell(ready)

    asyncio.run(run())


def test_a_look_at_a_quota_says_who_is_above_it_and_changes_nothing(tmp_path: Path) -> None:
    async def tell(classroom: Classroom) -> None:
        prof = classroom.of["prof"]
        await classroom.hold("anna", 0.5)
        await classroom.hold("ben", 0.3)
        await classroom.hold("carl", 0.1)
        before = await prof.quotas()
        lines, effects = await prof.quota_effects("student:ml101", {"devices": "0.2"}, check=True)
        assert lines == ['student:ml101: {"devices": 0.5} → {"devices": 0.2}']
        assert [(e.kind, e.bound, e.people, e.sentence) for e in effects] == [
            (
                "over",
                "devices",
                ("anna", "ben"),
                "2 students are above the new limit of 0.2 (devices); they keep what they have until it ends.",
            )
        ]
        assert await prof.quotas() == before
        lines, again = await prof.quota_effects("student:ml101", {"devices": "0.2"}, check=False)
        assert again == effects
        with pytest.raises(Refused, match=r"carl, as a student of ml101, may hold at most 0\.20"):
            await classroom.of["carl"].acquire_now(
                "more", SliceRequest(share=0.3), Holder("carl", course="ml101"), wait_seconds=0
            )
        assert len((await prof.leases())[0]) == 3  # nobody lost anything
        entry = (await classroom.admin.audit())[-1]
        assert (entry.who, entry.action, entry.subject) == ("prof", "quota", "student:ml101")

    with_classroom(tmp_path, tell)


def test_effects_name_large_slices_given_times_and_those_who_wait_for_nothing(tmp_path: Path) -> None:
    async def tell(classroom: Classroom) -> None:
        prof = classroom.of["prof"]
        await classroom.admin.set_quota("course:ml101", {"devices": "0.6"})
        await classroom.hold("anna", 0.5)
        ask = classroom.of["ben"].acquire("b", SliceRequest(share=0.4), Holder("ben", course="ml101"))
        assert isinstance(await anext(ask), Queued)
        bounds = {"largest_slice": "0.1", "longest_lease": "2h", "leases": "3"}
        _, effects = await prof.quota_effects("student:ml101", bounds, check=True)
        assert [(e.kind, e.bound, e.count) for e in effects] == [
            ("running", "longest_lease", 1),
            ("over", "largest_slice", 1),
            ("waiting", "", 1),
        ]
        assert effects[-1].sentence == "1 waiting request asks for more than that and would never start."
        assert effects[-1].people == ("ben",)
        _, effects = await classroom.admin.quota_effects("course:ml101", {"devices": "0.25"}, check=True)
        assert effects[0].sentence.startswith("Course ml101 is above the new limit of 0.25 (devices: 0.5)")
        _, effects = await prof.quota_effects("student:ml101", {"devices": "none"}, check=True)
        assert effects == []  # more for everybody hurts nobody

    with_classroom(tmp_path, tell)


def test_new_times_count_for_slices_held_now_where_that_is_asked_for(tmp_path: Path) -> None:
    async def tell(classroom: Classroom) -> None:
        prof = classroom.of["prof"]
        await classroom.admin.set_quota("student:ml101", {"idle": "1h", "longest_lease": "8h"})
        first = await classroom.hold("anna", 0.2)
        asked = classroom.of["ben"].acquire(
            "brief", SliceRequest(share=0.1), Holder("ben", course="ml101"), -1, 0, 1800
        )
        brief = next(iter([event async for event in asked if isinstance(event, Lease)]))
        elsewhere = await classroom.hold("dora", 0.1, "hpc")

        async def ends() -> dict[str, float]:
            return {lease.id: lease.until for lease in (await classroom.admin.leases())[0]}

        before = await ends()
        bounds = {"idle": "20min", "longest_lease": "2h"}
        _, effects = await prof.quota_effects("student:ml101", bounds, check=True, held=True)
        assert {effect.kind for effect in effects} == {"running"}
        for longer in ({"longest_lease": "10h"}, {"idle": "none"}):  # may be meant for them, too
            _, effects = await prof.quota_effects("student:ml101", longer, check=True)
            assert [effect.kind for effect in effects] == ["running"]
        _, effects = await prof.quota_effects("student:ml101", bounds, check=False)
        assert await ends() == pytest.approx(before, abs=0.01)  # nobody asked
        _, effects = await prof.quota_effects("student:ml101", {"idle": "10min"}, check=False, held=True)
        assert [(e.kind, e.count, e.sentence) for e in effects] == [
            ("held", 2, "2 slices held now have the new times.")
        ]
        after = await ends()
        assert after[first.id] - before[first.id] == pytest.approx(-6 * 3600, abs=1)
        assert after[brief.id] == pytest.approx(
            before[brief.id], abs=0.01
        )  # its holder asked for half an hour
        assert after[elsewhere.id] == before[elsewhere.id]
        with classroom.running.manager.store.transaction() as db:
            found = db.execute(sa.select(leases.c.id, leases.c.idle_limit))
            limits = {row.id: row.idle_limit for row in found}
        assert limits == {first.id: 600, brief.id: 600, elsewhere.id: 0}
        entry = (await classroom.admin.audit())[-1]
        assert (entry.who, entry.action, entry.after) == ("prof", "held", "2 slices have the new times")
        # A longest time that is over already leaves five minutes.
        _, effects = await prof.quota_effects(
            "student:ml101", {"longest_lease": "1s"}, check=False, held=True
        )
        now = time.time()
        assert {one for one, end in (await ends()).items() if 290 < end - now <= 301} == {first.id, brief.id}
        _, effects = await prof.quota_effects(
            "student:ml101", {"longest_lease": "none"}, check=False, held=True
        )
        assert (await ends())[first.id] == 0

    with_classroom(tmp_path, tell)


@pytest.mark.parametrize(
    ("subject", "bounds", "words"),
    [
        (
            "student:ml101",
            {"devices": "-1"},
            "devices: write a number from 0 to 100,000, such as 2.5, not “-1”",
        ),
        ("student:ml101", {"devices": "nan"}, "devices"),
        ("student:ml101", {"gpus": "1"}, "no bound “gpus”"),
        ("student:ml101", {"idle": "soon"}, "idle: write a time as 90s, 30min or 2h"),
        ("student:ml101", {"devices": "1e12"}, "devices: write a number from 0 to 100,000"),
        ("student:ml101", {}, "Say what to bound"),
    ],
)
def test_a_quota_that_makes_no_sense_gets_its_sentence(
    tmp_path: Path, subject: str, bounds: dict[str, str], words: str
) -> None:
    async def tell(classroom: Classroom) -> None:
        with pytest.raises(Refused, match=words):
            await classroom.of["prof"].quota_effects(subject, bounds, check=True)

    with_classroom(tmp_path, tell)


def test_nobody_teaches_what_is_not_their_course(tmp_path: Path) -> None:
    async def tell(classroom: Classroom) -> None:
        lease = await classroom.hold("dora", 0.5, "hpc")
        private = await classroom.of["anna"].acquire_now("private", SliceRequest(share=0.1), Holder("anna"))
        before = await classroom.admin.audit()
        for person in ("prof", "anna", "dora"):  # prof is a student of hpc, dora its holder
            client = classroom.of[person]
            for subject in ("student:hpc", "course:ml101", "pool", "person:anna", "student:none"):
                with pytest.raises(NotAllowed, match="Only the pool's administrator"):
                    await client.quota_effects(subject, {"devices": "1"}, check=True)
            with pytest.raises(LeaseEnded, match="knows no lease"):
                await client.send_message(lease.id, "hello")
            with pytest.raises(LeaseEnded, match="knows no lease"):
                await client.send_message(private.id, "hello")
            with pytest.raises(NotAllowed, match="Only an instructor of course hpc"):
                await client.course_use("hpc", 1.0)
            with pytest.raises(LeaseEnded, match="No such request"):
                await client.move_request("nothing")
        for person in ("prof", "anna"):
            with pytest.raises(LeaseEnded, match="knows no lease"):
                await classroom.of[person].resize(lease.id, SliceRequest(share=0.1))
        assert await classroom.admin.audit() == before

    with_classroom(tmp_path, tell)


def test_an_instructor_says_what_a_course_offers_but_not_what_it_may_take(tmp_path: Path) -> None:
    async def tell(classroom: Classroom) -> None:
        prof = classroom.of["prof"]
        fields = {"offers": ["V100 x 0.02", "0.1"], "start": "on_first_use", "title": "<b>ML</b>"}
        assert len(await prof.set_course("ml101", fields, check=True)) == 1
        assert (await prof.courses())[0].course.title == ""
        assert len(await prof.set_course("ml101", fields)) == 1
        assert await prof.set_course("ml101", fields) == []
        course = {known.course.name: known.course for known in await classroom.of["anna"].courses()}["ml101"]
        assert [str(offer) for offer in course.profile.offers] == ["V100 × 0.02", "GPU × 0.1"]
        assert (course.title, course.profile.start, course.profile.term) == ("<b>ML</b>", "on_first_use", "")
        for wrong, words in (
            ({"offers": ["V100 x 7"]}, r"offers\.0: write an offer as V100 x 0\.02"),
            ({"start": "never"}, "start: a slice is asked for at_start or on_first_use, not 'never'"),
            ({"title": "x" * 257}, "title: .*256"),
            ({"title": "a\nb"}, "printable"),
            ({"title": " "}, "A course needs a title"),
            ({"weight": 100}, "one or more of title, term, offers, start"),
            ({"instructors": ["anna"]}, "one or more of"),
            ({}, "one or more of"),
        ):
            with pytest.raises(Refused, match=words):
                await prof.set_course("ml101", wrong)
        for person in ("anna", "chief"):
            with pytest.raises(NotAllowed, match="Only an instructor of course ml101"):
                await classroom.of[person].set_course("ml101", {"title": "mine"})
        entry = (await classroom.admin.audit())[-1]
        assert (entry.who, entry.action, entry.subject) == ("prof", "course", "course ml101")

    with_classroom(tmp_path, tell)


def test_whom_an_administrator_s_page_obeys_is_written_down_and_gives_no_rights(tmp_path: Path) -> None:
    async def tell(classroom: Classroom) -> None:
        _, secret = await classroom.admin.create_token("console", scope="admin")
        address = classroom.of["prof"].address
        async with AdminClient(address, secret, made_by="rector") as page:
            await page.set_course("hpc", {"term": "autumn"})
        assert (await classroom.admin.audit())[-1].who == "rector through console"
        _, person = await classroom.admin.create_token("anna again", "anna")
        async with AdminClient(address, person, made_by="root") as page:
            with pytest.raises(NotAllowed, match="not anna"):
                await page.tokens()
        async with AdminClient(address, secret, on_behalf="prof") as page:
            await page.set_course("ml101", {"term": "autumn"})
            with pytest.raises(NotAllowed, match="not prof"):
                await page.set_course("hpc", {"term": "mine"})
        assert (await classroom.admin.audit())[-1].who == "prof"

    with_classroom(tmp_path, tell)


def test_a_message_reaches_the_holder_beside_the_pool_s_own_notices(tmp_path: Path) -> None:
    async def tell(classroom: Classroom) -> None:
        prof, anna = classroom.of["prof"], classroom.of["anna"]
        lease = await classroom.hold("anna", 0.5)
        assert (
            await prof.send_message(lease.id, " The lesson\nends at 12. ") == "prof: The lesson ends at 12."
        )
        assert (await anna.renew(lease.id)).notice == "prof: The lesson ends at 12."
        classroom.running.manager.drain("s", "root", 3600)
        told = (await anna.renew(lease.id)).notice
        assert told.startswith("prof: The lesson ends at 12. This slice ends at")
        await prof.send_message(lease.id, "")
        assert (await anna.renew(lease.id)).notice.startswith("This slice ends at")
        with pytest.raises(Refused, match="at most 300 characters; this one has 301"):
            await prof.send_message(lease.id, "x" * 301)
        with pytest.raises(Refused, match="printable"):
            await prof.send_message(lease.id, "\x1b[2J")
        await anna.release(lease.id)
        with pytest.raises(Refused, match="has ended"):
            await prof.send_message(lease.id, "too late")
        entries = [e for e in await classroom.admin.audit() if e.action == "message"]
        assert [(e.who, e.subject, e.after) for e in entries] == [
            ("prof", "course ml101: anna", "The lesson ends at 12."),
            ("prof", "course ml101: anna", ""),
        ]

    with_classroom(tmp_path, tell)


def test_an_instructor_resizes_and_ends_what_students_hold_and_that_is_written_down(tmp_path: Path) -> None:
    async def tell(classroom: Classroom) -> None:
        prof, anna = classroom.of["prof"], classroom.of["anna"]
        lease = await classroom.hold("anna", 0.5)
        smaller = await prof.resize(lease.id, SliceRequest(share=0.25))
        assert smaller.slices[0].weight == 0.25
        with pytest.raises(Refused, match=r"at most 0\.50 devices"):
            await prof.resize(lease.id, SliceRequest(share=0.75))  # the student's quota, not the instructor's
        await prof.release(lease.id, "prof ended it: the lesson is over")
        await prof.release(lease.id, "twice")
        with pytest.raises(LeaseEnded, match="the lesson is over"):
            await anna.renew(lease.id)
        own = await classroom.hold("ben", 0.1)
        await classroom.of["ben"].release(own.id)
        entries = [e for e in await classroom.admin.audit() if e.action in ("end", "resize")]
        assert [(e.who, e.action, e.subject, e.after) for e in entries] == [
            ("prof", "resize", "course ml101: anna", "8192 MiB"),
            ("prof", "end", "course ml101: anna", "prof ended it: the lesson is over"),
        ]

    with_classroom(tmp_path, tell)


def test_an_instructor_changes_the_order_within_the_course_and_of_no_other(tmp_path: Path) -> None:
    async def tell(classroom: Classroom) -> None:
        prof = classroom.of["prof"]
        held = await classroom.hold("dora", 1.0, "hpc")
        asks = {}
        for person, course in (("anna", "ml101"), ("dora", "hpc"), ("ben", "ml101"), ("carl", "ml101")):
            asks[person] = classroom.of[person].acquire(
                person, SliceRequest(share=0.5), Holder(person, course=course)
            )
            assert isinstance(await anext(asks[person]), Queued)

        async def order() -> list[str]:
            return [waiting.key for waiting in (await classroom.admin.leases())[1]]

        assert await order() == ["anna", "ben", "dora", "carl"]  # hpc holds a whole device already
        assert await prof.move_request("carl", "ben")
        assert await order() == ["anna", "carl", "dora", "ben"]
        assert await prof.move_request("ben")
        assert await order() == ["ben", "anna", "dora", "carl"]
        assert not await prof.move_request("ben")
        with pytest.raises(LeaseEnded, match="No such request"):
            await prof.move_request("dora")
        with pytest.raises(Refused, match="no longer waits"):
            await prof.move_request("anna", "dora")
        await classroom.of["dora"].release(held.id)
        # Half of the device each: those whom the instructor put first get it.
        first, second = await anext(asks["ben"]), await anext(asks["anna"])
        while isinstance(first, Queued):
            first = await anext(asks["ben"])
        while isinstance(second, Queued):
            second = await anext(asks["anna"])
        entries = [e for e in await classroom.admin.audit() if e.action == "queue"]
        assert [(e.who, e.subject, e.before, e.after) for e in entries] == [
            ("prof", "course ml101: carl", "place 3 of 3", "place 2 of 3 in the course's queue"),
            ("prof", "course ml101: ben", "place 3 of 3", "place 1 of 3 in the course's queue"),
        ]

    with_classroom(tmp_path, tell, devices=1)


def test_tickets_of_other_courses_stay_and_none_is_there_twice(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(Course("a", members={"*": "student"}), Course("b", members={"*": "student"}))
        await world.get("full", 1.0, holder=Holder("x", course="b"))
        tasks = []
        for number in range(8):
            holder = Holder(f"p{number}", course="ab"[number % 2])
            tasks.append(asyncio.create_task(world.get(f"k{number}", 0.1, holder=holder)))
            await asyncio.sleep(0)

        def tickets() -> dict[str, int]:
            return {entry.key: entry.ticket for entry in world.manager._queue.order()}

        before = tickets()
        assert move_request(world.store, "a", "k6", "k2", "prof", world.now)
        world.manager.policy_changed()
        after = tickets()
        assert {k: t for k, t in after.items() if k in ("k1", "k3", "k5", "k7")} == {
            k: t for k, t in before.items() if k in ("k1", "k3", "k5", "k7")
        }
        assert sorted(after.values()) == sorted(before.values())
        assert [k for k in sorted(after, key=after.__getitem__) if k in ("k0", "k2", "k4", "k6")] == [
            "k0",
            "k6",
            "k2",
            "k4",
        ]
        # Who asks again keeps the new place, and a pool that starts again knows it.
        tasks.append(asyncio.create_task(world.get("k6", 0.1, holder=Holder("p6", course="a"))))
        await asyncio.sleep(0)
        assert tickets() == after
        again = World(tmp_path, server="other", devices=0, now=world.now)
        again.manager.schedule()
        assert {e.key: e.ticket for e in again.manager._queue.order()} == after
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    story(tmp_path, tell)


def test_the_history_of_a_course_cuts_leases_at_midnight(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(Course("ml101", members={"*": "student"}), quotas={"pool": Bounds(devices=1.0)})
        midnight = period_start("day", START) + 86400
        world.now = midnight - 7200
        lease = await world.get("a", 0.5, holder=Holder("anna", course="ml101"))
        other = await world.get("b", 0.1, holder=Holder("ben"))
        world.now = midnight + 3600
        world.manager.end(lease.id, "done")
        world.manager.end(other.id, "done")
        with world.store.reader.connect() as db:
            found = use_by_day(db, midnight - 86400, world.now + 1, "ml101")
        today = datetime.date.fromtimestamp(midnight)
        assert [(use.day, use.person) for use in found] == [
            (today - datetime.timedelta(days=1), "anna"),
            (today, "anna"),
        ]
        assert [use.device_hours for use in found] == pytest.approx([1.0, 0.5])
        assert [use.memory_hours for use in found] == pytest.approx([32.0, 16.0])

    story(tmp_path, tell)


def test_the_history_says_what_is_wrong_with_its_times(tmp_path: Path) -> None:
    async def tell(classroom: Classroom) -> None:
        prof = classroom.of["prof"]
        await classroom.hold("anna", 0.5)
        now = classroom.running.manager.now()
        assert [use.person for use in await prof.course_use("ml101", now - 3600)] == ["anna"]
        for begin, end in ((now, now - 1), (float("nan"), 0.0), (0.0, 0.0), (now, float("inf"))):
            with pytest.raises(Refused, match="ends after it begins"):
                await prof.course_use("ml101", begin, end)
        with pytest.raises(Refused, match="at most 400 days"):
            await prof.course_use("ml101", now - 500 * 86400)
        with pytest.raises(PoolError):
            await prof.course_use("none", now - 3600)

    with_classroom(tmp_path, tell)


def test_a_thousand_mistakes_are_said_as_far_as_a_status_can_carry_them(tmp_path: Path) -> None:
    async def tell(classroom: Classroom) -> None:
        wrong = "courses:\n" + "".join(f"  c{number}: {{töricht: 1}}\n" for number in range(1000))
        with pytest.raises(Refused) as refused:
            await classroom.admin.import_courses(wrong, check=True)
        lines = str(refused.value).splitlines()
        assert lines[0] == "line 2: courses.c0.töricht: is not known here"
        assert re.fullmatch(r"… and \d+ more", lines[-1])
        assert len(lines) > 50
        with pytest.raises(Refused, match=r"offers\.0: write an offer as"):
            await classroom.of["prof"].set_course("ml101", {"offers": ["×" * 80] * 100})
        with pytest.raises(Refused):
            await classroom.of["prof"].quota_effects("student:ml101", {"×" * 9000: "1"}, check=True)

    with_classroom(tmp_path, tell)
