"""Lines and predicates that code has in general registers alone: whoever looks for one in memory finds it there."""

from __future__ import annotations

import numpy as np
import pytest

from tests.native.simgpu_compiler.conftest import Tiers

TEXT = """.version 7.8
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 n)
{
    .reg .b32 %r<60>; .reg .b64 %d<60>; .reg .pred %p<20>;
    ld.param.u64 %d1, [out]; ld.param.u64 %d2, [n]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r4, %r2, %r3, %r1; mul.wide.u32 %d3, %r4, 8; add.u64 %d3, %d3, %d1; ld.global.u64 %d9, [%d3]; cvt.u32.u64 %r5, %d9;
    cvt.u32.u64 %r6, %d2; add.u32 %r10, %r2, 3; add.u32 %r11, %r2, 5; add.u32 %r12, %r1, %r2;
    BODY
    st.global.u64 [%d3], %d9;
    ret;
}
"""
ADD = "cvt.u64.u32 %d8, {}; add.u64 %d9, %d9, %d8; mul.lo.u64 %d9, %d9, 13;"
ALL = " ".join(ADD.format(f"%r{n}") for n in (10, 11, 12))
# More numbers than there are such registers, and what each is for.
MANY = " ".join(f"mad.lo.u32 %r{20 + n}, %r2, {n + 3}, %r10;" for n in range(9))
EACH = " ".join(ADD.format(f"%r{20 + n}") for n in range(9))
BODIES = {
    "a handler": f"add.u32 %r13, %r10, 7; match.any.sync.b32 %r14, %r13, -1; {ADD.format('%r14')} {ADD.format('%r13')} {ALL}",
    "a handler for some lanes": f"setp.gt.u32 %p1, %r5, 2000000000; add.u32 %r13, %r10, 7; vote.sync.ballot.b32 %r16, %p1, -1; @%p1 match.any.sync.b32 %r14, %r13, %r16; @!%p1 mov.u32 %r14, 4; {ADD.format('%r13')} {ALL}",
    "a predicate that a handler reads": f"setp.gt.u32 %p1, %r5, 2000000000; match.all.sync.b32 %r14|%p2, %r10, -1; selp.b32 %r15, %r14, %r10, %p1; @%p2 add.u32 %r15, %r15, 9; {ADD.format('%r15')} {ALL}",
    "more than there are registers": f"{MANY} {EACH}",
    "the interpreter": f"{MANY} add.u32 %r13, %r6, %r1; cvt.s64.s32 %d10, %r13; add.s64 %d9, %d9, %d10; {EACH}",
    "lanes that wait": f"{MANY} setp.gt.u32 %p1, %r5, 2000000000; setp.eq.u32 %p2, %r6, 5; @%p1 bra OVER; xor.b32 %r20, %r20, %r24; {ADD.format('%r20')} {ADD.format('%r26')} @%p2 add.u64 %d9, %d9, 8; OVER: {EACH}",
    "lanes that wait for others that wait": f"{MANY} setp.gt.u32 %p1, %r5, 3000000000; setp.gt.u32 %p2, %r5, 1000000000; @%p1 bra LAST; @%p2 bra NEXT; {ADD.format('%r21')} NEXT: {ADD.format('%r22')} LAST: {EACH}",
    "a block behind a branch": f"{MANY} setp.eq.u32 %p1, %r2, 7; @%p1 bra OVER; add.u32 %r21, %r21, %r22; {EACH} bra.uni DONE; OVER: {ADD.format('%r27')} DONE: {ALL}",
    "a branch that all lanes take": f"{MANY} setp.ge.u32 %p1, %r2, 1; @%p1 bra OVER; add.u32 %r21, %r21, %r22; OVER: {EACH} {ALL}",
    "a branch that all lanes of a warp take": f"{MANY} setp.lt.u32 %p1, %r1, 32; @%p1 bra OVER; add.u32 %r21, %r21, %r22; {ADD.format('%r21')} OVER: {EACH} {ALL}",
    "a loop": f"mov.u32 %r13, 0; AGAIN: add.u32 %r14, %r13, %r10; {ADD.format('%r14')} add.u32 %r13, %r13, 1; setp.lt.u32 %p1, %r13, %r11; @%p1 bra AGAIN; {ADD.format('%r13')} {ALL}",
    "a barrier": f"{MANY} setp.gt.u32 %p1, %r5, 2000000000; bar.sync 0; @%p1 add.u64 %d9, %d9, %d2; {EACH} bar.sync 0; {ALL}",
    "accesses that are checked together": f"{MANY} add.u32 %r13, %r1, %r6; mul.wide.u32 %d10, %r13, 4; add.u64 %d10, %d10, %d1; ld.global.u32 %r14, [%d10+4200]; ld.global.u32 %r15, [%d10+4204]; ld.global.u32 %r16, [%d10+4208]; {ADD.format('%r14')} {ADD.format('%r15')} {ADD.format('%r16')} {EACH}",
    "several predicates": "setp.lt.u32 %p1, %r2, 2; setp.lt.u32 %p2, %r12, 40; setp.gt.u32 %p3, %r5, 2000000000; and.pred %p4, %p1, %p2; or.pred %p5, %p4, %p3; xor.pred %p6, %p5, %p2; not.pred %p7, %p6; and.pred %p7, %p7, %p3; "
    + " ".join(f"@%p{n} add.u64 %d9, %d9, {3**n}; selp.b64 %d8, 7, 5, %p{n}; mul.lo.u64 %d9, %d9, %d8;" for n in range(1, 8)),
    "predicates of some lanes": f"setp.gt.u32 %p1, %r5, 2000000000; setp.eq.u32 %p2, %r2, 1; setp.lt.u32 %p3, %r1, 9; @%p1 setp.ne.u32 %p2, %r5, %r6; @%p2 or.pred %p3, %p1, %p2; @%p3 add.u64 %d9, %d9, 3; @%p2 add.u64 %d9, %d9, 5; @!%p1 bra OVER; setp.gt.u32 %p2, %r5, 3000000000; add.u64 %d9, %d9, %d2; OVER: @%p2 add.u64 %d9, %d9, 11; {ALL}",
    "products with constants": " ".join(f"mul.lo.u32 %r13, %r12, {by}; {ADD.format('%r13')} mul.wide.s32 %d10, %r12, {by}; add.u64 %d9, %d9, %d10; mul.lo.u64 %d11, %d2, {by}; xor.b64 %d9, %d9, %d11;" for by in (0, 1, -1, 2, -8, 3, 2**30, -(2**31), 2**31 - 1)),
}  # fmt: skip


@pytest.mark.parametrize("n", [5, 2**31 - 3, 2**31 - 40])
@pytest.mark.parametrize("body", BODIES)
def test_numbers_kept_in_registers_are_found(tiers: Tiers, body: str, n: int) -> None:
    given = np.random.default_rng(5).integers(0, 2**64, 600, np.uint64)
    far = 0 if body.startswith("accesses") else n  # within the array
    for grid, block in ((4, 128), (3, 45)):
        (got,) = tiers.same(TEXT.replace("BODY", BODIES[body]), "k", grid, block, given, np.uint64(far))
        assert ": compiled: " in tiers.said[-1]
        assert (got[: grid * block] != given[: grid * block]).all()
