"""Many short warps at once, and accesses that are checked together: the interpreter's bits, and its words where one goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.native.simgpu_compiler.conftest import Tiers, beside_the_array
from tests.native.simgpu_compiler.test_programs import ENDLESS
from tests.native.simgpu_exec import fault

KERNEL = 'extern "C" __global__ void k'

SHORT = {
    "a stencil": (
        "(const float*a,float*b,int n){int x=blockIdx.x*blockDim.x+threadIdx.x,y=blockIdx.y*blockDim.y+threadIdx.y;"
        "if(x<1||y<1||x>=n-1||y>=n-1)return;int i=y*n+x;b[i]=a[i]/2+(a[i-1]+a[i+1]+a[i-n]+a[i+n])/8;}",
        (7, 101), (32, 2), (201 * 201, 201 * 201), 201),
    "structures": (
        "(const float*a,float*b,int n){const float4*s=(const float4*)a;int i=blockIdx.x*blockDim.x+threadIdx.x;"
        "float4 u=s[i],v=s[i+1];if(i>=n)return;float2*o=(float2*)b;o[i]=make_float2(u.x*v.y,u.z-v.w);o[i+n]=make_float2(u.y,v.x);}",
        41, 96, (4 * 4000, 4 * 3900), 3900),
    "one address for all, and lines beside it": (
        "(const float*a,float*b,int n){int i=blockIdx.x*blockDim.x+threadIdx.x;float s=0;const float*p=a+blockIdx.x;"
        "s=p[0]*p[1]+p[2]-p[3];if(i<n){b[i]=s+a[i];b[i+4000]=s-a[i+7];}}",
        60, 64, (4000, 8000), 3900),
    "structures from anywhere": (
        "(const float*a,float*b,int n){int i=blockIdx.x*blockDim.x+threadIdx.x,j=i*37%n;const float*p=a+3*j;float*o=b+3*(i^5);"
        "float s=p[0]*p[1];if(i%5){o[0]=p[2]+s;o[2]=p[0]-p[1];if(j%3)o[1]=p[1]+p[-1]+p[3];}else o[1]=s-p[4];}",
        40, 96, (4 * 4000, 4 * 4000), 3900),
    "lower bytes of what stands side by side": (
        "(const unsigned*a,unsigned*b,int n){int i=blockIdx.x*blockDim.x+threadIdx.x;if(i>=n)return;const unsigned char*c=(const unsigned char*)a;"
        "const unsigned short*h=(const unsigned short*)a;unsigned long long w=((const unsigned long long*)a)[i]&0xffffffffu;"
        "b[i]=c[4*i]+c[4*i+3]*1000u+h[2*i]*7u+h[2*i+1]+(unsigned)w*3u+(unsigned)((const char*)a)[4*i]+c[2*i];}",
        40, 100, (8000, 4000), 4000),
    "atomics of whole warps and of some lanes": (
        "(const unsigned*a,unsigned*b,int n){__shared__ unsigned s[64];int t=threadIdx.x,i=blockIdx.x*blockDim.x+t;if(t<64)s[t]=0;__syncthreads();"
        "atomicAdd(&s[a[i]%64],1u);__syncthreads();if(t%3)atomicXor(&s[a[i]%61],a[i]);__syncthreads();atomicOr(&s[a[i]%7],t);__syncthreads();"
        "if(a[i]%5<n)atomicAdd(&s[t%32],a[i]);__syncthreads();if(t<64)b[64*blockIdx.x+t]=s[t];}",
        20, 80, (1600, 1280), 3),
}  # fmt: skip


@pytest.mark.parametrize("name", SHORT)
def test_short_warps_of_many_blocks(tiers: Tiers, nvrtc: Any, name: str) -> None:
    text, grid, block, sizes, n = SHORT[name]
    random = np.random.default_rng(5)
    arrays: list[np.ndarray[Any, Any]] = [random.standard_normal(size).astype(np.float32) for size in sizes]
    given, out = tiers.same(nvrtc(KERNEL + text), "k", grid, block, *arrays, np.int32(n))
    assert ": compiled: " in tiers.said[-1]
    assert (out != arrays[1]).any()
    np.testing.assert_array_equal(given.view(np.uint32), arrays[0].view(np.uint32))


# Accesses through one address, of which one or the other leaves an array of 4,096 bytes when they come to it again.
LANES = {
    "side by side": "j",
    "side by side in another order": "j^1",
    "in eights": "(j&7)+(j>>3)*11",
    "in eights with a gap": "(j&7)+(j>>3)*11+(j>17)",
    "at one place": "5",
    "at one place for eight": "j>>3",
    "in part side by side, in part not": "j<16?j:j*3",
    "as another warp does not": "(blockIdx.x+threadIdx.y/4)%3?j*5:j",
    "anywhere": "j*37%113",
}


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("shape", [(8, 8), (8, 5)])
def test_however_lanes_lie_that_load_several_times(
    tiers: Tiers, nvrtc: Any, lanes: str, shape: tuple[int, int]
) -> None:
    text = (
        f"(const float*a,float*b){{int t=threadIdx.y*8+threadIdx.x,j=t+blockIdx.x;const float*p=a+({LANES[lanes]})+3;"
        "float s=p[0]*p[1]+p[7]-p[-2];if(t%3)s+=p[0]*p[2]-p[5];b[blockIdx.x*64+t]=s+p[1]*p[3];}"
    )
    random = np.random.default_rng(6)
    given, before = (random.standard_normal(size).astype(np.float32) for size in (800, 64 * 20))
    (_, out) = tiers.same(nvrtc(KERNEL + text), "k", 20, shape, given, before)
    assert tiers.handlers() == 0
    assert (out != before).any()


TOGETHER = """.version 7.0
.target sm_70
.address_size 64
.visible .entry k(.param .u64 out)
{{
    .reg .pred %p; .reg .b32 %t, %v, %s, %n; .reg .b64 %o, %w, %a<9>;
    ld.param.u64 %a0, [out]; mov.u32 %t, %tid.x; mul.wide.u32 %a1, %t, {step};
    add.u64 %a2, %a0, %a1; add.u64 %a3, %a2, 1024; mov.u32 %n, 0;
AGAIN:
    mul.wide.s32 %a4, %n, {further}; add.u64 %o, %a3, %a4;
    {body}
    add.u32 %n, %n, 1; setp.lt.u32 %p, %n, 2; @%p bra AGAIN;
    ret;
}}
"""
BODIES = {
    "lines": "ld.global.u32 %v, [%o]; st.global.u32 [%o+128], %v; ld.global.u32 %s, [%o+-128]; st.global.u32 [%o+1024], %s;",
    "pairs": "ld.global.v2.u32 {%v,%s}, [%o]; st.global.v2.u32 [%o+256], {%s,%v}; ld.global.u32 %s, [%o+8];",
    "each its own": "xor.b32 %s, %t, 5; mul.wide.u32 %w, %s, 4; add.u64 %w, %w, %o; ld.global.u32 %v, [%w]; st.global.u32 [%w+128], %v; "
    "ld.global.u32 %s, [%w+-128]; st.global.u32 [%w+1024], %s;",
    "one of them far": "setp.eq.u32 %p, %t, 19; xor.b32 %s, %t, 5; @%p mov.u32 %s, 240; mul.wide.u32 %w, %s, 4; add.u64 %w, %w, %o; "
    "st.global.u32 [%w+64], %s; ld.global.u32 %s, [%w+4]; st.global.u32 [%w+8], %s;",
    "one for all": "ld.global.u32 %v, [%o]; ld.global.u32 %s, [%o+-128]; ld.global.u32 %v, [%o+512]; ld.global.u32 %v, [%o+64];",
}  # fmt: skip
STEPS = {"lines": 4, "pairs": 8, "each its own": 0, "one of them far": 0, "one for all": 0}
BEGINS = (0, 64, 128, 2048, 2816, 3072, 3328, 3584, 3968, 4096, -1024, 1026, 3588)


@pytest.mark.parametrize("name", BODIES)
def test_the_access_that_leaves_its_array_is_told(tmp_path: Path, name: str) -> None:
    said: dict[str, dict[str, str]] = {}
    for tier in ("interpreter", "compiled"):
        folder = tmp_path / tier
        folder.mkdir()
        for at in BEGINS:
            text = TOGETHER.format(step=STEPS[name], further=at - 1024, body=BODIES[name])
            (folder / f"{at}.32.ptx").write_text(text)
        environment = {**os.environ, "GPUKERNEL_SIMGPU_TIER": tier, "GPUKERNEL_SIMGPU_TIER_LOG": "1"}
        command = [sys.executable, fault.__file__, str(folder), "4096", "1"]
        subprocess.run(["setarch", "-R", *command], env=environment, check=True, timeout=280)
        said[tier] = {path.name: beside_the_array(path.read_text()) for path in sorted(folder.glob("*.txt"))}
    results = set()
    for file, text in said["compiled"].items():
        lines = text.splitlines()
        assert any(": compiled: " in line for line in lines), text
        rest = [line for line in lines if ": compiled: " not in line]
        assert rest == said["interpreter"][file].splitlines(), file
        results.add(rest[-1])
    assert results >= {"0", "700"}


@pytest.mark.parametrize("where", [(0, 5), (3, 70), (37, 31), (150, 0)])
def test_a_fault_says_which_block_of_many_it_was(nvrtc: Any, tmp_path: Path, where: tuple[int, int]) -> None:
    block, thread = where
    text = f"(int*o){{int i=blockIdx.x*96+threadIdx.x;int v=o[i];if(blockIdx.x=={block}&&threadIdx.x=={thread})o[i+(1<<20)]=v;}}"
    ptx = tmp_path / "k.ptx"
    ptx.write_text(nvrtc(KERNEL + text))
    said = []
    for tier in ("interpreter", "compiled"):
        environment = {**os.environ, "GPUKERNEL_SIMGPU_TIER": tier}
        command = ["setarch", "-R", sys.executable, fault.__file__, str(ptx), "96", str(4 * 96 * 160), "160"]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        said.append(beside_the_array(done.stdout + done.stderr))
    assert f"by thread ({thread},0,0) in block ({block},0,0)" in said[0]
    assert said[1] == said[0]


@pytest.mark.parametrize("tier", ["interpreter", "compiled"])
def test_blocks_without_number_are_cancelled(nvrtc: Any, tmp_path: Path, tier: str) -> None:
    from gpukernel.native import simgpu_library

    ptx = tmp_path / "endless.ptx"
    ptx.write_text(
        nvrtc('extern "C" __global__ void endless(unsigned*o,unsigned n){o[threadIdx.x%8]=n;}') + "\0"
    )
    script = ENDLESS.format(root=str(Path(__file__).parents[3]), library=str(simgpu_library()), ptx=str(ptx))
    script = script.replace("4, 1, 1, 64", "0x7fffffff, 65535, 1, 64")
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
