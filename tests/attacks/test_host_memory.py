"""A student fills the GPU server's own memory from a small slice, until the system kills the workers of others."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest

from gpukernel.remoting.worker import start_worker
from tests.remoting.conftest import MIB, WITHOUT_SANITIZER, worker

pytestmark = WITHOUT_SANITIZER  # which take memory of their own for each allocation

LIMIT = 64 * MIB
BESIDE = 48 * MIB
"""What a worker takes that no program is charged for, with what its allocator keeps: far less than each of these attacks took."""

BEGIN = r"""
begin()
HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"
def done(*words):
    print("took", *words, flush=True); sys.stdin.readline(); os._exit(0)
def refused(result):
    if int(result[0]): assert result[0].name == "CUDA_ERROR_OUT_OF_MEMORY", result[0]
    return int(result[0])
"""

LINKER_INPUTS = """
text = (HEAD + "// " + "x" * (2 << 20) + "\\n").encode()
links, count = [ok(d.cuLinkCreate(0, [], []))], 0
while count < 150 and not refused(d.cuLinkAddData(links[0], d.CUjitInputType.CU_JIT_INPUT_PTX, text, len(text), b"", 0, [], [])): count += 1
done(count, "inputs")
"""

MODULES = r"""
text = (HEAD + "".join(".visible .entry k%d() { .reg .b32 %%r<9>;\n%s ret; }\n" % (n, "mov.u32 %r1, 1;\n" * 2000) for n in range(10))).encode() + b"\0"
count = 0
while count < 150 and not refused(d.cuModuleLoadData(text)): count += 1
done(count, "modules")
"""

# A few bytes that become many: LZ4 in a fat binary.
COMPRESSED = r"""
import struct
def lz4(plain_bytes):
    literal = HEAD.encode(); rest = plain_bytes - len(literal) - 1 - 5
    body = bytes([0xff]) + bytes([len(literal) + 1 - 15]) + literal + b" " + b"\x01\x00"
    more = rest - 19
    return body + b"\xff" * (more // 255) + bytes([more % 255]) + bytes([0x50]) + b"     "
SIZE = 400 << 20
packed = lz4(SIZE)
entry = struct.pack("<HHIQIIIIIIQQQ", 1, 0x101, 64, len(packed), len(packed), 0, 0, 70, 64, 0, 0x2000, 0, SIZE)
image = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry) + len(packed)) + entry + packed
print(d.cuModuleLoadData(image)[0].name); done("compressed")
"""

LOCAL_MEMORY = r"""
DEEP = (HEAD + '''.visible .entry deep() {
    .local .align 16 .b8 held[65536]; .reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .pred %p;
    mov.u64 %rd1, held; mov.u32 %r1, 0;
AGAIN: st.local.u32 [%rd1], %r1; add.s64 %rd1, %rd1, 2048; add.s32 %r1, %r1, 1; setp.lt.u32 %p, %r1, 32; @%p bra AGAIN;
    ret; }''').encode()
kernel = load(DEEP, b"deep")
for blocks in (2, 10, 100, 160):
    print(blocks, d.cuLaunchCooperativeKernel(kernel, blocks, 1, 1, 64, 1, 1, 0, 0, 0)[0].name, d.cuCtxSynchronize()[0].name)
done("local memory")
"""

STREAMS = """
streams = []
for _ in range(150000):
    streams.append(d.cuStreamCreate(1)[1])
    if len(streams) % 1000 == 0 and refused(d.cuCtxSynchronize()): break
done(len(streams), "streams")
"""

EVENTS = """
events = []
for _ in range(400000):
    events.append(d.cuEventCreate(0)[1])
    if len(events) % 1000 == 0 and refused(d.cuCtxSynchronize()): break
done(len(events), "events")
"""

# Each launch that waits keeps the textures as they were then.
TEXTURES = r"""
flag = ok(d.cuMemAlloc(512)); ok(d.cuMemsetD32(flag, 0, 1)); memory = ok(d.cuMemAlloc(4096)); ok(d.cuCtxSynchronize())
kernel = load((HEAD + ".visible .entry k() { ret; }").encode(), b"k")
streams = [ok(d.cuStreamCreate(1)) for _ in range(4)]
for stream in streams: ok(d.cuStreamWaitValue32(stream, flag, 1, 0))
what = d.CUDA_RESOURCE_DESC(); what.resType = d.CUresourcetype.CU_RESOURCE_TYPE_LINEAR
what.res.linear.devPtr = memory; what.res.linear.sizeInBytes = 4096; what.res.linear.numChannels = 1
what.res.linear.format = d.CUarray_format.CU_AD_FORMAT_FLOAT
how = d.CUDA_TEXTURE_DESC(); made = []; over = False
def texture():
    result = d.cuTexObjectCreate(what, how, None)
    if not refused(result): made.append(result[1])
    return int(result[0])
for _ in range(2000):
    if texture(): break
for n in range(2000):
    refused(d.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, streams[n % 4], 0, 0))
    d.cuTexObjectDestroy(made.pop())
    if texture(): break
done(n, "launches")
"""

# Requests whose bodies come slowly, over connections of their own.
FRAMES = r"""
import subprocess
held = []
image = (HEAD + "// " + "x" * (100 << 20)).encode() + b"\0"
print(d.cuModuleLoadData(image)[0].name); print(d.cuLibraryLoadData(image, [], [], 0, [], [], 0)[0].name)
done("frames")
"""

BLOCKS = """
count = 0
while not refused(d.cuMemAlloc(1)): count += 1
done(count, "blocks")
"""

WAYS = {
    "linker inputs": LINKER_INPUTS,
    "modules": MODULES,
    "compressed modules": COMPRESSED,
    "local memory": LOCAL_MEMORY,
    "streams": STREAMS,
    "events": EVENTS,
    "textures": TEXTURES,
    "frames": FRAMES,
    "blocks": BLOCKS,
}


def most_memory(pid: int) -> int:
    """Return the most that a process has had in memory, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_slice_takes_no_more_of_the_host_than_its_limit(way: str) -> None:
    async def story() -> None:
        known = "host_memory" in inspect.signature(start_worker).parameters
        async with worker(memory_mib=128, **({"host_memory": LIMIT} if known else {})) as one:
            before = most_memory(one.handle.pid)
            program = one.start(BEGIN + way)
            assert program.stdout is not None
            said, lines = "", []
            while not said.startswith("took"):
                said = await asyncio.to_thread(program.stdout.readline)
                assert said, program.communicate()[1]
                lines.append(said)
            taken = most_memory(one.handle.pid) - before
            assert taken <= LIMIT + BESIDE, f"{taken >> 20} MiB beside {LIMIT >> 20}: {''.join(lines)}"
            await asyncio.to_thread(program.communicate, "\n")
            again = await one.run("begin(); ok(d.cuMemAlloc(1)); print('served')")
            assert again.stdout == "served\n", again.stderr

    asyncio.run(story())
