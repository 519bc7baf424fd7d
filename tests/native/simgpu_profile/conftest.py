"""Kernels on a real worker whose counts are known by hand."""

from __future__ import annotations

import asyncio
from typing import Any

from gpukernel.remoting.profile.figures import KernelCount, KernelTier
from gpukernel.remoting.profile.question import begin_profile, end_profile, kernels_of
from tests.remoting.conftest import worker

HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"
LAUNCH = """
import time
begin()
def launch(ptx, name, grid, block, *values, shared=0, times=1, pause=0.0):
    global module
    module = ok(d.cuModuleLoadData(ptx.encode() + b"\\0"))
    packed = [v if isinstance(v, ctypes._SimpleCData) else ctypes.c_uint64(int(v)) for v in values]
    pointers = (ctypes.c_void_p * max(len(packed), 1))(*[ctypes.addressof(v) for v in packed])
    for _ in range(times):
        ok(d.cuLaunchKernel(ok(d.cuModuleGetFunction(module, name.encode())), grid, 1, 1, *(block if isinstance(block, tuple) else (block, 1, 1)), shared, 0, ctypes.addressof(pointers), 0))
        if pause: ok(d.cuCtxSynchronize()); time.sleep(pause)
    ok(d.cuCtxSynchronize())
room = int(ok(d.cuMemAlloc(1 << 20)))
"""


def counted(code: str, **options: Any) -> list[KernelCount]:
    """Run a program that launches by `launch`, and return what the worker counted of its kernels."""

    async def story() -> list[KernelCount]:
        async with worker(**options) as one:
            devices = [one.handle.endpoints]
            await asyncio.to_thread(begin_profile, devices, one.secret)
            done = await one.run(LAUNCH + code)
            assert done.returncode == 0, done.stderr
            return list((await asyncio.to_thread(end_profile, devices, one.secret)).kernels)

    return asyncio.run(story())


def tiers(code: str, **options: Any) -> dict[str, KernelTier]:
    """Run such a program, and return what the worker says of its kernels, by their names."""

    async def story() -> dict[str, KernelTier]:
        async with worker(**options) as one:
            done = await one.run(LAUNCH + code)
            assert done.returncode == 0, done.stderr
            found = await asyncio.to_thread(kernels_of, [one.handle.endpoints], one.secret)
            return {kernel.name: kernel for kernel in found}

    return asyncio.run(story())
