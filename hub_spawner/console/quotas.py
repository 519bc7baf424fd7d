"""The forms for a course's quotas, with a preview of their effect, and for its offers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace

import pydantic

from gpukernel.client.teaching import QuotaEffect
from gpukernel.common.course import Offered
from gpukernel.common.course_entries import NO_TITLE, CourseEntry, expected_bound, parse_bound
from gpukernel.common.errors import Refused
from gpukernel.common.file_words.entry_words import entry_words
from gpukernel.common.i18n import say
from hub_spawner.console.base import Page
from hub_spawner.console.course_service import BOUNDS, CourseInfo, Quotas
from hub_spawner.i18n import later

__all__ = ["LABELS", "OffersForm", "QuotaForm", "effect_sentence", "offer_values", "quota_values"]

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
    "interactive": (later("Interactive devices at one moment"), later("2.5; 0: batch only")),
}


def quota_values(page: Page, course: CourseInfo, quotas: Quotas) -> dict[str, object]:
    """Return the values of ``quotas.html``."""
    gettext = page.texts.gettext
    forms = []
    for whom in WHOM if page.service.administers else WHOM[:1]:
        now = {bound.bound: bound.value for bound in getattr(quotas, whom)}
        forms.append(quota_form(page, whom, now))
    course_bounds = [
        SimpleNamespace(label=gettext(LABELS[b.bound][0]), value=b.value, used=b.used) for b in quotas.course
    ]
    return {"course": course, "forms": forms, "course_bounds": course_bounds}


def quota_form(
    page: Page, whom: str, values: Mapping[str, str], errors: Mapping[str, str] = MappingProxyType({})
) -> SimpleNamespace:
    """Return the values of ``quota_form.html``; `errors` are sentences by field."""
    gettext = page.texts.gettext
    fields = [
        SimpleNamespace(
            name=name,
            label=gettext(LABELS[name][0]),
            help=gettext(LABELS[name][1]),
            value=values.get(name, ""),
            error=errors.get(name, ""),
        )
        for name in BOUNDS
    ]
    return SimpleNamespace(whom=whom, fields=fields, given=sum(map(bool, values.values())))


def bound_errors(page: Page, bounds: Mapping[str, str]) -> dict[str, str]:
    """Return, by field, a sentence in the reader's language for each bound that cannot be."""
    errors = {}
    for name, text in bounds.items():
        try:
            parse_bound(name, text)
        except Refused:
            wrong = say("Write %(what)s, not “%(text)s”.", what=expected_bound(name), text=text[:40])
            errors[name] = page.texts.of(wrong)
    return errors


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
            "%(n)s slice held now keeps its old limit (%(bound)s); the new one is for slices from now on.",
            "%(n)s slices held now keep their old limit (%(bound)s); the new one is for slices from now on.",
            n,
        )
    elif effect.kind == "held":
        text = ngettext(
            "%(n)s slice held now has the new times, too.",
            "%(n)s slices held now have the new times, too.",
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
        if errors := bound_errors(self, bounds):
            given = {bound: self.field(bound, 40).strip() for bound in BOUNDS}
            self.refuse_form("quota_form.html", course=course, form=quota_form(self, whom, given, errors))
            return
        apply = bool(self.field("apply"))
        lines: list[str] = []
        effects: list[QuotaEffect] = []
        if bounds:
            async with self.service.as_teacher(course) as pool:
                lines, effects = await pool.quota_effects(
                    f"{whom}:{course.name}", bounds, check=not apply, held=bool(self.field("held"))
                )
        if apply and lines:
            said = self.texts.gettext("The quotas are set; they count at once.")
            for effect in effects:
                if effect.kind == "held":
                    said += " " + effect_sentence(self, effect)
            self.done(said, self.course_path(course.name))
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


def offer_values(
    course: CourseInfo,
    given: Mapping[str, str] | None = None,
    errors: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, object]:
    """Return the values of ``offers.html``: what the course has, or what was `given` with sentences about it by field."""
    values = given or {
        "title": course.title,
        "term": course.term,
        "offers": "\n".join(course.offers),
        "start": course.start,
    }
    return {"course": course, "offers_form": SimpleNamespace(given=values, errors=defaultdict(str, errors))}


def offer_errors(page: Page, given: Mapping[str, str], offers: list[str]) -> dict[str, str]:
    """Return, by field, a sentence in the reader's language for what a course cannot have."""
    errors: dict[str, str] = {}
    if not given["title"]:
        errors["title"] = page.texts.gettext(NO_TITLE)
    for name in ("title", "term"):
        if not given[name].isprintable():
            errors[name] = page.texts.gettext(later("Write it in printable characters, on one line."))
    for line in offers:
        try:
            Offered.parse(line)
        except ValueError:
            wrong = say("“%(text)s” is no size; write V100 x 0.02, or 0.02 of any model.", text=line[:60])
            errors["offers"] = page.texts.of(wrong)
            break
    try:
        CourseEntry.model_validate({**given, "offers": offers})
    except pydantic.ValidationError as error:
        for one in error.errors():
            errors.setdefault(str(one["loc"][0]), page.texts.of(entry_words(one)[0]))
    return errors


class OffersForm(Page):
    """The form of a course's title, term, start policy and offers."""

    async def post(self, name: str) -> None:
        """Save the fields."""
        course = await self.service.course(self.path_name(name))
        given = {
            "title": self.field("title").strip(),
            "term": self.field("term").strip(),
            "offers": self.field("offers", 8000),
            "start": self.field("start"),
        }
        offers = [line.strip() for line in given["offers"].splitlines() if line.strip()]
        if errors := offer_errors(self, given, offers):
            self.refuse_form("offers_form.html", **offer_values(course, given, errors))
            return
        fields = {**given, "offers": offers}
        async with self.service.as_teacher(course) as pool:
            changed = await pool.set_course(course.name, fields)
        gettext = self.texts.gettext
        said = (
            gettext("The course is saved; students see it at once.")
            if changed
            else gettext("Nothing has changed.")
        )
        self.done(said, self.course_path(course.name) + "#offers")
