"""An agent's look at its machine, before it speaks to the pool."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpukernel.agent.own_identity import INITIAL_PID_NAMESPACE, WORKER_NAME, workers_may_live
from tests.conftest import eventually


def test_workers_of_earlier_agents_are_seen(tmp_path: Path) -> None:
    if Path("/proc/self/ns/pid").stat().st_ino != INITIAL_PID_NAMESPACE:
        pytest.skip("this machine shows the processes of a container only")
    shutil.copy(sys.executable, worker := tmp_path / "gpukernel-worker")
    with subprocess.Popen([str(worker), "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        # The name comes a moment after the new program: the kernel closes files first.
        eventually(lambda: Path(f"/proc/{process.pid}/comm").read_text().strip() == WORKER_NAME)
        assert workers_may_live()
        process.kill()


def test_where_not_every_process_is_seen_workers_may_live(tmp_path: Path) -> None:
    assert workers_may_live(tmp_path)
