"""Expressions of generated kernels: for each type a table of the ways to make one, all of them defined for all operands."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

INTEGERS = ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")
FLOATS = ("f32", "f64")
HALVES = ("f16", "bf16")
TYPES = (*INTEGERS, *FLOATS, *HALVES)
# Types of variables by how often they occur.
COMMON = (*INTEGERS, "u32", "i32", "u32", "i32", "u64", "i64", *FLOATS, *FLOATS, *HALVES)

# A way to make an expression: its text, in which {u32} is an expression of that type, {T} one of the type that is made, {bool}
# a condition, {constant:N} a number below N, and T the type's name (as <T> or (T)).
Way = str

INTEGER: tuple[Way, ...] = (
    *("add({T}, {T})", "sub({T}, {T})", "mul({T}, {T})", "mad({T}, {T}, {T})", "neg({T})") * 2,
    *("(<T>)({T} & {T})", "(<T>)({T} | {T})", "(<T>)({T} ^ {T})", "(<T>)~{T}") * 2,
    "shl({T}, {u32})",
    "shr({T}, {u32})",
    "shl({T}, {constant:64})",
    "shr({T}, {constant:64})",
    "shl_far({T}, {u32} & 127)",
    "shr_far({T}, {u32} & 127)",
    "shr_far({T}, {u32})",
    "quotient({T}, {T})",
    "remainder_of({T}, {T})",
    "quotient({T}, (<T>){constant:100})",
    "remainder_of({T}, (<T>)({constant:1000} + 1))",
    "smaller({T}, {T})",
    "larger({T}, {T})",
    "magnitude({T})",
    "field({T}, {constant:64}, {constant:8})",
    "field({T}, {u32}, {u32})",
    "({bool} ? {T} : {T})",
    "(<T>)(({T} >> 2) + ({T} >> 2))",
    "(<T>){bool}",
    "(<T>)({T} & 7)",
)

SPECIFIC: dict[str, tuple[Way, ...]] = {
    "u8": ("(u8)({u16} >> 8)", "(u8)({u32} >> 24)"),
    "i8": ("(i8)({i32} >> 16)", "(i8)to_int({f16})"),
    "u16": ("(u16)((u32){u8} * (u32){u8})", "bits({f16})", "(u16)rotate({u32}, {u32})"),
    "i16": ("(i16)((i32){i8} * (i32){i8})", "(i16)({i64} >> 40)"),
    "u32": (
        "(u32){u16} * (u32){u16}",
        "mad((u32){u16}, (u32){u16}, {u32})",
        "__umulhi({u32}, {u32})",
        "(u32)__popc({u32})",
        "(u32)__popcll({u64})",
        "__brev({u32})",
        "__byte_perm({u32}, {u32}, {u32})",
        "__byte_perm({u32}, {u32}, {constant:65536})",
        "__funnelshift_l({u32}, {u32}, {u32})",
        "__funnelshift_r({u32}, {u32}, {u32})",
        "__funnelshift_lc({u32}, {u32}, {u32} & 63)",
        "__funnelshift_rc({u32}, {u32}, {u32} & 63)",
        "rotate({u32}, {u32})",
        "rotate({u32}, {constant:32})",
        "__usad({u32}, {u32}, {u32})",
        "__sad({i32}, {i32}, {u32})",
        "__umul24({u32}, {u32})",
        "__uhadd({u32}, {u32})",
        "__urhadd({u32}, {u32})",
        "__dp4a({u32}, {u32}, {u32})",
        "__dp2a_hi({u32}, {u32}, {u32})",
        "__vadd2({u32}, {u32})",
        "__vadd4({u32}, {u32})",
        "__vsub2({u32}, {u32})",
        "__vsub4({u32}, {u32})",
        "__vaddss2({u32}, {u32})",
        "__vaddus4({u32}, {u32})",
        "__vsubss4({u32}, {u32})",
        "__vabsdiffs4({u32}, {u32})",
        "__vabsdiffu2({u32}, {u32})",
        "__vavgs2({u32}, {u32})",
        "__vavgu4({u32}, {u32})",
        "__vmaxs2({u32}, {u32})",
        "__vminu4({u32}, {u32})",
        "__vcmpgts4({u32}, {u32})",
        "__vcmpeq2({u32}, {u32})",
        "__vsetltu4({u32}, {u32})",
        "(u32)bits({f32})",
        "(u32)(bits({f64}) >> 32)",
        "__float2uint_{rounding}({f32})",
        "__double2uint_{rounding}({f64})",
        "whole<u32>({f32})",
        "(u32)({u64} >> {constant:33})",
        "(u32)((u64){u32} * {u32} >> {constant:33})",
        "(u32)wide({u64}, {u64})",
    ),
    "i32": (
        "(i32){i16} * (i32){i16}",
        "mad((i32){i16}, (i32){i16}, {i32})",
        "__mulhi({i32}, {i32})",
        "__clz({i32})",
        "__clzll({i64})",
        "__ffs({i32})",
        "__ffsll({i64})",
        "__mul24({i32}, (i32)(i8){i32})",  # NVRTC takes the product for one that fits 31 bits
        "__hadd({i32}, {i32})",
        "__rhadd({i32}, {i32})",
        "__dp4a({i32}, {i32}, {i32})",
        "__dp2a_lo({i32}, {i32}, {i32})",
        "__float2int_{rounding}({f32})",
        "__double2int_{rounding}({f64})",
        "__float_as_int(one_nan({f32}))",
        "__double2hiint(one_nan({f64}))",
        "__double2loint(one_nan({f64}))",
        "whole<i32>({f32})",
        "whole<i32>({f64})",
        "to_int({f16})",
        "(i32)((i64){i32} * {i32} >> {constant:33})",
    ),
    "u64": (
        "(u64){u32} * {u32}",
        "mad((u64){u32}, (u64){u32}, {u64})",
        "__umul64hi({u64}, {u64})",
        "__brevll({u64})",
        "rotate({u64}, {u32})",
        "rotate({u64}, {constant:64})",
        "bits({f64})",
        "__float2ull_{rounding}({f32})",
        "__double2ull_{rounding}({f64})",
        "whole<u64>({f64})",
        "(u64){u32} << 32 | {u32}",
        "bits(wide_sum(wide({u64}, {u64}), wide({u64}, {u64})))",
        "bits(wide_difference(wide({u64}, {u64}), wide({u64}, {u64})))",
        "bits(wide_product(wide({u64}, {u64}), wide({u64}, {u64})))",
        "bits(wide_shift(wide({u64}, {u64}), {u32}))",
        "(u64)(wide({u64}, {u64}) >> ({u32} & 127))",
    ),
    "i64": (
        "(i64){i32} * {i32}",
        "mad((i64){i32}, (i64){i32}, {i64})",
        "__mul64hi({i64}, {i64})",
        "__float2ll_{rounding}({f32})",
        "__double2ll_{rounding}({f64})",
        "whole<i64>({f32})",
        "(i64)(wide({u64}, {u64}) < wide({u64}, {u64}))",
        "(i64){u32} - (i64){u32}",
    ),
    "f32": (
        *("{f32} + {f32}", "{f32} - {f32}", "{f32} * {f32}", "{f32} / {f32}", "fmaf({f32}, {f32}, {f32})") * 3,
        "{f32} * 0.5f + {f32} * 3.0f",
        "(f32)({i32} & 15) * 0.5f",  # halfway between whole numbers
        "sqrtf(fabsf({f32}))",
        "sqrtf({f32})",
        "min_of({f32}, {f32})",
        "max_of({f32}, {f32})",
        "fabsf({f32})",
        "-({f32})",
        "copysignf({f32}, one_nan({f32}))",
        "floorf({f32})",
        "ceilf({f32})",
        "truncf({f32})",
        "rintf({f32})",
        "__saturatef({f32})",
        "({bool} ? {f32} : {f32})",
        "({f32} < {f32} ? {f32} : {f32})",
        "__fadd_{rounding}({f32}, {f32})",
        "__fsub_{rounding}({f32}, {f32})",
        "__fmul_{rounding}({f32}, {f32})",
        "__fdiv_{rounding}({f32}, {f32})",
        "__fsqrt_{rounding}({f32})",
        "__frcp_{rounding}({f32})",
        "__fmaf_{rounding}({f32}, {f32}, {f32})",
        "__int2float_{rounding}({i32})",
        "__uint2float_{rounding}({u32})",
        "__ll2float_{rounding}({i64})",
        "__ull2float_{rounding}({u64})",
        "__double2float_{rounding}({f64})",
        "(f32){f64}",
        "__int_as_float({i32})",
        "to_float({f16})",
        "to_float({bf16})",
        "1.0f / {f32}",
    ),
    "f64": (
        *("{f64} + {f64}", "{f64} - {f64}", "{f64} * {f64}", "{f64} / {f64}", "fma({f64}, {f64}, {f64})") * 3,
        "(f64)({i32} & 15) * 0.5",
        "sqrt(fabs({f64}))",
        "min_of({f64}, {f64})",
        "max_of({f64}, {f64})",
        "fabs({f64})",
        "-({f64})",
        "copysign({f64}, one_nan({f64}))",
        "floor({f64})",
        "ceil({f64})",
        "trunc({f64})",
        "rint({f64})",
        "({bool} ? {f64} : {f64})",
        "__dadd_{rounding}({f64}, {f64})",
        "__dsub_{rounding}({f64}, {f64})",
        "__dmul_{rounding}({f64}, {f64})",
        "__ddiv_{rounding}({f64}, {f64})",
        "__dsqrt_{rounding}({f64})",
        "__drcp_{rounding}({f64})",
        "__fma_{rounding}({f64}, {f64}, {f64})",
        "__ll2double_{rounding}({i64})",
        "__ull2double_{rounding}({u64})",
        "(f64){f32}",
        "(f64){f32} * {f32}",
        "__longlong_as_double({i64})",
        "__hiloint2double({i32}, {i32})",
    ),
    "f16": (
        *("add({f16}, {f16})", "sub({f16}, {f16})", "mul({f16}, {f16})", "fused({f16}, {f16}, {f16})") * 2,
        "min_of({f16}, {f16})",
        "max_of({f16}, {f16})",
        "negative({f16})",
        "absolute({f16})",
        "to_f16({f32})",
        "to_f16({i32})",
        "({bool} ? {f16} : {f16})",
        "f16{(u16)({u16} & 0x7bff)}",
    ),
    "bf16": (
        *("add({bf16}, {bf16})", "sub({bf16}, {bf16})", "mul({bf16}, {bf16})", "fused({bf16}, {bf16}, {bf16})") * 2,
        "min_of({bf16}, {bf16})",
        "max_of({bf16}, {bf16})",
        "negative({bf16})",
        "absolute({bf16})",
        "to_bf16({f32})",
        "({bool} ? {bf16} : {bf16})",
        "bf16{(u16)({u16} & 0xbf7f)}",
    ),
    "bool": (
        *("({X} < {X})", "({X} <= {X})", "({X} == {X})", "({X} != {X})", "({X} >= {X})", "({X} > {X})") * 2,
        *("({F} < {F})", "({F} <= {F})", "({F} == {F})", "({F} != {F})", "!({F} >= {F})", "!({F} > {F})"),
        "({F} != {F} || {bool})",
        "({bool} && {bool})",
        "({bool} || {bool})",
        "({bool} != {bool})",
        "!{bool}",
        "(({u32} >> {constant:32} & 1) != 0)",
        "(({u64} & {u64}) == 0)",
        "below({f16}, {f16})",
        "equal({f16}, {f16})",
        "below({bf16}, {bf16})",
        "({i32} < (i32){i8})",
    ),
}  # fmt: skip

# What needs CUDA's library of device code, which clang alone does not bring.
WITH_LIBRARY: dict[str, tuple[Way, ...]] = {
    "f32": ("fmodf({f32}, {f32})", "roundf({f32})", "remainderf({f32}, {f32})", "ldexpf({f32}, {i32} & 127)", "nextafterf({f32}, {f32})"),
    "f64": ("fmod({f64}, {f64})", "round({f64})", "remainder({f64}, {f64})", "ldexp({f64}, {i32} & 511)", "nextafter({f64}, {f64})"),
    "i32": ("ilogbf(fabsf({f32}) + 1.0f)",),
    "u64": ("bits(wide({u64}, {u64}) / (i128)({u32} | 1))", "bits(wide({u64}, {u64}) % (wide(0, {u64}) + 3))"),
}  # fmt: skip


def constant(kind: str, chance: random.Random) -> str:
    """Return a constant of a type: a power of two and what lies beside it, a small or any number."""
    if kind in INTEGERS:
        width = int(kind[1:])
        value = chance.choice(
            (
                chance.randrange(8),
                (1 << chance.randrange(width)) + chance.randint(-1, 1),
                chance.getrandbits(width),
                -1,
            )
        ) % (1 << width)
        suffix = "ull" if width == 64 else "u"
        return f"(({kind})0x{value:x}{suffix})"
    if kind == "f16":
        return f"f16{{(u16)0x{chance.choice((0x3C00, 0x0001, 0x8000, 0x7BFF, 0x7C00, chance.getrandbits(15))):x}}}"
    if kind == "bf16":
        return f"bf16{{(u16)0x{chance.choice((0x3F80, 0x0001, 0x8000, 0x7F7F, 0x7F80, chance.getrandbits(15))):x}}}"
    value = chance.choice(
        (
            0.0,
            -0.0,
            1.0,
            -1.5,
            0.1,
            16777216.0,
            2.0**31,
            -1e-30,
            3e38,
            1e-42,
            2.0**63,
            chance.uniform(-100, 100),
        )
    )
    if kind == "f32":  # in hexadecimal: compilers do not agree on the rounding of decimal fractions
        return f"{struct.unpack('f', struct.pack('f', value))[0].hex()}f"
    return value.hex()


@dataclass
class Scope:
    """Names that an expression may use: variables by their type, and other ways by the type that they make."""

    variables: dict[str, list[str]] = field(default_factory=dict)
    ways: dict[str, list[Way]] = field(default_factory=dict)

    def inner(self) -> Scope:
        return Scope(
            {k: list(v) for k, v in self.variables.items()}, {k: list(v) for k, v in self.ways.items()}
        )

    def name(self, kind: str, text: str) -> None:
        self.variables.setdefault(kind, []).append(text)

    def way(self, kind: str, text: Way) -> None:
        self.ways.setdefault(kind, []).append(text)


class Expressions:
    """Makes expressions by chance; the same for the same generator of random numbers."""

    def __init__(self, chance: random.Random, library: bool) -> None:
        self._chance, self._library = chance, library

    def leaf(self, kind: str, scope: Scope) -> str:
        chance = self._chance
        if kind == "bool":
            return f"(({self.leaf('u32', scope)} & {1 << chance.randrange(6)}) != 0)"
        known = scope.variables.get(kind, [])
        if known and chance.random() < 0.75:
            return chance.choice(known)
        if chance.random() < 0.4:
            return constant(kind, chance)
        others = [k for k in INTEGERS if scope.variables.get(k)]
        if kind in INTEGERS and others:
            return f"({kind}){chance.choice(scope.variables[chance.choice(others)])}"
        if kind in FLOATS and others:
            return f"({kind}){chance.choice(scope.variables[chance.choice(others)])}"
        return constant(kind, chance)

    def make(self, kind: str, scope: Scope, depth: int) -> str:
        """Return an expression of a type (or ``bool``) whose tree is at most ``depth`` high."""
        chance = self._chance
        if depth <= 0 or chance.random() < 0.08:
            return self.leaf(kind, scope)
        own = scope.ways.get(kind, [])
        if own and chance.random() < 0.2:
            way = chance.choice(own)
        else:
            tables: list[tuple[Way, ...]] = []
            if kind in INTEGERS:
                tables += [INTEGER]
            if kind in SPECIFIC:
                tables += [SPECIFIC[kind]]
            if self._library and kind in WITH_LIBRARY and chance.random() < 0.1:
                tables = [WITH_LIBRARY[kind]]
            way = chance.choice(chance.choice(tables))
        return self.fill(way, kind, lambda k: self.make(k, scope, depth - 1))

    def fill(self, way: Way, kind: str, inner: Callable[[str], str]) -> str:
        """Return a way's text with its operands filled in."""
        chance = self._chance
        compared = chance.choice(INTEGERS)  # {X}: both sides of a comparison have one type
        floating = chance.choice(FLOATS)
        parts: list[str] = []
        rest = way.replace("<T>", kind) if kind in INTEGERS else way
        while True:
            before, brace, after = rest.partition("{")
            parts.append(before)
            if not brace:
                break
            name, _, rest = after.partition("}")
            if name == "T":
                parts.append(inner(kind))
            elif name == "X":
                parts.append(inner(compared))
            elif name == "F":
                parts.append(inner(floating))
            elif name == "rounding":
                parts.append(chance.choice(("rn", "rz", "ru", "rd")))
            elif name.startswith("constant:"):
                parts.append(str(chance.randrange(int(name[9:]))))
            elif name in TYPES or name == "bool":
                parts.append(inner(name))
            else:  # a brace of the text's own, as of f16{…}
                parts.append("{")
                rest = name + "}" + rest
        text = "".join(parts)
        return f"({kind})({text})" if kind in INTEGERS else f"({text})" if kind in (*FLOATS, "bool") else text
