"""What those do who run a pool: drain, health, report, top; against a real pool."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from gpukernel.cli.operating import add_up, when
from gpukernel.cli.output import Problem
from gpukernel.pool.admin_client import HeldPart
from tests.conftest import Pool, eventually

SLEEP = "import sys; print('ready', flush=True); sys.stdin.read()"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool("v100:2", options=("--name", "gpu1")) as pool:
        yield pool


def hold(pool: Pool) -> subprocess.Popen[str]:
    program = pool.start_on_slice(SLEEP, "-p", "0.25")
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    return program


def over(program: subprocess.Popen[str]) -> str:
    _, errors = program.communicate("", timeout=60)
    return errors


def test_health_says_that_all_is_well_and_what_to_do_where_it_is_not(pool: Pool) -> None:
    fine = pool.gpukernel("health")
    assert fine.returncode == 0, fine.stdout
    assert "server gpu1: 2 of 2 devices in use" in fine.stdout
    faults = pool.state / "faults"
    faults.mkdir()
    program = hold(pool)
    (lease,) = pool.live()
    (piece,) = lease.slices
    (faults / str(piece.device_index)).write_text("the fan rattles")
    eventually(lambda: not pool.live())
    sick = pool.gpukernel("health", "--json")
    assert sick.returncode == 1
    wrong = [finding for finding in json.loads(sick.stdout) if not finding["fine"]]
    assert [(one["part"], one["seen"]) for one in wrong] == [(f"device {piece.device_id}", "the fan rattles")]
    assert "Look at the device on gpu1" in wrong[0]["advice"]
    assert "the fan rattles" in pool.gpukernel("leases", "--all").stdout
    assert "the fan rattles" in pool.gpukernel("list-gpus").stdout
    (faults / str(piece.device_index)).unlink()
    eventually(lambda: pool.gpukernel("health").returncode == 0)
    over(program)


def test_health_without_a_pool_says_how_to_start_one(pool: Pool) -> None:
    answer = pool.gpukernel("health", "--state", "/nowhere/at/all")
    assert answer.returncode == 1
    assert "gpukernel up" in answer.stdout


def test_drain_waits_until_the_deadline_has_ended_what_is_left(pool: Pool) -> None:
    program = hold(pool)
    drained = pool.gpukernel("drain", "gpu1", "--deadline", "2s", "--wait")
    assert drained.returncode == 0, drained.stderr
    assert drained.stdout.splitlines() == [
        "gpu1 gets no new leases; 1 are left, for 2s at most.",
        "gpu1 is empty.",
    ]
    reasons = {
        lease["end_reason"] for lease in json.loads(pool.gpukernel("leases", "--all", "--json").stdout)
    }
    assert "its GPU server gpu1 was drained" in reasons
    refused = pool.gpukernel("run", "-p", "0.1", "--wait", "0", "--", "true")
    assert refused.returncode == 1
    assert pool.gpukernel("undrain", "gpu1").returncode == 0
    assert pool.gpukernel("run", "-p", "0.1", "--wait", "0", "--", "true").returncode == 0
    over(program)
    unknown = pool.gpukernel("drain", "gpu7")
    assert (unknown.returncode, unknown.stderr) == (1, "gpukernel: The pool has no GPU server gpu7.\n")


def test_a_filter_names_server_and_model(pool: Pool) -> None:
    words = ("run", "-p", "0.1", "--wait", "0", "--filter")
    assert pool.gpukernel(*words, "model=v100 and server=gpu1", "--", "true").returncode == 0
    for wish, sentence in (
        ("server=gpu9", "A server named “gpu9” has no device"),
        ("model=T4 and server=gpu1", "A server named “gpu1” has no T4; it has Tesla V100"),
        ("driver=5", "“driver=5” is no filter"),
    ):
        refused = pool.gpukernel(*words, wish, "--", "true")
        assert refused.returncode in (1, 2)
        assert sentence in refused.stderr
        assert len(refused.stderr.splitlines()) == 1


def test_a_report_adds_up_what_was_held(pool: Pool) -> None:
    program = hold(pool)
    over(program)
    eventually(lambda: not pool.live())
    lines = json.loads(pool.gpukernel("report", "--since", "1h", "--json").stdout)
    assert lines[0]["leases"] >= 1
    assert 0 < lines[0]["device_hours"] < lines[0]["hours"] < 1
    table = list(csv.reader(io.StringIO(pool.gpukernel("report", "--by", "course", "--csv").stdout)))
    assert table[0] == ["course", "leases", "hours", "device_hours", "memory_gib_hours"]
    assert table[1][0] == "(none)"
    assert "Nothing was held" in pool.gpukernel("report", "--course", "ml101").stdout
    for words in (["--since", "soon"], ["--by", "moon"], ["--since", "today", "--until", "2020-01-01"]):
        answer = pool.gpukernel("report", *words)
        assert answer.returncode in (1, 2)
        assert len(answer.stderr.splitlines()) == 1


def test_top_shows_devices_leases_and_queue(pool: Pool) -> None:
    program = hold(pool)
    shown = pool.gpukernel("top", "--every", "0.2", "--times", "2")
    over(program)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("gpu1/1") >= 2
    assert "8.0 GiB" in shown.stdout or "8192 MiB" in shown.stdout


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
        HeldPart("l1", "anna", "ml", "", start, 2, 1, 10),
        HeldPart("l1", "anna", "ml", "", start + 7200, 1, 0.25, 5),
        HeldPart("l2", "ben", "", "", start - 86400, 4, 2, 1),
    ]
    assert [(line.what, line.leases, line.device_hours) for line in add_up(parts, "person")] == [
        ("ben", 1, 2),
        ("anna", 1, 1.25),
    ]
    assert [line.what for line in add_up(parts, "day")] == ["2026-11-17", "2026-11-18"]
    assert [line.what for line in add_up(parts, "course")] == ["(none)", "ml"]
    assert [line.memory_gib_hours for line in add_up(parts, "lease")] == [1, 15]
