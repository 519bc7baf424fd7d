"""The agent's watch: who goes past a slice is found by the device's own account, and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpukernel import native
from gpukernel.agent.processes import Simulated, identity
from gpukernel.pool.address import short_directory
from gpukernel.pool.model import Lease
from gpukernel.remoting.direct import Table, TableBroken, direct_directories
from tests.conftest import Pool, eventually
from tests.direct.conftest import MIB, DirectPool, says, tell

HOLD = "begin(); p = ok(d.cuMemAlloc(10 << 20)); os.write(1, b'%d\\n' % os.getpid()); sys.stdin.readline()\n"


def only_lease(pool: Pool) -> Lease:
    (lease,) = pool.live()
    return lease


def the_end_of(pool: Pool, lease: Lease) -> str:
    """The reason, once the lease has ended and its memory is free."""
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
    """What a program says on standard error that is waiting for a line, and is ended."""
    program.wait(60)
    return program.communicate()[1]


def gone(pid: int) -> bool:
    return eventually(lambda: identity(pid) is None)


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


def test_a_program_that_loads_the_driver_itself_is_stopped_and_its_lease_says_why(
    own_direct_pool: DirectPool,
) -> None:
    program = own_direct_pool.begin(f"""
ctypes.CDLL({str(native.simgpu_library())!r}, mode=ctypes.RTLD_GLOBAL)
real = ctypes.CDLL({str(native.simgpu_library())!r})
assert real.cuInit(0) == 0
context, p = ctypes.c_void_p(), ctypes.c_uint64()
assert real.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and real.cuCtxSetCurrent(context) == 0
print(os.getpid(), real.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(500 << 20)), flush=True)  # of a slice of 64 MiB
sys.stdin.readline()
""")
    pid, code = says(program).split()
    assert code == "0"
    lease = only_lease(own_direct_pool)
    errors = stopped(program)
    assert program.returncode == 128 + signal.SIGTERM
    assert "the slice was taken back: " in errors
    assert f"(process {pid}) used the device past its slice" in errors
    assert "loaded the driver's library itself" in the_end_of(own_direct_pool, lease)
    assert own_direct_pool.promised() == 0


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


def test_workers_and_programs_of_other_leases_are_no_strangers(own_direct_pool: DirectPool) -> None:
    direct = own_direct_pool.begin(HOLD)
    remote = own_direct_pool.start_on_slice(
        "import os, sys; from cuda.bindings import driver as d; d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])\n"
        "p = d.cuMemAlloc(20 << 20)[1]; print('on', flush=True); sys.stdin.readline(); print(d.cuMemFree(p)[0].name)"
    )
    says(direct)
    assert says(remote) == "on"
    # As long as a stranger would have been stopped in: the leases' figures come with the agent's looks.
    worker = eventually(lambda: [u for u in own_direct_pool.live() if u.mode == "remote"])
    registry = Simulated(short_directory(own_direct_pool.state) / "simulated-processes")
    uses = eventually(lambda: registry.on(0) if len(registry.on(0)) == 2 else [])
    assert sorted(use.memory_bytes or 0 for use in uses) == [10 * MIB, 20 * MIB]
    stranger = subprocess.Popen(
        [sys.executable, "-c", STRANGER.format(library=str(native.simgpu_library()))],
        env={
            **os.environ,
            "GPUKERNEL_SIMGPU_PROCESSES": str(registry.directory),
            "GPUKERNEL_LEASE_FILE": lease_file_of(int(direct_pid(own_direct_pool))),
        },
    )
    assert stranger.wait(timeout=60) == -signal.SIGTERM  # so the agent has looked for long enough
    tell(remote)
    out, errors = remote.communicate()
    assert (out, errors) == ("CUDA_SUCCESS\n", "")
    assert worker
    direct.communicate()


STRANGER = """
import ctypes, time
real = ctypes.CDLL({library!r})
real.cuInit(0); real.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
time.sleep(60)
"""


def direct_pid(pool: Pool) -> int:
    lease = next(one for one in pool.live() if one.mode == "direct")
    (directory,) = direct_directories(lease)
    table = Table(directory / "table")
    (slot,) = table.slots()
    table.close()
    return slot.pid


def lease_file_of(pid: int) -> str:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.partition("=")[::2] for entry in entries)["GPUKERNEL_LEASE_FILE"]


def test_a_process_is_not_mistaken_for_a_later_one_and_a_zombie_has_ended() -> None:
    own = identity(os.getpid())
    assert own is not None
    assert (own.user, own.inner_pid) == (os.getuid(), os.getpid())
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identity(child.pid) is None
    child.wait()


def test_a_measure_that_came_too_late_changes_nothing(tmp_path: Path) -> None:
    table = Table.make(tmp_path / "table", 64 * MIB, 0.1, None, bytes(1664))
    with pytest.raises(FileExistsError):
        Table.make(tmp_path / "table", 64 * MIB, 0.1, None, bytes(1664))
    file = os.open(table.path, os.O_RDWR)
    os.pwrite(file, (1).to_bytes(4, "little"), 48)  # as a program does that takes the first slot
    os.pwrite(file, (77).to_bytes(4, "little"), 4096)
    os.pwrite(file, (5 * MIB).to_bytes(8, "little"), 4096 + 24)
    (slot,) = table.slots()
    table.measured(slot, 8 * MIB, 1.5)
    assert table.slots()[0].overhead_bytes == 3 * MIB
    os.pwrite(file, (6 * MIB).to_bytes(8, "little"), 4096 + 24)  # it took more meanwhile
    table.measured(slot, 20 * MIB, 1.5)
    assert table.slots()[0].overhead_bytes == 3 * MIB
    table.clear(slot)
    assert table.slots() == []
    os.truncate(table.path, 10)
    with pytest.raises(TableBroken, match="cut short"):
        table.slots()
    os.close(file)
