"""A student makes the device hold more memory than the slice has, and so takes it from the other slices of that device."""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from gpukernel import native
from tests.attacks.test_host_memory import BESIDE
from tests.remoting.conftest import MIB, WITHOUT_SANITIZER, worker

CAP = 64 * MIB

# A stream that waits for a value for ever, and what a program needs to see whether memory is still there.
WAIT = """
import struct, time
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

# Warps that never end go on with what is freed behind their backs, in another stream: each with a place of its own.
FREED_UNDER_A_KERNEL = (
    WAIT
    + r"""
TOUCH = b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry touch(.param .u64 places, .param .u64 flag, .param .u32 pages) {
    .reg .b64 %rd<6>; .reg .b32 %r<5>; .reg .pred %p;
    ld.param.u64 %rd1, [places]; ld.param.u64 %rd2, [flag]; ld.param.u32 %r2, [pages];
    mov.u32 %r1, %tid.x; and.b32 %r3, %r1, 31; setp.ne.u32 %p, %r3, 0; @%p bra DONE;
    shr.u32 %r1, %r1, 5; mul.wide.u32 %rd3, %r1, 8; add.s64 %rd1, %rd1, %rd3;
AGAIN: ld.volatile.global.u32 %r3, [%rd2]; setp.ne.u32 %p, %r3, 0; @%p bra DONE;
    ld.volatile.global.u64 %rd4, [%rd1]; setp.eq.u64 %p, %rd4, 0; @%p bra AGAIN; mov.u32 %r1, 0;
MORE: mov.u64 %rd5, %rd4; mov.u32 %r1, 0;
NEXT: st.global.u32 [%rd5], %r1; add.s64 %rd5, %rd5, 4096; add.s32 %r1, %r1, 1; setp.lt.u32 %p, %r1, %r2; @%p bra NEXT;
    ld.volatile.global.u32 %r3, [%rd2]; setp.eq.u32 %p, %r3, 0; @%p bra MORE;
DONE: ret; }
'''
places = int(ok(d.cuMemAlloc(512))); ok(d.cuMemsetD32(places, 0, 128))
values = ((places, int(flag), 30 << 8), (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32))
ok(d.cuLaunchKernel(load(TOUCH, b"touch"), 1, 1, 1, 32 * 3, 1, 1, 0, stuck, values, 0))
for n in range(3):  # of growing sizes, and never neighbours, so that each is at other addresses
    code, block = d.cuMemAlloc((30 + n) << 20)
    if int(code): break
    fills = ok(d.cuMemAlloc(30 << 20)) if n == 1 else 0
    ok(d.cuMemAlloc(512))
    if n == 1: ok(d.cuMemFreeAsync(fills, free))
    where = struct.pack("<Q", int(block)); last = int(block) + (((30 << 8) - 1) << 12); there = bytearray(4)
    if int(d.cuMemcpyHtoDAsync(places + 8 * n, where, 8, free)[0]): break
    while not any(there) and not int(d.cuMemcpyDtoHAsync(there, last, 4, free)[0]): d.cuStreamSynchronize(free)
    if int(d.cuMemFreeAsync(block, free)[0]) or int(d.cuMemGetInfo()[0]) or int(d.cuStreamSynchronize(free)[0]): break
time.sleep(1); hold(n + 1, "places"); os._exit(0)
"""
)


# What kernels have from malloc() lives on when the heap's limit is lowered, and after the program.
HEAP_BLOCKS = r"""
begin()
PTX = b'''.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b64 result) malloc (.param .b64 bytes);
.visible .entry take(.param .u64 places) {
    .reg .b64 %rd<4>; .reg .b32 %r<2>;
    { .param .b64 bytes; st.param.b64 [bytes], 1048576; .param .b64 result;
      call.uni (result), malloc, (bytes); ld.param.b64 %rd1, [result]; }
    mov.u32 %r1, %ctaid.x; ld.param.u64 %rd2, [places]; mul.wide.u32 %rd3, %r1, 8; add.s64 %rd2, %rd2, %rd3;
    st.global.u64 [%rd2], %rd1; ret; }
.visible .entry look(.param .u64 places, .param .u64 out) {
    .reg .b64 %rd<5>; .reg .b32 %r<4>; .reg .pred %p;
    mov.u32 %r1, %ctaid.x; ld.param.u64 %rd2, [places]; mul.wide.u32 %rd3, %r1, 8; add.s64 %rd2, %rd2, %rd3;
    ld.global.u64 %rd1, [%rd2]; setp.eq.u64 %p, %rd1, 0; @%p ret;
    ld.global.u32 %r2, [%rd1]; ld.param.u64 %rd4, [out]; atom.global.add.u32 %r3, [%rd4], 1; ret; }
'''
places, out = ok(d.cuMemAlloc(4096)), ok(d.cuMemAlloc(512))
ok(d.cuMemsetD32(places, 0, 1024)); ok(d.cuMemsetD32(out, 0, 1))
HEAP = d.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE
def take(blocks):
    ok(d.cuLaunchKernel(load(PTX, b"take"), blocks, 1, 1, 1, 1, 1, 0, 0, ((int(places),), (ctypes.c_void_p,)), 0)); ok(d.cuCtxSynchronize())
def living(blocks):
    values = ((int(places), int(out)), (ctypes.c_void_p, ctypes.c_void_p))
    ok(d.cuLaunchKernel(load(PTX, b"look"), blocks, 1, 1, 1, 1, 1, 0, 0, values, 0)); ok(d.cuCtxSynchronize())
    there = bytearray(4); ok(d.cuMemcpyDtoH(there, out, 4)); return int.from_bytes(there, "little")
def most():
    count = 0
    while not int(d.cuMemAlloc(1 << 20)[0]): count += 1
    return count
"""


# The test looks at the device when a program says that it holds what it could get.
HOLD = """
def hold(*words):
    print("holds", *words, flush=True); sys.stdin.readline()
"""


def held(folder: Path) -> int:
    """Return the bytes that the simulated device itself says that processes hold."""
    return sum(struct.unpack_from("QQQ", path.read_bytes())[1] for path in folder.iterdir())


def memory(pid: int) -> int:
    """Return what a process has in memory, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


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


@WITHOUT_SANITIZER
def test_a_kernel_that_goes_on_holds_no_memory_that_was_freed(tmp_path: Path) -> None:
    """The simulated device is memory of its server, where nobody's books would have it."""

    async def story() -> None:
        async with worker(memory_mib=CAP // MIB) as one:
            before = memory(one.handle.pid)
            program = one.start(HOLD + FREED_UNDER_A_KERNEL)
            assert program.stdout is not None
            said = ""
            while not said.startswith("holds"):
                said = await asyncio.to_thread(program.stdout.readline)
                assert said, program.communicate()[1]
            taken = memory(one.handle.pid) - before
            assert taken <= BESIDE, f"{taken / MIB} MiB of the server, and nothing is allocated: {said}"
            await asyncio.to_thread(program.communicate, "\n")

    asyncio.run(story())


def test_a_heap_that_is_lowered_stays_charged_with_what_kernels_have_of_it() -> None:
    async def story() -> None:
        async with worker(memory_mib=CAP // MIB) as one:
            code = (
                HEAP_BLOCKS
                + """
ok(d.cuCtxSetLimit(HEAP, 56 << 20)); take(55)
print(d.cuCtxSetLimit(HEAP, 8 << 20)[0].name, most() + living(55), ok(d.cuCtxGetLimit(HEAP)) >> 20, flush=True)
"""
            )
            said, errors = await asyncio.to_thread(one.start(code).communicate)
            name, held_together, limit = said.split()
            assert name == "CUDA_ERROR_INVALID_VALUE", errors
            assert 55 <= int(held_together) <= CAP // MIB
            assert limit == "56"

    asyncio.run(story())


# A driver that is not the simulated GPU's, as far as the worker can tell, and sets aside whole steps of 16 MiB.
ROUNDING_DRIVER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
__asm__(".globl gpukernel_simgpu_bound\n.set gpukernel_simgpu_bound, 0\n");
int cuCtxSetLimit(int limit, size_t value) {
    int (*real)(int, size_t) = (int (*)(int, size_t))dlsym(RTLD_NEXT, "cuCtxSetLimit");
    const size_t step = limit ? 16 << 20 : 1;
    return real ? real(limit, (value + step - 1) / step * step) : 999;
}
"""


def test_a_limit_is_charged_as_the_driver_has_set_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    installed = native.simgpu_library()
    folder = tmp_path / "simgpu"
    for part in ("real", "processes"):
        (folder / part).mkdir(parents=True)
    real, own = folder / "real" / "libcuda.so.1", folder / "libcuda.so.1"
    shutil.copy(installed, real)
    source = folder / "rounding.c"
    source.write_text(ROUNDING_DRIVER)
    command = [compiler, "-shared", "-fPIC", str(source), "-Wl,--no-as-needed", str(real)]
    subprocess.run([*command, f"-Wl,-rpath,{real.parent}", "-o", str(own), "-ldl"], check=True)
    monkeypatch.setattr(native, "simgpu_library", lambda: own)

    async def story() -> None:
        environment = {**os.environ, "GPUKERNEL_SIMGPU_PROCESSES": str(folder / "processes")}
        async with worker(memory_mib=CAP // MIB, env=environment) as one:
            code = (
                HEAP_BLOCKS
                + HOLD
                + """
print(d.cuCtxSetLimit(HEAP, 60 << 20)[0].name, ok(d.cuCtxGetLimit(HEAP)) >> 20)
ok(d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE, 2 << 20)); ok(d.cuCtxSetLimit(HEAP, 17 << 20))
most(); hold()
"""
            )
            program = one.start(code)
            assert program.stdout is not None
            first = await asyncio.to_thread(program.stdout.readline)
            assert first == "CUDA_ERROR_OUT_OF_MEMORY 16\n"
            assert (await asyncio.to_thread(program.stdout.readline)).startswith("holds")
            bytes_held = held(folder / "processes")
            assert CAP // 2 < bytes_held <= CAP, f"{bytes_held / MIB} MiB in {CAP / MIB}"
            await asyncio.to_thread(program.communicate, "\n")

    asyncio.run(story())


@WITHOUT_SANITIZER
def test_the_heap_of_kernels_ends_with_the_last_program() -> None:
    """Each program leaves what its kernels have from malloc(), and the next has the whole slice and the whole heap again."""

    async def story() -> None:
        async with worker(memory_mib=CAP // MIB) as one:
            code = (
                HEAP_BLOCKS
                + """
ok(d.cuCtxSetLimit(HEAP, 40 << 20)); take(39); there = living(39)
print(there, ok(d.cuMemGetInfo())[0] >> 20, flush=True)
"""
            )
            for _ in range(3):
                said, errors = await asyncio.to_thread(one.start(code).communicate)
                assert said.split() == ["39", str(CAP // MIB - 41)], errors
                async with asyncio.timeout(20):
                    while (await one.handle.status()).memory_used_bytes:
                        await asyncio.sleep(0.05)

    asyncio.run(story())
