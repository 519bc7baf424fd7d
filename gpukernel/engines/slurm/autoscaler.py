"""The autoscaler: how many jobs the supply should have, as a function of what is known at one moment.

Nothing here asks, waits or remembers by itself: `decide` gets the time, the jobs, the demand and what it returned as its memory.

Guarantees
----------
* Of the jobs that stay there are never more than `Settings.most`, and within the schedule never fewer than `Settings.least` asked for.  A job
  that ends soon does so beside its successor: with those there are never more than twice as many.
* It asks for more only when people have waited for room through `Settings.up_after`, for the first of all at once, and gives a job up only
  when that was idle, and nobody waited, through `Settings.down_after`.  A job with leases is ended by nothing but its time, the schedule, or a lower `most`.
* Each change has a sentence that says why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpukernel.engines.schedule import ALWAYS, Schedule

__all__ = ["Decision", "End", "Job", "JobState", "Memory", "Settings", "decide"]

HOUR = 3600.0


class JobState(StrEnum):
    """The states of a job as the autoscaler sees it."""

    WAITING = "waiting"
    """It stands in Slurm's queue, or was asked for a moment ago."""
    STARTING = "starting"
    """Slurm runs it; its GPUs are not in the pool yet."""
    SERVING = "serving"
    """Its GPUs are in the pool."""
    LEAVING = "leaving"
    """It gets no new leases any more."""


@dataclass(frozen=True)
class Settings:
    """The bounds and times of one supply.

    Attributes
    ----------
    gpus
        GPUs of each job.
    least, most
        Jobs, within the schedule.
    seconds
        The time limit of a job.
    notice
        Seconds before its end at which a job drains.
    lead
        Seconds before its drain at which the successor of a job is asked for.
    up_after, down_after
        Seconds for which people must have waited, and a job must have been idle.
    """

    gpus: int = 1
    least: int = 1
    most: int = 1
    seconds: float = 8 * HOUR
    notice: float = 300.0
    lead: float = 600.0
    up_after: float = 60.0
    down_after: float = 900.0
    schedule: Schedule = ALWAYS

    @property
    def shortest(self) -> float:
        """Return the shortest time limit, in seconds, for which a job is worth asking for."""
        return 2 * self.notice + 60.0

    def may_ask(self, now: float) -> bool:
        """Return whether a job could be asked for now, as far as the schedule and the bounds say."""
        closes = self.schedule.closes(now)
        return self.most > 0 and closes is not None and closes - now >= self.shortest


@dataclass(frozen=True)
class Job:
    """One job; `begins` and `ends` are when it started and its time limit, in seconds since the epoch, 0 where that is not known yet."""

    tag: str
    state: JobState
    ends: float = 0.0
    leases: int = 0
    begins: float = 0.0


@dataclass(frozen=True)
class Memory:
    """The memory from one decision to the next.

    Attributes
    ----------
    target
        How many jobs there should be that stay; negative before the first decision.
    short_since
        Since when people wait for more than what is on its way; None where they do not.
    calm_since
        Since when nobody waits; None where somebody does.
    idle_since
        Since when each serving job has had no lease, by tag.
    is_open
        Whether the schedule was open.
    """

    target: int = -1
    short_since: float | None = None
    calm_since: float | None = None
    idle_since: Mapping[str, float] = field(default_factory=dict)
    is_open: bool = True


@dataclass(frozen=True)
class End:
    """A job to give up: one that waits is cancelled, another one drains; `why` is a sentence's part."""

    tag: str
    why: str


@dataclass(frozen=True)
class Decision:
    """The jobs to ask for and to give up, the sentences about it, and the memory for the next time.

    `seconds` is the time limit for the jobs to ask for.
    """

    ask: int
    seconds: float
    end: tuple[End, ...]
    sentences: tuple[str, ...]
    memory: Memory


def decide(
    settings: Settings,
    now: float,
    jobs: Iterable[Job],
    waiting_gpus: float,
    memory: Memory,
    *,
    may_ask: bool = True,
) -> Decision:
    """Return what to do now.

    Parameters
    ----------
    now
        Seconds since the epoch, which the schedule needs.
    jobs
        All that are not over.
    waiting_gpus
        GPUs' worth that people wait for, for want of room only.
    may_ask
        Whether jobs may be asked for at the moment.
    """
    known = list(jobs)
    staying = [job for job in known if job.state is not JobState.LEAVING]
    closes, why = settings.schedule.closes(now), settings.schedule.why_closed(now, settings.notice)
    if closes is None or why:
        return _closed(settings, now, staying, why, memory)
    return _Opened(settings, now, closes, staying, waiting_gpus, memory).decide(may_ask)


def _closed(settings: Settings, now: float, staying: list[Job], why: str, memory: Memory) -> Decision:
    said: tuple[str, ...] = ()
    if memory.is_open or staying:
        said = (f"No jobs: {why}{settings.schedule.opens_again(now)}.",)
    ends = tuple(End(job.tag, why) for job in staying)
    return Decision(0, 0.0, ends, said, Memory(target=-1, is_open=False))


class _Opened:
    """One decision within the schedule."""

    def __init__(
        self,
        settings: Settings,
        now: float,
        closes: float,
        staying: list[Job],
        waiting_gpus: float,
        memory: Memory,
    ) -> None:
        self.settings, self.now, self.memory, self.waiting = settings, now, memory, waiting_gpus
        self.seconds = min(settings.seconds, closes - now)
        self.going = [job for job in staying if self._is_going(job)]
        self.lasting = [job for job in staying if not self._is_going(job)]
        target = memory.target if memory.target >= 0 else len(self.lasting)
        self.target = min(max(target, settings.least), settings.most)
        self.idle = {
            job.tag: memory.idle_since.get(job.tag, now)
            for job in staying
            if job.state is JobState.SERVING and not job.leases
        }
        self.calm: float | None = None
        if waiting_gpus <= 0:
            self.calm = now if memory.calm_since is None else memory.calm_since
        self.short: float | None = None
        self.ends: list[End] = []
        self.said: list[str] = []

    def _is_going(self, job: Job) -> bool:
        # Whatever the settings and Slurm's own limits, a job's first half is no time to look for the next one.
        ahead = min(self.settings.notice + self.settings.lead, (job.ends - job.begins) / 2)
        return job.state is not JobState.WAITING and job.ends > 0 and job.ends - ahead <= self.now

    def decide(self, may_ask: bool) -> Decision:
        if not self.memory.is_open:
            self.said.append(f"The schedule {self.settings.schedule.text} is open.")
        self._drop_surplus()
        self._grow()
        self._shrink()
        room = 2 * self.settings.most - len(self.lasting) - len(self.going)
        ask = max(min(self.target - len(self.lasting), room), 0)
        if ask and (not may_ask or self.seconds < self.settings.shortest):
            ask = 0  # also where the schedule ends before such a job was of any use
        elif ask:
            self._explain_ask(ask)
        memory = Memory(self.target, self.short, self.calm, self.idle, True)
        return Decision(ask, self.seconds, tuple(self.ends), tuple(self.said), memory)

    def _drop_surplus(self) -> None:
        """Give jobs up beyond the most: those that wait first, then idle ones, then those with the fewest leases."""
        order = (JobState.WAITING, JobState.STARTING, JobState.SERVING)
        surplus = len(self.lasting) - self.settings.most
        for job in sorted(self.lasting, key=lambda one: (order.index(one.state), one.leases))[
            : max(surplus, 0)
        ]:
            self._end(job, f"there are more jobs than {self.settings.most}")

    def _end(self, job: Job, why: str) -> None:
        self.lasting.remove(job)
        self.ends.append(End(job.tag, why))

    def _grow(self) -> None:
        """Raise the target once people have waited long enough for more than what is on its way."""
        coming = sum(job.state in (JobState.WAITING, JobState.STARTING) for job in self.lasting)
        coming += max(self.target - len(self.lasting), 0)
        lacking = self.waiting - coming * self.settings.gpus
        if lacking <= 0 or self.target >= self.settings.most:
            return
        self.short = self.now if self.memory.short_since is None else self.memory.short_since
        waited, none = self.now - self.short, self.target == 0
        if waited < self.settings.up_after and not none:
            return  # one more can wait for a moment; the first cannot, since nobody has anything
        more = min(math.ceil(lacking / self.settings.gpus), self.settings.most - self.target)
        self.target += more
        self.short = None
        if none:
            self.said.append(
                f"{_count(more)} for the first who wait: there was none, and {lacking:.3g} GPUs' worth is asked for."
            )
            return
        self.said.append(
            f"{_count(more)} more, {self.target} in all: people have waited for {lacking:.3g} GPUs' worth through "
            f"{_span(waited)}{f', and {coming} are on their way' if coming else ''}."
        )

    def _shrink(self) -> None:
        """Lower the target when what is there was not needed for long enough."""
        if self.calm is None:
            return
        # An idle job that ends soon needs no successor.
        missing = self.target - len(self.lasting)
        idle_going = sum(job.tag in self.idle for job in self.going)
        spared = min(missing, idle_going, self.target - self.settings.least)
        if spared > 0:
            self.target -= spared
            self.said.append(f"No successor for {_count(spared)}: idle, and nobody waits.")
        if self.now - self.calm < self.settings.down_after:
            return
        for job in [job for job in self.lasting if job.state is JobState.WAITING]:
            if self.target > self.settings.least:
                self.target -= 1
                self._end(job, f"nobody has waited for {_span(self.now - self.calm)}")
        idle = sorted((job for job in self.lasting if job.tag in self.idle), key=lambda j: self.idle[j.tag])
        for job in idle:
            since = self.now - self.idle[job.tag]
            if self.target > self.settings.least and since >= self.settings.down_after:
                self.target -= 1
                self._end(job, f"it has had no lease for {_span(since)}, and nobody waits")

    def _explain_ask(self, ask: int) -> None:
        there = len(self.lasting)
        why = f"{there} of {self.target} are there or on their way"
        if self.going:
            why += f", and {_count(len(self.going))} will end soon"
        self.said.append(f"Asking for {_count(ask)}: {why}.")


def _count(jobs: int) -> str:
    return f"{jobs} job" if jobs == 1 else f"{jobs} jobs"


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
