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


EXCHANGES = {
    "a shuffle by a number": "shfl.sync.down.b32 %r9|%p1, %r{n}, 1, 31, -1;",
    "a shuffle by a register": "mov.u32 %r10, %laneid; and.b32 %r10, %r10, 5; shfl.sync.idx.b32 %r9|%p1, %r{n}, %r10, 31, -1;",
    "a shuffle within what a register says": "mov.u32 %r10, %tid.x; and.b32 %r10, %r10, 0; or.b32 %r10, %r10, 0x181f; "
    "shfl.sync.up.b32 %r9|%p1, %r{n}, 1, %r10, -1;",
    "a sum": "redux.sync.add.u32 %r9, %r{n}, -1; setp.ne.u32 %p1, %r9, 0;",
    "a maximum": "redux.sync.max.s32 %r9, %r{n}, -1; setp.ne.u32 %p1, %r9, 0;",
    "a vote": "setp.lt.u32 %p2, %r{n}, 99; vote.sync.ballot.b32 %r9, %p2, -1; setp.ne.u32 %p1, %r9, 0;",
}  # fmt: skip


@pytest.mark.parametrize("name", EXCHANGES)
def test_what_lanes_exchange_lies_in_whatever_register(tiers: Tiers, name: str) -> None:
    """Give each line that a warp has computed, wherever the processor has it, to the other lanes."""
    lines = 7
    for n in range(lines):
        body = "mov.u32 %r0, %ctaid.x; " + " ".join(
            f"add.u32 %r{k}, %r{k - 1}, {13 * k};" for k in range(1, lines)
        )
        body += " ".join(f"mul.lo.u32 %r{20 + k}, %r{k}, %r{k};" for k in range(lines))
        body += EXCHANGES[name].format(n=n)
        body += "selp.u32 %r11, 1000, 0, %p1; add.u32 %r11, %r11, %r9; cvt.u64.u32 %d9, %r11; "
        body += " ".join(f"cvt.u64.u32 %d8, %r{20 + k}; add.u64 %d9, %d9, %d8;" for k in range(lines))
        (got,) = tiers.same(PLAIN.replace("BODY", body), "k", 3, 64, np.zeros(192, np.uint64), np.uint64(0))
        assert got.all()


COMPARISONS = [
    (how, kind)
    for kind in ("s32", "u32", "s64", "u64", "b32", "b64")
    for how in ("eq", "ne", *(("lt", "le", "gt", "ge") if kind[0] != "b" else ()), *(("lo", "ls", "hi", "hs") if kind[0] == "u" else ()))
]  # fmt: skip


@pytest.mark.parametrize("second", ["a register", "a constant"])
@pytest.mark.parametrize(
    "n", [0, 1, 5, 2**31 - 1, 2**31, 2**32 - 5, 2**32 + 5, 2**63, 2**64 - 5, 5 + (7 << 32)]
)
def test_numbers_that_all_lanes_share_are_compared(tiers: Tiers, n: int, second: str) -> None:
    lines = ["ld.param.u64 %d3, [n]; cvt.u32.u64 %r3, %d3; mov.u32 %r4, %nctaid.x; mul.lo.u32 %r4, %r4, -5; cvt.s64.s32 %d4, %r4; mov.u64 %d9, 0;"]  # fmt: skip
    for number, (how, kind) in enumerate(COMPARISONS):
        wide = kind.endswith("64")
        other = ("%d4" if wide else "%r4") if second == "a register" else "-5"
        lines.append(f"setp.{how}.{kind} %p1, {'%d3' if wide else '%r3'}, {other}; selp.b64 %d10, {1 << number}, 0, %p1; or.b64 %d9, %d9, %d10;")  # fmt: skip
    (got,) = tiers.same(
        PLAIN.replace("BODY", "\n".join(lines)), "k", 1, 32, np.zeros(32, np.uint64), np.uint64(n)
    )
    assert tiers.handlers() == 0
    assert (got == got[0]).all()
    for number, (how, kind) in enumerate(COMPARISONS):
        bits = int(kind[1:])
        a, b = n % 2**bits, -5 % 2**bits
        if kind[0] == "s":
            a, b = (x - 2**bits if x >> (bits - 1) else x for x in (a, b))
        wanted = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b, "lo": a < b, "ls": a <= b, "hi": a > b, "hs": a >= b}  # fmt: skip
        assert int(got[0]) >> number & 1 == wanted[how], (how, kind)
