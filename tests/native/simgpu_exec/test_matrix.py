"""``mma.sync``: every form on one warp, its fragments packed by the ISA's formulas, against NumPy and exact fractions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.native.simgpu_exec import exact
from tests.native.simgpu_exec.fragments import (
    BITS,
    from_bits,
    kernel,
    pack_a,
    pack_b,
    pack_c,
    to_bits,
    unpack_c,
)
from tests.real_gpu import SIMULATED_ONLY

INTEGERS = {"s8": (-128, 128), "u8": (0, 256), "s4": (-8, 8), "u4": (0, 16), "b1": (0, 2)}

#       rows, depth, D, A, B, C
FORMS: list[tuple[int, int, str, str, str, str]] = [
    *[(16, k, "f32", a, a, "f32") for a in ("f16", "bf16") for k in (8, 16)],
    *[(16, k, "f16", "f16", "f16", "f16") for k in (8, 16)],
    *[(16, k, "f32", "tf32", "tf32", "f32") for k in (4, 8)],
    (8, 4, "f64", "f64", "f64", "f64"),
    *[(16, k, "f64", "f64", "f64", "f64") for k in (4, 8, 16)],
    *[(16, k, "f32", a, b, "f32") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2") for k in (16, 32)],
    (16, 32, "f16", "e4m3", "e5m2", "f16"),
    *[(m, k, "s32", a, b, "s32") for a in ("s8", "u8") for b in ("s8", "u8") for m, k in ((8, 16), (16, 16), (16, 32))],
    *[(m, k, "s32", a, b, "s32") for a in ("s4", "u4") for b in ("s4", "u4") for m, k in ((8, 32), (16, 32), (16, 64))],
]  # fmt: skip


def run(device: Any, name: str, m: int, d: str, a: Any, b: Any, c: Any) -> Any:
    """Fragments of A, B and C through ``name``; D as numbers."""
    count = m * 8 // 32 * (BITS[d] if BITS[d] < 32 else 32) // 32
    out = np.zeros((count, 32), np.uint64 if d == "f64" else np.uint32)
    text = kernel(f"{name} {{out}}, {{0}}, {{1}}, {{2}};", [a, b, c], count, 64 if d == "f64" else 32)
    device.run(text, "k", 1, 32, a, b, c, out)
    return out


def numbers(random: np.random.Generator, kind: str, shape: tuple[int, int], small: bool) -> Any:
    if kind in INTEGERS:
        return random.integers(*INTEGERS[kind], shape)
    if small or kind in ("e4m3", "e5m2"):
        return random.integers(-8, 9, shape).astype(np.float64)
    values = random.standard_normal(shape)
    return values.astype(np.float16).astype(np.float64) if kind == "f16" else values


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f"m{f[0]}n8k{f[1]}.{'.'.join(f[2:])}")
def test_products_of_integers_are_exact(device: Any, form: Any) -> None:
    m, k, d, a, b, c = form
    random = np.random.default_rng(m * k)
    x, y = numbers(random, a, (m, k), True), numbers(random, b, (k, 8), True)
    z = random.integers(-(2**20), 2**20, (m, 8)) if c == "s32" else random.integers(-64, 64, (m, 8))
    got = run(device, f"mma.sync.aligned.m{m}n8k{k}.row.col.{d}.{a}.{b}.{c}", m, d, pack_a(to_bits(x, a), a),
              pack_b(to_bits(y, b), b), pack_c(to_bits(z, c), c))  # fmt: skip
    want = x @ y + z
    np.testing.assert_array_equal(from_bits(unpack_c(got, d, m), d).astype(np.float64), want)


@pytest.mark.parametrize("operation", ["and", "xor"])
@pytest.mark.parametrize(("m", "k"), [(8, 128), (16, 128), (16, 256)])
def test_single_bits_are_counted(device: Any, m: int, k: int, operation: str) -> None:
    random = np.random.default_rng(k)
    x, y, z = random.integers(0, 2, (m, k)), random.integers(0, 2, (k, 8)), random.integers(-99, 99, (m, 8))
    got = run(device, f"mma.sync.aligned.m{m}n8k{k}.row.col.s32.b1.b1.s32.{operation}.popc", m, "s32",
              pack_a(to_bits(x, "b1"), "b1"), pack_b(to_bits(y, "b1"), "b1"), pack_c(to_bits(z, "s32"), "s32"))  # fmt: skip
    pairs = x[:, :, None] & y[None] if operation == "and" else x[:, :, None] ^ y[None]
    np.testing.assert_array_equal(from_bits(unpack_c(got, "s32", m), "s32"), pairs.sum(1) + z)


@pytest.mark.parametrize("saturates", [True, False])
def test_integers_end_at_the_largest_or_wrap_around(device: Any, saturates: bool) -> None:
    x, y = np.full((16, 32), -128), np.full((32, 8), 127)
    y[:, 4:] = -128
    z = np.zeros((16, 8), np.int64)
    z[:, 1::4], z[:, 2::4] = 2**31 - 1, -(2**31)
    name = "mma.sync.aligned.m16n8k32.row.col" + ".satfinite" * saturates + ".s32.s8.s8.s32"
    got = run(device, name, 16, "s32", pack_a(to_bits(x, "s8"), "s8"), pack_b(to_bits(y, "s8"), "s8"),
              pack_c(to_bits(z, "s32"), "s32"))  # fmt: skip
    want = x @ y + z
    if saturates:
        want = want.clip(-(2**31), 2**31 - 1)
    np.testing.assert_array_equal(from_bits(unpack_c(got, "s32", 16), "s32"), want.astype(np.int32))


def chain(form: exact.Format, single: exact.Format, a: Any, b: Any, c: Any) -> Any:
    """The bits of D where each element is one fused multiply-add after the other, as docs/simulated-gpu.md promises."""
    out = np.zeros(c.shape, np.uint64)
    for row, column in np.ndindex(*c.shape):
        total = single.code(single.value(int(c[row, column])))
        for k in range(a.shape[1]):
            factors = form.value(int(a[row, k])), form.value(int(b[k, column]))
            total = single.code(exact.fused(*factors, single.value(total)))
        out[row, column] = total
    return out


SPECIALS = {
    "f16": [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E01, 0x3C01],
    "bf16": [0x0000, 0x8000, 0x0001, 0x807F, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC1, 0x3F81, 0x2001],
}


@SIMULATED_ONLY
@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32"])
def test_sums_are_fused_in_the_order_of_the_depth(device: Any, kind: str) -> None:
    random = np.random.default_rng(5)
    k = 8 if kind == "tf32" else 16
    form = {"f16": exact.HALF, "bf16": exact.BRAIN, "tf32": exact.SINGLE}[kind]
    a, b = (
        to_bits(random.standard_normal(shape) * 2.0 ** random.integers(-9, 9, shape), kind)
        for shape in ((16, k), (k, 8))
    )
    c = to_bits(random.standard_normal((16, 8)), "f32")
    if kind == "tf32":  # what the instruction does not look at
        low = np.uint64(0x1FFF)
        sent, a, b = (a, b), a & ~low, b & ~low
    else:
        for which in (a, b):  # some rows and columns with numbers that are none, or hardly any
            places = random.random(which.shape) < 0.1
            which[places] = random.choice(np.array(SPECIALS[kind], np.uint64), places.sum())
        c[:2] = np.resize(
            np.array([0x7F800000, 0xFF800000, 0x7FC00000, 1, 0x80000001, 0x7F7FFFFF], np.uint64), (2, 8)
        )
        sent = (a, b)
    got = run(device, f"mma.sync.aligned.m16n8k{k}.row.col.f32.{kind}.{kind}.f32", 16, "f32", pack_a(sent[0], kind),
              pack_b(sent[1], kind), pack_c(c, "f32"))  # fmt: skip
    want = chain(form, exact.SINGLE, a, b, c)
    nan = (want & np.uint64(0x7FFFFFFF)) > 0x7F800000
    np.testing.assert_array_equal(unpack_c(got, "f32", 16), np.where(nan, np.uint64(0x7FFFFFFF), want))
    if kind != "tf32":
        assert 0 < nan.sum() < nan.size


def test_accumulators_of_half_precision_are_rounded_once(device: Any) -> None:
    random = np.random.default_rng(6)
    a, b = (
        to_bits(random.standard_normal((16, 16)) * 50, "f16"),
        to_bits(random.standard_normal((16, 8)) * 50, "f16"),
    )
    c = to_bits(random.standard_normal((16, 8)) * 50, "f16")
    a[0], b[:, 0] = 0x7BFF, 0x4000  # a sum beyond the largest half
    got = run(device, "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", 16, "f16", pack_a(a, "f16"), pack_b(b, "f16"),
              pack_c(c, "f16"))  # fmt: skip
    wide = np.vectorize(lambda code: exact.SINGLE.code(exact.HALF.value(int(code))))(c)
    want = np.vectorize(lambda code: exact.HALF.code(exact.SINGLE.value(int(code))))(
        chain(exact.HALF, exact.SINGLE, a, b, wide)
    )
    np.testing.assert_array_equal(unpack_c(got, "f16", 16), want)
    assert want[0, 0] == exact.HALF.infinity


def test_double_precision_is_fused_and_rounded_as_it_says(device: Any) -> None:
    random = np.random.default_rng(7)
    a, b, c = (to_bits(random.standard_normal(shape), "f64") for shape in ((8, 4), (4, 8), (8, 8)))
    for rounding in ("rn", "rz", "rm", "rp"):
        out = np.zeros((2, 32), np.uint64)
        inputs = [pack_a(a, "f64"), pack_b(b, "f64"), pack_c(c, "f64")]
        name = f"wmma.mma.sync.aligned.row.col.m8n8k4.{rounding}.f64.f64.f64.f64"
        device.run(kernel(f"{name} {{out}}, {{0}}, {{1}}, {{2}};", inputs, 2, 64), "k", 1, 32, *inputs, out)
        want = np.zeros((8, 8), np.uint64)
        for row, column in np.ndindex(8, 8):
            total = int(c[row, column])
            for k in range(4):
                factors = exact.DOUBLE.value(int(a[row, k])), exact.DOUBLE.value(int(b[k, column]))
                total = exact.DOUBLE.code(
                    exact.fused(*factors, exact.DOUBLE.value(total), rounding), rounding
                )
            want[row, column] = total
        np.testing.assert_array_equal(unpack_c(out, "f64", 8), want)


@pytest.mark.parametrize(
    ("a_layout", "b_layout"), [("row", "col"), ("col", "row"), ("row", "row"), ("col", "col")]
)
@pytest.mark.parametrize("kinds", ["f32.f16.f16.f32", "f16.f16.f16.f16", "f32.f16.f16.f16"])
def test_volta_s_quads_multiply_four_times(device: Any, kinds: str, a_layout: str, b_layout: str) -> None:
    random = np.random.default_rng(8)
    a, b, c = (random.integers(-9, 10, (4, *shape)).astype(np.float64) for shape in ((8, 4), (4, 8), (8, 8)))
    d_kind, c_kind = kinds.split(".")[0], kinds.split(".")[3]

    def high(lane: int) -> int:
        return 0 if lane < 16 else 4

    def wide(lane: int, i: int) -> tuple[int, int]:
        return (lane & 1) + (i & 2) + high(lane), (i & 4) + (lane & 2) + (i & 1)

    def half(lane: int, i: int) -> tuple[int, int]:
        return lane % 4 + high(lane), i

    def fill(values: Any, count: int, place: Any, kind: str = "f16") -> Any:
        per = 32 // BITS[kind]
        out = np.zeros((count // per, 32), np.uint32)
        for lane in range(32):
            for i in range(count):
                code = to_bits(np.array(values[lane // 4 % 4][place(lane, i)]), kind)
                out[i // per, lane] |= np.uint32(code) << np.uint32(i % per * 16)
        return out

    a_place = {
        "row": lambda lane, i: (lane % 4 + high(lane), i),
        "col": lambda lane, i: (i + high(lane), lane % 4),
    }[a_layout]
    b_place = {
        "row": lambda lane, i: (lane % 4, i + high(lane)),
        "col": lambda lane, i: (i, lane % 4 + high(lane)),
    }[b_layout]
    inputs = [fill(a, 4, a_place), fill(b, 4, b_place), fill(c, 8, half if c_kind == "f16" else wide, c_kind)]
    count = 4 if d_kind == "f16" else 8
    out = np.zeros((count, 32), np.uint32)
    name = f"mma.sync.aligned.m8n8k4.{a_layout}.{b_layout}.{kinds}"
    device.run(kernel(f"{name} {{out}}, {{0}}, {{1}}, {{2}};", inputs, count), "k", 1, 32, *inputs, out)
    np.testing.assert_array_equal(out, fill(a @ b + c, 8, half if d_kind == "f16" else wide, d_kind))


def test_registers_may_be_in_several_fragments(device: Any) -> None:
    """D over A and B, C given by constants, C's registers in another order in D."""
    x = np.random.default_rng(9).integers(-8, 9, (16, 8))
    a, zero = pack_a(to_bits(x, "tf32"), "tf32"), np.zeros((4, 32), np.uint32)
    out = np.zeros((4, 32), np.uint32)
    more = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%in0_0, %in0_1, %in0_2, %in0_3}, {%in0_0, %in0_1, %in0_2, %in0_3}, {%in0_0, %in0_2}, {0f3F800000, 0f3F800000, 0f3F800000, 0f3F800000};"
    text = kernel("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {out}, {1}, {{%in1_0, %in1_1}}, {{%in0_2, %in0_3, %in0_0, %in0_1}};",
                  [a, zero], 4, more=more)  # fmt: skip
    device.run(text, "k", 1, 32, a, zero, out)
    b = x[:8].T  # A's first block, read as B: its rows are columns
    product = x @ b + 1
    np.testing.assert_array_equal(from_bits(unpack_c(out, "f32", 16), "f32"), np.roll(product, 8, axis=0))


def test_lanes_that_come_later_are_waited_for(device: Any) -> None:
    """Each lane takes another number of turns and one of three ways before all of them multiply."""
    random = np.random.default_rng(10)
    x, y = random.integers(-8, 9, (16, 8)), random.integers(-8, 9, (8, 8))
    inputs = [
        pack_a(to_bits(x, "f16"), "f16"),
        pack_b(to_bits(y, "f16"), "f16"),
        np.zeros((4, 32), np.uint32),
    ]
    more = """mov.u32 %x0, 0; TURN: add.u32 %x0, %x0, 1; setp.lt.u32 %p0, %x0, %lane; @%p0 bra TURN;
    setp.gt.u32 %p1, %lane, 20; @%p1 bra HIGH; setp.gt.u32 %p2, %lane, 9; @%p2 bra MIDDLE; bra ALL; HIGH: bra ALL; MIDDLE: add.u32 %x0, %x0, 1; ALL:"""
    text = kernel(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {out}, {0}, {1}, {2};", inputs, 4, more=more
    )
    out = np.zeros((4, 32), np.uint32)
    device.run(text, "k", 1, 32, *inputs, out)
    np.testing.assert_array_equal(from_bits(unpack_c(out, "f32", 16), "f32"), x @ y)
