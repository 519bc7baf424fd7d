"""Floating point by exact fractions: what IEEE 754 and the PTX ISA say a rounded result is, without any hardware's help."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

Value = Fraction | str  # a finite number, or "nan", "inf", "-inf", "-0"


@dataclass(frozen=True)
class Format:
    """A binary format: bits of precision, least exponent of a normal number, bits in all."""

    precision: int
    least: int
    bits: int

    @property
    def mantissa(self) -> int:
        return self.precision - 1

    @property
    def infinity(self) -> int:
        return ((1 << (self.bits - self.precision)) - 1) << self.mantissa

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def nan(self) -> int:
        return self.infinity | 1 << (self.mantissa - 1)

    def is_nan(self, code: int) -> bool:
        return (code & ~self.sign) > self.infinity

    def value(self, code: int, flush: bool = False) -> Value:
        negative, code = bool(code & self.sign), code & ~self.sign
        if code > self.infinity:
            return "nan"
        if code == self.infinity:
            return "-inf" if negative else "inf"
        exponent, fraction = code >> self.mantissa, code & ((1 << self.mantissa) - 1)
        if exponent == 0 and (flush or fraction == 0):
            return "-0" if negative else Fraction(0)
        number = fraction + (1 << self.mantissa) if exponent else fraction
        found = Fraction(number) * Fraction(2) ** (self.least - self.mantissa + max(exponent, 1) - 1)
        return -found if negative else found

    def code(self, value: Value, mode: str = "rn", flush: bool = False) -> int:
        """The number in this format: rn to nearest even, rz towards 0, rm down, rp up, rna to nearest away."""
        if isinstance(value, str):
            return {
                "nan": self.nan,
                "inf": self.infinity,
                "-inf": self.infinity | self.sign,
                "-0": self.sign,
            }[value]
        sign, size = (self.sign if value < 0 else 0), abs(value)
        if size == 0:
            return 0
        exponent = max(_exponent(size), self.least)
        ulp = Fraction(2) ** (exponent - self.mantissa)
        whole, rest = divmod(size, ulp)
        away = {"rz": False, "rm": value < 0, "rp": value > 0}.get(mode)
        if away is None:
            half = rest - ulp / 2
            away = half > 0 or (half == 0 and (mode == "rna" or whole % 2 == 1))
        if rest and away:
            whole += 1
        code = whole + ((exponent - self.least) << self.mantissa)  # a carry moves into the exponent by itself
        if code >= self.infinity:
            finite = mode == "rz" or (mode == "rm" and value > 0) or (mode == "rp" and value < 0)
            code = self.infinity - 1 if finite else self.infinity
        if flush and size < Fraction(2) ** self.least and code >> self.mantissa <= 1:
            code = 0
        return sign | int(code)


def _exponent(size: Fraction) -> int:
    guess = size.numerator.bit_length() - size.denominator.bit_length()
    return guess if Fraction(2) ** guess <= size else guess - 1


HALF, BRAIN = Format(11, -14, 16), Format(8, -126, 16)
SINGLE, DOUBLE = Format(24, -126, 32), Format(53, -1022, 64)


def negative(value: Value) -> bool:
    return value in ("-inf", "-0") or (isinstance(value, Fraction) and value < 0)


def number(value: Value) -> Fraction:
    return Fraction(0) if value == "-0" else Fraction(value)


def infinite(value: Value) -> bool:
    return value in ("inf", "-inf")


def add(a: Value, b: Value, mode: str = "rn") -> Value:
    if "nan" in (a, b) or (infinite(a) and infinite(b) and a != b):
        return "nan"
    if infinite(a):
        return a
    if infinite(b):
        return b
    total = number(a) + number(b)
    if total:
        return total
    if negative(a) and negative(b):
        return "-0"
    return "-0" if mode == "rm" and negative(a) != negative(b) else Fraction(0)


def multiply(a: Value, b: Value) -> Value:
    if "nan" in (a, b):
        return "nan"
    minus = negative(a) != negative(b)
    if infinite(a) or infinite(b):
        zero = (not infinite(a) and number(a) == 0) or (not infinite(b) and number(b) == 0)
        return "nan" if zero else ("-inf" if minus else "inf")
    product = number(a) * number(b)
    return product if product or not minus else "-0"


def divide(a: Value, b: Value) -> Value:
    if "nan" in (a, b) or (infinite(a) and infinite(b)):
        return "nan"
    minus = negative(a) != negative(b)
    if infinite(a):
        return "-inf" if minus else "inf"
    if infinite(b):
        return "-0" if minus else Fraction(0)
    if number(b) == 0:
        return "nan" if number(a) == 0 else ("-inf" if minus else "inf")
    return number(a) / number(b) if number(a) or not minus else "-0"


def fused(a: Value, b: Value, c: Value, mode: str = "rn") -> Value:
    return add(multiply(a, b), c, mode)


def negate(a: Value) -> Value:
    swapped = {"inf": "-inf", "-inf": "inf", "nan": "nan", "-0": Fraction(0)}
    if isinstance(a, str):
        return swapped[a]
    return -a if a else "-0"


def root(a: Value) -> Value:
    """The square root to 2**-400 relatively, or exactly: enough to round to any format here."""
    if a in ("nan", "inf", "-0"):
        return a
    if negative(a):
        return "nan"
    size = number(a)
    shift = 2 * (size.denominator.bit_length() + 400)
    scaled = (size.numerator << shift) // size.denominator
    floor = math.isqrt(scaled)
    exact = floor * floor * size.denominator == size.numerator << shift
    return Fraction(2 * floor + (0 if exact else 1), 2) / Fraction(2) ** (shift // 2)


def least(a: Value, b: Value, nan: bool = False, greatest: bool = False) -> Value:
    if "nan" in (a, b):
        return "nan" if nan or a == b else (b if a == "nan" else a)

    def key(v: Value) -> tuple[float, Fraction, int]:
        if infinite(v):
            return (-1 if v == "-inf" else 1, Fraction(0), 0)
        return (0, number(v), -1 if v == "-0" else 0)

    return (max if greatest else min)((a, b), key=key)


def clip(a: Value) -> Value:
    """Saturate as .sat does."""
    if a == "nan" or negative(a):
        return Fraction(0)
    return Fraction(1) if a == "inf" else min(number(a), Fraction(1))


def rectify(a: Value) -> Value:
    """Clamp to zero as .relu does."""
    return Fraction(0) if a != "nan" and negative(a) else a
