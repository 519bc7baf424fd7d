"""What a warp computes once: whoever finds it in a register of the processor finds the program's number, no more and no less."""

from __future__ import annotations

import numpy as np
import pytest

from tests.native.simgpu_compiler.conftest import Tiers

PLAIN = """.version 7.8
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 n)
{
    .reg .b32 %r<40>; .reg .b64 %d<20>; .reg .pred %p<9>;
    BODY
    ld.param.u64 %d1, [out]; mov.u32 %r30, %tid.x; mov.u32 %r31, %ctaid.x; mov.u32 %r32, %ntid.x;
    mad.lo.u32 %r31, %r31, %r32, %r30; mul.wide.u32 %d2, %r31, 8; add.u64 %d2, %d2, %d1;
    st.global.u64 [%d2], %d9;
    ret;
}
"""
NARROW = {
    "of a launch": "ld.param.u64 %d3, [n];",
    "of a warp": "ld.param.u64 %d3, [n]; mov.u32 %r1, %ctaid.x; cvt.u64.u32 %d4, %r1; add.u64 %d3, %d3, %d4;",
    "of each lane": "ld.param.u64 %d3, [n]; mov.u32 %r1, %tid.x; mul.wide.u32 %d4, %r1, 4; add.u64 %d3, %d3, %d4;",
    "of each lane, with others between": "ld.param.u64 %d3, [n]; mov.u32 %r1, %laneid; xor.b32 %r1, %r1, 5; cvt.u64.u32 %d4, %r1; "
    "add.u64 %d3, %d3, %d4;",
}  # fmt: skip
WIDE = {
    "a conversion": "cvt.u64.u32 %d9, %r9;",
    "a product": "mul.wide.u32 %d9, %r9, 3;",
    "a product and a sum": "mad.wide.u32 %d9, %r9, 5, %d3;",
    "a signed conversion": "cvt.s64.s32 %d9, %r9;",
    "a signed product": "mul.wide.s32 %d9, %r9, 3;",
}


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("narrow", NARROW)
def test_a_number_of_64_bits_that_was_cut_stays_cut(tiers: Tiers, narrow: str, wide: str) -> None:
    body = f"{NARROW[narrow]} cvt.u32.u64 %r9, %d3; {WIDE[wide]}"
    n = 0x12345678_1ABCDEF0
    (got,) = tiers.same(PLAIN.replace("BODY", body), "k", 2, 32, np.zeros(64, np.uint64), np.uint64(n))
    if narrow == "of a launch":
        low = n & 0xFFFFFFFF
        assert (
            got
            == {"a product": 3 * low, "a signed product": 3 * low, "a product and a sum": 5 * low + n}.get(
                wide, low
            )
        ).all()
