"""Integer, bit, video and selection instructions on special and random numbers, against plain Python integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.native.simgpu_exec.conftest import element
from tests.real_gpu import REAL

Reference = Callable[[int, int, int], int]


def signed(value: int, bits: int = 32) -> int:
    value %= 1 << bits
    return value - (1 << bits) if value >> (bits - 1) else value


def clamp(value: int, bits: int = 32, is_signed: bool = True) -> int:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)
    return max(low, min(high, value))


def s24(value: int) -> int:
    return signed(value, 24)


def halves(value: int, is_signed: bool = False) -> list[int]:
    parts = [value & 0xFFFF, value >> 16 & 0xFFFF]
    return [signed(p, 16) for p in parts] if is_signed else parts


def bytes_of(value: int, is_signed: bool = False) -> list[int]:
    parts = [value >> 8 * n & 0xFF for n in range(4)]
    return [signed(p, 8) for p in parts] if is_signed else parts


def join(parts: list[int]) -> int:
    bits = 32 // len(parts)
    return sum((p % (1 << bits)) << bits * n for n, p in enumerate(parts))


def by_halves(f: Callable[[int, int], int], is_signed: bool = False) -> Reference:
    return lambda a, b, c: join(
        [f(x, y) for x, y in zip(halves(a, is_signed), halves(b, is_signed), strict=True)]
    )


def by_bytes(f: Callable[[int, int], int], is_signed: bool = False) -> Reference:
    return lambda a, b, c: join(
        [f(x, y) for x, y in zip(bytes_of(a, is_signed), bytes_of(b, is_signed), strict=True)]
    )


def fns(mask: int, base: int, offset: int) -> int:
    base, offset = base & 31, signed(offset)
    if offset == 0:
        return base if mask >> base & 1 else -1
    found = [n for n in (range(base, 32) if offset > 0 else range(base, -1, -1)) if mask >> n & 1]
    return found[abs(offset) - 1] if abs(offset) <= len(found) else -1


def szext(a: int, b: int, clamped: bool, is_signed: bool) -> int:
    if clamped and b >= 32:
        return a
    width = b & 31
    kept = a & ((1 << width) - 1)
    return signed(kept, width) if is_signed and width else kept


def bmsk(start: int, width: int, clamped: bool) -> int:
    if not clamped:
        start, width = start & 31, width & 31
    return ((1 << width) - 1) << start if start < 32 else 0


def dot(a: int, b: int, c: int, wide: bool, a_signed: bool, b_signed: bool, high: bool = False) -> int:
    left = halves(a, a_signed) if wide else bytes_of(a, a_signed)
    right = bytes_of(b, b_signed)
    return signed(c) + sum(x * y for x, y in zip(left, right[2:] if high else right, strict=False))


def prmt(a: int, b: int, selection: int) -> int:
    source = [(b << 32 | a) >> 8 * n & 0xFF for n in range(8)]
    out = []
    for n in range(4):
        s = selection >> 4 * n & 15
        byte = source[s & 7]
        out.append((0xFF if byte & 0x80 else 0) if s & 8 else byte)
    return join(out)


def bfe(a: int, position: int, length: int, bits: int, is_signed: bool) -> int:
    position, length = position & 255, length & 255
    if length == 0:
        return 0
    sign = is_signed and a >> min(position + length - 1, bits - 1) & 1
    return sum(
        ((a >> (position + n) & 1) if n < length and position + n < bits else int(bool(sign))) << n
        for n in range(bits)
    )


def bfi(a: int, b: int, position: int, length: int, bits: int) -> int:
    position, length = position & 255, length & 255
    for n in range(length):
        if position + n < bits:
            b = b & ~(1 << (position + n)) | (a >> n & 1) << (position + n)
    return b


def remainder(kind: str, bits: int) -> Reference:
    def value(number: int) -> int:
        return signed(number, bits) if kind == "s" else number

    def of(a: int, b: int, c: int) -> int:
        return value(a) - _quotient(value(a), value(b)) * value(b) if b else -1

    return of


def carried(low: tuple[int, int], high: tuple[int, int], minus: bool = False) -> int:
    (a, b), (c, d) = low, high
    return (c - d - (a < b)) if minus else (c + d + (a + b >> 32))


#   instruction, bits of the operands, bits of the result, what it is
ROWS: list[tuple[str, int, int, Reference]] = [
    ("mad.hi.u16 %d, %a, %b, %c;", 16, 16, lambda a, b, c: (a * b >> 16) + c),
    ("mad.hi.s16 %d, %a, %b, %c;", 16, 16, lambda a, b, c: (signed(a, 16) * signed(b, 16) >> 16) + c),
    ("mad.lo.u16 %d, %a, %b, %c;", 16, 16, lambda a, b, c: a * b + c),
    ("mad.hi.u32 %d, %a, %b, %c;", 32, 32, lambda a, b, c: (a * b >> 32) + c),
    ("mad.hi.s32 %d, %a, %b, %c;", 32, 32, lambda a, b, c: (signed(a) * signed(b) >> 32) + c),
    ("mad.hi.sat.s32 %d, %a, %b, %c;", 32, 32, lambda a, b, c: clamp((signed(a) * signed(b) >> 32) + signed(c))),
    ("mul.hi.s64 %d, %a, %b;", 64, 64, lambda a, b, c: signed(a, 64) * signed(b, 64) >> 64),
    ("mul.hi.u64 %d, %a, %b;", 64, 64, lambda a, b, c: a * b >> 64),
    ("mul.wide.s32 %d, %a, %b;", 32, 64, lambda a, b, c: signed(a) * signed(b)),
    ("mul.wide.u16 %d, %a, %b;", 16, 32, lambda a, b, c: a * b),
    ("mul24.lo.s32 %d, %a, %b;", 32, 32, lambda a, b, c: s24(a) * s24(b)),
    ("mul24.hi.s32 %d, %a, %b;", 32, 32, lambda a, b, c: s24(a) * s24(b) >> 16),
    ("mul24.hi.u32 %d, %a, %b;", 32, 32, lambda a, b, c: (a % 2**24) * (b % 2**24) >> 16),
    ("mad24.lo.u32 %d, %a, %b, %c;", 32, 32, lambda a, b, c: (a % 2**24) * (b % 2**24) + c),
    ("mad24.hi.s32 %d, %a, %b, %c;", 32, 32, lambda a, b, c: (s24(a) * s24(b) >> 16) + c),
    ("mad24.hi.sat.s32 %d, %a, %b, %c;", 32, 32, lambda a, b, c: clamp((s24(a) * s24(b) >> 16) + signed(c))),
    ("sad.u16 %d, %a, %b, %c;", 16, 16, lambda a, b, c: c + abs(a - b)),
    ("sad.s64 %d, %a, %b, %c;", 64, 64, lambda a, b, c: c + abs(signed(a, 64) - signed(b, 64))),
    ("add.sat.s32 %d, %a, %b;", 32, 32, lambda a, b, c: clamp(signed(a) + signed(b))),
    ("sub.sat.s32 %d, %a, %b;", 32, 32, lambda a, b, c: clamp(signed(a) - signed(b))),
    ("abs.s64 %d, %a;", 64, 64, lambda a, b, c: abs(signed(a, 64))),
    ("neg.s16 %d, %a;", 16, 16, lambda a, b, c: -a),
    ("min.relu.s32 %d, %a, %b;", 32, 32, lambda a, b, c: max(0, min(signed(a), signed(b)))),
    ("max.relu.s16x2 %d, %a, %b;", 32, 32, by_halves(lambda x, y: max(0, x, y), True)),
    ("min.s16x2 %d, %a, %b;", 32, 32, by_halves(min, True)),
    ("max.u16x2 %d, %a, %b;", 32, 32, by_halves(max)),
    ("add.u16x2 %d, %a, %b;", 32, 32, by_halves(lambda x, y: x + y)),
    ("popc.b64 %x0, %a; mov.b32 %d, %x0;", 64, 32, lambda a, b, c: a.bit_count()),
    ("clz.b64 %d, %a;", 64, 32, lambda a, b, c: 64 - a.bit_length()),
    ("brev.b64 %d, %a;", 64, 64, lambda a, b, c: int(f"{a:064b}"[::-1], 2)),
    ("bfind.u64 %d, %a;", 64, 32, lambda a, b, c: a.bit_length() - 1),
    ("bfind.s32 %d, %a;", 32, 32, lambda a, b, c: (a if signed(a) >= 0 else ~a % 2**32).bit_length() - 1),
    ("bfind.shiftamt.u32 %d, %a;", 32, 32, lambda a, b, c: 32 - a.bit_length() if a else -1),
    ("and.b32 %x0, %b, 31; fns.b32 %d, %a, %x0, %c;", 32, 32, fns),
    ("and.b32 %x0, %c, 15; sub.s32 %x0, %x0, 8; and.b32 %x1, %b, 31; fns.b32 %d, %a, %x1, %x0;", 32, 32,
     lambda a, b, c: fns(a, b, c % 16 - 8)),
    ("szext.clamp.s32 %d, %a, %b;", 32, 32, lambda a, b, c: szext(a, b, True, True)),
    ("szext.clamp.u32 %d, %a, %b;", 32, 32, lambda a, b, c: szext(a, b, True, False)),
    ("szext.wrap.s32 %d, %a, %b;", 32, 32, lambda a, b, c: szext(a, b, False, True)),
    ("bmsk.clamp.b32 %d, %a, %b;", 32, 32, lambda a, b, c: bmsk(a, min(b, 64), True)),
    ("bmsk.wrap.b32 %d, %a, %b;", 32, 32, lambda a, b, c: bmsk(a, b, False)),
    ("bfe.u32 %d, %a, %b, %c;", 32, 32, lambda a, b, c: bfe(a, b, c, 32, False)),
    ("bfe.s32 %d, %a, %b, %c;", 32, 32, lambda a, b, c: bfe(a, b, c, 32, True)),
    ("cvt.u32.u64 %x0, %b; cvt.u32.u64 %x1, %c; and.b32 %x0, %x0, 255; and.b32 %x1, %x1, 255; bfe.s64 %d, %a, %x0, %x1;", 64, 64,
     lambda a, b, c: bfe(a, b, c, 64, True)),  # of 64 bits, other positions and lengths are no field's
    ("bfi.b32 %d, %a, %b, %c, 5;", 32, 32, lambda a, b, c: bfi(a, b, c, 5, 32)),
    ("bfi.b32 %d, %a, %b, 3, %c;", 32, 32, lambda a, b, c: bfi(a, b, 3, c, 32)),
    ("prmt.b32 %d, %a, %b, %c;", 32, 32, prmt),
    ("prmt.b32.f4e %d, %a, %b, %c;", 32, 32, lambda a, b, c: (b << 32 | a) >> 8 * (c & 3)),
    ("prmt.b32.rc8 %d, %a, %b, %c;", 32, 32, lambda a, b, c: join([bytes_of(a)[c & 3]] * 4)),
    ("prmt.b32.ecl %d, %a, %b, %c;", 32, 32, lambda a, b, c: join([bytes_of(a)[max(n, c & 3)] for n in range(4)])),
    ("prmt.b32.ecr %d, %a, %b, %c;", 32, 32, lambda a, b, c: join([bytes_of(a)[min(n, c & 3)] for n in range(4)])),
    ("prmt.b32.rc16 %d, %a, %b, %c;", 32, 32, lambda a, b, c: join([halves(a)[c & 1]] * 2)),
    ("shf.l.clamp.b32 %d, %a, %b, %c;", 32, 32, lambda a, b, c: (b << 32 | a) << min(c, 32) >> 32),
    ("shf.r.wrap.b32 %d, %a, %b, %c;", 32, 32, lambda a, b, c: (b << 32 | a) >> (c & 31)),
    ("cvt.u32.u16 %x0, %b; shl.b16 %d, %a, %x0;", 16, 16, lambda a, b, c: a << b),
    ("cvt.u32.u64 %x0, %b; shr.s64 %d, %a, %x0;", 64, 64, lambda a, b, c: signed(a, 64) >> min(b % 2**32, 64)),
    ("lop3.b32 %d, %a, %b, %c, 0x1d;", 32, 32, lambda a, b, c: sum(((0x1D >> ((a >> n & 1) * 4 + (b >> n & 1) * 2 + (c >> n & 1))) & 1) << n for n in range(32))),
    ("setp.ne.u32 %p1, %c, 0; lop3.and.b32 %x0|%p2, %a, %b, %c, 0x80, %p1; selp.b32 %d, %x0, 7, %p2;", 32, 32,
     lambda a, b, c: a & b & c or 7),
    ("setp.gt.s32 %p1, %c, 0; lop3.or.b32 _|%p2, %a, %b, %c, 0x80, !%p1; selp.b32 %d, 1, 0, %p2;", 32, 32,
     lambda a, b, c: int(bool(a & b & c) or signed(c) <= 0)),
    ("dp4a.u32.s32 %d, %a, %b, %c;", 32, 32, lambda a, b, c: dot(a, b, c, False, False, True)),
    ("dp4a.s32.u32 %d, %a, %b, %c;", 32, 32, lambda a, b, c: dot(a, b, c, False, True, False)),
    ("dp2a.lo.u32.s32 %d, %a, %b, %c;", 32, 32, lambda a, b, c: dot(a, b, c, True, False, True)),
    ("dp2a.hi.s32.u32 %d, %a, %b, %c;", 32, 32, lambda a, b, c: dot(a, b, c, True, True, False, True)),
    ("add.cc.u32 %x0, %a, %b; addc.u32 %d, %c, %a;", 32, 32, lambda a, b, c: carried((a, b), (c, a))),
    ("sub.cc.u32 %x0, %a, %b; subc.u32 %d, %c, %a;", 32, 32, lambda a, b, c: carried((a, b), (c, a), True)),
    ("add.cc.u32 %x0, %a, %b; addc.cc.u32 %x1, %b, %c; addc.u32 %d, 0, 0;", 32, 32,
     lambda a, b, c: ((c << 32 | b) + (b << 32 | a)) >> 64),
    ("mad.lo.cc.u32 %x0, %a, %b, %c; madc.hi.u32 %d, %a, %b, 0;", 32, 32, lambda a, b, c: a * b + c >> 32),
    ("mad.lo.cc.s32 %x0, %a, %b, %c; madc.hi.s32 %d, %a, %b, 0;", 32, 32, lambda a, b, c: signed(a) * signed(b) + c >> 32),
    ("add.cc.u64 %y0, %a, %b; addc.u64 %d, %c, 0;", 64, 64, lambda a, b, c: c + (a + b >> 64)),
    ("sub.cc.u64 %y0, %a, %b; subc.cc.u64 %y1, %c, %a; subc.u64 %d, 0, 0;", 64, 64,
     lambda a, b, c: -int((c << 64 | a) < (a << 64 | b))),
    ("mad.lo.cc.u64 %y0, %a, %b, %c; madc.hi.u64 %d, %a, %b, %c;", 64, 64, lambda a, b, c: (a * b + c >> 64) + c),
    ("div.s32 %d, %a, %b;", 32, 32, lambda a, b, c: -1 if b == 0 else _quotient(signed(a), signed(b))),
    ("div.u64 %d, %a, %b;", 64, 64, lambda a, b, c: -1 if b == 0 else a // b),
    # By nothing: unspecified, and all bits set on an H100, as NVIDIA's compiler has it for every architecture.
    *[(f"rem.{kind}{bits} %d, %a, %b;", bits, bits, remainder(kind, bits)) for kind in "us" for bits in (16, 32, 64)],
    ("slct.u32.s32 %d, %a, %b, %c;", 32, 32, lambda a, b, c: a if signed(c) >= 0 else b),
    ("set.lt.u32.s32 %d, %a, %b;", 32, 32, lambda a, b, c: -int(signed(a) < signed(b))),
    ("setp.hi.u32 %p1, %a, %b; selp.b32 %d, %a, %b, %p1;", 32, 32, lambda a, b, c: max(a, b)),
    ("setp.ne.s32 %p2, 0, 0; setp.lt.xor.s32 %p1|%p3, %a, %b, %p2; selp.b32 %d, 1, 2, %p1;", 32, 32,
     lambda a, b, c: 1 if signed(a) < signed(b) else 2),
    ("cvt.pack.sat.s16.s32 %d, %a, %b;", 32, 32, lambda a, b, c: join([clamp(signed(b), 16), clamp(signed(a), 16)])),
    ("cvt.pack.sat.u8.s32.b32 %d, %a, %b, %c;", 32, 32,
     lambda a, b, c: join([clamp(signed(b), 8, False), clamp(signed(a), 8, False), 0, 0]) | c << 16),
    ("cvt.pack.sat.s4.s32.b32 %d, %a, %b, %c;", 32, 32,
     lambda a, b, c: clamp(signed(b), 4) % 16 | clamp(signed(a), 4) % 16 << 4 | c << 8),
    ("cvt.sat.s8.s32 %x0, %a; mov.b32 %d, %x0;", 32, 32, lambda a, b, c: clamp(signed(a), 8)),
    ("cvt.sat.u16.s64 %h0, %a; cvt.u32.u16 %d, %h0;", 64, 32, lambda a, b, c: clamp(signed(a, 64), 16, False)),
    ("{ .reg .b8 %k<4>; mov.b32 {%k0, %k1, %k2, %k3}, %a; mov.b32 %d, {%k3, %k1, %k2, %k0}; }", 32, 32,
     lambda a, b, c: join([bytes_of(a)[n] for n in (3, 1, 2, 0)])),
    ("{ .reg .b128 %w; mov.b128 %w, {%a, %b}; mov.b128 {%y0, %y1}, %w; xor.b64 %y1, %y1, %c; add.u64 %d, %y0, %y1; }", 64, 64,
     lambda a, b, c: a + (b ^ c)),
    ("{ .reg .b16 %k<4>; mov.b64 {%k0, %k1, %k2, %k3}, %a; mov.b64 %d, {%k2, %k3, %k0, %k1}; }", 64, 64,
     lambda a, b, c: a >> 32 | a << 32),
    # video
    ("vabsdiff4.u32.u32.u32 %d, %a, %b, %c;", 32, 32, by_bytes(lambda x, y: abs(x - y))),
    ("vabsdiff4.u32.s32.s32.add %d, %a, %b, %c;", 32, 32,
     lambda a, b, c: c + sum(abs(x - y) for x, y in zip(bytes_of(a, True), bytes_of(b, True), strict=True))),
    ("vadd4.s32.s32.s32.sat %d, %a, %b, %c;", 32, 32, by_bytes(lambda x, y: clamp(x + y, 8), True)),
    ("vadd4.u32.u32.u32 %d.b20, %a, %b, %c;", 32, 32,
     lambda a, b, c: join([bytes_of(a)[0] + bytes_of(b)[0], bytes_of(c)[1], bytes_of(a)[2] + bytes_of(b)[2], bytes_of(c)[3]])),
    ("vsub2.s32.s32.s32.sat %d, %a, %b, %c;", 32, 32, by_halves(lambda x, y: clamp(x - y, 16), True)),
    ("vadd2.u32.u32.u32 %d, %a.h02, %b.h31, %c;", 32, 32,
     lambda a, b, c: join([halves(b)[0] + halves(a)[1], halves(a)[0] + halves(b)[1]])),
    ("vavrg4.u32.u32.u32 %d, %a, %b, %c;", 32, 32, by_bytes(lambda x, y: x + y + 1 >> 1)),
    ("vavrg2.s32.s32.s32 %d, %a, %b, %c;", 32, 32, by_halves(lambda x, y: x + y + (x + y >= 0) >> 1, True)),
    ("vset4.u32.u32.lt %d, %a, %b, %c;", 32, 32, by_bytes(lambda x, y: int(x < y))),
    ("vset2.s32.s32.ge.add %d, %a, %b, %c;", 32, 32,
     lambda a, b, c: c + sum(x >= y for x, y in zip(halves(a, True), halves(b, True), strict=True))),
    ("vmax4.s32.s32.s32 %d, %a, %b, %c;", 32, 32, by_bytes(max, True)),
    ("vmin2.u32.u32.u32 %d, %a, %b, %c;", 32, 32, by_halves(min)),
    ("vadd.s32.u32.s32.sat %d, %a, %b.h1;", 32, 32, lambda a, b, c: clamp(a + halves(b, True)[1])),
    ("vadd.u32.u32.u32 %d.b1, %a.b0, %b.b3, %c;", 32, 32,
     lambda a, b, c: c & ~0xFF00 | (bytes_of(a)[0] + bytes_of(b)[3]) % 256 << 8),
    ("vsub.s32.s32.s32.min %d, %a.b2, %b.b1, %c;", 32, 32,
     lambda a, b, c: min(bytes_of(a, True)[2] - bytes_of(b, True)[1], signed(c))),
    ("vabsdiff.u32.s32.s32.add %d, %a, %b, %c;", 32, 32, lambda a, b, c: abs(signed(a) - signed(b)) + c),
    ("vshl.u32.u32.u32.clamp %d, %a, %b;", 32, 32, lambda a, b, c: a << min(b, 32)),
    ("vshr.s32.s32.u32.wrap.add %d, %a, %b, %c;", 32, 32, lambda a, b, c: (signed(a) >> (b & 31)) + c),
    ("vmad.s32.s32.s32 %d, %a.b0, %b.h1, %c;", 32, 32, lambda a, b, c: bytes_of(a, True)[0] * halves(b, True)[1] + c),
    ("vmad.u32.u32.u32.po.shr7 %d, %a, %b, %c;", 32, 32, lambda a, b, c: a * b + c + 1 >> 7),
    ("vmad.s32.s32.s32.sat.shr15 %d, %a, %b, -%c;", 32, 32, lambda a, b, c: clamp(signed(a) * signed(b) - signed(c) >> 15)),
    ("vset.s32.s32.gt.max %d, %a, %b, %c;", 32, 32, lambda a, b, c: max(int(signed(a) > signed(b)), c)),
]  # fmt: skip


def _quotient(a: int, b: int) -> int:
    whole = abs(a) // abs(b)
    return whole if (a < 0) == (b < 0) else -whole


# Where NVIDIA's compiler (13.0, sm_90) has other results than the ISA says: it takes unsigned factors of 32 bits
# and a minimum's or maximum's C for signed ones, and the lowest offset for none.
OTHERWISE: dict[str, Reference] = {
    "fns.b32 %d, %a, %x0, %c": lambda a, b, c: c == 2**31,
    "vmad.u32": lambda a, b, c: max(a, b, c) >= 2**31,
    "vset.s32.s32.gt.max": lambda a, b, c: c >= 2**31,
}


def numbers(bits: int, seed: int) -> Any:
    random = np.random.default_rng(seed)
    top = 1 << bits
    special = [
        0,
        1,
        2,
        5,
        7,
        8,
        15,
        16,
        24,
        31,
        32,
        33,
        63,
        64,
        100,
        255,
        256,
        top - 1,
        top - 2,
        top // 2,
        top // 2 - 1,
    ]
    wild = [
        int(v) >> int(s)
        for v, s in zip(random.integers(0, 2**63, 150), random.integers(0, 63, 150), strict=True)
    ]
    wild += [int(v) % top for v in random.integers(0, 2**63, 150)]
    return random.permutation(np.array([v % top for v in special * 3 + wild], f"u{bits // 8}"))


@pytest.mark.parametrize("row", ROWS, ids=[r[0].split(" ")[0] + f"-{n}" for n, r in enumerate(ROWS)])
def test_instruction_on_integers(device: Any, row: tuple[str, int, int, Reference]) -> None:
    text, bits, out_bits, reference = row
    a, b, c = (numbers(bits, seed) for seed in (1, 2, 3))
    out = element(device, text, a, b, c, f"u{out_bits // 8}")
    otherwise = next((what for words, what in OTHERWISE.items() if words in text), None) if REAL else None
    for x, y, z, got in zip(a.tolist(), b.tolist(), c.tolist(), out.tolist(), strict=True):
        if otherwise and otherwise(x, y, z):
            continue
        want = reference(x, y, z) % (1 << out_bits)
        assert got == want, f"a={x:#x} b={y:#x} c={z:#x}: got {got:#x}, should be {want:#x}"
