"""A slice in direct mode becomes larger and smaller under its programs: the cap is in the table that they share."""

from __future__ import annotations

import json
import subprocess

from gpukernel.remoting.direct_environment import direct_directories
from gpukernel.remoting.direct_table import Table
from tests.direct.conftest import MIB, DirectPool, says, tell

# Answers each line: an allocation of so many MiB (negative: free the last), then free and total MiB.
PROGRAM = """
import sys
begin()
held = []
print("ready", flush=True)
for line in sys.stdin:
    mib, name = int(line), "CUDA_SUCCESS"
    if mib > 0:
        error, pointer = d.cuMemAlloc(mib << 20)
        name = error.name
        if error == d.CUresult.CUDA_SUCCESS: held.append(pointer)
    elif mib < 0:
        ok(d.cuMemFree(held.pop()))
    free, total = ok(d.cuMemGetInfo())
    print(name, free >> 20, total >> 20, flush=True)
"""


def ask(program: subprocess.Popen[str], mib: int) -> tuple[str, int, int]:
    tell(program, str(mib))
    name, free, total = says(program).split()
    return name, int(free), int(total)


def test_the_cap_changes_under_a_running_program_and_never_below_what_it_holds(
    own_direct_pool: DirectPool,
) -> None:
    pool = own_direct_pool
    program = pool.begin(PROGRAM, "-m", "1024")
    assert says(program) == "ready"
    (lease,) = pool.live()
    assert ask(program, 800) == ("CUDA_SUCCESS", 224, 1024)
    assert ask(program, 800)[0] == "CUDA_ERROR_OUT_OF_MEMORY"
    grown = pool.gpukernel("resize", lease.id[:6], "-m", "2048")
    assert (grown.returncode, grown.stdout.split()[3:5]) == (0, ["2048", "MiB"]), grown.stderr
    assert ask(program, 800) == ("CUDA_SUCCESS", 448, 2048)
    refused = pool.gpukernel("resize", lease.id[:6], "-m", "1024")
    assert refused.returncode == 1
    assert "1600 MiB are allocated on" in refused.stderr
    assert ask(program, 0) == ("CUDA_SUCCESS", 448, 2048)
    assert ask(program, -1) == ("CUDA_SUCCESS", 1248, 2048)
    assert pool.gpukernel("resize", lease.id[:6], "-m", "1024").returncode == 0
    assert ask(program, 0) == ("CUDA_SUCCESS", 224, 1024)
    assert pool.promised() == 1024 * MIB
    pool.kill()
    pool.start()  # pool and agent are another process now; the slice and its program lived on
    assert pool.gpukernel("resize", lease.id[:6], "-m", "4096").returncode == 0
    assert ask(program, 3000) == ("CUDA_SUCCESS", 296, 4096)
    (directory,) = direct_directories(lease)
    table = Table(directory / "table")
    assert table.weight == 4096 / 32768
    table.close()
    assert json.loads(directory.with_suffix(".json").read_text())["memory_bytes"] == 4096 * MIB
    program.communicate()
    assert program.returncode == 0
