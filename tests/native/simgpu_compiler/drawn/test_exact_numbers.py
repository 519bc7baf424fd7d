"""Instructions on f16 and bf16, and some on others, give in both tiers what whole numbers of any length give, rounded once (`exactly`)."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.native.simgpu_compiler.conftest import Tiers
from tests.native.simgpu_compiler.drawn import exactly
from tests.native.simgpu_compiler.drawn.exactly import FORMATS, Number, decode, encode
from tests.native.simgpu_compiler.drawn.forms import (
    INTEGERS,
    NARROW,
    ORDER,
    ROUNDINGS,
    UNORDERED,
    WHOLE,
    register,
    size,
)
from tests.native.simgpu_compiler.drawn.kernels import edges

COUNT = 768
KERNEL = """.version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out)
{{ .reg .b16 %h<5>; .reg .b32 %t, %r<5>; .reg .b64 %d<5>, %in, %out;
 ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; mov.u32 %t, %ctaid.x; mov.u32 %r1, %tid.x; mad.lo.u32 %t, %t, 96, %r1; mad.wide.u32 %in, %t, 24, %in; mad.wide.u32 %out, %t, 8, %out;
 ld.global.b64 %d1, [%in]; ld.global.b64 %d2, [%in+8]; ld.global.b64 %d3, [%in+16]; cvt.u32.u64 %r1, %d1; cvt.u32.u64 %r2, %d2; cvt.u32.u64 %r3, %d3;
 cvt.u16.u64 %h1, %d1; cvt.u16.u64 %h2, %d2; cvt.u16.u64 %h3, %d3; mov.u64 %d4, 0; mov.u32 %r4, 0; mov.u16 %h4, 0;
 {text}
 {store}
 ret; }}
"""
Want = list[list[set[int]]]


def samples(seed: int) -> np.ndarray:
    """Return three operands of 64 bits for each thread; of a third of them the second is the first with another sign."""
    given = edges(np.random.default_rng(seed), COUNT * 3).reshape(COUNT, 3)
    given[: COUNT // 3, 1] = given[: COUNT // 3, 0] ^ np.uint64(0x8000)
    return given


def check(tiers: Tiers, text: str, kind: str, given: np.ndarray, want: Want, bits: int) -> None:
    """Hold both tiers to what each thread's parts of the result may be."""
    store = {
        "h": "st.global.b16 [%out], %h4;",
        "r": "st.global.b32 [%out], %r4;",
        "d": "st.global.b64 [%out], %d4;",
    }[kind]
    ptx = KERNEL.format(text=text, store=store)
    for tier in ("interpreter", "compiled"):
        got = tiers.run(tier, ptx, "k", COUNT // 96, 96, given, np.zeros(COUNT, np.uint64))[1]
        for n, parts in enumerate(want):
            for at, may in enumerate(parts):
                found = int(got[n]) >> bits * at & ((1 << bits) - 1)
                if found not in may:
                    operands = [hex(int(each)) for each in given[n]]
                    raise AssertionError(
                        f"{tier}: {text} of {operands} gives {found:#x}, and not {[hex(x) for x in may]}"
                    )
    assert ": compiled: " in tiers.said[-1]


def halves(given: np.ndarray, count: int, kind: str, ftz: bool) -> list[list[list[Number]]]:
    """Return the operands of each thread, for each half of the register."""
    f, parts = FORMATS[kind.removesuffix("x2")], 2 if "x2" in kind else 1
    return [
        [[decode(int(row[k]) >> 16 * at & 0xFFFF, f, ftz) for k in range(count)] for at in range(parts)]
        for row in given
    ]


def bounded(code: int, kind: str, how: str) -> set[int]:
    f = FORMATS[kind.removesuffix("x2")]
    return (
        exactly.saturated(code, f)
        if how == ".sat"
        else exactly.rectified(code, f)
        if how == ".relu"
        else {code}
    )


KINDS = ("f16", "bf16", "f16x2", "bf16x2")


@pytest.mark.parametrize("kind", KINDS)
def test_sums_and_products(tiers: Tiers, kind: str) -> None:
    f, k, given = FORMATS[kind.removesuffix("x2")], register(kind), samples(1)
    for ftz, how in product(
        [""] if kind[0] == "b" else ["", ".ftz"], ["", ".relu"] if kind[0] == "b" else ["", ".sat", ".relu"]
    ):
        for name in ("add", "sub", "mul", "fma.rn"):
            if how == ".relu" and name != "fma.rn":
                continue
            count = 3 if name == "fma.rn" else 2
            compute = exactly.fused if count == 3 else exactly.TWO[name]
            want = [
                [bounded(encode(compute(*part), f, ftz=bool(ftz)), kind, how) for part in row]
                for row in halves(given, count, kind, bool(ftz))
            ]
            operands = ", ".join(f"%{k}{n + 1}" for n in range(count))
            check(tiers, f"{name}{ftz}{how}.{kind} %{k}4, {operands};", k, given, want, 16)


@pytest.mark.parametrize("kind", KINDS)
def test_extremes(tiers: Tiers, kind: str) -> None:
    f, k, given = FORMATS[kind.removesuffix("x2")], register(kind), samples(2)
    for name, nan, sign, ftz in product(
        ("min", "max"), ("", ".NaN"), ("", ".xorsign.abs"), [""] if kind[0] == "b" else ["", ".ftz"]
    ):
        want = [
            [{encode(exactly.least(a, b, name == "max", bool(nan), bool(sign)), f)} for a, b in row]
            for row in halves(given, 2, kind, bool(ftz))
        ]
        check(tiers, f"{name}{ftz}{nan}{sign}.{kind} %{k}4, %{k}1, %{k}2;", k, given, want, 16)


@pytest.mark.parametrize("to", ["f16", "bf16"])
@pytest.mark.parametrize("of", ["f32", "f64", "f16", "bf16"])
def test_other_formats_are_rounded_once(tiers: Tiers, to: str, of: str) -> None:
    if to == of:
        pytest.skip("It is no conversion.")
    f, g, given, k = FORMATS[to], FORMATS[of], samples(3), register(of)
    for how, ftz, bound in product(
        ROUNDINGS,
        ["", ".ftz"] if of == "f32" else [""],
        ["", ".sat"] if to == "f16" and of != "bf16" else [""],
    ):
        want = [
            [bounded(encode(decode(int(row[0]) & ((1 << g.bits) - 1), g, bool(ftz)), f, how), to, bound)]
            for row in given
        ]
        check(tiers, f"cvt.{how}{ftz}{bound}.{to}.{of} %h4, %{k}1;", "h", given, want, 16)


def test_a_subnormal_number_is_flushed_before_it_is_rounded_to_a_half(tiers: Tiers) -> None:
    given = np.full((COUNT, 3), 0x80000001, np.uint64)  # less than nothing, if it is not flushed
    check(tiers, "cvt.rm.ftz.f16.f32 %h4, %r1;", "h", given, [[{0x8000}]] * COUNT, 16)
    check(tiers, "cvt.rm.f16.f32 %h4, %r1;", "h", given, [[{0x8001}]] * COUNT, 16)


@pytest.mark.parametrize("to", ["f16x2", "bf16x2"])
def test_two_single_ones_are_packed(tiers: Tiers, to: str) -> None:
    f, g, given = FORMATS[to.removesuffix("x2")], FORMATS["f32"], samples(4)
    for how, bound in product(("rn", "rz"), ("", ".relu")):
        want = [
            [bounded(encode(decode(int(row[n]) & 0xFFFFFFFF, g), f, how), to, bound) for n in (1, 0)]
            for row in given
        ]
        check(tiers, f"cvt.{how}{bound}.{to}.f32 %r4, %r1, %r2;", "r", given, want, 16)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_whole_numbers_are_rounded_once(tiers: Tiers, kind: str) -> None:
    f, given = FORMATS[kind], samples(5)
    for of, how in product(NARROW if kind == "f16" else INTEGERS, ROUNDINGS):
        bits, want = size(of), []
        for row in given:
            value = int(row[0]) & ((1 << bits) - 1)
            value -= 1 << bits if of[0] == "s" and value >> (bits - 1) else 0
            want.append([{encode(Number(value < 0, abs(value)), f, how)}])
        check(tiers, f"cvt.{how}.{kind}.{of} %h4, %{register(of)}1;", "h", given, want, 16)


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_whole_numbers_of_others(tiers: Tiers, kind: str) -> None:
    f, given, k = FORMATS[kind], samples(6), register(kind)
    for to, how, ftz in product(INTEGERS, WHOLE, ["", ".ftz"] if kind == "f32" else [""]):
        numbers = [decode(int(row[0]) & ((1 << f.bits) - 1), f, bool(ftz)) for row in given]
        want = [[{exactly.whole(x, how, size(to), to[0] == "s", f.bits)}] for x in numbers]
        check(
            tiers, f"cvt.{how}{ftz}.{to}.{kind} %{register(to)}4, %{k}1;", register(to), given, want, size(to)
        )


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_halves_are_wider_numbers(tiers: Tiers, kind: str) -> None:
    f, given = FORMATS[kind], samples(7)
    for to, k in (("f32", "r"), ("f64", "d")):
        numbers = [decode(int(row[0]) & 0xFFFF, f) for row in given]
        text = f"cvt.{to}.{kind} %{k}4, %h1;"
        canonical = f"{{.reg .pred %p; setp.nan.{to} %p, %{k}4, %{k}4; @%p mov.b{size(to)} %{k}4, {encode(exactly.NOT_A_NUMBER, FORMATS[to])};}}"
        check(tiers, text + canonical, k, given, [[{encode(x, FORMATS[to])}] for x in numbers], size(to))


@pytest.mark.parametrize("kind", KINDS)
def test_comparisons(tiers: Tiers, kind: str) -> None:
    k, given = register(kind), samples(8)
    for number, name in enumerate((*ORDER, *UNORDERED)):
        ftz = ".ftz" * (number % 2) if kind[0] == "f" else ""
        truth = [[exactly.holds(name, *part) for part in row] for row in halves(given, 2, kind, bool(ftz))]
        pair = "|%q" * ("x2" in kind)
        text = f"setp.{name}{ftz}.{kind} %p{pair}, %{k}1, %{k}2; selp.u32 %r4, 1, 0, %p;"
        if pair:
            text += " selp.u32 %r1, 2, 0, %q; or.b32 %r4, %r4, %r1;"
        want = [[{sum(bit << at for at, bit in enumerate(row))}] for row in truth]
        check(tiers, f"{{ .reg .pred %p, %q; {text} }}", "r", given, want, 32)
        one = 0x3C00 if kind[0] == "f" else 0x3F80
        check(
            tiers,
            f"set.{name}{ftz}.{kind}.{kind} %{k}4, %{k}1, %{k}2;",
            k,
            given,
            [[{one * bit} for bit in row] for row in truth],
            16,
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("returns", [False, True])
def test_sums_in_memory(tiers: Tiers, kind: str, returns: bool) -> None:
    f, k, given = FORMATS[kind.removesuffix("x2")], register(kind), samples(9)
    update = f"atom.global.add.noftz.{kind} %{k}3," if returns else f"red.global.add.noftz.{kind}"
    text = f"st.global.b{size(kind)} [%out], %{k}1; {update} [%out], %{k}2; ld.global.b{size(kind)} %{k}4, [%out];"
    want = [[{encode(exactly.plus(a, b), f)} for a, b in row] for row in halves(given, 2, kind, False)]
    check(tiers, text, k, given, want, 16)
    if returns:
        check(
            tiers,
            f"{text} mov.b{size(kind)} %{k}4, %{k}3;",
            k,
            given,
            [[{int(row[0]) & ((1 << size(kind)) - 1)}] for row in given],
            size(kind),
        )


def test_slct_flushes_as_it_says_itself_and_not_as_the_instruction_before(tiers: Tiers) -> None:
    given = np.full((COUNT, 3), 0x80000001, np.uint64)  # below zero, or a zero where it is flushed
    for before, after, want in (("add.ftz.f32", "slct.u32.f32", 8), ("add.f32", "slct.ftz.u32.f32", 7)):
        text = f"{before} %r3, %r2, %r2; {after} %r4, 7, 8, %r1;"
        check(tiers, text, "r", given, [[{want}]] * COUNT, 32)
