"""A property of every way to take and give device memory: the worker's books never say less than the device holds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.remoting.conftest import AT_ADDRESSES_OF_THE_PROGRAM, MIB, Worker, worker
from tests.remoting.virtual_memory import MEMORY

CAP = 96 * MIB
GRAIN = 512

# A program that takes and gives memory as it is told, one line of JSON each, and answers with the result's name.
PROGRAM = (
    MEMORY
    + r"""
import json
POOL, LIMIT = d.CUmemPool_attribute, d.CUlimit
flags = ok(d.cuMemAlloc(4096)); ok(d.cuMemsetD32(flags, 0, 1024))
writer = ok(d.cuStreamCreate(1)); streams = [ok(d.cuStreamCreate(1)) for _ in range(3)]; stalls = [0] * 3; number = [0]
things = {}; kinds = {}; pools = []
def keep(kind, key, thing): things[key] = thing; kinds[key] = kind
class Refused(Exception): pass
def take(result):
    code, *values = result
    if int(code): raise Refused(code.name)
    return values[0] if len(values) == 1 else values
def shape(bytes, kind=None):
    s = kind or d.CUDA_ARRAY3D_DESCRIPTOR(); s.Width, s.Height, s.NumChannels = 1024, max(1, bytes // 4096), 1
    s.Depth, s.Flags, s.Format = 0, 0, d.CUarray_format.CU_AD_FORMAT_FLOAT; return s
def module_text(bytes): return (".version 7.0\n.target sm_70\n.address_size 64\n.global .align 4 .b8 held[%d];\n.visible .entry k() { ret; }\n" % bytes).encode() + b"\0"
def prefix(bytes): p = d.CUmemPoolProps(); p.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED; p.location = place(); return p
def graph_of(bytes):
    graph = ok(d.cuGraphCreate(0)); p = d.CUDA_MEM_ALLOC_NODE_PARAMS(); p.bytesize = bytes
    p.poolProps.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED; p.poolProps.location = place()
    node = ok(d.cuGraphAddMemAllocNode(graph, [], 0, p)); ok(d.cuGraphAddMemFreeNode(graph, [node], 1, p.dptr))
    executable = take(d.cuGraphInstantiate(graph, 0)); ok(d.cuGraphDestroy(graph)); return executable
HEAP = b'''.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b64 result) malloc (.param .b64 bytes);
.extern .func free (.param .b64 address);
.visible .entry churn() {
    .reg .b64 %rd<4>;
    { .param .b64 bytes; st.param.b64 [bytes], 65536; .param .b64 result;
      call.uni (result), malloc, (bytes); ld.param.b64 %rd1, [result]; }
    { .param .b64 address; st.param.b64 [address], %rd1; call.uni free, (address); }
    ret; }
.visible .entry hold(.param .u64 places) {
    .reg .b64 %rd<4>; .reg .b32 %r<2>;
    mov.u32 %r1, %ctaid.x; ld.param.u64 %rd2, [places]; mul.wide.u32 %rd3, %r1, 8; add.s64 %rd2, %rd2, %rd3;
    { .param .b64 bytes; st.param.b64 [bytes], 1048576; .param .b64 result;
      call.uni (result), malloc, (bytes); ld.param.b64 %rd1, [result]; }
    { .param .b64 address; ld.global.u64 %rd3, [%rd2]; st.global.u64 [%rd2], %rd1; st.param.b64 [address], %rd3; call.uni free, (address); }
    ret; }
.visible .entry drop(.param .u64 places) {
    .reg .b64 %rd<4>; .reg .b32 %r<2>;
    mov.u32 %r1, %ctaid.x; ld.param.u64 %rd2, [places]; mul.wide.u32 %rd3, %r1, 8; add.s64 %rd2, %rd2, %rd3;
    { .param .b64 address; ld.global.u64 %rd3, [%rd2]; mov.u64 %rd1, 0; st.global.u64 [%rd2], %rd1; st.param.b64 [address], %rd3; call.uni free, (address); }
    ret; }
'''
heap_hold, heap_drop = load(HEAP, b"hold"), load(HEAP, b"drop")
def in_heap(kernel): take(d.cuLaunchKernel(kernel, 18, 1, 1, 1, 1, 1, 0, writer, ((int(flags) + 2048,), (ctypes.c_void_p,)), 0)); ok(d.cuStreamSynchronize(writer))
def hold_heap(): in_heap(heap_hold)
def drop_heap(): in_heap(heap_drop)
churn = load(HEAP, b"churn"); kernel = load(STORE_U32, b"store")
def pinned(bytes):  # the device has it when a kernel is given its address
    thing = int(take(d.cuMemHostAlloc(max(bytes, 4), 0))); said = store(kernel, thing, 1); ok(d.cuCtxSynchronize())
    if said != "CUDA_SUCCESS": ok(d.cuMemFreeHost(thing)); raise Refused(said)
    return thing
def registered(bytes):  # and this when its address on the device is asked for
    memory = ctypes.create_string_buffer(bytes); at = ctypes.addressof(memory); take(d.cuMemHostRegister(at, bytes, d.CU_MEMHOSTREGISTER_DEVICEMAP))
    try: take(d.cuMemHostGetDevicePointer(at, 0))
    except Refused: ok(d.cuMemHostUnregister(at)); raise
    return memory
def texture():
    r = d.CUDA_RESOURCE_DESC(); r.resType = d.CUresourcetype.CU_RESOURCE_TYPE_LINEAR; r.res.linear.devPtr = flags; r.res.linear.sizeInBytes = 4096
    r.res.linear.numChannels, r.res.linear.format = 1, d.CUarray_format.CU_AD_FORMAT_FLOAT; return take(d.cuTexObjectCreate(r, d.CUDA_TEXTURE_DESC(), None))
def make(kind, key, n, s):
    stream = streams[s]
    if kind == "block": thing = take(d.cuMemAlloc(n))
    elif kind == "pitched": thing = take(d.cuMemAllocPitch(1000, max(1, n // 1024), 4))[0]
    elif kind == "ordered": thing = take(d.cuMemAllocAsync(n, stream))
    elif kind == "pooled":
        if not pools: pools.append(take(d.cuMemPoolCreate(prefix(n))))
        thing = take(d.cuMemAllocFromPoolAsync(n, pools[0], stream))
    elif kind == "managed": thing = take(d.cuMemAllocManaged(n, 1))
    elif kind == "physical": thing = [take(d.cuMemCreate(-(-n // U) * U, prop(), 0)), None, -(-n // U) * U]
    elif kind == "array": thing = take(d.cuArrayCreate(flat(n)))
    elif kind == "mipmap": thing = take(d.cuMipmappedArrayCreate(shape(n), 3))
    elif kind == "module": thing = take(d.cuModuleLoadData(module_text(n)))
    elif kind == "library": thing = take(d.cuLibraryLoadData(module_text(n), [], [], 0, [], [], 0))
    elif kind == "graph": thing = graph_of(n)
    elif kind == "pinned": thing = pinned(n)
    elif kind == "registered": thing = registered(n)
    elif kind == "texture": thing = texture()
    elif kind == "shared": thing = take(d.cuMemAlloc(n)); take(d.cuIpcGetMemHandle(thing))
    elif kind == "stream": thing = take(d.cuStreamCreate(1))
    elif kind == "event": thing = take(d.cuEventCreate(0))
    keep(kind, key, thing)
def flat(n):
    a = d.CUDA_ARRAY_DESCRIPTOR(); a.Width, a.Height, a.NumChannels, a.Format = 1024, max(1, n // 4096), 1, d.CUarray_format.CU_AD_FORMAT_FLOAT; return a
def end(key, s, ordered):
    kind, thing = kinds.pop(key), things.pop(key)
    if kind in ("block", "pitched", "ordered", "pooled"):
        take(d.cuMemFreeAsync(thing, streams[s]) if ordered else d.cuMemFree(thing))
    elif kind in ("managed", "shared"): take(d.cuMemFree(thing))
    elif kind == "pinned": take(d.cuMemFreeHost(thing))
    elif kind == "registered": take(d.cuMemHostUnregister(ctypes.addressof(thing)))
    elif kind == "texture": take(d.cuTexObjectDestroy(thing))
    elif kind == "physical":
        handle, address, bytes = thing
        if ordered and address is None:  # mapped first: it lives on without its handle
            address = reserve(bytes); mapped(address, bytes, handle); ok(d.cuMemRelease(handle)); keep("mapping", key, (address, bytes))
        else: ok(d.cuMemRelease(handle))
    elif kind == "mapping": ok(d.cuMemUnmap(*thing)); ok(d.cuMemAddressFree(*thing))
    elif kind == "array": take(d.cuArrayDestroy(thing))
    elif kind == "mipmap": take(d.cuMipmappedArrayDestroy(thing))
    elif kind == "module": take(d.cuModuleUnload(thing))
    elif kind == "library": take(d.cuLibraryUnload(thing))
    elif kind == "graph": take(d.cuGraphExecDestroy(thing))
    elif kind == "stream": take(d.cuStreamDestroy(thing))
    elif kind == "event": take(d.cuEventDestroy(thing))
def stall(s): number[0] += 1; stalls[s] = number[0]; ok(d.cuStreamWaitValue32(streams[s], int(flags) + 4 * s, number[0], 0))
def go_on(s): ok(d.cuStreamWriteValue32(writer, int(flags) + 4 * s, stalls[s] or 0, 0)); ok(d.cuStreamSynchronize(streams[s]))
def launch(key, s): take(d.cuGraphLaunch(things[key], streams[s]))
def trim(): take(d.cuDeviceGraphMemTrim(0)); [take(d.cuMemPoolTrimTo(pool, 0)) for pool in pools]
def limit(which, n): take(d.cuCtxSetLimit(getattr(LIMIT, which), n))
def churn_heap(s): take(d.cuLaunchKernel(churn, 2, 1, 1, 8, 1, 1, 0, streams[s], 0, 0))
def replace(s): ok(d.cuStreamDestroy(streams[s])); streams[s] = ok(d.cuStreamCreate(1)); stalls[s] = 0
def rest():
    for s in range(3): go_on(s)
    ok(d.cuCtxSynchronize()); ok(d.cuMemGetInfo())
def look(): ok(d.cuMemGetInfo())
print("ready", flush=True)
for line in sys.stdin:
    name, *words = json.loads(line)
    try: globals()[name](*words); print("ok", flush=True)
    except Refused as refused: print(refused, flush=True)
"""
)

SIZES = st.sampled_from([1, 1000, 4096, MIB, 5 * MIB + 1, 12 * MIB, 30 * MIB])
STREAMS = st.integers(0, 2)
KINDS = [
    *("block", "pitched", "ordered", "ordered", "pooled", "managed", "physical"),
    *("array", "mipmap", "module", "library", "graph", "stream", "event"),
    *("pinned", "registered", "texture", "shared"),
]
WAIT = ("graph", "pinned", "registered")
"""The things that are not made beside a stalled stream: a launch, or a wait for the device, belongs to it."""
LIMITS = {
    "CU_LIMIT_MALLOC_HEAP_SIZE": (8 * MIB, 20 * MIB, 200 * MIB),
    "CU_LIMIT_PRINTF_FIFO_SIZE": (MIB, 3 * MIB, 200 * MIB),
    "CU_LIMIT_STACK_SIZE": (1024, 4096),
    "CU_LIMIT_PERSISTING_L2_CACHE_SIZE": (0, MIB),
}


class Books:
    """One worker with its device's own account, and the loop that its connections live in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runner = asyncio.Runner()
        self._stack = contextlib.AsyncExitStack()

    def __enter__(self) -> Books:
        environment = {**os.environ, "GPUKERNEL_SIMGPU_PROCESSES": str(self._folder)}
        opened = self._stack.enter_async_context(worker(memory_mib=CAP // MIB, env=environment))
        self._worker: Worker = self._runner.run(opened)
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    def program(self) -> subprocess.Popen[str]:
        return self._worker.start(PROGRAM)

    def said(self) -> int:
        return self._runner.run(self._worker.handle.status()).memory_used_bytes

    def held(self) -> int:
        return sum(struct.unpack_from("QQQ", path.read_bytes())[1] for path in self._folder.iterdir())

    def check(self) -> None:
        said = self.said()  # first: the device may free meanwhile, and takes nothing by itself
        held = self.held()
        assert held <= said <= CAP, f"the device holds {held} bytes, the books say {said}"


@AT_ADDRESSES_OF_THE_PROGRAM
def test_the_books_say_what_the_device_holds(tmp_path: Path) -> None:
    with Books(tmp_path) as books:

        class Mixture(RuleBasedStateMachine):
            def __init__(self) -> None:
                super().__init__()
                self._program = books.program()
                assert self._hear() == "ready"
                self._keys: dict[int, tuple[str, int]] = {}
                self._next = 0
                self._stalled: set[int] = set()
                self._heap, self._in_heap = 8 * MIB, 0

            def _hear(self) -> str:
                assert self._program.stdout is not None
                answer = self._program.stdout.readline().strip()
                assert answer, self._program.communicate()[1]
                return answer

            def _tell(self, *words: Any) -> str:
                assert self._program.stdin is not None
                self._program.stdin.write(json.dumps(words) + "\n")
                self._program.stdin.flush()
                answer = self._hear()
                books.check()
                return answer

            def _refused(self, answer: str, bytes_wanted: int) -> bool:
                """Check that what was refused did not fit."""
                if answer == "ok":
                    return False
                assert answer == "CUDA_ERROR_OUT_OF_MEMORY"
                assert books.held() + bytes_wanted > CAP, (
                    f"{bytes_wanted} bytes were refused beside {books.held()}"
                )
                return True

            @initialize()
            def begin_with_one_of_each(self) -> None:
                for kind in sorted(set(KINDS)):
                    self._make(kind, 4096, 0)
                    assert self._keys[self._next][0] == kind

            @rule(kind=st.sampled_from(KINDS), size=SIZES, stream=STREAMS)
            def make(self, kind: str, size: int, stream: int) -> None:
                if not (kind in WAIT and self._stalled):
                    self._make(kind, size, stream)

            def _make(self, kind: str, size: int, stream: int) -> None:
                self._next += 1
                answer = self._tell("make", kind, self._next, size, stream)
                # The largest that this may take: whole units, rows and levels.
                most = 2 * MIB * (-(-size // (2 * MIB))) * 2 + 4096
                if not self._refused(answer, most):
                    self._keys[self._next] = (kind, size)

            @precondition(lambda self: self._keys)
            @rule(data=st.data(), stream=STREAMS, ordered=st.booleans())
            def end(self, data: st.DataObject, stream: int, ordered: bool) -> None:
                key = data.draw(st.sampled_from(sorted(self._keys)))
                kind, size = self._keys[key]
                in_order = kind in ("block", "pitched", "ordered", "pooled") and ordered
                if self._stalled and not in_order and kind not in ("stream", "event"):
                    return  # the driver would wait for all streams
                assert self._tell("end", key, stream, ordered) == "ok"
                del self._keys[key]
                if kind == "physical" and ordered:
                    self._keys[key] = ("mapping", size)

            @rule(stream=STREAMS)
            def stall(self, stream: int) -> None:
                assert self._tell("stall", stream) == "ok"
                self._stalled.add(stream)

            @rule(stream=STREAMS)
            def go_on(self, stream: int) -> None:
                assert self._tell("go_on", stream) == "ok"
                self._stalled.discard(stream)

            @precondition(lambda self: not self._stalled)
            @rule(stream=STREAMS)
            def replace(self, stream: int) -> None:
                assert self._tell("replace", stream) == "ok"

            @precondition(lambda self: not self._stalled)
            @rule(data=st.data(), stream=STREAMS)
            def launch(self, data: st.DataObject, stream: int) -> None:
                graphs = sorted(key for key, (kind, _) in self._keys.items() if kind == "graph")
                if not graphs:
                    return
                key = data.draw(st.sampled_from(graphs))
                self._refused(self._tell("launch", key, stream), 4 * MIB + 2 * self._keys[key][1])

            @precondition(lambda self: not self._stalled)
            @rule()
            def trim(self) -> None:
                assert self._tell("trim") == "ok"

            @rule(which=st.sampled_from(sorted(LIMITS)), data=st.data())
            def limit(self, which: str, data: st.DataObject) -> None:
                size = data.draw(st.sampled_from(LIMITS[which]))
                threads = 80 * 2048 if which == "CU_LIMIT_STACK_SIZE" else 1
                answer = self._tell("limit", which, size)
                if answer == "CUDA_ERROR_INVALID_VALUE":  # blocks of malloc() are beyond it
                    assert which == "CU_LIMIT_MALLOC_HEAP_SIZE"
                    assert self._in_heap > size
                else:
                    self._refused(answer, size * threads)
                    self._heap = (
                        size if which == "CU_LIMIT_MALLOC_HEAP_SIZE" and answer == "ok" else self._heap
                    )

            @rule(stream=STREAMS)
            def churn_heap(self, stream: int) -> None:
                assert self._tell("churn_heap", stream) == "ok"

            @rule()
            def hold_heap(self) -> None:
                assert self._tell("hold_heap") == "ok"
                self._in_heap = max(self._in_heap, min(18 * MIB, self._heap))

            @rule()
            def drop_heap(self) -> None:
                assert self._tell("drop_heap") == "ok"
                self._in_heap = 0

            @rule()
            def look(self) -> None:
                assert self._tell("look") == "ok"

            @rule()
            def rest(self) -> None:
                assert self._tell("rest") == "ok"
                self._stalled.clear()
                assert books.said() == books.held()

            def teardown(self) -> None:
                if self._program.poll() is None:
                    self.rest()
                    self.drop_heap()
                self._program.communicate()
                for _ in range(2000):
                    if not books.said():
                        break
                assert books.said() == books.held() == 0

        count = int(os.environ.get("GPUKERNEL_TEST_MIXTURES", "6"))
        run_state_machine_as_test(
            Mixture,
            settings=settings(
                max_examples=count,
                stateful_step_count=60,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                derandomize="GPUKERNEL_TEST_MIXTURES" not in os.environ,
                database=None,
            ),
        )


@pytest.mark.parametrize("size", [1, GRAIN, GRAIN + 1])
def test_small_blocks_are_charged_as_the_device_rounds_them(size: int, tmp_path: Path) -> None:
    with Books(tmp_path) as books:
        program = books.program()
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdout.readline()
        before = books.said()
        program.stdin.write(json.dumps(("make", "block", 1, size, 0)) + "\n")
        program.stdin.flush()
        assert program.stdout.readline() == "ok\n"
        assert books.said() - before == -(-size // GRAIN) * GRAIN
        assert books.said() == books.held()
        program.communicate()


def test_a_cap_may_shrink_to_what_is_left_after_frees_in_stream_order() -> None:
    code = """begin(); s = ok(d.cuStreamCreate(1)); a = ok(d.cuMemAllocAsync(40 << 20, s)); ok(d.cuMemFreeAsync(a, s)); ok(d.cuEventQuery(ok(d.cuEventCreate(0))))
print("freed", flush=True); sys.stdin.readline(); print(d.cuMemAllocAsync(40 << 20, s)[0].name)"""

    async def story() -> None:
        async with worker(memory_mib=64) as one:
            program = one.start(code)
            assert program.stdout is not None
            assert await asyncio.to_thread(program.stdout.readline) == "freed\n"
            await one.handle.limit(16 * MIB, 1)
            said, errors = await asyncio.to_thread(program.communicate, "\n")
            assert said == "CUDA_ERROR_OUT_OF_MEMORY\n", errors

    asyncio.run(story())


def test_a_loop_in_one_stream_gets_its_block_again_and_another_size_waits_for_the_device() -> None:
    code = """begin(); s = ok(d.cuStreamCreate(1)); places = set()
for n in range(200):
    a = ok(d.cuMemAllocAsync(48 << 20, s)); ok(d.cuMemsetD8Async(a, n % 256, 1 << 20, s)); places.add(int(a)); ok(d.cuMemFreeAsync(a, s))
for n in range(50):
    a = ok(d.cuMemAllocAsync((40 << 20) + n * 4096, s)); ok(d.cuMemsetD8Async(a, n % 256, 1 << 20, s)); ok(d.cuMemFreeAsync(a, s))
b = ok(d.cuMemAlloc(60 << 20)); print(len(places))"""

    async def story() -> None:
        async with worker(memory_mib=64) as one:
            done = await one.run(code)
            assert done.stdout == "1\n", done.stderr

    asyncio.run(story())
