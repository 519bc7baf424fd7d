"""The part of a course's page for reserved hours: the list, a form with a preview, and the button that removes one."""

from __future__ import annotations

from types import SimpleNamespace

from tornado.web import HTTPError

from gpukernel.client.reservations import KnownReservation
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
            devices=f"{known.reservation.devices:g}",
            model=known.reservation.model,
            preempt=known.reservation.preempt,
            begins=known.next_begins,
            ends=known.next_ends,
            ready=known.ready,
            short=is_short(known),
        )
        for known in reserved.reservations
    ]
    return {"course": course, "reservations": rows, "timezone": reserved.timezone, "weekdays": days}


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
        new, gettext = self._asked(course.name), self.texts.gettext
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
                "devices": f"{new.devices:g}",
                "model": new.model,
                "preempt": "yes" if new.preempt else "",
            },
        }
        template = "reserve.html" if self.in_part else "dialog_page.html"
        self.page(template, part="reserve.html", **values)

    def _asked(self, course: str) -> Reservation:
        try:
            begins, ends = parse_time(self.field("begins")), parse_time(self.field("ends"))
        except ValueError:
            raise HTTPError(400, later("Write a time of the day as 10:00, up to 24:00.")) from None
        try:
            devices = float(self.field("devices"))
        except ValueError:
            raise HTTPError(400, later("Say how many devices to reserve, for example 1.5.")) from None
        days = self.get_body_arguments("days")
        if len(days) > 7 or not all(day in "0123456" and len(day) == 1 for day in days):
            raise HTTPError(400, later("Say on which weekdays, or on which one day."))
        on = self.field("on", 10).strip()
        numbers = () if on else tuple(sorted({int(day) for day in days}))
        model = self.field("model", 256).strip()
        return Reservation(course, numbers, on, begins, ends, devices, model, bool(self.field("preempt")))


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
