"""``gpukernel smi``: one's own slices, seen from inside and from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Pool, eventually
from tests.remoting.conftest import MIB

HOLD = """
from cuda.bindings import driver as d
d.cuInit(0)
for i in range(d.cuDeviceGetCount()[1]):
    d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(i)[1]); assert d.cuMemAlloc((i + 1) * 10 << 20)[0] == 0
"""
WAIT = HOLD + "print('has', flush=True); input()"
RUN_SMI = (
    HOLD
    + "import subprocess, sys; subprocess.run([sys.executable, '-m', 'gpukernel.cli', 'smi', *sys.argv[1:]])"
)


def inside(pool: Pool, *options: str) -> subprocess.CompletedProcess[str]:
    """Run ``gpukernel smi`` in a program with 10 MiB on one device of 100 MiB and 20 on another."""
    run = ("run", "-n", "2", "-m", "100", "--", sys.executable, "-c", RUN_SMI)
    return pool.gpukernel(*run, *options)


def mine(pool: Pool, memory: int, name: str = "") -> list[dict[str, Any]]:
    """Return the slices of `memory` bytes that ``smi --json`` shows to the person `name`."""
    done = subprocess.run(
        [sys.executable, "-m", "gpukernel.cli", "smi", "--json"],
        env={**pool.environment, **({"LOGNAME": name} if name else {})},
        capture_output=True,
        text=True,
        check=True,
    )
    return [one for one in json.loads(done.stdout) if one["memory_bytes"] == memory]


def test_inside_a_slice_it_shows_that_one_with_its_programs(shared_pool: Pool) -> None:
    done = inside(shared_pool, "--json")
    assert done.stderr == ""
    shown = json.loads(done.stdout)
    assert [one["device"] for one in shown] == [0, 1]
    for number, one in enumerate(shown):
        assert one["model"] == "Tesla V100-SXM2-32GB (simulated)"
        assert one["memory_bytes"] == 100 * MIB
        assert one["memory_used_bytes"] == (number + 1) * 10 * MIB
        assert one["gpu_share"] == 0
        (program,) = one["programs"]
        assert program["memory_bytes"] == (number + 1) * 10 * MIB
        assert program["command"].startswith(f"{sys.executable} -c ")
        assert program["command"].endswith(" --json")
    assert shown[0]["programs"][0]["pid"] == shown[1]["programs"][0]["pid"]
    assert shown[0]["lease"] == shown[1]["lease"]


def test_inside_a_slice_the_table_has_a_bar_and_the_programs(shared_pool: Pool) -> None:
    lines = inside(shared_pool).stdout.splitlines()
    assert sum("█░░░░░░░░░  10 of 100 MiB" in line for line in lines) == 1
    assert sum("██░░░░░░░░  20 of 100 MiB" in line for line in lines) == 1
    assert sum(f"  {sys.executable}"[:20] in line for line in lines) == 2
    assert (
        len(lines) == 7
    )  # two tables and what lies between them; one line a row, whatever a command looks like


def test_outside_it_shows_what_the_pool_knows_of_ones_own_slices(shared_pool: Pool) -> None:
    program = shared_pool.start_on_slice(WAIT, "-m", "101")
    assert program.stdout is not None
    assert program.stdout.readline() == "has\n"
    (one,) = eventually(lambda: [one for one in mine(shared_pool, 101 * MIB) if one["connections"]])
    assert one["memory_used_bytes"] == 10 * MIB
    assert one["gpu_seconds"] == 0
    assert one["gpu_share"] is None
    assert one["programs"] is None
    assert "10 of 101 MiB" in shared_pool.gpukernel("smi").stdout
    assert mine(shared_pool, 101 * MIB, name="somebody-else") == []
    program.communicate("\n")


def test_watch_shows_it_again_until_it_is_interrupted(shared_pool: Pool) -> None:
    program = shared_pool.start_on_slice(WAIT, "-m", "102")
    assert program.stdout is not None
    assert program.stdout.readline() == "has\n"
    watching = subprocess.Popen(
        [sys.executable, "-m", "gpukernel.cli", "smi", "--watch", "0.1"],
        env={**shared_pool.environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    times = 0
    while times < 3:
        line = watching.stdout.readline()
        assert line
        times += "of 102 MiB" in line
    watching.send_signal(signal.SIGINT)
    _, said = watching.communicate(timeout=30)
    assert (watching.returncode, said) == (0, "")
    program.communicate("\n")


def test_who_holds_nothing_is_told_so(own_pool: Pool) -> None:
    assert own_pool.gpukernel("smi").stdout == "You hold no slice.\n"
    assert own_pool.gpukernel("smi", "--json").stdout == "[]\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--watch", "0"], "the shortest is 0.1 s"),
        (["--watch", "nan"], "the shortest is 0.1 s"),
        (["--watch", "1", "--json"], "--watch shows a table; ask for -o json again and again instead."),
    ],
)
def test_options_that_make_no_sense_get_one_sentence(options: list[str], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpukernel.cli", "smi", *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_slice_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    lease = tmp_path / "lease"

    def said(status: int) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "gpukernel.cli", "smi"],
            env={**os.environ, "GPUKERNEL_LEASE_FILE": str(lease)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status
        assert done.stderr.count("\n") == 1
        return done.stderr

    assert f"The lease file {lease} cannot be read" in said(5)
    lease.write_text("version 1\nlease x\nstate ended\n")
    assert "This slice's lease is over" in said(5)
    lease.write_text(f"version 1\nlease x\nstate live\nsecret 0\ndevice 0 unix:{tmp_path}/gone\n")
    assert "This slice's worker does not answer (GPU is lost)" in said(1)
