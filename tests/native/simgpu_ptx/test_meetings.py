"""Lanes of one warp that come to one `.sync` instruction of a kind at different places, with the same mask (PTX ISA 9.7.9.6, 9.7.13)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from tests.native.simgpu_exec import conftest
from tests.native.simgpu_ptx.conftest import text

LANES = range(32)
# Lane n gives n % 5 + 3 where it is even, and n % 7 where it is odd.
GIVEN = [n % 7 if n % 2 else n % 5 + 3 for n in LANES]
SIGNED = [-x for x in GIVEN]


def ballot(which: Callable[[int], bool]) -> int:
    return sum(1 << n for n in LANES if which(n))


def folded(function: Callable[[int, int], int], values: list[int]) -> list[int]:
    return [reduce(function, values) & 0xFFFFFFFF] * 32


def alike(lane: int) -> int:
    return ballot(lambda other: GIVEN[other] == GIVEN[lane])


CASES = {
    "vote.sync.ballot.b32 %r0, %p2, -1;": [ballot(lambda n: GIVEN[n] > 3)] * 32,
    "vote.sync.any.pred %p3, %p2, -1; selp.b32 %r0, 1, 0, %p3;": [1] * 32,
    "vote.sync.all.pred %p3, %p2, -1; selp.b32 %r0, 1, 0, %p3;": [0] * 32,
    "vote.sync.uni.pred %p3, %p2, -1; selp.b32 %r0, 1, 0, %p3;": [0] * 32,
    "vote.sync.all.pred %p3, 1, -1; selp.b32 %r0, 1, 0, %p3;": [1] * 32,
    "match.any.sync.b32 %r0, %r2, -1;": [alike(n) for n in LANES],
    "cvt.u64.u32 %rd1, %r2; shl.b64 %rd1, %rd1, 40; match.any.sync.b64 %r0, %rd1, -1;": [
        alike(n) for n in LANES
    ],
    "match.all.sync.b32 %r0|%p3, %r2, -1; selp.b32 %r0, 7, %r0, %p3;": [0] * 32,
    "match.all.sync.b32 %r0|%p3, 9, -1; selp.b32 %r0, 7, %r0, %p3;": [7] * 32,
    "redux.sync.add.s32 %r0, %r2, -1;": [sum(GIVEN)] * 32,
    "redux.sync.add.u32 %r2, %r2, -1; mov.u32 %r0, %r2;": [sum(GIVEN)] * 32,
    "redux.sync.add.u32 %r0, 3, -1;": [96] * 32,
    "neg.s32 %r2, %r2; redux.sync.min.s32 %r0, %r2, -1;": folded(min, SIGNED),
    "neg.s32 %r2, %r2; redux.sync.max.s32 %r0, %r2, -1;": folded(max, SIGNED),
    "redux.sync.min.u32 %r0, %r2, -1;": folded(min, GIVEN),
    "redux.sync.max.u32 %r0, %r2, -1;": folded(max, GIVEN),
    "redux.sync.and.b32 %r0, %r2, -1;": folded(lambda a, b: a & b, GIVEN),
    "redux.sync.or.b32 %r0, %r2, -1;": folded(lambda a, b: a | b, GIVEN),
    "redux.sync.xor.b32 %r0, %r2, -1;": folded(lambda a, b: a ^ b, GIVEN),
    "elect.sync %r0|%p3, -1; @%p3 add.u32 %r0, %r0, 100;": [100] + [0] * 31,
    "shfl.sync.bfly.b32 %r0, %r2, 1, 31, -1;": [GIVEN[n ^ 1] for n in LANES],
    "shfl.sync.idx.b32 %r0, 6, 3, 31, -1;": [6] * 32,
}


def apart(even: str, odd: str) -> str:
    """The even lanes at one instruction and the odd ones, which come later, at another."""
    return f"""and.b32 %r1, %i, 1; setp.eq.u32 %p1, %r1, 1; @%p1 bra ODD;
rem.u32 %r2, %i, 5; add.u32 %r2, %r2, 3; setp.gt.u32 %p2, %r2, 3; {even} bra END;
ODD: mov.u32 %r4, 0; LATE: add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 300; @%p2 bra LATE;
rem.u32 %r2, %i, 7; setp.gt.u32 %p2, %r2, 3; {odd} END:"""


@pytest.mark.parametrize("instruction", CASES)
def test_lanes_at_two_instructions_with_the_same_qualifiers_are_together(run: Any, instruction: str) -> None:
    assert [x & 0xFFFFFFFF for x in run(apart(instruction, instruction), threads=32)] == CASES[instruction]


def test_each_side_gives_its_own_operand_and_takes_into_its_own_register(run: Any) -> None:
    """A predicate that is negated at one of the places, results in different registers, one of them with its predicate."""
    votes = apart(
        "vote.sync.ballot.b32 %r0, !%p2, -1;", "vote.sync.ballot.b32 %r3, %p2, -1; mov.u32 %r0, %r3;"
    )
    expected = ballot(lambda n: (GIVEN[n] > 3) == bool(n % 2))
    assert [x & 0xFFFFFFFF for x in run(votes, threads=32)] == [expected] * 32
    shuffles = apart(
        "shfl.sync.down.b32 %r0, %r2, 2, 31, -1;",
        "shfl.sync.down.b32 %r3|%p3, %r2, 1, 31, -1; selp.b32 %r0, %r3, 77, %p3;",
    )
    own = [77 if n == 31 else GIVEN[n + 1] for n in LANES]
    assert run(shuffles, threads=32) == [
        own[n] if n % 2 else GIVEN[n + 2 if n + 2 < 32 else n] for n in LANES
    ]


def test_lanes_of_another_mask_have_a_meeting_of_their_own(run: Any) -> None:
    body = f"setp.lt.u32 %p3, %i, 16; selp.b32 %r3, 0xffff, 0xffff0000, %p3; {apart(*['redux.sync.add.u32 %r0, %r2, %r3;'] * 2)}"
    assert run(body, threads=32) == [sum(GIVEN[:16])] * 16 + [sum(GIVEN[16:])] * 16


def test_a_lane_that_spins_for_the_others_does_not_keep_them_from_meeting(run: Any) -> None:
    """Lane 31 is not named; it waits in a loop for a word that lane 0 writes behind its vote."""
    body = """.shared .u32 flag; setp.eq.u32 %p3, %i, 31; @%p3 bra SPIN; and.b32 %r1, %i, 1; setp.eq.u32 %p1, %r1, 1; @%p1 bra ODD;
    vote.sync.ballot.b32 %r0, 1, 0x7fffffff; st.volatile.shared.u32 [flag], 1; bra END;
    ODD: vote.sync.ballot.b32 %r0, 1, 0x7fffffff; bra END;
    SPIN: ld.volatile.shared.u32 %r0, [flag]; setp.ne.u32 %p2, %r0, 1; @%p2 bra SPIN; END:"""
    assert run(body, threads=32) == [0x7FFFFFFF] * 31 + [1]


@pytest.mark.parametrize(
    ("even", "odd"),
    [
        ("redux.sync.add.u32 %r0, %r2, -1;", "redux.sync.add.s32 %r0, %r2, -1;"),
        ("vote.sync.any.pred %p3, %p2, -1;", "vote.sync.all.pred %p3, %p2, -1;"),
        ("match.any.sync.b32 %r0, %r2, -1;", "match.all.sync.b32 %r0, %r2, -1;"),
        ("vote.sync.ballot.b32 %r0, %p2, -1;", "vote.sync.ballot.b32 %r0, %p2, 0xfffffffe;"),
        ("vote.sync.ballot.b32 %r0, %p2, -1;", "bar.warp.sync -1;"),
    ],
)
def test_other_qualifiers_or_another_mask_are_no_meeting_but_a_deadlock(
    tmp_path: Path, device: Any, even: str, odd: str
) -> None:
    (tmp_path / "k.ptx").write_text(text(apart(even, odd)))
    fault = str(Path(conftest.__file__).with_name("fault.py"))
    done = subprocess.run(
        [sys.executable, fault, str(tmp_path / "k.ptx"), "32", "128"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Deadlock" in done.stdout
    assert done.stdout.endswith("719\n")  # CUDA_ERROR_LAUNCH_FAILED
