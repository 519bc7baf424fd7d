"""Kernels that are drawn: operations of all shapes, in loops and under branches, leave the same in all registers in both tiers.

``python -m tests.native.simgpu_compiler.test_drawn SEED SECONDS`` draws kernels for so long and tells the first that differs.
"""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any

import numpy as np
import pytest

from gpukernel.native import simgpu_library
from tests.native.simgpu_compiler.conftest import SANITIZED, Tiers
from tests.native.simgpu_exec.conftest import Device

COUNTS = {"f": 12, "e": 6, "r": 12, "l": 6, "u": 4, "v": 3, "w": 4}
"""Registers of each kind: numbers of 32 and 64 bits, whole numbers of 32 and 64, and those that all lanes share (f32, f64, b32)."""

TYPES = {
    "f": "f32",
    "e": "f64",
    "r": "b32",
    "l": "b64",
    "u": "f32",
    "v": "f64",
    "w": "b32",
    "c": "b32",
    "m": "b64",
}
"""Of each kind; ``c`` and ``m`` are places: written once, and computed from the shapes of block and grid and from a thread's own number."""

SHARED = {"f": "u", "e": "v", "r": "w"}
CONSTANTS = {"f": ["0f3FC00000", "0fBE99999A", "0f00000000"], "e": ["0d3FF8000000000000", "0dBFD3333333333333"], "r": ["0", "1", "7", "-1", "0x80000000"], "l": ["0", "3", "-1"]}  # fmt: skip
# What an operation is, the kind of its result, and those of its operands; # is the type.
OPERATIONS = [
    *((f"{name}.#", kind, (kind, kind)) for name in ("add.rn", "sub.rn", "mul.rn", "min", "max") for kind in "fe"),
    *(("fma.rn.#", kind, (kind, kind, kind)) for kind in "fefefefe"),
    *((f"{name}.#", kind, (kind,)) for name in ("neg", "abs", "mov") for kind in "fe"),
    ("rcp.rn.f32", "f", ("f",)), ("cvt.rn.f32.s32", "f", ("r",)), ("cvt.rn.f32.f64", "f", ("e",)), ("cvt.f64.f32", "e", ("f",)),
    ("cvt.rn.f64.u32", "e", ("r",)), ("cvt.rzi.s32.f32", "r", ("f",)),
    *((f"{name}.{kind}32", "r", ("r", "r")) for name in ("add", "sub", "mul.lo", "min", "max", "mul.hi") for kind in "us"),
    *((f"{name}.{kind}64", "l", ("l", "l")) for name in ("add", "sub", "mul.lo", "min", "max") for kind in "us"),
    *((f"{name}.#", kind, (kind, kind)) for name in ("and", "or", "xor") for kind in "rl"),
    *((f"{name}.#", kind, (kind, "r")) for name in ("shl", "shr") for kind in "rl"),
    *((f"{name}.#", kind, (kind,)) for name in ("not", "mov") for kind in "rl"),
    ("mad.lo.s32", "r", ("r", "r", "r")), ("mad.lo.s64", "l", ("l", "l", "l")), ("mul.wide.u32", "l", ("r", "r")), ("mad.wide.s32", "l", ("r", "r", "l")),
    ("cvt.u64.u32", "l", ("r",)), ("cvt.s64.s32", "l", ("r",)), ("cvt.u32.u64", "r", ("l",)), ("lop3.b32", "r", ("r", "r", "r", "0x5b")),
    *(("selp.#", kind, (kind, kind, "p")) for kind in "ferl"), ("popc.b32", "r", ("r",)), ("shf.l.wrap.b32", "r", ("r", "r", "r")),
]  # fmt: skip
PLACES = [
    *((f"{name}.s32", "c", "cc") for name in ("add", "sub", "mul.lo")), ("mad.lo.s32", "c", "ccc"), ("shl.b32", "c", "c3"), ("mov.b32", "c", "c"),
    *((f"{name}.s64", "m", "mm") for name in ("add", "sub", "mul.lo")), ("mad.lo.s64", "m", "mmm"), ("shl.b64", "m", "m3"), ("cvt.u32.u64", "c", "m"),
    ("mul.wide.s32", "m", "cc"), ("mul.wide.u32", "m", "cc"), ("mad.wide.s32", "m", "ccm"), ("cvt.s64.s32", "m", "c"), ("cvt.u64.u32", "m", "c"),
]  # fmt: skip
COMPARISONS = [("lt.f32", "f"), ("gtu.f64", "e"), ("ge.s32", "r"), ("lo.u32", "r"), ("ne.b32", "r"), ("le.s64", "l"), ("eq.b64", "l")]  # fmt: skip


def draw(seed: int) -> str:
    """Write a kernel that computes with its registers, and stores all of them."""
    chance = random.Random(seed)
    live = {kind: chance.randint(2, count) for kind, count in COUNTS.items()}
    # Those that all lanes share, and those that differ by lane.
    shared_places, own_places = {"c": ["%ntid.x", "%nctaid.x", "%b"], "m": []}, {"c": ["%t", "%i"], "m": []}
    places = []
    for number in range(chance.randint(4, 16)):
        shares = chance.random() < 0.6
        pools = [shared_places] if shares else [shared_places, own_places]
        name, kind, wanted = chance.choice(PLACES)
        if number < 2:  # what PTX takes in a mov alone
            name, kind, wanted = "mov.u32", "c", shared_places["c"][number]
        elif "m" in wanted and not any(pool["m"] for pool in pools):
            name, kind, wanted = "cvt.u64.u32", "m", "c"
        values = [wanted]
        if number >= 2:
            values = [
                each if each.isdigit() else "5" if chance.random() < 0.15 else chance.choice([at for pool in pools for at in pool[each]])
                for each in wanted
            ]  # fmt: skip
        to = f"%{kind}{number}"
        places.append(f"{name} {to}, {', '.join(values)};")
        if number < 2:
            shared_places["c"][number] = to
        else:
            (shared_places if shares else own_places)[kind].append(to)
    counters: list[str] = []
    names = {kind: shared_places[kind] + own_places[kind] for kind in "cm"}

    def register(kind: str) -> str:
        if kind == "p":
            return f"%p{chance.randrange(4)}"
        shared = SHARED.get(kind)
        if shared and chance.random() < 0.25:
            return f"%{shared}{chance.randrange(live[shared])}"
        if chance.random() < 0.1:
            return chance.choice(CONSTANTS[kind])
        if kind == "r" and counters and chance.random() < 0.1:
            return counters[-1]
        if kind in "rl" and chance.random() < 0.15 and (there := names["c" if kind == "r" else "m"]):
            return chance.choice(there)
        return f"%{kind}{chance.randrange(live[kind])}"

    def operation() -> str:
        guard = chance.choice(["@%p0 ", "@!%p1 ", "@%p2 "]) if chance.random() < 0.12 else ""
        if chance.random() < 0.12:
            how, kind = chance.choice(COMPARISONS)
            return f"setp.{how} %p{chance.randrange(4)}, {register(kind)}, {register(kind)};"
        if chance.random() < 0.05:
            return f"{chance.choice(['and', 'or', 'xor'])}.pred %p{chance.randrange(4)}, %p{chance.randrange(4)}, %p{chance.randrange(4)};"
        if chance.random() < 0.08:  # on what all lanes share
            kind = chance.choice("uvw")
            names = [f"%{kind}{chance.randrange(live[kind])}" for _ in range(3)]
            return f"{'add.rn' if kind != 'w' else 'add'}.{TYPES[kind] if kind != 'w' else 'u32'} {', '.join(names)};"
        name, kind, operands = chance.choice(OPERATIONS)
        to = f"%{kind}{chance.randrange(live[kind])}"
        values = [each if each[0] == "0" else register(each) for each in operands]
        return f"{guard}{name.replace('#', TYPES[kind])} {to}, {', '.join(values)};"

    def operations(most: int) -> list[str]:
        return [operation() for _ in range(chance.randint(1, most))]

    head, tail, at = [], [], 0
    for kind, count in COUNTS.items():
        size = 8 if TYPES[kind].endswith("64") else 4
        type_ = TYPES[kind].replace("b", "u")
        for n in range(live[kind]):
            head.append(f"ld.global.{type_} %{kind}{n}, [{'%d5' if kind in 'uvw' else '%d4'}+{at}];")
            tail.append(f"st.global.{type_} [%d3+{at}], %{kind}{n};")
            at += size * 128 * (8 // size)
        assert count
    for place in places:
        to = place.split()[1].strip(",")
        tail.append(f"st.global.{TYPES[to[1]].replace('b', 'u')} [%d3+{at}], {to};")
        at += 8 * 128
    body = []
    for number in range(chance.randint(2, 6)):
        what = chance.choice(["plain", "loop", "loop", "own loop", "strides", "branch", "barrier"])
        if what in ("loop", "own loop", "strides"):
            counters.append(f"%n{number}")
        some = operations(40)
        counters.clear()
        if what == "loop":
            body += [f"mov.u32 %n{number}, 0;", f"T{number}:", *some, f"add.u32 %n{number}, %n{number}, 1; setp.lt.u32 %p5, %n{number}, 3; @%p5 bra T{number};"]  # fmt: skip
        elif what == "own loop":
            body += [f"and.b32 %n{number}, %t, 3;", f"T{number}:", *some, f"add.u32 %n{number}, %n{number}, 1; setp.lt.u32 %p5, %n{number}, 4; @%p5 bra T{number};"]  # fmt: skip
        elif what == "strides":
            body += [f"mov.u32 %n{number}, {chance.choice(['%t', '%i', '%b'])};", f"T{number}:", *some, f"add.u32 %n{number}, %n{number}, %c0; setp.lt.u32 %p5, %n{number}, 170; @%p5 bra T{number};"]  # fmt: skip
        elif what == "branch":
            body += [f"@%p{chance.randrange(4)} bra E{number};", *some, f"bra J{number};", f"E{number}:", *operations(20), f"J{number}:"]  # fmt: skip
        elif what == "barrier":
            body += [*some, "bar.sync 0;", *operations(20)]
        else:
            body += some
    registers = " ".join(f".reg .b{TYPES[kind][1:]} %{kind}<{count}>;" for kind, count in COUNTS.items())
    return "\n".join(
        [
            ".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out)\n{",
            f"{registers} .reg .b32 %t, %b, %i, %n<9>, %c<16>; .reg .b64 %d<9>, %m<16>; .reg .pred %p<6>;",
            "ld.param.u64 %d0, [in]; ld.param.u64 %d1, [out]; mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; mad.lo.u32 %i, %b, 64, %t;",
            "mul.wide.u32 %d2, %i, 8; add.u64 %d3, %d1, %d2; add.u64 %d4, %d0, %d2; mul.wide.u32 %d6, %b, 8; add.u64 %d5, %d0, %d6;",
            "setp.gt.u32 %p0, %t, 11; setp.ne.u32 %p1, %b, 0; setp.lt.u32 %p2, %t, 40; setp.eq.u32 %p3, %t, 5;",
            *places,
            *head,
            *body,
            *tail,
            "ret;\n}\n",
        ]
    )


def given(seed: int) -> np.ndarray[Any, Any]:
    """Return numbers that are usual ones in single and double precision alike, and as whole numbers any."""
    numbers = np.random.default_rng(seed)
    low = (numbers.standard_normal(64 * 128) * 3).astype(np.float32).view(np.uint32).astype(np.uint64)
    high = (numbers.standard_normal(64 * 128) * 3).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)
    return high | low


def _same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    if a.dtype.kind != "f":
        return np.array_equal(a, b)
    return bool((np.where(np.isnan(a), 0, a.view(f"u{a.itemsize}")) == np.where(np.isnan(b), 0, b.view(f"u{b.itemsize}"))).all() and (np.isnan(a) == np.isnan(b)).all())  # fmt: skip


def alike(text: str, one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Compare what was stored; of NaNs, only that they are some."""
    stored = [line.split("%")[-1][0] for line in text.splitlines() if line.startswith("st.")]
    for kind, x, y in zip(stored, one.view(np.uint64).reshape(-1, 128), other.view(np.uint64).reshape(-1, 128), strict=False):  # fmt: skip
        type_ = TYPES[kind].replace("b", "u")
        a, b = (np.ascontiguousarray(each).view(type_[0] + str(int(type_[1:]) // 8)) for each in (x, y))
        if not _same(a, b):
            return False
    return True


@pytest.mark.parametrize("seed", range(40))
def test_a_drawn_kernel_leaves_the_same_in_both_tiers(tiers: Tiers, seed: int) -> None:
    text = draw(seed)
    args = 2, 50, given(seed), np.zeros(64 * 128, np.uint64)
    interpreted, compiled = (tiers.run(tier, text, "k", *args)[1] for tier in ("interpreter", "compiled"))
    assert ": compiled: " in tiers.said[-1]
    assert compiled.any()
    assert SANITIZED or alike(text, interpreted.view(np.uint8), compiled.view(np.uint8)), text


def main(seed: int, seconds: float) -> None:
    """Draw kernels from a seed on, and leave the first that differs in drawn.ptx."""
    os.environ["GPUKERNEL_SIMGPU"] = "h100"
    device, end, number = Device(str(simgpu_library())), time.monotonic() + seconds, seed
    while time.monotonic() < end:
        text, answers = draw(number), []
        for tier in ("interpreter", "compiled"):
            os.environ["GPUKERNEL_SIMGPU_TIER"] = tier
            out = np.zeros(64 * 128, np.uint64)
            device.run(text, "k", 2, 50, given(number), out)
            answers.append(out.view(np.uint8))
        if not alike(text, *answers):
            raise SystemExit(f"kernel {number} differs:\n{text}")
        number += 1
    print(f"{number - seed} kernels from {seed} on, all alike")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
