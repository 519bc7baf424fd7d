"""Kernels that are drawn, with memory: accesses of all spaces at addresses of all shapes, exchanges, nested loops, grids of all shapes.

``python -m tests.native.simgpu_compiler.test_drawn_memory SEED SECONDS`` draws kernels for so long, runs each in the interpreter and in
the compiled tier with all vectors that there are, and tells those that differ.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpukernel.native import simgpu_library
from tests.native.simgpu_compiler.conftest import SANITIZED, VECTORS, Tiers
from tests.native.simgpu_exec.conftest import Device

ELEMENTS = 1 << 16
"""Numbers of 64 bits in the array that is only read; addresses go from 4,096 bytes behind its beginning."""

KINDS = {"3": ["w", "y", "c", "r"], "6": ["x", "g", "m", "l"], "f": ["u", "u", "u", "f"], "e": ["v", "v", "v", "e"], "2": ["z", "z", "z", "s"]}  # fmt: skip
"""Registers of whole numbers and of floating-point numbers, by what their lanes share.

First those that all threads of a block share, then those that all lanes of a warp share, then lines, then any.  A result is computed
from its own kind and from those before it.
"""
COUNTS = {"w": 4, "y": 2, "c": 3, "r": 9, "x": 3, "g": 2, "m": 3, "l": 6, "u": 3, "f": 5, "v": 2, "e": 3, "z": 2, "s": 4}  # fmt: skip
TYPES = {"3": "u32", "6": "u64", "f": "f32", "e": "f64", "2": "u16"}
CONSTANTS = {"3": ["0", "1", "3", "7", "31", "-1", "-5", "100000", "0x80000000", "0x7fffffff"], "6": ["0", "3", "-1", "-9", "64", "0x123456789a", "0x8000000000000000"], "f": ["0f3FC00000", "0fBE99999A"], "e": ["0d3FF8000000000000"], "2": ["0", "1", "-1", "300", "0x8000"]}  # fmt: skip

# What an operation is, the kind of its result, and those of its operands; k is a small number, p a predicate.
LINES = [
    *((f"{name}.s32", "3", "33") for name in ("add", "sub", "mul.lo")), ("mad.lo.s32", "3", "333"), ("shl.b32", "3", "3k"), ("mov.b32", "3", "3"),
    *((f"{name}.s64", "6", "66") for name in ("add", "sub", "mul.lo")), ("mad.lo.s64", "6", "666"), ("shl.b64", "6", "6k"), ("mov.b64", "6", "6"),
    ("mul.wide.s32", "6", "33"), ("mul.wide.u32", "6", "33"), ("mad.wide.s32", "6", "336"), ("mad.wide.u32", "6", "336"), ("cvt.u32.u64", "3", "6"),
    ("cvt.s64.s32", "6", "3"), ("cvt.u64.u32", "6", "3"), ("cvt.u64.s32", "6", "3"), ("cvt.s64.u32", "6", "3"),
]  # fmt: skip
OPERATIONS = [
    *LINES,
    *((f"{name}.{sign}{bits}2".replace("62", "64"), bits, bits * 2) for name in ("div", "rem", "min", "max", "mul.hi") for sign in "us" for bits in "36"),
    *((f"{name}.b{bits}2".replace("62", "64"), bits, bits * 2) for name in ("and", "or", "xor") for bits in "36"),
    *((f"shr.{type_}", kind, kind + "3") for type_, kind in (("u32", "3"), ("s32", "3"), ("u64", "6"), ("s64", "6"))),
    ("shl.b32", "3", "33"), ("shl.b64", "6", "63"), ("not.b32", "3", "3"), ("not.b64", "6", "6"), ("neg.s32", "3", "3"), ("neg.s64", "6", "6"),
    ("abs.s32", "3", "3"), ("abs.s64", "6", "6"), ("clz.b32", "3", "3"), ("clz.b64", "3", "6"), ("popc.b32", "3", "3"), ("popc.b64", "3", "6"),
    ("brev.b32", "3", "3"), ("bfind.u32", "3", "3"), ("bfind.s64", "3", "6"), ("bfe.u32", "3", "3kk"), ("bfe.s32", "3", "3kk"), ("bfe.s32", "3", "333"),
    ("bfe.u64", "6", "6kk"), ("bfi.b32", "3", "33kk"), ("bfi.b64", "6", "66kk"), ("bfi.b32", "3", "3333"), ("prmt.b32", "3", "33s"), ("prmt.b32", "3", "333"),
    ("shf.l.wrap.b32", "3", "333"), ("shf.r.wrap.b32", "3", "33k"), ("shf.l.wrap.b32", "3", "33k"), ("shf.r.clamp.b32", "3", "333"),
    ("lop3.b32", "3", "333t"), ("lop3.b32", "3", "333t"), ("sad.u32", "3", "333"), ("mul24.lo.s32", "3", "33"), ("slct.s32.s32", "3", "333"),
    ("mad.hi.u32", "3", "333"), ("mad.hi.s64", "6", "666"), ("add.sat.s32", "3", "33"), ("sub.sat.s32", "3", "33"),
    *((f"{name}.{sign}16", "2", "22") for name in ("add", "sub", "mul.lo", "min", "max", "div", "rem") for sign in "us"), *((f"{name}.b16", "2", "22") for name in ("and", "or", "xor")),
    ("not.b16", "2", "2"), ("neg.s16", "2", "2"), ("shl.b16", "2", "23"), ("shr.u16", "2", "2k"), ("shr.s16", "2", "23"), ("mad.lo.s16", "2", "222"), ("selp.b16", "2", "22p"),
    *((f"{name}.wide.{sign}16", "3", operands) for name, operands in (("mul", "22"), ("mad", "223")) for sign in "us"), ("cvt.u16.u32", "2", "3"), ("cvt.u16.u64", "2", "6"),
    ("cvt.u32.u16", "3", "2"), ("cvt.s32.s16", "3", "2"), ("cvt.u64.u16", "6", "2"), ("cvt.s64.s16", "6", "2"), ("cvt.s16.s8", "2", "2"), ("cvt.sat.u8.s16", "2", "2"),
    ("mov.b32", "3", "{22}"), ("mov.b64", "6", "{33}"), ("mov.b64", "6", "{2222}"), ("mov.b32", "2>", "3"), ("mov.b64", "3>", "6"),
    ("selp.b32", "3", "33p"), ("selp.b64", "6", "66p"), ("selp.f32", "f", "ffp"), ("selp.f64", "e", "eep"),
    *((f"{name}.{TYPES[kind]}", kind, kind * 2) for name in ("add.rn", "sub.rn", "mul.rn", "div.rn", "min", "max") for kind in "fe"),
    *((f"fma.rn.{TYPES[kind]}", kind, kind * 3) for kind in "fefe"), *((f"{name}.{TYPES[kind]}", kind, kind) for name in ("neg", "abs", "mov") for kind in "fe"),
]  # fmt: skip
CONVERSIONS = [
    *((f"cvt{sat}.{narrow}.{wide}", "3" if "32" in wide else "6", "3" if "32" in wide else "6") for sat in ("", ".sat") for narrow in ("u8", "s8", "u16", "s16") for wide in ("s32", "u32", "s64", "u64")),
    ("cvt.sat.u32.s32", "3", "3"), ("cvt.sat.s32.u32", "3", "3"), ("cvt.sat.s32.s64", "3", "6"), ("cvt.sat.u32.u64", "3", "6"),
    *((f"cvt.{how}{sat}.{to}.{of}", "3" if "32" in to else "6", "f" if of == "f32" else "e") for how in ("rni", "rzi", "rmi", "rpi") for sat in ("", ".sat") for to in ("s32", "u32", "s64", "u64") for of in ("f32", "f64")),
    *((f"cvt.{how}.{to}.{of}", "f" if to == "f32" else "e", "3" if "32" in of else "6") for how in ("rn", "rz", "rm", "rp") for of in ("s32", "u32", "s64", "u64") for to in ("f32", "f64")),
    *((f"cvt.{how}.f32.f64", "f", "e") for how in ("rn", "rz", "rm", "rp")), ("cvt.f64.f32", "e", "f"), ("cvt.rni.f32.f32", "f", "f"), ("cvt.rzi.f64.f64", "e", "e"),
    ("cvt.rn.sat.f32.s32", "f", "3"), ("cvt.sat.f32.f32", "f", "f"),
]  # fmt: skip
COMPARISONS = [(f"{how}.{type_}", kind) for how in ("eq", "ne", "lt", "le", "gt", "ge") for type_, kind in (("s32", "3"), ("u32", "3"), ("s64", "6"), ("u64", "6"), ("f32", "f"), ("f64", "e"))] + [("lt.s16", "2"), ("ge.u16", "2"), ("gtu.f32", "f"), ("num.f64", "e"), ("hi.u32", "3"), ("ls.u64", "6")]  # fmt: skip
ATOMICS = ["add.u32", "add.u64", "min.s32", "max.u32", "max.s64", "and.b32", "or.b64", "xor.b32", "exch.b32", "exch.b64", "inc.u32", "dec.u32", "cas.b32", "cas.b64"]  # fmt: skip
COMMUTE = ["add.u32", "add.u64", "min.s32", "max.u32", "max.s64", "and.b32", "or.b64", "xor.b32"]
# Types of numbers in memory, and the kinds of registers that may have them.
NARROW = {"u8": "236", "s8": "236", "u16": "236", "s16": "236", "b16": "2", "u32": "36", "s32": "36", "b32": "3", "u64": "6", "b64": "6"}  # fmt: skip
OWN = {"global": [32, 16, 8, 4, 2, 1], "shared": [16, 8, 4]}
"""Bytes that each thread has of its own in some arrays, one behind the other."""
LOCAL = 32


def _size(type_: str) -> int:
    return int(type_[1:]) // 8


class Drawing:
    """One kernel, and how it is launched."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        chance = self.chance
        self.block = chance.choice([(1, 1, 1), (2, 1, 1), (3, 1, 1), (31, 1, 1), (32, 1, 1), (33, 1, 1), (64, 1, 1), (96, 1, 1), (100, 1, 1), (8, 8, 1), (32, 2, 2), (5, 7, 1), (16, 2, 3), (128, 1, 1), (256, 1, 1), (1024, 1, 1)])  # fmt: skip
        self.threads = self.block[0] * self.block[1] * self.block[2]
        grid: list[tuple[int, int, int]] = [(1, 1, 1), (3, 1, 1), (17, 1, 1), (2, 3, 2), (5, 1, 3), (70, 1, 1), (130, 1, 1), (33, 2, 2), (1, 65, 1), (300, 1, 1), (3000, 1, 1), (700, 2, 2)]  # fmt: skip
        self.grid = chance.choice(
            [each for each in grid if each[0] * each[1] * each[2] * self.threads <= 12000]
        )
        self.all = self.threads * self.grid[0] * self.grid[1] * self.grid[2]
        numbers = [0, 1, 5, 1000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, chance.getrandbits(32)]
        self.parameters = [
            np.uint32(chance.randint(1, 3)),
            np.uint32(chance.choice(numbers)),
            bytes(chance.getrandbits(8) for _ in range(48)),
            np.uint64(chance.choice(numbers) << chance.choice([0, 0, 7, 32])),
        ]
        self.fresh = 0
        self.labels = 0
        self.recent: dict[str, tuple[int, str]] = {}
        # Whose place in the arrays where each thread has its own a thread has; such addresses that all of it uses.
        self.turned = (
            chance.choice([1, 3, 4, 16, 31]) if self.threads % 32 == 0 and chance.random() < 0.6 else 0
        )
        self.hoisted: list[tuple[str, int, str]] = []
        self.same_flow = True  # all threads of a block come here together
        self.all_live = True
        self.pools: dict[str, list[list[str]]] = {kind: [[], [], [], []] for kind in KINDS}
        for kind, names in KINDS.items():
            for rank, name in enumerate(names):
                if rank == 0 or names[rank - 1] != name:
                    self.pools[kind][rank] += [f"%{name}{n}" for n in range(COUNTS[name])]
        self.text = self._write()

    @contextmanager
    def _scope(self, same_flow: bool) -> Iterator[None]:
        """Leave out behind it what was written inside for the first time."""
        kept = {kind: [list(pool) for pool in pools] for kind, pools in self.pools.items()}
        flow, self.same_flow = self.same_flow, self.same_flow and same_flow
        yield
        self.pools, self.same_flow = kept, flow
        self.recent = {}

    def new(self, kind: str) -> str:
        self.fresh += 1
        return f"%{'h' if kind == '3' else 'i'}{self.fresh}"

    def source(self, kind: str, rank: int) -> str:
        chance = self.chance
        if kind == "k":
            return str(chance.choice([0, 1, 2, 3, 5, 8, 20, 31]))
        if kind in "st":
            return hex(chance.getrandbits(16) & 0x7777 if kind == "s" else chance.getrandbits(8))
        if kind == "p":
            return f"%q{chance.randrange(2)}" if rank < 2 else f"%p{chance.randrange(4)}"
        last = self.recent.get(kind)
        if last and last[0] <= rank and chance.random() < 0.4:
            return last[1]
        if chance.random() < 0.15:
            return chance.choice(CONSTANTS[kind])
        pools = [pool for pool in self.pools[kind][: rank + 1] if pool]
        return chance.choice(chance.choice(pools) if chance.random() < 0.6 else pools[-1])

    def operation(self, ranks: tuple[int, ...] = (0, 1, 2, 3, 3, 3)) -> str:
        chance = self.chance
        rank = chance.choice(ranks)
        if rank == 0 and not self.same_flow:
            rank = 1
        if chance.random() < 0.12:
            how, kind = chance.choice(COMPARISONS)
            to = f"%p{chance.randrange(4)}"
            if rank == 0:
                to = f"%q{chance.randrange(2)}"
            guard = (
                f"@{chance.choice(['', '!'])}%{to[1]}{chance.randrange(2)} " if chance.random() < 0.2 else ""
            )
            return f"{guard}setp.{how} {to}, {self.source(kind, rank)}, {self.source(kind, rank)};"
        if chance.random() < 0.03:
            if rank == 0:
                return f"{chance.choice(['and', 'or', 'xor'])}.pred %q{chance.randrange(2)}, %q0, %q1;"
            names = [chance.choice(["%p0", "%p1", "%p2", "%p3", "%q0", "%q1"]) for _ in range(2)]
            return f"{chance.choice(['and', 'or', 'xor'])}.pred %p{chance.randrange(4)}, {', '.join(names)};"
        of = (
            LINES
            if rank == 2 or chance.random() < 0.25
            else CONVERSIONS
            if chance.random() < 0.12
            else OPERATIONS
        )
        name, kind, operands = chance.choice(of)
        if kind[-1] == ">":  # to two registers, the halves of one
            kind, whole = kind[0], self.source(operands, 3)
            if whole[0] == "%":
                self.recent = {}
                names = self.chance.sample(
                    [f"%{KINDS[kind][3]}{n}" for n in range(COUNTS[KINDS[kind][3]])], 2
                )
                return f"{name} {{{', '.join(names)}}}, {whole};"
            name, kind, operands = "not.b32", "3", "3"
        values = [self.source(each, rank) for each in operands.strip("{}")]
        if operands[0] == "{":
            if any(each[0] != "%" for each in values):
                values = [self.pools[each][3][0] for each in operands.strip("{}")]
            values = ["{" + ", ".join(values) + "}"]
        guard = ""
        if kind in "36" and chance.random() < (1 if rank == 2 else 0.25):
            to = self.new(kind)
            self.pools[kind][rank].append(to)
        else:
            if kind in "fe2" and rank in (1, 2):
                rank = 3
            if rank != 2 and chance.random() < 0.12:
                guard = f"@{chance.choice(['', '!'])}%q{chance.randrange(2)} "
                if rank == 3 and chance.random() < 0.6:
                    guard = f"@{chance.choice(['', '!'])}%p{chance.randrange(4)} "
            to = f"%{KINDS[kind][rank]}{chance.randrange(COUNTS[KINDS[kind][rank]])}"
        self.recent[kind] = rank, to
        return f"{guard}{name} {to}, {', '.join(values)};"

    def result(self, kind: str, rank: int = 3) -> str:
        if rank == 0 and not self.same_flow:
            rank = 1
        if kind in "fe2" and rank < 3 and not self.same_flow:
            rank = 3
        name = KINDS[kind][rank]
        to = f"%{name}{self.chance.randrange(COUNTS[name])}"
        self.recent[kind] = rank, to
        return to

    def own_address(self, at: str) -> tuple[list[str], int]:
        """Write what the address of a thread's own bytes in global memory is; their number."""
        n = self.chance.randrange(len(OWN["global"]))
        before, step = sum(OWN["global"][:n]) * self.all, OWN["global"][n]
        return [f"mad.wide.u32 {at}, %where, {step}, %d2; add.u64 {at}, {at}, {before};"], step

    def own_shared_address(self, at: str) -> tuple[list[str], int]:
        """Write the same of shared memory."""
        n = self.chance.randrange(len(OWN["shared"]))
        before, step = sum(OWN["shared"][:n]) * self.threads, OWN["shared"][n]
        return [f"mov.u64 %d9, s; add.u64 %d9, %d9, {before}; mad.wide.u32 {at}, %mine, {step}, %d9;"], step

    def access(self) -> list[str]:
        """Write some accesses through one address."""
        chance = self.chance
        what = chance.choice(["line", "line", "line", "block", "any", "any", "own", "own", "own", "shared", "shared", "shared any", "local", "param", "generic"])  # fmt: skip
        self.fresh += 1
        at, index = f"%i{self.fresh}", f"%h{self.fresh}"
        lines, space, room, own, align, rank = [], "global", 256, False, 16, 3
        if self.hoisted and chance.random() < 0.2:
            at, room, space = chance.choice(self.hoisted)
            own, align = True, room
        elif what == "line":
            step = chance.choice([1, 2, 4, 8, 16, 32, 12])
            align = 4 if step == 12 else min(step, 16)
            lines += chance.choice([[f"mad.wide.u32 {at}, %id, {step}, %d0;"], [f"mul.lo.u32 {index}, %id, {step}; cvt.u64.u32 {at}, {index}; add.u64 {at}, {at}, %d0;"]])  # fmt: skip
        elif what == "block":
            rank = chance.choice([0, 3])
            lines.append(f"and.b32 {index}, {self.source('3', 0)}, 255; mad.wide.u32 {at}, {index}, 16, %d0;")
        elif what == "any":
            align = chance.choice([4, 8, 16])
            lines.append(
                f"and.b32 {index}, {self.source('3', 3)}, 1023; mad.wide.u32 {at}, {index}, {align}, %d0;"
            )
        elif what == "own":
            own = True
            lines, room = self.own_address(at)
        elif what == "shared":
            own, space = True, "shared"
            lines, room = self.own_shared_address(at)
            if chance.random() < 0.5:
                lines.append(f"cvt.u32.u64 {index}, {at};")
                at = index
        elif what == "shared any":  # which nobody writes meanwhile
            space, align = "shared", chance.choice([4, 8, 16])
            some = self.source("3", chance.choice([0, 2, 3, 3]))
            if chance.random() < 0.3:
                align = 4
                lines.append(f"mov.u32 {index}, q; mad.lo.u32 {index}, %t, 4, {index};")
            else:
                lines.append(f"and.b32 %z, {some}, 255; mad.lo.u32 {index}, %z, {align}, %q;")  # fmt: skip
            at = index
        elif what in ("local", "param"):
            own, room, space = what == "local", 16, what
            base = "d" if what == "local" else "some"
            lines.append(f"and.b32 {index}, {self.source('3', chance.choice([0, 3]))}, 1; mul.lo.u32 {index}, {index}, 16; cvt.u64.u32 {at}, {index}; mov.u64 %d9, {base}; add.u64 {at}, {at}, %d9;")  # fmt: skip
        else:
            own, space = True, ""
            lines, room = chance.choice([self.own_address, self.own_shared_address])(at)
            if "mov.u64" in lines[0]:
                lines.append(f"cvta.shared.u64 {at}, {at};")
        align = min(align, room)
        point = f".{space}" if space else ""
        many = chance.choice([1, 1, 2, 3, 5])
        moves = what in ("line", "any", "shared any") and not own
        room = 128 if moves else room
        for _ in range(many):
            type_ = chance.choice([each for each in NARROW if _size(each) <= align])
            if space == "shared" and align >= 4 and chance.random() < 0.6:
                type_ = "u32"
            if moves and chance.random() < 0.2:
                lines.append(f"add.u{32 if at == index else 64} {at}, {at}, {chance.choice([16, 32])};")
            kind = chance.choice(NARROW[type_])
            count = chance.choice([1, 1, 1, 2, 4])
            while _size(type_) * count > align:
                count //= 2
            whole = _size(type_) * count
            offset = chance.randrange(room // whole) * whole
            if space == "global" and not own and chance.random() < 0.3:
                offset = -offset
            place = f"[{at}+{offset}]"
            guard = (
                f"@{chance.choice(['', '!'])}{chance.choice(['%p0', '%p1', '%p2', '%q0'])} "
                if chance.random() < 0.15
                else ""
            )
            if guard or count > 1:
                rank = 3
            if own and chance.random() < 0.45:
                values = [self.source(kind, 3) for _ in range(count)]
                values = [each if each[0] == "%" else self.pools[kind][3][0] for each in values]
                name = f"st{point}"
            else:
                values = [self.result(kind, rank) for _ in range(count)]
                if len(set(values)) < count:
                    values = [f"%{KINDS[kind][3]}{n}" for n in range(count)]
                if count > 1 and chance.random() < 0.1:
                    values[chance.randrange(count)] = "_"
                name = f"ld{point}"
            if count == 1:
                text = (
                    f"{name}.{type_} {values[0]}, {place};"
                    if name[0] == "l"
                    else f"{name}.{type_} {place}, {values[0]};"
                )
            else:
                listed = "{" + ", ".join(values) + "}"
                text = (
                    f"{name}.v{count}.{type_} {listed}, {place};"
                    if name[0] == "l"
                    else f"{name}.v{count}.{type_} {place}, {listed};"
                )
            lines.append(guard + text)
            if chance.random() < 0.3:
                lines.append(self.operation())
        return lines

    def float_access(self) -> list[str]:
        chance, kind = self.chance, self.chance.choice("fe")
        type_, step = TYPES[kind], 4 if kind == "f" else 8
        self.fresh += 1
        at, rank = f"%i{self.fresh}", chance.choice([0, 2, 3])
        index = self.source("3", rank) if rank != 2 else "%id"
        self.fresh += 1
        lines = [f"and.b32 %h{self.fresh}, {index}, 4095; mad.wide.u32 {at}, %h{self.fresh}, {step}, %d0;"] if rank != 2 else [f"mad.wide.u32 {at}, %id, {step}, %d0;"]  # fmt: skip
        for _ in range(chance.choice([1, 2, 4])):
            lines.append(
                f"ld.global.{type_} {self.result(kind, 0 if rank == 0 else 3)}, [{at}+{8 * chance.randrange(40)}];"
            )
            if chance.random() < 0.5:
                lines.append(self.operation())
        return lines

    def atomic(self) -> list[str]:
        chance = self.chance
        what = chance.choice(["own", "own shared", "all", "all shared"])
        name = chance.choice(ATOMICS if what.startswith("own") else COMMUTE)
        kind = "6" if name.endswith("64") else "3"
        self.fresh += 1
        at, index = f"%i{self.fresh}", f"%h{self.fresh}"
        some = self.source("3", 3)
        lines = {
            "own": [f"mad.wide.u32 {at}, %where, 32, %d2;"],
            "own shared": [
                f"mov.u64 {at}, s; mad.wide.u32 {at}, %mine, 16, {at}; cvta.shared.u64 {at}, {at};"
            ],
            "all": [f"and.b32 {index}, {some}, 7; mad.wide.u32 {at}, {index}, 8, %d7;"],
            "all shared": [
                f"and.b32 {index}, {some}, 7; mov.u64 {at}, a; mad.wide.u32 {at}, {index}, 8, {at}; cvta.shared.u64 {at}, {at};"
            ],
        }[what]
        # One operation for each place, or their order would tell.
        if not what.startswith("own"):
            number = COMMUTE.index(name)
            lines.append(f"add.u64 {at}, {at}, {64 * number};")
        point = chance.choice(["", ".shared" if "shared" in what else ".global"])
        if point == ".shared":
            lines.append(f"cvta.to.shared.u64 {at}, {at};")
        guard = (
            f"@{chance.choice(['', '!'])}{chance.choice(['%p0', '%p1', '%q0'])} "
            if chance.random() < 0.2
            else ""
        )
        values = [
            self.source(kind, chance.choice([0, 2, 3, 3])) for _ in range(2 if name.startswith("cas") else 1)
        ]
        if (what.startswith("own") and chance.random() < 0.7) or name[:3] in ("cas", "exc"):
            lines.append(f"{guard}atom{point}.{name} {self.result(kind)}, [{at}], {', '.join(values)};")
        else:
            lines.append(f"{guard}red{point}.{name} [{at}], {', '.join(values)};")
        return lines

    def exchange(self) -> list[str]:
        """Write what a warp's lanes do together."""
        chance = self.chance
        what = chance.choice(["shfl", "shfl", "vote", "ballot", "redux", "match", "shared"] if self.all_live else ["vote", "ballot", "redux", "match"])  # fmt: skip
        some = self.source("3", chance.choice([0, 2, 3, 3]))
        if what == "shfl" and self.threads % 32 == 0:  # what lanes give that are not there nobody says
            mode = chance.choice(["up", "down", "bfly", "idx"])
            by = chance.choice([str(chance.randrange(32)), self.source("3", chance.choice([0, 3]))])
            last = chance.choice(
                ["0" if mode == "up" else "31", "0x1c00" if mode == "up" else "0x1c03", self.source("3", 0)]
            )
            to = self.result("3") + (f"|%p{chance.randrange(4)}" if chance.random() < 0.5 else "")
            return [f"shfl.sync.{mode}.b32 {to}, {some}, {by}, {last}, -1;"]
        if what == "vote":
            return [f"vote.sync.{chance.choice(['any', 'all', 'uni'])}.pred %p{chance.randrange(4)}, {chance.choice(['', '!'])}{chance.choice(['%p0', '%p1', '%q1'])}, -1;"]  # fmt: skip
        if what in ("ballot", "shfl"):
            return [
                f"vote.sync.ballot.b32 {self.result('3', chance.choice([1, 3]))}, %p{chance.randrange(4)}, -1;"
            ]
        if what == "redux":
            return [f"redux.sync.{chance.choice(['add.u32', 'min.s32', 'max.u32', 'min.u32', 'max.s32', 'and.b32', 'or.b32', 'xor.b32'])} {self.result('3', chance.choice([1, 3]))}, {some}, -1;"]  # fmt: skip
        if what == "match":
            return [f"and.b32 %h0, {some}, 3; match.any.sync.b32 {self.result('3')}, %h0, -1;"]
        # To the next thread, by shared memory that nobody reads or writes meanwhile.
        self.fresh += 1
        a, b = f"%h{self.fresh}", f"%i{self.fresh}"
        kind = chance.choice("36")
        value, size = self.pools[kind][3][chance.randrange(4)], 4 if kind == "3" else 8
        other = chance.choice(["%other", "%t", "%up"])
        return [f"mov.u32 {a}, x; mad.lo.u32 {a}, {chance.choice(['%t', '%other'])}, {size}, {a}; bar.sync 0; st.shared.{TYPES[kind]} [{a}], {value}; bar.sync 0; mov.u32 {a}, x; mad.lo.u32 {a}, {other}, {size}, {a}; ld.shared.{TYPES[kind]} {self.result(kind)}, [{a}]; mov.u64 {b}, 0;"]  # fmt: skip

    def some(self, most: int) -> list[str]:
        lines: list[str] = []
        for _ in range(self.chance.randint(1, most)):
            which = self.chance.random()
            if which < 0.2:
                lines += self.access()
            elif which < 0.26:
                lines += self.float_access()
            elif which < 0.32:
                lines += self.atomic()
            elif which < 0.38 and self.same_flow:
                lines += self.exchange()
            else:
                lines.append(self.operation())
        return lines

    def part(self, depth: int) -> list[str]:
        chance = self.chance
        most = 24 >> depth
        what = chance.choice(
            ["plain", "loop", "own loop", "left loop", "strides", "branch", "same branch", "barrier"]
        )
        self.labels += 1
        n = self.labels

        def inside(same_flow: bool) -> list[str]:
            with self._scope(same_flow):
                lines = self.some(most)
                if depth < 2 and chance.random() < 0.4:
                    lines += self.part(depth + 1) + self.some(most // 2)
            return lines

        if what == "loop":
            bound = chance.choice(["3", "%bound"])
            self.pools["3"][0].append(f"%n{n}")
            body = inside(True)
            self.pools["3"][0].remove(f"%n{n}")
            return [f"mov.u32 %n{n}, 0;", f"T{n}:", *body, f"add.u32 %n{n}, %n{n}, 1; setp.lt.u32 %p5, %n{n}, {bound}; @%p5 bra T{n};"]  # fmt: skip
        if what == "left loop":  # and begun again before its end
            parts = [inside(False) for _ in range(3)]
            again, out = (f"@{chance.choice(['', '!'])}%p{chance.randrange(4)} bra" for _ in range(2))
            return [f"mov.u32 %n{n}, 0;", f"T{n}:", *parts[0], f"{again} N{n};", *parts[1], f"{out} O{n};", *parts[2], f"N{n}: add.u32 %n{n}, %n{n}, 1; setp.lt.u32 %p5, %n{n}, 3; @%p5 bra T{n};", f"O{n}:"]  # fmt: skip
        if what == "own loop":
            body = inside(False)
            return [f"and.b32 %n{n}, %t, 3;", f"T{n}:", *body, f"add.u32 %n{n}, %n{n}, 1; setp.lt.u32 %p5, %n{n}, 4; @%p5 bra T{n};"]  # fmt: skip
        if what == "strides":  # over what is left of so many by all threads of the grid
            self.pools["6"][2].append(f"%o{n}")
            body = inside(False)
            self.pools["6"][2].remove(f"%o{n}")
            return [f"cvt.u64.u32 %o{n}, %id; mul.wide.u32 %d8, %threads, %blocks;", f"T{n}:", *body, f"mul.wide.u32 %d8, %threads, %blocks; add.s64 %o{n}, %o{n}, %d8; setp.lt.s64 %p5, %o{n}, {self.all * 2 + chance.randrange(100)}; @%p5 bra T{n};"]  # fmt: skip
        if what in ("branch", "same branch"):
            same = what == "same branch"
            p = f"%q{chance.randrange(2)}" if same else f"%p{chance.randrange(4)}"
            return [f"@{p} bra E{n};", *inside(same), f"bra J{n};", f"E{n}:", *inside(same), f"J{n}:"]
        if what == "barrier" and self.same_flow:
            return [*self.some(most), "bar.sync 0;", *self.some(most // 2)]
        return self.some(most)

    def _write(self) -> str:
        chance = self.chance
        head, tail = [], []
        for number in range(chance.randint(0, 8)):  # what all threads of a launch share, and lines
            rank = chance.choice([0, 2])
            name, kind, operands = chance.choice(LINES)
            pools = {"3": ["%threads", "%blocks", "%bound", *(["%t", "%id", "%tx", "%b"] if rank else []), *self.pools["3"][rank][COUNTS[KINDS["3"][rank]] :]], "6": ["%big", *self.pools["6"][rank][COUNTS[KINDS["6"][rank]] :]]}  # fmt: skip
            values = [self.source("k", 0) if each == "k" else self.recent[each][1] if each in self.recent and self.recent[each][0] <= rank and chance.random() < 0.4 else chance.choice(pools[each]) for each in operands]  # fmt: skip
            to = self.new(kind)
            head.append(f"{name} {to}, {', '.join(values)};")
            self.pools[kind][rank].append(to)
            self.recent[kind] = rank, to
            assert number < 8
        self.pools["3"][0] += ["%threads", "%blocks", "%bound", "%b", "%word"]
        self.pools["3"][2] += ["%t", "%id", "%tx"]
        self.pools["6"][0] += ["%big"]
        at = 0
        for kind, names in KINDS.items():
            for name in dict.fromkeys(names):
                for n in range(COUNTS[name]):
                    to = f"%{name}{n}"
                    if name in "cm":
                        head.append(f"mad.lo.u32 {to}, %t, {chance.choice([1, 4, 12, -4])}, {chance.choice(['%bound', '%word', '%b'])};" if name == "c" else f"mad.wide.s32 {to}, %id, {chance.choice([1, 8, -8])}, %big;")  # fmt: skip
                        continue
                    base = "%d5" if name in "wxuvygz" else "%d4"
                    head.append(f"ld.global.{TYPES[kind]} {to}, [{base}+{at}];")
                    at += 8 * chance.randrange(1, 60)
        for _ in range(chance.randint(0, 3)):
            self.fresh += 1
            address = f"%i{self.fresh}"
            space = chance.choice(["global", "shared", "shared"])
            lines, room = (self.own_address if space == "global" else self.own_shared_address)(address)
            if space == "shared" and chance.random() < 0.5:
                lines.append(f"cvt.u32.u64 %h{self.fresh}, {address};")
                address = f"%h{self.fresh}"
            head += lines
            self.hoisted.append((address, room, space))
        body: list[str] = []
        for _ in range(chance.randint(1, 4)):
            if chance.random() < 0.08:
                body.append(f"and.b32 %z, {chance.choice(['%t', '%t', '%b'])}, {chance.choice([1, 3])}; setp.eq.u32 %p5, %z, 1; @%p5 exit;")  # fmt: skip
                self.all_live = False
            body += self.part(0)
        stored = []
        for kind, ranks in self.pools.items():
            for name in dict.fromkeys(name for pool in ranks for name in pool):
                if name[1] in "hi" and chance.random() < 0.5:
                    continue  # it ends where it was read last
                stored.append((name, TYPES[kind]))
        for n in range(4):
            tail.append(f"selp.u32 %h0, 1, 2, %p{n}; mov.u32 %r{n}, %h0;")
        for n in range(2):
            tail.append(f"selp.u32 %h0, 1, 2, %q{n}; mov.u32 %r{n + 4}, %h0;")
        self.stored = [type_ for _, type_ in stored] + ["u32"] * 6 + ["u64"] * 7

        def place(number: int) -> str:
            return f"[%d3+{8 * number * self.all}]"

        first = [f"st.global.{type_} {place(n)}, {name};" for n, (name, type_) in enumerate(stored)]
        again = [f"st.global.u32 {place(len(stored) + n)}, %r{n};" for n in range(6)]
        left = [f"st.global.u64 {place(len(stored) + 6 + n)}, %l{n};" for n in range(6)]
        threads, (bx, by, bz), (gx, gy, gz) = self.threads, self.block, self.grid
        registers = " ".join(f".reg .b{64 if name in 'xgmlve' else 16 if name in 'zs' else 32} %{name}<{count}>;" for name, count in COUNTS.items())  # fmt: skip
        t = f"mov.u32 %t, %tid.z; mov.u32 %z, %tid.y; mad.lo.u32 %t, %t, {by}, %z; mad.lo.u32 %t, %t, {bx}, %tx;"
        b = f"mov.u32 %b, %ctaid.z; mov.u32 %z, %ctaid.y; mad.lo.u32 %b, %b, {gy}, %z; mov.u32 %z, %ctaid.x; mad.lo.u32 %b, %b, {gx}, %z;"
        plain_block, plain_grid = by * bz == 1, gy * gz == 1
        return "\n".join(
            [
                ".version 7.8\n.target sm_90\n.address_size 64",
                ".visible .entry k(.param .u64 in, .param .u64 own, .param .u64 out, .param .u64 all, .param .u32 n0, .param .u32 n1, .param .align 16 .b8 some[48], .param .u64 n2)\n{",
                f"{registers} .reg .b64 %d<10>, %big, %i<{self.fresh + 1}>, %o<{self.labels + 1}>; .reg .pred %p<6>, %q<2>;",
                f".reg .b32 %tx, %t, %b, %id, %z, %threads, %blocks, %bound, %word, %other, %up, %q, %mine, %where, %h<{self.fresh + 1}>, %n<{self.labels + 1}>;",
                f".shared .align 16 .b8 s[{threads * sum(OWN['shared'])}]; .shared .align 16 .b8 x[{threads * 8}]; .shared .align 16 .b8 a[512];",
                f".shared .align 16 .b8 q[{(256 + 32) * 16}]; .local .align 16 .b8 d[{LOCAL}];",
                "ld.param.u64 %d0, [in]; ld.param.u64 %d2, [own]; ld.param.u64 %d1, [out]; ld.param.u64 %d7, [all];",
                "ld.param.u32 %bound, [n0]; ld.param.u32 %word, [n1]; ld.param.u64 %big, [n2]; add.u64 %d0, %d0, 4096; mov.u32 %tx, %tid.x;",
                "mov.u32 %t, %tid.x;" if plain_block else t,
                "mov.u32 %b, %ctaid.x;" if plain_grid else b,
                "mov.u32 %threads, %ntid.x;" if plain_block else f"mov.u32 %threads, {threads};",
                "mov.u32 %blocks, %nctaid.x;" if plain_grid else f"mov.u32 %blocks, {gx * gy * gz};",
                f"mad.lo.u32 %id, %b, {threads}, %t; mul.wide.u32 %d6, %id, 8; add.u64 %d3, %d1, %d6; add.u64 %d4, %d0, %d6;",
                f"mul.wide.u32 %d6, %b, 8; add.u64 %d5, %d0, %d6; {f'xor.b32 %mine, %t, {self.turned}' if self.turned else 'mov.u32 %mine, %t'}; mad.lo.u32 %where, %b, {threads}, %mine;",
                f"add.u32 %other, %t, 1; setp.eq.u32 %p5, %other, {threads}; @%p5 mov.u32 %other, 0; sub.u32 %up, {threads - 1}, %t;",
                "setp.gt.u32 %p0, %t, 11; setp.lt.u32 %p1, %t, 40; setp.eq.u32 %p2, %t, 5; setp.ne.u32 %p3, %b, 0; setp.gt.u32 %q0, %b, 2; setp.ne.u32 %q1, %word, 5;",
                # What nobody has filled, in shared and local memory.
                "rem.u32 %h0, %t, 288; mov.u32 %q, q; FILL: mad.wide.u32 %d6, %h0, 16, %d0; ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%d6];",
                f"mad.lo.u32 %z, %h0, 16, %q; st.shared.v4.u32 [%z], {{%r0, %r1, %r2, %r3}}; add.u32 %h0, %h0, {threads}; setp.lt.u32 %p5, %h0, 288; @%p5 bra FILL;",
                *(f"mov.u32 %h0, s; mad.lo.u32 %h0, %t, {4}, %h0; st.shared.u32 [%h0+{4 * threads * n}], %t;" for n in range(sum(OWN["shared"]) // 4)),
                "mov.u64 %l0, 3; mov.u64 %l1, 4; st.local.v2.u64 [d], {%l0, %l1}; st.local.v2.u64 [d+16], {%l1, %l0};",
                f"rem.u32 %h0, %t, 64; CLEAR: mov.u32 %r0, a; mad.lo.u32 %z, %h0, 8, %r0; st.shared.u64 [%z], %l0; add.u32 %h0, %h0, {threads}; setp.lt.u32 %p5, %h0, 64; @%p5 bra CLEAR; bar.sync 0;",
                *head,
                *body,
                *first,
                *tail,
                *again,
                # And what is left there.
                "bar.sync 0; mov.u32 %h0, s; mad.lo.u32 %h0, %mine, 16, %h0; ld.shared.v2.u64 {%l0, %l1}, [%h0];",
                f"mov.u32 %h0, s; mad.lo.u32 %h0, %mine, 8, %h0; ld.shared.u64 %l2, [%h0+{16 * threads}];",
                f"mov.u32 %h0, s; mad.lo.u32 %h0, %mine, 4, %h0; ld.shared.u32 %l3, [%h0+{24 * threads}]; ld.local.u64 %l4, [d+8]; ld.local.u64 %l5, [d+16];",
                *left,
                f"and.b32 %h0, %t, 63; mov.u32 %z, a; mad.lo.u32 %z, %h0, 8, %z; ld.shared.u64 %l0, [%z]; st.global.u64 {place(len(stored) + 12)}, %l0;",
                "ret;\n}\n",
            ]
        )  # fmt: skip

    def arrays(self, seed: int) -> list[np.ndarray[Any, Any]]:
        """Return what it reads, what each thread has of its own, what it leaves, and what all threads share."""
        own = np.arange(self.all * 64, dtype=np.uint32).view(np.uint8)[: self.all * 64].copy()
        return [given(seed), own, np.zeros((len(self.stored), self.all), np.uint64), np.arange(64, dtype=np.uint64)]  # fmt: skip

    def differs(self, one: list[np.ndarray[Any, Any]], other: list[np.ndarray[Any, Any]]) -> str:
        """Say what differs first; of NaNs, only whether they are some."""
        for name, a, b in zip(("in", "own", "", "all"), one, other, strict=True):
            if name and not np.array_equal(a, b):
                return f"{name} differs, at byte {np.flatnonzero(a.view(np.uint8) != b.view(np.uint8))[0]}"
        names = [line.split()[2].strip(";") for line in self.text.splitlines() if line.startswith("st.global") and "%d3" in line]  # fmt: skip
        for n, type_ in enumerate(self.stored):
            x, y = (each[2][n] for each in (one, other))
            if type_[0] == "f":
                x, y = (np.where(np.isnan(f), np.nan, f).view(f"u{f.itemsize}") for f in (each.view(f"f{_size(type_)}") for each in (x, y)))  # fmt: skip
            if (where := np.flatnonzero(x != y)).size:
                return f"row {n}, {names[n] if n < len(names) else ''}, differs at {where[:4]} and others, {where.size} in all: {x[where[0]]:#x} and {y[where[0]]:#x}"
        return ""


def given(seed: int) -> np.ndarray[Any, Any]:
    """Return numbers that are usual ones in single and double precision alike, and as whole numbers any, or small ones."""
    numbers = np.random.default_rng(seed)
    low = (numbers.standard_normal(ELEMENTS) * 3).astype(np.float32).view(np.uint32).astype(np.uint64)
    high = (numbers.standard_normal(ELEMENTS) * 3).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)
    low = np.where(numbers.random(ELEMENTS) < 0.2, numbers.integers(0, 40, ELEMENTS).astype(np.uint64), low)
    return np.where(numbers.random(ELEMENTS) < 0.2, np.uint64(0), high) | low


@pytest.mark.parametrize("seed", range(10, 40))
def test_a_drawn_kernel_with_memory_leaves_the_same_in_both_tiers(tiers: Tiers, seed: int) -> None:
    drawing = Drawing(seed)
    arrays = drawing.arrays(seed)
    args = drawing.grid, drawing.block, *arrays, *drawing.parameters
    interpreted, compiled = (
        tiers.run(tier, drawing.text, "k", *args) for tier in ("interpreter", "compiled")
    )
    assert ": compiled: " in tiers.said[-1]
    assert compiled[2].any()
    assert SANITIZED or not drawing.differs(interpreted, compiled), drawing.text


def main(seed: int, seconds: float) -> None:
    """Draw kernels from a seed on, and leave those that differ in files."""
    os.environ["GPUKERNEL_SIMGPU"] = "h100"
    device, end, number, others = Device(str(simgpu_library())), time.monotonic() + seconds, seed, 0
    while time.monotonic() < end:
        drawing, answers = Drawing(number), []
        for how in ("interpreter", *VECTORS):
            os.environ["GPUKERNEL_SIMGPU_TIER"] = "interpreter" if how == "interpreter" else "compiled"
            os.environ["GPUKERNEL_SIMGPU_VECTORS"] = "" if how == "interpreter" else how
            answers.append(drawing.arrays(number))
            device.run(drawing.text, "k", drawing.grid, drawing.block, *answers[-1], *drawing.parameters)
        for how, answer in zip(VECTORS, answers[1:], strict=True):
            if told := drawing.differs(answers[0], answer):
                others += 1
                Path(f"drawn.{number}.ptx").write_text(drawing.text)
                print(f"kernel {number}, {drawing.grid} blocks of {drawing.block}, {how}: {told}", flush=True)
        number += 1
    print(f"{number - seed} kernels from {seed} on, {others} times another answer")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
