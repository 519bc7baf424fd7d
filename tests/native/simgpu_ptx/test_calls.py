"""Calls: parameters in registers, wrong arguments, aliases; and masks that leave the caller out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.native.simgpu_exec import conftest
from tests.native.simgpu_ptx.conftest import text

SUM = ".func (.reg .u32 r) sum(.reg .u32 a, .reg .u32 b) { add.u32 r, a, b; ret; }\n"


def test_parameters_and_results_in_registers(run: Any) -> None:
    assert run("call (%r0), sum, (%i, 40); call (%r0), sum, (%r0, %r0);", SUM) == [80, 82, 84, 86]


def test_parameters_in_registers_of_every_size(run: Any) -> None:
    module = """.func (.reg .u64 r, .reg .u16 s) f(.reg .u16 a, .reg .f32 b, .reg .u64 c, .reg .f64 d) {
.reg .u64 t; cvt.u64.u16 r, a; cvt.rzi.u64.f32 t, b; add.u64 r, r, t; add.u64 r, r, c; cvt.rzi.u64.f64 t, d; add.u64 r, r, t; mov.u16 s, 5; ret; }"""
    body = ".reg .u16 h; .reg .u16 s; mov.u16 h, 1; call (%rd1, s), f, (h, 20.0, 300, 4000.0); cvt.u32.u64 %r0, %rd1; cvt.u32.u16 %r1, s; add.u32 %r0, %r0, %r1;"
    assert run(body, module) == [4326] * 4


def test_a_result_is_given_at_every_way_out(run: Any) -> None:
    module = """.func (.reg .u32 r) f(.reg .u32 a) { .reg .pred p; mov.u32 r, 1; setp.eq.u32 p, a, 0; @p ret; mov.u32 r, 2;
setp.eq.u32 p, a, 1; @!p bra L; ret; L: mov.u32 r, 3; }"""
    assert run("call (%r0), f, (%i);", module) == [1, 2, 3, 3]


def test_functions_with_registers_call_each_other_and_themselves(run: Any) -> None:
    module = """.func (.reg .u32 r) fact(.reg .u32 n) { .reg .pred p; .reg .u32 m; mov.u32 r, 1; setp.lt.u32 p, n, 2; @p ret;
sub.u32 m, n, 1; call (r), fact, (m); mul.lo.u32 r, r, n; ret; }"""
    assert run("call (%r0), fact, (%i+3);", module) == [6, 24, 120, 720]


def test_a_guarded_call_leaves_the_others_results(run: Any) -> None:
    assert run("mov.u32 %r0, 9; setp.gt.u32 %p1, %i, 1; @%p1 call (%r0), sum, (%i, 100);", SUM) == [
        9,
        9,
        102,
        103,
    ]


def test_a_register_is_given_for_a_parameter_in_memory(run: Any) -> None:
    module = ".func (.param .u32 r) f(.param .u32 a) { .reg .u32 x; ld.param.u32 x, [a]; add.u32 x, x, 1; st.param.u32 [r], x; ret; }"
    assert run("call (%r0), f, (%i);", module) == [1, 2, 3, 4]


@pytest.mark.parametrize("result", ["-%r0", "%r0+1"])
def test_a_result_goes_to_a_register_as_it_is(refusal: Any, result: str) -> None:
    assert "a result goes to a register as it is" in refusal(f"call ({result}), sum, (%i, 1);", SUM)


PAIR = """.func (.reg .v2 .u32 r) turn(.reg .v2 .u32 a, .reg .u32 b) { mov.u32 r.y, a.x; add.u32 r.x, a.y, b; ret; }
.func (.reg .u32 r) digits(.reg .v4 .u16 h) { .reg .u32 t; .reg .u16 x; mov.u16 x, h.x; cvt.u32.u16 r, x; mov.u16 x, h.y; cvt.u32.u16 t, x;
mad.lo.u32 r, r, 10, t; mov.u16 x, h.z; cvt.u32.u16 t, x; mad.lo.u32 r, r, 10, t; mov.u16 x, h.w; cvt.u32.u16 t, x; mad.lo.u32 r, r, 10, t; ret; }
"""


def test_vectors_are_parameters_and_results(run: Any) -> None:
    body = ".reg .v2 .u32 v; mov.v2.u32 v, {%i, 70}; call (v), turn, (v, 5); mad.lo.u32 %r0, v.x, 100, v.y;"
    assert run(body, PAIR) == [7500, 7501, 7502, 7503]


def test_a_guarded_call_leaves_the_others_vectors(run: Any) -> None:
    body = """.reg .v2 .u32 v; mov.v2.u32 v, {%i, 70}; setp.gt.u32 %p1, %i, 1; @%p1 call (v), turn, (v, 5);
    mad.lo.u32 %r0, v.x, 100, v.y;"""
    assert run(body, PAIR) == [70, 170, 7502, 7503]


@pytest.mark.parametrize("whole", [".reg .b64 v; mov.b64 v, 0x0004000300020001;", ".reg .v2 .u32 v; mov.v2.u32 v, {0x00020001, 0x00040003};",
                                   ".reg .v4 .u16 v; mov.v4.u16 v, {1, 2, 3, 4};"])  # fmt: skip
def test_any_register_of_its_size_is_passed_for_a_vector(run: Any, whole: str) -> None:
    assert run(whole + " call (%r0), digits, (v);", PAIR) == [1234] * 4


def test_a_vector_is_passed_for_a_number_of_its_size(run: Any) -> None:
    module = ".func (.reg .b64 r) f(.reg .b64 a) { shr.u64 r, a, 32; ret; }\n.func (.param .b64 r) g(.param .b64 a) { .reg .b64 t; ld.param.b64 t, [a]; shl.b64 t, t, 8; st.param.b64 [r], t; ret; }"
    body = ".reg .v2 .u32 v; mov.v2.u32 v, {1, 3}; call (v), f, (v); call (v), g, (v); mov.u32 %r0, v.x; add.u32 %r0, %r0, v.y;"
    assert run(body, module) == [768] * 4


@pytest.mark.parametrize(
    "call", ["call (%rd1), turn, ({%r1, %r2}, 5);", ".reg .v4 .u32 v; call (%rd1), turn, (v, 5);", "call (%r1), turn, (%rd1, 5);",
             ".reg .v4 .u16 v; call ({%r1, %r2}), turn, (v, 5);", ".reg .v2 .u16 v; call (v), turn, (%rd1, 5);",
             ".param .b8 a[8]; call (%rd1), turn, (a, 5);"],
)  # fmt: skip
def test_what_is_not_the_vector_is_not_passed_for_it(refusal: Any, call: str) -> None:
    assert "line " in refusal(call, PAIR)


@pytest.mark.parametrize(
    "call",
    ["call (%r0), sum, (%i);", "call (%r0), sum, (%i, %i, %i);", "call sum, (%i, %i);", "call (%rd1), sum, (%i, %i);",
     "call (%r0), sum, (%i, %rd1);", "call (%r0), sum, (%i %i);", "call (%r0), sum (%i, %i);", "call (%r0), k, (%i, %i);",
     "mov.u64 %rd1, sum; call (%r0), %rd1, (%i, %i);", "mov.u64 %rd1, sum; call (%r0), %rd1, (%i, %i), nowhere;"],
)  # fmt: skip
def test_a_call_with_other_arguments_is_refused(refusal: Any, call: str) -> None:
    assert "line " in refusal(call, SUM)


def test_within_one_text_a_result_that_nobody_gives_is_refused(refusal: Any) -> None:
    assert "1 and 1" in refusal("call (%r0), f, (%i);", ".func f(.reg .u32 a) { ret; }")


def test_an_alias_is_called(run: Any) -> None:
    assert run("call (%r0), total, (%i, 1);", SUM + ".alias total, sum;\n") == [1, 2, 3, 4]


def _ballot(mask: str) -> str:
    return f"setp.ne.u32 %p1, %i, 1; {mask} vote.sync.ballot.b32 %r0, %p1, %r1;"


def test_each_half_of_a_warp_votes_by_its_own_mask(run: Any) -> None:
    found = run(_ballot("setp.lt.u32 %p2, %i, 16; selp.b32 %r1, 0x0000ffff, 0xffff0000, %p2;"), threads=32)
    assert found == [0xFFFD] * 16 + [0xFFFF0000] * 16


def test_lanes_that_their_mask_leaves_out_change_nothing_for_the_others(run: Any) -> None:
    """What they get is undefined on a GPU; here it is 0 of a ballot."""
    found = run(_ballot("mov.b32 %r1, 0x000000ff;"), threads=32)
    assert found == [0xFD] * 8 + [0] * 24


def test_a_sum_and_a_vote_count_only_the_lanes_of_the_mask(run: Any) -> None:
    body = "setp.lt.u32 %p1, %i, 8; redux.sync.add.u32 %r0, %i, 0xff; vote.sync.all.pred %p2, %p1, 0xff; @%p2 add.u32 %r0, %r0, 1000;"
    assert run(body, threads=32)[:8] == [1028] * 8


def test_masks_of_pairs_shuffle_within_them(run: Any) -> None:
    body = "and.b32 %r1, %i, 30; shl.b32 %r1, 3, %r1; shfl.sync.bfly.b32 %r0, %i, 1, 31, %r1;"
    assert run(body, threads=64) == [n % 32 ^ 1 | n & 32 for n in range(64)]


def test_a_lane_that_comes_later_is_waited_for_by_those_who_name_it(run: Any) -> None:
    """Lane 3 comes late, the second half votes without it."""
    body = """setp.lt.u32 %p2, %i, 16; selp.b32 %r1, 0x0000ffff, 0xffff0000, %p2; setp.eq.u32 %p3, %i, 3; mov.u32 %r2, 0;
    @!%p3 bra VOTE; LATER: add.u32 %r2, %r2, 1; setp.lt.u32 %p3, %r2, 50; @%p3 bra LATER;
    VOTE: setp.ne.u32 %p1, %i, 1; vote.sync.ballot.b32 %r0, %p1, %r1;"""
    assert run(body, threads=32) == [0xFFFD] * 16 + [0xFFFF0000] * 16


def test_lanes_meet_at_different_barriers_of_their_warp(run: Any) -> None:
    """bar.warp.sync waits for lanes that have executed one with its mask, and not necessarily the same one."""
    body = """.shared .u32 s[32]; and.b32 %r1, %i, 1; setp.eq.u32 %p1, %r1, 1; shl.b32 %r2, %i, 2; mov.u32 %r3, s; add.u32 %r3, %r3, %r2;
    @%p1 bra ODD; mov.u32 %r4, 0; LATE: add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 300; @%p2 bra LATE;
    st.shared.u32 [%r3], %i; bar.warp.sync 0xffffffff; ld.shared.u32 %r0, [%r3+4]; bra END;
    ODD: st.shared.u32 [%r3], %i; bar.warp.sync 0xffffffff; ld.shared.u32 %r0, [%r3+-4]; END:"""
    assert run(body, threads=32) == [n ^ 1 for n in range(32)]


def test_lanes_exchange_at_different_shuffles_of_one_kind(run: Any) -> None:
    body = """and.b32 %r1, %i, 1; setp.eq.u32 %p1, %r1, 1; @%p1 bra ODD;
    add.u32 %r2, %i, 100; shfl.sync.bfly.b32 %r0|%p2, %r2, 1, 31, 0xffffffff; add.u32 %r0, %r0, %r2; bra END;
    ODD: add.u32 %r3, %i, 2000; shfl.sync.bfly.b32 %r3|%p3, %r3, 1, 31, 0xffffffff; mov.u32 %r0, %r3; END:"""
    assert run(body, threads=32) == [
        n + 100 + (n + 1) + 2000 if n % 2 == 0 else n - 1 + 100 for n in range(32)
    ]


def test_each_mask_has_its_own_meeting(run: Any) -> None:
    body = """setp.lt.u32 %p1, %i, 16; selp.b32 %r1, 0xffff, 0xffff0000, %p1; and.b32 %r2, %i, 1; setp.eq.u32 %p2, %r2, 1;
    @%p2 bra ODD; bar.warp.sync %r1; add.u32 %r0, %r0, 1; bra END; ODD: bar.warp.sync %r1; add.u32 %r0, %r0, 2; END:"""
    assert run(body, threads=32) == [1, 2] * 16


def test_a_barrier_that_a_lane_passes_by_is_a_deadlock(tmp_path: Path, device: Any) -> None:
    body = """setp.lt.u32 %p1, %i, 16; @%p1 bra LOW; bar.warp.sync 0xffffffff; bra END;
    LOW: bar.warp.sync 0xffff; vote.sync.any.pred %p2, %p1, 0xffffffff; END:"""
    (tmp_path / "k.ptx").write_text(text(body))
    command = [
        sys.executable,
        str(Path(conftest.__file__).with_name("fault.py")),
        str(tmp_path / "k.ptx"),
        "32",
        "128",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "Deadlock" in done.stdout
    assert done.stdout.endswith("719\n")  # CUDA_ERROR_LAUNCH_FAILED


FLAG = ".func (.reg .u32 a, .reg .pred b) next(.reg .u32 x, .reg .pred odd) { add.u32 a, x, 1; not.pred b, odd; ret; }\n"


def test_predicates_are_parameters_and_results(run: Any) -> None:
    body = """and.b32 %r1, %i, 1; setp.eq.u32 %p1, %r1, 1; call (%r0, %p2), next, (%i, %p1); @%p2 add.u32 %r0, %r0, 100;"""
    assert run(body, FLAG) == [101, 2, 103, 4]


def test_a_guarded_call_leaves_the_others_predicates(run: Any) -> None:
    body = """setp.eq.u32 %p2, %i, %i; setp.gt.u32 %p1, %i, 1; @%p1 call (%r0, %p2), next, (%i, %p1); @%p2 add.u32 %r0, %r0, 100;"""
    assert run(body, FLAG) == [100, 100, 3, 4]


@pytest.mark.parametrize(
    "call", ["call (%r0, %p1), next, (%i, %i);", "call (%r0, %r1), next, (%i, %p1);", "call (%p1, %p2), next, (%i, %p1);"]
)  # fmt: skip
def test_a_predicate_is_passed_for_a_predicate(refusal: Any, call: str) -> None:
    assert "line " in refusal(call, FLAG)
