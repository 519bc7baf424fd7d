"""The part of a course's page for reserved hours: the list, a form with a preview, and the button that removes one."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace

from tornado.web import HTTPError

from gpukernel.client.reservations import KnownReservation
from gpukernel.common.bounds import plain_number
from gpukernel.common.course_entries import MOST_DEVICES, expected_bound
from gpukernel.common.i18n import say
from gpukernel.common.reservation_entry import parse_time
from gpukernel.common.reservations import Reservation, clock
from hub_spawner.console.base import Page
from hub_spawner.console.course_service import CourseInfo, Reserved
from hub_spawner.i18n import later

__all__ = ["NewReservation", "RemoveReservation", "ReservationsPart", "reservation_values"]

DAYS = (
    later("Monday"),
    later("Tuesday"),
    later("Wednesday"),
    later("Thursday"),
    later("Friday"),
    later("Saturday"),
    later("Sunday"),
)


def reservation_values(page: Page, course: CourseInfo, reserved: Reserved) -> dict[str, object]:
    """Return the values of ``reservations.html``."""
    gettext = page.texts.gettext
    days = [gettext(day) for day in DAYS]
    rows = [
        SimpleNamespace(
            id=known.reservation.id,
            when=_when(known.reservation, days),
            devices=plain_number(known.reservation.devices),
            model=known.reservation.model,
            preempt=known.reservation.preempt,
            begins=known.next_begins,
            ends=known.next_ends,
            ready=known.ready,
            short=is_short(known),
        )
        for known in reserved.reservations
    ]
    values = {"course": course, "reservations": rows, "timezone": reserved.timezone}
    return values | form_values(page, course)


def form_values(
    page: Page,
    course: CourseInfo,
    given: Mapping[str, object] = MappingProxyType({}),
    errors: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, object]:
    """Return the values of ``reservation_form.html``: what was `given`, and sentences about it by field."""
    return {
        "course": course,
        "weekdays": [page.texts.gettext(day) for day in DAYS],
        "reservation_form": SimpleNamespace(given=defaultdict(str, given), errors=defaultdict(str, errors)),
    }


def is_short(known: KnownReservation) -> bool:
    """Return whether others hold some of the room without an end, or devices are missing."""
    return bool(known.next_begins) and known.ready < known.reservation.devices - 1e-6


def _when(one: Reservation, days: list[str]) -> str:
    named = one.on or ", ".join(days[day] for day in one.days)
    return f"{named} {clock(one.begins)}–{clock(one.ends)}"


class ReservationsPart(Page):
    """The list of reservations."""

    async def get(self, name: str) -> None:
        """Show the list."""
        course = await self.service.course(self.path_name(name))
        values = reservation_values(self, course, await self.service.reserved(course))
        template = "reservations.html" if self.in_part else "dialog_page.html"
        self.page(template, part="reservations.html", **values)


class NewReservation(Page):
    """The form of a new reservation."""

    async def post(self, name: str) -> None:
        """Show whether it could be made, and when its hours come next; with the field ``apply``, make it."""
        course = await self.service.course(self.path_name(name))
        asked, errors = self._asked(course.name)
        if asked is None:
            given = {
                field: self.field(field) for field in ("on", "begins", "ends", "devices", "model", "preempt")
            }
            given |= {"days": "".join(self.get_body_arguments("days")[:7])}
            self.refuse_form("reservation_form.html", **form_values(self, course, given, errors))
            return
        new, gettext = asked, self.texts.gettext
        apply = bool(self.field("apply"))
        async with self.service.as_teacher(course) as pool:
            known = await pool.reserve(new, check=not apply)
        if apply:
            self.done(gettext("The hours are reserved."), self.course_path(course.name) + "#reservations")
            return
        values = {
            "course": course,
            "when": _when(new, [gettext(day) for day in DAYS]),
            "new": new,
            "begins": known.next_begins,
            "ready": known.ready,
            "short": is_short(known),
            "fields": {
                "on": new.on,
                "begins": clock(new.begins),
                "ends": clock(new.ends),
                "devices": plain_number(new.devices),
                "model": new.model,
                "preempt": "yes" if new.preempt else "",
            },
        }
        template = "reserve.html" if self.in_part else "dialog_page.html"
        self.page(template, part="reserve.html", **values)

    def _asked(self, course: str) -> tuple[Reservation | None, dict[str, str]]:
        """Return the reservation that the form asks for, or sentences by field where it cannot be one."""
        gettext, errors = self.texts.gettext, dict[str, str]()
        times = {"begins": 0, "ends": 0}
        for field in times:
            try:
                times[field] = parse_time(self.field(field))
            except ValueError:
                errors[field] = gettext(later("Write a time of the day as 10:00, up to 24:00."))
        if not errors and times["begins"] >= times["ends"]:
            errors["ends"] = gettext(
                "A reservation ends after it begins, on the same day; one that goes over midnight is two, the first until 24:00."
            )
        try:
            devices = float(self.field("devices"))
        except ValueError:
            devices = 0.0
        if not 0 < devices <= MOST_DEVICES:
            errors["devices"] = self.texts.of(
                say(
                    "Write %(what)s, not “%(text)s”.",
                    what=expected_bound("devices"),
                    text=self.field("devices")[:40],
                )
            )
        days, on = self.get_body_arguments("days"), self.field("on").strip()
        if len(days) > 7 or not all(day in "0123456" and len(day) == 1 for day in days) or not (days or on):
            errors["days"] = gettext(later("Say on which weekdays, or on which one day."))
        try:
            datetime.date.fromisoformat(on or "2000-01-01")
        except ValueError:
            errors["on"] = self.texts.of(say("“%(day)s” is no day; write it as 2026-12-01.", day=on[:40]))
        model = self.field("model").strip()
        if len(model) > 256 or not model.isprintable():
            errors["model"] = gettext(later("Write it in printable characters, on one line."))
        if errors:
            return None, errors
        numbers = () if on else tuple(sorted({int(day) for day in days}))
        preempt = bool(self.field("preempt"))
        return Reservation(course, numbers, on, times["begins"], times["ends"], devices, model, preempt), {}


class RemoveReservation(Page):
    """The button that removes a reservation."""

    async def post(self, name: str, identifier: str) -> None:
        """Remove it."""
        course = await self.service.course(self.path_name(name))
        known = {one.reservation.id for one in (await self.service.reserved(course)).reservations}
        if identifier not in known:
            raise HTTPError(404, later("This reservation is gone."))
        async with self.service.as_teacher(course) as pool:
            await pool.unreserve(identifier)
        self.done(
            self.texts.gettext("The reservation is gone."), self.course_path(course.name) + "#reservations"
        )
