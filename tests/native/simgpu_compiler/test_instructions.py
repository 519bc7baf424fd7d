"""Every row of the interpreter's tables of instructions gives the same bits when it is compiled, NaNs and all."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.native.simgpu_compiler.conftest import Tiers
from tests.native.simgpu_exec.conftest import element_text
from tests.native.simgpu_exec.exact import DOUBLE, SINGLE
from tests.native.simgpu_exec.test_floating import samples
from tests.native.simgpu_exec.test_instructions import CASES, PTX_TYPE
from tests.native.simgpu_exec.test_instructions import ROWS as LANES
from tests.native.simgpu_exec.test_integer import ROWS as INTEGERS
from tests.native.simgpu_exec.test_integer import numbers

OWN = {"add", "sub", "and", "or", "xor", "not", "mad.lo", "mul.lo", "mul.wide", "mad.wide", "min", "max", "setp", "selp", "lop3", "fma", "mul", "div",
       "sqrt", "rcp", "abs", "neg"}  # fmt: skip
"""Of these, in 32 and 64 bits, the compiler has code of its own."""


def floats() -> list[tuple[str, str]]:
    rows = []
    for kind, (mode, ftz) in product(("f32", "f64"), product(("rn", "rz", "rm", "rp"), ("", ".ftz"))):
        if kind == "f64" and ftz:
            continue
        rows += [(f"{name}.{mode}{ftz}.{kind} %d, %a, %b;", kind) for name in ("add", "sub", "mul", "div")]
        rows += [(f"{name}.{mode}{ftz}.{kind} %d, %a;", kind) for name in ("sqrt", "rcp")]
        rows.append((f"fma.{mode}{ftz}.{kind} %d, %a, %b, %c;", kind))
        rows.append((f"fma.{mode}{ftz}.{kind} %d, %a, %b, %a;", kind))
        rows.append(
            (
                f"mov.{kind[:1].replace('f', 'b')}{kind[1:]} %d, %c; fma.{mode}{ftz}.{kind} %d, %a, %b, %d;",
                kind,
            )
        )
        rows.append((f"mov.b{kind[1:]} %d, %c; fma.{mode}{ftz}.{kind} %d, %d, %b, %a;", kind))
        rows.append((f"mov.b{kind[1:]} %d, %c; fma.{mode}{ftz}.{kind} %d, %a, %d, %b;", kind))
    for kind in ("f32", "f64"):
        rows += [(f"{name}.{kind} %d, %a, %b;", kind) for name in ("min", "max", "copysign")]
        rows += [(f"{name}.{kind} %d, %a;", kind) for name in ("abs", "neg")]
        rows += [(f"cvt.{how}.{kind}.{kind} %d, %a;", kind) for how in ("rni", "rzi", "rmi", "rpi")]
        for compare in [
            "eq",
            "ne",
            "lt",
            "le",
            "gt",
            "ge",
            "equ",
            "neu",
            "ltu",
            "leu",
            "gtu",
            "geu",
            "num",
            "nan",
        ]:
            text = f"setp.{compare}.{kind} %p0, %a, %b; selp.{kind} %d, %a, %c, %p0;"
            rows += [(text, kind), (text.replace("%p0;", "!%p0;") if compare == "eq" else text, kind)]
    rows += [
        (f"{name}.approx{ftz}.f32 %d, %a;", "f32")
        for name in ("rsqrt", "sin", "ex2", "rcp")
        for ftz in ("", ".ftz")
    ]
    rows += [
        ("min.ftz.f32 %d, %a, %b;", "f32"),
        ("max.ftz.f32 %d, %a, %b;", "f32"),
        ("add.sat.f32 %d, %a, %b;", "f32"),
    ]
    for how, to in product(("rni", "rzi", "rmi", "rpi"), ("s32", "u32")):
        rows.append((f"{{.reg .b32 %r; cvt.{how}.{to}.f32 %r, %a; mov.b32 %d, %r;}}", "f32"))
    rows += [("{.reg .b64 %w; cvt.f64.f32 %w, %a; add.f64 %w, %w, %w; cvt.rn.f32.f64 %d, %w;}", "f32")]
    rows += [
        (f"{{.reg .b32 %r; mov.b32 %r, %a; cvt.{m}.f32.{t} %d, %r;}}", "f32")
        for m in ("rn", "rz")
        for t in ("s32", "u32")
    ]
    return [(text.replace("%p0;", "%p0;"), kind) for text, kind in rows]


def stripped(body: str) -> str:
    """The first instruction's name up to its type, for the list of those that have code of their own."""
    return body.split(" ")[0].rsplit(".", 1)[0].replace(".rn", "")


@pytest.mark.parametrize("part", range(8))
def test_integers(tiers: Tiers, part: int) -> None:
    for text, bits, out_bits, _ in INTEGERS[part::8]:
        a, b, c = (numbers(bits, seed) for seed in (1, 2, 3))
        out = np.zeros(len(a), f"u{out_bits // 8}")
        ptx = element_text(text, bits // 8, out_bits // 8)
        tiers.same(ptx, "element", -(-len(a) // 96), 96, a, b, c, out, np.uint32(len(a)))
        if (
            stripped(text) in OWN - {"abs", "div", "neg"}
            and bits >= 32
            and text.count(";") == 1
            and "x2" not in text
            and ".cc" not in text
        ):
            assert tiers.handlers() == 0, (text, tiers.said[-1])


@pytest.mark.parametrize("part", range(8))
def test_floats(tiers: Tiers, part: int) -> None:
    for text, kind in floats()[part::8]:
        form = SINGLE if kind == "f32" else DOUBLE
        a, b, c = (samples(form, 150, seed) for seed in (1, 2, 3))
        signalling = a.copy()  # and NaNs of every kind beside each other
        signalling[::7] = form.infinity + 1 + np.arange(len(a[::7]), dtype=a.dtype)
        for left in (a, signalling):
            out = np.zeros_like(a)
            ptx = element_text(text, a.itemsize, a.itemsize)
            for operands in ((left, b, c), (b, left, signalling)):
                shape = (-(-len(a) // 96), 96)
                tiers.same(ptx, "element", *shape, *operands, out, np.uint32(len(a)), floats=a.itemsize)
        if stripped(text) in OWN and text.count(";") == 1:
            assert tiers.handlers() == 0, (text, tiers.said[-1])


@pytest.mark.parametrize("masked", [False, True], ids=["all-lanes", "some-lanes"])
def test_lanes(tiers: Tiers, masked: bool) -> None:
    for text, kind, dtype, a, b, c, _ in LANES:
        name, size = PTX_TYPE[kind]
        body = text.format(d=f"%{kind}4", a=f"%{kind}1", b=f"%{kind}2", c=f"%{kind}3")
        ptx = (CASES / "lane.ptx").read_text()
        ptx = ptx.replace("TYPE", name).replace("SIZE", str(size)).replace("REG", kind).replace("BODY", body)
        arrays: list[Any] = [np.resize(np.array(values, dtype), 32) for values in (a, b, c, [0])]
        tiers.same(ptx, "lane", 1, 32, *arrays, np.uint32(len(a) if masked else 32))


def test_most_of_the_tables_is_compiled_and_not_left_to_the_interpreter(tiers: Tiers) -> None:
    """The kernels of the tables, once more, by what the library says about them."""
    compiled = refused = 0
    for text, bits, out_bits, _ in INTEGERS:
        a, out = numbers(bits, 1)[:4], np.zeros(4, f"u{out_bits // 8}")
        tiers.run(
            "compiled",
            element_text(text, bits // 8, out_bits // 8),
            "element",
            1,
            32,
            a,
            a,
            a,
            out,
            np.uint32(4),
        )
        compiled, refused = (
            (compiled + 1, refused) if ": compiled: " in tiers.said[-1] else (compiled, refused + 1)
        )
    assert compiled > 2 * refused, (compiled, refused)
    assert all("the compiler does not know '" in line for line in tiers.said if ": interpreted: " in line)
