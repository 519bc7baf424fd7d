"""Slices in direct mode: adopted, held to their caps, and ended with their programs."""

from __future__ import annotations

import signal

from gpukernel.agent.processes import identity
from tests.agent.programs import HOLD, gone, only_lease, stopped, the_end_of
from tests.conftest import eventually
from tests.direct.conftest import MIB, DirectPool, says, tell


def test_what_a_program_uses_is_reported_and_keeps_the_lease_alive(own_direct_pool: DirectPool) -> None:
    program = own_direct_pool.begin(HOLD)
    says(program)
    usage = eventually(
        lambda: next((u for u in [only_lease(own_direct_pool).slices[0].usage] if u.memory_used_bytes), None)
    )
    assert usage is not None
    assert (usage.memory_used_bytes, usage.connections) == (10 * MIB, 1)
    tell(program)
    program.communicate()
    assert program.returncode == 0


def test_a_program_that_raises_its_own_cap_is_stopped(own_direct_pool: DirectPool) -> None:
    program = own_direct_pool.begin(
        HOLD
        + """
import struct
table = os.path.join(open(os.environ['GPUKERNEL_LEASE_FILE']).read().split('direct:')[1].split()[0], 'table')
with open(table, 'r+b') as file:
    file.seek(16); file.write(struct.pack('<Q', 1 << 40))
ok(d.cuMemAlloc(200 << 20)); print('got it', flush=True); sys.stdin.readline()
"""
    )
    says(program)
    lease = only_lease(own_direct_pool)
    tell(program)
    assert says(program) == "got it"
    stopped(program)
    assert program.returncode == 128 + signal.SIGTERM
    assert "its programs held 210 MiB of the device, more than the slice's 64 MiB" in the_end_of(
        own_direct_pool, lease
    )


def test_a_table_that_was_cut_short_ends_its_lease_and_nothing_else(own_direct_pool: DirectPool) -> None:
    other = own_direct_pool.begin(HOLD)
    says(other)
    kept = only_lease(own_direct_pool)
    program = own_direct_pool.begin(
        HOLD
        + "os.truncate(os.path.join(open(os.environ['GPUKERNEL_LEASE_FILE']).read().split('direct:')[1].split()[0], 'table'), 100)\n"
        "sys.stdin.readline()\n"
    )
    pid = int(says(program))
    lease = next(one for one in own_direct_pool.live() if one.id != kept.id)
    tell(program)
    assert "wrote over the table" in the_end_of(own_direct_pool, lease)
    assert gone(pid)  # found by the lease that it was started under
    program.communicate()
    assert [one.id for one in own_direct_pool.live()] == [kept.id]
    tell(other)
    other.communicate()


def test_when_the_lease_ends_its_programs_end_before_the_memory_is_free(own_direct_pool: DirectPool) -> None:
    program = own_direct_pool.begin(
        "import signal, subprocess; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"  # needs the harder signal
        "child = os.fork()\n" + HOLD,
        "-p",
        "1.0",
    )
    pids = [int(says(program)), int(says(program))]
    lease = only_lease(own_direct_pool)
    own_direct_pool.release(lease.id, "the course is over")
    assert own_direct_pool.promised() == lease.slices[0].memory_bytes  # SIGTERM is being ignored now
    assert the_end_of(own_direct_pool, lease) == "the course is over"
    assert all(identity(pid) is None for pid in pids)
    assert own_direct_pool.promised() == 0
    errors = stopped(program)
    assert program.returncode == 128 + signal.SIGKILL
    assert "the slice was taken back: the course is over." in errors


def test_an_agent_that_comes_back_keeps_its_slices_and_their_watch(own_direct_pool: DirectPool) -> None:
    program = own_direct_pool.begin(
        HOLD + "print(ok(d.cuMemGetInfo())[0] >> 20, flush=True); sys.stdin.readline()"
    )
    pid = int(says(program))
    lease = only_lease(own_direct_pool)
    own_direct_pool.kill()
    own_direct_pool.start()
    assert eventually(lambda: [one.id for one in own_direct_pool.live()] == [lease.id])
    tell(program)
    assert says(program) == "54"
    own_direct_pool.release(lease.id, "enough")
    assert gone(pid)
    assert the_end_of(own_direct_pool, lease) == "enough"
    program.communicate()
