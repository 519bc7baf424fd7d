"""How often programs wait for the network: a step that reads a value has one round trip, whatever calls it is made of."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from tests.remoting.conftest import PRELUDE, worker
from tests.remoting.round_trips import counted

STEP = r"""
import sys, numpy as np
begin()
SOURCE = b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 to, .param .u32 n) { .reg .b64 %a; .reg .b32 %r<3>; ld.param.u64 %a, [to]; ld.param.u32 %r1, [n]; ld.global.u32 %r2, [%a]; add.u32 %r2, %r2, %r1; st.global.u32 [%a], %r2; ret; }
'''
kernel = load(SOURCE, b"add"); p = int(ok(d.cuMemAlloc(4096))); q = int(ok(d.cuMemAlloc(4096))); own = np.zeros(4, np.uint32); h = own.ctypes.data; s = ok(d.cuStreamCreate(1)); ok(d.cuMemsetD32(p, 0, 1024)); ok(d.cuMemsetD32(q, 5, 1024))
def add(n, to=p, stream=0):
    v = ctypes.c_uint64(to), ctypes.c_uint32(n); a = (ctypes.c_void_p * 2)(*map(ctypes.addressof, v)); ok(d.cuLaunchKernel(kernel, 1,1,1, 1,1,1, 0, stream, ctypes.addressof(a), 0))
def wait(): ok(d.cuCtxSynchronize())
def read(of=p, n=4): ok(d.cuMemcpyDtoH(h, of, n)); return int(own[0])
N = int(sys.argv[1]) if len(sys.argv) > 1 else 0
"""


def waits(step: str, check: str = "", few: int = 10, many: int = 30) -> float:
    """Return the round trips of one `step`: those of many less those of few, so that the program's start does not count."""

    async def story() -> float:
        trips = []
        async with worker() as one:
            for count in (few, many):
                environment = one.environment(kind="tcp", shared_memory=False)
                code = f"import sys\n{PRELUDE}{STEP}\nfor i in range(N):\n    {step}\n{check}"
                with counted(environment) as counter:
                    done = await asyncio.to_thread(
                        subprocess.run,
                        [sys.executable, "-c", code, str(count)],
                        env=environment,
                        capture_output=True,
                        text=True,
                        check=False,
                        timeout=60,
                    )
                    assert done.returncode == 0, done.stderr
                    trips.append(counter.trips)
        return (trips[1] - trips[0]) / (many - few)

    return asyncio.run(story())


@pytest.mark.parametrize(
    ("step", "trips"),
    [
        ("add(1)", 0),
        ("add(1); assert read() == i + 1", 1),
        ("add(1); wait()", 1),
        ("add(1); wait(); assert read() == i + 1", 1),
        (
            "add(1); wait(); ok(d.cuStreamSynchronize(s)); assert read() == i + 1; ok(d.cuStreamSynchronize(0))",
            1,
        ),
        (
            "add(1, p, s); ok(d.cuMemcpyDtoHAsync(h, p, 4, s)); ok(d.cuStreamSynchronize(s)); assert own[0] == i + 1",
            1,
        ),
    ],
)
def test_a_step_waits_once_for_each_value_that_it_reads(step: str, trips: int) -> None:
    assert waits(step) == pytest.approx(trips, abs=0.2)  # now and then one more or less at the start


@pytest.mark.parametrize(
    "step",
    [
        # What was foreseen is not what is asked for, or not any more.
        "add(1); wait(); assert read() == i + 1; add(1, q); wait(); assert read(q) == 6 + i",
        "add(1); wait(); add(1, q); add(1, q); assert read() == i + 1; assert read(q) == 7 + 2 * i",
        "add(1); wait(); assert read() == 2 * i + 1; wait(); add(1); assert read() == 2 * i + 2",
        "add(1); wait(); ok(d.cuMemsetD32(p, 3 * i, 1)); assert read() == 3 * i; own[0] = 0; ok(d.cuMemsetD32(p, i + 1, 1))",
        "own[:] = 0; add(1); wait(); assert read(p, 4) == i + 1 and read(p, 8) == i + 1",
    ],
)
def test_what_is_read_is_what_the_device_has(step: str) -> None:
    waits(step)


def test_memory_that_is_freed_after_the_wait_is_an_error_and_the_next_call_is_none() -> None:
    """What was read ahead is thrown away; an error of the reading ahead is nobody's."""
    step = """r = int(ok(d.cuMemAlloc(64))); ok(d.cuMemsetD32(r, i, 4)); wait(); assert read(r) == i; wait(); ok(d.cuMemFree(r)); assert d.cuMemcpyDtoH(h, r, 4)[0] != 0; wait(); wait(); assert read() == 0"""
    waits(step)


def test_an_error_of_the_kernels_is_told_by_the_wait() -> None:
    """The wait fails, not the read that came with it."""
    check = """
for _ in range(3): add(1); wait(); read()
add(1, 8); print(d.cuCtxSynchronize()[0].name); print(d.cuMemcpyDtoH(h, p, 4)[0].name)
"""

    async def story() -> list[str]:
        async with worker() as one:
            done = await one.run(STEP.replace("sys.argv[1:]", "[]") + check, kind="tcp")
            return [line for line in done.stdout.splitlines() if line.startswith("CUDA_")]

    assert asyncio.run(story()) == ["CUDA_ERROR_ILLEGAL_ADDRESS"] * 2
