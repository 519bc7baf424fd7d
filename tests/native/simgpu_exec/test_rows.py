"""Rows of multiply-adds, which are done by shape and keep results in the processor's registers, against one at a time."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

KEPT = 6
"""Registers that are read and written again and again; all others are written once."""
HEAD = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry rows(.param .u64 p)
{
    .reg .u64 %at; .reg .u32 %lane, %odd; .reg .pred %always, %skip;
    .reg .f32 %k<KEPT>; .reg .f32 %t<MADE>;
    ld.param.u64 %at, [p];
    mov.u32 %lane, %tid.x;
    mad.wide.u32 %at, %lane, 4, %at;
    setp.lt.u32 %always, %lane, 999;
    SKIP
"""
SKIP = {
    "nobody": "setp.eq.u32 %skip, %lane, 999;",
    "odd": "and.b32 %odd, %lane, 1; setp.eq.u32 %skip, %odd, 1;",
    "second": "setp.ge.u32 %skip, %lane, 40;",  # of the warps that run together one parts with itself
}


@dataclass(frozen=True)
class Step:
    """d = a * b + c, where an operand is a kept register's number, a constant, or -n for what n steps before gave."""

    keeps: int | None
    a: float
    b: float
    c: float


def text(steps: list[Step], threads: int, *, guarded: bool, skip: str) -> str:
    """A kernel that does these steps; one with a guard at each is never done as a row."""
    head = HEAD.replace("KEPT", str(KEPT)).replace("MADE", str(len(steps) + 1))
    lines = [head.replace("SKIP", SKIP[skip])]
    lines += [f"ld.global.f32 %k{n}, [%at+{4 * threads * n}];" for n in range(KEPT)]
    lines += ["mov.f32 %t0, %k0;", "@%skip bra DONE;"]
    results = ["%t0"]

    def name(of: float) -> str:
        if isinstance(of, float):
            return "0f" + struct.pack(">f", of).hex()
        return f"%k{of}" if of >= 0 else results[max(len(results) + of, 0)]

    for number, step in enumerate(steps):
        into = f"%t{number + 1}" if step.keeps is None else f"%k{step.keeps}"
        lines.append(
            f"{'@%always ' * guarded}fma.rn.f32 {into}, {name(step.a)}, {name(step.b)}, {name(step.c)};"
        )
        results.append(into)
    lines.append(f"{'@%always ' * guarded}mov.f32 %k0, {results[-1]};")
    lines.append("DONE:")
    lines += [f"st.global.f32 [%at+{4 * threads * n}], %k{n};" for n in range(KEPT)]
    return "\n".join([*lines, "ret;", "}"])


constants = st.sampled_from([0.5, -1.25, 3.0])
kept = st.integers(0, KEPT - 1)
anything = st.one_of(kept, kept, st.integers(-4, -1), constants)


@st.composite
def stretches(draw: st.DrawFn) -> list[Step]:
    """A few steps of a shape that has a handler, or of none."""
    count, woven = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    mostly_none = st.one_of(st.none(), st.none(), st.none(), kept)
    b, c = draw(st.one_of(kept, constants)), draw(st.one_of(kept, constants))
    some = lambda of: [draw(of) for _ in range(count)]  # noqa: E731
    match draw(st.sampled_from(["same", "factor", "sums", "polynomials", "any"])):
        case "same":
            return [Step(into, a, b, c) for into, a in zip(some(st.none() | kept), some(kept), strict=True)]
        case "factor":
            keeps = zip(some(st.none() | kept), some(kept), some(anything), strict=True)
            return [Step(into, a, b, c) for into, a, c in keeps]
        case "sums":  # woven into each other, so that the next step of each is not the next instruction
            factors = zip(some(mostly_none), some(kept), some(st.one_of(kept, constants)), strict=True)
            return [Step(into, x, y, -woven) for into, x, y in factors]
        case "polynomials":
            steps = zip(some(mostly_none), some(st.one_of(kept, constants)), strict=True)
            return [Step(into, -woven, b, x) for into, x in steps]
        case _:
            operands = zip(
                some(st.none() | kept), some(anything), some(anything), some(anything), strict=True
            )
            return [Step(*one) for one in operands]


rows = st.lists(stretches(), min_size=1, max_size=5).map(
    lambda parts: [step for part in parts for step in part]
)


def after(device: Any, steps: list[Step], threads: int, *, guarded: bool, skip: str = "nobody") -> Any:
    values = np.random.default_rng(len(steps)).uniform(-1.5, 1.5, (KEPT, threads)).astype(np.float32)
    device.run(text(steps, threads, guarded=guarded, skip=skip), "rows", 1, threads, values)
    return values.view(np.uint32)


@pytest.mark.parametrize("skip", SKIP)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=rows, threads=st.sampled_from([32, 64, 80, 96]))
def test_a_row_gives_what_its_steps_give_one_at_a_time(
    device: Any, skip: str, steps: list[Step], threads: int
) -> None:
    got = after(device, steps, threads, guarded=False, skip=skip)
    np.testing.assert_array_equal(got, after(device, steps, threads, guarded=True, skip=skip))


@pytest.mark.parametrize("threads", [32, 64])
@pytest.mark.parametrize("shape", ["same", "sums", "polynomials"])
def test_rows_longer_than_a_handler_does_at_once(device: Any, shape: str, threads: int) -> None:
    steps = {
        "same": [Step(n % 3, (n + 1) % 3, 0.5, 5) for n in range(700)],
        "sums": [Step(None, n % 5, 0.5, -1) for n in range(700)],
        "polynomials": [Step(None, -1, 0.5, n % 5) for n in range(700)],
    }[shape]
    got = after(device, steps, threads, guarded=False)
    np.testing.assert_array_equal(got, after(device, steps, threads, guarded=True))
    assert np.isfinite(got.view(np.float32)).all()
