"""Every sentence that a wrong ``courses.yaml`` can be told, in Chinese: no English is left but names and what was written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpukernel.common.course_entries import BOUNDS, CourseEntry, CourseFile
from gpukernel.common.course_file import LARGEST_FILE, course_problems, read_courses
from gpukernel.common.errors import Refused
from gpukernel.common.file_words.entry_words import _KINDS
from gpukernel.common.file_words.yaml_words import NO_YAML, yaml_words
from gpukernel.common.i18n import Sentence
from hub_spawner.i18n import Texts

CHINESE = Texts("zh")
# Words of the file itself, as it is written: names of fields, values, units.
FILE = {
    *("YAML", "UTF", "URI", "MiB", "GiB", "min", "Europe", "Berlin", "V100", "date", "days", "true", "false"),
    *("mon", "tue", "wed", "thu", "fri", "sat", "sun", "interactive", "batch", "scavenger", "at_start"),
    *("on_first_use", "inf", "nan"),
}
VALUES = (
    *('""', "soon", "-1", "0", "0.5s", "0.5KiB", '"0.1"', "1e12", "999999999", "1.5", ".nan", ".inf", "true"),
    *("null", "2026-12-01", "2026-12-01 10:00:00", "2026-02-30", "[]", "[1]", "[[1]]", "[{}]", "[true, x]"),
    *("{}", "{a: 1}", "{1: 2}", "{1: {}}", "[a, a]", "[tue, tue]", "[noday]", '"a\\u0007b"', '"\\ud800"'),
    *(
        "x" * 300,
        "9" * 5000,
        "0x" + "f" * 5000,
        f'"{"9" * 400}GiB"',
        f'"{"9" * 400}d"',
        '"25:00"',
        "!!set {a}",
    ),
    *(
        "!!binary aGk=",
        "!!timestamp x",
        "!!int x",
        "!!bool x",
        "!!float x",
        "urgent",
        "Europe/Atlantis",
        "../x",
        '"a b"',
    ),
    *("[" + ", ".join(f"n{n}" for n in range(101)) + "]", "[" + ", ".join(["0.5"] * 101) + "]"),
    '[{days: [tue], from: "14:00", to: "12:00", devices: 1}, {from: "1:00", to: "2:00", devices: 1}]',
    '[{days: noday, date: x, from: x, to: 1.5, devices: x, model: "\\u0007", preempt: x, evict: 1}]',
    '[{days: [], from: "1:00"}, {date: 2026-12-01 10:00:00, from: {}, to: [], devices: [], preempt: []}]',
    '[{days: [tue], from: "1:00", to: "2:00", devices: 1, model: "\\u0007"}, {date: 1.5, preempt: 2}]',
)
SYNTAX = (
    *("pool: [\n", "pool: {a: 1\n", "pool: {a: 1]\n", "[1}\n", "a: b: c\n", "- a\nb: 1\n", "a: 1\n- b\n", "a:\n  b: 1\n c: 2\n"),
    *("pool: @x\n", "pool: `x`\n", "\tpool: 1\n", 'pool: "\\q"\n', 'pool: "\\x4"\n', 'pool: "x\n', "pool: 'x\n---\n'\n"),
    *("%YAML 1.a\n---\n", "%YAML x\n---\n", "%YAML 1.1x\n---\n", "%YAML 1.1\n%YAML 1.1\n---\n", "%YAML 2.0\n---\n"),
    *("%TAG ! x\n%TAG ! y\n---\n", "%TAG x y\n---\n", "%\n---\n", "%@\n---\n", "%TAG !a\n---\n", "%YAML 1.1 x\n"),
    *("a: !x!y z\n", "a: !<x z\n", "a: !<> z\n", "a: !%zz z\n", "a: !%ff z\n", "a: !x,y z\n", "a: !foo z\n"),
    *("a: |0\n  x\n", "a: |x\n  x\n", "a: |1x\n", "a: > x\n", "a: &\n", "a: *\n", "a: &b@ x\n", "a: *b\n", "a: &b x\n"),
    *("a: 1\n---\nb: 1\n", "a: 1\n...\nx\n", "? [a]\n: 1\n", "? {a: 1}\n: 1\n", "a\nb: 1\n", "a: 'x' y\n", "a: ? b\n", "a: - b\n"),
    *("<<: 1\n", "<<: [1]\n", "!!omap x\n", "!!omap [x]\n", "!!omap [{a: 1, b: 2}]\n", "!!pairs x\n", "!!pairs [x]\n"),
    *("!!map x\n", "!!seq x\n", "!!str [x]\n", "!!python/object/apply:os.system [x]\n", "\0", "a: \ud800\n", "\ufffe", "x\x07"),
    *("pool: {}\npool: {}\n", "[" * 50, "a: " + "9" * 5000 + "\n", "a: 2026-13-01\n", "- 1\n", "7\n", "x\n", "2: {}\n", "true: 1\n"),
    *("courses: {a b: {}}\n", "courses: {1: {}}\n", "people: {'': {}}\n", "people: {1: {}}\n", "courses: 7\n", "people: [x]\n"),
    "courses:\n  a:\n    instructors: [p]\n    students:\n    - p\n",
    "courses:\n  a:\n    reservations:\n"
    + 2 * '    - {days: [tue], from: "1:00", to: "2:00", devices: 1}\n',
    "x" * (LARGEST_FILE + 1),
)  # fmt: skip


def files() -> Iterator[str]:
    """Files with every wrong value at every place, and what is no YAML in every way that its reader knows."""
    yield from SYNTAX
    quotas = ("quota", "each_student", "each_instructor")
    for value in VALUES:
        yield from (f"{name}: {value}\n" for name in CourseFile.model_fields)
        yield from (f"courses:\n  a:\n    {name}: {value}\n" for name in CourseEntry.model_fields)
        yield from (f"pool:\n  {name}: {value}\n" for name in BOUNDS)
        yield from (f"courses: {{a: {{{quota}: {value}}}}}\n" for quota in quotas)


def parts(text: str) -> Iterator[Sentence]:
    if isinstance(text, Sentence):
        yield text
        for value in text.values.values():
            if isinstance(value, str):
                yield from parts(value)


FIELDS = {*BOUNDS, *CourseFile.model_fields, *CourseEntry.model_fields, "model", "preempt", "from", "to"}


def test_every_sentence_about_a_wrong_file_is_in_the_reader_s_language() -> None:
    said: set[str] = set()
    for text in files():
        problems = course_problems(text)
        if problems:
            with pytest.raises(Refused) as refused:
                read_courses(text)
            assert str(refused.value) == "\n".join(problems)
            assert CHINESE.of(refused.value.args[0]) == "\n".join(map(CHINESE.of, problems))
        for problem in problems:
            inner = [one.template for one in parts(problem)]
            said.update(inner)
            assert NO_YAML not in inner, problem
            assert [one for one in inner if CHINESE.gettext(one) == one] == [], problem
            chinese = CHINESE.of(problem)
            assert re.match("第 [0-9]+ 行：|文件有", chinese), chinese
            # What was written, as sentences quote it: between quotation marks, or cut off.
            shown = re.sub(r"'[^']*'|\"[^\"]*\"|0xf+…|n\d+|U\+\w+", "", chinese)
            words = set(re.findall(r"[A-Za-z_]{3,}", shown)) - FILE - FIELDS
            assert {one for one in words if one not in text and one[:20] not in text} == set(), chinese
            english = re.search(r"\b(is|are|be|the|not|should|but|found|expected|write|with)\b", shown)
            assert english is None, chinese
    assert set(_KINDS.values()) - said == set()  # each of them was said


def test_what_yaml_s_reader_can_say_is_known() -> None:
    """Its sentences as they stand in its source, whatever version is installed."""
    found = []
    for module in ("scanner", "parser", "composer", "constructor"):
        source = ast.parse((Path(yaml.__file__).parent / f"{module}.py").read_text())
        for cls in (one for one in source.body if isinstance(one, ast.ClassDef)):
            if cls.name in ("FullConstructor", "UnsafeConstructor"):  # make Python's objects
                continue
            for node in ast.walk(cls):
                if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)):
                    continue
                if len(node.exc.args) > 2:
                    problem = node.exc.args[2]
                    if isinstance(problem, ast.BinOp):
                        problem = problem.left
                    if isinstance(problem, ast.Constant):
                        found.append(re.sub("%[rsd]", "3", str(problem.value)))
    assert len(found) > 50
    # Of state of Python's objects, and of what is binary: the file has neither.
    found = [one for one in found if "blacklisted" not in one and "base64" not in one]
    unknown = [one for one in found if yaml_words(one).template == NO_YAML]
    assert set(unknown) <= {
        "found undefined alias 3",  # a reference, which is refused before
        "second occurrence",
        "found unconstructable recursive node",
    }
