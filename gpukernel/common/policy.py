"""Courses, their members and every quota, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpukernel.common.bounds import EVERYBODY, MOST_WAITING, OPEN, Account, Bounds, Subject
from gpukernel.common.course import Course
from gpukernel.common.errors import Refused
from gpukernel.common.i18n import say
from gpukernel.common.reservations import Reservation

__all__ = ["HALF_LIFE", "LEAST_RUN", "NOTICE", "Policy"]

HALF_LIFE = 7 * 86400.0
"""Seconds after which what a course held counts half in the order of the queue, where nothing else is set."""

NOTICE = 60.0
"""Seconds between the notice that a lease gives way and its end, where nothing else is set."""

LEAST_RUN = 600.0
"""Seconds from its grant in which no lease has to give way, where nothing else is set."""


@dataclass(frozen=True)
class Policy:
    """All that bounds requests, and orders them.

    Attributes
    ----------
    half_life
        What a course held this many seconds ago counts half in the order of the queue; 0: only what it holds now counts.
    notice
        Seconds between the notice that a lease gives way and its end.
    least_run
        Seconds from its grant in which no lease has to give way.
    """

    courses: Mapping[str, Course] = field(default_factory=dict)
    quotas: Mapping[Subject, Bounds] = field(default_factory=dict)
    term_begins: float = 0.0
    groups: Mapping[str, frozenset[str]] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()
    timezone: str = ""
    half_life: float = HALF_LIFE
    notice: float = NOTICE
    least_run: float = LEAST_RUN

    def role_in(self, course: str, person: str) -> str:
        """Return the person's role in a course, by name, by group, or as everybody; empty for those who are not in it."""
        known = self.courses.get(course)
        if known is None:
            return ""
        if own := known.members.get(person):
            return own
        groups = self.groups.get(person, frozenset())
        if groups.intersection(known.profile.instructor_groups):
            return "instructor"
        if groups.intersection(known.profile.groups):
            return "student"
        return known.members.get(EVERYBODY, "")

    def role(self, course: str, person: str) -> str:
        """Return the person's role in a course; empty without a course, or where there are no courses at all.

        Raises
        ------
        Refused
            ``no_such_course`` or ``not_a_member``.
        """
        if not course or not self.courses:
            return ""
        known = self.courses.get(course)
        if known is None:
            raise Refused("no_such_course", say("There is no course %(course)s.", course=course[:60]))
        role = self.role_in(course, person)
        if not role:
            raise Refused(
                "not_a_member",
                say(
                    "%(person)s is not in course %(course)s; ask its instructor.",
                    person=person,
                    course=course,
                ),
            )
        return role

    def instructs(self, person: str, course: str) -> bool:
        """Return whether the person is an instructor of the course."""
        return self.role_in(course, person) == "instructor"

    def weight(self, course: str) -> float:
        """Return the course's weight; 1 for those that nobody has written down."""
        known = self.courses.get(course)
        return known.weight if known else 1.0

    def bounds(self, account: Account, role: str = "") -> Bounds:
        """Return the bounds of one level; for a member, those of `role`."""
        if account.kind == "member":
            return self.quotas.get(Subject(role, course=account.course), OPEN) if role else OPEN
        if account.kind == "person":
            own = self.quotas.get(Subject("person", person=account.person))
            return own or self.quotas.get(Subject("person", person=EVERYBODY), OPEN)
        return self.quotas.get(Subject(account.kind, course=account.course), OPEN)

    def most_waiting(self, account: Account, role: str = "") -> int | None:
        """Return how many requests of an account may wait; None: any number.  A person always has a bound."""
        most = self.bounds(account, role).waiting
        if most is None and account.kind == "person":
            return self.quotas.get(Subject("person", person=EVERYBODY), OPEN).waiting or MOST_WAITING
        return most

    def most_giving_way(self, accounts: Iterable[Account], role: str) -> float:
        """Return the devices' worth up to which others give way to a person's requests.

        That is the quota ``interactive`` where a level for people sets it, else one device's worth.
        """
        people = [self.bounds(account, role) for account in accounts if account.kind in ("member", "person")]
        return min((b.interactive for b in people if b.interactive is not None), default=1.0)

    def account_bounds(self, account: Account) -> Bounds:
        """Return the bounds of an account, with the role that the member has now."""
        role = self.role_in(account.course, account.person) if account.kind == "member" else ""
        return self.bounds(account, role)

    def longest(self, accounts: Iterable[Account], role: str, asked: float = 0.0) -> float | None:
        """Return the time after which a lease of these accounts ends; None: never."""
        bounds = [self.bounds(account, role).longest_seconds for account in accounts]
        times = [time for time in [*bounds, asked or None] if time is not None]
        return min(times) if times else None

    def idle(self, accounts: Iterable[Account], role: str) -> float:
        """Return the time after which an idle slice is released; 0: never."""
        levels = {account.kind: self.bounds(account, role).idle_seconds for account in accounts}
        for kind in ("person", "member", "course", "pool"):
            if (seconds := levels.get(kind)) is not None:
                return seconds
        return 0.0
