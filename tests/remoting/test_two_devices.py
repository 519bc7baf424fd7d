"""Two devices of one lease: a stream or an event says by itself which of them it is of (programming guide, “Multi-Device System”).

What waits here waits for a flag that another thread writes when the call under test has begun.
"""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from tests.remoting.conftest import AT_ADDRESSES_OF_THE_PROGRAM, worker

BEGIN = """
ok(d.cuInit(0))
contexts = [ok(d.cuDevicePrimaryCtxRetain(i)) for i in range(2)]
def use(i): ok(d.cuCtxSetCurrent(contexts[i]))
streams, events, memory, flags, beside = [], [], [], [], []
for i in range(2):
    use(i)
    streams.append(ok(d.cuStreamCreate(1))); beside.append(ok(d.cuStreamCreate(1)))
    events.append(ok(d.cuEventCreate(2)))
    memory.append(ok(d.cuMemAlloc(4096))); flags.append(ok(d.cuMemAlloc(4)))
    ok(d.cuMemsetD8(memory[i], 0, 4096)); ok(d.cuMemsetD8(flags[i], 0, 4)); ok(d.cuCtxSynchronize())
def code(result): return int(result[0])  # 600: not ready; 400: invalid handle
def blocked(i):
    use(i); ok(d.cuStreamWaitValue32(streams[i], flags[i], 1, 0))
def opened(i):
    def run():
        use(i)
        for _ in range(50): ok(d.cuMemGetInfo())
        ok(d.cuStreamWriteValue32(beside[i], flags[i], 1, 0)); ok(d.cuStreamSynchronize(beside[i]))
    thread = threading.Thread(target=run); thread.start(); return thread
def bytes_of(i):
    use(i); host = bytearray(4096); ok(d.cuMemcpyDtoH(host, memory[i], 4096)); return set(host)
"""


KERNELS = """
TEXT = b'''.version 7.0
.target sm_70
.address_size 64
.global .u32 kept = 5;
.visible .entry store(.param .u64 to, .param .u32 value) { .reg .b64 %rd<2>; .reg .b32 %r<3>;
ld.param.u64 %rd1, [to]; ld.param.u32 %r1, [value]; ld.global.u32 %r2, [kept]; add.u32 %r1, %r1, %r2; st.global.u32 [%rd1], %r1; ret; }
.visible .entry other() { ret; }
\\0'''
def loaded(): return ok(d.cuLibraryLoadData(TEXT, [], [], 0, [], [], 0))
def stored(i, function, value):
    values = ctypes.c_uint64(int(memory[i])), ctypes.c_uint32(value)
    arguments = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
    ok(d.cuLaunchKernel(d.CUfunction(int(function)), 1, 1, 1, 1, 1, 1, 0, streams[i], ctypes.addressof(arguments), 0))
def word_of(i):
    use(i); host = bytearray(4); ok(d.cuStreamSynchronize(streams[i])); ok(d.cuMemcpyDtoH(host, memory[i], 4)); return int.from_bytes(host, "little")
"""


def with_two_devices(code: str) -> list[str]:
    async def run() -> list[str]:
        async with worker(secret="ab" * 32) as first, worker(secret="ab" * 32) as second:
            done = await first.run(BEGIN + code, second=second)
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines()

    return asyncio.run(run())


def test_no_handle_is_of_two_devices() -> None:
    assert with_two_devices("print(len({int(h) for h in (*streams, *events, *beside)}))") == ["6"]


def test_queries_and_waits_reach_the_handles_own_device() -> None:
    assert with_two_devices(
        """
blocked(0); ok(d.cuEventRecord(events[0], streams[0]))
use(1)
print(code(d.cuStreamQuery(streams[0])), code(d.cuEventQuery(events[0])), code(d.cuStreamQuery(streams[1])))
thread = opened(0)
print(code(d.cuStreamSynchronize(streams[0])), code(d.cuEventQuery(events[0]))); thread.join()
print([int(ok(d.cuStreamGetDevice(s))) for s in streams], [int(ok(d.cuStreamGetCtx(s))) == int(c) for s, c in zip(streams, contexts)])
ok(d.cuCtxSetCurrent(d.CUcontext(0)))
print(code(d.cuStreamSynchronize(streams[1])), code(d.cuEventSynchronize(events[0])))
"""
    ) == ["600 600 0", "0 0", "[0, 1] [True, True]", "0 0"]


def test_a_stream_waits_for_the_other_devices_event() -> None:
    assert with_two_devices(
        """
blocked(0); ok(d.cuMemsetD8Async(memory[0], 7, 4096, streams[0])); ok(d.cuEventRecord(events[0], streams[0]))
use(1); thread = opened(0)
ok(d.cuStreamWaitEvent(streams[1], events[0], 0))
ok(d.cuMemcpyPeerAsync(memory[1], contexts[1], memory[0], contexts[0], 4096, streams[1]))
ok(d.cuStreamSynchronize(streams[1])); thread.join()
print(bytes_of(1))
"""
    ) == ["{7}"]


def test_a_copy_between_devices_is_in_the_order_of_its_stream() -> None:
    assert with_two_devices(
        """
blocked(0); ok(d.cuMemsetD8Async(memory[0], 7, 4096, streams[0])); thread = opened(0)
ok(d.cuMemcpyPeerAsync(memory[1], contexts[1], memory[0], contexts[0], 4096, streams[0])); thread.join()
print(bytes_of(1))
blocked(1); ok(d.cuMemsetD8Async(memory[1], 5, 2048, streams[1]))
thread = opened(1); use(1)
ok(d.cuMemcpyPeerAsync(memory[1], contexts[1], memory[0], contexts[0], 4096, streams[1])); thread.join()
ok(d.cuStreamSynchronize(streams[1]))
print(bytes_of(1))
"""
    ) == ["{7}", "{7}"]


def test_an_event_is_recorded_and_timed_on_its_own_device_alone() -> None:
    assert with_two_devices(
        """
use(0)
timed = [ok(d.cuEventCreate(0))]; use(1); timed.append(ok(d.cuEventCreate(0)))
print(code(d.cuEventRecord(events[1], streams[0])), code(d.cuEventRecord(events[0], streams[1])))
for i in range(2): use(i); ok(d.cuEventRecord(timed[i], streams[i])); ok(d.cuEventSynchronize(timed[i]))
print(code(d.cuEventElapsedTime(timed[0], timed[1])))
"""
    ) == ["400 400", "400"]


def test_a_copy_between_addresses_finds_their_devices() -> None:
    assert with_two_devices(
        """
use(1); ok(d.cuMemsetD8Async(memory[1], 9, 4096, streams[1]))
ok(d.cuMemcpyDtoDAsync(memory[0], memory[1], 4096, streams[1])); print(bytes_of(0))
use(0); ok(d.cuMemsetD8Async(memory[0], 4, 4096, streams[0]))
ok(d.cuMemcpyAsync(memory[1], memory[0], 4096, streams[0])); ok(d.cuStreamSynchronize(streams[0])); print(bytes_of(1))
use(0); ok(d.cuMemcpyDtoD(memory[0], memory[1], 2048)); print(bytes_of(0))
"""
    ) == ["{9}", "{4}", "{4}"]


def test_a_library_is_of_all_devices() -> None:
    """It is loaded where none is current or any is, and each device has its own variables (driver API, “Library Management”)."""
    assert with_two_devices(
        KERNELS
        + """
for current in (None, 0, 1):
    ok(d.cuCtxSetCurrent(d.CUcontext(0))) if current is None else use(current)
    library = loaded(); store = ok(d.cuLibraryGetKernel(library, b"store"))
    for i in (1, 0): use(i); stored(i, store, 100 + i)
    print([word_of(i) for i in range(2)])
places = []
for i in range(2): use(i); places.append(int(ok(d.cuLibraryGetGlobal(library, b"kept"))[0])); ok(d.cuMemcpyHtoD(places[i], bytes([10 + i, 0, 0, 0]), 4))
for i in range(2): use(i); stored(i, ok(d.cuKernelGetFunction(store)), 0)
print([word_of(i) for i in range(2)])
"""
    ) == ["[105, 106]"] * 3 + ["[10, 11]"]


def test_a_managed_variable_of_two_devices_is_refused() -> None:
    """Each worker would have one of its own: the program would read another than a kernel has written."""
    assert with_two_devices(
        KERNELS.replace(".global .u32 kept", ".visible .global .attribute(.managed) .u32 kept")
        + "use(0); library = loaded(); print(code(d.cuLibraryGetManaged(library, b'kept')), code(d.cuLibraryGetGlobal(library, b'kept')))"
    ) == ["801 801"]


def test_a_kernel_of_a_library_is_one_on_all_devices() -> None:
    assert with_two_devices(
        KERNELS
        + """
library = loaded(); kernels = []
for i in range(2): use(i); kernels.append(ok(d.cuLibraryGetKernel(library, b"store")))
print(int(kernels[0]) == int(kernels[1]), {int(ok(d.cuKernelGetLibrary(k))) == int(library) for k in kernels})
listed = ok(d.cuLibraryEnumerateKernels(2, library))
print(ok(d.cuLibraryGetKernelCount(library)), sorted(ok(d.cuKernelGetName(k)) for k in listed), int(kernels[0]) in map(int, listed))
most = d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
ok(d.cuKernelSetAttribute(most, 60000, kernels[0], 1))
print([ok(d.cuKernelGetAttribute(most, kernels[0], i)) for i in range(2)], code(d.cuKernelGetAttribute(most, kernels[0], 2)))
print(code(d.cuLibraryGetKernel(library, b"absent")))
use(1); ok(d.cuStreamBeginCapture(streams[1], d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)); stored(1, kernels[0], 7)
graph = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(streams[1])), 0)); ok(d.cuGraphLaunch(graph, streams[1])); print(word_of(1))
ok(d.cuLibraryUnload(library))
for i in range(2): use(i); print(code(d.cuLaunchKernel(d.CUfunction(int(kernels[0])), 1, 1, 1, 1, 1, 1, 0, streams[i], 0, 0)), code(d.cuLibraryUnload(library)))
"""
    ) == [
        "True {True}",
        "2 [b'other', b'store'] True",
        "[49152, 60000] 101",
        "500",
        "12",
        "400 400",
        "400 400",
    ]


def test_a_node_s_kernel_is_the_one_it_was_made_with() -> None:
    """In a node that was added and in a captured one: its name is a program's own, and good on the other device, too."""
    assert with_two_devices(
        KERNELS
        + """
store = ok(d.cuLibraryGetKernel(loaded(), b"store"))
use(0); ok(d.cuStreamBeginCapture(streams[0], d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)); stored(0, store, 7)
graph = ok(d.cuStreamEndCapture(streams[0])); (node,) = ok(d.cuGraphGetNodes(graph, 1))[0]
params = ok(d.cuGraphKernelNodeGetParams(node)); print(int(store) in (int(params.func), int(params.kern)))
params = d.CUDA_KERNEL_NODE_PARAMS(); params.kern = ok(d.cuLibraryGetKernel(loaded(), b"other"))
params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1
added = ok(d.cuGraphAddKernelNode(graph, [], 0, params)); read = ok(d.cuGraphKernelNodeGetParams(added))
print(int(read.kern) == int(params.kern), int(read.func)); use(1); print(code(d.cuGraphAddKernelNode(graph, [], 0, read)))
"""
    ) == ["True", "True 0", "0"]


def test_a_library_outlives_the_reset_of_a_device() -> None:
    """There it is loaded again, with its variables as they begin; the other device keeps its own."""
    assert with_two_devices(
        KERNELS
        + """
library = loaded(); store = ok(d.cuLibraryGetKernel(library, b"store"))
for i in range(2): use(i); ok(d.cuMemcpyHtoD(int(ok(d.cuLibraryGetGlobal(library, b"kept"))[0]), bytes([10 + i, 0, 0, 0]), 4))
ok(d.cuDevicePrimaryCtxReset(0)); contexts[0] = ok(d.cuDevicePrimaryCtxRetain(0)); use(0)
streams[0] = ok(d.cuStreamCreate(1)); memory[0] = ok(d.cuMemAlloc(4096))
for i in range(2): use(i); stored(i, store, 100)
print([word_of(i) for i in range(2)], code(d.cuLibraryUnload(library)))
"""
    ) == ["[105, 111] 0"]


# A thread that runs on another processor may still give an answer after the signal.
STOP = """
def state(of): return open(f"/proc/{of}/stat").read().rpartition(")")[2].split()[0]
def stop():
    os.kill(STOPPED, signal.SIGSTOP)
    while any(state(f"{STOPPED}/task/{thread}") != "T" for thread in os.listdir(f"/proc/{STOPPED}/task")): pass
"""


def beside_a_stopped_worker(code: str) -> list[str]:
    async def run() -> list[str]:
        async with worker(secret="ab" * 32) as first, worker(secret="ab" * 32) as second:
            stopped = f"import signal; STOPPED = {first.handle.pid}{STOP}"
            try:
                done = await first.run(f"{BEGIN}{KERNELS}\n{stopped}\n{code}", second=second)
            finally:
                os.kill(first.handle.pid, signal.SIGCONT)
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines()

    return asyncio.run(run())


def test_a_worker_that_does_not_answer_holds_up_no_launch_on_the_other_device() -> None:
    """Each of two kernels is launched for the first time on the device that has yet to load its library."""
    code = """
use(1); late = ok(d.cuLibraryGetKernel(loaded(), b"store"))
use(0); prompt = ok(d.cuLibraryGetKernel(loaded(), b"store"))
stop()
begun = threading.Event()
def launch(): use(0); begun.set(); stored(0, late, 1)
thread = threading.Thread(target=launch, daemon=True); thread.start(); begun.wait()
while open(f"/proc/self/task/{thread.native_id}/stat").read().rpartition(")")[2].split()[0] != "S": pass
use(1); stored(1, prompt, 2); print(word_of(1), thread.is_alive())
os.kill(STOPPED, signal.SIGCONT); thread.join(); print(word_of(0))
"""
    assert beside_a_stopped_worker(code) == ["7 True", "6"]


def test_nor_does_the_end_of_a_library_that_such_a_worker_has() -> None:
    code = """
use(0); ended = loaded(); prompt = ok(d.cuLibraryGetKernel(loaded(), b"store"))
stop()
begun = threading.Event()
def end(): use(0); begun.set(); ok(d.cuLibraryUnload(ended))
thread = threading.Thread(target=end, daemon=True); thread.start(); begun.wait()
while open(f"/proc/self/task/{thread.native_id}/stat").read().rpartition(")")[2].split()[0] != "S": pass
use(1); stored(1, prompt, 2); print(word_of(1), thread.is_alive())
os.kill(STOPPED, signal.SIGCONT); thread.join(); print(code(d.cuLibraryUnload(ended)))
"""
    assert beside_a_stopped_worker(code) == ["7 True", "400"]


# Memory of the first device that the program sees, too, while the second is current.
SEEN = """
import numpy as np
n = 1000; use(1); streams.append(ok(d.cuStreamCreate(0))); far = int(ok(d.cuMemAlloc(4 * n)))
def view(p): return np.ctypeslib.as_array((ctypes.c_uint32 * n).from_address(p))
def managed(): use(0); p = int(ok(d.cuMemAllocManaged(4 * n, 1))); use(1); return p, view(p)
def mapped(): use(0); p = int(ok(d.cuMemHostAlloc(4 * n, 3))); use(1); return p, view(p)
def reached(): use(0); p = int(ok(d.cuMemHostAlloc(4 * n, 1))); ok(d.cuMemHostGetDevicePointer(p, 0)); use(1); return p, view(p)
def fill(p, value): use(0); ok(d.cuMemsetD32(p, value, n)); ok(d.cuCtxSynchronize()); use(1)
def put(value): ok(d.cuMemsetD32Async(far, value, n, streams[2]))
def there(): o = np.zeros(n, np.uint32); ok(d.cuMemcpyDtoH(o.ctypes.data, far, 4 * n)); return set(o.tolist())
def rows(kind, to, of):
    c = d.CUDA_MEMCPY2D(); c.dstMemoryType = c.srcMemoryType = d.CUmemorytype(kind); c.dstDevice = to; c.srcDevice = of
    c.WidthInBytes = 200; c.Height = 10; c.srcPitch = c.dstPitch = 400; return c
"""


@AT_ADDRESSES_OF_THE_PROGRAM
@pytest.mark.parametrize("kind", ["managed", "mapped", "reached"])
def test_copies_take_memory_of_another_device_that_the_program_sees(kind: str) -> None:
    assert with_two_devices(
        SEEN
        + f"""
s = streams[2]; (p, a), (q, b) = {kind}(), {kind}(); o = np.zeros(n, np.uint32); h = int(ok(d.cuMemAllocHost(4 * n)))
copies = [lambda to, of: d.cuMemcpyDtoD(to, of, 4 * n), lambda to, of: d.cuMemcpyDtoDAsync(to, of, 4 * n, s), lambda to, of: d.cuMemcpy(to, of, 4 * n), lambda to, of: d.cuMemcpyAsync(to, of, 4 * n, s)]
for i, copy in enumerate(copies):
    fill(p, i + 1); ok(copy(far, p)); ok(d.cuStreamSynchronize(s)); assert there() == {{i + 1}}, i
    put(i + 11); ok(copy(p, far)); ok(d.cuStreamSynchronize(s)); assert set(a.tolist()) == {{i + 11}}, i
    ok(copy(q, p)); ok(d.cuStreamSynchronize(s)); assert set(b.tolist()) == {{i + 11}}, i
fill(p, 6); ok(d.cuMemcpyDtoH(o.ctypes.data, p, 4 * n)); assert set(o.tolist()) == {{6}}; ok(d.cuMemcpyDtoHAsync(h, p, 4 * n, s)); assert set(view(h).tolist()) == {{6}}
o[:] = 8; ok(d.cuMemcpyHtoD(p, o.ctypes.data, 4 * n)); assert set(a.tolist()) == {{8}}; ok(d.cuMemcpyHtoDAsync(p, h, 4 * n, s)); assert set(a.tolist()) == {{6}}
for kind in (2, 4):
    fill(p, 3); put(4); ok(d.cuMemcpy2DAsync(rows(kind, far, p), s)); ok(d.cuStreamSynchronize(s)); assert there() == {{3, 4}}
    fill(p, 5); put(7); ok(d.cuMemcpy2DAsync(rows(kind, p, far), s)); ok(d.cuStreamSynchronize(s)); assert set(a[:50].tolist()) == {{7}} and set(a[50:100].tolist()) == {{5}}
print(code(d.cuMemcpyDtoD(far, p, 4 * n + 1)), code(d.cuCtxSynchronize()))
"""
    ) == ["1 0"]


def test_rows_at_an_address_of_another_device_are_found_as_a_plain_copy_s_are() -> None:
    """They were taken for the program's own, and it ended with a segmentation fault."""
    assert with_two_devices(
        SEEN
        + """
use(0); p = int(ok(d.cuMemAlloc(4 * n))); o = np.zeros(n, np.uint32); s = streams[2]; fill(p, 3); put(4)
ok(d.cuMemcpy2DAsync(rows(4, far, p), s)); ok(d.cuStreamSynchronize(s)); print(there())
fill(p, 5); put(6); ok(d.cuMemcpy2DAsync(rows(4, p, far), s)); use(0); ok(d.cuMemcpyDtoH(o.ctypes.data, p, 4 * n)); print(set(o[:50].tolist()), set(o[50:100].tolist()))
use(1); o[:] = 9; ok(d.cuMemcpy2D(rows(4, p, o.ctypes.data))); use(0); ok(d.cuMemcpyDtoH(o.ctypes.data, p, 4 * n)); print(set(o[:50].tolist()), set(o[50:100].tolist()))
"""
    ) == ["{3, 4}", "{6} {5}", "{9} {5}"]


def test_a_copy_within_another_device_is_in_the_order_of_its_stream() -> None:
    assert with_two_devices(
        """
use(0); second = ok(d.cuMemAlloc(4096)); ok(d.cuMemsetD8(second, 3, 4096)); ok(d.cuCtxSynchronize()); blocked(1); thread = opened(1); use(1)
ok(d.cuMemcpyAsync(memory[0], second, 4096, streams[1])); thread.join(); ok(d.cuStreamSynchronize(streams[1])); print(bytes_of(0))
"""
    ) == ["{3}"]
