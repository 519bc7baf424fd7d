"""Multiply-adds give the interpreter's bits wherever their operands lie: in a register that ends there or goes on, in memory, or one for all lanes.

Of several NaNs the first operand's is the result, and the three forms of the instruction have each operand in another place.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.native.simgpu_compiler.conftest import Tiers

THREADS, BLOCKS, ROWS = 48, 3, 61
PLACES = ("dies", "stays", "launch", "warp", "constant", "memory")
CONSTANTS = {"f32": ("0fBF9E0652", "0f7F800000", "0f00000000"), "f64": ("0dBFF3C0CA428C59FB", "0d7FF0000000000000", "0d0000000000000000")}  # fmt: skip
HEAD = """.version 7.8
.target sm_90
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out, .param .KIND n0, .param .KIND n1, .param .KIND n2, .param .s32 turns)
{
    .reg .b32 %r<40>; .reg .b64 %d<40>; .reg .pred %p<4>;
    .reg .bBITS %x<9>, %y<9>, %s<9>, %u<9>, %w<9>, %c<9>, %b<32>, %m<700>;
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.u32 %r4, %r2, %r3, %r1;
    mul.wide.u32 %d1, %r4, BYTES; ld.param.u64 %d10, [in]; ld.param.u64 %d11, [out]; mul.wide.u32 %d12, %r2, BYTES;
    add.u64 %d4, %d12, %d10; add.u64 %d2, %d10, %d1; add.u64 %d3, %d11, %d1;
    and.b32 %r5, %r4, 3; setp.eq.u32 %p1, %r5, 1; not.pred %p2, %p1;
    ld.param.KIND %u0, [n0]; ld.param.KIND %u1, [n1]; ld.param.KIND %u2, [n2]; ld.param.s32 %r10, [turns];
"""


def numbers(kind: str, count: int, seed: int) -> np.ndarray[Any, Any]:
    """Return numbers of all kinds, each NaN with bits of its own."""
    random = np.random.default_rng(seed)
    bits, quiet = (np.uint32, 0x7FC00000) if kind == "f32" else (np.uint64, 0x7FF8000000000000)
    floats = np.float32 if kind == "f32" else np.float64
    some = (random.standard_normal(count) * 2.0 ** random.integers(-40, 40, count)).astype(floats).view(bits)
    special = np.array([0.0, -0.0, np.inf, -np.inf, 1.0, -1.0], floats).view(bits)
    some = np.where(random.random(count) < 0.15, special[random.integers(0, 6, count)], some)
    nans = (quiet + random.integers(0, 2**20, count)).astype(bits)
    return np.where(random.random(count) < 0.3, nans, some)


def in_all_places(kind: str, result: str, mask: str) -> tuple[str, list[list[tuple[str, int]]], int]:
    """Write a kernel with a multiply-add for each choice of places.

    `result`: the register of an operand that ends there (a, b, c), or one of its own.  Returns what its operands are, and what its result
    was before, and how many rows of results there are.
    """
    size = 4 if kind == "f32" else 8
    row = THREADS * BLOCKS * size

    def load(name: str, source: tuple[str, int]) -> str:
        return f"ld.global.{kind} {name}, [{'%d4' if source[0] == 'warp' else '%d2'}+{source[1] * row}];"

    ballast = range(6 if kind == "f32" else 0)
    fixed = {f"%s{n}": ("lane", 7 * n) for n in range(3)} | {f"%w{n}": ("warp", 7 * n + 1) for n in range(3)}
    fixed |= {f"%b{n}": ("lane", 7 * n + 2) for n in ballast}
    head = [load(name, source) for name, source in fixed.items()]
    body, operands = [], []
    for number, places in enumerate(product(PLACES, repeat=3)):
        if result != "own" and places["abc".index(result)] != "dies":
            continue
        names, sources = [], []
        for n, place in enumerate(places):
            lane = ("lane", (5 * number + 7 * n) % ROWS)
            name = {"dies": f"%x{n}", "stays": f"%s{n}", "launch": f"%u{n}", "warp": f"%w{n}", "constant": CONSTANTS[kind][(number + n) % 3],
                    "memory": f"%m{3 * number + n}"}[place]  # fmt: skip
            if place == "dies":
                body.append(f"{load(name, lane)} or.b{8 * size} {name}, {name}, {name};")
            elif place == "memory":
                head.append(load(name, lane))
            names.append(name)
            sources.append({"launch": ("launch", n), "constant": ("constant", (number + n) % 3)}.get(place, fixed.get(name, lane)))  # fmt: skip
        to = "%y0" if result == "own" else names["abc".index(result)]
        before = ("lane", number % ROWS) if result == "own" else sources["abc".index(result)]
        if result == "own" and mask != "all":
            body.append(load(to, before))
        fused = f"fma.rn.{kind} {to}, {', '.join(names)};"
        body.append({"all": fused, "guard": f"@%p1 {fused}", "branch": f"@%p2 bra L{number}; {fused} L{number}:"}[mask])  # fmt: skip
        body.append(f"st.global.{kind} [%d3+{len(operands) * row}], {to};")
        operands.append([*sources, before])
    # What is used most has registers first: values of memory have few left.
    loop = [f"xor.b32 %b{n}, %b{n}, %b{(n + 1) % len(ballast)};" for n in ballast] * 3
    if loop:
        loop = ["T:", *loop, "sub.s32 %r10, %r10, 1; setp.gt.s32 %p3, %r10, 0; @%p3 bra T;"]
    stays = [name for name, source in fixed.items() if source[0] == "lane"]
    stores = [f"st.global.{kind} [%d3+{(len(operands) + n) * row}], {each};" for n, each in enumerate(stays)]
    text = "\n".join([HEAD, *head, *body, *loop, *stores, "ret;\n}\n"])
    text = text.replace("KIND", kind).replace("BITS", str(8 * size)).replace("BYTES", str(size))
    return text, operands, len(operands) + len(stays)


@pytest.mark.parametrize("mask", ["all", "guard", "branch"])
@pytest.mark.parametrize("result", ["own", "a", "b", "c"])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_a_multiply_add_has_its_operands_anywhere(tiers: Tiers, kind: str, result: str, mask: str) -> None:
    ptx, operands, rows = in_all_places(kind, result, mask)
    floats, threads = (np.float32 if kind == "f32" else np.float64), THREADS * BLOCKS
    given = numbers(kind, ROWS * threads, 1).reshape(ROWS, threads)
    constants = np.array([int(each[2:], 16) for each in CONSTANTS[kind]], given.dtype)
    runs = np.arange(threads) % 4 == 1 if mask != "all" else np.ones(threads, bool)
    for seed in range(3):
        uniform = numbers(kind, 3, 20 + seed)
        values = {"launch": uniform, "constant": constants}
        args = (
            BLOCKS,
            THREADS,
            given.ravel(),
            np.zeros(rows * threads, given.dtype),
            *uniform.view(floats),
            np.int32(2),
        )
        interpreted, compiled = (tiers.run(tier, ptx, "k", *args)[1].reshape(rows, threads) for tier in ("interpreter", "compiled"))  # fmt: skip
        assert tiers.handlers() == 0
        assert not np.isnan(compiled.view(floats)).all(axis=0).any()
        for number, sources in enumerate(operands):
            a, b, c, before = (
                given[n] if where == "lane" else
                np.repeat(given[n][:BLOCKS], THREADS) if where == "warp" else
                np.full(threads, values[where][n])
                for where, n in sources
            )  # fmt: skip
            wanted = interpreted[number]
            for each in (c, b, a):
                wanted = np.where(np.isnan(each.view(floats)), each, wanted)
            wanted = np.where(runs, wanted, before)
            different = np.flatnonzero(wanted != compiled[number])
            assert not different.size, f"{sources}: {different}"
        assert (interpreted[len(operands) :] == compiled[len(operands) :]).all()


LOOPS = {
    "sums of products": "fma.rn.KIND %x0, %u0, %w0, %x0; fma.rn.KIND %x1, %w1, CONST, %x1; fma.rn.KIND %x2, %u0, %u1, %x2;",
    "polynomials": "fma.rn.KIND %y0, %x0, %u0, %u1; fma.rn.KIND %y1, %y0, %u2, CONST; fma.rn.KIND %x0, %w0, %y1, %w1;",
    "a number for all lanes that changes": "fma.rn.KIND %x0, %x0, %u0, %w0; mul.rn.KIND %w0, %w0, %u0; fma.rn.KIND %x1, %x1, %w0, CONST;",
    "one that is loaded": "fma.rn.KIND %x0, %x0, %w0, %u0; ld.global.KIND %w0, [%d4]; add.u64 %d4, %d4, BYTES; fma.rn.KIND %x1, %w0, %x1, CONST;",
    "a handler between": "fma.rn.KIND %x0, %x0, %u0, %w0; popc.b64 %r11, %d3; cvt.rn.KIND.u32 %y0, %r11; fma.rn.KIND %x1, %y0, %u0, CONST; "
    "atom.global.exch.b32 %r12, [%d5], %r1; fma.rn.KIND %x2, %x2, %u1, %w0;",
    "a handler at the end": "fma.rn.KIND %x0, %x0, %u0, %w0; fma.rn.KIND %x1, %x1, %u1, CONST; popc.b64 %r11, %d3; cvt.rn.KIND.u32 %y0, %r11; "
    "add.rn.KIND %x2, %x2, %y0;",
    "a load from wherever": "fma.rn.KIND %x0, %x0, %u0, %w0; xor.b64 %d2, %d2, BYTES; ld.global.KIND %y0, [%d2]; fma.rn.KIND %x1, %y0, %u0, CONST; "
    "fma.rn.KIND %x2, %x2, %w0, CONST;",
    "half of the lanes": "@%p1 fma.rn.KIND %x0, %x0, %u0, %w0; @%p2 fma.rn.KIND %x0, %u0, %x0, CONST; @%p1 add.rn.KIND %x1, %x1, %w0; "
    "@%p1 mul.rn.KIND %x2, %x0, CONST;",
    "an entry between": "fma.rn.KIND %x0, %x0, %u0, %w0; bar.sync 0; fma.rn.KIND %x1, %x1, %u0, CONST; vote.sync.any.pred %p2, %p1, -1; "
    "fma.rn.KIND %x2, %x2, %u0, %w0;",
}  # fmt: skip


@pytest.mark.parametrize("end", ["together", "each for itself"])
@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("loop", LOOPS)
def test_numbers_for_all_lanes_stay_what_they_are_in_a_loop(
    tiers: Tiers, loop: str, kind: str, end: str
) -> None:
    if end == "each for itself" and loop == "an entry between":
        pytest.skip("All lanes meet at a barrier.")
    size = 4 if kind == "f32" else 8
    row = THREADS * BLOCKS * size
    starts = [f"ld.global.KIND %x{n}, [%d2+{n * row}];" for n in range(3)]
    stores = [f"st.global.KIND [%d3+{n * row}], %{x};" for n, x in enumerate(["x0", "x1", "x2", "w0"])]
    trips = "and.b32 %r6, %r1, 7; add.s32 %r10, %r10, %r6;" if end == "each for itself" else ""
    lines = [
        HEAD,
        "ld.global.KIND %w0, [%d4]; ld.global.KIND %w1, [%d4+BYTES];",
        f"add.u64 %d5, %d3, {4 * row};",
        *starts,
        trips,
        f"T: {LOOPS[loop]}",
        "sub.s32 %r10, %r10, 1; setp.gt.s32 %p3, %r10, 0; @%p3 bra T;",
        *stores,
        "ret;\n}\n",
    ]
    ptx = "\n".join(lines).replace("CONST", CONSTANTS[kind][0]).replace("KIND", kind)
    ptx = ptx.replace("BITS", str(8 * size)).replace("BYTES", str(size))
    floats = np.float32 if kind == "f32" else np.float64
    given = (1 + np.random.default_rng(3).random(ROWS * THREADS * BLOCKS) / 8).astype(floats)
    out = np.zeros(5 * THREADS * BLOCKS, floats)
    uniform = np.array([0.96875, 1.03125, -0.5], floats)
    for turns in (1, 2, 9):
        (_, got) = tiers.same(ptx, "k", BLOCKS, THREADS, given, out, *uniform, np.int32(turns), floats=size)
        assert np.unique(got).size > THREADS
