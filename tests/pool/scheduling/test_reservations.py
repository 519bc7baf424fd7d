"""Reservations: their windows by the clock and the calendar, what is left beside them, and what they do in the queue."""

from __future__ import annotations

import asyncio
import datetime
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpukernel.client.admin import AdminClient
from gpukernel.common.account import account_name
from gpukernel.common.address import socket_path
from gpukernel.common.bounds import Bounds, Subject
from gpukernel.common.course import Course
from gpukernel.common.course_file import read_courses, write_courses
from gpukernel.common.errors import PoolError, Refused
from gpukernel.common.model import Chance, Holder, Lease, SliceRequest
from gpukernel.common.policy import Policy
from gpukernel.common.reservations import Reservation, check_reservation, conflict, windows
from gpukernel.pool.domain.fairness import AvailabilityProfile
from gpukernel.pool.scheduling.estimates import chances
from gpukernel.pool.scheduling.reserved_device import outstanding
from gpukernel.pool.store import schema
from gpukernel.pool.store.policy import write_policy
from tests.conftest import Pool
from tests.pool.auth.test_identity import pool, run
from tests.pool.books import check_books, check_placements
from tests.pool.world import World, story
from tests.ports import free_port

HOUR = 3600.0
ML = Holder("anna", course="ml")
PHYS = Holder("carl", course="phys")
EMIL = Holder("emil", course="phys")
COURSES = (Course("ml", members={"*": "student"}), Course("phys", members={"*": "student"}))


# --- windows ---


def at(text: str, zone: str = "UTC") -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def weekly(
    days: tuple[int, ...], begins: float, ends: float, devices: float = 1, course: str = "ml"
) -> Reservation:
    return Reservation(course, days, "", int(begins * 60), int(ends * 60), devices)


def once(on: str, begins: float, ends: float, devices: float = 1, course: str = "ml") -> Reservation:
    return Reservation(course, (), on, int(begins * 60), int(ends * 60), devices)


def test_a_weekly_window_comes_on_its_days_and_the_open_one_counts() -> None:
    classes = weekly((1, 3), 10, 12)
    tuesday, thursday = at("2026-11-24T10:00"), at("2026-11-26T10:00")
    assert windows(classes, at("2026-11-21T19:00"), "UTC")[:2] == [
        (tuesday, tuesday + 2 * HOUR),
        (thursday, thursday + 2 * HOUR),
    ]
    assert windows(classes, tuesday + 2 * HOUR - 1, "UTC")[0] == (tuesday, tuesday + 2 * HOUR)
    assert windows(classes, tuesday + 2 * HOUR, "UTC")[0] == (thursday, thursday + 2 * HOUR)
    assert len(windows(classes, tuesday, "UTC")) == 5  # two weeks of them


def test_a_single_window_is_known_however_far_it_is_and_over_afterwards() -> None:
    exam = once("2027-02-01", 8, 24)
    begin = at("2027-02-01T08:00")
    assert windows(exam, at("2026-11-21T00:00"), "UTC") == [(begin, begin + 16 * HOUR)]
    assert windows(exam, begin + 16 * HOUR, "UTC") == []


@pytest.mark.parametrize(
    ("day", "begins", "ends", "hours"),
    [
        ("2026-03-29", 1, 4, 2),  # the hour from 2 to 3 is not there
        ("2026-03-29", 2, 3, None),
        ("2026-10-25", 1, 4, 4),  # the hour from 2 to 3 comes twice
        ("2026-10-25", 2, 3, 2),
        ("2026-10-25", 0, 24, 25),
        ("2026-03-29", 0, 24, 23),
    ],
)
def test_windows_keep_the_clock_s_time_when_clocks_change(
    day: str, begins: int, ends: int, hours: float | None
) -> None:
    found = windows(once(day, begins, ends), at("2026-01-01T00:00"), "Europe/Berlin")
    assert [(end - begin) / HOUR for begin, end in found] == ([] if hours is None else [hours])
    if hours and begins == 1:
        assert found[0][0] == at(f"{day}T01:00", "Europe/Berlin")


def test_ten_o_clock_stays_ten_o_clock_over_the_change() -> None:
    found = windows(weekly((6,), 10, 12), at("2026-10-20T00:00"), "Europe/Berlin")
    there = [datetime.datetime.fromtimestamp(begin, ZoneInfo("Europe/Berlin")) for begin, _ in found]
    assert [(when.weekday(), when.hour) for when in there] == [(6, 10), (6, 10)]
    assert found[1][0] - found[0][0] == 7 * 24 * HOUR or found[0][0] == at(
        "2026-10-25T10:00", "Europe/Berlin"
    )


# --- what is left of a claim ---

_instants = st.integers(0, 12).map(float)
_claims = st.lists(st.tuples(_instants, _instants, st.integers(0, 5)), max_size=4).map(
    lambda found: [(min(a, b), max(a, b), size) for a, b, size in found]
)


@given(_claims, st.lists(st.tuples(_instants, st.integers(1, 5)), max_size=4), _instants)
def test_what_is_outstanding_is_what_is_claimed_less_what_is_held(
    claims: list[tuple[float, float, int]], held: list[tuple[float, int]], now: float
) -> None:
    left = outstanding(claims, held, now)
    for time in (n / 2 for n in range(26)):
        wanted = sum(size for b, e, size in claims if b <= time < e) - sum(
            s for until, s in held if until > time
        )
        expected = max(wanted, 0) if time >= now else 0
        assert sum(size for b, e, size in left if b <= time < e) == expected


@given(
    st.integers(0, 10),
    st.lists(st.tuples(st.integers(1, 9).map(float), st.integers(1, 4)), max_size=3),
    _claims,
)
def test_the_room_of_a_device_is_the_least_that_is_free_at_any_time(
    free: int, ends: list[tuple[float, int]], taken: list[tuple[float, float, int]]
) -> None:
    profile = AvailabilityProfile("d", free, ends, taken)
    least = min(
        free
        + sum(size for when, size in ends if when <= time)
        - sum(size for b, e, size in taken if b <= time < e)
        for time in (3 + n / 2 for n in range(10))
    )
    assert profile.room(3.0, 8.0, 0.0) == least


# --- what fits beside others ---


def test_what_is_reserved_already_is_said_with_whose_it_is() -> None:
    now = at("2026-11-21T00:00")
    others = [weekly((1,), 9, 11, 1.5, "phys"), weekly((1,), 11, 12, 1, "chem")]
    models = {"Tesla V100": 2.0}
    assert conflict(weekly((1,), 11, 12, 1), others, models, None, now, "UTC") == ""
    assert conflict(weekly((1,), 10, 12, 0.5), others, models, None, now, "UTC") == ""
    said = conflict(weekly((1,), 10, 12, 0.75), others, models, None, now, "UTC")
    assert said == "Tue 24 Nov 10:00: 1.5 of 2 Tesla V100 are reserved already (phys 1.5); 0.75 do not fit."
    assert "course ml may hold 0.5 devices" in conflict(weekly((4,), 1, 2), others, models, 0.5, now, "UTC")
    assert "has reserved" not in conflict(weekly((4,), 1, 2), others, models, 1, now, "UTC")
    own = [weekly((4,), 1, 2, 0.5)]
    assert "and has 0.5 reserved then" in conflict(weekly((4,), 1, 3, 0.75), own, models, 1, now, "UTC")


def test_models_that_others_can_do_without_are_not_counted() -> None:
    now, models = at("2026-11-21T00:00"), {"Tesla V100": 2.0, "NVIDIA A100": 1.0}

    def of(model: str, devices: float, course: str = "phys") -> Reservation:
        return Reservation(course, (1,), "", 600, 660, devices, model)

    for new, others, fits in (
        (of("V100", 2, "ml"), [of("", 1)], True),  # the other one takes the A100
        (of("V100", 2, "ml"), [of("", 1.5)], False),
        (of("", 1, "ml"), [of("V100", 2)], True),
        (of("", 1.5, "ml"), [of("V100", 2)], False),
        (of("A100", 1, "ml"), [of("V100", 2)], True),
        (of("H100", 0.1, "ml"), [], False),
        (of("", 0.5, "ml"), [of("V100", 1.5), of("A100", 1)], True),
        (of("A100", 0.5, "ml"), [of("V100", 1.5), of("", 1)], True),
        (of("A100", 0.5, "ml"), [of("V100", 1.5), of("", 1.25)], False),
    ):
        said = conflict(new, others, models, None, now, "UTC")
        assert (said == "") is fits, (new, others, said)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"days": ()}, "on which weekdays"),
        ({"on": "2026-12-01"}, "on which weekdays"),
        ({"days": (7,)}, "each once"),
        ({"days": (1, 1)}, "each once"),
        ({"days": (), "on": "2026-13-01"}, "is no day"),
        ({"begins": 720, "ends": 600}, "ends after it begins"),
        ({"ends": 1441}, "ends after it begins"),
        ({"devices": 0.0}, "a number above 0"),
        ({"devices": math.nan}, "a number above 0"),
        ({"devices": math.inf}, "a number above 0"),
        ({"model": "x" * 300}, "256"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(change: dict[str, object], words: str) -> None:
    values = {"course": "ml", "days": (1,), "on": "", "begins": 600, "ends": 720, "devices": 1.0} | change
    with pytest.raises(Refused, match=words):
        check_reservation(Reservation(**values))  # type: ignore[arg-type]


# --- the course file ---

FILE = """timezone: Europe/Berlin
courses:
  ml101:
    students: "*"
    reservations:
      - {days: [tue, thu], from: "10:00", to: "12:00", devices: 1.5, model: V100}
      - {date: 2026-12-01, from: 08:30, to: 24:00, devices: 2, preempt: true}
"""


def test_the_file_s_reservations_are_read_and_written_back() -> None:
    policy = read_courses(FILE)
    assert policy.timezone == "Europe/Berlin"
    assert set(policy.reservations) == {
        Reservation("ml101", (1, 3), "", 600, 720, 1.5, "V100"),
        Reservation("ml101", (), "2026-12-01", 510, 1440, 2.0, "", True),
    }
    assert read_courses(write_courses(policy)) == policy
    # YAML reads 10:00 without quotes as a number, of minutes as it happens.
    assert (
        read_courses(FILE.replace('"10:00"', "10:00").replace('"12:00"', "12:00")).reservations
        == read_courses(FILE).reservations
    )


_minutes = st.lists(st.integers(0, 1440), min_size=2, max_size=2, unique=True).map(sorted)
_reservations = st.builds(
    lambda days, on, minutes, devices, model, preempt: Reservation(
        "ml101", () if on else tuple(sorted(days)), on, *minutes, devices, model, preempt
    ),
    st.sets(st.integers(0, 6), min_size=1),
    st.sampled_from(["", "2026-12-01", "2028-02-29"]),
    _minutes,
    st.floats(1e-6, 1e5),
    st.sampled_from(["", "V100", "on", "1e3"]),
    st.booleans(),
)


@given(st.sets(_reservations, max_size=4), st.sampled_from(["", "UTC", "Asia/Shanghai"]))
@settings(deadline=None)
def test_whatever_is_reserved_is_written_and_read_back(found: set[Reservation], zone: str) -> None:
    courses = {"ml101": Course("ml101")}
    policy = Policy(courses, reservations=tuple(sorted(found)), timezone=zone)
    assert read_courses(write_courses(policy)) == policy


@given(_reservations, st.integers(0, 2**31), st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe"]))
@settings(deadline=None)
def test_windows_come_in_their_order_at_the_clock_s_time(one: Reservation, now: int, zone: str) -> None:
    found = windows(one, now, zone)
    assert found == sorted(found)
    assert all(now < end and begin < end for begin, end in found)
    for begin, _ in found:
        there = datetime.datetime.fromtimestamp(begin, ZoneInfo(zone))
        late = (
            there.hour * 60 + there.minute - one.begins
        )  # in the hour that is left out, the next one counts
        assert late in (0, 30, 60)
        assert there.weekday() in one.days or there.date().isoformat() == one.on


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "tue, thu",
            "tue, thursday",
            "line 6: courses.ml101.reservations.0.days: there is no day 'thursday'",
        ),
        ("tue, thu", "tue, tue", "line 6: .*a day stands here twice"),
        ("days: [tue, thu], ", "", "line 6: .*say on which days"),
        ("days: [tue, thu]", "days: [tue], date: 2026-12-01", "line 6: .*say on which days"),
        ('"10:00"', '"10.00"', 'line 6: .*from: write a time of the day as "10:00"'),
        ('"10:00"', '"25:00"', "line 6: .*from: write a time"),
        (
            '"10:00"',
            '"14:00"',
            "line 6: .*it ends at 12:00, before it begins at 14:00; one that goes over midnight",
        ),
        ("devices: 1.5", "devices: 0", "line 6: .*devices: input should be greater than 0"),
        ("devices: 1.5", "devices: .inf", "line 6: .*devices: "),
        ("devices: 1.5, ", "", "line 6: .*field required"),
        ("2026-12-01", '"2026-02-30"', "line 7: .*date: "),
        ("preempt: true", "evict: true", "line 7: .*evict: is not known here"),
        ("Europe/Berlin", "Europe/Atlantis", "line 1: timezone: there is no such time zone"),
        ("{date: 2026-12-01, from: 08:30, to: 24:00, devices: 2, preempt: true}", "7", "line 7: "),
    ],
)
def test_mistakes_in_the_file_are_named_with_their_line(old: str, new: str, words: str) -> None:
    assert old in FILE
    with pytest.raises(Refused, match=words) as refused:
        read_courses(FILE.replace(old, new))
    assert str(refused.value).count("\n") == 0


def test_a_reservation_that_stands_there_twice_is_named() -> None:
    with pytest.raises(Refused, match="line 8: course ml101 has this reservation already"):
        read_courses(FILE + "      - {days: [thu, tue], from: 600, to: 720, devices: 1.5, model: V100}\n")


# --- the queue ---


def reserve(world: World, *reservations: Reservation, quotas: dict[str, Bounds] | None = None) -> list[str]:
    """Make these the reservations of the two courses, in UTC."""
    found = {Subject.parse(text): bounds for text, bounds in (quotas or {}).items()}
    after = Policy({c.name: c for c in COURSES}, found, reservations=reservations, timezone="UTC")
    with world.store.deciding() as (db, row):
        changes = write_policy(
            db, world.store.policy.current(db, row.policy_version), after, "admin", world.now
        )
    world.manager.policy_changed()
    return changes


def window(
    world: World, begins: float, ends: float, devices: float = 1.0, course: str = "ml", **more: object
) -> Reservation:
    """One that opens and closes so many hours from now, on one day."""
    begin = datetime.datetime.fromtimestamp(world.now, datetime.UTC) + datetime.timedelta(hours=begins)
    first = begin.hour * 60 + begin.minute
    return Reservation(
        course,
        (),
        begin.date().isoformat(),
        first,
        first + round((ends - begins) * 60),
        devices,
        **more,  # type: ignore[arg-type]
    )


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


async def refused(world: World, key: str, share: float, holder: Holder, longest: float = 0) -> str:
    with pytest.raises(Refused) as no:
        await world.get(key, share, wait=0, holder=holder, longest=longest)
    return str(no.value)


def in_world(place: Path | str, tell: Callable[[World], object], devices: int = 1) -> None:
    async def start(world: World) -> None:
        world.now = at("2026-11-24T08:00")  # a Tuesday
        await tell(world)  # type: ignore[misc]
        check_books(world.store, {})
        check_placements(world.store, world.now)

    story(place, start, devices=devices)


def test_before_the_window_only_what_ends_before_it_may_borrow(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        reserve(world, window(world, 2, 4))
        said = await refused(world, "a", 0.5, PHYS)
        assert (
            "it is reserved for course ml from 10:00 to 12:00; a slice that ends before that may start"
            in said
        )
        await refused(world, "b", 0.5, PHYS, longest=2 * HOUR + 1)
        lease = await world.get("c", 0.5, wait=0, holder=PHYS, longest=2 * HOUR)
        assert lease.until == world.now + 2 * HOUR
        await refused(world, "e", 0.5, Holder("dora"))  # nobody's course
        assert await world.get("d", 0.5, wait=0, holder=ML)  # the course itself may stay

    in_world(tmp_path, tell)


def test_in_the_window_the_course_gets_what_is_reserved_and_others_hear_until_when(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        reserve(world, window(world, 2, 4, 0.5))
        await world.get("a", 0.5, wait=0, holder=PHYS)  # beside it there is room
        waits = asyncio.create_task(world.get("b", 0.25, holder=PHYS))
        await settle()
        world.manager.renew(world.manager.leases(False)[0].id)
        world.now += 2 * HOUR + 60
        for lease in world.manager.leases(False):
            world.manager.renew(lease.id)
        world.manager.tick()
        assert "it is reserved for course ml until 12:00" in await refused(world, "c", 0.25, PHYS)
        assert [w.reason for w in world.manager.waiting()] == ["reserved for course ml until 12:00"]
        # Whoever waits further ahead: nobody else could have it.
        for key in ("m1", "m2"):
            assert await world.get(key, 0.25, wait=0, holder=ML)
        await refused(world, "m3", 0.25, ML)
        assert world.promised() == 1.0
        world.manager.end(
            next(lease.id for lease in world.manager.leases(False) if lease.key == "m1"), "released"
        )
        await settle()
        assert not waits.done()  # it is the course's again
        for lease in world.manager.leases(False):
            world.manager.renew(lease.id)
        world.now += 2 * HOUR
        for lease in world.manager.leases(False):
            world.manager.renew(lease.id)
        world.manager.tick()
        await settle()
        assert (await waits).holder == PHYS

    in_world(tmp_path, tell)


def test_what_the_course_holds_in_the_window_is_part_of_what_is_reserved(database: str) -> None:
    async def tell(world: World) -> None:
        await world.get("before", 0.2, wait=0, holder=PHYS)
        await world.get("m1", 0.5, wait=0, holder=ML)
        reserve(world, window(world, -1, 4, 0.7))
        assert "it is reserved for course ml" in await refused(world, "a", 0.2, PHYS)
        assert await world.get("b", 0.1, wait=0, holder=PHYS)
        assert await world.get("m2", 0.2, wait=0, holder=ML)

    in_world(database, tell)


def test_leases_that_run_into_the_window_stay_and_nothing_more_is_granted(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("a", 0.5, holder=PHYS)
        reserve(world, window(world, 0, 2))
        assert "reserved for course ml until 10:00" in await refused(world, "b", 0.5, PHYS)
        world.manager.renew(lease.id)
        world.manager.tick()
        assert [one.state for one in world.manager.leases(False)] == ["live"]
        assert await world.get("m", 0.5, wait=0, holder=ML)
        # What becomes free is the course's too.
        world.manager.end(lease.id, "released")
        await refused(world, "c", 0.1, PHYS)
        assert await world.get("n", 0.5, wait=0, holder=ML)

    in_world(tmp_path, tell)


def test_one_that_preempts_lends_to_everybody_tells_them_and_takes_back_what_it_needs(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        reserve(world, window(world, 2, 4, 0.5, preempt=True))
        old = await world.get("old", 0.5, wait=0, holder=PHYS)
        new = await world.get("new", 0.25, wait=0, holder=PHYS)
        own = await world.get("own", 0.25, wait=0, holder=ML)

        def pass_to(hours: float) -> None:
            world.now = at("2026-11-24T08:00") + hours * HOUR
            for lease in world.manager.leases(False):
                world.manager.renew(lease.id)
            world.manager.tick()

        pass_to(1.5)
        assert not any(lease.notice for lease in world.manager.leases(False))
        pass_to(1.95)
        notices = {lease.id: lease.notice for lease in world.manager.leases(False)}
        assert (
            notices[new.id]
            == "This slice is on borrowed time: it ends at 10:00, when course ml has reserved its device."
        )
        assert notices[old.id] == notices[own.id] == ""
        world.manager.end(old.id, "released")  # so the other one may stay
        pass_to(1.97)
        assert not any(lease.notice for lease in world.manager.leases(False))
        last = await world.get("last", 0.5, wait=0, holder=PHYS)
        pass_to(2)
        left = {lease.id: lease for lease in world.manager.leases(False)}
        assert set(left) == {new.id, own.id}
        ended = next(lease for lease in world.manager.leases(True) if lease.id == last.id)
        assert ended.end_reason == "course ml has reserved its device from now on"
        assert await world.get("m", 0.25, wait=0, holder=ML)

    in_world(tmp_path, tell)


def test_a_reservation_lies_where_there_will_be_room_and_moves_when_its_device_goes(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        endless = await world.get("endless", 0.6, holder=PHYS)
        short = [await world.get(f"s{i}", 0.9, holder=PHYS, longest=HOUR) for i in range(2)]
        full = {piece.device_id for lease in short for piece in lease.slices}
        assert endless.slices[0].device_id not in full
        reserve(world, window(world, 2, 4, 1.5))

        def pinned() -> dict[str, float]:
            world.manager.schedule()
            with world.store.reader.connect() as db:
                found = db.execute(
                    sa.select(schema.reservation_placements.c.device, schema.reservation_placements.c.bytes)
                )
                return {row.device: round(row.bytes / 2**35, 2) for row in found}

        await refused(world, "a", 0.5, PHYS)
        assert set(pinned()) == full  # full now, and empty then
        assert sorted(pinned().values()) == [0.5, 1.0]
        gone = sorted(full)[0]
        world.sessions.faults("s", {gone: "it fell off the bus"})
        await refused(world, "b", 0.9, PHYS)
        assert gone not in pinned()
        assert sum(pinned().values()) == pytest.approx(1.4)  # more is not to be had

    in_world(tmp_path, tell, devices=3)


def test_a_slice_may_grow_into_its_own_course_s_reservation_only(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        reserve(world, window(world, 0, 2, 0.5))
        own = await world.get("own", 0.25, wait=0, holder=ML)
        other = await world.get("other", 0.25, wait=0, holder=PHYS)
        await world.manager.resize(own.id, SliceRequest(share=0.5))
        world.manager.end(own.id, "released")
        with pytest.raises(Refused, match="s/0 is reserved for course ml until 10:00; your slice stays"):
            await world.manager.resize(other.id, SliceRequest(share=0.75))
        await world.manager.resize(other.id, SliceRequest(share=0.5))

    in_world(tmp_path, tell)


def test_who_looks_before_asking_sees_what_is_left(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        reserve(world, window(world, 0, 2, 0.75))
        world.manager.schedule()
        await refused(world, "x", 0.5, PHYS)  # a decision pins it

        def look(course: str, share: float) -> Chance:
            wanted = [SliceRequest(share=share)]
            kinds, policy = world.store.devices.classes(), world.store.policy.current()
            with world.store.reader.connect() as db:
                return chances(db, world.store, kinds, policy, "p", course, wanted, [], world.now)[0]

        assert (look("ml", 0.25).state, look("ml", 0.25).free) == ("free", 4)
        assert (look("phys", 0.25).state, look("phys", 0.25).free) == ("free", 1)
        none = look("phys", 0.5)
        assert (none.state, none.free) == ("wait", 0)
        assert none.sentence == "What is free is reserved for course ml until 10:00."

    in_world(tmp_path, tell)


def test_within_the_course_the_first_is_still_the_first(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        reserve(world, window(world, 0, 2, 1.0))
        half = await world.get("half", 0.5, holder=ML)
        whole = asyncio.create_task(world.get("whole", 1.0, holder=ML))
        await settle()
        await refused(world, "small", 0.25, ML)  # it would delay the other one
        world.manager.end(half.id, "released")
        await settle()
        assert (await whole).slices[0].memory_bytes == 2**35

    in_world(tmp_path, tell)


def test_who_can_never_use_the_room_does_not_keep_short_leases_from_borrowing_it(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        reserve(world, window(world, 2, 4, 0.5))
        there = await world.get("there", 0.3, holder=PHYS)
        waits = asyncio.create_task(world.get("endless", 0.5, holder=PHYS))
        await settle()
        assert world.manager.waiting()[0].reason.startswith("reserved for course ml")
        # 0.7 are free, of which the one that waits could keep 0.2 over the window.
        await refused(world, "large", 0.55, EMIL, longest=HOUR)
        await refused(world, "long", 0.25, EMIL, longest=3 * HOUR)
        for key in ("b1", "b2"):
            assert await world.get(key, 0.25, wait=0, holder=EMIL, longest=HOUR)
        await refused(world, "b3", 0.1, EMIL, longest=HOUR)
        world.manager.end(there.id, "released")
        await settle()
        assert (await waits).slices[0].memory_bytes == 2**34  # who borrowed delayed nobody

    in_world(tmp_path, tell)


def test_those_behind_two_hundred_others_still_get_their_course_s_room(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        reserve(world, window(world, 0, 2, 0.5))
        await world.get("a", 0.5, holder=PHYS)
        await world.get("m0", 0.25, holder=ML)  # so that the course is not first for holding least
        tasks = [asyncio.create_task(world.get(f"k{i}", 0.001, holder=Holder(f"p{i}"))) for i in range(220)]
        await settle()
        assert await world.get("m1", 0.25, wait=0, holder=ML)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    in_world(tmp_path, tell)


def test_what_is_changed_is_in_the_audit_table_and_goes_with_its_course(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        first = window(world, 2, 4)
        assert reserve(world, first)[-2:] == [
            f"reservation of ml: nothing → {first}",
            "timezone: nothing → UTC",
        ]
        assert reserve(world, first) == []
        known = world.store.policy.current().reservations
        assert known == (first,)
        assert known[0].id
        assert reserve(world) == [f"reservation of ml: {first} → nothing"]
        with world.store.reader.connect() as db:
            assert (
                db.execute(sa.select(sa.func.count()).select_from(schema.reservation_placements)).scalar_one()
                == 0
            )
        assert await world.get("a", 1.0, wait=0, holder=PHYS)

    in_world(tmp_path, tell)


# --- what must be true whatever happens ---

_shares = st.sampled_from([0.1, 0.25, 0.5, 0.6, 1.0])
_steps = st.lists(
    st.tuples(
        st.sampled_from(["phys", "phys", "ml", "", "release", "wait"]),
        _shares,
        st.sampled_from([0.0, 600.0, 1800.0, 3600.0, 7200.0]),
    ),
    max_size=14,
)


async def play(world: World, steps: list[tuple[str, float, float]], until: float) -> list[tuple[str, str]]:
    """Take the steps, time among them, and say which requests started and on which device, in their order."""
    tasks = []
    for number, (what, share, seconds) in enumerate(steps):
        if what == "wait":
            world.now = min(world.now + seconds, until)
            for lease in world.manager.leases(False):
                world.manager.renew(lease.id)
            world.manager.tick()
        elif what == "release":
            living = [lease for lease in world.manager.leases(False) if lease.state == "live"]
            if living:
                world.manager.end(living[int(share * 10) % len(living)].id, "released")
        else:
            holder = Holder("p", course=what)
            tasks.append(asyncio.create_task(world.get(f"k{number}", share, holder=holder, longest=seconds)))
        await settle()
        check_books(world.store, {})
        check_placements(world.store, world.now)
    started = [(lease.key, lease.slices[0].device_id) for lease in world.manager.leases(True)]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return started


@given(_steps, st.sampled_from([0.5, 1.0, 1.5]), st.booleans())
@settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck), derandomize=True)
def test_a_course_gets_what_it_reserved_whatever_others_did_since(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, float, float]],
    devices: float,
    preempt: bool,
) -> None:
    """The room was there when the reservation was made, so it is there when the window opens; in slices of any size that fill it."""

    async def tell(world: World) -> None:
        opens = world.now + 2 * HOUR
        reserve(world, window(world, 2, 4, devices, preempt=preempt))
        await play(world, steps, opens - 1)
        world.now = opens
        for lease in world.manager.leases(False):
            world.manager.renew(lease.id)
        world.manager.tick()
        await settle()
        own = sum(
            lease.slices[0].memory_bytes
            for lease in world.manager.leases(False)
            if lease.holder.course == "ml"
        )
        if own:
            return  # how it has cut its own room is its own affair
        for number, share in enumerate([1.0, 0.5] if devices == 1.5 else [devices]):
            lease = await world.get(f"mine{number}", share, wait=0, holder=ML)
            assert lease.holder.course == "ml"
        check_books(world.store, {})

    in_world(tmp_path_factory.mktemp("w"), tell, devices=2)


@given(_steps, st.sampled_from(["over", "far", "none"]))
@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck), derandomize=True)
def test_a_reservation_that_is_over_or_that_nobody_reaches_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, float, float]], kind: str
) -> None:
    found: list[list[tuple[str, str]]] = []
    steps = [(what, share, seconds or 600.0) for what, share, seconds in steps]  # everything ends

    async def tell(world: World) -> None:
        with_one = bool(found)
        reserve(
            world,
            *(
                []
                if not with_one or kind == "none"
                else [window(world, -2 if kind == "over" else 48, -1 if kind == "over" else 49, 2.0)]
            ),
        )
        found.append(await play(world, steps, world.now + 12 * HOUR))

    for _ in range(2):
        in_world(tmp_path_factory.mktemp("w"), tell, devices=2)
    assert found[0] == found[1]


def test_several_reservations_on_one_device_never_claim_more_than_it_has(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        reserve(
            world,
            window(world, 2, 4, 0.5, "ml"),
            window(world, 3, 5, 0.5, "phys"),
            window(world, 3.5, 4.5, 1.0, "phys"),  # more than there is: one device's worth at most is pinned
        )
        await refused(world, "a", 0.1, Holder("dora"))
        with world.store.reader.connect() as db:
            total = db.execute(sa.select(sa.func.sum(schema.reservation_placements.c.bytes))).scalar_one()
        assert total == 2**35
        world.now += 3.25 * HOUR
        world.manager.tick()
        assert await world.get("m", 0.5, wait=0, holder=ML)
        assert await world.get("p", 0.5, wait=0, holder=PHYS)

    in_world(tmp_path, tell)


def test_a_lease_that_is_ending_is_no_part_of_what_its_course_has_reserved(database: str) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("m", 0.25, wait=0, holder=ML)
        world.agent.prompt = False  # its worker takes a moment to end
        world.manager.end(lease.id, "done")
        reserve(world, window(world, 2, 4, 0.75, "ml"), window(world, 3, 5, 1.0, "phys"))
        await refused(world, "a", 0.9, Holder("dora"))
        with world.store.reader.connect() as db:
            total = db.execute(sa.select(sa.func.sum(schema.reservation_placements.c.bytes))).scalar_one()
        assert total == 2**35  # the device's, where it was a quarter more
        check_placements(world.store, world.now)
        world.agent.stop()

    in_world(database, tell)


def test_another_pool_on_the_database_keeps_the_same_reservation(new_postgresql: Callable[[], str]) -> None:
    async def tell() -> None:
        url = new_postgresql()
        first = World(url, now=at("2026-11-24T08:00"))
        reserve(first, window(first, 0, 2, 0.5))
        second = World(url, server="t", now=first.now)
        for world in (first, second):
            world.manager.tick()

        async def get(key: str, holder: Holder) -> Lease:
            asked = asyncio.create_task(second.get(key, 0.5, wait=0, holder=holder))
            await settle()
            first.manager.tick()  # starts the workers of its server
            second.manager.tick()
            return await asked

        taken = [await get(f"k{i}", PHYS) for i in range(3)]
        assert len({piece.device_id for lease in taken for piece in lease.slices}) == 2
        assert "reserved for course ml until 10:00" in await refused(second, "x", 0.5, PHYS)
        assert await get("m", ML)
        for world in (first, second):
            world.store.close()

    asyncio.run(tell())


# --- who may make them ---


def test_instructors_reserve_within_their_quota_and_what_others_left_administrators_as_they_like(
    tmp_path: Path,
) -> None:
    state, address = tmp_path / "state", f"127.0.0.1:{free_port()}"

    async def work() -> None:
        async with pool(state, address), AdminClient(f"unix:{socket_path(state)}") as admin:
            await admin.import_courses(
                "timezone: UTC\ncourses:\n"
                "  ml: {instructors: [prof], students: [anna], quota: {devices: 1.5}}\n"
                "  phys: {instructors: [doc]}\n"
            )
            secrets = {p: (await admin.create_token(p, p))[1] for p in ("prof", "doc", "anna")}
            async with (
                AdminClient(address, secrets["prof"]) as prof,
                AdminClient(address, secrets["doc"]) as doc,
                AdminClient(address, secrets["anna"]) as anna,
            ):
                looked = await prof.reserve(weekly((1,), 10, 12, 1.0), check=True)
                assert (looked.reservation.id, looked.ready) == ("", 1.0)
                assert (await prof.reservations("ml"))[0] == []
                made = await prof.reserve(weekly((1,), 10, 12, 1.0))
                assert made.reservation.id
                assert (made.next_ends - made.next_begins, made.ready) == (2 * HOUR, 1.0)
                with pytest.raises(
                    PoolError, match=r"may hold 1.5 devices at one moment and has 1 reserved then; 0.75 more"
                ):
                    await prof.reserve(weekly((1,), 11, 13, 0.75))
                with pytest.raises(PoolError, match="ml has reserved tue 10:00–12:00 1 devices already"):
                    await prof.reserve(weekly((1,), 10, 12, 1.0))
                with pytest.raises(PoolError, match="Only the pool's administrator makes"):
                    await prof.reserve(Reservation("ml", (2,), "", 0, 60, 0.1, "", True))
                with pytest.raises(PoolError, match="has no quota of devices to reserve from"):
                    await doc.reserve(weekly((1,), 10, 12, 0.1, "phys"))
                with pytest.raises(PoolError, match="Only an instructor of course ml"):
                    await doc.reserve(weekly((1,), 14, 15))
                with pytest.raises(PoolError, match="Only an instructor of course ml"):
                    await anna.reserve(weekly((1,), 14, 15))
                await admin.reserve(
                    weekly((1,), 9, 11, 3.5, "phys")
                )  # more than there is beside the other: it may
                with pytest.raises(
                    PoolError, match=r"4.5 of 4 Tesla V100 are reserved already \(ml 1, phys 3.5\); 0.25 do"
                ):
                    await prof.reserve(weekly((1,), 10.5, 13, 0.25))
                assert (await prof.reserve(weekly((1,), 12, 13, 0.25), check=True)).reservation.id == ""
                for wrong, words in (
                    (weekly((1,), 10, 9), "ends after it begins"),
                    (once("2020-01-01", 1, 2), "is over"),
                    (weekly((1,), 1, 2, course="chem"), "There is no course chem"),
                ):
                    with pytest.raises(PoolError, match=words):
                        await admin.reserve(wrong)
                seen, zone = await anna.reservations()
                assert [(one.reservation.course, zone) for one in seen] == [("ml", "UTC"), ("phys", "UTC")]
                ids = {one.reservation.course: one.reservation.id for one in seen}
                for client, whose in ((anna, "ml"), (prof, "phys")):
                    with pytest.raises(PoolError, match=f"Only an instructor of course {whose}"):
                        await client.unreserve(ids[whose])
                with pytest.raises(PoolError, match="There is no reservation r0"):
                    await prof.unreserve("r0")
                await prof.unreserve(ids["ml"])
                assert [one.reservation.course for one in (await doc.reservations())[0]] == ["phys"]
                actions = [
                    (e.who, e.action, e.after) for e in await admin.audit() if e.action == "reservation"
                ]
                assert actions[0] == ("prof", "reservation", "tue 10:00–12:00 1 devices")
                assert [who for who, _, _ in actions] == ["prof", account_name(os.geteuid()), "prof"]

    run(work)


def test_the_command_makes_lists_and_removes_them(shared_pool: Pool) -> None:
    courses = "courses: {cli-course: {students: [anna]}}\n"
    imported = shared_pool.gpukernel("quota", "import", "/dev/stdin", input=courses)
    assert imported.returncode == 0, imported.stderr
    try:
        week = ("--days", "tue,thu", "--from", "10:00", "--to", "12:00", "-d", "1.5", "--model", "V100")
        said = shared_pool.gpukernel("reserve", "add", "cli-course", *week)
        assert "of course cli-course: tue, thu 10:00–12:00 1.5 V100. Next: " in said.stdout, said.stderr
        (one,) = json.loads(shared_pool.gpukernel("reserve", "list", "--json").stdout)
        assert (one["days"], one["from"], one["to"], one["devices"]) == (
            ["tue", "thu"],
            "10:00",
            "12:00",
            1.5,
        )
        assert "tue, thu 10:00–12:00" in shared_pool.gpukernel("reserve", "list").stdout
        for wrong, words in (
            (("--days", "tue", "--from", "10", "--to", "12:00"), "Write a time of the day"),
            (("--days", "di", "--from", "10:00", "--to", "12:00"), "There is no day 'di'"),
            (("--from", "10:00", "--to", "12:00"), "Say on which weekdays"),
            (("--date", "tomorrow", "--from", "10:00", "--to", "12:00"), "is no day"),
        ):
            refused = shared_pool.gpukernel("reserve", "add", "cli-course", "-d", "1", *wrong)
            assert refused.returncode == 2
            assert words in refused.stderr
            assert refused.stderr.count("\n") == 1
        always = ("--days", "mon,tue,wed,thu,fri,sat,sun", "--from", "00:00", "--to", "24:00", "-d", "0.5")
        made = json.loads(shared_pool.gpukernel("reserve", "add", "cli-course", *always, "--json").stdout)[0]
        assert made["ready"] == 0.5
        kept = shared_pool.gpukernel("run", "-p", "0.1", "--wait", "0", "--", "true")
        assert kept.returncode == 6
        assert "but it is reserved for course cli-course until" in kept.stderr
        assert shared_pool.gpukernel("reserve", "remove", made["id"]).returncode == 0
        assert shared_pool.gpukernel("run", "-p", "0.1", "--wait", "0", "--", "true").returncode == 0
        gone = shared_pool.gpukernel("reserve", "remove", one["id"])
        assert gone.returncode == 0
        assert "Nothing is reserved." in shared_pool.gpukernel("reserve", "list").stdout
    finally:
        shared_pool.gpukernel("quota", "import", "/dev/stdin", input="{}\n")
