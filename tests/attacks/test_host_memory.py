"""A student fills the GPU server's own memory from a small slice, until the system kills the workers of others."""

from __future__ import annotations

import asyncio
import inspect
import mmap
import os
import struct
from pathlib import Path

import pytest

from gpukernel.remoting.wire import wire_protocol
from gpukernel.remoting.worker import start_worker
from tests.conftest import eventually
from tests.native.libraries.conftest import NEEDS_OPENBLAS, ROOT
from tests.remoting.conftest import MIB, WITHOUT_SANITIZER, worker
from tests.remoting.test_images import kept_in
from tests.remoting.test_shared_memory import (
    HEAD_BYTES,
    RING_BYTES,
    WRITTEN,
    enter_with_ring,
    wake,
)

pytestmark = WITHOUT_SANITIZER  # which take memory of their own for each allocation

LIMIT = 64 * MIB
BESIDE = 48 * MIB
"""The memory of a worker that no program is charged for, with what its allocator keeps: far less than each of these attacks took."""

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

# Many such parts in one linked image, each within the limit.
LINKED_PARTS = (
    COMPRESSED[: COMPRESSED.index("SIZE =")]
    + r"""
SIZE = 30 << 20
packed = lz4(SIZE)
entry = struct.pack("<HHIQIIIIIIQQQ", 1, 0x101, 64, len(packed), len(packed), 0, 0, 70, 64, 0, 0x2000, 0, SIZE)
part = (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry) + len(packed)) + entry + packed).hex().encode()
image = b"GPUKERNEL LINKED PTX\n" + 20 * (b"%d hex\n" % len(part) + part)
print(d.cuModuleLoadData(image)[0].name); done("linked parts")
"""
)

# The same by Zstandard: blocks that repeat one byte.
ZSTANDARD = r"""
import struct
def block(kind, size, content, last=0): return (last | kind << 1 | size << 3).to_bytes(3, "little") + content
literal = HEAD.encode(); runs = 400 << 3; SIZE = len(literal) + (runs << 17)
packed = bytes.fromhex("28b52ffda0") + struct.pack("<I", SIZE) + block(0, len(literal), literal)
packed += b"".join(block(1, 1 << 17, b" ", n == runs - 1) for n in range(runs))
entry = struct.pack("<HHIQIIIIIIQQQ", 1, 0x101, 64, len(packed), len(packed), 0, 0, 70, 64, 0, 0x8000, 0, SIZE)
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

# What kernels print: format strings that name one long text, and assertions whose texts have no end.
TALK = r"""
TALK = (HEAD + '''
.extern .func (.param .b32 count) vprintf (.param .b64 format, .param .b64 values);
.extern .func __assertfail (.param .b64 text, .param .b64 file, .param .b32 line, .param .b64 function, .param .b64 width);
.visible .entry say(.param .u64 format, .param .u64 values) {
    .reg .b64 %rd<4>; .reg .b32 %r<4>;
    ld.param.u64 %rd1, [format]; ld.param.u64 %rd2, [values];
    { .param .b64 format; st.param.b64 [format], %rd1; .param .b64 values; st.param.b64 [values], %rd2; .param .b32 count;
      call.uni (count), vprintf, (format, values); ld.param.b32 %r1, [count]; }
    ret; }
.visible .entry claim(.param .u64 text) {
    .reg .b64 %rd<4>; .reg .b32 %r<4>;
    ld.param.u64 %rd1, [text]; mov.u64 %rd2, 1; mov.u32 %r1, 7;
    { .param .b64 a; st.param.b64 [a], %rd1; .param .b64 b; st.param.b64 [b], %rd1; .param .b32 c; st.param.b32 [c], %r1;
      .param .b64 d; st.param.b64 [d], %rd1; .param .b64 e; st.param.b64 [e], %rd2;
      call.uni __assertfail, (a, b, c, d, e); }
    ret; }
''').encode()
SIZE = 20 << 20
text = int(ok(d.cuMemAlloc(SIZE))); ok(d.cuMemsetD8(text, 120, SIZE)); ok(d.cuMemsetD8(text + SIZE - 1, 0, 1))
def pointers(kernel, *values):
    ok(d.cuLaunchKernel(load(TALK, kernel), 1, 1, 1, 32 if kernel == b"claim" else 1, 1, 1, 0, 0, (values, (ctypes.c_void_p,) * len(values)), 0))
    print(d.cuCtxSynchronize()[0].name)
"""

PRINTED_TEXT = (
    TALK
    + r"""
import struct
spec, where = b"%s" * 16 + b"\0", struct.pack("<Q", text) * 16
format, values = ok(d.cuMemAlloc(64)), ok(d.cuMemAlloc(128))
ok(d.cuMemcpyHtoD(format, spec, len(spec))); ok(d.cuMemcpyHtoD(values, where, len(where)))
pointers(b"say", int(format), int(values)); done("printed text")
"""
)

# Lines of 1 MiB that wait for a synchronisation in the largest buffer.
WAITING_TEXT = (
    TALK.replace("SIZE = 20 << 20", "SIZE = 512")
    + r"""
ok(d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE, 64 << 20))
spec = b"%511d" * 2051 + b"\n\0"
format, values = ok(d.cuMemAlloc(len(spec))), ok(d.cuMemAlloc(16384))
ok(d.cuMemcpyHtoD(format, spec, len(spec))); ok(d.cuMemsetD8(values, 0, 16384))
kernel = load(TALK, b"say")
for _ in range(130): ok(d.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, ((int(format), int(values)), (ctypes.c_void_p,) * 2), 0))
while int(d.cuStreamQuery(0)[0]): pass
print()
done("waiting text")
"""
)

ASSERTION_TEXT = TALK + 'pointers(b"claim", text); done("assertion text")'

# A name of 260 letters that stands for one of several hundred MiB, for the sentence about a kernel's fault.
NAMES = r"""
def substitution(n):
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "S_" if n == 0 else "S" + ("" if n <= 36 else digits[(n - 1) // 36]) + digits[(n - 1) % 36] + "_"
name = "_Z1f1AIiiE" + "".join("S_I" + 2 * substitution(n + 1) + "E" for n in range(24))
wild = load((HEAD + ".visible .entry %s() { .reg .b64 %%rd<2>; mov.u64 %%rd1, 4096; st.global.u64 [%%rd1], %%rd1; ret; }" % name).encode(), name.encode())
ok(d.cuLaunchKernel(wild, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)); print(d.cuCtxSynchronize()[0].name); done("names")
"""

# Work in the default stream that waits for all streams, each of which is behind.
WAITS_FOR_MANY_STREAMS = r"""
flag = int(ok(d.cuMemAlloc(512))); ok(d.cuMemsetD32(flag, 0, 1)); ok(d.cuCtxSynchronize())
streams = []
while len(streams) < 10000:
    streams.append(d.cuStreamCreate(0)[1])
    d.cuStreamWaitValue32(streams[-1], flag, 1, 0)
for n in range(1000): d.cuMemsetD32Async(flag + 256, n, 1, 0)
print(d.cuStreamQuery(streams[0])[0].name); done("waits")
"""

# Host functions that nobody runs, of connections that do nothing else.
HOST_FUNCTIONS = r"""
import struct
from gpukernel.remoting.lease_file import read_lease_file
from gpukernel.remoting.wire import wire_protocol
from gpukernel.remoting.worker_query import WorkerQuery
HOST_FUNCTION = wire_protocol().calls["host_function"].number
lease = read_lease_file(os.environ["GPUKERNEL_LEASE_FILE"])
held = []
for _ in range(100):
    held.append(WorkerQuery(lease.devices[0], lease.secret)); sock = held[-1]._socket
    frames = b"".join(struct.pack("<IHHQQ", 16, HOST_FUNCTION, 0, 1 << 50, n) for n in range(1 << 15))
    sock.settimeout(60); sock.sendall(frames)
    sock.sendall(struct.pack("<IHH", 0, wire_protocol().calls["usage"].number, 1)); held[-1]._read(8)
done("host functions")
"""

LIBRARIES = f"""
sys.path.insert(0, {str(ROOT)!r})
from tests.native.libraries.device import Array, Library
from tests.native.libraries.cudnn_call_cases import Calls, HALF, Tensor, ints, real
import numpy as np
"""

# Workspaces on the host that grow step by step, of several handles.
WORKSPACES = (
    LIBRARIES
    + """
info, a, said = Array(np.zeros(1, np.int32)), Array(np.eye(8)), []
solvers = [Library("libcusolver.so.11", "cusolverDnCreate") for _ in range(6)]
for solver in solvers:
    for mib in range(4, 257, 4):
        status = solver("cusolverDnXpotrf", None, 0, ctypes.c_int64(8), 1, a.pointer, ctypes.c_int64(8), 1, None, ctypes.c_size_t(0), ctypes.c_void_p(1), ctypes.c_size_t(mib << 20), info.pointer)
        if status or int(d.cuCtxSynchronize()[0]): break
    said.append((mib, status))
done("workspaces", said)
"""
)

# Sums of a plane, which a thread keeps for each call that it computes.
POOLING = (
    LIBRARIES
    + """
calls, held = Calls(), []
x, y = Tensor(np.zeros((1, 1, 4096, 4096), HALF)), Tensor(np.zeros((1, 1, 16, 16), HALF))
how = calls.made("Pooling", "cudnnSetPoolingNdDescriptor", 1, 1, 2, *(ints([v] * 2) for v in (256, 0, 256)))
one, zero = real(1, HALF), real(0, HALF)
for stream in [ok(d.cuStreamCreate(1)) for _ in range(12)]:
    calls("cudnnSetStream", ctypes.c_void_p(int(stream)))
    held.append(calls("cudnnPoolingBackward", how, one, *calls.both(y), *calls.both(y), *calls.both(x), zero, *calls.both(x)))
done("pooling", held, d.cuCtxSynchronize()[0].name)
"""
)

# What OpenBLAS packs of a long triangle, in a buffer for each call at one time, which it keeps.
BUFFERS = (
    LIBRARIES
    + """
n, rows, one = 5000, 8, ctypes.c_float(1)
blas = Library("libcublas.so.12", "cublasCreate_v2")
a = int(ok(d.cuMemAlloc(n * n * 4))); ok(d.cuMemsetD32(a, 0, n * n)); bs = []
for stream in [ok(d.cuStreamCreate(1)) for _ in range(40)]:
    b = int(ok(d.cuMemAlloc(rows * n * 4))); ok(d.cuMemsetD32(b, 0, rows * n)); bs.append(b)
    blas.done("cublasSetStream_v2", ctypes.c_void_p(int(stream)))
    for _ in range(3): blas.done("cublasStrmm_v2", 1, 0, 0, 0, rows, n, ctypes.byref(one), ctypes.c_void_p(a), n, ctypes.c_void_p(b), rows, ctypes.c_void_p(b), rows)
done("buffers", d.cuCtxSynchronize()[0].name)
"""
)

WAYS = {
    "linker inputs": LINKER_INPUTS,
    "modules": MODULES,
    "compressed modules": COMPRESSED,
    "parts of a linked image": LINKED_PARTS,
    "modules of Zstandard": ZSTANDARD,
    "local memory": LOCAL_MEMORY,
    "streams": STREAMS,
    "events": EVENTS,
    "textures": TEXTURES,
    "frames": FRAMES,
    "blocks": BLOCKS,
    "printed text": PRINTED_TEXT,
    "printed text that waits": WAITING_TEXT,
    "assertion text": ASSERTION_TEXT,
    "names": NAMES,
    "waits for many streams": WAITS_FOR_MANY_STREAMS,
    "host functions": HOST_FUNCTIONS,
}
LIBRARY_WAYS = {"workspaces of libraries": WORKSPACES, "pooling": POOLING, "buffers of libraries": BUFFERS}
ON_THE_DEVICE = {BUFFERS: 101 * MIB}
"""The memory of the simulated device that a way uses, which is its slice's own, where it is much."""


def most_memory(pid: int) -> int:
    """Return the most that a process has had in memory, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


@pytest.mark.parametrize(
    "way",
    [*WAYS.values(), *(pytest.param(way, marks=NEEDS_OPENBLAS) for way in LIBRARY_WAYS.values())],
    ids=[*WAYS, *LIBRARY_WAYS],
)
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
                lines.append(said[:200])
            taken = most_memory(one.handle.pid) - before - ON_THE_DEVICE.get(way, 0)
            assert taken <= LIMIT + BESIDE, f"{taken >> 20} MiB beside {LIMIT >> 20}: {''.join(lines)[:500]}"
            await asyncio.to_thread(program.communicate, "\n")
            again = await one.run("begin(); ok(d.cuMemAlloc(1)); print('served')")
            assert again.stdout == "served\n", again.stderr

    asyncio.run(story())


def test_shared_memory_does_not_outlive_its_connection_in_the_hands_of_a_client() -> None:
    """The descriptor stays with whoever has it, and the pages that the worker wrote to are the worker's own."""

    async def story() -> None:
        async with worker() as one:
            sock, descriptor = await asyncio.to_thread(enter_with_ring, one)
            device = wire_protocol().calls["device"].number
            with mmap.mmap(descriptor, HEAD_BYTES + 2 * RING_BYTES) as memory:
                for n in range(500):
                    at = HEAD_BYTES + 8 * n
                    memory[at : at + 8] = struct.pack("<IHH", 0, device, 0)
                memory[WRITTEN : WRITTEN + 8] = struct.pack("<Q", 8 * 500)
                wake(memory)
                await asyncio.to_thread(
                    eventually, lambda: os.fstat(descriptor).st_blocks * 512 > RING_BYTES // 2
                )
            sock.close()
            await asyncio.to_thread(eventually, lambda: os.fstat(descriptor).st_blocks * 512 <= HEAD_BYTES)
            os.close(descriptor)

    asyncio.run(story())


# The name of an image that the server has, over connections that load it at the same time.
NAMED_IMAGES = r"""
import struct
from gpukernel.remoting.lease_file import read_lease_file
from gpukernel.remoting.wire import wire_protocol
from gpukernel.remoting.worker_query import WorkerQuery
lease = read_lease_file(os.environ["GPUKERNEL_LEASE_FILE"])
queries = [WorkerQuery(lease.devices[0], lease.secret, 100) for _ in range(20)]
load = wire_protocol().calls["load_image"].number
for query in queries: query._socket.sendall(struct.pack("<IHHB", 33, load, 1, 1) + NAME)
results = []
for query in queries:
    length, _, _ = struct.unpack("<IHH", query._read(8)); results.append(struct.unpack_from("<I", query._read(length))[0])
print("took", sorted(set(results)), flush=True)
"""


def test_a_name_of_a_few_bytes_does_not_become_many_in_the_worker(tmp_path: Path) -> None:
    async def story() -> None:
        async with worker(images=tmp_path) as one:
            await one.run("begin(); d.cuModuleLoadData(b'no PTX ' * (5 << 20) + b'\\0')")
        (kept,) = kept_in(tmp_path)
        assert kept.stat().st_size > 32 * MIB
        async with worker(images=tmp_path, host_memory=LIMIT) as one:
            before = most_memory(one.handle.pid)
            done = await one.run(f"NAME = bytes.fromhex('{kept.name}')\n" + NAMED_IMAGES)
            assert done.stdout.startswith("took"), done.stderr
            taken = most_memory(one.handle.pid) - before
            assert taken <= LIMIT + BESIDE, f"{taken >> 20} MiB beside {LIMIT >> 20}: {done.stdout}"

    asyncio.run(story())
