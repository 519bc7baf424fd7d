"""A loop that several warps of a block run side by side, and each way in which one of them is not like the others.

``python -m tests.native.simgpu_compiler.test_abreast SEED SECONDS`` draws loops for so long and tells the first that differs.
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
from typing import Any

import numpy as np
import pytest

from gpukernel.native import simgpu_library
from tests.native.simgpu_compiler.conftest import VECTORS, Tiers
from tests.native.simgpu_exec.conftest import Device, compile_cuda

pytestmark = pytest.mark.skipif("avx512" not in VECTORS, reason="Loops run side by side need AVX-512.")

FRAME = """
#define BITS(x) (x==x?__float_as_uint(x):7u)
__device__ __noinline__ unsigned f_(unsigned v,unsigned n){return n?v*3+f_(v>>1,n-1):v;}
extern "C" __global__ void k(unsigned*o,unsigned n,float f){
    __shared__ unsigned s[1024];
    unsigned t=threadIdx.x,all=blockDim.x,b=blockIdx.x,w,warps=(all+31)/32,at=b*all+t,mine=o[at],left=mine^t,u=n*3+1,turns=n;
    asm("mov.u32 %0, %%warpid;":"=r"(w));
    float x=t*0.01f+f,y=x,c=f*0.37f,e=mine; unsigned long long l=mine; unsigned v=mine; double d=mine*1e-3;
    s[t]=mine; __syncthreads();
    BEFORE
    #pragma unroll 1
    for(unsigned i=0;i<turns;++i){ BODY }
    BEHIND
    v+=BITS(x)*3+BITS(y)*5+(unsigned)l+(unsigned)(l>>32)+left+BITS(e)+u+(unsigned)__double2ll_rn(d)+BITS(c);
    o[at]=v;
}
"""
CHAIN = "x=fmaf(x,f,c);" * 9
BODIES = {
    "one chain": CHAIN,
    "two chains": CHAIN + "y=fmaf(y,y,f);",
    "whole numbers": "v=v*5+n;v^=v<<3;v+=u;v^=0x55;v=v*3+7;v^=v<<1;v+=11;v&=0xfffff7;v=v*9+1;",
    "long ones": "l=l*5+n;l^=l<<3;l+=u;l^=0x55;l=l*3+7;l^=l<<1;l+=11;l&=0xfffff7;l=l*9+1;",
    "doubles": "d=fma(d,0.5,0.25);" * 9,
    "of two kinds": "x=fmaf(x,f,c);x=fminf(x,1e6f);v+=3;v^=v<<2;x=-x;x=fmaf(x,f,(float)(int)v);v&=0xffffff;x=fmaxf(x,-7.f);",
    "of two widths": CHAIN + "d=x;d=fma(d,0.5,0.25);x=d;",
    "what all lanes share changes": "x=fmaf(x,c,f);c=fmaf(c,0.5f,f);u+=i*3;" + CHAIN,
    "the turn's number": CHAIN + "x+=(float)i;",
}
BEFORE = {
    "nothing": "",
    "what others wrote": "v+=s[all-1-t];",
    "a warp ends": "if(w==1)return;",
    "the first warp ends": "if(w==0)return;",
    "the last warp ends": "if(w==warps-1)return;",
    "all but the last end": "if(w!=warps-1)return;",
    "lanes end": "if((t&63)==37)return;",
    "the last lanes end": "if(t>=all-5)return;",
    "lanes end where they are": 'asm volatile("{.reg .pred q; setp.eq.u32 q,%0,37; @q exit;}"::"r"(t&63));',
    "lanes of one warp end where they are": 'asm volatile("{.reg .pred q; setp.eq.u32 q,%0,77; @q exit;}"::"r"(t));',
    "more turns for one warp": "if(w==1)turns+=2;",
    "none for one warp": "if(w==1)turns=0;",
    "another number in one warp": "if(w==2)c=f*2;",
    "another number in each": "c=f*w; u=w;",
    "another operand in some blocks": "if(b&1)u+=w;",
    "a call by one warp": "if(w==1)v+=f_(v,n);",
    "a loop before": "for(unsigned i=0;i<n*2;++i)v=v*3+i;",
    "a vote": "v+=__popc(__ballot_sync(__activemask(),mine&1));",
}
BEHIND = {
    "nothing": "",
    "a barrier": "__syncthreads(); s[t]=BITS(x)^v; __syncthreads(); v+=s[(t+33)%all];",
    "a call by one warp": "if(w==1)v+=f_(v,n);",
    "a warp ends": "if(w==1){o[at]=v+1;return;}",
    "lanes end": "if(mine&1){o[at]=v+BITS(x);return;}",
    "the loop again": "for(unsigned i=0;i<turns;++i){ BODY } v+=7;",
    "a call of a handler": "v+=(unsigned)(__sinf(v*1e-9f)*1000.f);",
    "atomic sums": "__syncthreads(); atomicAdd(&s[t%7],v); __syncthreads(); v+=s[t%7];",
    "lanes part": "if(mine&1)v+=n;else v^=5; left+=v;",
}
SHAPES = [(3, 20), (2, 32), (3, 33), (3, 64), (9, 96), (3, 127), (2, 250), (20, 256), (2, 1024)]


def text_of(body: str, before: str = "", behind: str = "") -> str:
    return FRAME.replace("BEFORE", before).replace("BEHIND", behind).replace("BODY", body)


def abreast(tiers: Tiers) -> int:
    """Return how many warps run a loop of the last kernel side by side."""
    found = re.search(r"(\d) warps abreast", tiers.said[-1])
    return int(found[1]) if found else 1


def check(tiers: Tiers, ptx: str, turns: int = 3, shapes: Any = SHAPES) -> None:
    changed = False
    for grid, block in shapes:
        given = np.random.default_rng(5).integers(0, 2**32, grid * block, np.uint32)
        (got,) = tiers.same(ptx, "k", grid, block, given, np.uint32(turns), np.float32(0.75))
        changed |= bool((got != given).any())
    assert changed


@pytest.mark.parametrize("body", BODIES)
def test_a_loop_of_several_warps(tiers: Tiers, nvrtc: Any, body: str) -> None:
    ptx = nvrtc(text_of(BODIES[body]))
    for turns in (1, 2, 7):
        check(tiers, ptx, turns)
        assert abreast(tiers) > 1


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("before", BEFORE)
def test_a_warp_that_is_not_like_the_others(tiers: Tiers, nvrtc: Any, before: str, behind: str) -> None:
    for body in ("one chain", "what all lanes share changes"):
        check(tiers, nvrtc(text_of(BODIES[body], BEFORE[before], BEHIND[behind])))


def test_how_many_warps_there_are(tiers: Tiers, nvrtc: Any) -> None:
    """As many as there are vectors for, four at most.

    A loop that has them all at work by itself is left alone, and so is one before which a warp writes what others might see.
    """
    many = "".join(f"x{n}=fmaf(x{n},f,c);" for n in range(8))
    declared = "float " + ",".join(f"x{n}=x+{n}" for n in range(8)) + ";"
    behind = "".join(f"x+=x{n};" for n in range(8))
    for text, count in (
        (text_of(CHAIN), 4),
        (text_of(CHAIN + "".join(f"x{n}=fmaf(x{n},f,c);" for n in range(3)), declared, behind), 3),
        (text_of(CHAIN + "".join(f"x{n}=fmaf(x{n},f,c);" for n in range(5)), declared, behind), 2),
        (text_of(many, declared, behind), 1),
        (text_of(CHAIN + "x+=s[i&63];"), 1),
        (text_of("x=fmaf(x,f,c);"), 1),
        (text_of(CHAIN, "atomicAdd(&s[5],w);"), 1),
        (text_of(CHAIN, "o[at]=0;"), 1),
    ):
        check(tiers, nvrtc(text), shapes=[(2, 256)])
        assert abreast(tiers) == count


def test_a_loop_that_outlasts_its_budget(tiers: Tiers, nvrtc: Any) -> None:
    for behind in ("nothing", "a barrier"):
        check(tiers, nvrtc(text_of(CHAIN, "", BEHIND[behind])), 70_000, [(2, 200), (1, 96)])
        assert abreast(tiers) == 4


# What drawn loops are made of: X, Y are floats, V, W whole numbers, L long ones, D doubles; C and U are what all lanes share.
STATEMENTS = (
    *("X=fmaf(X,Y,C);", "X=fmaf(Y,C,X);", "X=fmaf(C,C,Y);", "X=Y*C;", "X=X+Y;", "X=Y-C;", "X=-Y;", "X=fabsf(Y);"),
    *("X=fminf(X,Y);", "X=fmaxf(Y,C);", "X=(float)V;", "X=(float)(int)W;", "X=C;", "C=fmaf(C,0.5f,f);", "X=Y;", "X=D;"),
    *("V=V*W+U;", "V^=W<<3;", "V=W>>U;", "V&=W|U;", "V=min(V,W);", "V=max((int)V,(int)U);", "V+=i;", "V=(V&W)^~U;"),
    *("U=U*3+1;", "U^=i;", "V+=3;", "V=(unsigned)L;", "V-=U;", "V=__umulhi(V,W);", "V=W;", "V=(unsigned)(int)fminf(X,1e6f);"),
    *("L+=V;", "L=(unsigned long long)V*W+L;", "L^=L>>7;", "L=L*5+U;", "L=(long long)(int)V;", "D=fma(D,0.5,(double)C);", "D=X;", "D=D+D;"),
)  # fmt: skip


def drawn(seed: int) -> tuple[str, int]:
    """Return a kernel, and the turns of its loop."""
    chance = random.Random(seed)
    kinds = {
        "X": "xye",
        "Y": "xye",
        "V": ["v", "left"],
        "W": ["v", "left"],
        "L": "l",
        "D": "d",
        "C": "c",
        "U": "u",
    }
    for letters in ("XY", "VW"):  # of most kinds one variable, so that there are vectors for several warps
        if chance.random() < 0.7:
            one = chance.choice(kinds[letters[0]])
            kinds |= {letter: [one] for letter in letters}
    wide = chance.random() < 0.3
    few = chance.sample(
        [one for one in STATEMENTS if wide or not re.search("[LD]", one)], chance.randint(3, 12)
    )

    def statement() -> str:
        return re.sub(r"\b[XYVWLDCU]\b", lambda one: chance.choice(kinds[one[0]]), chance.choice(few))

    body = "".join(statement() for _ in range(chance.randint(12, 32)))
    before, behind = chance.choice([*BEFORE.values(), "", ""]), chance.choice([*BEHIND.values(), "", ""])
    return text_of(body, before, behind), chance.choice([1, 2, 3, 5, 9, 40])


def _some_drawn(tiers: Tiers, seeds: range) -> int:
    """Hold drawn kernels to the same bits in both tiers, and return how many of them had a loop of several warps."""
    count = 0
    for seed in seeds:
        text, turns = drawn(seed)
        chance = random.Random(seed)
        ptx = compile_cuda(text)
        for grid, block in chance.sample(SHAPES, 3):
            given = np.random.default_rng(seed).integers(0, 2**32, grid * block, np.uint32)
            given = given if seed % 3 else given & 0xFFFF
            for tier in ("interpreter", "compiled"):
                (got,) = tiers.run(tier, ptx, "k", grid, block, given, np.uint32(turns), np.float32(0.75))
                if tier == "interpreter":
                    expected = got
            assert (got == expected).all(), f"seed {seed}, {grid} blocks of {block}: {tiers.said[-1]}"
        count += abreast(tiers) > 1
    return count


def test_drawn_loops(tiers: Tiers) -> None:
    assert _some_drawn(tiers, range(40)) >= 8


if __name__ == "__main__":
    begin, seconds = int(sys.argv[1]), float(sys.argv[2])
    os.environ["GPUKERNEL_SIMGPU"] = "a100"

    class _Said:
        def readouterr(self) -> Any:
            return type("Read", (), {"err": ""})

    class _Sets:
        def setenv(self, name: str, value: str) -> None:
            os.environ[name] = value

    both = Tiers(Device(str(simgpu_library())), _Sets(), _Said())  # type: ignore[arg-type]
    both.said.append("")
    end, seed = time.monotonic() + seconds, begin * 1_000_000
    while time.monotonic() < end:
        _some_drawn(both, range(seed, seed + 1))
        seed += 1
    print(f"{seed - begin * 1_000_000} kernels were alike")
