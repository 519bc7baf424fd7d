"""One row per instruction: its text, the inputs, what NumPy or the PTX ISA says comes out.

Each row is put into the one kernel of ``cases/lane.ptx``: lane i reads a[i], b[i], c[i] and writes out[i].
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.real_gpu import REAL

CASES = Path(__file__).parent / "cases"
U, S, F, D = np.uint32, np.int32, np.float32, np.float64
NAN, INF = np.nan, np.inf

#       instruction on {a} {b} {c} -> {d}                      type  a                b              c       expected
ROWS: list[tuple[str, str, Any, list[Any], list[Any], list[Any], list[Any]]] = [
    ("add.s32 {d}, {a}, {b};", "r", S, [1, 2**31 - 1], [2, 1], [0, 0], [3, -(2**31)]),
    ("sub.s32 {d}, {a}, {b};", "r", S, [1], [2], [0], [-1]),
    ("mul.lo.s32 {d}, {a}, {b};", "r", S, [-7, 65536], [6, 65536], [0, 0], [-42, 0]),
    ("mul.hi.s32 {d}, {a}, {b};", "r", S, [-1, 2**30], [2, 8], [0, 0], [-1, 2]),
    ("mul.hi.u32 {d}, {a}, {b};", "r", U, [2**32 - 1], [2**32 - 1], [0], [2**32 - 2]),
    ("mad.lo.s32 {d}, {a}, {b}, {c};", "r", S, [3], [4], [5], [17]),
    ("div.s32 {d}, {a}, {b};", "r", S, [-7, 7, -(2**31)], [2, -2, 3], [0, 0, 0], [-3, -3, -715827882]),
    ("div.u32 {d}, {a}, {b};", "r", U, [2**32 - 1, 7], [3, 8], [0, 0], [1431655765, 0]),
    ("rem.s32 {d}, {a}, {b};", "r", S, [-7, 7], [2, -2], [0, 0], [-1, 1]),
    ("rem.u32 {d}, {a}, {b};", "r", U, [2**32 - 1], [10], [0], [5]),
    ("min.s32 {d}, {a}, {b};", "r", S, [-1], [1], [0], [-1]),
    ("min.u32 {d}, {a}, {b};", "r", U, [2**32 - 1], [1], [0], [1]),
    ("max.s32 {d}, {a}, {b};", "r", S, [-1], [1], [0], [1]),
    ("abs.s32 {d}, {a};", "r", S, [-5, 5], [0, 0], [0, 0], [5, 5]),
    ("neg.s32 {d}, {a};", "r", S, [-5, 5], [0, 0], [0, 0], [5, -5]),
    ("and.b32 {d}, {a}, {b};", "r", U, [12], [10], [0], [8]),
    ("or.b32 {d}, {a}, {b};", "r", U, [12], [10], [0], [14]),
    ("xor.b32 {d}, {a}, {b};", "r", U, [12], [10], [0], [6]),
    ("not.b32 {d}, {a};", "r", U, [0], [0], [0], [2**32 - 1]),
    ("cnot.b32 {d}, {a};", "r", U, [0, 7], [0, 0], [0, 0], [1, 0]),
    ("lop3.b32 {d}, {a}, {b}, {c}, 0x96;", "r", U, [0b1100], [0b1010], [0b0110], [0b0000]),
    ("lop3.b32 {d}, {a}, {b}, {c}, 0xe8;", "r", U, [0b1100], [0b1010], [0b0110], [0b1110]),
    ("shl.b32 {d}, {a}, {b};", "r", U, [1, 1, 1], [31, 32, 400], [0, 0, 0], [2**31, 0, 0]),
    ("shr.u32 {d}, {a}, {b};", "r", U, [2**31, 2**31], [31, 32], [0, 0], [1, 0]),
    ("shr.s32 {d}, {a}, {b};", "r", S, [-8, -8], [1, 99], [0, 0], [-4, -1]),
    ("shf.l.wrap.b32 {d}, {a}, {b}, {c};", "r", U, [0x80000000], [1], [33], [3]),
    ("shf.r.clamp.b32 {d}, {a}, {b}, {c};", "r", U, [16, 16], [1, 9], [4, 40], [0x10000001, 9]),
    (
        "prmt.b32 {d}, {a}, {b}, {c};",
        "r",
        U,
        [0x33221100, 0x80],
        [0x77665544, 0],
        [0x7531, 0x8],
        [0x77553311, 0x808080FF],
    ),
    ("bfe.u32 {d}, {a}, {b}, {c};", "r", U, [0xABCD, 0xABCD], [4, 40], [8, 8], [0xBC, 0]),
    ("bfe.s32 {d}, {a}, {b}, {c};", "r", S, [0xABCD, -1], [8, 40], [8, 8], [-85, -1]),
    ("bfi.b32 {d}, {a}, {b}, 8, 4;", "r", U, [0xF], [0], [0], [0xF00]),
    ("bfind.u32 {d}, {a};", "r", U, [0, 1, 2**31], [0] * 3, [0] * 3, [2**32 - 1, 0, 31]),
    ("bfind.s32 {d}, {a};", "r", U, [2**32 - 1, 2**32 - 2], [0] * 2, [0] * 2, [2**32 - 1, 0]),
    ("clz.b32 {d}, {a};", "r", U, [0, 1], [0, 0], [0, 0], [32, 31]),
    ("popc.b32 {d}, {a};", "r", U, [255], [0], [0], [8]),
    ("brev.b32 {d}, {a};", "r", U, [1], [0], [0], [2**31]),
    ("sad.s32 {d}, {a}, {b}, {c};", "r", S, [-3], [4], [10], [17]),
    ("dp4a.s32.s32 {d}, {a}, {b}, {c};", "r", S, [0x01FF0203], [0x01010101], [10], [15]),
    ("slct.s32.s32 {d}, {a}, {b}, {c};", "r", S, [1, 1], [2, 2], [0, -1], [1, 2]),
    ("set.lt.u32.s32 {d}, {a}, {b};", "r", U, [1, 3], [2, 2], [0, 0], [2**32 - 1, 0]),
    ("add.sat.s32 {d}, {a}, {b};", "r", S, [2**31 - 1], [1], [0], [2**31 - 1]),
    ("add.f32 {d}, {a}, {b};", "f", F, [1.5], [2.25], [0], [3.75]),
    ("add.rz.f32 {d}, {a}, {b};", "f", F, [1], [2**-24 * 1.5], [0], [1]),
    ("add.rp.f32 {d}, {a}, {b};", "f", F, [1], [2**-30], [0], [1 + 2**-23]),
    ("add.rn.f32 {d}, {a}, {b};", "f", F, [1], [2**-30], [0], [1]),
    ("add.ftz.f32 {d}, {a}, {b};", "f", F, [1e-40], [1e-40], [0], [0]),
    ("add.sat.f32 {d}, {a}, {b};", "f", F, [1, -3, NAN], [1, 1, 1], [0] * 3, [1, 0, 0]),
    ("mul.f32 {d}, {a}, {b};", "f", F, [1.5, INF], [2, 0], [0, 0], [3, NAN]),
    ("fma.rn.f32 {d}, {a}, {b}, {c};", "f", F, [1 + 2**-23], [1 + 2**-23], [-1], [2**-22 + 2**-46]),
    ("div.rn.f32 {d}, {a}, {b};", "f", F, [1, 1, 0], [3, 0, 0], [0] * 3, [F(1) / F(3), INF, NAN]),
    ("min.f32 {d}, {a}, {b};", "f", F, [NAN, 1, 2], [1, NAN, -2], [0] * 3, [1, 1, -2]),
    ("max.f32 {d}, {a}, {b};", "f", F, [NAN, 1, 2], [1, NAN, -2], [0] * 3, [1, 1, 2]),
    ("sqrt.rn.f32 {d}, {a};", "f", F, [2, -1], [0, 0], [0, 0], [np.sqrt(F(2)), NAN]),
    ("rcp.rn.f32 {d}, {a};", "f", F, [4, 0], [0, 0], [0, 0], [0.25, INF]),
    ("abs.f32 {d}, {a};", "f", F, [-4], [0], [0], [4]),
    ("copysign.f32 {d}, {a}, {b};", "f", F, [-1], [3], [0], [-3]),
    ("cvt.rni.f32.f32 {d}, {a};", "f", F, [2.5, 3.5], [0, 0], [0, 0], [2, 4]),
    ("cvt.rmi.f32.f32 {d}, {a};", "f", F, [-2.5], [0], [0], [-3]),
    ("add.f64 {d}, {a}, {b};", "fd", D, [0.1], [0.2], [0], [0.1 + 0.2]),
    ("fma.rn.f64 {d}, {a}, {b}, {c};", "fd", D, [1 + 2**-52], [1 + 2**-52], [-1], [2**-51 + 2**-104]),
    ("div.rn.f64 {d}, {a}, {b};", "fd", D, [1, 1], [3, 0], [0, 0], [1 / 3, INF]),
    ("sqrt.rn.f64 {d}, {a};", "fd", D, [2], [0], [0], [np.sqrt(2)]),
    ("mul.hi.s64 {d}, {a}, {b};", "rd", np.int64, [2**62], [-8], [0], [-2]),
    ("mad.lo.s64 {d}, {a}, {b}, {c};", "rd", np.int64, [2**40], [3], [-1], [3 * 2**40 - 1]),
    ("div.s64 {d}, {a}, {b};", "rd", np.int64, [-(2**62)], [7], [0], [-(2**62) // 7 + 1]),
    ("rem.u64 {d}, {a}, {b};", "rd", np.int64, [2**62 + 5], [10], [0], [(2**62 + 5) % 10]),
    ("brev.b64 {d}, {a};", "rd", np.int64, [2], [0], [0], [2**62]),
    (
        "{{.reg .u32 %t; cvt.rzi.s32.f32 %t, {a}; mov.b32 {d}, %t;}}",
        "f",
        F,
        [NAN, 3e9, -2.7],
        [0] * 3,
        [0] * 3,
        np.array([0, 2**31 - 1, -2], S).view(F).tolist(),
    ),
    (
        "{{.reg .b16 %h; cvt.rn.f16.f32 %h, {a}; cvt.f32.f16 {d}, %h;}}",
        "f",
        F,
        [0.1, 70000],
        [0] * 2,
        [0] * 2,
        [float(np.float16(0.1)), INF],
    ),
    (
        "{{.reg .pred %q; setp.neu.f32 %q, {a}, {b}; selp.f32 {d}, 0f3F800000, 0f00000000, %q;}}",
        "f",
        F,
        [NAN, 1, 1],
        [NAN, 1, 2],
        [0] * 3,
        [1, 0, 1],
    ),
    (
        "{{.reg .pred %q; setp.ne.f32 %q, {a}, {b}; selp.f32 {d}, 0f3F800000, 0f00000000, %q;}}",
        "f",
        F,
        [NAN, 1, 1],
        [NAN, 1, 2],
        [0] * 3,
        [0, 0, 1],
    ),
    (
        "{{.reg .pred %q, %w; setp.lt.s32 %q|%w, {a}, {b}; selp.s32 {d}, 1, 2, %w;}}",
        "r",
        S,
        [1, 3],
        [2, 2],
        [0, 0],
        [2, 1],
    ),
    (
        "{{.reg .b16 %l, %h; mov.b32 {{%l, %h}}, {a}; mov.b32 {d}, {{%h, %l}};}}",
        "r",
        U,
        [0x12345678],
        [0],
        [0],
        [0x56781234],
    ),
    ("add.cc.u32 {d}, {a}, {b}; addc.u32 {d}, {c}, 0;", "r", U, [2**32 - 1, 1], [1, 1], [7, 7], [8, 7]),
]
PTX_TYPE = {"r": ("b32", 4), "f": ("f32", 4), "rd": ("b64", 8), "fd": ("f64", 8)}


@pytest.mark.parametrize("row", ROWS, ids=[r[0].split(" ")[0] + f"-{n}" for n, r in enumerate(ROWS)])
@pytest.mark.parametrize("masked", [False, True], ids=["all-lanes", "some-lanes"])
def test_instruction_gives_what_the_isa_says(device: Any, row: Any, masked: bool) -> None:
    text, kind, dtype, a, b, c, expected = row
    name, size = PTX_TYPE[kind]
    ptx = (CASES / "lane.ptx").read_text()
    body = text.format(d=f"%{kind}4", a=f"%{kind}1", b=f"%{kind}2", c=f"%{kind}3")
    ptx = ptx.replace("TYPE", name).replace("SIZE", str(size)).replace("REG", kind).replace("BODY", body)
    lanes = len(a) if masked else 32

    def spread(values: Any) -> Any:
        return np.resize(np.array(values, dtype), 32)

    out = np.zeros(32, dtype)
    device.run(ptx, "lane", 1, 32, spread(a), spread(b), spread(c), out, np.uint32(lanes))
    want = spread(expected)
    want[lanes:] = 0
    if dtype in (F, D):
        bits = f"u{size}"
        same = (
            (out.view(bits) == want.view(bits))
            | (np.isnan(out) & np.isnan(want))
            | ((out == 0) & (want == 0))
        )
        assert same.all(), (out, want)
    else:
        np.testing.assert_array_equal(out, want)


def test_an_instruction_that_is_lacking_is_named(device: Any, launch_failed: Any, capfd: Any) -> None:
    ptx = (CASES / "lane.ptx").read_text().replace("TYPE", "b32").replace("SIZE", "4").replace("REG", "r")
    with pytest.raises(launch_failed):
        device.run(
            ptx.replace("BODY", "frobnicate.u32 %r4, %r1;"), "lane", 1, 32, *[np.zeros(32, U)] * 4, U(32)
        )
    assert REAL or "frobnicate.u32" in capfd.readouterr().out
