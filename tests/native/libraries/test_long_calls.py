"""Library calls that take seconds: another slice of the device has its small kernels done meanwhile, and a killed program's call ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.libraries.conftest import NEEDS_OPENBLAS, ROOT
from tests.remoting.conftest import AT_FULL_SPEED, PRELUDE, Worker, worker

pytestmark = [NEEDS_OPENBLAS, pytest.mark.timeout(180)]

LONG = """
from tests.native.libraries.device import Array, Library
import numpy as np, time
begin()
def sparse_order(n):
    s = Library("libcusparse.so.12", "cusparseCreate"); random = np.random.default_rng(0)
    given = random.integers(0, 1 << 20, (2, n)).astype(np.int32); rows, columns = (ok(d.cuMemAlloc(4 * n)) for _ in range(2))
    def run():
        for to, one in zip((rows, columns), given): ok(d.cuMemcpyHtoD(to, one.ctypes.data, one.nbytes))
        s.done("cusparseXcoosortByRow", 1 << 20, 1 << 20, n, ctypes.c_void_p(int(rows)), ctypes.c_void_p(int(columns)), None, ctypes.c_void_p(int(rows)))
    return run
def elements_of_dense(n):
    s = Library("libcusparse.so.12", "cusparseCreate"); a = ok(d.cuMemAlloc(4 * n * n)); ok(d.cuMemsetD32(a, 1, n * n)); matrix = ctypes.c_void_p(); to = ctypes.c_void_p(); long = ctypes.c_int64
    s.library.cusparseCreateDnMat(ctypes.byref(matrix), long(n), long(n), long(n), ctypes.c_void_p(int(a)), 0, 1)
    s.library.cusparseCreateCsr(ctypes.byref(to), long(n), long(n), long(0), ctypes.c_void_p(int(a)), None, None, 2, 2, 0, 0)
    return lambda: s.done("cusparseDenseToSparse_analysis", matrix, to, 0, ctypes.c_void_p(int(a)))
def decomposition(call, n):
    s = Library("libcusolver.so.11", "cusolverDnCreate"); a = Array(np.random.default_rng(0).standard_normal((n, n))); u, v, w = (Array(np.zeros((n, n))) for _ in range(3)); info = Array(np.zeros(1, np.int32))
    if call == "gesvd": return lambda: s.done("cusolverDnDgesvd", ord("A"), ord("A"), n, n, a.pointer, n, w.pointer, u.pointer, n, v.pointer, n, u.pointer, 16, None, info.pointer)
    return lambda: s.done("cusolverDnDsyevd", 1, 0, n, a.pointer, n, w.pointer, u.pointer, 16, info.pointer)
run = CALL
run(); ok(d.cuCtxSynchronize()); begin_ = time.monotonic(); run(); ok(d.cuCtxSynchronize())
print("seconds", time.monotonic() - begin_, flush=True)
while True: run(); ok(d.cuCtxSynchronize())
"""

SMALL = """
import time
begin(); p = int(ok(d.cuMemAlloc(256))); f = load(STORE_U32, b"store"); waits = []
def small():
    ok(d.cuLaunchKernel(f, 1,1,1, 32,1,1, 0, 0, ((p, 7), (ctypes.c_uint64, ctypes.c_uint32)), 0)); ok(d.cuCtxSynchronize())
small(); print("ready", flush=True); sys.stdin.readline(); end = time.monotonic() + 3
while time.monotonic() < end:
    before = time.monotonic(); small(); waits.append(time.monotonic() - before); time.sleep(0.01)
print(max(waits))
"""

CALLS = {
    "gesvd": 'decomposition("gesvd", 700)',
    "syevd": 'decomposition("syevd", 1200)',
    "coosort": "sparse_order(1 << 22)",
    "dense analysis": "elements_of_dense(6000)",
}


def start(one: Worker, code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-c", PRELUDE + code],
        env=one.environment(),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def said(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    line = await asyncio.to_thread(program.stdout.readline)
    assert line, program.communicate()
    return line


async def longest_wait(call: str, shared: Path) -> tuple[float, float]:
    """Return how long the call takes, and how long a small kernel of another slice waits at most while it runs again and again."""
    async with (
        worker(memory_mib=1024, time_slicing=shared, weight=0.5) as first,
        worker(time_slicing=shared, weight=0.5) as second,
    ):
        small, long = start(second, SMALL), start(first, LONG.replace("CALL", CALLS[call]))
        try:
            assert await said(small) == "ready\n"
            seconds = float((await said(long)).split()[1])
            assert small.stdin is not None
            small.stdin.write("\n")
            small.stdin.flush()
            return seconds, float(await said(small))
        finally:
            for program in (small, long):
                program.kill()
                await asyncio.to_thread(program.communicate)


@AT_FULL_SPEED
@pytest.mark.parametrize("call", CALLS)
def test_a_small_kernel_of_another_slice_does_not_wait_for_it(call: str, tmp_path: Path) -> None:
    seconds, wait = asyncio.run(longest_wait(call, tmp_path / "time-slicing"))
    assert wait < 1, (seconds, wait)
