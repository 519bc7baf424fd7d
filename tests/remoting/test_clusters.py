"""Launches in clusters, and what else a launch may be told: through the shim on a simulated H100, which has them, and on a V100."""

from __future__ import annotations

import asyncio

import pytest

from tests.remoting.conftest import worker

# Each block adds the size of its cluster to *out; `fixed` is compiled for clusters of two, `bounded` for blocks of at most 64 threads.
PTX = """
PTX = b'''.version 8.0
.target sm_90
.address_size 64
.visible .entry free(.param .u64 out) { BODY }
.visible .entry fixed(.param .u64 out) .explicitcluster .reqnctapercluster 2, 1, 1 { BODY }
.visible .entry bounded(.param .u64 out) .maxntid 64, 1, 1 .maxclusterrank 4 { BODY }
'''.replace(b"BODY", b".reg .b64 %rd<2>; .reg .b32 %r<2>; ld.param.u64 %rd1, [out]; mov.u32 %r1, %cluster_nctarank; red.global.add.u32 [%rd1], %r1; ret;")
A, F = d.CUlaunchAttributeID, d.CUfunction_attribute
begin()
module = ok(d.cuModuleLoadData(PTX + b"\\0"))
free, fixed, bounded = (ok(d.cuModuleGetFunction(module, name)) for name in (b"free", b"fixed", b"bounded"))
memory = ok(d.cuMemAlloc(4)); pointer = ctypes.c_uint64(int(memory)); packed = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
def config(grid, cluster=None, threads=1, stream=None):
    c = d.CUlaunchConfig(); c.gridDimX = grid; c.gridDimY = c.gridDimZ = c.blockDimY = c.blockDimZ = 1; c.blockDimX = threads
    if stream: c.hStream = stream
    if cluster:
        a = d.CUlaunchAttribute(); a.id = A.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        a.value.clusterDim.x, a.value.clusterDim.y, a.value.clusterDim.z = cluster
        c.attrs, c.numAttrs = [a], 1
    return c
def launch(function, *shape, **more): return d.cuLaunchKernelEx(config(*shape, **more), function, ctypes.addressof(packed), 0)[0].name
def total():
    out = bytes(4); ok(d.cuMemcpyDtoH(out, memory, 4)); ok(d.cuMemsetD32(memory, 0, 1)); return int.from_bytes(out, "little")
total()
"""


async def _printed(code: str) -> list[str]:
    async with worker() as one:
        done = await one.run(PTX + code)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


@pytest.fixture
def _h100(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUKERNEL_SIMGPU", "h100")


@pytest.mark.usefixtures("_h100")
def test_a_launch_says_how_large_its_clusters_are() -> None:
    code = """
print(ok(d.cuDeviceGetAttribute(d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 0)))
print(launch(free, 8, (4, 1, 1)), total(), launch(free, 8), total(), launch(fixed, 8), total(), launch(fixed, 8, (2, 1, 1)), total())
print(launch(free, 9, (2, 1, 1)), launch(free, 8, (0, 1, 1)), launch(free, 600, (300, 1, 1)), total())
print(d.cuCtxSynchronize()[0].name)
for function, *shape in ((free, 16, (16, 1, 1)), (fixed, 8, (4, 1, 1)), (fixed, 3), (bounded, 8, (8, 1, 1))):
    print(launch(function, *shape), d.cuCtxSynchronize()[0].name, total())  # what only the device knows comes with the next answer
ok(d.cuFuncSetAttribute(free, F.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)); print(launch(free, 16, (16, 1, 1)), total())
"""
    size = "CUDA_ERROR_INVALID_CLUSTER_SIZE"
    assert asyncio.run(_printed(code)) == [
        "1",
        "CUDA_SUCCESS 32 CUDA_SUCCESS 8 CUDA_SUCCESS 16 CUDA_SUCCESS 16",
        f"{size} {size} {size} 0",
        "CUDA_SUCCESS",
        *[f"CUDA_SUCCESS {size} 0"] * 4,
        "CUDA_SUCCESS 256",
    ]


@pytest.mark.usefixtures("_h100")
def test_a_function_says_what_clusters_it_wants() -> None:
    code = """
sides = [F.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, F.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, F.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH]
others = [F.CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET, F.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, F.CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE]
def told(f): return [ok(d.cuFuncGetAttribute(a, f)) for a in sides + others]
print(told(free), told(fixed))
print(d.cuFuncSetAttribute(fixed, sides[0], 4)[0].name, d.cuFuncSetAttribute(free, others[2], 3)[0].name)
for side, blocks in zip(sides, (1, 1, 4)): ok(d.cuFuncSetAttribute(free, side, blocks))
ok(d.cuFuncSetAttribute(free, others[2], 1)); print(told(free), launch(free, 4), d.cuCtxSynchronize()[0].name)
ok(d.cuFuncSetAttribute(free, sides[0], 4)); ok(d.cuFuncSetAttribute(free, sides[2], 1)); print(launch(free, 4), total())
"""
    assert asyncio.run(_printed(code)) == [
        "[0, 0, 0, 0, 0, 0] [2, 1, 1, 1, 0, 0]",
        "CUDA_ERROR_NOT_PERMITTED CUDA_ERROR_INVALID_VALUE",
        "[1, 1, 4, 0, 0, 1] CUDA_SUCCESS CUDA_ERROR_INVALID_CLUSTER_SIZE",  # the grid is one block deep
        "CUDA_SUCCESS 16",
    ]


@pytest.mark.usefixtures("_h100")
def test_occupancy_counts_clusters_and_asks_the_program_for_shared_memory() -> None:
    code = """
print([ok(d.cuOccupancyMaxPotentialClusterSize(f, config(8, None, 64))) for f in (free, fixed, bounded)])
ok(d.cuFuncSetAttribute(free, F.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)); print(ok(d.cuOccupancyMaxPotentialClusterSize(free, config(8, None, 64))))
count = ok(d.cuDeviceGetAttribute(d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0))
each = ok(d.cuOccupancyMaxActiveBlocksPerMultiprocessor(free, 1024, 0))
print(ok(d.cuOccupancyMaxActiveClusters(free, config(8, (4, 1, 1), 1024))) == count * each // 4, ok(d.cuOccupancyMaxActiveClusters(fixed, config(8, None, 1024))) == count * each // 2)
print(d.cuOccupancyMaxActiveClusters(free, config(8, None, 64))[0].name, d.cuOccupancyMaxActiveClusters(fixed, config(8, (4, 1, 1), 64))[0].name)
asked = []
@ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)
def shared(threads):
    asked.append(threads)
    return 128 * threads  # 12 warps at most in the 48 KiB of a block; 11 fit best into a multiprocessor's 228 KiB, with one more KiB a block
best = ok(d.cuOccupancyMaxPotentialBlockSize(free, d.CUoccupancyB2DSize(_ptr=ctypes.addressof(shared)), 0, 0))
def warps(threads): return ok(d.cuOccupancyMaxActiveBlocksPerMultiprocessor(free, threads, 128 * threads)) * threads // 32
print(asked == [*range(1024, 0, -32)], warps(best[1]) == max(warps(t) for t in asked), best[0] == count * warps(best[1]) * 32 // best[1], warps(best[1]))
asked.clear(); print(ok(d.cuOccupancyMaxPotentialBlockSize(bounded, d.CUoccupancyB2DSize(_ptr=ctypes.addressof(shared)), 0, 50))[1], asked)
"""
    size = "CUDA_ERROR_INVALID_CLUSTER_SIZE"
    assert asyncio.run(_printed(code)) == [
        "[8, 2, 4]",
        "16",
        "True True",
        f"{size} {size}",
        "True True True 55",
        "50 [50, 32]",
    ]


@pytest.mark.usefixtures("_h100")
def test_a_graph_s_kernels_keep_their_clusters() -> None:
    code = """
s = ok(d.cuStreamCreate(0)); ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
print(launch(free, 8, (4, 1, 1), stream=s)); graph = ok(d.cuStreamEndCapture(s))
node = ok(d.cuGraphGetNodes(graph, 1))[0][0]
def dims(n): c = ok(d.cuGraphKernelNodeGetAttribute(n, A.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)).clusterDim; return c.x, c.y, c.z
def run(): e = ok(d.cuGraphInstantiate(graph, 0)); ok(d.cuGraphLaunch(e, s)); ok(d.cuStreamSynchronize(s)); return total()
print(dims(node), run())
value = d.CUkernelNodeAttrValue(); value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = 2, 1, 1
ok(d.cuGraphKernelNodeSetAttribute(node, A.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value)); print(dims(node), run())
value.clusterDim.x = 1000; print(d.cuGraphKernelNodeSetAttribute(node, A.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value)[0].name, dims(node))
"""
    assert asyncio.run(_printed(code)) == [
        "CUDA_SUCCESS",
        "(4, 1, 1) 32",
        "(2, 1, 1) 16",
        "CUDA_ERROR_INVALID_CLUSTER_SIZE (2, 1, 1)",
    ]


@pytest.mark.usefixtures("_h100")
@pytest.mark.parametrize("kind", ["PROGRAMMATIC", "LAUNCH_COMPLETION"])
def test_an_event_of_a_launch_is_recorded(kind: str) -> None:
    code = f"""
event = ok(d.cuEventCreate(d.CUevent_flags.CU_EVENT_DISABLE_TIMING)); a = d.CUlaunchAttribute(); a.id = A.CU_LAUNCH_ATTRIBUTE_{kind}_EVENT
(a.value.programmaticEvent if "{kind}" == "PROGRAMMATIC" else a.value.launchCompletionEvent).event = event
side, c = ok(d.cuStreamCreate(1)), config(200000, None); ok(d.cuCtxSynchronize()); c.hStream = ok(d.cuStreamCreate(1)); c.attrs, c.numAttrs = [a], 1
ok(d.cuLaunchKernelEx(c, free, ctypes.addressof(packed), 0)); ok(d.cuStreamWaitEvent(side, event, 0))
out = bytes(4); ok(d.cuMemcpyDtoHAsync(out, memory, 4, side)); ok(d.cuStreamSynchronize(side)); print(int.from_bytes(out, "little"), d.cuEventQuery(event)[0].name)
"""
    assert asyncio.run(_printed(code)) == ["200000 CUDA_SUCCESS"]


def test_a_v100_has_no_clusters() -> None:
    code = """begin()
kernel = load(b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry none() { ret; }", b"none")
print(ok(d.cuDeviceGetAttribute(d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 0)))
for blocks in (1, 2):
    c, a = d.CUlaunchConfig(), d.CUlaunchAttribute(); c.gridDimX = 2; c.gridDimY = c.gridDimZ = c.blockDimX = c.blockDimY = c.blockDimZ = 1
    a.id = d.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION; a.value.clusterDim.x, a.value.clusterDim.y, a.value.clusterDim.z = blocks, 1, 1
    c.attrs, c.numAttrs = [a], 1; print(d.cuLaunchKernelEx(c, kernel, 0, 0)[0].name, d.cuCtxSynchronize()[0].name)
"""

    async def story() -> None:
        async with worker() as one:
            done = await one.run(code)
            assert done.stdout.splitlines() == [
                "0",
                "CUDA_SUCCESS CUDA_SUCCESS",
                "CUDA_ERROR_NOT_SUPPORTED CUDA_SUCCESS",
            ], done.stderr

    asyncio.run(story())
