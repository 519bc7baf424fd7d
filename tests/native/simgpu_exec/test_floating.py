"""Every rounding of every floating-point instruction, on special and random bits, against exact fractions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.native.simgpu_exec import exact
from tests.native.simgpu_exec.conftest import element
from tests.native.simgpu_exec.exact import BRAIN, DOUBLE, HALF, SINGLE, Format, Value

INVALID_PTX = 218

FORMATS = {"f16": HALF, "bf16": BRAIN, "f32": SINGLE, "f64": DOUBLE}
MODES = ("rn", "rz", "rm", "rp")


def samples(form: Format, count: int, seed: int) -> Any:
    """Zeros, ends of the subnormals and of the range, ones, infinities, NaN; and random bits."""
    one = (-form.least) << form.mantissa
    edge = 1 << form.mantissa
    special = [
        0,
        1,
        edge - 1,
        edge,
        edge + 1,
        one,
        one + 1,
        one + edge // 2,
        form.infinity - 1,
        form.infinity,
        form.nan,
    ]
    codes = [c | s for c in special for s in (0, form.sign)]
    random = np.random.default_rng(seed)
    near_one = [one + int(v) for v in random.integers(-4 * edge, 4 * edge, count)]
    wild = [int(v) for v in random.integers(0, 2 * form.sign, count, dtype=np.uint64)]
    chosen = random.permutation(np.array((codes + near_one + wild) * 2, np.uint64))
    return chosen.astype(f"u{form.bits // 8}")


def operands(form: Format, count: int = 150) -> tuple[Any, Any, Any]:
    return samples(form, count, 1), samples(form, count, 2), samples(form, count, 3)


def agrees(form: Format, got: Any, want: list[int], *inputs: Any) -> None:
    for n, (out, expected) in enumerate(zip(got.tolist(), want, strict=True)):
        both_nan = form.is_nan(out) and form.is_nan(expected)
        assert both_nan or out == expected, (
            f"{[hex(int(i[n])) for i in inputs]}: got {out:#x}, exactly {expected:#x}"
        )


Function = Callable[..., Value]


def check(
    device: Any,
    text: str,
    form: Format,
    compute: Function,
    flush: bool = False,
    mode: str = "rn",
    **after: bool,
) -> None:
    a, b, c = operands(form)
    out = element(device, text, a, b, c, a.dtype)
    want = []
    for codes in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
        value = compute(*(form.value(code, flush) for code in codes))
        code = form.code(value, mode, flush)
        if after.get("sat"):
            code = form.code(exact.clip(form.value(code)))
        if after.get("relu"):
            code = form.code(exact.rectify(form.value(code)))
        want.append(code)
    agrees(form, out, want, a, b, c)


@pytest.mark.parametrize("flush", [False, True], ids=["", "ftz"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma", "div", "rcp", "sqrt"])
def test_arithmetic_rounds_as_asked(device: Any, name: str, kind: str, mode: str, flush: bool) -> None:
    if kind == "f64" and flush:
        pytest.skip("there is no .ftz for double precision")
    compute: dict[str, tuple[str, Function]] = {
        "add": ("%a, %b", lambda a, b, c: exact.add(a, b, mode)),
        "sub": ("%a, %b", lambda a, b, c: exact.add(a, exact.negate(b), mode)),
        "mul": ("%a, %b", lambda a, b, c: exact.multiply(a, b)),
        "fma": ("%a, %b, %c", lambda a, b, c: exact.fused(a, b, c, mode)),
        "div": ("%a, %b", lambda a, b, c: exact.divide(a, b)),
        "rcp": ("%a", lambda a, b, c: exact.divide(exact.Fraction(1), a)),
        "sqrt": ("%a", lambda a, b, c: exact.root(a)),
    }
    arguments, function = compute[name]
    text = f"{name}.{mode}{'.ftz' if flush else ''}.{kind} %d, {arguments};"
    check(device, text, FORMATS[kind], function, flush, mode)


@pytest.mark.parametrize("flush", [False, True], ids=["", "ftz"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
def test_packed_singles_round_each_as_one(blackwell: Any, name: str, mode: str, flush: bool) -> None:
    compute: dict[str, Function] = {
        "add": lambda a, b, c: exact.add(a, b, mode),
        "sub": lambda a, b, c: exact.add(a, exact.negate(b), mode),
        "mul": lambda a, b, c: exact.multiply(a, b),
        "fma": lambda a, b, c: exact.fused(a, b, c, mode),
    }
    singles = operands(SINGLE)
    a, b, c = (one[: len(one) // 2 * 2].view("u8") for one in singles)
    arguments = "%a, %b, %c" if name == "fma" else "%a, %b"
    text = f"{name}.{mode}{'.ftz' if flush else ''}.f32x2 %d, {arguments};"
    out = element(blackwell, text, a, b, c, "u8", "sm_100").view("u4")
    halves = [one.view("u4").tolist() for one in (a, b, c)]
    want = [
        SINGLE.code(compute[name](*(SINGLE.value(code, flush) for code in codes)), mode, flush)
        for codes in zip(*halves, strict=True)
    ]
    agrees(SINGLE, out, want, *halves)


def test_packed_singles_are_for_newer_devices(device: Any, launch_failed: Any) -> None:
    a = np.zeros(2, "u8")
    with pytest.raises(launch_failed) as failed:
        element(device, "add.rn.f32x2 %d, %a, %b;", a, a, a, "u8")
    assert failed.value.code == INVALID_PTX


@pytest.mark.parametrize("suffix", ["", ".ftz", ".sat", ".ftz.sat"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma.rn"])
@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_flushing_and_saturation(device: Any, name: str, kind: str, suffix: str) -> None:
    compute: dict[str, Function] = {
        "add": lambda a, b, c: exact.add(a, b),
        "sub": lambda a, b, c: exact.add(a, exact.negate(b)),
        "mul": lambda a, b, c: exact.multiply(a, b),
        "fma.rn": exact.fused,
    }
    arguments = "%a, %b, %c" if name == "fma.rn" else "%a, %b"
    text = f"{name}{suffix}.{kind} %d, {arguments};"
    check(device, text, FORMATS[kind], compute[name], "ftz" in suffix, sat="sat" in suffix)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("relu", ["", ".relu"])
def test_fused_halves_round_once(device: Any, kind: str, relu: str) -> None:
    check(device, f"fma.rn{relu}.{kind} %d, %a, %b, %c;", FORMATS[kind], exact.fused, relu=bool(relu))


@pytest.mark.parametrize("name", ["add", "sub", "mul"])
def test_brain_floats(device: Any, name: str) -> None:
    compute: dict[str, Function] = {
        "add": lambda a, b, c: exact.add(a, b),
        "sub": lambda a, b, c: exact.add(a, exact.negate(b)),
        "mul": lambda a, b, c: exact.multiply(a, b),
    }
    check(device, f"{name}.rn.bf16 %d, %a, %b;", BRAIN, compute[name])


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("name", ["min", "max", "min.NaN", "max.NaN", "min.ftz", "max.ftz"])
def test_least_and_greatest(device: Any, name: str, kind: str) -> None:
    if (kind == "f64" and "." in name) or (kind == "bf16" and "ftz" in name):
        pytest.skip("no such form")
    check(
        device,
        f"{name}.{kind} %d, %a, %b;",
        FORMATS[kind],
        lambda a, b, c: exact.least(a, b, "NaN" in name, "max" in name),
        "ftz" in name,
    )


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("name", ["min", "max", "min.NaN"])
def test_least_magnitude_with_the_product_of_the_signs(device: Any, name: str, kind: str) -> None:
    def compute(a: Value, b: Value) -> Value:
        sizes = [exact.negate(v) if exact.negative(v) else v for v in (a, b)]
        found = exact.least(sizes[0], sizes[1], "NaN" in name, "max" in name)
        return exact.negate(found) if exact.negative(a) != exact.negative(b) else found

    form = FORMATS[kind]
    a, b, c = operands(form)
    numbers = [i for i in range(len(a)) if not (form.is_nan(int(a[i])) or form.is_nan(int(b[i])))]
    a, b, c = a[numbers], b[numbers], c[numbers]
    out = element(device, f"{name}.xorsign.abs.{kind} %d, %a, %b;", a, b, c, a.dtype)
    want = [form.code(compute(form.value(int(x)), form.value(int(y)))) for x, y in zip(a, b, strict=True)]
    agrees(form, out, want, a, b)


@pytest.mark.parametrize("flush", [False, True], ids=["", "ftz"])
@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_negation_and_magnitude(device: Any, kind: str, flush: bool) -> None:
    form, ftz = FORMATS[kind], ".ftz" if flush else ""
    check(device, f"neg{ftz}.{kind} %d, %a;", form, lambda a, b, c: exact.negate(a), flush)
    if not (kind == "f16" and flush):
        check(
            device,
            f"abs{ftz}.{kind} %d, %a;",
            form,
            lambda a, b, c: exact.negate(a) if exact.negative(a) else a,
            flush,
        )


NARROWINGS = [
    *[(f"cvt.{m}.f16.f32", "f32", "f16", m) for m in ("rn", "rz")],
    *[(f"cvt.{m}.f16.f64", "f64", "f16", m) for m in MODES],
    *[(f"cvt.{m}.f32.f64", "f64", "f32", m) for m in MODES],
    *[(f"cvt.{m}.bf16.f32", "f32", "bf16", m) for m in ("rn", "rz")],
    *[(f"cvt.{m}.ftz.bf16.f32", "f32", "bf16", m) for m in MODES],
    ("cvt.rn.bf16.f64", "f64", "bf16", "rn"),
    ("cvt.rn.bf16.f16", "f16", "bf16", "rn"),
    ("cvt.rn.f16.bf16", "bf16", "f16", "rn"),
    ("cvt.f32.f16", "f16", "f32", "rn"),
    ("cvt.f64.f16", "f16", "f64", "rn"),
    ("cvt.f32.bf16", "bf16", "f32", "rn"),
    ("cvt.f64.bf16", "bf16", "f64", "rn"),
    ("cvt.f64.f32", "f32", "f64", "rn"),
]


@pytest.mark.parametrize("row", NARROWINGS, ids=lambda row: row[0])
def test_conversion_between_formats_rounds_once(device: Any, row: tuple[str, str, str, str]) -> None:
    text, start, end, mode = row
    source, target = FORMATS[start], FORMATS[end]
    a = samples(source, 400, 4)
    if source.bits > target.bits:  # and what lies right between two numbers of the target
        middle = [
            target.code(source.value(int(v)), "rz")
            for v in samples(source, 100, 5)
            if not source.is_nan(int(v))
        ]
        halves = []
        for code in middle:
            low, high = target.value(code), target.value(code + 1)
            if not isinstance(low, str) and not isinstance(high, str):
                tie = source.code((low + high) / 2)
                halves += [tie, tie + 1, tie - 1]
        a = np.concatenate([a, np.array(halves, np.uint64).astype(a.dtype)])
    out = element(device, f"{text} %d, %a;", a, a, a, f"u{target.bits // 8}")
    want = [target.code(source.value(int(v), ".ftz." in text), mode) for v in a]
    agrees(target, out, want, a)


INTEGERS = {"u8": (0, 2**8), "s8": (-(2**7), 2**7), "u16": (0, 2**16), "s16": (-(2**15), 2**15), "u32": (0, 2**32),
            "s32": (-(2**31), 2**31), "u64": (0, 2**64), "s64": (-(2**63), 2**63)}  # fmt: skip


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("source", ["f16", "f32", "f64", "bf16"])
def test_float_to_integer_saturates_and_nan_is_zero_or_the_highest_bit(
    device: Any, source: str, kind: str, mode: str
) -> None:
    form = FORMATS[source]
    low, high = INTEGERS[kind]
    bits = int(kind[1:])
    a = samples(form, 200, 6)
    out_type = "u2" if bits <= 16 else f"u{bits // 8}"
    text = f"cvt.{mode}.{kind}.{source} %d, %a;"
    if source == "bf16" and bits == 8:  # which goes to a register of 8 bits alone
        text = f"{{ .reg .b8 %small; {text.replace('%d', '%small')} cvt.{kind[0]}16.{kind} %d, %small; }}"
    out = element(device, text, a, a, a, out_type)
    for code, got in zip(a.tolist(), out.tolist(), strict=True):
        value = form.value(code)
        if value == "nan":  # PTX ISA, “cvt”
            want = 1 << (bits - 1) if source == "f64" or bits == 64 else 0
            want -= 2**bits if want and low else 0
        elif exact.infinite(value):
            want = low if value == "-inf" else high - 1
        else:
            number = exact.number(value)
            floor = number.numerator // number.denominator
            rest = number - floor
            want = {
                "rmi": floor,
                "rpi": floor + (rest > 0),
                "rzi": floor + (rest > 0 and number < 0),
                "rni": round(number),
            }[mode]
            want = max(low, min(high - 1, want))
        size = 16 if bits <= 16 else bits
        assert got == want % 2**size, (hex(code), got, want)


@pytest.mark.parametrize("text", ["cvt.rni.u8.bf16 %h0, %h1;", "cvt.rn.bf16.s8 %h0, %h1;"])
def test_bytes_of_brain_floats_have_8_bits(device: Any, launch_failed: Any, text: str) -> None:
    """A wider register holds the other types' bytes, and not theirs."""
    a = np.zeros(2, "u2")
    with pytest.raises(launch_failed) as failed:
        element(device, text + "mov.b16 %d, %a;", a, a, a, "u2")
    assert failed.value.code == INVALID_PTX


def test_a_comparison_that_gives_a_brain_float_flushes_nothing(device: Any, launch_failed: Any) -> None:
    a = np.array([1, 0], np.float32).view("u4")
    out = element(device, "set.gt.bf16.f32 %d, %a, %b;", a, a[::-1].copy(), a, "u2")
    assert out.tolist() == [BRAIN.code(1), 0]
    with pytest.raises(launch_failed) as failed:
        element(device, "set.gt.ftz.bf16.f32 %d, %a, %b;", a, a, a, "u2")
    assert failed.value.code == INVALID_PTX


@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("target", ["f16", "f32", "f64", "bf16"])
def test_integer_to_float_rounds_once(device: Any, target: str, kind: str, mode: str) -> None:
    if target == "bf16" and mode != "rn":
        pytest.skip("no such form")
    form, (low, high) = FORMATS[target], INTEGERS[kind]
    size = int(kind[1:]) // 8
    random = np.random.default_rng(7)
    values = [0, 1, high - 1, low, high // 2 + 1, 65519, 65520, 2**24 + 1, 2**24 + 3]
    if size == 8:
        values += [2**53 + 1, 2**53 + 3, 2**60 + 2**36 + 1, 2**62 + 2**38, 2**40 + 2**32 + 1]
    values += [
        int(v) >> int(s)
        for v, s in zip(random.integers(0, 2**63, 200), random.integers(0, 63, 200), strict=True)
    ]
    values = [v for v in values if low <= v < high]
    if low < 0:
        values += [-v for v in values if low <= -v < high]
    a = np.array([v % 2 ** (8 * size) for v in values], f"u{size}")
    out = element(device, f"cvt.{mode}.{target}.{kind} %d, %a;", a, a, a, f"u{form.bits // 8}")
    agrees(form, out, [form.code(exact.Fraction(v), mode) for v in values], a)


def test_tensor_floats(device: Any) -> None:
    tf32 = Format(11, -126, 19)
    a = samples(SINGLE, 400, 8)
    for mode in ("rn", "rz", "rna"):
        out = element(device, f"cvt.{mode}.tf32.f32 %d, %a;", a, a, a, "u4")
        want = [tf32.code(SINGLE.value(int(v)), mode) << 13 for v in a]
        agrees(SINGLE, out, want, a)


@pytest.mark.parametrize(
    ("kind", "form", "most"), [("e4m3", Format(4, -6, 8), 448), ("e5m2", Format(3, -14, 8), 57344)]
)
def test_eight_bit_floats(device: Any, kind: str, form: Format, most: int) -> None:
    a, b = samples(SINGLE, 400, 9), samples(SINGLE, 400, 10)
    b = np.where(np.arange(len(b)) % 2, b, (b & 0x80FFFFFF) | 0x3F000000)
    out = element(device, f"cvt.rn.satfinite.{kind}x2.f32 %d, %a, %b;", a, b, a, "u2")

    wide = Format(form.precision, form.least, 9)  # e4m3 uses its last exponent for numbers: leave room above

    def code(single: int) -> int:
        value = SINGLE.value(single)
        if value == "nan":
            return 0x7F
        size = most if exact.infinite(value) else min(abs(exact.number(value)), most)
        return wide.code(exact.Fraction(size)) | (0x80 if exact.negative(value) else 0)

    for x, y, got in zip(a.tolist(), b.tolist(), out.tolist(), strict=True):
        assert got == code(x) << 8 | code(y), (hex(x), hex(y), hex(got))
    back = element(device, f"cvt.rn.f16x2.{kind}x2 %d, %a;", out, out, out, "u4")
    for eights, halves in zip(out.tolist(), back.tolist(), strict=True):
        for shift in (0, 1):
            small, half = eights >> 8 * shift & 0xFF, halves >> 16 * shift & 0xFFFF
            if kind == "e4m3":  # no infinity: the last exponent holds numbers, all ones is the only NaN
                number = exact.Fraction((small & 7) + 8) * exact.Fraction(2) ** ((small >> 3 & 15) - 10)
                if small & 0x7F == 0x7F:
                    assert HALF.is_nan(half)
                    continue
                if small >> 3 & 15:
                    assert HALF.value(half) == (-number if small & 0x80 else number)
                    continue
            assert HALF.is_nan(half) if form.is_nan(small) else HALF.value(half) == form.value(small)
