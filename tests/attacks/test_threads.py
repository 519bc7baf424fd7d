"""A program's threads do at once what its worker must not do at once, to make it use memory that it has freed."""

from __future__ import annotations

import asyncio

import pytest

from tests.native.libraries.conftest import NEEDS_OPENBLAS, ROOT
from tests.remoting.conftest import worker

BEGIN = r"""
import time
begin()
SPIN = b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u32 times) { .reg .b32 %r<3>; .reg .pred %p; ld.param.u32 %r1, [times];
AGAIN: sub.u32 %r1, %r1, 1; setp.ne.u32 %p, %r1, 0; @%p bra AGAIN; ret; }
'''
def spin(times, stream=0): ok(d.cuLaunchKernel(load(SPIN, b"spin"), 1, 1, 1, 1, 1, 1, 0, stream, ((times,), (ctypes.c_uint32,)), 0))
context = ok(d.cuCtxGetCurrent())
def beside(work):
    def run(): d.cuCtxSetCurrent(context); work()
    thread = threading.Thread(target=run); thread.start(); return thread
beside(lambda: ok(d.cuCtxSynchronize())).join()
"""

# One thread resets the context while another frees memory of it, and both wait for a kernel.
RESET_WHILE_FREEING = (
    BEGIN
    + """
for _ in range(8):
    block = ok(d.cuMemAlloc(1 << 20)); spin(3_000_000)
    thread = beside(lambda: (d.cuMemFree(block), d.cuCtxSynchronize()))
    time.sleep(0.02); ok(d.cuDevicePrimaryCtxReset(0)); thread.join()
    ok(d.cuCtxSetCurrent(context))
d.cuCtxSynchronize()
while not int(d.cuMemAlloc(8 << 20)[0]): pass
ok(d.cuDevicePrimaryCtxReset(0)); ok(d.cuMemAlloc(60 << 20)); print("served")
"""
)

# What one thread makes once memory is there gets its number while another thread makes and drops others.
NAMES_WHILE_WAITING = (
    BEGIN
    + """
shape = d.CUDA_ARRAY3D_DESCRIPTOR(); shape.Width = 1 << 17; shape.Height = 16; shape.NumChannels = 1
shape.Format = d.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8
held = ok(d.cuMemAlloc(60 << 20)); end = time.monotonic() + 4; made = 0
def arrays():
    global made
    while time.monotonic() < end:
        code, array = d.cuArray3DCreate(shape)
        if not int(code): made += 1; d.cuArrayDestroy(array)
def frees():
    stream = ok(d.cuStreamCreate(1))
    while time.monotonic() < end:
        code, block = d.cuMemAllocAsync(3 << 20, stream)
        if int(code): continue
        spin(20_000, stream); d.cuMemFreeAsync(block, stream); d.cuMemGetInfo()
def events():
    while time.monotonic() < end:
        for event in [d.cuEventCreate(0)[1] for _ in range(200)]: d.cuEventDestroy(event)
threads = [beside(work) for work in (arrays, arrays, arrays, frees, events)]
[thread.join() for thread in threads]
d.cuCtxSynchronize(); ok(d.cuMemFree(held)); assert made; print("served")
"""
)

SOLVER = (
    BEGIN
    + f"sys.path.insert(0, {str(ROOT)!r})"
    + """
from tests.native.libraries.device import Array, Library
import numpy as np
solver, info = Library("libcusolver.so.11", "cusolverDnCreate"), Array(np.zeros(1, np.int32))
def factor(a, mib):
    solver.done("cusolverDnXpotrf", None, 0, ctypes.c_int64(8), 1, a.pointer, ctypes.c_int64(8), 1, None, ctypes.c_size_t(0), ctypes.c_void_p(1), ctypes.c_size_t(mib << 20), info.pointer)
"""
)

# Threads make one handle's workspace on the host larger, all behind the same kernel.
WORKSPACES_AT_ONCE = (
    SOLVER
    + """
a = Array(np.eye(8)); factor(a, 1)
other = ok(d.cuStreamCreate(1))
for turn in range(1, 5):
    spin(3_000_000, other)
    threads = [beside(lambda n=n: factor(a, 8 * turn + n)) for n in range(8)]
    [thread.join() for thread in threads]; ok(d.cuCtxSynchronize())
print("served")
"""
)

# What a thread submits behind such a call stays behind it.
ORDER_OF_A_WORKSPACE = (
    SOLVER
    + """
other = ok(d.cuStreamCreate(1)); spin(30_000_000, other)
waiting = beside(lambda: ok(d.cuCtxSynchronize())); time.sleep(0.02); ok(d.cuMemGetInfo()); waiting.join()
for turn in range(1, 5):
    a = Array(4 * np.eye(8)); factor(a, turn)
    spin(3_000_000, other)
    factor(a, turn + 8); ok(d.cuMemsetD32Async(a.address, turn, 16, 0)); ok(d.cuStreamSynchronize(0)); time.sleep(0.1)
    found = a.get().tobytes(order="F")[:64]
    assert found == turn.to_bytes(4, "little") * 16, np.frombuffer(found)
print("served")
"""
)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(RESET_WHILE_FREEING, id="reset while freeing"),
        pytest.param(NAMES_WHILE_WAITING, id="names while waiting"),
        pytest.param(WORKSPACES_AT_ONCE, id="workspaces at once", marks=NEEDS_OPENBLAS),
        pytest.param(ORDER_OF_A_WORKSPACE, id="order of a workspace", marks=NEEDS_OPENBLAS),
    ],
)
def test_threads_of_one_program_do_not_break_their_worker(code: str) -> None:
    async def story() -> None:
        async with worker() as one:
            before = one.handle.pid
            done = await one.run(code)
            assert done.stdout == "served\n", done.stderr[-2000:]
            assert (await one.handle.status()).pid == before

    asyncio.run(story())
