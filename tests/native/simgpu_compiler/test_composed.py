"""Operations that compiled kernels do by several instructions: halves, quotients, fields of bits, narrow and long registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.native.simgpu_compiler.conftest import Tiers

TEMPLATE = """.version 7.8
.target sm_90
.address_size 64
.visible .entry k(.param .u64 given, .param .u64 out, .param .u64 one, .param .u32 some)
{{
    .reg .pred %p, %q; .reg .b16 %h<8>; .reg .b32 %t, %some, %r<8>; .reg .b64 %at, %g, %o, %d<8>, %one;
    ld.param.u64 %g, [given]; ld.param.u64 %o, [out]; ld.param.u32 %some, [some]; ld.param.u64 %one, [one];
    mov.u32 %t, %tid.x;
    mul.wide.u32 %at, %t, 32; add.u64 %g, %g, %at; add.u64 %o, %o, %at;
    ld.global.v2.u64 {{%d1, %d2}}, [%g]; ld.global.v2.u64 {{%d3, %d4}}, [%g+16];
    {shared}
    cvt.u32.u64 %r1, %d1; cvt.u32.u64 %r2, %d2; cvt.u32.u64 %r3, %d3;
    mov.b32 {{%h1, %h4}}, %r1; mov.b32 {{%h2, %h5}}, %r2; mov.b32 {{%h3, %h6}}, %r3;
    setp.lt.u32 %q, %t, %some;
    mov.u64 %d4, 5; mov.u32 %r4, 6; mov.u16 %h4, 7;
    {body}
    st.global.u64 [%o], %d4; st.global.u32 [%o+8], %r4; st.global.u16 [%o+12], %h4;
    ret;
}}
"""
GUARDS = ("{0}", "@%q {0}", "@%q bra OVER; {0} OVER:")

HALVES = [
    f"{name}.{kind}{pair} {reg}4, {reg}1{f', {reg}2' * (count > 1)}{f', {reg}3' * (count > 2)};"
    for kind in ("f16", "bf16")
    for pair, reg in (("", "%h"), ("x2", "%r"))
    for name, count in (("add.rn", 2), ("sub.rn", 2), ("mul.rn", 2), ("fma.rn", 3), ("neg", 1), ("abs", 1))
    if not (kind == "bf16" and name in ("add.rn", "sub.rn", "mul.rn"))
] + [
    *(f"{name}.{kind} %h4, %h1, %h2;" for name in ("add", "sub", "mul") for kind in ("bf16",)),
    *(f"cvt.f32.{kind} %r4, %h1;" for kind in ("f16", "bf16")),
    *(f"cvt.rn.{kind}.f32 %h4, %r1;" for kind in ("f16", "bf16")),
    *(f"cvt.rn.{kind}x2.f32 %r4, %r1, %r2;" for kind in ("f16", "bf16")),
]
WORDS = [
    *(f"{name}.{kind} %h4, %h1, %h2;" for name, kind in (("add", "u16"), ("sub", "s16"), ("mul.lo", "u16"), ("and", "b16"), ("or", "b16"), ("xor", "b16"))),
    "mov.b16 %h4, %h1;", "mov.b32 %r4, {%h1, %h2};", "mov.b32 {%h4, %h5}, %r1;", "mov.b32 {%h5, %h4}, %r1;", "mov.b64 %d4, {%r1, %r2};",
    "mov.b64 {%r4, %r5}, %d1;", "mov.b64 {%r5, %r4}, %d1;",
    *(f"cvt.{to}.{of} {'%d4' if '64' in to else '%r4' if '32' in to else '%h4'}, {'%r1' if '32' in of else '%h1'};"
      for to in ("u32", "s32", "u64", "s64", "u16", "s16") for of in ("u16", "s16", "u32", "s32")
      if not (to.endswith(of[1:])) and not ("64" in to and "32" in of)),
]  # fmt: skip
BITS = [
    *(f"{name}.{kind} {reg}4, {reg}1, {reg}2;" for name in ("div", "rem") for kind, reg in (("u32", "%r"), ("s32", "%r"), ("u64", "%d"), ("s64", "%d"))),
    *(f"mul.hi.{kind} %r4, %r1, %r2;" for kind in ("u32", "s32")),
    *(f"bfe.{kind} %r4, %r1, {at}, {length};" for kind in ("u32", "s32") for at, length in ((0, 8), (5, 1), (24, 8), (0, 32), (31, 1), (7, 20), (20, 30), (3, 0), (40, 2))),
    *(f"bfi.b32 %r4, %r1, %r2, {at}, {length};" for at, length in ((0, 8), (5, 1), (24, 20), (0, 32), (31, 1), (32, 4), (4, 0), (0, 60))),
    *(f"bfi.b64 %d4, %d1, %d2, {at}, {length};" for at, length in ((0, 8), (32, 32), (24, 60), (0, 64), (63, 1), (64, 4), (4, 0))),
    *(f"prmt.b32 %r4, %r1, %r2, {selector};" for selector in (0x3210, 0x7654, 0x5140, 0x0123, 0x4444, 0x9210, 0xF2E4)),
    *(f"shf.{way}.wrap.b32 %r4, %r1, %r2, {by};" for way in "lr" for by in (0, 1, 7, 31, 32, 45)),
    "popc.b32 %r4, %r1;", "clz.b32 %r4, %r1;", "neg.s32 %r4, %r1;", "neg.s64 %d4, %d1;", "abs.s32 %r4, %r1;", "abs.s64 %d4, %d1;",
    *(f"{name} %d4, %d1, %r2;" for name in ("shl.b64", "shr.u64", "shr.s64")),
    *(f"mov.u32 %r4, %{name};" for name in ("laneid", "warpid", "lanemask_eq", "lanemask_lt", "lanemask_le", "lanemask_gt", "lanemask_ge")),
]  # fmt: skip
BY_HANDLERS = ("fma.rn.bf16", "popc", "cvt.u64", "cvt.s64", "bfe.u32 %r4, %r1, 20", "bfe.s32 %r4, %r1, 20", ", 40, 2", ", 32, 4;", ", 64, 4;", ", 4, 0;",
               ", 3, 0;", "0x", "39", "62180", "wrap.b32 %r4, %r1, %r2, 0", "wrap.b32 %r4, %r1, %r2, 32")  # fmt: skip


def numbers(random: np.random.Generator, threads: int) -> np.ndarray[Any, Any]:
    """Four words of 64 bits a thread: of any size, small ones, pairs of halves near each other."""
    words = random.integers(0, 2**64, (threads, 4), np.uint64)
    small = random.integers(-9, 10, (threads, 4)).astype(np.int64).view(np.uint64)
    half = random.standard_normal((threads, 16)).astype(np.float16).view(np.uint64)
    with np.errstate(over="ignore"):
        scaled = (
            random.standard_normal((threads, 16)) * 2.0 ** random.integers(-24, 17, (threads, 16))
        ).astype(np.float16)
    ends = random.choice(
        np.array(
            [0, 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 0x7C01FC00, 0xFE007F81FF800001], np.uint64
        ),
        (threads, 4),
    )
    singles = (
        (random.standard_normal((threads, 8)) * 2.0 ** random.integers(-30, 20, (threads, 8)))
        .astype(np.float32)
        .view(np.uint64)
    )
    kinds = np.stack(
        [
            words,
            small,
            half,
            scaled.view(np.uint64),
            ends,
            singles,
            words >> random.integers(0, 64, (threads, 4), np.uint64),
        ]
    )
    drawn: np.ndarray[Any, Any] = np.take_along_axis(
        kinds, random.integers(0, len(kinds), (1, threads, 4)), 0
    )[0]
    # (1 - 2^-10)(1 + 2^-10)2^-11 + 1 + 2^-10 lies below the middle of two halves by less than a float has bits for.
    drawn[: min(threads, 2), :3] = [
        [0x3BFE3BFE, 0x10011001, 0x3C013C01],
        [0xBBFE3BFE, 0x10019001, 0xBC01BC01],
    ][: min(threads, 2)]
    return drawn


@pytest.mark.parametrize(
    "shared",
    ["", "ld.global.u64 %d1, [%one];", "ld.global.u64 %d1, [%one]; ld.global.u64 %d2, [%one+8];"],
    ids=["lanes", "one-for-all", "all-alike"],
)
@pytest.mark.parametrize("table", ["halves", "words", "bits"])
def test_they_give_the_interpreter_s_bits(tiers: Tiers, table: str, shared: str) -> None:
    rows = {"halves": HALVES, "words": WORDS, "bits": BITS}[table]
    for seed, text in enumerate(rows):
        for guard in GUARDS:
            random = np.random.default_rng(seed)
            given, one = numbers(random, 256), numbers(random, 1)
            ptx = TEMPLATE.format(body=guard.format(text), shared=shared)
            tiers.same(ptx, "k", 1, 256, given, np.zeros((256, 4), np.uint64), one, np.uint32(77))
            if not any(name in text for name in BY_HANDLERS):
                assert tiers.handlers() == 0, (text, tiers.said[-1])
