"""Compute by weight: between programs in direct mode, and between one and a worker's."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from gpukernel.common.address import short_directory
from tests.direct.conftest import DirectPool, says, tell
from tests.remoting.conftest import PRELUDE
from tests.remoting.test_time_slicing import SPIN

SECONDS = 4
BUSY = (
    SPIN
    + f"""
print(os.getpid(), flush=True); sys.stdin.readline(); done = 0; end = time.monotonic() + {SECONDS}
while time.monotonic() < end:
    for _ in range(5): spin(f, 80000)
    ok(d.cuCtxSynchronize()); done += 5
print(done, flush=True); sys.stdin.readline()
"""
)
_SLOT = struct.Struct(
    "<i4xddq"
)  # pid, weight, seconds had divided by it, last launch: common/time_slicing.cpp


def turn_seconds(pool: DirectPool) -> dict[int, float]:
    """The device's time in turns, by the process that had it."""
    data = Path(short_directory(pool.state), "time-slicing", "0").read_bytes()
    slots = [_SLOT.unpack_from(data, at) for at in range(64, len(data) - 63, 64)]
    return {pid: had * weight for pid, weight, had, _ in slots if pid}


def turns(pool: DirectPool) -> int:
    """Return how often one of the device's turns ended so far."""
    (ended,) = struct.unpack_from("<I", Path(short_directory(pool.state), "time-slicing", "0").read_bytes())
    return int(ended)


def compete(programs: list[subprocess.Popen[str]]) -> list[int]:
    """Return how many kernels the programs ran in the same seconds."""
    for program in programs:
        tell(program)
    return [int(says(program)) for program in programs]


def end(programs: list[subprocess.Popen[str]]) -> None:
    for program in programs:
        tell(program)
        out, errors = program.communicate(timeout=60)
        assert (program.returncode, out, errors) == (0, "", "")


def test_two_programs_get_compute_by_their_weights(own_direct_pool: DirectPool) -> None:
    programs = [own_direct_pool.begin(BUSY, "-p", share) for share in ("0.1", "0.3")]
    pids = [int(says(program)) for program in programs]
    few, many = compete(programs)
    had = turn_seconds(own_direct_pool)
    assert had[pids[1]] / had[pids[0]] == pytest.approx(3, rel=0.1)
    assert had[pids[0]] + had[pids[1]] > 0.75 * SECONDS  # hardly anything is lost in passing it on
    # A turn is some ten kernels (fifty where one takes a fifth of a millisecond), also of programs that wait for every few
    # launches.  One that is only taken away has all that fit into half a second: five hundred, or thousands.
    assert (few + many) / turns(own_direct_pool) < 200
    assert many > 1.5 * few  # what else runs on this machine disturbs that figure
    end(programs)


def test_a_program_in_direct_mode_and_a_workers_share_too(own_direct_pool: DirectPool) -> None:
    direct = own_direct_pool.begin(BUSY, "-p", "0.3")
    remote = own_direct_pool.start_on_slice(PRELUDE + BUSY, "-p", "0.1")
    pid = int(says(direct))
    says(remote)
    compete([direct, remote])
    had = turn_seconds(own_direct_pool)
    (worker,) = [seconds for other, seconds in had.items() if other != pid and seconds]
    assert had[pid] / worker == pytest.approx(3, rel=0.1)
    end([direct, remote])


def test_one_alone_takes_no_turns(own_direct_pool: DirectPool) -> None:
    idle = own_direct_pool.begin(BUSY, "-p", "0.9")
    says(idle)
    alone = own_direct_pool.begin(BUSY, "-p", "0.02")
    pid = int(says(alone))
    before = turn_seconds(own_direct_pool)[pid]
    assert compete([alone])[0] > 0
    assert turn_seconds(own_direct_pool)[pid] == before
    tell(idle)
    says(idle)
    end([alone, idle])


def test_turns_do_not_disturb_several_streams_and_threads(own_direct_pool: DirectPool) -> None:
    work = BUSY.replace(
        "    for _ in range(5): spin(f, 80000)\n    ok(d.cuCtxSynchronize()); done += 5\n",
        """
    def launch(stream):
        d.cuCtxSetCurrent(context)
        for _ in range(5): ok(d.cuLaunchKernel(f, 4,1,1, 32,1,1, 0, stream, ((20000, 0), (ctypes.c_uint32, ctypes.c_uint32)), 0))
        ok(d.cuStreamSynchronize(stream))
    threads = [threading.Thread(target=launch, args=(s,)) for s in streams]
    for t in threads: t.start()
    for t in threads: t.join()
    done += 5 * len(threads)
""",
    ).replace(
        "print(os.getpid()",
        "context = ok(d.cuCtxGetCurrent()); streams = [ok(d.cuStreamCreate(1)) for _ in range(3)]; print(os.getpid()",
        1,
    )
    programs = [own_direct_pool.begin(work, "-p", "0.2") for _ in range(2)]
    for program in programs:
        says(program)
    assert all(done > 0 for done in compete(programs))
    had = [seconds for seconds in turn_seconds(own_direct_pool).values() if seconds]
    assert len(had) == 2
    assert had[0] / had[1] == pytest.approx(1, rel=0.25)
    end(programs)
