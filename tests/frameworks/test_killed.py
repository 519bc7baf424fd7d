"""Programs that are killed while they have memory of a slice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from gpukernel.embedded import EmbeddedPool
from tests.frameworks.conftest import PROGRAMS, site_of
from tests.frameworks.sources import JAX, PYTORCH, TENSORFLOW

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

FRAMEWORKS = {"jax": JAX, "pytorch": PYTORCH, "tensorflow": TENSORFLOW}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_program_that_is_killed_leaves_its_memory_to_others(framework: str, h100: EmbeddedPool) -> None:
    """Nine tenths of the device, twice: the second slice has no room before the first one's is free."""
    command = [sys.executable, "-m", "gpukernel.cli", "run", "-p", "0.9", "--"]
    environment = {**h100.environment, "PYTHONPATH": str(site_of(FRAMEWORKS[framework]))}
    for _ in range(2):
        program = [sys.executable, "-u", str(PROGRAMS / "hold.py"), framework]
        with subprocess.Popen(
            [*command, "sh", "-c", 'echo $$; exec "$@"', "sh", *program],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as started:
            assert started.stdout is not None
            number, said = int(started.stdout.readline()), started.stdout.readline()
            os.kill(number, signal.SIGKILL)
        assert said == "holds 1.0\n"
