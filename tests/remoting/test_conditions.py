"""Conditional nodes of graphs, whose conditions kernels set by ``cudaGraphSetConditional``."""

from __future__ import annotations

import asyncio

from tests.remoting.conftest import worker
from tests.remoting.test_managed import MANAGED

# `set` is what NVRTC makes of `cudaGraphSetConditional(handle, *from)`; `down` counts `*from` down before.
CONDITIONS = (
    MANAGED
    + r"""
SET = b'''.version 7.0
.target sm_70
.address_size 64
.extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);
.visible .entry set(.param .u64 handle, .param .u64 from, .param .u32 less) { .reg .b64 %rd<4>; .reg .b32 %r<4>; ld.param.u64 %rd1, [handle]; ld.param.u64 %rd2, [from]; ld.param.u32 %r2, [less];
ld.global.u32 %r1, [%rd2]; sub.u32 %r1, %r1, %r2; st.global.u32 [%rd2], %r1;
{ .param .b64 p0; st.param.b64 [p0], %rd1; .param .b32 p1; st.param.b32 [p1], %r1; call.uni cudaGraphSetConditional, (p0, p1); }
ret; }
'''
setter = load(SET, b"set"); context = ok(d.cuCtxGetCurrent()); T = d.CUgraphNodeType; C = d.CUgraphConditionalNodeType; kept = []
counter = int(ok(d.cuMemAlloc(4))); out = int(ok(d.cuMemAlloc(64)))
def launch(f, types, *values):
    p = d.CUgraphNodeParams(); v = [t(x) for t, x in zip(types, values)]; a = (ctypes.c_void_p * len(v))(*map(ctypes.addressof, v)); kept.append((v, a)); p.type = T.CU_GRAPH_NODE_TYPE_KERNEL; k = p.kernel; k.func = f; k.kernelParams = ctypes.addressof(a)
    k.gridDimX = k.gridDimY = k.gridDimZ = k.blockDimX = k.blockDimY = k.blockDimZ = 1; return p
def node(graph, params, *before): return ok(d.cuGraphAddNode(graph, list(before), len(before), params))
def sets(graph, handle, less, *before): return node(graph, launch(setter, (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32), int(handle), counter, less), *before)
def adds(graph, to, *before): return node(graph, launch(kernel, (ctypes.c_uint64, ctypes.c_uint32), to, 1), *before)
def conditional(handle, kind, size=1, ctx=None):
    p = d.CUgraphNodeParams(); p.type = T.CU_GRAPH_NODE_TYPE_CONDITIONAL; c = p.conditional; c.handle = handle; c.type = kind; c.size = size; c.ctx = context if ctx is None else ctx; return p
def decides(graph, handle, kind, size, *before):
    p = conditional(handle, kind, size); n = node(graph, p, *before); return n, list(p.conditional.phGraph_out)
def run(x, count):
    ok(d.cuMemsetD32(counter, count, 1)); ok(d.cuMemsetD32(out, 0, 16)); ok(d.cuGraphLaunch(x, 0)); wait(); a = np.zeros(16, np.uint32); ok(d.cuMemcpyDtoH(a.ctypes.data, out, 64)); return a[:4].tolist()
IF, WHILE, SWITCH = C.CU_GRAPH_COND_TYPE_IF, C.CU_GRAPH_COND_TYPE_WHILE, C.CU_GRAPH_COND_TYPE_SWITCH
"""
)


def says(code: str, lines: list[str]) -> None:
    async def story() -> None:
        async with worker() as one:
            done = await one.run(CONDITIONS + code)
            assert done.stdout.splitlines() == lines, (done.stdout, done.stderr)
            assert done.returncode == 0, done.stderr

    asyncio.run(story())


def test_a_condition_chooses_the_body() -> None:
    code = """
for kind, size in ((IF, 1), (IF, 2), (SWITCH, 3)):
    g = ok(d.cuGraphCreate(0)); h = ok(d.cuGraphConditionalHandleCreate(g, context, 0, 0)); n, bodies = decides(g, h, kind, size, sets(g, h, 0)); assert len(bodies) == size
    for i, body in enumerate(bodies): adds(body, out + 4 * i)
    adds(g, out + 12, n); x = ok(d.cuGraphInstantiate(g, 0)); print([run(x, value) for value in (0, 1, 2, 7)])
"""
    lines = [
        "[[0, 0, 0, 1], [1, 0, 0, 1], [1, 0, 0, 1], [1, 0, 0, 1]]",
        "[[0, 1, 0, 1], [1, 0, 0, 1], [1, 0, 0, 1], [1, 0, 0, 1]]",
        "[[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1], [0, 0, 0, 1]]",
    ]
    says(code, lines)


def test_a_loop_runs_until_a_kernel_of_its_body_ends_it() -> None:
    """A loop in a loop, too, and a body that is captured."""
    code = """
g = ok(d.cuGraphCreate(0)); h = ok(d.cuGraphConditionalHandleCreate(g, context, 1, 1)); n, (body,) = decides(g, h, WHILE, 1); adds(body, out, sets(body, h, 1)); adds(g, out + 4, n)
x = ok(d.cuGraphInstantiate(g, 0)); print([run(x, count) for count in (1, 5, 100)])
g = ok(d.cuGraphCreate(0)); h = ok(d.cuGraphConditionalHandleCreate(g, context, 3, 1)); i = ok(d.cuGraphConditionalHandleCreate(g, context, 0, 0)); n, (body,) = decides(g, h, WHILE, 1)
first = sets(body, h, 1); m, (inner,) = decides(body, i, IF, 1, sets(body, i, 0, first)); s = ok(d.cuStreamCreate(1)); ok(d.cuStreamBeginCaptureToGraph(s, inner, None, None, 0, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
add(out + 8, 1, s); add(out + 12, 1, s); ok(d.cuStreamEndCapture(s)); adds(body, out, m); x = ok(d.cuGraphInstantiate(g, 0)); print([run(x, count) for count in (1, 4)])
"""
    says(code, ["[[1, 1, 0, 0], [5, 1, 0, 0], [100, 1, 0, 0]]", "[[1, 0, 0, 0], [4, 0, 3, 3]]"])


def test_a_default_value_is_assigned_at_each_launch_or_never() -> None:
    code = """
for flags in (1, 0):
    g = ok(d.cuGraphCreate(0)); h = ok(d.cuGraphConditionalHandleCreate(g, context, 1, flags)); n, (body,) = decides(g, h, IF, 1); adds(body, out); sets(g, h, 0, n); x = ok(d.cuGraphInstantiate(g, 0)); print([run(x, 0)[0] for _ in range(3)])
"""
    says(code, ["[1, 1, 1]", "[0, 0, 0]"])


def test_what_the_reference_forbids_is_refused() -> None:
    code = """
g = ok(d.cuGraphCreate(0)); new = lambda *a: d.cuGraphConditionalHandleCreate(*a); print(name(new(g, context, 0, 2)), name(new(0, context, 0, 0)))
h = ok(new(g, context, 0, 0)); r = d.cuGraphInstantiateWithParams(g, p := d.CUDA_GRAPH_INSTANTIATE_PARAMS()); print(name(r), p.result_out.name)
print(*(name(d.cuGraphAddNode(g, [], 0, conditional(*c))) for c in ((h, IF, 3), (h, IF, 0), (h, WHILE, 2), (h, SWITCH, 0), (12345, IF, 1))))
n, (body,) = decides(g, h, IF, 1); print(name(d.cuGraphAddNode(g, [], 0, conditional(h, IF))), ok(d.cuGraphNodeGetType(n)).name[19:], name(d.cuGraphDestroy(body)), name(d.cuGraphClone(g)))
other = ok(d.cuGraphCreate(0)); print(name(d.cuGraphAddChildGraphNode(other, [], 0, g)), name(d.cuGraphAddNode(other, [], 0, conditional(h, IF))))
x = ok(d.cuGraphInstantiate(g, 0)); print(name(d.cuGraphInstantiate(g, 0))); s = ok(d.cuStreamCreate(1)); ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)); print(name(d.cuGraphLaunch(x, s))); d.cuStreamEndCapture(s)
ok(d.cuGraphExecDestroy(x)); host = d.CUDA_HOST_NODE_PARAMS(); host.fn = 4096; ok(d.cuGraphAddHostNode(body, [], 0, host)); print(name(d.cuGraphInstantiate(g, 0))); ok(d.cuGraphDestroy(g))
"""
    lines = [
        "INVALID_VALUE INVALID_VALUE",
        "INVALID_VALUE CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED",
        "INVALID_VALUE INVALID_VALUE INVALID_VALUE INVALID_VALUE INVALID_VALUE",
        "INVALID_VALUE CONDITIONAL INVALID_VALUE NOT_SUPPORTED",
        "NOT_SUPPORTED INVALID_VALUE",
        "NOT_SUPPORTED",
        "NOT_SUPPORTED",
        "NOT_SUPPORTED",
    ]
    says(code, lines)


def test_a_handle_that_is_none_is_a_fault_of_the_kernel() -> None:
    code = """
def calls(handle):
    v = ctypes.c_uint64(handle), ctypes.c_uint64(counter), ctypes.c_uint32(0); a = (ctypes.c_void_p * 3)(*map(ctypes.addressof, v)); ok(d.cuLaunchKernel(setter, 1,1,1, 1,1,1, 0, 0, ctypes.addressof(a), 0)); return name(d.cuCtxSynchronize())
print(calls(out), calls(4096))
"""
    told = "gpukernel: Invalid __global__ write of size 1 bytes at set by thread (0,0,0) in block (0,0,0): address 0x1000 is out of bounds"
    says(code, [told, "SUCCESS ILLEGAL_ADDRESS"])


def test_the_parameters_of_a_node_of_any_type_are_told() -> None:
    """cuGraphNodeGetParams of CUDA 13.2; each type's own getter, and what was asked for, are the measure."""
    code = """
lib = ctypes.CDLL("libcuda.so.1")
def params(n):
    p = d.CUgraphNodeParams(); code = lib.cuGraphNodeGetParams(ctypes.c_void_p(int(n)), ctypes.c_void_p(p.getPtr())); assert code == 0, code; return p
g = ok(d.cuGraphCreate(0)); h = ok(d.cuGraphConditionalHandleCreate(g, context, 0, 0)); n, bodies = decides(g, h, SWITCH, 3); p = params(n); c = p.conditional
print(p.type.name, int(c.handle) == int(h), c.type.name, c.size, [int(b) for b in c.phGraph_out] == [int(b) for b in bodies], int(c.ctx) == int(context))
k = adds(bodies[0], out); q = params(k).kernel; print(params(k).type.name, int(q.func) == int(kernel), q.gridDimX, q.blockDimX)
f = ok(d.cuGraphAddEmptyNode(g, [], 0)); print(params(f).type.name)
m = d.CUDA_MEMSET_NODE_PARAMS(); m.dst, m.value, m.elementSize, m.width, m.height = out, 7, 4, 3, 1; q = params(ok(d.cuGraphAddMemsetNode(g, [], 0, m, context))).memset; print(int(q.dst) == out, q.value, q.elementSize, q.width, q.height, int(q.ctx) == int(context))
e = ok(d.cuEventCreate(2)); print(int(params(ok(d.cuGraphAddEventRecordNode(g, [], 0, e))).eventRecord.event) == int(e), int(params(ok(d.cuGraphAddEventWaitNode(g, [], 0, e))).eventWait.event) == int(e))
child = ok(d.cuGraphCreate(0)); w = ok(d.cuGraphAddChildGraphNode(g, [], 0, child)); print(int(params(w).graph.graph) == int(ok(d.cuGraphChildGraphNodeGetGraph(w))))
r = d.CUDA_MEMCPY3D(); r.srcMemoryType = r.dstMemoryType = d.CUmemorytype.CU_MEMORYTYPE_DEVICE; r.srcDevice, r.dstDevice, r.WidthInBytes, r.Height, r.Depth = out, out + 32, 8, 1, 1; q = params(ok(d.cuGraphAddMemcpyNode(g, [], 0, r, context))).memcpy; print(int(q.copyParams.dstDevice) == out + 32, q.copyParams.WidthInBytes, int(q.copyCtx) == int(context))
print(lib.cuGraphNodeGetParams(ctypes.c_void_p(int(e)), ctypes.c_void_p(d.CUgraphNodeParams().getPtr())), lib.cuGraphNodeGetParams(ctypes.c_void_p(int(w)), None))
"""
    says(
        code,
        [
            "CU_GRAPH_NODE_TYPE_CONDITIONAL True CU_GRAPH_COND_TYPE_SWITCH 3 True True",
            "CU_GRAPH_NODE_TYPE_KERNEL True 1 1",
            "CU_GRAPH_NODE_TYPE_EMPTY",
            "True 7 4 3 1 True",
            "True True",
            "True",
            "True 8 True",
            "1 1",
        ],
    )
