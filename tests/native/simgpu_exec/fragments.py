"""Fragments of matrices in the registers of a warp, by the formulas of the PTX ISA (9.7.14.5), and numbers as bits.

A fragment is an array ``(registers, 32)`` of unsigned integers; element ``i`` of a lane lies in register ``i // per_register``, low bits first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1}
BITS |= {"f64": 64, "f32": 32, "s32": 32}
Place = Callable[[int, int, int], tuple[int, int]]  # lane // 4, lane % 4, element -> row, column

# Multiplicand A, by rows, depth and bits.
A_PLACES: dict[tuple[int, int, int], Place] = {
    (16, 8, 16): lambda g, t, i: (g if i < 2 else g + 8, 2 * t + (i & 1)),
    (16, 16, 16): lambda g, t, i: (g if i < 2 or 4 <= i < 6 else g + 8, 2 * t + (i & 1) + (8 if i >= 4 else 0)),
    (16, 4, 32): lambda g, t, i: (g if i == 0 else g + 8, t),
    (16, 8, 32): lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4),
    (8, 4, 64): lambda g, t, i: (g, t),
    (16, 4, 64): lambda g, t, i: (g if i == 0 else g + 8, t),
    (16, 8, 64): lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4),
    (16, 16, 64): lambda g, t, i: (g if i % 2 == 0 else g + 8, i * 2 + t if i % 2 == 0 else i * 2 - 2 + t),
    (8, 16, 8): lambda g, t, i: (g, 4 * t + i),
    (16, 16, 8): lambda g, t, i: (g if i < 4 else g + 8, 4 * t + (i & 3)),
    (16, 32, 8): lambda g, t, i: (g if i < 4 or 8 <= i < 12 else g + 8, 4 * t + (i & 3) + (16 if i >= 8 else 0)),
    (8, 32, 4): lambda g, t, i: (g, 8 * t + i),
    (16, 32, 4): lambda g, t, i: (g if i < 8 else g + 8, 8 * t + (i & 7)),
    (16, 64, 4): lambda g, t, i: (g if i < 8 or 16 <= i < 24 else g + 8, 8 * t + (i & 7) + (32 if i >= 16 else 0)),
    (8, 128, 1): lambda g, t, i: (g, 32 * t + i),
    (16, 128, 1): lambda g, t, i: (g if i < 32 else g + 8, 32 * t + (i & 31)),
    (16, 256, 1): lambda g, t, i: (g if i < 32 or 64 <= i < 96 else g + 8, 32 * t + (i & 31) + (128 if i >= 64 else 0)),
}  # fmt: skip
# Multiplicand B, by depth and bits: the row; the column is lane // 4.
B_ROWS: dict[tuple[int, int], Callable[[int, int], int]] = {
    (8, 16): lambda t, i: 2 * t + i,
    (16, 16): lambda t, i: 2 * t + (i & 1) + (8 if i >= 2 else 0),
    (4, 32): lambda t, i: t,
    (8, 32): lambda t, i: t if i == 0 else t + 4,
    (4, 64): lambda t, i: t,
    (8, 64): lambda t, i: t + 4 * i,
    (16, 64): lambda t, i: t + 4 * i,
    (16, 8): lambda t, i: 4 * t + i,
    (32, 8): lambda t, i: 4 * t + (i & 3) + (16 if i >= 4 else 0),
    (32, 4): lambda t, i: 8 * t + i,
    (64, 4): lambda t, i: 8 * t + (i & 7) + (32 if i >= 8 else 0),
    (128, 1): lambda t, i: 32 * t + i,
    (256, 1): lambda t, i: 32 * t + (i & 31) + (128 if i >= 32 else 0),
}


def accumulator_place(g: int, t: int, i: int) -> tuple[int, int]:
    return (g if i < 2 else g + 8, 2 * t + (i & 1))


def to_bits(values: Any, kind: str) -> Any:
    """Numbers as the integers that registers hold of them."""
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16).astype(np.uint64)
    if kind == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint64)
    if kind in ("f32", "tf32"):
        return values.astype(np.float32).view(np.uint32).astype(np.uint64)
    if kind == "f64":
        return values.astype(np.float64).view(np.uint64)
    if kind in ("e4m3", "e5m2"):
        codes = np.array([eight_bits(code, kind) for code in range(128)])
        least = np.abs(codes[None, :] - np.abs(values).ravel()[:, None])
        code = np.nanargmin(np.where(np.isfinite(codes), least, np.nan), axis=1).reshape(values.shape)
        return (code | (values < 0) << 7).astype(np.uint64)
    return values.astype(np.int64).astype(np.uint64) & np.uint64((1 << BITS[kind]) - 1)


def eight_bits(code: int, kind: str) -> float:
    """The value of eight bits of floating point; NaN where the code says so."""
    mantissa, bias = (3, 7) if kind == "e4m3" else (2, 15)
    exponent, fraction = (code & 127) >> mantissa, code & ((1 << mantissa) - 1)
    if kind == "e4m3" and code & 127 == 127:
        return float("nan")
    if kind == "e5m2" and exponent == 31:
        return float("nan") if fraction else float("inf")
    value = (fraction + (1 << mantissa if exponent else 0)) * 2.0 ** (max(exponent, 1) - bias - mantissa)
    return -value if code & 128 else value


def _pack(codes: Any, kind: str, count: int, place: Place) -> Any:
    bits = BITS[kind]
    width = 64 if bits == 64 else 32
    per = width // bits
    registers = np.zeros((count // per, 32), np.uint64)
    for lane in range(32):
        for i in range(count):
            row, column = place(lane // 4, lane % 4, i)
            registers[i // per, lane] |= codes[row, column] << np.uint64(i % per * bits)
    return registers.astype(np.uint64 if bits == 64 else np.uint32)


def pack_a(codes: Any, kind: str) -> Any:
    m, k = codes.shape
    return _pack(codes, kind, m * k // 32, A_PLACES[m, k, BITS[kind]])


def pack_b(codes: Any, kind: str) -> Any:
    k, n = codes.shape
    row = B_ROWS[k, BITS[kind]]
    return _pack(codes, kind, k * n // 32, lambda g, t, i: (row(t, i), g))


def pack_c(codes: Any, kind: str) -> Any:
    m, n = codes.shape
    return _pack(codes, kind, m * n // 32, accumulator_place)


def unpack_c(registers: Any, kind: str, m: int) -> Any:
    """Return the values of an accumulator's registers, as the integers of ``to_bits``."""
    bits = BITS[kind]
    per = (64 if bits == 64 else 32) // bits
    codes = np.zeros((m, 8), np.uint64)
    for lane in range(32):
        for i in range(m * 8 // 32):
            word = np.uint64(registers[i // per, lane]) >> np.uint64(i % per * bits)
            codes[accumulator_place(lane // 4, lane % 4, i)] = word & np.uint64((1 << bits) - 1)
    return codes


def from_bits(codes: Any, kind: str) -> Any:
    if kind == "f16":
        return codes.astype(np.uint16).view(np.float16)
    if kind == "f32":
        return codes.astype(np.uint32).view(np.float32)
    if kind == "f64":
        return codes.view(np.float64)
    return codes.astype(np.uint32).view(np.int32)


def kernel(instruction: str, inputs: list[Any], outputs: int, width: int = 32, more: str = "") -> str:
    """One warp loads each input's registers, executes ``instruction`` on {0}, {1} … and {out}, and stores {out}.

    The parameters are the inputs and the output, arrays ``(registers, 32)``; ``more`` goes before the instruction.
    """
    names, loads, parameters = [], [], []
    declared = []
    for n, each in enumerate(inputs):
        bits = 8 * each.itemsize
        declared.append(f".reg .b{bits} %in{n}_<{len(each)}>;")
        names.append(", ".join(f"%in{n}_{i}" for i in range(len(each))))
        parameters.append(f".param .u64 p{n}")
        loads.append(f"ld.param.u64 %at, [p{n}]; mad.wide.u32 %at, %lane, {each.itemsize}, %at;")
        loads += [f"ld.global.b{bits} %in{n}_{i}, [%at+{i * 32 * each.itemsize}];" for i in range(len(each))]
    out = ", ".join(f"%out{i}" for i in range(outputs))
    stores = [f"st.global.b{width} [%at+{i * 4 * width}], %out{i};" for i in range(outputs)]
    text = instruction.format(*[f"{{{n}}}" for n in names], out=f"{{{out}}}")
    lines = "\n    ".join(
        [
            *declared,
            *loads,
            more,
            text,
            f"ld.param.u64 %at, [pout]; mad.wide.u32 %at, %lane, {width // 8}, %at;",
            *stores,
        ]
    )
    return f""".version 8.7
.target sm_90
.address_size 64
.visible .entry k({", ".join([*parameters, ".param .u64 pout"])}) {{
    .reg .b64 %at; .reg .b32 %lane; .reg .b{width} %out<{max(outputs, 1)}>; .reg .pred %p<4>; .reg .b32 %x<8>; .reg .b64 %y<8>;
    mov.u32 %lane, %laneid;
    {lines}
    ret;
}}
"""
