"""Programs that hold a slice until they are told to end."""

from __future__ import annotations

import subprocess

from tests.conftest import Pool

SLEEP = "import sys; print('ready', flush=True); sys.stdin.read()"


def hold(pool: Pool) -> subprocess.Popen[str]:
    program = pool.start_on_slice(SLEEP, "-p", "0.25")
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    return program


def over(program: subprocess.Popen[str]) -> str:
    _, errors = program.communicate("", timeout=60)
    return errors
