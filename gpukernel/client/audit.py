"""The audit table in words: what each change added, took away and set.

The pool keeps a change as the whole of its subject before and after, as JSON where that is a course or a quota.  People want the
difference.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpukernel.client.admin import AuditEntry
from gpukernel.common.bounds import plain_number
from gpukernel.common.course_entries import BOUNDS

__all__ = [
    "Change",
    "differences",
    "matching_entries",
    "merged",
    "plain_bound",
    "plain_duration",
    "planned_entry",
    "sentence",
    "subject_of",
]

MINUS = "−"
_FIGURES = ("term", "half-life", "notice", "least-run")
"""The changes that are one figure, in seconds."""
_NAMES = {ours: name for name, ours in BOUNDS.items()}


@dataclass(frozen=True)
class Change:
    """One difference: the `field` was `old` and is `new`.  Of a list's entries only one is given: what was added, or what was removed.

    `field` is empty where the subject as a whole was changed.
    """

    field: str
    old: str = ""
    new: str = ""
    entry: bool = False

    def __str__(self) -> str:
        if self.entry or not (self.old and self.new):
            sign = "+" if self.new else MINUS
            return f"{self.field} {sign} {self.new or self.old}".strip()
        return f"{self.field} {self.old} → {self.new}".strip()


def plain_duration(seconds: float) -> str:
    """Return a time as forms and ``courses.yaml`` write it: ``90s``, ``20min``, ``2h``, ``1d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size:.0f}{unit}"
    return f"{plain_number(seconds)}s"


def plain_bound(name: str, value: str) -> str:
    """Return a bound's value as forms write it."""
    try:
        number = float(value)
    except ValueError:
        return value
    if name in ("longest_lease", "idle"):
        return plain_duration(number)
    if name == "memory" and number >= 1024 and number % 1024 == 0:
        return f"{number / 1024:.0f}GiB"
    return plain_number(number)


def differences(entry: AuditEntry) -> list[Change]:
    """Return what an entry of the audit table changed, in the order of the fields."""
    if entry.action in _FIGURES:
        return [Change("", _figure(entry.action, entry.before), _figure(entry.action, entry.after))]
    before, after = _object(entry.before), _object(entry.after)
    if before is None or after is None or not (before or after):
        if entry.before == entry.after:
            return []
        return [Change("", entry.before, entry.after)]
    if entry.action == "course" and not after:
        return [Change("", old=entry.subject)]
    if entry.action == "quota":
        before, after = _bounds(before), _bounds(after)
    found: list[Change] = []
    for field in dict.fromkeys([*before, *after]):
        found += _of_field(field, before.get(field), after.get(field))
    return found


def merged(changes: Iterable[Change]) -> list[Change]:
    """Return the changes with neighbouring entries of one list as one: ``student + anna, ben``."""
    found: list[Change] = []
    for change in changes:
        last = found[-1] if found else None
        alike = last is not None and last.entry and change.entry and last.field == change.field
        if last is not None and alike and bool(last.new) == bool(change.new):
            old, new = (
                ", ".join(filter(None, both)) for both in ((last.old, change.old), (last.new, change.new))
            )
            found[-1] = Change(change.field, old, new, entry=True)
        else:
            found.append(change)
    return found


def subject_of(entry: AuditEntry) -> str:
    """Return what an entry is about; of an import the pool keeps the file's hash, which says nothing to people."""
    return "courses.yaml" if entry.action == "import" else entry.subject


def sentence(entry: AuditEntry) -> str:
    """Return an entry as a sentence: ``prof: course ml101: offers + V100 × 0.1``."""
    changes = ", ".join(str(change) for change in merged(differences(entry))) or entry.action
    return f"{entry.who}: {subject_of(entry)}: {changes}"


def planned_entry(line: str) -> AuditEntry | None:
    """Return a line of what an import would change as the entry of the audit that it will be; None where it has another form."""
    subject, _, rest = line.partition(": ")
    parts = rest.split(" → ")
    for place in range(1, len(parts)):
        before, after = (" → ".join(some) for some in (parts[:place], parts[place:]))
        before, after = ("" if one == "nothing" else one for one in (before, after))
        if _object(before) is not None and _object(after) is not None:
            break
    else:
        if len(parts) != 2:
            return None
    kind = subject.partition(" ")[0]
    return AuditEntry(0.0, "", "quota" if ":" in kind else kind, subject, before, after)


def matching_entries(
    entries: Iterable[AuditEntry], *, who: str = "", about: str = "", since: float = -math.inf
) -> list[AuditEntry]:
    """Return the entries from `since` on by somebody whose name contains `who`, about something whose words contain `about`."""
    return [
        entry
        for entry in entries
        if entry.time >= since
        if who.lower() in entry.who.lower()
        if about.lower() in f"{entry.action} {entry.subject} {entry.before} {entry.after}".lower()
    ]


def _object(text: str) -> dict[str, object] | None:
    """Return the JSON object of `text`; an empty one where there is no text, None where it is something else."""
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _figure(action: str, text: str) -> str:
    """Return seconds as people write them: the day on which the term began, or a time; nothing for no term."""
    try:
        seconds = float(text)
        if action != "term":
            return plain_duration(seconds)
        return datetime.date.fromtimestamp(seconds).isoformat() if seconds else ""
    except (ValueError, OverflowError, OSError):
        return text


def _bounds(values: Mapping[str, object]) -> dict[str, object]:
    named = {_NAMES.get(ours, ours): value for ours, value in values.items()}
    return {name: plain_bound(name, str(value)) for name, value in named.items()}


def _of_field(field: str, old: object, new: object) -> Iterator[Change]:
    if old == new:
        return
    if isinstance(old, Mapping) or isinstance(new, Mapping):  # people and their roles
        was, now = (value if isinstance(value, Mapping) else {} for value in (old, new))
        for name in dict.fromkeys([*was, *now]):
            if was.get(name) != now.get(name):
                yield from _entries(_words(was.get(name)), _words(now.get(name)), str(name))
    elif isinstance(old, list) or isinstance(new, list):
        had, has = (value if isinstance(value, list) else [] for value in (old, new))
        if sorted(map(str, had)) == sorted(map(str, has)):
            yield Change(field, ", ".join(map(str, had)), ", ".join(map(str, has)))
            return
        yield from (Change(field, old=str(one), entry=True) for one in had if one not in has)
        yield from (Change(field, new=str(one), entry=True) for one in has if one not in had)
    else:
        was_words, words = _words(old), _words(new)
        if was_words != words:
            yield Change(field, was_words, words)


def _entries(was: str, now: str, name: str) -> Iterator[Change]:
    if was:
        yield Change(was, old=name, entry=True)
    if now:
        yield Change(now, new=name, entry=True)


def _words(value: object) -> str:
    if value is None:
        return ""
    return plain_number(value) if isinstance(value, float) else str(value)
