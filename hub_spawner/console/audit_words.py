"""The audit table in the reader's language: subjects, what was done, and what was there before and after.

The pool keeps all of it in English, as texts.  What it writes itself is found again as the template that made it; what people wrote,
and names, stay as they are.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gpukernel.client.admin import AuditEntry
from gpukernel.client.audit import Change, differences, merged, planned_entry, subject_of
from gpukernel.common.i18n import Sentence, later, recognised, say
from hub_spawner.console.quotas import LABELS
from hub_spawner.i18n import Texts

__all__ = ["change_words", "import_words", "subject_words", "who_words"]

FIELDS = {
    "title": later("Title"),
    "term": later("Term"),
    "offers": later("Offers"),
    "start": later("When a kernel asks for its slice"),
    "priority": later("Class of its kernels"),
    "weight": later("Weight"),
    "environments": later("Environments"),
    "groups": later("Groups of students"),
    "instructor_groups": later("Groups of instructors"),
    "notebooks": later("Notebooks"),
    "student": later("Student"),
    "instructor": later("Instructor"),
}
ACTIONS = {
    "course": later("Course"),
    "delegate": later("Decided by"),
    "device": later("Device"),
    "drain": later("Drain"),
    "end": later("End of a slice"),
    "forget": later("Server forgotten"),
    "gives way": later("Slice gives way"),
    "half-life": later("Half-life of what courses have held"),
    "held": later("Slices held now"),
    "import": later("File imported"),
    "least-run": later("Time before a slice gives way"),
    "message": later("Message"),
    "notice": later("Notice before a slice gives way"),
    "queue": later("Place in the queue"),
    "quota": later("Quota"),
    "reservation": later("Reserved hours"),
    "reset": later("Server's identity reset"),
    "resize": later("Resize"),
    "server": later("JupyterHub's server"),
    "term": later("Term"),
    "timezone": later("Time zone"),
    "token": later("Token"),
}
_WHO = (
    later("agent of %(server)s"),
    later("the queue"),
    later("%(person)s (instructor by %(who)s)"),
    later("%(person)s through %(who)s"),
)
_QUOTAS = (
    later("pool"),
    later("without_course"),
    later("course:%(course)s"),
    later("student:%(course)s"),
    later("instructor:%(course)s"),
    later("person:*"),
    later("person:%(person)s"),
)
_OF_A_COURSE = (
    later("course %(course)s: %(person)s"),
    later("no course: %(person)s"),
    later("course %(course)s"),
)
_SUBJECTS = {
    "course": _OF_A_COURSE,
    "end": _OF_A_COURSE,
    "gives way": (later("lease %(lease)s of %(person)s"),),
    "held": _QUOTAS,
    "message": _OF_A_COURSE,
    "queue": _OF_A_COURSE,
    "quota": _QUOTAS,
    "reservation": (later("reservation of %(course)s"),),
    "resize": _OF_A_COURSE,
}
_LEASE = (later("lease %(lease)s"),)
_VALUES = {
    "course": _OF_A_COURSE,
    "delegate": (later("%(decider)s, then %(next)s"),),
    "device": (
        later("its server has it no more"),
        later("there again %(uuid)s"),
        later("there again"),
        later("taken out by hand"),
        later("critical error XID %(n)s; restart the agent when it is mended"),
    ),
    "drain": (later("drained"), later("in use")),
    "end": (*_LEASE, later("%(person)s ended it: %(why)s"), later("%(person)s ended it")),
    "forget": (later("forgotten"),),
    "gives way": (
        later("to an interactive request of course %(course)s, at %(time)s"),
        later("to an interactive request, at %(time)s"),
    ),
    "held": (later("%(n)s slices have the new times"),),
    "queue": (
        later("place %(n)s of %(all)s in the course's queue"),
        later("place %(n)s of %(all)s"),
    ),
    "resize": _LEASE,
    "server": (
        later("open"),
        later("its server is gone"),
        later("its server was stopped"),
        later("its server could not be started"),
        later("its server ended: %(why)s"),
        later("its server ended"),
    ),
    "token": (later("revoked"), later("revoked, with %(n)s made with it"), later("renewed")),
}
_STARTS = {"at_start": later("when it starts"), "on_first_use": later("when it first uses the GPU")}
_DAYS = {
    "mon": later("Mon"),
    "tue": later("Tue"),
    "wed": later("Wed"),
    "thu": later("Thu"),
    "fri": later("Fri"),
    "sat": later("Sat"),
    "sun": later("Sun"),
}
_RESERVATION = re.compile(
    r"(?P<days>.+) (?P<time>\d\d:\d\d–\d\d:\d\d) (?P<n>[\d.]+) (?P<what>.+?)(?P<preempt>, preempts)?"
)


def who_words(texts: Texts, who: str) -> str:
    """Return who made a change; another's name stays what it is."""
    return texts.of(recognised(who, _WHO) or Sentence("%(who)s", {"who": who}))


def subject_words(texts: Texts, entry: AuditEntry) -> str:
    """Return what an entry is about."""
    subject = subject_of(entry)
    if subject == entry.action:
        return texts.gettext(ACTIONS.get(subject, subject))
    return _text(texts, subject, _SUBJECTS.get(entry.action, ()))


def change_words(texts: Texts, entry: AuditEntry) -> list[str]:
    """Return the differences of an entry; what was done, where they name no field."""
    done = texts.gettext(ACTIONS.get(entry.action, entry.action))

    def words(change: Change) -> str:
        shown = replace(
            change,
            old=_value(texts, entry, change.field, change.old),
            new=_value(texts, entry, change.field, change.new),
        )
        if not change.field and subject_of(entry) == entry.action:
            return str(shown)  # what it is about says it already
        if not change.field:
            return f"{done}{texts.gettext(later(': '))}{shown}"
        label = LABELS[change.field][0] if change.field in LABELS else FIELDS.get(change.field, change.field)
        return str(replace(shown, field=texts.gettext(label)))

    return [words(change) for change in merged(differences(entry))] or [done]


def import_words(texts: Texts, line: str) -> str:
    """Return a line of what an import would change."""
    entry = planned_entry(line)
    if entry is None:
        return line
    changes = texts.gettext(later(", ")).join(change_words(texts, entry))
    return f"{subject_words(texts, entry)}{texts.gettext(later(': '))}{changes}"


def _text(texts: Texts, text: str, templates: tuple[str, ...]) -> str:
    found = recognised(text, templates)
    return text if found is None else texts.of(found)


def _value(texts: Texts, entry: AuditEntry, field: str, value: str) -> str:
    if field == "start":
        return texts.gettext(_STARTS.get(value, value))
    if field:
        return value
    if entry.action == "reservation":
        return _reservation(texts, value)
    return _text(texts, value, _VALUES.get(entry.action, ()))


def _reservation(texts: Texts, text: str) -> str:
    """Return reserved hours, ``tue, thu 10:00–12:00 1.5 V100, preempts``."""
    match = _RESERVATION.fullmatch(text)
    if match is None:
        return text
    days = texts.gettext(later(", ")).join(texts.gettext(_DAYS.get(d, d)) for d in match["days"].split(", "))
    what = say("devices") if match["what"] == "devices" else match["what"]
    template = "%(days)s %(time)s %(n)s %(what)s"
    if match["preempt"]:
        template = later("%(days)s %(time)s %(n)s %(what)s, preempts")
    return texts.of(Sentence(template, {"days": days, "time": match["time"], "n": match["n"], "what": what}))
