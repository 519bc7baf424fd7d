"""``gpukernel report`` against a real pool, and how it adds up."""

from __future__ import annotations

import csv
import io
import json
import time

import pytest

from gpukernel.cli.report import add_up
from gpukernel.cli.terminal.output import Problem
from gpukernel.cli.terminal.times import when
from gpukernel.common.model import LeaseUse
from tests.cli.held_slices import hold, over
from tests.conftest import Pool, eventually


def test_a_report_adds_up_what_was_held(gpu1_pool: Pool) -> None:
    program = hold(gpu1_pool)
    over(program)
    eventually(lambda: not gpu1_pool.live())
    lines = json.loads(gpu1_pool.gpukernel("report", "--since", "1h", "--json").stdout)
    assert lines[0]["leases"] >= 1
    assert 0 < lines[0]["device_hours"] < lines[0]["hours"] < 1
    table = list(csv.reader(io.StringIO(gpu1_pool.gpukernel("report", "--by", "course", "--csv").stdout)))
    assert table[0] == ["course", "leases", "hours", "device_hours", "memory_gib_hours"]
    assert table[1][0] == "(none)"
    assert "Nothing was held" in gpu1_pool.gpukernel("report", "--course", "ml101").stdout
    for words in (["--since", "soon"], ["--by", "moon"], ["--since", "today", "--until", "2020-01-01"]):
        answer = gpu1_pool.gpukernel("report", *words)
        assert answer.returncode in (1, 2)
        assert len(answer.stderr.splitlines()) == 1


def test_times_of_reports() -> None:
    now = time.mktime((2026, 11, 18, 15, 30, 0, 0, 0, -1))  # a Wednesday

    def day(number: int, hour: int = 0) -> float:
        return time.mktime((2026, 11, number, hour, 0, 0, 0, 0, -1))

    assert when("today", now) == when("Wednesday", now) == day(18)
    assert when("monday", now) == day(16)
    assert when("thursday", now) == day(12)
    assert when("2026-11-01", now) == day(1)
    assert when("2026-11-01T10:00", now) == day(1, 10)
    assert when("2h", now) == now - 7200
    for wrong in ("", "nan", "-1", "2026-13-01", "x" * 65536):
        with pytest.raises(Problem):
            when(wrong, now)


def test_lines_of_a_report() -> None:
    start = time.mktime((2026, 11, 18, 15, 30, 0, 0, 0, -1))
    parts = [
        LeaseUse("l1", "anna", "ml", "", start, 2, 1, 10),
        LeaseUse("l1", "anna", "ml", "", start + 7200, 1, 0.25, 5),
        LeaseUse("l2", "ben", "", "", start - 86400, 4, 2, 1, "slurm"),
    ]
    assert [(line.what, line.leases, line.device_hours) for line in add_up(parts, "person")] == [
        ("ben", 1, 2),
        ("anna", 1, 1.25),
    ]
    assert [line.what for line in add_up(parts, "day")] == ["2026-11-17", "2026-11-18"]
    assert [line.what for line in add_up(parts, "course")] == ["(none)", "ml"]
    assert [line.memory_gib_hours for line in add_up(parts, "lease")] == [1, 15]
    assert [(line.what, line.device_hours) for line in add_up(parts, "decider")] == [
        ("slurm", 2),
        ("pool", 1.25),
    ]
