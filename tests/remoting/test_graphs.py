"""CUDA graphs and stream capture: what was captured or built runs again, and misuse is an error."""

from __future__ import annotations

import asyncio

from tests.remoting.conftest import worker

GRAPHS = """
begin()
GLOBAL, THREAD, RELAXED = (d.CUstreamCaptureMode(i) for i in range(3))
s, t = ok(d.cuStreamCreate(1)), ok(d.cuStreamCreate(1))
a = ok(d.cuMemAlloc(64)); ok(d.cuMemsetD8Async(a, 0, 64, s)); ok(d.cuCtxSynchronize())
store = load(STORE_U32, b'store')
KINDS = (ctypes.c_uint64, ctypes.c_uint32)
def words(n=4):
    ok(d.cuCtxSynchronize()); out = bytearray(4 * n); ok(d.cuMemcpyDtoH(out, a, 4 * n))
    return [int.from_bytes(out[i:i + 4], 'little') for i in range(0, 4 * n, 4)]
def launch(stream, place, value):
    return d.cuLaunchKernel(store, 1,1,1, 1,1,1, 0, stream, ((int(a) + 4 * place, value), KINDS), 0)
def kernel(place, value):
    p = d.CUDA_KERNEL_NODE_PARAMS(); p.func = store; p.kernelParams = ((int(a) + 4 * place, value), KINDS)
    p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1
    return p
def fill(place, value, count):
    p = d.CUDA_MEMSET_NODE_PARAMS(); p.dst = int(a) + 4 * place; p.value = value; p.elementSize = 4; p.width = count; p.height = 1
    return p
def context(): return ok(d.cuCtxGetCurrent())
def begin_capture(stream=s, mode=GLOBAL): ok(d.cuStreamBeginCapture(stream, mode))
def end(stream=s): return d.cuStreamEndCapture(stream)
def make(graph): return ok(d.cuGraphInstantiate(graph, 0))
def go(executable): ok(d.cuGraphLaunch(executable, s)); ok(d.cuStreamSynchronize(s))
def said(result): print(result[0].name.removeprefix('CUDA_').removeprefix('ERROR_'))
"""


def program(code: str) -> list[str]:
    async def story() -> list[str]:
        async with worker() as one:
            done = await one.run(GRAPHS + code)
            assert (done.returncode, done.stderr) == (0, "")
            return done.stdout.splitlines()

    return asyncio.run(story())


def test_a_captured_graph_does_nothing_until_it_is_launched_and_then_reads_the_host_s_new_data() -> None:
    said = program("""
src, dst = (ctypes.c_uint32 * 4)(1, 2, 3, 4), (ctypes.c_uint32 * 4)()
begin_capture()
ok(d.cuMemcpyHtoDAsync(a, ctypes.addressof(src), 16, s)); ok(launch(s, 1, 77)); ok(d.cuMemsetD32Async(int(a) + 8, 5, 1, s))
ok(d.cuMemcpyDtoHAsync(ctypes.addressof(dst), a, 16, s))
print(ok(d.cuStreamIsCapturing(s)).name, ok(d.cuStreamIsCapturing(t)).name)
graph = ok(end()); print(words(), list(dst))
executable = make(graph); ok(d.cuGraphDestroy(graph))
for i in (10, 20): src[0] = i; go(executable); print(words(), list(dst))
print([ok(d.cuStreamIsCapturing(s)).name, ok(d.cuGraphExecDestroy(executable))][0]); said(d.cuGraphLaunch(executable, s))
""")
    assert said == [
        "CU_STREAM_CAPTURE_STATUS_ACTIVE CU_STREAM_CAPTURE_STATUS_NONE",
        "[0, 0, 0, 0] [0, 0, 0, 0]",
        "[10, 77, 5, 4] [10, 77, 5, 4]",
        "[20, 77, 5, 4] [20, 77, 5, 4]",
        "CU_STREAM_CAPTURE_STATUS_NONE",
        "INVALID_VALUE",
    ]


def test_events_fork_a_capture_to_another_stream_and_join_it_again() -> None:
    said = program("""
fork, join = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
begin_capture(); ok(launch(s, 0, 1)); ok(d.cuEventRecord(fork, s)); ok(d.cuStreamWaitEvent(t, fork, 0))
ok(launch(t, 1, 2)); ok(launch(s, 2, 3)); ok(d.cuEventRecord(join, t)); ok(d.cuStreamWaitEvent(s, join, 0)); ok(launch(s, 3, 4))
print(ok(d.cuStreamIsCapturing(t)).name, d.cuEventSynchronize(fork)[0].name)
said(end())
begin_capture(); ok(launch(s, 0, 1)); ok(d.cuEventRecord(fork, s)); ok(d.cuStreamWaitEvent(t, fork, 0))
ok(launch(t, 1, 2)); ok(launch(s, 2, 3)); ok(d.cuEventRecord(join, t)); ok(d.cuStreamWaitEvent(s, join, 0)); ok(launch(s, 3, 4))
graph = ok(end()); print(words()); nodes, count = ok(d.cuGraphGetNodes(graph, 9)); print(count)
roots, count = ok(d.cuGraphGetRootNodes(graph, 9)); print(count, ok(d.cuGraphNodeGetDependencies(nodes[3], 9))[-1], ok(d.cuGraphNodeGetDependentNodes(nodes[0], 9))[-1])
go(make(graph)); print(words())
""")
    assert said == [
        "CU_STREAM_CAPTURE_STATUS_ACTIVE CUDA_ERROR_CAPTURED_EVENT",
        "STREAM_CAPTURE_INVALIDATED",
        "[0, 0, 0, 0]",
        "4",
        "1 2 2",
        "[1, 2, 3, 4]",
    ]


def test_misuse_of_a_capture_has_the_error_that_cuda_names() -> None:
    said = program("""
fork, before = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0)); ok(d.cuEventRecord(before, t))
said(d.cuStreamBeginCapture(0, GLOBAL)); said(end())
begin_capture(); said(d.cuStreamBeginCapture(s, GLOBAL)); said(d.cuStreamSynchronize(s)); said(launch(s, 0, 1)); said(end())
begin_capture(); ok(launch(s, 0, 1)); ok(d.cuEventRecord(fork, s)); ok(d.cuStreamWaitEvent(t, fork, 0)); ok(launch(t, 1, 1)); said(end())
begin_capture(); ok(launch(s, 0, 1)); ok(d.cuEventRecord(fork, s)); ok(d.cuStreamWaitEvent(t, fork, 0)); said(end(t)); said(end())
begin_capture(); said(d.cuStreamWaitEvent(s, before, 0)); said(end())
begin_capture(); ok(d.cuEventRecord(fork, s)); ok(d.cuStreamBeginCapture(t, GLOBAL)); said(d.cuStreamWaitEvent(t, fork, 0)); said(end()); said(end(t))
begin_capture(); said(d.cuCtxSynchronize()); said(end())
begin_capture(); said(d.cuMemAlloc(64)); said(end())
begin_capture(mode=RELAXED); said(d.cuMemAlloc(64)); said(end())
begin_capture(); ok(launch(0, 0, 9)); said(end())  # a non-blocking stream does not mind the legacy stream
b = ok(d.cuStreamCreate(0)); begin_capture(b); said(d.cuStreamIsCapturing(0)); said(launch(0, 0, 1)); said(end(b))
begin_capture(b); said(d.cuMemsetD8(a, 1, 4)); said(end(b))
begin_capture(); wrong = []; here = context()
def other(): ok(d.cuCtxSetCurrent(here)); wrong.append(end())
thread = threading.Thread(target=other); thread.start(); thread.join(); said(wrong[0]); said(end())
print(words(1))
""")
    prefix = "STREAM_CAPTURE_"
    assert said == [
        *[prefix + "UNSUPPORTED", "ILLEGAL_STATE"],
        *["ILLEGAL_STATE", prefix + "UNSUPPORTED", prefix + "INVALIDATED", prefix + "INVALIDATED"],
        prefix + "UNJOINED",
        *[prefix + "UNMATCHED", prefix + "INVALIDATED"],
        *[prefix + "ISOLATION", prefix + "INVALIDATED"],
        *[prefix + "MERGE", prefix + "INVALIDATED", prefix + "INVALIDATED"],
        *[prefix + "UNSUPPORTED", prefix + "INVALIDATED"],
        *[prefix + "UNSUPPORTED", prefix + "INVALIDATED"],
        *["SUCCESS", "SUCCESS"],
        "SUCCESS",
        *[prefix + "IMPLICIT", prefix + "IMPLICIT", prefix + "INVALIDATED"],
        *[prefix + "IMPLICIT", prefix + "INVALIDATED"],
        *[prefix + "WRONG_THREAD", "SUCCESS"],
        "[9]",
    ]


def test_a_graph_built_by_hand_runs_in_the_order_of_its_edges_and_takes_new_parameters() -> None:
    said = program("""
graph = ok(d.cuGraphCreate(0))
last = ok(d.cuGraphAddKernelNode(graph, None, 0, kernel(0, 2)))
first = ok(d.cuGraphAddMemsetNode(graph, None, 0, fill(0, 1, 4), context()))
ok(d.cuGraphAddDependencies(graph, [first], [last], 1)); said(d.cuGraphAddDependencies(graph, [first], [last], 1))
executable = make(graph); go(executable); print(words())
ok(d.cuGraphExecKernelNodeSetParams(executable, last, kernel(1, 3))); go(executable); print(words())
ok(d.cuGraphExecMemsetNodeSetParams(executable, first, fill(0, 8, 2), context())); go(executable); print(words())
ok(d.cuGraphNodeSetEnabled(executable, first, 0)); ok(d.cuMemsetD8Async(a, 0, 16, s)); go(executable); print(words(), ok(d.cuGraphNodeGetEnabled(executable, first)))
go(make(graph)); print(words())  # the graph itself has not changed
got = ok(d.cuGraphKernelNodeGetParams(last)); print(int(got.func) == int(store), got.gridDimX, ctypes.c_uint32.from_address(ctypes.c_uint64.from_address(int(got.kernelParams) + 8).value).value)
ok(d.cuGraphKernelNodeSetParams(last, kernel(2, 6))); go(make(graph)); print(words())
""")
    assert said == [
        "INVALID_VALUE",
        "[2, 1, 1, 1]",
        "[1, 3, 1, 1]",
        "[8, 3, 1, 1]",
        "[0, 3, 0, 0] 0",
        "[2, 1, 1, 1]",
        "True 1 2",
        "[1, 1, 6, 1]",
    ]


def test_an_executable_graph_is_updated_from_one_of_the_same_shape_and_no_other() -> None:
    said = program("""
def chain(value, count=2):
    graph = ok(d.cuGraphCreate(0)); before = []
    for i in range(count): before = [ok(d.cuGraphAddKernelNode(graph, before, len(before), kernel(i, value + i)))]
    return graph
executable = make(chain(1)); go(executable); print(words())
print(ok(d.cuGraphExecUpdate(executable, chain(5))).result.name); go(executable); print(words())
def result(graph):
    info = d.CUgraphExecUpdateResultInfo(); code = d.cuGraphExecUpdate(executable, graph); print(code[0].name)
result(chain(7, 3))
other = ok(d.cuGraphCreate(0)); n = ok(d.cuGraphAddKernelNode(other, None, 0, kernel(0, 1))); ok(d.cuGraphAddMemsetNode(other, [n], 1, fill(1, 1, 1), context())); result(other)
apart = ok(d.cuGraphCreate(0)); [ok(d.cuGraphAddKernelNode(apart, None, 0, kernel(i, 1))) for i in (0, 1)]; result(apart)
go(executable); print(words())
""")
    assert said == [
        "[1, 2, 0, 0]",
        "CU_GRAPH_EXEC_UPDATE_SUCCESS",
        "[5, 6, 0, 0]",
        *["CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"] * 3,
        "[5, 6, 0, 0]",
    ]


def test_host_nodes_run_between_the_work_before_and_after_them() -> None:
    said = program("""
seen = []; FN = ctypes.CFUNCTYPE(None, ctypes.c_void_p); dst = (ctypes.c_uint32 * 1)()
def note(data): seen.append((data, dst[0]))
note = FN(note); raw = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc  # cuda.bindings frees what it passes after one call
begin_capture()
for i in (1, 2, 3):
    ok(launch(s, 0, 10 * i)); ok(d.cuMemcpyDtoHAsync(ctypes.addressof(dst), a, 4, s)); assert raw(ctypes.c_void_p(int(s)), note, ctypes.c_void_p(i)) == 0
executable = make(ok(end())); print(seen); go(executable); go(executable); print(seen)
""")
    once = "(1, 10), (2, 20), (3, 30)"
    assert said == ["[]", f"[{once}, {once}]"]


def test_a_copy_node_makes_a_pitched_copy_and_a_clone_and_a_child_are_copies_of_their_own() -> None:
    said = program("""
host = (ctypes.c_uint32 * 4)(1, 2, 3, 4)
copy = d.CUDA_MEMCPY3D(); copy.srcMemoryType = d.CUmemorytype.CU_MEMORYTYPE_HOST; copy.srcHost = ctypes.addressof(host); copy.srcPitch = 8
copy.dstMemoryType = d.CUmemorytype.CU_MEMORYTYPE_DEVICE; copy.dstDevice = int(a); copy.dstPitch = 16; copy.WidthInBytes = 8; copy.Height = 2; copy.Depth = 1
inner = ok(d.cuGraphCreate(0)); node = ok(d.cuGraphAddMemcpyNode(inner, None, 0, copy, context()))
clone = ok(d.cuGraphClone(inner)); twin = ok(d.cuGraphNodeFindInClone(node, clone)); print(int(twin) != int(node), ok(d.cuGraphNodeGetType(twin)).name)
outer = ok(d.cuGraphCreate(0)); empty = ok(d.cuGraphAddEmptyNode(outer, None, 0))
child = ok(d.cuGraphAddChildGraphNode(outer, [empty], 1, inner)); ok(d.cuGraphAddKernelNode(outer, [child], 1, kernel(1, 9)))
ok(d.cuGraphDestroyNode(node)); ok(d.cuGraphDestroy(inner)); said(d.cuGraphDestroy(ok(d.cuGraphChildGraphNodeGetGraph(child))))
go(make(outer)); print(words(8)); ok(d.cuMemsetD8Async(a, 0, 64, s)); go(make(clone)); print(words(8))
begin_capture(t); ok(d.cuGraphLaunch(make(clone), t)); both = ok(end(t)); ok(d.cuMemsetD8Async(a, 0, 64, s))
print(ok(d.cuGraphNodeGetType(ok(d.cuGraphGetNodes(both, 1))[0][0])).name); go(make(both)); print(words(8))
""")
    assert said == [
        "True CU_GRAPH_NODE_TYPE_MEMCPY",
        "INVALID_VALUE",
        "[1, 9, 0, 0, 3, 4, 0, 0]",
        "[1, 2, 0, 0, 3, 4, 0, 0]",
        "CU_GRAPH_NODE_TYPE_GRAPH",
        "[1, 2, 0, 0, 3, 4, 0, 0]",
    ]


def test_cycles_and_stray_handles_are_errors() -> None:
    said = program("""
graph = ok(d.cuGraphCreate(0)); x, y = (ok(d.cuGraphAddEmptyNode(graph, None, 0)) for _ in range(2))
ok(d.cuGraphAddDependencies(graph, [x, y], [y, x], 2)); said(d.cuGraphInstantiate(graph, 0)); said(d.cuGraphAddDependencies(graph, [x], [x], 1))
ok(d.cuGraphRemoveDependencies(graph, [y], [x], 1)); make(graph)
other = ok(d.cuGraphCreate(0)); said(d.cuGraphAddEmptyNode(other, [x], 1)); said(d.cuGraphAddDependencies(other, [x], [y], 1))
ok(d.cuGraphDestroyNode(y)); said(d.cuGraphNodeGetType(y)); ok(d.cuGraphDestroy(graph)); said(d.cuGraphDestroy(graph)); said(d.cuGraphNodeGetType(x))
said(d.cuGraphLaunch(d.CUgraphExec(4096), s)); said(d.cuGraphInstantiate(d.CUgraph(4096), 0))
""")
    assert said == ["INVALID_VALUE"] * 9


def test_a_graph_keeps_its_user_objects_until_the_last_that_needs_them_is_gone() -> None:
    said = program("""
FN = ctypes.CFUNCTYPE(None, ctypes.c_void_p); gone = []; fn = FN(gone.append)
one = ok(d.cuUserObjectCreate(7, d.CUhostFn(ctypes.cast(fn, ctypes.c_void_p).value), 1, 1))
graph = ok(d.cuGraphCreate(0)); ok(d.cuGraphRetainUserObject(graph, one, 1, 1)); executable = make(graph)
ok(d.cuGraphDestroy(graph)); print(gone); ok(d.cuGraphExecDestroy(executable)); print(gone); said(d.cuUserObjectRelease(one, 1))
""")
    assert said == ["[]", "[7]", "INVALID_VALUE"]


ADD_ONE = """
add = load(b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 to) { .reg .b64 %rd<2>; .reg .b32 %r<3>; ld.param.u64 %rd1, [to]; ld.global.u32 %r1, [%rd1]; add.u32 %r2, %r1, 1; st.global.u32 [%rd1], %r2; ret; }
''', b'add')
begin_capture(); ok(d.cuLaunchKernel(add, 1,1,1, 1,1,1, 0, s, ((int(a),), (ctypes.c_uint64,)), 0)); executable = make(ok(end()))
"""


def test_a_graph_launched_a_thousand_times_has_run_a_thousand_times() -> None:
    said = program(
        ADD_ONE
        + "for i in range(1000): ok(d.cuGraphLaunch(executable, s))\nok(d.cuStreamSynchronize(s)); print(words(1))"
    )
    assert said == ["[1000]"]


def test_launches_of_one_executable_come_one_after_the_other_whatever_their_streams() -> None:
    # The kernel takes its time between reading the number and writing the next one.
    said = program("""
slow = load(b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 to) { .reg .pred %p; .reg .b64 %rd<2>; .reg .b32 %r<4>; ld.param.u64 %rd1, [to]; ld.volatile.global.u32 %r1, [%rd1]; mov.u32 %r3, 200000;
again: sub.u32 %r3, %r3, 1; setp.ne.u32 %p, %r3, 0; @%p bra again; add.u32 %r2, %r1, 1; st.volatile.global.u32 [%rd1], %r2; ret; }
''', b'add')
def graph(place):
    begin_capture(); ok(d.cuLaunchKernel(slow, 1,1,1, 1,1,1, 0, s, ((int(a) + 4 * place,), (ctypes.c_uint64,)), 0)); return make(ok(end()))
streams = [ok(d.cuStreamCreate(1)) for i in range(4)]; first, second = graph(0), graph(1)
for i in range(40): ok(d.cuGraphLaunch(first, streams[i % 4])); ok(d.cuGraphLaunch(second, streams[(i + 1) % 4]))
print(words(2))
ok(d.cuStreamDestroy(streams.pop())); ok(d.cuGraphLaunch(first, streams[0])); ok(d.cuGraphLaunch(first, 0)); ok(d.cuGraphLaunch(first, streams[1])); print(words(1))
""")
    assert said == ["[40, 40]", "[43]"]


def test_threads_launch_one_graph_and_capture_their_own() -> None:
    said = program(
        ADD_ONE
        + """
here = context()
def work(n):
    ok(d.cuCtxSetCurrent(here)); mine = ok(d.cuStreamCreate(1))
    for i in range(20):
        ok(d.cuStreamBeginCapture(mine, THREAD)); ok(launch(mine, n, i)); graph = ok(d.cuStreamEndCapture(mine))
        own = make(graph); ok(d.cuGraphDestroy(graph)); ok(d.cuGraphLaunch(own, mine)); ok(d.cuGraphLaunch(executable, mine)); ok(d.cuGraphExecDestroy(own))
    ok(d.cuStreamSynchronize(mine)); ok(d.cuStreamDestroy(mine))
threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]; [x.start() for x in threads]; [x.join() for x in threads]
print(words(5))
"""
    )
    assert said == ["[80, 19, 19, 19, 19]"]


def test_cuda_core_s_graph_builder_forks_joins_and_embeds() -> None:
    said = program("""
from cuda.core import Device, LaunchConfig, ObjectCode, launch as start
device = Device(); device.set_current(); stream = device.create_stream(); one = LaunchConfig(grid=1, block=1)
kernel = ObjectCode.from_ptx(b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 to) { .reg .b64 %rd<2>; .reg .b32 %r<3>; ld.param.u64 %rd1, [to]; ld.global.u32 %r1, [%rd1]; add.u32 %r2, %r1, 1; st.global.u32 [%rd1], %r2; ret; }
''').get_kernel('add')
builder = device.create_graph_builder().begin_building(); start(builder, one, kernel, int(a))
left, right = builder.split(2); start(left, one, kernel, int(a)); start(right, one, kernel, int(a) + 4)
graph = type(builder).join(left, right).end_building().complete()
for _ in range(5): graph.launch(stream)
stream.sync(); print(words(2))
""")
    assert said == ["[10, 5]"]
