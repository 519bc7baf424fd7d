"""GPU-hours of a course: a chart that the server draws, a table, and a CSV file."""

from __future__ import annotations

from tornado.web import HTTPError

from gpukernel.common.csv_text import csv_text
from gpukernel.common.i18n import say
from hub_spawner.console.base import Page
from hub_spawner.console.course_service import CourseInfo, CourseUsage
from hub_spawner.console.drawing import day_chart

__all__ = ["MOST_DAYS", "UseCsv", "UsePart", "days_of", "use_values"]

SPANS = (7, 14, 30, 90)
MOST_DAYS = 366


def days_of(page: Page) -> int:
    """Return how many days the address asks for; 14 where it does not say."""
    text = page.get_query_argument("days", "14")
    if not text.isdecimal() or not 1 <= int(text[:6]) <= MOST_DAYS:
        raise HTTPError(400, "%s", say("%(field)s: a number from 1 to %(n)s.", field="days", n=MOST_DAYS))
    return int(text)


def use_values(page: Page, course: CourseInfo, use: CourseUsage) -> dict[str, object]:
    """Return the values of ``use.html``."""
    return {
        "course": course,
        "use": use,
        "spans": SPANS,
        "days": days_of(page),
        "chart": day_chart(use.days, use.by_day),
    }


class UsePart(Page):
    """The usage of another span of days."""

    async def get(self, name: str) -> None:
        """Show chart and table."""
        course = await self.service.course(self.path_name(name))
        values = use_values(self, course, await self.service.use(course, days_of(self)))
        if self.in_part:
            self.page("use.html", **values)
        else:
            self.page("dialog_page.html", part="use.html", **values)


def as_csv(course: str, use: CourseUsage) -> str:
    """Return a row for each person and day with usage."""
    rows = (
        (course, person, day, round(hours, 4))
        for person, by_day in use.by_person.items()
        for day, hours in zip(use.days, by_day, strict=True)
        if hours > 0
    )
    return csv_text(("course", "person", "day", "gpu_hours"), rows, "\r\n")


class UseCsv(Page):
    """The usage as a file."""

    async def get(self, name: str) -> None:
        """Send the file."""
        course = await self.service.course(self.path_name(name))
        text = as_csv(course.name, await self.service.use(course, days_of(self)))
        self.set_header("Content-Type", "text/csv; charset=utf-8")
        # A course's name has letters, digits and .+-_ only, some of which are not ASCII.
        ascii_name = course.name.encode("ascii", "replace").decode().replace("?", "_")
        self.set_header("Content-Disposition", f'attachment; filename="gpu-hours-{ascii_name}.csv"')
        self.finish(text)
