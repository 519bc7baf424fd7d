"""Programs in direct mode, and helpers that ask them and their leases."""

from __future__ import annotations

import subprocess

from gpukernel.agent.processes import identity
from gpukernel.common.model import Lease
from tests.conftest import Pool, eventually

HOLD = "begin(); p = ok(d.cuMemAlloc(10 << 20)); os.write(1, b'%d\\n' % os.getpid()); sys.stdin.readline()\n"


def only_lease(pool: Pool) -> Lease:
    (lease,) = pool.live()
    return lease


def the_end_of(pool: Pool, lease: Lease) -> str:
    """Return the reason, once the lease has ended and its memory is free."""
    return eventually(
        lambda: next(
            (
                one.end_reason
                for one in pool.leases(ended=True)[0]
                if one.id == lease.id and one.state == "ended"
            ),
            "",
        )
    )


def stopped(program: subprocess.Popen[str]) -> str:
    """Return what a program says on standard error that is waiting for a line, and is ended."""
    program.wait(60)
    return program.communicate()[1]


def gone(pid: int) -> bool:
    return eventually(lambda: identity(pid) is None)
