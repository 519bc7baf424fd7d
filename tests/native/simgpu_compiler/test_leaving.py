"""Where compiled code hands a warp over, whatever its registers hold then, the interpreter finds what it would have computed.

Each form of the table is a way out of the code.  Around it live values of each kind that the compiler keeps apart: what a
launch computes once, what a warp computes once, what each lane has, predicates, and local and shared memory.  The same texts
are seeds of the PTX fuzzer, whose build clears a block's registers and memory before the block begins.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.native.simgpu_compiler.conftest import Tiers
from tests.native.simgpu_exec import fault

FRAME = """.version 7.8
.target sm_90
.address_size 64
.extern .func (.param .b32 r) vprintf(.param .b64 text, .param .b64 values);
.extern .func __assertfail(.param .b64 what, .param .b64 file, .param .b32 line, .param .b64 function, .param .b64 size);
.global .align 1 .b8 text[8] = {37, 117, 32, 37, 117, 10, 0, 0};
.func (.param .b32 r) f(.param .b32 x) { .reg .b32 %v; ld.param.b32 %v, [x]; xor.b32 %v, %v, 21; st.param.b32 [r], %v; ret; }
.func (.param .b32 r) g(.param .b32 x) { .reg .b32 %v; ld.param.b32 %v, [x]; mul.lo.u32 %v, %v, 7; st.param.b32 [r], %v; ret; }
.visible .entry k(.param .u64 out)
{
    .reg .b16 %h; .reg .b32 %r<40>; .reg .b64 %d<20>; .reg .pred %p<9>;
    .local .align 16 .b8 own[64]; .shared .align 16 .b8 all[4096];
    BEFORE
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r4, %r2, %r3, %r1; mul.wide.u32 %d2, %r4, 4; add.u64 %d2, %d1, %d2;
    ld.global.u32 %r5, [%d2];
    mov.u64 %d3, f; mov.u64 %d4, g; mul.lo.u32 %r7, %r3, 13;
    mul.wide.u32 %d5, %r5, %r5; cvt.u16.u32 %h, %r5; setp.gt.u32 %p2, %r5, 0x80000000; setp.eq.u32 %p3, %r1, 7;
    mov.u32 %r30, own; st.local.u32 [%r30], %r5; mov.u32 %r31, all; shl.b32 %r32, %r1, 2; add.u32 %r32, %r31, %r32;
    st.shared.u32 [%r32], %r5;
    mov.u32 %r8, 0; setp.lt.u32 %p1, %r2, 3; mad.lo.u32 %r6, %r2, 77, %r3;
    mul.lo.u32 %r9, %r2, 0; mul.wide.u32 %d6, %r2, 0; add.u64 %d7, %d3, %d6;
    FORM
    mad.lo.u32 %r20, %r4, 3, %r5; mad.lo.u32 %r20, %r6, 5, %r20; mad.lo.u32 %r20, %r7, 7, %r20; mad.lo.u32 %r20, %r8, 11, %r20;
    @%p1 add.u32 %r20, %r20, 1000003; @%p2 xor.b32 %r20, %r20, 0x5555; cvt.u32.u64 %r21, %d5; add.u32 %r20, %r20, %r21;
    shr.u64 %d5, %d5, 32; cvt.u32.u64 %r21, %d5; xor.b32 %r20, %r20, %r21; cvt.u32.u16 %r21, %h; add.u32 %r20, %r20, %r21;
    ld.local.u32 %r21, [%r30]; add.u32 %r20, %r20, %r21; ld.shared.u32 %r21, [%r32]; xor.b32 %r20, %r20, %r21;
    st.global.u32 [%d2], %r20;
    ret;
}
"""

CALL = "{{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r5; {how} ld.param.b32 %r8, [b]; }}"
THROUGH = "p: .callprototype (.param .b32 _) _ (.param .b32 _); call (b), {address}, (a), p;"
FORMS = {
    "a call": CALL.format(how="call (b), f, (a);"),
    "a call of some lanes": CALL.format(how="@%p2 call (b), f, (a); @!%p2 call (b), g, (a);"),
    "a call through an address that a launch has": CALL.format(how=THROUGH.format(address="%d3")),
    "a call through an address that a warp has": CALL.format(how=THROUGH.format(address="%d7")),
    "a call through an address that each lane has": "selp.b64 %d8, %d7, %d4, %p2; "
    + CALL.format(how=THROUGH.format(address="%d8")),
    "a call of the simulator's own": "st.local.u32 [%r30+8], %r6; st.local.u32 [%r30+12], %r5; mov.u64 %d8, own; cvta.local.u64 %d8, %d8; "
    "add.u64 %d8, %d8, 8; { .param .b64 a; .param .b64 b; .param .b32 c; mov.u64 %d9, text; cvta.global.u64 %d9, %d9; st.param.b64 [a], %d9; st.param.b64 [b], %d8; "
    "call (c), vprintf, (a, b); ld.param.b32 %r8, [c]; }",
    "a barrier": "bar.sync 0;",
    "a barrier that a register names": "bar.sync %r9;",
    "a barrier of so many": "add.u32 %r10, %r3, 31; and.b32 %r10, %r10, 0xffffffe0; add.u32 %r11, %r9, 1; bar.sync %r11, %r10;",
    "a barrier that adds up": "bar.red.popc.u32 %r8, %r9, %p2;",
    "a barrier that votes": "bar.red.or.pred %p4, 0, %p2; bar.red.and.pred %p5, 0, %p1; selp.u32 %r8, 3, 5, %p4; @%p5 add.u32 %r8, %r8, 1;",
    "a barrier of some lanes": "@%p2 bar.sync 0;",
    "an arrival at a barrier": "add.u32 %r10, %r3, 31; and.b32 %r10, %r10, 0xffffffe0; shl.b32 %r10, %r10, 1; "
    "bar.arrive 2, %r10; bar.sync 2, %r10;",
    "a barrier of the cluster": "barrier.cluster.arrive; barrier.cluster.wait;",
    "an exit of some lanes": "@%p2 exit;",
    "an exit of some warps": "setp.lt.u32 %p4, %r1, 32; setp.gt.u32 %p5, %r3, 64; and.pred %p4, %p4, %p5; @%p4 exit;",
    "a return of some lanes": "@%p2 ret;",
    "a vote of lanes that have parted": "@%p2 bra ELSE; vote.sync.ballot.b32 %r8, %p3, -1; bra DONE; "
    "ELSE: vote.sync.ballot.b32 %r8, %p2, -1; DONE:",
    "lanes that meet where they have parted": "@%p2 bra ELSE; add.u32 %r8, %r6, 1; bar.warp.sync -1; bra DONE; "
    "ELSE: bar.warp.sync -1; add.u32 %r8, %r6, 2; DONE:",
    "a match": "and.b32 %r10, %r5, 3; match.any.sync.b32 %r8, %r10, -1;",
    "a vote of lanes that a register names": "mov.u32 %r10, -1; add.u32 %r10, %r10, %r9; vote.sync.ballot.b32 %r8, %p2, %r10;",
    "a table of branches": "T: .branchtargets A, B, C; and.b32 %r10, %r5, 3; min.u32 %r10, %r10, 2; brx.idx %r10, T; "
    "A: mov.u32 %r8, 5; bra DONE; B: add.u32 %r8, %r6, 1; bra DONE; C: add.u32 %r8, %r7, 2; DONE:",
    "a table of branches for a warp": "T: .branchtargets A, B, C; and.b32 %r10, %r2, 1; brx.idx %r10, T; "
    "A: mov.u32 %r8, 5; bra DONE; B: add.u32 %r8, %r6, 1; bra DONE; C: add.u32 %r8, %r7, 2; DONE:",
    "a loop of one lane after the other": "and.b32 %r10, %r5, 7; LOOP: add.u32 %r8, %r8, %r6; sub.u32 %r10, %r10, 1; "
    "setp.ge.s32 %p4, %r10, 0; @%p4 bra LOOP;",
    "a loop that uses up its budget": "mov.u32 %r10, 0; mov.u32 %r11, %r6; LOOP: atom.shared.add.u32 %r12, [all+2048], 1; add.u32 %r11, %r11, 3; "
    "add.u32 %r10, %r10, 1; setp.lt.u32 %p4, %r10, 600; @%p4 bra LOOP; add.u32 %r8, %r11, %r8;",
    "a line that leaves its bits": "add.u32 %r10, %r1, 0xfffffff9; add.u32 %r10, %r10, %r9; cvt.u64.u32 %d8, %r10; shr.u64 %d8, %d8, 3; cvt.u32.u64 %r8, %d8;",
    "one address of local memory for all": "st.local.u32 [%r30+32], %r6; mov.u64 %d8, 0x0200000000000000; add.u64 %d8, %d8, %d6; "
    "cvt.u64.u32 %d9, %r30; add.u64 %d8, %d8, %d9; ld.u32 %r8, [%d8];",
    "an access that its handler does": "ld.volatile.global.u32 %r8, [%d1]; ld.local.u32 %r10, [%r30]; add.u32 %r8, %r10, %r6; "
    "ld.global.u8 %r10, [%d2+1]; add.u32 %r8, %r8, %r10;",
    "an operation that its handler does": "sin.approx.f32 %r10, 0f3f800000; fns.b32 %r8, %r5, 0, 1; add.u32 %r8, %r8, %r6;",
}  # fmt: skip
# The same for a launch that a fault ends: what it says is compared.
FAULTS = {
    "a trap": "trap;",
    "a trap of one lane": "@%p3 trap;",
    "an assertion": "mov.u64 %d9, text; cvta.global.u64 %d9, %d9; { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e; "
    "st.param.b64 [a], %d9; st.param.b64 [b], %d9; st.param.b32 [c], %r6; st.param.b64 [d], %d9; st.param.b64 [e], 1; "
    "@%p3 call __assertfail, (a, b, c, d, e); }",
    "a call of nobody": CALL.format(how=THROUGH.format(address="%d6")),
    "a barrier that there is not": "add.u32 %r10, %r9, 16; bar.sync %r10;",
    "an index outside its table": "T: .branchtargets A; add.u32 %r10, %r9, 5; brx.idx %r10, T; A:",
    "a load from nowhere": "ld.global.u32 %r8, [%d6];",
    "a store of one lane to nowhere": "@%p3 st.global.u32 [%d6], %r6;",
    "a deadlock": "@%p3 bra DONE; bar.sync 1, 1024; DONE:",
}
BEFORE = {"from the beginning": "", "behind a barrier": "bar.sync 0;"}


def text_of(form: str, before: str) -> str:
    return FRAME.replace("BEFORE", BEFORE[before]).replace("FORM", (FORMS | FAULTS)[form])


def texts() -> Iterator[str]:
    """Yield all of them, for the fuzzer to begin with."""
    for form in FORMS | FAULTS:
        for before in BEFORE:
            yield text_of(form, before)


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("form", FORMS)
def test_the_interpreter_finds_what_the_code_has_computed(tiers: Tiers, form: str, before: str) -> None:
    ptx = text_of(form, before)
    for blocks, threads in ((1, 32), (1, 20), (5, 96), (40, 64)):
        given = np.random.default_rng(threads).integers(0, 2**32, blocks * threads, np.uint32)
        (got,) = tiers.same(ptx, "k", blocks, threads, given)
        assert ": compiled: " in tiers.said[-1]
        assert (got != given).any()


def test_a_fault_outside_the_code_says_the_same(tmp_path: Path) -> None:
    said = []
    for tier in ("interpreter", "compiled"):
        told: dict[str, str] = {}
        for blocks in (1, 3):
            folder = tmp_path / f"{tier}-{blocks}"
            folder.mkdir()
            for form in FAULTS:
                for before, threads in itertools.product(BEFORE, (20, 96)):
                    (folder / f"{form}, {before}.{threads}.ptx").write_text(text_of(form, before))
            environment = {**os.environ, "GPUKERNEL_SIMGPU": "h100", "GPUKERNEL_SIMGPU_TIER": tier}
            environment |= {"GPUKERNEL_SIMGPU_THREADS": "1", "GPUKERNEL_SIMGPU_TIER_LOG": "1"}
            command = [sys.executable, fault.__file__, str(folder), "4096", "1", str(blocks)]
            subprocess.run(["setarch", "-R", *command], env=environment, check=True, timeout=280)
            told |= {f"{blocks} {path.stem}": path.read_text() for path in folder.glob("*.txt")}
        said.append(told)
    assert len(said[0]) == 2 * len(FAULTS) * len(BEFORE) * 2
    for name, text in said[0].items():
        lines = said[1][name].splitlines(keepends=True)
        assert any(": compiled: " in line for line in lines), name
        assert "".join(line for line in lines if ": compiled: " not in line) == text, name
        assert len(text.splitlines()) > 1, name


ROUNDS = """.version 7.8
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 most)
{
    .reg .b32 %t, %n, %most; .reg .f32 %f; .reg .b64 %o; .reg .pred %p;
    .shared .u32 rounds, place;
    ld.param.u64 %o, [out]; ld.param.u32 %most, [most]; mov.u32 %t, %tid.x; mov.u32 %n, 0; mov.f32 %f, 0f3F800000;
    setp.ge.u32 %p, %t, 32; @%p bra OTHER;
ROUND:
    BODY
    add.u32 %n, %n, 1; st.shared.u32 [rounds], %n;
    setp.lt.u32 %p, %n, %most; @%p bra ROUND;
    ret;
OTHER:
    ld.shared.u32 %n, [rounds]; st.global.u32 [%o], %n;
    ret;
}
"""


@pytest.mark.parametrize("tier", ["interpreter", "compiled"])
@pytest.mark.parametrize("body", ["fma.rn.f32 %f, %f, %f, %f;" * 3000, "red.shared.add.u32 [place], 1;" * 500], ids=["sums", "updates"])  # fmt: skip
def test_a_warp_s_turn_has_fewer_rounds_of_a_long_loop(tiers: Tiers, body: str, tier: str) -> None:
    """Kernels are cancelled and paused at the end of a turn: rounds that take long must not be as many as short ones.

    The second warp begins when the first one's turn is over, and says how many rounds that had."""
    (rounds,) = tiers.run(tier, ROUNDS.replace("BODY", body), "k", 1, 64, np.zeros(1, np.uint32), np.uint32(2000))  # fmt: skip
    assert 0 < rounds[0] < 200


LOCK = """.version 7.8
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out)
{
    .reg .b32 %t, %n, %tries; .reg .f32 %f; .reg .b64 %o; .reg .pred %p;
    .shared .u32 lock;
    ld.param.u64 %o, [out]; mov.u32 %tries, 0; mov.f32 %f, 0f3F800000; st.shared.u32 [lock], 0; bar.sync 0;
TRY:
    fma.rn.f32 %f, %f, %f, %f; BODY
    add.u32 %tries, %tries, 1; setp.gt.u32 %p, %tries, 20000; @%p ret;
    atom.shared.cas.b32 %n, [lock], 0, 1;
    setp.ne.u32 %p, %n, 0; @%p bra TRY;
    ld.global.u32 %n, [%o]; add.u32 %n, %n, 1; st.global.u32 [%o], %n;
    atom.shared.exch.b32 %n, [lock], 0;
    ret;
}
"""

LONG = "fma.rn.f32 %f, %f, %f, %f;" * 1000
CALLS = "{ .param .b32 a; .param .b32 b; st.param.b32 [a], %tries; call (b), f, (a); ld.param.b32 %n, [b]; }"
CALLED = ".func (.param .b32 r) f(.param .b32 x) { .reg .b32 %v; ld.param.b32 %v, [x]; st.param.b32 [r], %v; ret; } .visible"


@pytest.mark.parametrize("tier", ["interpreter", "compiled"])
@pytest.mark.parametrize("body", ["", LONG, CALLS], ids=["short", "long", "calls"])
def test_lanes_that_spin_let_the_one_with_the_lock_pass(tiers: Tiers, body: str, tier: str) -> None:
    """Whatever their round does: each lane comes by, or gives up when it has tried for too long (CUDA C++ Programming Guide, “Independent Thread Scheduling”)."""
    text = LOCK.replace("BODY", body).replace(".visible", CALLED, 1)
    (passed,) = tiers.run(tier, text, "k", 1, 64, np.zeros(1, np.uint32))
    assert passed[0] == 64
