"""Quotas: what they say, that they hold, and that they change at once."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from gpukernel.common.bounds import Account, Bounds, Subject, check_bounds
from gpukernel.common.course import Course
from gpukernel.common.errors import Refused
from gpukernel.common.model import Holder, Lease, Queued
from gpukernel.pool.domain.quota import Claim, Standing, never, period_start, refusal
from gpukernel.pool.store import quota_usage, schema
from tests.pool.world import START, World, story

MIB = 2**20
NOW = START
COURSE = Account("course", "ml101")
CLAIM = Claim(share=50_000, memory=1638 * MIB, slice=50_000)


@pytest.mark.parametrize(
    ("standing", "sentence"),
    [
        (
            Standing(COURSE, Bounds(devices=1.0), share=979_461),
            "Course ml101 holds 0.98 of its 1.00 V100; 0.05 more does not fit.",
        ),
        (
            Standing(COURSE, Bounds(memory_mib=2000), memory=1000 * MIB),
            "Course ml101 holds 1000 of its 2000 MiB; 1638 MiB more do not fit.",
        ),
        (
            Standing(Account("person", person="anna"), Bounds(leases=2), leases=2),
            "anna holds 2 of their 2 leases; one more does not fit.",
        ),
        (
            Standing(Account("member", "ml101", "anna"), Bounds(devices=0.05), share=19_989, role="student"),
            "anna, as a student of ml101, holds 0.02 of their 0.05 V100; 0.05 more does not fit.",
        ),
        (
            Standing(Account("pool"), Bounds(hours_week=40.0), spent=(0, 40 * 3600, 0)),
            "The pool has used 40.0 of its 40 GPU-hours of this week.",
        ),
    ],
)
def test_a_refusal_names_the_quota_its_value_and_what_is_used(standing: Standing, sentence: str) -> None:
    refused = refusal(CLAIM, [standing], NOW, 0.0, "V100")
    assert refused is not None
    assert refused.sentence.startswith(sentence)
    assert refused.account == standing.account


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (Bounds(largest_slice=0.02), "slices of up to 0.02 of a device; 0.05 is larger"),
        (Bounds(devices=0.04), "at most 0.04 devices at one moment; 0.05 can never fit"),
        (Bounds(memory_mib=100), "at most 100 MiB at one moment"),
        (Bounds(leases=0), "0 leases"),
        (Bounds(hours_day=0), "0 GPU-hours a day"),
        (Bounds(longest_seconds=3600), "at most 60 min; you ask for 2 h"),
    ],
)
def test_what_can_never_fit_is_told_from_what_may_fit_later(bounds: Bounds, words: str) -> None:
    claim = Claim(CLAIM.share, CLAIM.memory, CLAIM.slice, longest_seconds=7200)
    refused = never(claim, [Standing(COURSE, bounds)])
    assert refused is not None
    assert words in refused.sentence
    assert never(claim, [Standing(COURSE, Bounds())]) is None


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (Bounds(devices=-1), "devices: -1"),
        (Bounds(devices=float("nan")), "devices: nan"),
        (Bounds(devices=float("inf")), "devices: inf"),
        (Bounds(largest_slice=1.0000001), "above 0 and up to 1"),
        (Bounds(leases=1.5), "whole number"),  # type: ignore[arg-type]
        (Bounds(longest_seconds=0), "at least a second"),
    ],
)
def test_bounds_that_make_no_sense_get_a_sentence(bounds: Bounds, words: str) -> None:
    assert words in (check_bounds(bounds) or "")


def test_subjects_read_as_they_are_written() -> None:
    for text in ("pool", "course:ml101", "student:ml101", "instructor:ml101", "person:*", "person:anna"):
        assert str(Subject.parse(text)) == text
    for text in ("", "course:", "people:anna", "pool:x"):
        with pytest.raises(ValueError, match="has no quota"):
            Subject.parse(text)


def test_periods_begin_at_midnight_on_monday_and_with_the_term() -> None:
    day, week = period_start("day", NOW), period_start("week", NOW)
    assert 0 <= NOW - day < 86400
    assert (day - week) % 86400 in (0, 3600, 82800)  # summer time
    assert period_start("day", day) == day
    assert period_start("day", day - 1) < day
    assert period_start("term", NOW, NOW - 5) == NOW - 5
    assert period_start("term", NOW, NOW + 5) == 0  # has not begun


ANNA, BEN = Holder("anna", course="ml101"), Holder("ben", course="ml101")
ML101 = Course("ml101", members={"anna": "student", "ben": "student", "prof": "instructor"})


def test_who_is_over_a_quota_waits_and_is_served_when_there_is_room(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(ML101, quotas={"course:ml101": Bounds(devices=1.0)})
        first = await world.get("a", 0.75, holder=ANNA)
        ask = world.ask("b", 0.5, holder=BEN)
        queued = await anext(ask)
        assert isinstance(queued, Queued)
        assert queued.reason == (
            "Course ml101 holds 0.75 of its 1.00 devices; 0.50 more does not fit. Waiting: 1; position 1 in the queue."
        )
        world.manager.end(first.id, "done")
        assert isinstance(await anext(ask), Lease)

    story(tmp_path, tell, devices=2)


def test_who_waits_behind_another_reads_no_figure_of_the_other_s(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(ML101, quotas={"course:ml101": Bounds(devices=1.0)})
        await world.get("a", 0.5, holder=ANNA)
        asks = [
            world.ask(key, share, holder=holder)
            for key, share, holder in (("b", 0.6, BEN), ("c", 0.3, BEN), ("d", 0.2, ANNA))
        ]
        for ask in asks:
            assert isinstance(await anext(ask), Queued)
        held = "Course ml101 holds 0.50 of its 1.00 devices"
        assert [one.reason for one in world.manager.waiting()] == [
            f"{held}; 0.60 more does not fit.",
            f"{held}; a request ahead of this one waits for more.",  # 0.30 would fit
            f"{held}; a request ahead of this one waits for more.",
        ]

    story(tmp_path, tell, devices=2)


@pytest.mark.parametrize(
    ("limit", "asked", "sentence"),
    [
        (0.125, 0.128, "up to 0.125 of a device; 0.128 is larger"),
        (0.02, 0.019989 * 2, "up to 0.02 of a device; 0.04 is larger"),
        (0.0015, 0.0021, "up to 0.0015 of a device; 0.0021 is larger"),
    ],
)
def test_figures_that_differ_are_written_differently(limit: float, asked: float, sentence: str) -> None:
    claim = Claim(share=0, memory=0, slice=round(asked * 1_000_000))
    refused = never(claim, [Standing(COURSE, Bounds(largest_slice=limit))])
    assert refused is not None
    assert sentence in refused.sentence


def test_without_waiting_the_refusal_says_which_quota(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(ML101, quotas={"person:*": Bounds(leases=1)})
        await world.get("a", 0.1, holder=ANNA)
        with pytest.raises(Refused, match="anna holds 1 of their 1 leases") as refused:
            await world.get("b", 0.1, wait=0, holder=ANNA)
        assert refused.value.code == "quota"
        await world.get("c", 0.1, wait=0, holder=BEN)

    story(tmp_path, tell)


def test_what_can_never_be_met_does_not_wait(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(ML101, quotas={"student:ml101": Bounds(largest_slice=0.1)})
        with pytest.raises(Refused, match=r"anna, as a student of ml101, may have slices of up to 0\.10"):
            await world.get("a", 0.2, holder=ANNA)
        assert world.manager.waiting() == []
        await world.get("p", 0.2, holder=Holder("prof", course="ml101"))

    story(tmp_path, tell)


def test_a_role_s_quota_is_for_each_person_in_it(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(ML101, quotas={"student:ml101": Bounds(devices=0.1)})
        await world.get("a", 0.1, holder=ANNA)
        await world.get("b", 0.1, holder=BEN)
        with pytest.raises(Refused, match=r"holds 0\.10 of their 0\.10"):
            await world.get("a2", 0.05, wait=0, holder=ANNA)

    story(tmp_path, tell)


@pytest.mark.parametrize(
    ("holder", "words"),
    [
        (Holder("eve", course="ml101"), "eve is not in course ml101"),
        (Holder("anna", course="nope"), "no course nope"),
    ],
)
def test_only_members_ask_for_a_course(tmp_path: Path, holder: Holder, words: str) -> None:
    async def tell(world: World) -> None:
        world.rule(ML101)
        with pytest.raises(Refused, match=words):
            await world.get("k", 0.1, holder=holder)
        assert world.promised() == 0

    story(tmp_path, tell)


def test_a_raised_quota_serves_those_who_wait_at_once_and_a_lowered_one_takes_nothing_away(
    tmp_path: Path,
) -> None:
    async def tell(world: World) -> None:
        world.rule(ML101, quotas={"course:ml101": Bounds(devices=0.5)})
        held = await world.get("a", 0.5, holder=ANNA)
        ask = world.ask("b", 0.25, holder=BEN)
        await anext(ask)
        world.rule(ML101, quotas={"course:ml101": Bounds(devices=0.75)})
        second = await anext(ask)
        assert isinstance(second, Lease)
        world.rule(ML101, quotas={"course:ml101": Bounds(devices=0.3)})
        assert world.store.leases.get(held.id).state == "live"  # type: ignore[union-attr]
        world.manager.end(second.id, "done")
        with pytest.raises(Refused, match=r"holds 0\.50 of its 0\.30"):
            await world.get("c", 0.1, wait=0, holder=BEN)
        world.manager.end(held.id, "done")
        await world.get("c", 0.1, wait=0, holder=BEN)

    story(tmp_path, tell)


def test_the_database_itself_refuses_what_is_above_a_quota(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(ML101, quotas={"course:ml101": Bounds(devices=0.5)})
        await world.get("a", 0.5, holder=ANNA)
        whose = quota_usage.accounts_of("ben", "ml101")
        with pytest.raises(IntegrityError, match="share_within_quota"), world.store.deciding() as (db, _):
            quota_usage.charge(db, world.store.policy.current(db), whose, 10_000, 1, world.now)
        with pytest.raises(IntegrityError, match="within_quota"), world.store.engine.begin() as db:
            db.execute(sa.update(schema.quota_usage).values(leases_held=-1))

    story(tmp_path, tell)


def test_changes_are_kept_with_who_when_before_and_after(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(ML101, quotas={"course:ml101": Bounds(devices=0.5)})
        world.now += 60
        changes = world.rule(ML101, quotas={"course:ml101": Bounds(devices=0.7, leases=3)})
        assert changes == ['course:ml101: {"devices": 0.5} → {"devices": 0.7, "leases": 3}']
        with world.store.engine.connect() as db:
            newest = db.execute(sa.select(schema.audit).order_by(schema.audit.c.id.desc())).first()
        assert newest is not None
        assert tuple(newest)[1:] == (
            world.now,
            "admin",
            "quota",
            "course:ml101",
            '{"devices": 0.5}',
            '{"devices": 0.7, "leases": 3}',
        )
        assert world.rule(ML101, quotas={"course:ml101": Bounds(devices=0.7, leases=3)}) == []

    story(tmp_path, tell)


def test_gpu_hours_are_share_times_time_and_begin_again_with_the_day(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.now = period_start("day", START) + 3600
        world.rule(ML101, quotas={"course:ml101": Bounds(hours_day=1.0)})
        lease = await world.get("a", 0.5, holder=ANNA)

        def spent() -> float:
            with world.store.deciding() as (db, _):
                standing = quota_usage.standings(db, world.store.policy.current(db), [COURSE], {}, world.now)[
                    COURSE
                ]
            return standing.spent[0] / 3600

        world.now += 3600
        assert spent() == pytest.approx(0.5, rel=1e-4)
        world.now += 3600
        world.manager.renew(lease.id)
        world.manager.end(lease.id, "done")
        world.now += 3600
        assert spent() == pytest.approx(1.0, rel=1e-4)
        ask = world.ask("b", 0.1, holder=BEN)
        queued = await anext(ask)
        assert isinstance(queued, Queued)
        assert "Course ml101 has used 1.0 of its 1 GPU-hours of this day" in queued.reason
        assert queued.estimate_seconds == pytest.approx(20 * 3600, abs=3601)
        world.now = period_start("day", START) + 86400 + 3601
        assert spent() == 0
        world.manager.tick()
        assert isinstance(await anext(ask), Lease)

    story(tmp_path, tell)


def test_the_longest_time_is_told_and_then_kept(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(ML101, quotas={"course:ml101": Bounds(longest_seconds=1000)})
        lease = await world.get("a", 0.5, holder=ANNA)
        assert lease.until == world.now + 1000
        world.now += 790
        world.manager.renew(lease.id)
        world.manager.tick()
        assert world.store.leases.get(lease.id).notice == ""  # type: ignore[union-attr]
        world.now += 20
        world.manager.renew(lease.id)
        world.manager.tick()
        assert "This slice ends at" in world.manager.renew(lease.id).notice  # type: ignore[union-attr]
        world.now += 200
        world.manager.renew(lease.id)
        world.manager.tick()
        ended = world.store.leases.get(lease.id)
        assert ended is not None
        assert ended.end_reason == "it was held for its longest time of 17 min"

    story(tmp_path, tell)


def test_the_nearest_level_says_how_long_a_slice_may_be_idle(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        from gpukernel.common.model import Usage

        quotas = {"pool": Bounds(idle_seconds=100), "person:ben": Bounds(idle_seconds=0)}
        world.rule(ML101, quotas=quotas)
        idle, kept = await world.get("a", 0.1, holder=ANNA), await world.get("b", 0.1, holder=BEN)

        def idles(seconds: float) -> None:
            usage = Usage(connections=1, idle_seconds=seconds)
            world.sessions.heartbeat("s", {(idle.id, "s/0"): usage, (kept.id, "s/0"): usage})
            world.manager.tick()

        idles(79)
        assert world.store.leases.get(idle.id).notice == ""  # type: ignore[union-attr]
        idles(85)
        assert "This slice is idle and will be released" in world.store.leases.get(idle.id).notice  # type: ignore[union-attr]
        idles(1)  # it is used again
        assert world.store.leases.get(idle.id).notice == ""  # type: ignore[union-attr]
        idles(100)
        ended = world.store.leases.get(idle.id)
        assert ended is not None
        assert ended.end_reason == "it was idle for 100 s"
        assert world.store.leases.get(kept.id).state == "live"  # type: ignore[union-attr]

    story(tmp_path, tell)


def test_figures_are_exact_however_often_they_change(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(ML101, quotas={"course:ml101": Bounds(devices=1.0, leases=50)})
        for _ in range(3):
            leases = [await world.get(f"k{i}", 0.02, holder=ANNA) for i in range(50)]
            with pytest.raises(Refused):
                await world.get("more", 0.02, wait=0, holder=ANNA)
            for lease in leases:
                world.manager.end(lease.id, "done")
            with world.store.deciding() as (db, _):
                standing = quota_usage.standings(db, world.store.policy.current(db), [COURSE], {}, world.now)[
                    COURSE
                ]
            assert (standing.share, standing.memory, standing.leases) == (0, 0, 0)

    story(tmp_path, tell)


def test_giving_up_while_a_quota_holds_one_back_leaves_nothing(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(ML101, quotas={"course:ml101": Bounds(leases=1)})
        await world.get("a", 0.1, holder=ANNA)
        task = asyncio.create_task(world.get("b", 0.1, holder=BEN))
        await asyncio.sleep(0)
        assert len(world.manager.waiting()) == 1
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert world.manager.waiting() == []

    story(tmp_path, tell)
