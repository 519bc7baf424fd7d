"""The forms for a course's quotas, with a preview of their effect, and for its offers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from gpukernel.client.teaching import QuotaEffect
from hub_spawner.console.base import Page
from hub_spawner.console.course_service import BOUNDS, CourseInfo, Quotas
from hub_spawner.i18n import later

__all__ = ["OffersForm", "QuotaForm", "effect_sentence", "offer_values", "quota_values"]

WHOM = ("student", "course", "instructor")
"""Whose quotas a form sets; instructors set those of their students, administrators all."""


LABELS = {
    "devices": (later("Devices at one moment"), later("2.5: two and a half devices' worth")),
    "memory": (later("Memory at one moment"), later("2048 (MiB) or 32GiB")),
    "leases": (later("Slices at one moment"), later("a whole number")),
    "gpu_hours_per_day": (later("GPU-hours a day"), later("share × hours")),
    "gpu_hours_per_week": (later("GPU-hours a week"), later("share × hours, from Monday")),
    "gpu_hours_per_term": (later("GPU-hours a term"), later("share × hours")),
    "longest_lease": (later("Longest time of a slice"), later("90s, 30min or 2h")),
    "largest_slice": (later("Largest slice"), later("a share of one device, up to 1")),
    "idle": (later("Released when idle for"), later("90s, 30min or 2h; 0: never")),
    "waiting": (later("Requests that wait"), later("a whole number")),
}


def quota_values(page: Page, course: CourseInfo, quotas: Quotas) -> dict[str, object]:
    """Return the values of ``quotas.html``."""
    gettext = page.texts.gettext
    forms = []
    for whom in WHOM if page.service.administers else WHOM[:1]:
        now = {bound.bound: bound.value for bound in getattr(quotas, whom)}
        fields = [
            SimpleNamespace(
                name=name,
                label=gettext(LABELS[name][0]),
                help=gettext(LABELS[name][1]),
                value=now.get(name, ""),
            )
            for name in BOUNDS
        ]
        forms.append(SimpleNamespace(whom=whom, fields=fields, given=len(now)))
    course_bounds = [
        SimpleNamespace(label=gettext(LABELS[b.bound][0]), value=b.value, used=b.used) for b in quotas.course
    ]
    return {"course": course, "forms": forms, "course_bounds": course_bounds}


def effect_sentence(page: Page, effect: QuotaEffect) -> str:
    """Return the pool's sentence of an effect in the reader's language."""
    gettext, n = page.texts.gettext, effect.count
    ngettext: Callable[[str, str, int], str] = page.texts.ngettext
    values = {
        "n": n,
        "limit": effect.limit,
        "bound": gettext(LABELS.get(effect.bound, (effect.bound, ""))[0]),
    }
    if effect.kind == "waiting":
        text = ngettext(
            "%(n)s waiting request asks for more than that and would never start.",
            "%(n)s waiting requests ask for more than that and would never start.",
            n,
        )
    elif effect.kind == "running":
        text = ngettext(
            "%(n)s slice that is held keeps the time that it was given (%(bound)s).",
            "%(n)s slices that are held keep the time that they were given (%(bound)s).",
            n,
        )
    elif effect.bound == "largest_slice":
        text = ngettext(
            "%(n)s slice is larger than the new limit of %(limit)s; it stays until it ends.",
            "%(n)s slices are larger than the new limit of %(limit)s; they stay until they end.",
            n,
        )
    elif not effect.people:
        return (
            effect.sentence
            if page.language == "en"
            else gettext(
                "The course is above the new limit of %(limit)s (%(bound)s); what is held stays until it ends."
            )
            % values
        )
    else:
        text = ngettext(
            "%(n)s person is above the new limit of %(limit)s (%(bound)s); they keep what they have until it ends.",
            "%(n)s people are above the new limit of %(limit)s (%(bound)s); they keep what they have until it ends.",
            n,
        )
    return text % values


class QuotaForm(Page):
    """The form of a course's quotas."""

    async def post(self, name: str) -> None:
        """Show what the fields would change; with the field ``apply``, set them."""
        course = await self.service.course(self.path_name(name))
        whom = self.field("whom")
        whom = whom if whom in WHOM else WHOM[0]
        before = {bound.bound: bound.value for bound in getattr(await self.service.quotas(course), whom)}
        bounds = {}
        for bound in BOUNDS:
            text = self.field(bound, 40).strip()
            if text != before.get(bound, ""):
                bounds[bound] = text or "none"
        apply = bool(self.field("apply"))
        lines: list[str] = []
        effects: list[QuotaEffect] = []
        if bounds:
            async with self.service.as_teacher(course) as pool:
                lines, effects = await pool.quota_effects(f"{whom}:{course.name}", bounds, check=not apply)
        if apply and lines:
            self.done(
                self.texts.gettext("The quotas are set; they count at once."), self.course_path(course.name)
            )
            return
        changes = [
            SimpleNamespace(
                label=self.texts.gettext(LABELS[bound][0]),
                old=before.get(bound, ""),
                new="" if value == "none" else value,
            )
            for bound, value in bounds.items()
            if lines
        ]
        values = {
            "course": course,
            "whom": whom,
            "changes": changes,
            "fields": {bound: self.field(bound, 40).strip() for bound in BOUNDS},
            "effects": [
                SimpleNamespace(
                    sentence=effect_sentence(self, effect), people=effect.people, kind=effect.kind
                )
                for effect in effects
            ],
        }
        if self.in_part:
            self.page("preview.html", **values)
        else:
            self.page("dialog_page.html", part="preview.html", **values)


def offer_values(course: CourseInfo) -> dict[str, object]:
    """Return the values of ``offers.html``."""
    return {"course": course, "offers": "\n".join(course.offers)}


class OffersForm(Page):
    """The form of a course's title, term, start policy and offers."""

    async def post(self, name: str) -> None:
        """Save the fields."""
        course = await self.service.course(self.path_name(name))
        offers = [line.strip() for line in self.field("offers", 8000).splitlines() if line.strip()]
        fields = {
            "title": self.field("title").strip(),
            "term": self.field("term").strip(),
            "start": self.field("start"),
            "offers": offers,
        }
        async with self.service.as_teacher(course) as pool:
            changed = await pool.set_course(course.name, fields)
        gettext = self.texts.gettext
        said = (
            gettext("The course is saved; students see it at once.")
            if changed
            else gettext("Nothing has changed.")
        )
        self.done(said, self.course_path(course.name) + "#offers")
