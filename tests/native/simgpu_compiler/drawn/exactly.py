"""Arithmetic of halves by whole numbers of any length, rounded once: what f16 and bf16 instructions give by the PTX ISA.

Nothing here is computed in floating point, and nothing is taken from the simulated GPU.  A number is a fraction ``m / 2**e`` and a sign, which zeros
have, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """A format of floating-point numbers: its bits, and those behind the point."""

    bits: int
    fraction: int

    @property
    def exponents(self) -> int:
        """Return the number that all bits of the exponent are."""
        return (1 << (self.bits - 1 - self.fraction)) - 1

    @property
    def least(self) -> int:
        """Return the power of two that the last bit of a subnormal number is."""
        return 2 - (self.exponents >> 1) - 1 - self.fraction


FORMATS = {"f16": Format(16, 10), "bf16": Format(16, 7), "f32": Format(32, 23), "f64": Format(64, 52)}


@dataclass(frozen=True)
class Number:
    """A number ``± m * 2**e``, or an infinity (`m` -1), or none."""

    negative: bool
    m: int
    e: int = 0
    nan: bool = False

    @property
    def infinite(self) -> bool:
        """Return whether it is an infinity."""
        return self.m < 0

    def signed(self, e: int) -> int:
        """Return it as a multiple of ``2**e``."""
        return (-self.m if self.negative else self.m) << (self.e - e)


NOT_A_NUMBER = Number(False, 0, nan=True)


def decode(code: int, f: Format, ftz: bool = False) -> Number:
    """Return what bits mean."""
    negative, exponent, fraction = (
        bool(code >> (f.bits - 1)),
        code >> f.fraction & f.exponents,
        code & ((1 << f.fraction) - 1),
    )
    if exponent == f.exponents:
        return Number(negative, 0, nan=True) if fraction else Number(negative, -1)
    if not exponent:
        return Number(negative, 0 if ftz else fraction, f.least)
    return Number(negative, fraction | 1 << f.fraction, f.least + exponent - 1)


def encode(x: Number, f: Format, how: str = "rn", ftz: bool = False) -> int:
    """Return the bits of a number that is rounded to a format."""
    sign, top = int(x.negative) << (f.bits - 1), f.exponents << f.fraction
    if x.nan:
        return {16: 0x7FFF, 32: 0x7FFFFFFF, 64: 0x7FF8 << 48}[f.bits]
    if x.infinite:
        return sign | top
    if not x.m:
        return sign
    # The last place that the result has.
    last = max(f.least, x.e + x.m.bit_length() - 1 - f.fraction)
    shift = last - x.e
    if shift <= 0:
        quotient, rest, half = x.m << -shift, 0, 1
    else:
        quotient, rest, half = x.m >> shift, x.m & ((1 << shift) - 1), 1 << (shift - 1)
    away = {
        "rn": rest > half or (rest == half and quotient & 1),
        "rz": False,
        "rm": x.negative and rest,
        "rp": not x.negative and rest,
    }[how]
    quotient += bool(away)
    code = quotient + (
        (last - f.least) << f.fraction
    )  # the first bit of a normal number counts as one more of the exponent
    if code >= top:
        upwards = how == "rn" or (how == "rm" and x.negative) or (how == "rp" and not x.negative)
        return sign | (top if upwards else top - 1)
    if ftz and code < 1 << f.fraction:
        code = 0
    return sign | code


def plus(a: Number, b: Number) -> Number:
    """Return the sum."""
    if a.nan or b.nan or (a.infinite and b.infinite and a.negative != b.negative):
        return NOT_A_NUMBER
    if a.infinite or b.infinite:
        return a if a.infinite else b
    e = min(a.e, b.e)
    total = a.signed(e) + b.signed(e)
    return Number(total < 0 if total else a.negative and b.negative, abs(total), e)


def minus(a: Number, b: Number) -> Number:
    """Return the difference."""
    return plus(a, b if b.nan else Number(not b.negative, b.m, b.e))


def times(a: Number, b: Number) -> Number:
    """Return the product."""
    if a.nan or b.nan or (a.infinite and b.m == 0) or (b.infinite and a.m == 0):
        return NOT_A_NUMBER
    negative = a.negative != b.negative
    return Number(negative, -1) if a.infinite or b.infinite else Number(negative, a.m * b.m, a.e + b.e)


def fused(a: Number, b: Number, c: Number) -> Number:
    """Return product and sum, rounded by nothing."""
    return plus(times(a, b), c)


def _order(x: Number) -> tuple[int, int, int]:
    if x.infinite:
        return (-1 if x.negative else 1, 0, 0)
    value = x.signed(-1200)
    return (0, value, -1 if x.negative else 0)


def least(a: Number, b: Number, most: bool = False, nan: bool = False, xorsign: bool = False) -> Number:
    """Return the smaller (or greater) of two, of which a NaN is neither, though its sign counts."""
    negative = a.negative != b.negative
    if (nan and (a.nan or b.nan)) or (a.nan and b.nan):
        return NOT_A_NUMBER
    if xorsign:
        a, b = Number(False, a.m, a.e, a.nan), Number(False, b.m, b.e, b.nan)
    if a.nan or b.nan:
        found = b if a.nan else a
    else:
        found = max(a, b, key=_order) if most else min(a, b, key=_order)
    return Number(negative, found.m, found.e) if xorsign else found


def holds(comparison: str, a: Number, b: Number) -> bool:
    """Return whether a comparison is true: those that end in ``u`` are where a number is none."""
    if comparison in ("num", "nan"):
        return (a.nan or b.nan) == (comparison == "nan")
    if a.nan or b.nan:
        return len(comparison) == 3
    x, y = _order(a)[:2], _order(b)[:2]  # zeros are equal
    name = comparison[:2]
    return {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}[name]


def saturated(code: int, f: Format) -> set[int]:
    """Return a result that is kept between 0 and 1."""
    one = (f.exponents >> 1) << f.fraction
    x = decode(code, f)
    if x.nan or x.negative or x.m == 0:
        return {0} if x.nan or x.m else {0, code}
    return {min(code, one)}


def rectified(code: int, f: Format) -> set[int]:
    """Return a result that is not below 0."""
    x = decode(code, f)
    return {code} if x.nan or not x.negative else {0} if x.m else {0, code}


def whole(x: Number, how: str, bits: int, is_signed: bool, of: int) -> int:
    """Return a whole number, the nearest one that there is; of a NaN 0, or the highest bit where it or its source (`of` bits) has 64."""
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)
    if x.nan:
        return 1 << (bits - 1) if bits == 64 or of == 64 else 0
    if x.infinite:
        return (low if x.negative else high) & ((1 << bits) - 1)
    value = x.signed(min(x.e, 0))
    shift = -min(x.e, 0)
    down, rest = value >> shift, value & ((1 << shift) - 1)
    half = 1 << (shift - 1) if shift else 1
    up = {
        "rmi": 0,
        "rpi": rest > 0,
        "rzi": rest > 0 and value < 0,
        "rni": rest > half or (rest == half and shift and down & 1),
    }[how]
    return min(max(down + bool(up), low), high) & ((1 << bits) - 1)


TWO: dict[str, Callable[[Number, Number], Number]] = {"add": plus, "sub": minus, "mul": times}
