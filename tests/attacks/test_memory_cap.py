"""A student makes the device hold more memory than the slice has, and so takes it from the other slices of that device."""

from __future__ import annotations

import asyncio
import os
import struct
from pathlib import Path

import pytest

from tests.remoting.conftest import MIB, worker

CAP = 64 * MIB

# A stream that waits for a value for ever, and what a program needs to see whether memory is still there.
WAIT = """
begin()
flag = ok(d.cuMemAlloc(512)); ok(d.cuMemsetD32(flag, 0, 1))
stuck = ok(d.cuStreamCreate(d.CUstream_flags.CU_STREAM_NON_BLOCKING))
free = ok(d.cuStreamCreate(d.CUstream_flags.CU_STREAM_NON_BLOCKING))
def let_go():
    ok(d.cuStreamWriteValue32(free, flag, 1, 0)); ok(d.cuStreamSynchronize(stuck)); ok(d.cuStreamSynchronize(free))
"""

FREED_BEHIND_A_WAIT = (
    WAIT
    + """
ok(d.cuStreamWaitValue32(stuck, flag, 1, 0))
for n in range(20):
    code, block = d.cuMemAllocAsync(48 << 20, free if n % 2 else stuck)
    if int(code): break
    ok(d.cuMemsetD8Async(block, n, 48 << 20, free)); ok(d.cuStreamSynchronize(free))
    ok(d.cuMemFreeAsync(block, stuck))
hold(n, "times 48 MiB"); let_go()
"""
)

# Frees that end while a module is measured make it look smaller than it is.
FREED_WHILE_A_MODULE_LOADS = (
    WAIT
    + r"""
text = ".version 7.0\n.target sm_70\n.address_size 64\n.global .align 4 .b8 held[%d];\n" % (9 << 20)
text += "".join(".visible .entry k%d() { .reg .b32 %%r<9>;\n%s ret; }\n" % (n, "mov.u32 %r1, 1;\n" * 2000) for n in range(20))
modules = []
for n in range(1, 12):
    ok(d.cuStreamWaitValue32(stuck, flag, n, 0))
    code, part = d.cuMemAllocAsync(10 << 20, free)
    if int(code): break
    ok(d.cuStreamSynchronize(free)); ok(d.cuMemFreeAsync(part, stuck)); d.cuMemGetInfo()
    ok(d.cuStreamWriteValue32(free, flag, n, 0))
    code, module = d.cuModuleLoadData(text.encode() + b"\0")
    if int(code): break
    modules.append(module)
ok(d.cuStreamWriteValue32(free, flag, 100, 0)); ok(d.cuCtxSynchronize())
while not int(d.cuMemAlloc(1 << 20)[0]): pass
hold(len(modules), "modules")
"""
)

# malloc() in kernels takes from a heap that the device sets aside.
HEAP_OF_KERNELS = r"""
begin()
TAKE = b'''.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b64 result) malloc (.param .b64 bytes);
.visible .entry take() {
    .reg .b64 %rd<4>;
    { .param .b64 bytes; st.param.b64 [bytes], 1040384; .param .b64 result;
      call.uni (result), malloc, (bytes); ld.param.b64 %rd1, [result]; }
    ret; }
'''
blocks = []
while True:
    code, block = d.cuMemAlloc(1 << 20)
    if int(code): break
    blocks.append(block)
try:
    kernel = load(TAKE, b"take")
except AssertionError as refused:
    print("refused", refused)
else:
    ok(d.cuLaunchKernel(kernel, 7, 1, 1, 1, 1, 1, 0, 0, 0, 0)); ok(d.cuCtxSynchronize())
hold()
"""

# Streams by the hundred, each of which keeps what was freed in it.
FREED_IN_MANY_STREAMS = (
    WAIT
    + """
streams = [ok(d.cuStreamCreate(1)) for _ in range(100)]
for stream in streams:
    ok(d.cuStreamWaitValue32(stream, flag, 1, 0))
    code, block = d.cuMemAlloc(8 << 20)
    if int(code): break
    ok(d.cuMemFreeAsync(block, stream))
    if streams.index(stream) % 2: ok(d.cuStreamDestroy(stream))
hold(streams.index(stream), "streams"); let_go()
"""
)


# The test looks at the device when a program says that it holds what it could get.
HOLD = """
def hold(*words):
    print("holds", *words, flush=True); sys.stdin.readline()
"""


def held(folder: Path) -> int:
    """Return the bytes that the simulated device itself says that processes hold."""
    return sum(struct.unpack_from("QQQ", path.read_bytes())[1] for path in folder.iterdir())


WAYS = {
    "freed behind a wait": FREED_BEHIND_A_WAIT,
    "freed while a module loads": FREED_WHILE_A_MODULE_LOADS,
    "heap of kernels": HEAP_OF_KERNELS,
    "freed in many streams": FREED_IN_MANY_STREAMS,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_device_never_holds_more_than_the_slice_has(way: str, tmp_path: Path) -> None:
    async def story() -> None:
        environment = {**os.environ, "GPUKERNEL_SIMGPU_PROCESSES": str(tmp_path)}
        async with worker(memory_mib=CAP // MIB, env=environment) as one:
            program = one.start(HOLD + way)
            assert program.stdout is not None
            said = ""
            while not said.startswith("holds"):
                said = await asyncio.to_thread(program.stdout.readline)
                assert said, program.communicate()[1]
            bytes_held = held(tmp_path)
            assert CAP // 2 < bytes_held <= CAP, f"{bytes_held / MIB} MiB in {CAP / MIB}: {said}"
            _, errors = await asyncio.to_thread(program.communicate, "\n")
            assert program.returncode == 0, errors

    asyncio.run(story())
