"""Blocks that compiled code runs from their beginning: warp after warp, from barrier to barrier, and what a launch computes once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.native.simgpu_compiler.conftest import Tiers
from tests.native.simgpu_compiler.test_programs import ENDLESS

KERNEL = 'extern "C" __global__ void '


def test_each_launch_and_each_block_has_its_own_numbers(tiers: Tiers, nvrtc: Any) -> None:
    text = "k(unsigned*o,unsigned n,unsigned long long far){unsigned b=blockIdx.x+gridDim.x*blockIdx.y,w=blockDim.x*blockDim.y;"
    text += "unsigned i=b*w+threadIdx.x+blockDim.x*threadIdx.y;o[i]=n*blockDim.x+gridDim.y*b+(unsigned)(far>>33)*threadIdx.x;}"
    ptx = nvrtc(KERNEL + text)
    for n, grid, block in [(3, (5, 2), (64, 2)), (11, (5, 2), (64, 2)), (7, (90, 3), (24, 3)), (5, 700, 33)]:
        threads = int(np.prod(grid)) * int(np.prod(block))
        out = np.zeros(threads, np.uint32)
        (got,) = tiers.same(ptx, "k", grid, block, out, np.uint32(n), np.uint64(n << 33))
        assert tiers.handlers() == 0
        x, wide, high = (
            block if np.ndim(block) else (block, 1),
            np.prod(block),
            grid[1] if np.ndim(grid) else 1,
        )
        thread = np.arange(threads)
        want = n * x[0] + high * (thread // wide) + n * (thread % wide % x[0])
        np.testing.assert_array_equal(got, want)


BLOCKS = {
    "lanes that end before a barrier": (
        "(int*o,int n){__shared__ int s[96];int t=threadIdx.x;s[t]=t;if(t%7==n)return;for(int i=0;i<5;++i){__syncthreads();"
        "int v=s[(t*5+i)%96];__syncthreads();s[t]+=v;}o[blockIdx.x*96+t]=s[t];}", 96),
    "warps that end before a barrier": (
        "(int*o,int n){__shared__ int s[160];int t=threadIdx.x;s[t]=t*n;if(t<64)return;__syncthreads();"
        "o[blockIdx.x*160+t]=s[159-t]+s[t];}", 160),
    "barriers at several places": (
        "(int*o,int n){__shared__ int s[128];int t=threadIdx.x;s[t]=t;if(t<64){__syncthreads();s[t]+=n;__syncthreads();}"
        "else{__syncthreads();s[t]*=n;__syncthreads();}o[blockIdx.x*128+t]=s[127-t];}", 128),
    "barriers with numbers and votes": (
        '(int*o,int n){__shared__ int s[128];int t=threadIdx.x;s[t]=t;if(t<64)asm volatile("bar.sync 1, 64;");'
        "else asm volatile(\"bar.sync 2, 64;\");int v=s[t^63];v+=__syncthreads_count(v>n);__syncthreads();o[blockIdx.x*128+t]=v;}", 128),
    "a warp that waits for the next": (
        "(int*o,int n){__shared__ volatile int flag;int t=threadIdx.x;if(t==0)flag=0;__syncthreads();"
        "if(t<32){while(!flag);o[blockIdx.x*64+t]=n;}else{if(t==40){__threadfence_block();flag=1;}o[blockIdx.x*64+t]=t;}}", 64),
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_go_on_as_the_scheduler_has_them(tiers: Tiers, nvrtc: Any, name: str) -> None:
    text, threads = BLOCKS[name]
    (got,) = tiers.same(
        nvrtc(KERNEL + "k" + text), "k", 40, threads, np.zeros(40 * threads, np.int32), np.int32(3)
    )
    assert ": compiled: " in tiers.said[-1]
    assert got.any()


@pytest.mark.parametrize("tier", ["interpreter", "compiled"])
@pytest.mark.parametrize("work", [1, 10_000], ids=["short", "long"])
def test_barriers_without_an_end_are_cancelled(nvrtc: Any, tmp_path: Path, work: int, tier: str) -> None:
    from gpukernel.native import simgpu_library

    text = f"endless(volatile unsigned*o,unsigned n){{unsigned v=n;for(;;){{for(int i=0;i<{work};++i)v=v*n+3;o[threadIdx.x%8]=v;__syncthreads();}}}}"
    ptx = tmp_path / "endless.ptx"
    ptx.write_text(nvrtc(KERNEL + text) + "\0")
    script = ENDLESS.format(root=str(Path(__file__).parents[3]), library=str(simgpu_library()), ptx=str(ptx))
    script = script.replace("64, 1, 1, 0", "1024, 1, 1, 0")
    environment = {**os.environ, "GPUKERNEL_SIMGPU": "v100", "GPUKERNEL_SIMGPU_TIER": tier}
    done = subprocess.run(
        [sys.executable, "-c", script, "7"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert float(done.stdout) < 0.1
