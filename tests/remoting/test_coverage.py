"""Parts of the driver API that programs use now and then: pools, peers, what a stream is."""

from __future__ import annotations

import asyncio

from tests.remoting.conftest import worker


def test_memory_pools_have_settings_of_their_own_and_share_the_lease_s_memory() -> None:
    code = """begin(); A = d.CUmemPool_attribute
props = d.CUmemPoolProps(); props.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
props.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE; props.location.id = 0
pool = ok(d.cuMemPoolCreate(props)); default = ok(d.cuDeviceGetDefaultMemPool(0))
ok(d.cuMemPoolSetAttribute(pool, A.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, d.cuuint64_t(2**40)))
print(int(ok(d.cuMemPoolGetAttribute(pool, A.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD))) == 2**40,
      int(ok(d.cuMemPoolGetAttribute(default, A.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD))))
ok(d.cuDeviceSetMemPool(0, pool)); print(int(ok(d.cuDeviceGetMemPool(0))) == int(pool))
s = ok(d.cuStreamCreate(0)); a = ok(d.cuMemAllocFromPoolAsync(6 << 20, pool, s))
print(int(ok(d.cuMemPoolGetAttribute(pool, A.CU_MEMPOOL_ATTR_USED_MEM_CURRENT))) >> 20, d.cuMemAllocFromPoolAsync(6 << 20, default, s)[0].name)
ok(d.cuMemsetD8Async(a, 7, 6 << 20, s)); out = bytes(16); ok(d.cuMemcpyDtoHAsync(out, a, 16, s)); ok(d.cuStreamSynchronize(s)); print(set(out))
ok(d.cuMemFreeAsync(a, s)); ok(d.cuMemPoolDestroy(pool)); print(d.cuMemPoolDestroy(pool)[0].name, d.cuMemPoolDestroy(default)[0].name)
print(int(ok(d.cuDeviceGetMemPool(0))) == int(default), d.cuMemAllocFromPoolAsync(1024, pool, s)[0].name)
"""

    async def story() -> None:
        async with worker(memory_mib=10) as one:
            bad = "CUDA_ERROR_INVALID_VALUE"
            done = await one.run(code)
            assert done.stdout.splitlines() == [
                "True 0",
                "True",
                "6 CUDA_ERROR_OUT_OF_MEMORY",
                "{7}",
                f"{bad} {bad}",
                f"True {bad}",
            ], done.stderr

    asyncio.run(story())


def test_a_shape_that_no_device_takes_is_an_error_of_the_launch_itself() -> None:
    code = """begin()
kernel = load(b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry small() .maxntid 64, 1, 1 { ret; }", b"small")
for grid, block in ((1, 64), (1, 65), (1, 2048), (0, 1), (1, 0)): print(d.cuLaunchKernel(kernel, grid,1,1, block,1,1, 0, 0, 0, 0)[0].name)
print(d.cuCtxSynchronize()[0].name)
"""

    async def story() -> None:
        async with worker() as one:
            bad = "CUDA_ERROR_INVALID_VALUE"
            done = await one.run(code)
            assert done.stdout.split() == [
                "CUDA_SUCCESS",
                *[bad] * 4,
                "CUDA_SUCCESS",
            ], done.stderr

    asyncio.run(story())


def test_copies_between_devices_pass_through_the_program() -> None:
    code = """import numpy as np
ok(d.cuInit(0)); one, two = (ok(d.cuDevicePrimaryCtxRetain(i)) for i in (0, 1)); n = 9_000_001
data = np.random.default_rng(1).integers(0, 256, n, dtype=np.uint8); out = np.zeros_like(data)
ok(d.cuCtxSetCurrent(one)); a = ok(d.cuMemAlloc(n)); b = ok(d.cuMemAlloc(n)); ok(d.cuMemcpyHtoD(a, data.ctypes.data, n)); ok(d.cuMemcpyPeer(b, one, a, one, n))
ok(d.cuCtxSetCurrent(two)); c = ok(d.cuMemAlloc(n)); ok(d.cuMemcpyPeer(c, two, b, one, n)); ok(d.cuMemcpyDtoH(out.ctypes.data, c, n)); print((out == data).all())
print(d.cuMemcpyPeer(c, 4096, b, one, n)[0].name)
print(ok(d.cuDeviceCanAccessPeer(0, 1)), d.cuCtxEnablePeerAccess(one, 0)[0].name, ok(d.cuDeviceGetP2PAttribute(d.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1)))
"""

    async def story() -> None:
        async with worker() as one, worker(secret=one.secret) as two:
            done = await one.run(code, second=two)
            assert (
                done.stdout == "True\nCUDA_ERROR_INVALID_CONTEXT\n0 CUDA_ERROR_PEER_ACCESS_UNSUPPORTED 0\n"
            ), done.stderr

    asyncio.run(story())


def test_a_stream_knows_its_flags_and_priority() -> None:
    code = """begin()
s = ok(d.cuStreamCreateWithPriority(d.CUstream_flags.CU_STREAM_NON_BLOCKING, -1))
print(ok(d.cuStreamGetFlags(s)), ok(d.cuStreamGetPriority(s)), ok(d.cuStreamGetFlags(0)), d.cuStreamGetFlags(12345)[0].name)
"""

    async def story() -> None:
        async with worker() as one:
            assert (await one.run(code)).stdout == "1 -1 0 CUDA_ERROR_INVALID_HANDLE\n"

    asyncio.run(story())
