"""The plan of a day: courses, their classes at the hour, who comes when and stays how long, reservations, failures; all from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpukernel.common.bounds import Bounds
from gpukernel.common.course import Course
from gpukernel.common.reservations import Reservation

__all__ = ["BEGIN", "END", "MIDNIGHT", "VARIANTS", "CoursePlan", "DayPlan", "Failure", "Visit", "plan_day"]

MIDNIGHT = 1_700_006_400.0
"""Wednesday, 15 November 2023, in UTC."""
DATE = "2023-11-15"
BEGIN, END = 7.5 * 3600, 22.0 * 3600
"""Seconds after midnight between which somebody asks."""

CLASS_SECONDS = 100 * 60.0
LONGEST_SECONDS = 2 * 3600.0
IDLE_SECONDS = 15 * 60.0
ATTENDS, FORGETS, HOMEWORK = 0.85, 0.25, 0.3
"""Of a course's students so many come to a class; of those so many leave their kernel running; so many come back in the evening."""

VARIANTS = {
    "pool": "the pool's order, quotas and reservations",
    "fifo": "first come, first served",
    "whole": "a whole GPU each",
}
_SIZES = (20, 500)
_SHARES = (0.1, 0.2, 0.25, 0.25, 0.5, 0.5, 1.0)
_TEACHING_HOURS = (8, 10, 13, 15)
_EXAMS = 3


@dataclass(frozen=True)
class Visit:
    """One student with one kernel: from when, until when (seconds after midnight), and whether the kernel is left running."""

    person: str
    course: str
    begins: float
    leaves: float
    forgets: bool


@dataclass(frozen=True)
class CoursePlan:
    """A course: its students, the share of a device that one of them needs, its hours; `exam`: of these one has a reservation."""

    name: str
    students: int
    share: float
    hours: tuple[int, ...]
    exam: int = 0


@dataclass(frozen=True)
class Failure:
    """A server that loses its power, and comes back."""

    server: int
    at: float
    lasts: float


@dataclass(frozen=True)
class DayPlan:
    """The day of one pool."""

    gpus: int
    courses: tuple[CoursePlan, ...]
    visits: tuple[Visit, ...]
    failures: tuple[Failure, ...]

    def share(self, course: str, variant: str) -> float:
        """Return the share that a student of a course asks for."""
        return 1.0 if variant == "whole" else self.needs[course]

    @property
    def needs(self) -> dict[str, float]:
        """Return the shares that students can use, by course."""
        return {course.name: course.share for course in self.courses}

    def rules(self, variant: str) -> tuple[tuple[Course, ...], dict[str, Bounds], tuple[Reservation, ...]]:
        """Return the courses, quotas and reservations of a variant.

        Plain FIFO is one course for everybody, which the pool serves in the order of asking, with no quota but the two times that every
        variant has.
        """
        times = Bounds(longest_seconds=LONGEST_SECONDS, idle_seconds=IDLE_SECONDS)
        if variant == "fifo":
            return (Course("everybody", members={"*": "student"}),), {"student:everybody": times}, ()
        courses = tuple(Course(one.name, members={"*": "student"}) for one in self.courses)
        quotas = {f"student:{one.name}": replace(times, leases=1) for one in self.courses}
        quotas |= {f"course:{one.name}": Bounds(leases=self.most_leases(one)) for one in self.courses}
        return courses, quotas, tuple(self._reservations(variant))

    @staticmethod
    def most_leases(course: CoursePlan) -> int:
        """Return the leases that a course may have at a time: a little less than come on a good day."""
        return max(math.ceil(0.8 * course.students), 2)

    def _reservations(self, variant: str) -> Iterator[Reservation]:
        for one in self.courses:
            if one.exam:
                wanted = ATTENDS * one.students * self.share(one.name, variant)
                devices = float(min(math.ceil(wanted), self.gpus // 5))
                yield Reservation(one.name, (), DATE, one.exam * 60, one.exam * 60 + 100, devices)


def plan_day(
    seed: int, pool: int, gpus: int, students: int, failures: tuple[Failure, ...] = (), largest: int = 0
) -> DayPlan:
    """Return the day of pool number `pool`; `largest`: of a course, in place of a twentieth of the students, 20 to 500."""
    dice = random.Random(f"{seed}/{pool}")
    courses = list[CoursePlan]()
    largest = largest or min(_SIZES[1], max(students // 4, _SIZES[0]))
    left = students
    while left > 0:
        size = round(math.exp(dice.uniform(math.log(_SIZES[0]), math.log(largest))))
        size = left if left - size < _SIZES[0] else min(size, left)
        hours = tuple(sorted(dice.sample(_TEACHING_HOURS, dice.choice((1, 1, 2)))))
        exam = hours[0] if len(courses) < _EXAMS else 0
        courses.append(CoursePlan(f"c{len(courses):03}", size, dice.choice(_SHARES), hours, exam))
        left -= size
    visits = sorted(_visits(dice, courses), key=lambda visit: visit.begins)
    return DayPlan(gpus, tuple(courses), tuple(visits), failures)


def _visits(dice: random.Random, courses: list[CoursePlan]) -> Iterator[Visit]:
    for course in courses:
        for number in range(course.students):
            person = f"{course.name}-{number:03}"
            for hour in course.hours:
                if dice.random() < ATTENDS:
                    # Most are there when the class begins; some come late.
                    begins = hour * 3600 + abs(dice.gauss(0, 150)) - dice.choice((0.0, 0.0, 180.0))
                    leaves = hour * 3600 + CLASS_SECONDS - abs(dice.gauss(0, 600))
                    yield Visit(
                        person,
                        course.name,
                        begins,
                        max(leaves, begins + 600),
                        dice.random() < FORGETS,
                    )
            if dice.random() < HOMEWORK:
                begins = dice.triangular(17 * 3600, 21.5 * 3600, 18.5 * 3600)
                yield Visit(
                    person,
                    course.name,
                    begins,
                    begins + dice.uniform(900, 5400),
                    dice.random() < FORGETS,
                )
