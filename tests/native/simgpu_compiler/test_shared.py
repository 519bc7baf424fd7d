"""Shared memory whose lanes have addresses of their own: whatever the pattern, and whatever is remembered of it, as the interpreter has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.native.simgpu_compiler.conftest import Tiers

# Which of 2048 words a thread's address names: `t` is its number, `r` a random number of its own.
PATTERNS = {
    "a row": "t",
    "every second": "2*t",
    "pairs": "2*t-(t&1)",
    "fours": "2*t-(t&3)",
    "eights": "2*t-(t&7)",
    "every third": "3*t",
    "every fifth": "5*t",
    "backwards": "255-t",
    "one place": "t/16",
    "one place for two": "t/2",
    "neighbours swapped": "t^1",
    "half rows swapped": "t^8",
    "sixteens swapped": "t^16",
    "shuffled": "(t&~15u)|((t*5+3)&15u)",
    "shuffled among 32": "(t&~15u)*2+((t*7+1)&31u)",
    "anywhere": "r%2000",
    "anywhere near": "(t&~15u)+r%17",
    "near the end": "2047-(255-t)%16",
}
USES = {
    "loads": "for(unsigned i=0;i<5;++i) v=v*3+s[p];",
    "loads beside": "for(unsigned i=0;i<5;++i) v=v*3+s[p]+s[p+1]*7+s[p+2]*5;",
    "loads before": "unsigned*q=s+p+40; for(unsigned i=0;i<5;++i) v=v*3+q[-3]+q[0]*7+q[-40]*5;",
    "stores": "for(unsigned i=0;i<5;++i){ s[p]=v+i; MEET v=v*3+s[t]; MEET }",
    "stores that are read again": "volatile unsigned*w=s; for(unsigned i=0;i<5;++i){ w[p]=v+i; v=v*3+w[p]; w[p]=v; v+=w[p]*5; }",
    "stores of some lanes": "for(unsigned i=0;i<5;++i){ if((r>>i)&1) s[p]=v+i; MEET v=v*3+s[t]; MEET }",
    "loads of some lanes": "for(unsigned i=0;i<5;++i) if((r>>i)&1) v=v*3+s[p];",
    "one element of two": "for(unsigned i=0;i<5;++i){ if((r>>i)&1) v=v*3+s[p]; else s[p]=v; }",
    "first in a part of the warp": "if(r&1){ for(unsigned i=0;i<4;++i) v=v*3+s[p]; } MEET for(unsigned i=0;i<4;++i){ s[p]=v+i; MEET v=v*3+s[t]; MEET }",
    "an address that changes": "for(unsigned i=0;i<9;++i){ for(unsigned j=0;j<4;++j){ v=v*3+s[p]; s[p]=v+j; } MEET p=(p*5+(v&3)*i)%2000; }",
    "an address that moves": "_Pragma(\"unroll 1\") for(unsigned i=0;i<9;++i){ for(unsigned j=0;j<4;++j){ v=v*3+s[p]; s[p]=v+j; } MEET p+=i&1?-25:25; }",
    "an address that moves while some lanes run": "_Pragma(\"unroll 1\") for(unsigned i=0;i<9;++i){ if((r>>i)&1) for(unsigned j=0;j<4;++j){ v=v*3+s[p]; s[p]=v+j; } MEET p+=i&1?-25:25; }",
    "an address that moves from warp to warp": "unsigned*q=s+p; _Pragma(\"unroll 1\") for(unsigned i=0;i<9;++i){ v=v*3+q[0]+q[5]*7+q[9]*5; q+=i&1?-8-int(t/32):8+int(t/32); }",
    "an address that moves in half a warp": "unsigned*q=s+p; _Pragma(\"unroll 1\") for(unsigned i=0;i<9;++i){ v=v*3+q[0]+q[5]*7+q[9]*5; q+=t&16?(i&1?-9:9):0; }",
    "an address that changes in some lanes": "for(unsigned i=0;i<9;++i){ for(unsigned j=0;j<4;++j){ v=v*3+s[p]; s[p]=v+j; } MEET if((v>>i)&1) p=(p+i)%2000; }",
    "an address that the interpreter changes": "for(unsigned i=0;i<4;++i){ for(unsigned j=0;j<4;++j){ v=v*3+s[p]; s[p]=v+j; } p=f(p,2)%2000; MEET }",
    "floats": "float*g=(float*)s; float x=t; for(unsigned i=0;i<5;++i){ x=x*0.5f+g[p]; g[p]=x; MEET } v+=__float_as_uint(x);",
}  # fmt: skip
TEXT = """
#define MEET __syncthreads();
__device__ __noinline__ unsigned f(unsigned v,unsigned n){return n?v*3+f(v>>1,n-1):v;}
extern "C" __global__ void k(unsigned*o){
    __shared__ unsigned before[40]; __shared__ unsigned s[2048+64];
    unsigned t=threadIdx.x,at=blockIdx.x*blockDim.x+t,r=o[at],v=r;
    for(unsigned i=t;i<2112;i+=blockDim.x) s[i]=i*r; if(t<40) before[t]=r; MEET
    unsigned p=PLACE;
    USE
    MEET
    for(unsigned i=t;i<2112;i+=blockDim.x) v=v*31+s[i];
    o[at]=v+before[t%40];
}
"""
# Who is the last to store at a place is a race between warps; one warp has no race.
RACES = {"one place", "one place for two", "anywhere", "anywhere near", "near the end", "shuffled among 32"}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_any_pattern_of_addresses(tiers: Tiers, nvrtc: Any, pattern: str, use: str) -> None:
    ptx = nvrtc(TEXT.replace("PLACE", PATTERNS[pattern]).replace("USE", USES[use]))
    shapes = [(3, 32), (2, 19)]
    if pattern not in RACES and "changes" not in use and "beside" not in use and "before" not in use:
        shapes += [(3, 256), (2, 75)]
    for grid, block in shapes:
        given = np.random.default_rng(3).integers(0, 2**32, grid * block, np.uint32)
        (got,) = tiers.same(ptx, "k", grid, block, given)
        assert ": compiled: " in tiers.said[-1]
        assert (got != given).any()


HEAD = ".version 7.8\n.target sm_90\n.address_size 64\n"


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("offset", [0, 4, -4, 64, -128])
def test_addresses_in_part_elsewhere(tiers: Tiers, bits: int, offset: int) -> None:
    """Lanes that do not run may have any address; what those that run have is looked at in each launch and block anew."""
    ptx = f"""{HEAD}.visible .entry k(.param .u64 out)
{{
    .reg .pred %p; .reg .b32 %t, %b, %n, %v, %w, %r; .reg .b64 %o, %d; .reg .b{bits} %a;
    .shared .align 16 .b8 all[1024];
    ld.param.u64 %o, [out]; mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; mad.lo.u32 %w, %b, 64, %t;
    mul.wide.u32 %d, %w, 4; add.u64 %o, %o, %d; ld.global.u32 %r, [%o];
    mov.u32 %n, all; mad.lo.u32 %n, %t, 4, %n; st.shared.u32 [%n], %r; st.shared.u32 [%n+256], %w; st.shared.u32 [%n+512], %t;
    st.shared.u32 [%n+768], %r; bar.sync 0;
    and.b32 %n, %r, 63; mad.lo.u32 %n, %n, 4, 256; setp.lt.u32 %p, %r, 0x80000000; mov.u32 %v, 1;
    cvt.u{bits}.u32 %a, %n;
    @!%p mov.b{bits} %a, {"0x7ffffff1" if bits == 32 else "0x1234567812345677"};
    mov.u32 %n, 0;
AGAIN:
    @%p ld.shared.u32 %w, [%a+{offset}]; @%p mad.lo.u32 %v, %v, 3, %w; bar.sync 0;
    @%p atom.shared.add.u32 %w, [%a+{offset}], 1; bar.sync 0;
    @%p ld.shared.u32 %w, [%a+{offset}]; @%p mad.lo.u32 %v, %v, 5, %w;
    add.u32 %n, %n, 1; setp.lt.u32 %p, %n, 5; @%p bra NEXT; bra DONE;
NEXT: setp.lt.u32 %p, %r, 0x80000000; bra AGAIN;
DONE: st.global.u32 [%o], %v;
    ret;
}}
"""
    given = np.random.default_rng(8).integers(0, 2**32, 4 * 64, np.uint32)
    (got,) = tiers.same(ptx, "k", 4, 64, given)
    assert ": compiled: " in tiers.said[-1]
    assert (got != given).any()
