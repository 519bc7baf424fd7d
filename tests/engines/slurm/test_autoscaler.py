"""The autoscaler through made-up days, in virtual time: a Slurm with a queue, people who come and go, and what must hold at every step."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpukernel.engines.schedule import ALWAYS, Schedule, parse_schedule
from gpukernel.engines.slurm.autoscaler import Decision, Job, JobState, Memory, Settings, decide

ZONE = datetime.UTC
MONDAY = datetime.datetime(2026, 11, 23, tzinfo=ZONE).timestamp()
HOUR = 3600.0
OPEN = parse_schedule("Mo-Fr 8-18", ZONE)


@dataclass
class Day:
    """A Slurm and a pool in a few lines: jobs start after a while, people take GPUs that are there, one GPU each, for some time."""

    settings: Settings
    starts_after: float = 120.0
    seconds: float = 20.0  # between two looks
    now: float = MONDAY
    jobs: dict[str, Job] = field(default_factory=dict)
    asked: dict[str, float] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    people: list[float] = field(default_factory=list)  # until when those who came stay
    held: dict[str, list[float]] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    said: list[str] = field(default_factory=list)
    ups: list[float] = field(default_factory=list)
    downs: list[float] = field(default_factory=list)

    def step(self) -> Decision:
        self.now += self.seconds
        for tag, job in list(self.jobs.items()):
            if job.state is JobState.WAITING and self.now - self.asked[tag] >= self.starts_after:
                job = replace(job, state=JobState.SERVING, begins=self.now, ends=self.now + self.limits[tag])
            if job.ends and self.now >= job.ends - self.settings.notice:
                job = replace(job, state=JobState.LEAVING)
            self.jobs[tag] = job
            self.held[tag] = [until for until in self.held.get(tag, []) if until > self.now]
            if job.state is JobState.LEAVING and (not self.held[tag] or self.now >= job.ends):
                del self.jobs[tag], self.held[tag]
        self.people = [until for until in self.people if until > self.now]
        for tag, job in self.jobs.items():
            while self.people and job.state is JobState.SERVING and len(self.held[tag]) < self.settings.gpus:
                self.held[tag].append(self.people.pop())
        self.jobs = {tag: replace(job, leases=len(self.held[tag])) for tag, job in self.jobs.items()}
        decision = decide(self.settings, self.now, self.jobs.values(), len(self.people), self.memory)
        self.memory = decision.memory
        self.said += decision.sentences
        for end in decision.end:
            job = self.jobs[end.tag]
            if job.state is JobState.WAITING:
                del self.jobs[end.tag], self.held[end.tag]
            else:
                self.jobs[end.tag] = replace(
                    job, state=JobState.LEAVING, ends=min(job.ends, self.now + self.settings.notice)
                )
        for _ in range(decision.ask):
            tag = f"j{len(self.asked)}"
            self.jobs[tag] = Job(tag, JobState.WAITING)
            self.asked[tag], self.limits[tag], self.held[tag] = self.now, decision.seconds, []
        return decision

    def staying(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.state is not JobState.LEAVING]

    def until(self, hour: float) -> None:
        while self.now < MONDAY + hour * HOUR:
            self.step()


def bounds(least: int = 1, most: int = 4, **more: object) -> Settings:
    return Settings(gpus=2, least=least, most=most, **more)  # type: ignore[arg-type]


people = st.lists(
    st.tuples(st.floats(0, 26), st.integers(1, 12), st.floats(0.05, 6)), max_size=8
)  # hour, how many, how long


@hypothesis_settings(max_examples=40, deadline=None)
@given(
    crowds=people,
    least=st.integers(0, 3),
    more=st.integers(0, 4),
    hours=st.floats(0.2, 9),
    starts_after=st.floats(0, 3000),
    schedule=st.sampled_from([ALWAYS, OPEN, parse_schedule("Mo-Su 22-6", ZONE)]),
)
def test_every_day_keeps_the_bounds(
    crowds: list[tuple[float, int, float]],
    least: int,
    more: int,
    hours: float,
    starts_after: float,
    schedule: Schedule,
) -> None:
    settings = Settings(
        gpus=2, least=least, most=max(least + more, 1), seconds=hours * HOUR, schedule=schedule
    )
    day = Day(settings, starts_after, 90.0)
    coming = sorted((MONDAY + hour * HOUR, count, stay) for hour, count, stay in crowds)
    while day.now < MONDAY + 27 * HOUR:
        while coming and coming[0][0] <= day.now:
            _, count, stay = coming.pop(0)
            day.people += [day.now + stay * HOUR] * count
        before = {tag: job.leases for tag, job in day.jobs.items()}
        decision = day.step()
        closes = schedule.closes(day.now)
        is_open = closes is not None and closes - day.now > settings.notice
        # A job that leaves soon has its successor beside it; the others are never more than the most.
        lead = settings.notice + settings.lead
        going = [
            j for j in day.staying() if j.ends and j.ends - min(lead, (j.ends - j.begins) / 2) <= day.now
        ]
        assert len(day.staying()) - len(going) <= settings.most
        assert len(day.staying()) <= 2 * settings.most
        if not is_open:
            assert decision.ask == 0
            assert day.staying() == []
        else:
            if closes is not None and closes - day.now > settings.shortest:
                assert len(day.staying()) >= settings.least
            for end in decision.end:  # nobody is disturbed but by the schedule
                assert before.get(end.tag, 0) == 0
            assert decision.seconds <= (closes or math.inf) - day.now
        assert (
            not (decision.ask or decision.end) or decision.sentences or any(end.why for end in decision.end)
        )


@hypothesis_settings(max_examples=30, deadline=None)
@given(count=st.integers(0, 12), starts_after=st.floats(0, 1800), least=st.integers(0, 2))
def test_a_steady_crowd_gets_a_steady_supply(count: int, starts_after: float, least: int) -> None:
    """Nothing changes after the first changes, except that jobs are succeeded: no job comes and goes and comes again."""
    day = Day(bounds(least, 6, seconds=500 * HOUR), starts_after, 60.0)
    day.people = [math.inf] * count
    day.until(4)
    before = set(day.jobs)
    day.until(16)
    assert set(day.jobs) == before
    assert len(day.jobs) == max(least, math.ceil(count / 2))


def test_a_made_up_day_is_followed_and_explained() -> None:
    day = Day(bounds(1, 4, seconds=4 * HOUR, schedule=OPEN))
    day.until(7.9)
    assert day.jobs == {}
    day.until(8.5)
    assert len(day.staying()) == 1
    day.people = [MONDAY + 11 * HOUR] * 6  # a class of six comes
    day.until(8.75)
    assert (len(day.staying()), day.people) == (3, [])
    day.until(11.2)
    assert len(day.staying()) == 3  # they have left, but not for long enough
    day.until(11.6)
    assert len(day.staying()) == 1
    day.until(17.99)
    assert day.staying() == []
    said = "\n".join(day.said)
    assert "2 jobs more, 3 in all: people have waited for 4 GPUs' worth through 60 s." in said
    assert "Asking for 2 jobs: 1 of 3 are there or on their way." in said
    assert "No jobs: the schedule Mo-Fr 8-18 ends at" in said


def test_the_first_who_waits_starts_a_job_at_once_and_the_last_who_leaves_ends_it() -> None:
    day = Day(bounds(0, 3, seconds=20 * HOUR))
    day.until(2)
    assert (day.jobs, day.said) == ({}, [])
    day.people = [MONDAY + 4 * HOUR]
    assert day.step().ask == 1
    assert day.said == [
        "1 job for the first who wait: there was none, and 1 GPUs' worth is asked for.",
        "Asking for 1 job: 0 of 1 are there or on their way.",
    ]
    day.until(3)
    day.people = [MONDAY + 4 * HOUR] * 3  # more are asked for with patience, as ever
    assert day.step().ask == 0
    day.until(4.1)
    assert len(day.jobs) == 2
    day.until(5)
    assert (day.jobs, len(day.asked)) == ({}, 2)


def test_nothing_is_asked_for_outside_of_the_schedule_whoever_waits() -> None:
    settings = bounds(0, 2, seconds=4 * HOUR, schedule=OPEN)
    assert [settings.may_ask(MONDAY + hour * HOUR) for hour in (7, 9, 17.9, 19)] == [
        False,
        True,
        False,
        False,
    ]
    assert not Settings(least=0, most=0).may_ask(MONDAY)
    assert decide(settings, MONDAY + 7 * HOUR, [], 5, Memory()).ask == 0


def test_a_short_crowd_changes_nothing() -> None:
    day = Day(bounds(1, 4, seconds=20 * HOUR))
    day.until(1)
    day.people = [day.now + 300.0] * 2
    day.until(1.2)
    day.people = [day.now + 50.0] * 9  # they go before the minute is over
    day.until(3)
    assert len(day.asked) == 1


def test_the_successor_is_asked_for_before_the_drain() -> None:
    day = Day(bounds(1, 1, seconds=2 * HOUR), starts_after=300)
    day.people = [math.inf]
    day.until(1)
    (first,) = day.jobs
    while len(day.jobs) == 1:
        day.step()
    second = next(tag for tag in day.jobs if tag != first)
    assert day.jobs[first].state is JobState.SERVING
    assert day.jobs[first].ends - day.settings.notice - day.now > day.starts_after
    while first in day.jobs:
        day.step()
    assert day.jobs[second].state is JobState.SERVING
    assert len(day.asked) == 2


def test_an_idle_job_beyond_the_least_has_no_successor() -> None:
    day = Day(bounds(0, 2, seconds=2 * HOUR, down_after=50 * HOUR))
    day.people = [MONDAY + HOUR] * 2
    day.until(6)
    assert (day.jobs, len(day.asked)) == ({}, 1)
    assert "No successor for 1 job: idle, and nobody waits." in day.said


def test_jobs_that_slurm_cuts_short_do_not_breed() -> None:
    """Jobs that end much sooner than was asked for, as by a partition's limit, have one successor each."""
    day = Day(bounds(2, 3, seconds=8 * HOUR), starts_after=20)
    while day.now < MONDAY + 2 * HOUR:
        day.step()
        day.limits = dict.fromkeys(day.limits, 600.0)
        assert len(day.staying()) <= 4
    short = [Job(f"j{n}", JobState.SERVING, MONDAY + 60, 1, MONDAY - 60) for n in range(6)]
    assert decide(bounds(2, 3), MONDAY, short, 0, Memory()).ask == 0


def test_a_lower_most_gives_up_what_waits_before_what_works() -> None:
    jobs = [
        Job("busy", JobState.SERVING, MONDAY + 9 * HOUR, 3),
        Job("idle", JobState.SERVING, MONDAY + 9 * HOUR, 0),
        Job("queued", JobState.WAITING),
    ]
    decision = decide(bounds(0, 1), MONDAY, jobs, 0, Memory())
    assert [end.tag for end in decision.end] == ["queued", "idle"]
    assert decision.ask == 0


@pytest.mark.parametrize(
    ("text", "closes"),
    [
        ("Mo-Fr 8-18", {"23T07:59": None, "23T08:00": "23T18:00", "23T18:00": None, "28T12:00": None}),
        ("Mo 22-6", {"23T23:00": "24T06:00", "24T05:59": "24T06:00", "24T22:30": None}),
        ("Sa-Mo 0-24", {"22T12:00": "24T00:00", "25T12:00": None}),
        ("Mo,We 8:30-12; Mo 12-13", {"23T08:30": "23T13:00", "25T12:30": None}),
        ("Tue-Thu 8-9", {"26T08:30": "26T09:00"}),
    ],
)
def test_schedules(text: str, closes: dict[str, str | None]) -> None:
    def at(when: str) -> float:
        return datetime.datetime.fromisoformat(f"2026-11-{when}:00+00:00").timestamp()

    schedule = parse_schedule(text, ZONE)
    assert {when: schedule.closes(at(when)) for when in closes} == {
        when: end and at(end) for when, end in closes.items()
    }


def test_a_schedule_says_when_it_opens() -> None:
    assert OPEN.opens(MONDAY) == MONDAY + 8 * HOUR
    assert OPEN.opens(MONDAY + 9 * HOUR) == MONDAY + 9 * HOUR
    assert OPEN.opens(MONDAY + (4 * 24 + 18) * HOUR) == MONDAY + (7 * 24 + 8) * HOUR
    assert ALWAYS.closes(MONDAY) == math.inf


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("weekdays", "“weekdays” is no entry of a schedule; write days and hours, such as 'Mo-Fr 8-18'"),
        ("Xy 8-18", "“Xy” is no day of a schedule; they are Mo, Tu, We, Th, Fr, Sa, Su."),
        ("Mo 8-25", "“8-25” are no hours of a schedule"),
        ("Mo 8-8", "“8-8” are no hours of a schedule"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match="of a schedule") as refused:
        parse_schedule(text)
    assert str(refused.value).startswith(sentence)
