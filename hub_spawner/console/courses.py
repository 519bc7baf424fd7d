"""The list of courses and a course's page, with the live view."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from urllib.parse import urlsplit

from tornado.web import HTTPError

from hub_spawner.console.base import LANGUAGE_COOKIE, Page
from hub_spawner.console.course_service import CourseInfo, Live, Quotas
from hub_spawner.console.history import days_of, use_values
from hub_spawner.console.quotas import offer_values, quota_values
from hub_spawner.console.reservations import reservation_values
from hub_spawner.i18n import LANGUAGES, later

__all__ = ["CoursePage", "Courses", "Language", "LivePart", "Move"]


def live_values(course: CourseInfo, now: Live, quotas: Quotas) -> dict[str, object]:
    """Return the values of ``live.html``."""
    most = SimpleNamespace(devices="")
    for bound in quotas.course:
        if bound.bound == "devices":
            most.devices = bound.value
    return {"course": course, "live": now, "most": most}


class Courses(Page):
    """The list of courses; who teaches one course alone sees that at once, and who teaches none their own page."""

    async def get(self) -> None:
        """Show the list."""
        courses = await self.service.courses()
        if len(courses) == 1 and not self.service.administers:
            self.redirect(self.course_path(courses[0].name))
            return
        if not courses and not self.service.administers:
            self.redirect(f"{self.prefix}my")
            return
        self.page("courses.html", courses=courses, live=await self.service.live_of(courses))


class CoursePage(Page):
    """A course's page."""

    async def get(self, name: str) -> None:
        """Show the live view, quotas, offers, reservations and usage."""
        course = await self.service.course(self.path_name(name))
        now, quotas, reserved, use = await asyncio.gather(
            self.service.live(course),
            self.service.quotas(course),
            self.service.reserved(course),
            self.service.use(course, days_of(self)),
        )
        values = live_values(course, now, quotas)
        values |= quota_values(self, course, quotas) | offer_values(course) | use_values(self, course, use)
        values |= reservation_values(self, course, reserved)
        self.page("course.html", **values)


class LivePart(Page):
    """The part of the page that changes by itself; it is asked for every few seconds."""

    async def get(self, name: str) -> None:
        """Show it as it is now."""
        course = await self.service.course(self.path_name(name))
        now, quotas = await asyncio.gather(self.service.live(course), self.service.quotas(course))
        self.page("live.html", **live_values(course, now, quotas))


class Move(Page):
    """The buttons that change the order of the course's queue."""

    async def post(self, name: str) -> None:
        """Serve one request before another."""
        course = await self.service.course(self.path_name(name))
        async with self.service.as_teacher(course) as pool:
            await pool.move_request(self.field("key"), self.field("before"))
        self.done(self.texts.gettext("The order has changed."), self.course_path(course.name) + "#queue")


class Language(Page):
    """The choice of the pages' language, kept in a cookie."""

    def post(self) -> None:
        """Set the cookie, and return to the page."""
        language = self.field("language")
        if language not in LANGUAGES:
            raise HTTPError(400, later("There is no such language."))
        self.set_cookie(
            LANGUAGE_COOKIE, language, path=self.prefix, expires_days=365, samesite="Lax", httponly=True
        )
        back = urlsplit(self.field("back"))
        ours = not back.scheme and not back.netloc and back.path.startswith(self.prefix)
        self.redirect(back.path if ours and "\\" not in back.path else self.prefix, status=303)
