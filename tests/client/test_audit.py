"""The audit table's entries as the differences that they are."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpukernel.client.admin import AuditEntry
from gpukernel.client.audit import differences, matching_entries, plain_bound, planned_entry, sentence
from gpukernel.common.bounds import plain_number
from gpukernel.common.course_entries import parse_bound


def entry(action: str, subject: str, before: object, after: object, when: float = 0.0) -> AuditEntry:
    texts = [one if isinstance(one, str) else json.dumps(one) for one in (before, after)]
    return AuditEntry(when, "prof", action, subject, *texts)


COURSE = {"title": "ML", "weight": 1.0, "members": {"prof": "instructor"}, "offers": ["V100 × 0.02"]}


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (
            entry("course", "course ml101", COURSE, {**COURSE, "offers": ["V100 × 0.02", "V100 × 0.1"]}),
            "prof: course ml101: offers + V100 × 0.1",
        ),
        (
            entry("course", "course ml101", COURSE, {**COURSE, "title": "Deep learning", "offers": []}),
            "prof: course ml101: title ML → Deep learning, offers − V100 × 0.02",
        ),
        (
            entry("course", "course ml101", COURSE, {**COURSE, "members": {"anna": "student", "prof": "student"}}),
            "prof: course ml101: instructor − prof, student + prof, anna",
        ),
        (
            entry("course", "course ml101", COURSE | {"offers": ["a", "b"]}, COURSE | {"offers": ["b", "a"]}),
            "prof: course ml101: offers a, b → b, a",
        ),
        (
            entry("course", "course new", "", {"title": "New", "weight": 2, "members": {}}),
            "prof: course new: title + New, weight + 2",
        ),
        (entry("course", "course ml101", COURSE, ""), "prof: course ml101: − course ml101"),
        (
            entry(
                "quota",
                "student:ml101",
                {"devices": 0.5, "memory_mib": 2048, "leases": 3},
                {"devices": 0.2, "memory_mib": 2048, "idle_seconds": 1200.0},
            ),
            "prof: student:ml101: devices 0.5 → 0.2, leases − 3, idle + 20min",
        ),
        (entry("quota", "pool", "", {"hours_week": 12.5}), "prof: pool: gpu_hours_per_week + 12.5"),
        (
            entry("reservation", "reservation of ml101", "", "tue 10:00–12:00 1.5 V100"),
            "prof: reservation of ml101: + tue 10:00–12:00 1.5 V100",
        ),
        (entry("timezone", "timezone", "", "Europe/Berlin"), "prof: timezone: + Europe/Berlin"),
        (entry("end", "course ml101: anna", "lease 3f2a", "the lesson is over"), "prof: course ml101: anna: lease 3f2a → the lesson is over"),
        (entry("import", "3690d450a169595b", "", ""), "prof: courses.yaml: import"),
        (entry("drain", "gpu1", "7", "[1, 2]"), "prof: gpu1: 7 → [1, 2]"),
    ],
)  # fmt: skip
def test_an_entry_is_a_sentence_with_the_difference(one: AuditEntry, said: str) -> None:
    assert sentence(one) == said


def test_nothing_is_lost_between_before_and_after() -> None:
    """The differences, applied to what was there before, give what is there after."""
    before = {"title": "A", "weight": 1.0, "offers": ["x", "y"], "term": "spring"}
    after = {"title": "B", "weight": 1.0, "offers": ["y", "z"], "start": "at_start"}
    made: dict[str, object] = dict(before)
    for change in differences(entry("course", "course a", before, after)):
        if change.entry:
            items = made[change.field]
            assert isinstance(items, list)
            made[change.field] = [one for one in items if one != change.old] + (
                [change.new] if change.new else []
            )
        elif change.new:
            made[change.field] = change.new
        else:
            del made[change.field]
    assert made == after


def test_entries_are_filtered_by_who_what_and_when() -> None:
    entries = [
        entry("quota", "student:ml101", {"devices": 1}, {"devices": 2}, 10),
        entry("course", "course hpc", "", {"title": "Parallel"}, 20),
    ]
    assert matching_entries(entries, about="ML101") == entries[:1]
    assert matching_entries(entries, about="parallel") == entries[1:]
    assert matching_entries(entries, who="anna") == []
    assert matching_entries(entries, who="PRO", since=15) == entries[1:]


NUMBERS = st.decimals(0, 100_000, places=3).map(float) | st.integers(0, 100_000).map(float)


@given(st.sampled_from(["devices", "memory", "leases", "gpu_hours_per_term", "longest_lease"]), NUMBERS)
@example("memory", 1_234_567.0)  # 1.23457e+06 was saved as 1,234,570
@example("longest_lease", 1_000_001.0)
@example("devices", 1e-08)
def test_saving_what_a_form_shows_changes_nothing(name: str, value: float) -> None:
    if name in ("memory", "leases", "longest_lease"):
        value = max(1.0, float(int(value)))
    shown = plain_bound(name, plain_number(value))
    assert "e" not in shown
    assert parse_bound(name, shown)[1] == value


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            f"course ml101: {json.dumps(COURSE)} → {json.dumps(COURSE | {'title': 'a → b'})}",
            "course ml101: title ML → a → b",
        ),
        (f"course ml101: {json.dumps(COURSE)} → nothing", "course ml101: − course ml101"),
        ('student:ml101: nothing → {"idle_seconds": 1200.0}', "student:ml101: idle + 20min"),
        ("timezone: UTC → Asia/Shanghai", "timezone: UTC → Asia/Shanghai"),
        ("reservation of ml101: nothing → tue 10:00–12:00 0.5 devices", "reservation of ml101: + tue 10:00–12:00 0.5 devices"),
    ],
)  # fmt: skip
def test_a_line_of_an_import_is_said_as_the_difference_that_it_is(line: str, said: str) -> None:
    planned = planned_entry(line)
    assert planned is not None
    assert sentence(planned) == f": {said}"


def test_a_line_of_another_form_is_no_entry() -> None:
    assert planned_entry("Something else.") is None
    assert planned_entry("a: b → c → d") is None
