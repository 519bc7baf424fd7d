"""Blocks whose warps compiled code runs from barrier to barrier, and each way in which one of them is not like the others.

A warp that does something else than the first one ends the block's run together: the scheduler goes on with all of them,
wherever each is by then. What the warps exchange goes through places of their own, so that both tiers have one result.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.native.simgpu_compiler.conftest import Tiers
from tests.native.simgpu_exec import fault

FRAME = """
#define MEET __syncthreads();
extern "C" __global__ void k(unsigned*o,unsigned n){
    __shared__ unsigned s[1024]; __shared__ volatile unsigned flag;
    unsigned all=blockDim.x*blockDim.y,t=threadIdx.x+blockDim.x*threadIdx.y,w,warps=(all+31)/32; WARP
    unsigned b=blockIdx.x+gridDim.x*(blockIdx.y+gridDim.y*blockIdx.z),at=b*all+t,mine=o[at],row=t*3+b,v=mine,of_warp=w*77+n;
    s[t]=mine; flag=0;
    BEFORE
    FORM
    MEET
    v+=s[all-1-t]*3+of_warp;
    o[at]=v*31+row+(mine>>3);
}
"""
BEFORE = {
    "in the first turn": "",
    "in a later turn": "MEET v+=s[(t+1)%all]; MEET s[t]=v; MEET",
    "in a loop": "for(unsigned i=0;i<n;++i){ MEET v+=s[(t+i)%all]*i; MEET s[t]=v+of_warp; } MEET",
}
FORMS = {
    "nothing": "",
    "a barrier in a loop": "for(unsigned i=0;i<n+(b&1);++i){MEET v+=s[(t+i)%all]; MEET s[t]=v;}",
    "more turns for one warp": "for(unsigned i=0;i<n+(w==1)*2;++i){s[t]+=v; MEET v^=s[t];}",
    "more turns for the first": "for(unsigned i=0;i<n+(w==0);++i){s[t]+=v; MEET v^=s[t];}",
    "the first warp ends": "if(w==0){o[at]=v+of_warp;return;}",
    "a warp ends": "if(w==1){o[at]=v+of_warp;return;}",
    "the last warp ends": "if(w==warps-1){o[at]=v+of_warp;return;}",
    "all but the last end": "if(w!=warps-1){o[at]=v+of_warp;return;}",
    "all end": "if(n==3){o[at]=v+of_warp;return;}",
    "all end in some blocks": "if(b&1){o[at]=v+of_warp;return;}",
    "a lane ends": "if(t==37){o[at]=v;return;}",
    "lanes end": "if(mine&1){o[at]=v;return;}",
    "another barrier for one warp": "if(w==1){MEET v+=of_warp;}else{MEET v^=of_warp;}",
    "another barrier for the first": "if(w==0){MEET v+=of_warp;}else{MEET v^=of_warp;}",
    "lanes that arrive apart": "if(mine&1){v+=5;MEET}else{MEET v^=9;}",
    "a barrier with a number": 'v+=row;asm volatile("bar.sync 5;");v^=s[t]+of_warp;',
    "a barrier that a register names": 'asm volatile("bar.sync %0;"::"r"(n+1));v^=s[t]+of_warp;',
    "barriers with two numbers": 'if(w&1)asm volatile("bar.sync 2, %0;"::"r"(warps/2*32));else asm volatile("bar.sync 3, %0;"::"r"((warps+1)/2*32));v+=of_warp;',
    "an arrival": 'if(w==0)asm volatile("bar.arrive 3, %0;"::"r"(warps*32));else asm volatile("bar.sync 3, %0;"::"r"(warps*32));v+=of_warp;',
    "a barrier of one warp": 'asm volatile("{.reg .pred p; setp.lt.u32 p,%0,32; @p bar.sync 2,32;}"::"r"(t)); v+=of_warp;',
    "a barrier that counts": "v+=__syncthreads_count(mine&1);",
    "a barrier that votes": "v+=__syncthreads_or(mine==7)*3+__syncthreads_and(mine!=9);",
    "an operation of a handler": "v+=(unsigned)(__sinf(v*1e-9f)*1000.f); MEET",
    "a call": "v+=f(v,n); MEET",
    "a call by one warp": "if(w==1)v+=f(v,n); MEET",
    "a long loop in one warp": "if(w==1)for(unsigned i=0;i<90000;++i)v=v*5+(i^v>>3); MEET",
    "a long loop in the first": "if(w==0)for(unsigned i=0;i<90000;++i)v=v*5+(i^v>>3); MEET",
    "a warp that waits for the next": "if(warps>1&&w==0){while(!flag);}else if(t==all-1)flag=1; MEET",
    "a vote in a warp": "if(w==1)v+=__popc(__ballot_sync(__activemask(),mine&1)); MEET",
    "atomic sums": "atomicAdd(&s[t],v); MEET v^=s[t];",
}  # fmt: skip
# The compiler knows of the second that it is one number for all lanes of a warp, so that no lanes part.
WARPS = {"by their threads": "w=t/32;", "by their numbers": 'asm("mov.u32 %0, %%warpid;":"=r"(w));'}
CALLED = "__device__ __noinline__ unsigned f(unsigned v,unsigned n){return n?v*3+f(v>>1,n-1):v;}"
SHAPES: list[tuple[Any, Any]] = [(1, 20), (2, 64), (3, 33), (9, 96), ((3, 2, 2), (40, 4)), (20, 256)]


def text_of(form: str, before: str, warps: str) -> str:
    return FRAME.replace("BEFORE", before).replace("FORM", form).replace("WARP", WARPS[warps])


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("warps", WARPS)
def test_a_warp_that_is_not_like_the_others(
    tiers: Tiers, nvrtc: Any, warps: str, form: str, before: str
) -> None:
    text = CALLED + text_of(FORMS[form], BEFORE[before], warps)
    ptx = nvrtc(text)
    for grid, block in SHAPES:
        given = np.random.default_rng(5).integers(
            0, 2**32, int(np.prod(grid)) * int(np.prod(block)), np.uint32
        )
        (got,) = tiers.same(ptx, "k", grid, block, given, np.uint32(3))
        assert ": compiled: " in tiers.said[-1]
        assert (got != given).any()


def test_many_short_turns_give_way_between_them(tiers: Tiers, nvrtc: Any) -> None:
    """More turns than one budget has: the code is left between two warps of a turn, and entered again there."""
    loop = "for(unsigned i=0;i<n;++i){MEET v+=s[(t+1)%all]*i; MEET s[t]=v^of_warp;}"
    text = text_of(loop, "", "by their numbers")
    for block in (32, 96, 250):
        given = np.arange(3 * block, dtype=np.uint32)
        (got,) = tiers.same(nvrtc(text), "k", 3, block, given, np.uint32(5000))
        assert (got != given).any()


FAULTS = {
    "a store to nowhere": "if(t==71&&b==1)*(unsigned*)(n+4ull*t)=1;",
    "a load past the end": "if(t==45&&b==2)v+=o[(1<<20)+t];",
    "shared memory past the end": "if(t==95&&b==0)s[5000+v]=1;",
    "a trap": "if(t==64&&b==1)__trap();",
    "an assertion": 'if(t==33&&b==2)__assertfail("what","file",7,"function",1);',
    "a deadlock": 'if(w==1)asm volatile("bar.sync 4;");else asm volatile("bar.sync 5;");',
    "a barrier that there is not": 'if(w==2)asm volatile("bar.sync %0;"::"r"(n+17));',
}  # fmt: skip


def test_a_fault_between_two_barriers_says_the_same(nvrtc: Any, tmp_path: Path) -> None:
    declared = 'extern "C" __device__ void __assertfail(const char*,const char*,unsigned,const char*,size_t);'
    said = []
    for tier in ("interpreter", "compiled"):
        folder = tmp_path / tier
        folder.mkdir()
        for form, fault_of in FAULTS.items():
            for before, code in BEFORE.items():
                for warps in WARPS:
                    text = text_of(fault_of, code.replace("i<n", "i<4"), warps)
                    text = declared + text.replace(",unsigned n){", "){unsigned n=o[0]*0;")
                    (folder / f"{form}, {before}, {warps}.96.ptx").write_text(nvrtc(text))
        environment = {**os.environ, "GPUKERNEL_SIMGPU": "h100", "GPUKERNEL_SIMGPU_TIER": tier}
        environment |= {"GPUKERNEL_SIMGPU_THREADS": "1", "GPUKERNEL_SIMGPU_TIER_LOG": "1"}
        command = [sys.executable, fault.__file__, str(folder), "4096", "1", "3"]
        subprocess.run(["setarch", "-R", *command], env=environment, check=True, timeout=280)
        said.append({path.stem: path.read_text() for path in folder.glob("*.txt")})
    assert len(said[0]) == len(FAULTS) * len(BEFORE) * len(WARPS)
    for name, text in said[0].items():
        lines = said[1][name].splitlines(keepends=True)
        assert any(": compiled: " in line for line in lines), name
        assert "".join(line for line in lines if ": compiled: " not in line) == text, name
        assert len(text.splitlines()) > 1, name
