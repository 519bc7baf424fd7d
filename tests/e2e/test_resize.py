"""A running program's slice becomes larger and smaller under it: real pool, agent, worker and shim."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import Pool

# Answers each line: an allocation of so many MiB (negative: free the last), then free and total MiB.
PROGRAM = """
from cuda.bindings import driver as d
import sys
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
held = []
print("ready", flush=True)
for line in sys.stdin:
    mib, error = int(line), d.CUresult.CUDA_SUCCESS
    if mib > 0:
        error, pointer = d.cuMemAlloc(mib << 20)
        if error == d.CUresult.CUDA_SUCCESS: held.append(pointer)
    elif mib < 0:
        error, = d.cuMemFree(held.pop())
    _, free, total = d.cuMemGetInfo()
    print(error.name, free >> 20, total >> 20, flush=True)
"""


def ask(program: subprocess.Popen[str], mib: int) -> tuple[str, int, int]:
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(f"{mib}\n")
    program.stdin.flush()
    name, free, total = program.stdout.readline().split()
    return name, int(free), int(total)


def test_the_cap_that_a_running_program_sees_changes_and_never_below_what_it_holds(own_pool: Pool) -> None:
    with own_pool.start_on_slice(PROGRAM, "-m", "1024") as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        (lease,) = own_pool.live()
        assert ask(program, 800) == ("CUDA_SUCCESS", 224, 1024)
        assert ask(program, 800)[0] == "CUDA_ERROR_OUT_OF_MEMORY"
        grown = own_pool.gpukernel("resize", lease.id[:6], "-m", "2048")
        assert (grown.returncode, grown.stdout.split()[3:5]) == (0, ["2048", "MiB"]), grown.stderr
        assert ask(program, 800) == ("CUDA_SUCCESS", 448, 2048)
        refused = own_pool.gpukernel("resize", lease.id[:6], "-m", "1024")
        assert refused.returncode == 1
        assert "1600 MiB are allocated on" in refused.stderr
        assert ask(program, -1) == ("CUDA_SUCCESS", 1248, 2048)
        assert own_pool.gpukernel("resize", lease.id[:6], "-m", "1024").returncode == 0
        assert ask(program, 0) == ("CUDA_SUCCESS", 224, 1024)
        assert own_pool.promised() == 1024 << 20
        own_pool.kill()
        own_pool.start()  # the pool is another process now; the worker and its program lived on
        assert own_pool.gpukernel("resize", lease.id[:6], "-m", "3072").returncode == 0
        assert ask(program, 2048) == ("CUDA_SUCCESS", 224, 3072)
        assert program.stdin is not None
        program.stdin.close()
        assert program.wait(30) == 0


def test_inside_a_slice_resize_means_that_one(own_pool: Pool) -> None:
    command = f"{sys.executable} -m gpukernel.cli"
    done = own_pool.gpukernel(
        "run", "-m", "512", "--", "sh", "-c", f"{command} resize -p 0.5 && {command} smi --json"
    )
    assert done.returncode == 0, done.stderr
    assert '"memory_bytes": 17179869184' in done.stdout


def test_what_makes_no_sense_is_one_sentence(own_pool: Pool) -> None:
    for words, sentence in (
        (["resize", "-p", "0.1"], "Say which lease"),
        (["resize", "abc", "-p", "0.1"], "No lease of yours begins with “abc”"),
        (["resize", "abc"], "Say how large the slice is"),
        (["resize", "abc", "-p", "0"], "lies above 0"),
    ):
        answer = own_pool.gpukernel(*words)
        assert answer.returncode in (2, 5)
        assert sentence in answer.stderr
        assert len(answer.stderr.strip().splitlines()) == 1
