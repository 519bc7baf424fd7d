"""Memory that graphs allocate and free: where it is, how long it is there, what it costs, and every rule about it."""

from __future__ import annotations

import asyncio

import pytest

from tests.remoting.conftest import AT_ADDRESSES_OF_THE_PROGRAM, MIB, WITHOUT_SANITIZER, worker
from tests.remoting.test_graphs import GRAPHS

pytestmark = AT_ADDRESSES_OF_THE_PROGRAM

MEMORY = """
U = 2 << 20; A = d.CUgraphMem_attribute; TYPES = d.CUgraphNodeType; AUTO = d.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
def wanted(bytes, device=0, kind=1, where=1):
    p = d.CUDA_MEM_ALLOC_NODE_PARAMS(); p.bytesize = bytes
    p.poolProps.allocType = d.CUmemAllocationType(kind); p.poolProps.location.type = d.CUmemLocationType(where); p.poolProps.location.id = device
    return p
def alloc(graph, bytes, after=()):
    p = wanted(bytes); node = ok(d.cuGraphAddMemAllocNode(graph, list(after), len(after), p)); return node, int(p.dptr)
def free(graph, address, after=()): return d.cuGraphAddMemFreeNode(graph, list(after), len(after), address)
def new(): return ok(d.cuGraphCreate(0))
def set8(graph, address, value, bytes, after):
    p = d.CUDA_MEMSET_NODE_PARAMS(); p.dst = address; p.value = value; p.elementSize = 1; p.width = bytes; p.height = 1
    return ok(d.cuGraphAddMemsetNode(graph, list(after), len(after), p, context()))
def figures(): return [int(ok(d.cuDeviceGetGraphMemAttribute(0, each))) // U for each in (A.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, A.CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, A.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, A.CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)]
def taken(): total_free, total = ok(d.cuMemGetInfo()); return (total - total_free) // U
def read(address, bytes=8):
    out = bytearray(bytes); ok(d.cuMemcpyDtoHAsync(out, address, bytes, s)); ok(d.cuStreamSynchronize(s)); return set(out)
def trim(): ok(d.cuDeviceGraphMemTrim(0))
def run(executable, stream=s): return d.cuGraphLaunch(executable, stream)
"""


def program(code: str, memory_mib: int = 64) -> list[str]:
    async def story() -> list[str]:
        async with worker(memory_mib=memory_mib) as one:
            done = await one.run(GRAPHS + MEMORY + code)
            assert (done.returncode, done.stderr) == (0, "")
            return done.stdout.splitlines()

    return asyncio.run(story())


def test_a_program_that_captures_allocations_kernels_copies_and_frees_runs_a_hundred_times_in_the_same_memory() -> (
    None
):
    said = program("""
src, dst = (ctypes.c_uint32 * 1024)(*range(1024)), (ctypes.c_uint32 * 1024)()
before = taken(); begin_capture()
x = ok(d.cuMemAllocAsync(4096, s)); y = ok(d.cuMemAllocFromPoolAsync(3 * U, ok(d.cuDeviceGetDefaultMemPool(0)), s)); print(taken() - before)
ok(d.cuMemcpyHtoDAsync(x, ctypes.addressof(src), 4096, s)); ok(d.cuMemcpyAsync(y, x, 4096, s)); ok(d.cuMemFreeAsync(x, s))
ok(d.cuLaunchKernel(store, 1,1,1, 1,1,1, 0, s, ((int(y) + 8, 77), KINDS), 0)); ok(d.cuMemcpyDtoHAsync(ctypes.addressof(dst), y, 4096, s)); ok(d.cuMemFreeAsync(y, s))
graph = ok(end()); nodes, count = ok(d.cuGraphGetNodes(graph, 9)); print(*(ok(d.cuGraphNodeGetType(n)).name.split('TYPE_')[1] for n in nodes[:count]))
executable = make(graph); ok(d.cuGraphDestroy(graph)); print(taken() - before)
for i in range(100): src[0] = i; ok(run(executable)); ok(d.cuStreamSynchronize(s)); assert list(dst[:5]) == [i, 1, 77, 3, 4] and dst[1023] == 1023; assert taken() - before == 4, i
print(figures()); ok(d.cuGraphExecDestroy(executable)); print(taken() - before, figures())
""")
    assert said == [
        "0",
        "MEM_ALLOC MEM_ALLOC MEMCPY MEMCPY MEM_FREE KERNEL MEMCPY MEM_FREE",
        "0",
        "[4, 4, 4, 4]",
        "0 [0, 4, 0, 4]",
    ]


def test_an_address_is_known_at_once_and_the_memory_is_there_from_the_first_launch_on() -> None:
    said = program("""
graph = new(); node, x = alloc(graph, 1000); filled = set8(graph, x, 5, 1000, [node]); tail, y = alloc(graph, 3 * U + 1, [filled])
print(ok(d.cuGraphNodeGetType(node)).name, x % 512, y % 512, taken(), x == alloc(graph, 1)[1])
print(ok(d.cuPointerGetAttribute(d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, x + 9)), [int(i) for i in ok(d.cuMemGetAddressRange(x + 9))] == [x, 1000])
got = ok(d.cuGraphMemAllocNodeGetParams(tail)); print(int(got.dptr) == y, got.bytesize == 3 * U + 1, got.poolProps.location.id, got.poolProps.allocType.name)
said(d.cuMemsetD8(x, 1, 4)); said(d.cuCtxSynchronize()); said(d.cuMemFree(x)); said(d.cuMemFreeAsync(x, s))
executable = make(graph); print(taken()); ok(run(executable)); print(taken(), read(x, 1000)); ok(d.cuMemsetD8Async(y, 9, 3 * U + 1, s)); print(read(y + 3 * U, 1))
print(ok(d.cuPointerGetAttribute(d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_RANGE_SIZE, x)), [int(i) for i in ok(d.cuMemGetAddressRange(y + 5 * 4))] == [y, 3 * U + 1])
path = '/tmp/%d.dot' % os.getpid(); ok(d.cuGraphDebugDotPrint(graph, path.encode(), 0)); print(f'"alloc {y:#x}"' in open(path).read()); os.unlink(path)
""")
    assert said == [
        "CU_GRAPH_NODE_TYPE_MEM_ALLOC 0 0 0 False",
        "2 True",
        "True True 0 CU_MEM_ALLOCATION_TYPE_PINNED",
        *["SUCCESS", "INVALID_VALUE", "INVALID_VALUE", "INVALID_VALUE"],
        "0",
        "5 {5}",
        "{9}",
        "1000 True",
        "True",
    ]


def test_what_an_allocation_may_be_is_checked_when_its_node_is_made() -> None:
    said = program("""
graph = new(); other = new(); stray = ok(d.cuGraphAddEmptyNode(other, None, 0))
def add(p, graph=graph, after=()): said(d.cuGraphAddMemAllocNode(graph, list(after), len(after), p))
def changed(**values):
    p = wanted(64)
    for name, value in values.items(): setattr(p.poolProps if name == 'handleTypes' else p, name, value)
    return p
def access(device, flags=3):
    a = d.CUmemAccessDesc(); a.location.type = d.CUmemLocationType(1); a.location.id = device; a.flags = d.CUmemAccess_flags(flags); return a
add(wanted(0)); add(wanted(64, kind=0)); add(wanted(64, where=0)); add(wanted(64, device=1)); add(wanted(64, device=-1)); add(wanted(64, where=2))
add(wanted(2**64 - 1)); add(wanted(1 << 45)); add(changed(handleTypes=d.CUmemAllocationHandleType(1))); add(wanted(64), d.CUgraph(4096)); add(wanted(64), after=[stray])
p = wanted(64); p.accessDescs = [access(0)] * 2; p.accessDescCount = 2; add(p)
p = wanted(64); p.accessDescs = [access(1)]; p.accessDescCount = 1; add(p)
p = wanted(64); p.accessDescs = [access(0, 1)]; p.accessDescCount = 1; add(p)
ok(d.cuGraphClone(graph))  # nothing of it is in the graph
p = wanted(64); p.accessDescs = [access(0)]; p.accessDescCount = 1; node = ok(d.cuGraphAddMemAllocNode(graph, None, 0, p)); got = ok(d.cuGraphMemAllocNodeGetParams(node))
print(got.accessDescCount, ctypes.c_uint32.from_address(ctypes.c_uint64.from_address(got.getPtr() + 88).value + 8).value)  # the bindings give no list that they did not get
said(d.cuGraphMemFreeNodeGetParams(node)); said(d.cuGraphMemAllocNodeGetParams(stray))
""")
    assert said == [
        *["INVALID_VALUE"] * 5,
        "NOT_SUPPORTED",
        *["OUT_OF_MEMORY"] * 2,
        *["INVALID_VALUE"] * 6,
        "1 3",
        *["INVALID_VALUE"] * 2,
    ]


def test_the_same_nodes_are_made_by_the_call_for_any_node_and_cannot_be_changed() -> None:
    said = program("""
graph = new(); p = d.CUgraphNodeParams(); p.type = TYPES.CU_GRAPH_NODE_TYPE_MEM_ALLOC; p.alloc.bytesize = 64
p.alloc.poolProps.allocType = d.CUmemAllocationType(1); p.alloc.poolProps.location.type = d.CUmemLocationType(1)
node = ok(d.cuGraphAddNode(graph, None, 0, p)); x = int(p.alloc.dptr); mid = set8(graph, x, 3, 64, [node])
q = d.CUgraphNodeParams(); q.type = TYPES.CU_GRAPH_NODE_TYPE_MEM_FREE; q.free.dptr = x; gone = ok(d.cuGraphAddNode(graph, [mid], 1, q))
print(ok(d.cuGraphNodeGetType(gone)).name, int(ok(d.cuGraphMemFreeNodeGetParams(gone))) == x == int(ok(d.cuGraphMemAllocNodeGetParams(node)).dptr))
q.free.dptr = 4096; said(d.cuGraphAddNode(graph, [mid], 1, q)); p.alloc.bytesize = 0; said(d.cuGraphAddNode(graph, None, 0, p)); p.alloc.bytesize = 64
executable = make(graph); said(d.cuGraphNodeSetParams(node, p)); said(d.cuGraphExecNodeSetParams(executable, node, p)); said(d.cuGraphNodeSetParams(gone, q)); said(d.cuGraphExecNodeSetParams(executable, gone, q))
said(d.cuGraphNodeSetEnabled(executable, node, 0)); ok(run(executable)); ok(run(executable)); print(figures()[0])
""")
    assert said == [
        "CU_GRAPH_NODE_TYPE_MEM_FREE True",
        *["INVALID_VALUE"] * 2,
        *["NOT_SUPPORTED"] * 4,
        "INVALID_VALUE",
        "1",
    ]


def test_only_what_a_graph_allocates_can_be_freed_once_in_its_own_graph_or_in_others() -> None:
    said = program("""
graph, other, third = new(), new(), new(); node, x = alloc(graph, 64); keep, y = alloc(graph, 64); mid = set8(graph, x, 1, 64, [node])
for address in (0, 4096, int(a), x + 8): said(free(graph, address))
ok(d.cuGraphClone(other)); said(free(graph, x, [mid])); said(free(graph, x, [mid])); said(free(other, x))
said(free(other, y)); said(free(other, y)); said(free(graph, y, [keep])); said(free(third, y))
""")
    assert said == [
        *["INVALID_VALUE"] * 4,
        *["SUCCESS", "INVALID_VALUE", "INVALID_VALUE"],
        *["SUCCESS", "INVALID_VALUE", "INVALID_VALUE", "SUCCESS"],
    ]


@pytest.mark.parametrize(
    ("how", "then"),
    [
        ("ok(d.cuMemFreeAsync(x, s))", "INVALID_VALUE"),
        ("ok(d.cuMemFreeAsync(x, t))", "INVALID_VALUE"),
        ("ok(d.cuStreamSynchronize(s)); ok(d.cuMemFree(x))", "INVALID_VALUE"),
        ("ok(run(frees))", "INVALID_VALUE"),
    ],
)
def test_an_allocation_that_outlives_its_launch_is_freed_by_the_program_once(how: str, then: str) -> None:
    said = program(f"""
graph = new(); node, x = alloc(graph, U); set8(graph, x, 6, U, [node]); executable = make(graph)
other = new(); ok(free(other, x)); frees = make(other); said(run(frees))
for i in range(3):
    ok(run(executable)); said(run(executable)); print(read(x)); {how}
    said(d.cuMemFreeAsync(x, s)); said(d.cuMemFree(x)); said(run(frees))
print(taken(), figures())
""")
    assert said == [
        "INVALID_VALUE",
        *["INVALID_VALUE", "{6}", *[then] * 3] * 3,
        "1 [1, 1, 1, 1]",
    ]


def test_an_executable_may_be_told_to_free_what_the_last_launch_left() -> None:
    said = program("""
graph = new(); node, x = alloc(graph, U); more, y = alloc(graph, U, [node]); filled = set8(graph, y, 3, U, [more]); executable = ok(d.cuGraphInstantiate(graph, AUTO))
print(int(ok(d.cuGraphExecGetFlags(executable))))
for i in range(3): ok(run(executable)); print(taken(), read(y))
ok(d.cuMemFreeAsync(x, s)); said(d.cuMemFreeAsync(x, s)); ok(run(executable)); ok(d.cuMemFreeAsync(x, s)); ok(d.cuMemFreeAsync(y, s)); trim(); ok(d.cuCtxSynchronize()); trim(); print(taken())
ok(run(executable)); ok(d.cuGraphExecDestroy(executable)); ok(d.cuGraphDestroy(graph)); print(taken(), read(y)); ok(d.cuMemFree(x)); ok(d.cuMemFree(y)); ok(d.cuCtxSynchronize()); trim(); print(taken())
""")
    assert said == ["1", *["2 {3}"] * 3, "INVALID_VALUE", "0", "2 {3}", "0"]


def test_a_graph_that_frees_another_s_memory_fails_when_that_is_gone() -> None:
    said = program("""
graph = new(); n, x = alloc(graph, U); executable = make(graph); other = new(); ok(free(other, x)); frees = make(other); third = new()
ok(run(executable)); ok(d.cuGraphExecDestroy(executable)); ok(d.cuGraphDestroy(graph)); ok(free(third, x)); ok(run(frees)); said(run(frees)); said(run(make(third)))
ok(d.cuCtxSynchronize()); print(figures(), taken()); said(run(frees)); said(free(new(), x))
""")
    assert said == ["INVALID_VALUE"] * 2 + ["[0, 1, 0, 1] 0"] + ["INVALID_VALUE"] * 2


def test_a_graph_with_memory_is_not_copied_and_loses_nothing_and_has_one_executable() -> None:
    said = program("""
for frees in (False, True):
    owner = new(); root, x = alloc(owner, 64); graph = owner
    if frees: graph = new(); root = ok(free(graph, x))
    leaf = ok(d.cuGraphAddEmptyNode(graph, [root], 1)); outer = new()
    said(d.cuGraphClone(graph)); said(d.cuGraphAddChildGraphNode(outer, None, 0, graph)); said(d.cuGraphDestroyNode(leaf)); said(d.cuGraphDestroyNode(root))
    said(d.cuGraphRemoveDependencies(graph, [root], [leaf], 1)); ok(d.cuGraphRemoveDependencies(graph, [], [], 0))
    executable = make(graph); said(d.cuGraphInstantiate(graph, 0)); begin_capture(); said(run(executable)); said(end())
    ok(d.cuGraphExecDestroy(executable)); make(graph); ok(d.cuGraphClone(outer))
""")
    assert said == [*["NOT_SUPPORTED"] * 7, "STREAM_CAPTURE_INVALIDATED"] * 2


def test_a_graph_with_memory_moves_into_another_and_is_part_of_it() -> None:
    said = program("""
def moved(parent, child, after=()):
    p = d.CUgraphNodeParams(); p.type = TYPES.CU_GRAPH_NODE_TYPE_GRAPH; p.graph.graph = child; p.graph.ownership = d.CUgraphChildGraphNodeOwnership.CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE
    return d.cuGraphAddNode(parent, list(after), len(after), p)
inner, outer = new(), new(); empty = ok(moved(outer, new())); node, x = alloc(inner, U); left, y = alloc(inner, 64); z = set8(inner, x, 4, U, [node]); ok(free(inner, x, [z])); apart = new(); o, w = alloc(apart, 64); ok(free(inner, w))
busy = make(inner); said(moved(outer, inner)); ok(d.cuGraphExecDestroy(busy)); child = ok(moved(outer, inner, [empty]))
said(d.cuGraphInstantiate(inner, 0)); said(d.cuGraphDestroy(inner)); said(moved(new(), inner)); said(d.cuGraphAddChildGraphNode(new(), None, 0, inner))
said(d.cuGraphAddMemAllocNode(inner, None, 0, wanted(64))); said(free(inner, y)); said(d.cuGraphClone(outer)); said(d.cuGraphDestroyNode(child)); said(free(outer, x, [child]))
said(free(outer, w, [child])); early = ok(free(outer, y)); said(free(new(), y)); said(d.cuGraphInstantiate(outer, 0)); ok(d.cuGraphAddDependencies(outer, [child], [early], 1)); executable = make(outer); lasting = make(apart)
said(d.cuGraphExecUpdate(executable, inner)); said(d.cuGraphInstantiate(outer, 0))
said(run(executable))
for i in range(3): ok(run(lasting)); ok(run(executable))
print(figures()); ok(d.cuCtxSynchronize()); ok(d.cuGraphExecDestroy(executable)); ok(d.cuGraphDestroy(outer)); print(figures(), taken())
""")
    assert said == [
        "NOT_SUPPORTED",
        *["INVALID_VALUE"] * 4,
        *["NOT_SUPPORTED"] * 4,
        *["INVALID_VALUE"] * 4,
        *["INVALID_VALUE", "NOT_SUPPORTED", "INVALID_VALUE"],
        "[3, 3, 3, 3]",
        "[1, 3, 1, 3] 1",
    ]


def test_a_free_must_follow_its_allocation_by_the_graph_s_edges() -> None:
    said = program("""
graph = new(); node, x = alloc(graph, 64); step = ok(d.cuGraphAddEmptyNode(graph, None, 0)); last = ok(free(graph, x, [step]))
p = d.CUDA_GRAPH_INSTANTIATE_PARAMS(); said(d.cuGraphInstantiateWithParams(graph, p)); print(p.result_out.name, int(p.hErrNode_out) == int(last))
ok(d.cuGraphAddDependencies(graph, [node], [step], 1)); executable = ok(d.cuGraphInstantiateWithParams(graph, p)); print(p.result_out.name, int(p.hErrNode_out)); said(run(executable))
said(d.cuGraphInstantiateWithParams(graph, p)); print(p.result_out.name, int(p.hErrNode_out))
""")
    assert said == [
        "INVALID_VALUE",
        "CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE True",
        "CUDA_GRAPH_INSTANTIATE_SUCCESS 0",
        "SUCCESS",
        "NOT_SUPPORTED",
        "CUDA_GRAPH_INSTANTIATE_ERROR 0",
    ]


def test_the_order_of_a_free_is_seen_over_rows_branches_and_graphs_inside() -> None:
    said = program("""
def row(graph, node, count=3):
    for _ in range(count): node = ok(d.cuGraphAddEmptyNode(graph, [node] if node else None, 1 if node else 0))
    return node
def tried(graph):
    code = d.cuGraphInstantiate(graph, 0); said(code); return code[1]
g = new(); n, x = alloc(g, 64); ok(free(g, x, [row(g, n)])); tried(g)
g = new(); n, x = alloc(g, 64, [row(g, None)]); fork = row(g, n, 1); left, right = row(g, fork), row(g, fork); ok(free(g, x, [right])); tried(g)
g = new(); top = row(g, None, 1); n, x = alloc(g, 64, [top]); left, right = row(g, n), row(g, top); f = ok(free(g, x, [right])); tried(g); ok(d.cuGraphAddDependencies(g, [left], [right], 1)); tried(g)
g = new(); n, x = alloc(g, 64); f = ok(free(g, x)); ok(d.cuGraphAddDependencies(g, [f], [n], 1)); tried(g)
g = new(); n, x = alloc(g, 64); c = ok(d.cuGraphAddChildGraphNode(g, [n], 1, new())); e = new(); row(e, None); e = ok(d.cuGraphAddChildGraphNode(g, [c], 1, e)); ok(free(g, x, [row(g, e)])); tried(g)
""")
    assert said == ["SUCCESS", "SUCCESS", "INVALID_VALUE", "SUCCESS", "INVALID_VALUE", "SUCCESS"]


def test_an_update_keeps_memory_as_it_is_and_is_refused_where_it_is_another_s() -> None:
    said = program("""
graph = new(); node, x = alloc(graph, 64); mid = set8(graph, x, 1, 64, [node]); copy = ok(d.cuGraphAddKernelNode(graph, [mid], 1, kernel(0, 5))); ok(free(graph, x, [copy])); executable = make(graph)
ok(run(executable)); print(words(1)); ok(d.cuGraphKernelNodeSetParams(copy, kernel(0, 6))); print(ok(d.cuGraphExecUpdate(executable, graph)).result.name); ok(run(executable)); print(words(1))
twin = new(); n, y = alloc(twin, 64); m = set8(twin, y, 1, 64, [n]); k = ok(d.cuGraphAddKernelNode(twin, [m], 1, kernel(0, 7))); ok(free(twin, y, [k]))
raw = ctypes.CDLL('libcuda.so.1'); info = (ctypes.c_uint64 * 3)(); print(raw.cuGraphExecUpdate_v2(ctypes.c_void_p(int(executable)), ctypes.c_void_p(int(twin)), info), d.CUgraphExecUpdateResult(info[0] & 0xffffffff).name, info[1] == int(n))
ok(run(executable)); print(words(1))
""")
    assert said == [
        "[5]",
        "CU_GRAPH_EXEC_UPDATE_SUCCESS",
        "[6]",
        "910 CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED True",
        "[6]",
    ]


def test_a_capture_frees_only_what_a_graph_allocated() -> None:
    said = program("""
begin_capture(); said(d.cuMemFreeAsync(a, s)); said(end())
begin_capture(); x = ok(d.cuMemAllocAsync(64, s)); ok(d.cuMemFreeAsync(x, s)); said(d.cuMemFreeAsync(x, s)); said(end())
begin_capture(); x = ok(d.cuMemAllocAsync(64, s)); ok(launch(s, 0, 7)); first = make(ok(end()))
begin_capture(t); ok(d.cuMemFreeAsync(x, t)); second = make(ok(end(t)))
y = ok(d.cuMemAllocAsync(64, t)); ok(d.cuMemFreeAsync(y, t))  # no capture any more
for i in range(3): ok(run(first)); ok(d.cuStreamSynchronize(s)); ok(run(second, t)); ok(d.cuStreamSynchronize(t))
print(words(1), taken()); said(d.cuMemFree(a))
""")
    bad = "INVALID_VALUE"
    over = "STREAM_CAPTURE_INVALIDATED"
    assert said == [bad, over, bad, over, "[7] 1", "SUCCESS"]


def test_nothing_can_be_allocated_and_freed_in_order_of_a_stream_and_of_a_graph() -> None:
    said = program("""
x = ok(d.cuMemAllocAsync(0, s)); print(int(x)); said(d.cuMemFreeAsync(x, s)); said(d.cuMemAlloc(0))
begin_capture(); x = ok(d.cuMemAllocFromPoolAsync(0, ok(d.cuDeviceGetDefaultMemPool(0)), s)); print(int(x))
said(d.cuMemFreeAsync(x, s)); ok(launch(s, 0, 7)); ok(run(make(ok(end())))); ok(d.cuStreamSynchronize(s)); print(words(1))
""")
    assert said == ["0", "SUCCESS", "INVALID_VALUE", "0", "SUCCESS", "[7]"]


def test_allocations_of_one_graph_take_turns_in_the_same_memory_where_the_edges_let_them() -> None:
    said = program("""
begin_capture(); places = []
for i in range(20): x = ok(d.cuMemAllocAsync(4 * U, s)); ok(d.cuMemsetD8Async(x, i, 4 * U, s)); ok(d.cuMemcpyDtoDAsync(int(a) + i, x, 1, s)); ok(d.cuMemFreeAsync(x, s)); places.append(int(x))
executable = make(ok(end())); ok(run(executable)); ok(run(executable)); print(len(set(places)), figures(), words(5))
graph = new(); n, x = alloc(graph, U); f = ok(free(graph, x, [n])); e = ok(d.cuGraphAddEmptyNode(graph, None, 0)); print(alloc(graph, U)[1] == x, alloc(graph, U, [e])[1] == x, alloc(graph, 3 * U, [f])[1] == x, alloc(graph, 1000, [f])[1] == x, alloc(graph, U // 2, [f])[1] == x, alloc(graph, U, [f])[1] == x)
small = new(); places = [alloc(small, 1000)[1] for i in range(100)]; print(len({p // U for p in places}), min(q - p for p, q in zip(places, places[1:])))
""")
    assert said == [
        "1 [4, 4, 4, 4] [50462976, 117835012, 185207048, 252579084, 319951120]",
        "False False False False True False",
        "1 1024",
    ]


def test_a_launch_that_finds_no_room_does_nothing_and_the_next_may_succeed() -> None:
    said = program(
        """
graph = new(); n, x = alloc(graph, 2 * U); m, y = alloc(graph, 2 * U, [n]); k = ok(d.cuGraphAddKernelNode(graph, [m], 1, kernel(0, 9))); f = ok(free(graph, x, [k])); executable = make(graph)
big = ok(d.cuMemAlloc(2 * U)); before = taken(); said(run(executable)); print(taken() == before, figures(), words(1)); said(d.cuMemFree(y)); said(run(executable))
ok(d.cuMemFree(big)); said(run(executable)); print(figures()[0], words(1), taken()); said(d.cuMemAlloc(2 * U))
""",
        memory_mib=10,
    )
    assert said == [
        "OUT_OF_MEMORY",
        "True [0, 0, 0, 0] [0]",
        *["INVALID_VALUE", "OUT_OF_MEMORY"],
        "SUCCESS",
        "4 [9] 4",
        "OUT_OF_MEMORY",
    ]


def test_a_launch_takes_the_room_of_graphs_that_do_not_run() -> None:
    said = program(
        """
def one(value):
    graph = new(); n, x = alloc(graph, 3 * U); m = set8(graph, x, value, 3 * U, [n]); ok(free(graph, x, [m])); return make(graph), x
(first, x), (second, y) = one(1), one(2)
for i in range(5): ok(run(first)); ok(run(second, t))
print(figures(), taken()); ok(d.cuMemsetD8Async(a, 1, 4, s)); ok(d.cuCtxSynchronize())
kept = new(); alloc(kept, U); ok(run(make(kept))); said(run(first)); print(taken())
""",
        memory_mib=10,
    )
    assert said == ["[3, 3, 3, 3] 3", "SUCCESS", "4"]


def test_trimming_gives_back_what_no_graph_uses_and_the_figures_say_so() -> None:
    said = program("""
def reset(): [ok(d.cuDeviceSetGraphMemAttribute(0, each, d.cuuint64_t(0))) for each in (A.CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, A.CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)]
graph = new(); n, x = alloc(graph, 2 * U); ok(free(graph, x, [n])); executable = make(graph)
stays = new(); m, y = alloc(stays, U); set8(stays, y, 8, U, [m]); lasting = make(stays)
print(figures()); trim(); ok(run(executable)); ok(run(lasting)); print(figures()); ok(d.cuCtxSynchronize()); trim(); print(figures(), taken(), read(y)); reset(); print(figures())
ok(run(executable)); print(figures()); ok(d.cuMemFree(y)); ok(d.cuCtxSynchronize()); trim(); print(figures(), taken()); ok(run(lasting)); print(figures(), read(y))
for attribute, value in ((A.CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, 1), (A.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, 0)): said(d.cuDeviceSetGraphMemAttribute(0, attribute, d.cuuint64_t(value)))
said(d.cuDeviceGraphMemTrim(1)); said(d.cuDeviceGetGraphMemAttribute(1, A.CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)); said(d.cuDeviceSetGraphMemAttribute(1, A.CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, d.cuuint64_t(0)))
""")
    assert said == [
        "[0, 0, 0, 0]",
        "[3, 3, 3, 3]",
        "[1, 3, 1, 3] 1 {8}",
        "[1, 1, 1, 1]",
        "[3, 3, 3, 3]",
        "[0, 3, 0, 3] 0",
        "[1, 3, 1, 3] {8}",
        *["INVALID_VALUE"] * 2,
        *["INVALID_DEVICE"] * 3,
    ]


# A stream that stands still until the program opens the gate; what is asked meanwhile must not wait for it.
GATE = """
FN = ctypes.CFUNCTYPE(None, ctypes.c_void_p); opened = threading.Event(); gate = FN(lambda _: opened.wait()); raw = ctypes.CDLL("libcuda.so.1")
def shut(stream): assert raw.cuLaunchHostFunc(ctypes.c_void_p(int(stream)), gate, None) == 0
def open_gate(): opened.set(); ok(d.cuCtxSynchronize()); opened.clear()
def waits(stream): return {d.cuStreamQuery(stream)[0].name for _ in range(50)} == {'CUDA_ERROR_NOT_READY'}
def one(bytes, kept=False):
    graph = new(); n, x = alloc(graph, bytes); m = set8(graph, x, 1, bytes, [n])
    if not kept: ok(free(graph, x, [m]))
    return graph, make(graph), x
"""


def test_launches_into_several_streams_take_turns_with_the_memory() -> None:
    said = program(
        GATE
        + """
graph, executable, x = one(U); shut(s); ok(run(executable, s)); print(waits(s)); ok(run(executable, t)); print(waits(t)); open_gate(); ok(d.cuStreamQuery(t))
graph, executable, x = one(U, kept=True); ok(run(executable)); ok(d.cuCtxSynchronize()); shut(t); ok(d.cuMemFreeAsync(x, t)); ok(run(executable, s)); print(waits(s)); open_gate(); print(read(x))
graph, alone, x = one(U); shut(s); ok(run(alone, s)); graph, other, y = one(U); ok(run(other, t)); ok(d.cuStreamSynchronize(t)); open_gate()
"""
    )
    assert said == ["True", "True", "True", "{1}"]


def test_memory_stays_while_the_device_may_use_it_whatever_the_program_destroys() -> None:
    said = program(
        GATE
        + """
graph, executable, x = one(U); ok(run(executable)); ok(d.cuCtxSynchronize()); shut(s); ok(run(executable)); trim(); print(figures())
ok(d.cuGraphDestroy(graph)); ok(d.cuGraphExecDestroy(executable)); trim(); print(figures(), taken()); open_gate(); trim(); print(figures(), taken())
graph, executable, x = one(U, kept=True); ok(d.cuGraphDestroy(graph)); ok(run(executable)); ok(d.cuGraphExecDestroy(executable)); ok(d.cuCtxSynchronize()); trim(); print(figures(), read(x))
shut(t); ok(d.cuMemFreeAsync(x, t)); print(figures(), taken()); open_gate(); print(figures(), taken()); said(d.cuMemFree(x)); said(d.cuCtxSynchronize())
"""
    )
    assert said == [
        "[1, 1, 1, 1]",
        "[0, 1, 1, 1] 1",
        "[0, 1, 0, 1] 0",
        "[1, 1, 1, 1] {1}",
        "[0, 1, 1, 1] 1",
        "[0, 1, 0, 1] 0",
        *["SUCCESS", "INVALID_VALUE"],  # its address is nobody's now, which the worker says
    ]


def test_a_graph_is_destroyed_at_once_while_a_function_of_the_program_keeps_a_stream() -> None:
    said = program(
        GATE
        + """
graph, executable, x = one(U); ok(run(executable)); ok(d.cuCtxSynchronize()); shut(t); ok(d.cuGraphDestroy(graph)); ok(d.cuGraphExecDestroy(executable)); print(figures())
graph, executable, x = one(U); ok(run(executable)); print(figures()); open_gate(); print(figures())
"""
    )
    assert said == ["[0, 1, 1, 1]", "[1, 1, 2, 2]", "[1, 1, 1, 2]"]


LONG = """
spin = load(b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 to) { .reg .b64 %rd<2>; .reg .b32 %r<2>; .reg .pred %p<2>; ld.param.u64 %rd1, [to]; mov.u32 %r1, 0;
AGAIN: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 20000000; @%p1 bra AGAIN; st.global.u32 [%rd1], %r1; ret; }
''', b'spin')
"""


def test_a_launch_waits_for_the_room_that_a_running_graph_has() -> None:
    said = program(
        LONG
        + """
begin_capture(); x = ok(d.cuMemAllocAsync(3 * U, s)); ok(d.cuLaunchKernel(spin, 1,1,1, 1,1,1, 0, s, ((int(x),), (ctypes.c_uint64,)), 0)); ok(d.cuMemcpyDtoDAsync(a, x, 4, s)); ok(d.cuMemFreeAsync(x, s)); busy = make(ok(end()))
other = new(); n, y = alloc(other, 3 * U); ok(free(other, y, [n])); waits = make(other)
ok(run(busy)); said(run(waits, t)); said(d.cuStreamQuery(s)); print(words(1), taken())
""",
        memory_mib=10,
    )
    assert said == ["SUCCESS", "SUCCESS", "[20000000] 3"]


def test_an_error_of_earlier_work_is_told_and_no_launch_loses_it_or_is_left_half_done() -> None:
    said = program("""
graph = new(); n, x = alloc(graph, U); m = set8(graph, x, 2, U, [n]); executable = make(graph)
ok(d.cuMemsetD8Async(1 << 40, 1, 4, s)); said(run(executable)); print(taken(), figures()); said(run(executable)); print(read(x))
ok(d.cuMemFree(x)); ok(d.cuCtxSynchronize()); ok(d.cuMemsetD8Async(1 << 40, 1, 4, s)); ok(d.cuGraphExecDestroy(executable)); ok(d.cuGraphDestroy(graph)); print(figures()); said(d.cuCtxSynchronize()); said(d.cuCtxSynchronize())
""")
    assert said == [
        "INVALID_VALUE",
        "0 [0, 0, 0, 0]",
        "SUCCESS",
        "{2}",
        "[0, 1, 0, 1]",
        "INVALID_VALUE",
        "SUCCESS",
    ]


def test_a_launch_that_fails_on_the_way_leaves_its_allocations_as_they_were() -> None:
    said = program("""
host = (ctypes.c_uint32 * 4)(1, 2, 3, 4)
def copy(source):
    c = d.CUDA_MEMCPY3D(); c.srcMemoryType = d.CUmemorytype.CU_MEMORYTYPE_HOST; c.srcHost = source; c.dstMemoryType = d.CUmemorytype.CU_MEMORYTYPE_DEVICE; c.dstDevice = int(a)
    c.srcPitch = c.dstPitch = c.WidthInBytes = 16; c.srcHeight = c.dstHeight = c.Height = c.Depth = 1; return c
graph = new(); n, x = alloc(graph, 64); other = new(); m, y = alloc(other, U); ok(run(make(other))); ok(free(graph, y, [n])); c = ok(d.cuGraphAddMemcpyNode(graph, [n], 1, copy(0), context())); executable = make(graph)
said(run(executable)); said(d.cuMemFreeAsync(x, s)); ok(d.cuMemsetD8Async(y, 3, 8, s)); print(read(y)); ok(d.cuGraphExecMemcpyNodeSetParams(executable, c, copy(ctypes.addressof(host)), context()))
said(run(executable)); print(words()); said(d.cuMemFreeAsync(y, s)); said(run(executable)); said(d.cuMemFreeAsync(x, s))
""")
    assert said == ["INVALID_VALUE"] * 2 + ["{3}", "SUCCESS", "[1, 2, 3, 4]"] + ["INVALID_VALUE"] * 2 + [
        "SUCCESS"
    ]


def test_a_device_that_is_reset_has_no_graph_s_memory_and_can_be_used_again() -> None:
    said = program(
        GATE
        + """
graph, executable, x = one(U, kept=True); ok(run(executable)); other, idle, y = one(U); ok(d.cuCtxSynchronize()); print(figures())
ok(d.cuCtxDestroy(ok(d.cuCtxCreate(0, 0)) if d.CUDA_VERSION < 13000 else ok(d.cuCtxCreate(None, 0, 0)))); print(figures(), read(x))  # a context is a name here: nothing of it ends
ok(d.cuDevicePrimaryCtxReset(0)); ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0)))); s = ok(d.cuStreamCreate(1))
print(figures(), taken()); said(run(executable, s)); said(run(idle, s)); said(d.cuMemFree(x)); said(d.cuCtxSynchronize())
[ok(d.cuGraphExecDestroy(each)) for each in (executable, idle)]; [ok(d.cuGraphDestroy(each)) for each in (graph, other)]; trim(); said(d.cuCtxSynchronize())
graph, executable, x = one(U, kept=True); ok(run(executable, s)); ok(d.cuCtxSynchronize()); print(figures(), read(x))
"""
    )
    assert said == [
        "[1, 1, 1, 1]",
        "[1, 1, 1, 1] {1}",
        "[0, 1, 0, 1] 0",
        *["INVALID_HANDLE"] * 2,
        *["SUCCESS", "INVALID_VALUE", "SUCCESS"],
        "[1, 1, 1, 1] {1}",
    ]


def test_a_forked_child_can_do_nothing_to_its_parent_s_graphs() -> None:
    said = program(
        GATE
        + """
graph, executable, x = one(U); ok(run(executable)); ok(d.cuCtxSynchronize())
if (child := os.fork()) == 0:
    said(run(executable)); said(d.cuGraphExecDestroy(executable)); said(d.cuGraphAddMemAllocNode(graph, None, 0, wanted(64))); said(d.cuGraphDestroy(graph)); said(d.cuDeviceGraphMemTrim(0)); os._exit(0)
os.waitpid(child, 0); ok(run(executable)); ok(d.cuCtxSynchronize()); print(figures(), taken())
"""
    )
    assert said == [
        "NOT_INITIALIZED",
        "SUCCESS",
        "NOT_INITIALIZED",
        "SUCCESS",
        "NOT_INITIALIZED",
        "[1, 1, 1, 1] 1",
    ]


def test_threads_launch_one_graph_with_memory_and_capture_their_own() -> None:
    said = program("""
here = context(); add = load(b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 to, .param .u64 with) { .reg .b64 %rd<3>; .reg .b32 %r<4>; ld.param.u64 %rd1, [to]; ld.param.u64 %rd2, [with]; ld.global.u32 %r1, [%rd2]; ld.global.u32 %r2, [%rd1]; add.u32 %r3, %r1, %r2; st.global.u32 [%rd1], %r3; ret; }
''', b'add')
def capture(stream, place, value):
    ok(d.cuStreamBeginCapture(stream, THREAD)); x = ok(d.cuMemAllocAsync(4096, stream)); ok(d.cuMemsetD32Async(x, value, 1024, stream))
    ok(d.cuLaunchKernel(add, 1,1,1, 1,1,1, 0, stream, ((int(a) + 4 * place, int(x)), (ctypes.c_uint64,) * 2), 0)); ok(d.cuMemFreeAsync(x, stream)); return ok(d.cuStreamEndCapture(stream))
executable = make(capture(s, 0, 1)); wrong = []
def work(n):
    try:
        ok(d.cuCtxSetCurrent(here)); mine = ok(d.cuStreamCreate(1))
        for i in range(20):
            graph = capture(mine, n, i); own = make(graph); ok(d.cuGraphDestroy(graph)); ok(d.cuGraphLaunch(own, mine)); ok(d.cuGraphLaunch(executable, mine)); ok(d.cuGraphExecDestroy(own))
        ok(d.cuStreamSynchronize(mine)); ok(d.cuStreamDestroy(mine))
    except BaseException as error: wrong.append(error)
threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]; [x.start() for x in threads]; [x.join() for x in threads]
print(wrong, words(5)); trim(); print(figures()[0], figures()[2], taken())
""")
    assert said == ["[] [80, 190, 190, 190, 190]", "0 0 0"]


def test_what_graphs_have_counts_at_the_worker_and_goes_with_the_program() -> None:
    code = """graph = new(); n, x = alloc(graph, 5 * U); executable = make(graph); print(run(executable)[0].name, flush=True); sys.stdin.readline()"""

    async def story() -> None:
        async with worker(memory_mib=16) as one:
            running = one.start(GRAPHS + MEMORY + code)
            assert running.stdout is not None
            assert (await asyncio.to_thread(running.stdout.readline)).strip() == "CUDA_SUCCESS"
            assert (await one.handle.status()).memory_used_bytes // (2 * MIB) == 5
            again = await one.run(
                GRAPHS + MEMORY + "graph = new(); alloc(graph, 4 * U); said(run(make(graph)))"
            )
            assert again.stdout.strip() == "OUT_OF_MEMORY", again.stderr
            await asyncio.to_thread(running.communicate, "\n")
            async with asyncio.timeout(30):  # the worker notices in its own time that a program is gone
                while (await one.handle.status()).memory_used_bytes:
                    await asyncio.sleep(0.02)

    asyncio.run(story())


def test_memory_of_another_device_of_the_lease_is_there_and_no_graph_is_on_both() -> None:
    code = """
there = ok(d.cuDevicePrimaryCtxRetain(1)); graph = new(); p = wanted(U, device=1); n = ok(d.cuGraphAddMemAllocNode(graph, None, 0, p)); ok(free(graph, int(p.dptr), [n])); executable = make(graph)
ok(d.cuCtxPushCurrent(there)); mine = ok(d.cuStreamCreate(1)); ok(run(executable, mine)); ok(d.cuCtxSynchronize()); print(taken()); ok(d.cuCtxPopCurrent()); print(taken())
print([int(ok(d.cuDeviceGetGraphMemAttribute(i, A.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT))) // U for i in (0, 1)]); both = new(); alloc(both, 64); ok(d.cuGraphAddMemAllocNode(both, None, 0, wanted(64, device=1))); said(d.cuGraphInstantiate(both, 0))
trim(); print([int(ok(d.cuDeviceGetGraphMemAttribute(i, A.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT))) // U for i in (0, 1)]); ok(d.cuDeviceGraphMemTrim(1)); print(int(ok(d.cuDeviceGetGraphMemAttribute(1, A.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT))))
"""

    async def story() -> None:
        async with worker() as one, worker(secret=one.secret) as two:
            done = await one.run(GRAPHS + MEMORY + code, second=two)
            assert done.stdout.splitlines() == ["1", "0", "[0, 1]", "NOT_SUPPORTED", "[0, 1]", "0"], (
                done.stderr
            )

    asyncio.run(story())


def test_cuda_core_captures_buffers_of_its_graph_memory() -> None:
    said = program("""
from cuda.core import Device, GraphMemoryResource
device = Device(); device.set_current(); memory = GraphMemoryResource(device); kept = device.memory_resource.allocate(4096, stream=device.default_stream)
builder = device.create_graph_builder().begin_building(); x = memory.allocate(4096, stream=builder); y = memory.allocate(3 * U, stream=builder)
ok(d.cuMemsetD8Async(int(x.handle), 7, 4096, builder.stream.handle)); x.copy_to(kept, stream=builder); x.close(stream=builder); y.close(stream=builder)
graph = builder.end_building().complete(); stream = device.create_stream()
for i in range(10): graph.launch(stream)
stream.sync(); out = bytearray(4096); ok(d.cuMemcpyDtoH(out, int(kept.handle), 4096)); print(set(out), memory.attributes.used_mem_current // U, memory.attributes.reserved_mem_high // U); memory.trim(); print(memory.attributes.reserved_mem_current)
""")
    assert said == ["{7} 4 4", "0"]


def test_no_memory_comes_to_a_graph_inside_another() -> None:
    said = program("""
inner, outer, more = new(), new(), new(); child = ok(d.cuGraphAddChildGraphNode(outer, None, 0, inner)); inside = ok(d.cuGraphChildGraphNodeGetGraph(child)); n, x = alloc(more, 64)
said(d.cuGraphAddMemAllocNode(inside, None, 0, wanted(64))); said(free(inside, x)); ok(d.cuStreamBeginCaptureToGraph(s, inside, None, None, 0, GLOBAL)); said(d.cuMemAllocAsync(64, s)); said(end())
p = d.CUgraphNodeParams(); p.type = TYPES.CU_GRAPH_NODE_TYPE_GRAPH; p.graph.graph = more; p.graph.ownership = d.CUgraphChildGraphNodeOwnership.CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE
said(d.cuGraphAddNode(inside, None, 0, p)); ok(d.cuGraphClone(outer)); ok(d.cuGraphAddNode(outer, None, 0, p)); said(d.cuGraphClone(outer))
""")
    assert said == [*["NOT_SUPPORTED"] * 3, "STREAM_CAPTURE_INVALIDATED", *["NOT_SUPPORTED"] * 2]


@WITHOUT_SANITIZER
def test_a_graph_launched_and_freed_again_and_again_leaves_nothing_behind() -> None:
    said = program("""
graph = new(); n, x = alloc(graph, 64); set8(graph, x, 1, 64, [n]); executable = make(graph)
def resident(): return int(open('/proc/self/statm').read().split()[1]) * 4096
def again(times):
    for i in range(times): ok(run(executable)); ok(d.cuMemFreeAsync(x, t))
    ok(d.cuCtxSynchronize()); return resident()
before = again(5000); print(again(40000) - before < 1 << 20, taken(), figures())
""")
    assert said == ["True 1 [1, 1, 1, 1]"]


def test_random_programs_of_graphs_that_allocate_free_and_go_follow_the_rules() -> None:
    # Each graph allocates a few times, frees some of it itself, and fills what stays with its own value.  The
    # model knows what is live; whatever is live must keep its value through everything else that happens.
    said = program("""
import random
class One:
    def __init__(self, value):
        self.value, self.graph, self.kept, self.auto = value, new(), [], chance.random() < .3; last = []
        for i in range(chance.randrange(1, 6)):
            bytes = chance.choice((100, 5000, U // 2, U, U + 1)); n, x = alloc(self.graph, bytes, last); m = set8(self.graph, x, value, bytes, [n])
            if chance.random() < .5: last = [ok(free(self.graph, x, [m]))]
            else: self.kept.append((x, bytes)); last = [m]
        self.instantiate()
    def instantiate(self): self.executable = ok(d.cuGraphInstantiate(self.graph, AUTO if self.auto else 0))
for seed in range(12):
    chance = random.Random(seed); graphs, live, ends = {}, {}, {}  # live: address -> size, value
    for step in range(120):
        kind = chance.random(); stream = chance.choice((s, t)); one = graphs.get(chance.choice(list(graphs))) if graphs else None
        if one is None or (kind < .15 and len(graphs) < 8): value = step + 1; graphs[value] = One(value)
        elif kind < .5 and one.executable:
            there = [x for x, _ in one.kept if x in live]; code = run(one.executable, stream)[0].name; assert code == ('CUDA_ERROR_INVALID_VALUE' if there and not one.auto else 'CUDA_SUCCESS'), (seed, step, code)
            if code == 'CUDA_SUCCESS': live.update({x: (bytes, one.value) for x, bytes in one.kept})
        elif kind < .7 and live:
            x = chance.choice(list(live)); del live[x]
            ok(d.cuMemFreeAsync(x, stream)) if chance.random() < .6 else (ok(d.cuCtxSynchronize()), ok(d.cuMemFree(x)))
        elif kind < .78 and one.kept and one.graph:
            x, _ = chance.choice(one.kept); said_ = d.cuMemFreeAsync(x, stream)[0].name; assert (said_ == 'CUDA_SUCCESS') == (x in live), (seed, step, said_); live.pop(x, None)
        elif kind < .84 and one.executable: ok(d.cuGraphExecDestroy(one.executable)); one.executable = None
        elif kind < .88 and one.executable is None and one.graph: one.instantiate()
        elif kind < .92 and one.graph: ok(d.cuGraphDestroy(one.graph)); one.graph = None
        elif kind < .96: trim()
        if one and one.graph is None and one.executable is None: graphs.pop(one.value, None)
        if step % 10 == 0:
            ok(d.cuCtxSynchronize())
            for x, (bytes, value) in live.items(): assert read(x) | read(x + bytes - 8) == {value}, (seed, step)
    for x in live: ok(d.cuMemFreeAsync(x, s))
    for one in graphs.values(): one.executable and ok(d.cuGraphExecDestroy(one.executable)); one.graph and ok(d.cuGraphDestroy(one.graph))
    ok(d.cuCtxSynchronize()); trim(); assert (figures()[0], figures()[2], taken()) == (0, 0, 0), (seed, figures(), taken())
print('followed')
""")
    assert said == ["followed"]
