"""Identity of processes."""

from __future__ import annotations

import os
import subprocess
import sys

from gpukernel.agent.processes import identity


def test_a_process_is_not_mistaken_for_a_later_one_and_a_zombie_has_ended() -> None:
    own = identity(os.getpid())
    assert own is not None
    assert (own.user, own.inner_pid) == (os.getuid(), os.getpid())
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identity(child.pid) is None
    child.wait()
