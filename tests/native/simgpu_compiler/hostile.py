"""Kernels with addresses that a student makes up, and what became of each of them in one tier.

``python hostile.py SEED COUNT`` runs COUNT kernels in the tier of GPUKERNEL_SIMGPU_TIER.  Of each it prints
``# number``, the sentence about its fault, and the CUresult with a digest of what it left in memory.

Drawn are the space, whether an access reads, writes or updates, the width of the address register, the offset of
the instruction and its sign, the width of
the vector, the guard, and what the compiler may know of the addresses.  An address is the sum of a register and
the offset, modulo 2^32 or 2^64.  Half of the sums lie in what the kernel may reach, a quarter at its ends, a
quarter anywhere.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))
from gpukernel.native import simgpu_library
from tests.native.simgpu_exec.conftest import Device, LaunchFailed

BUFFER = 8192
REACH = {"shared": 1024, "global": BUFFER, "generic": BUFFER, "local": 1024, "const": 1024, "param": 32}
"""Bytes that a kernel may reach in each space."""
OFFSETS = [
    0,
    4,
    -3,
    *(sign * near for near in (8, 64, 4096, 2**30, 2**31 - 256) for sign in (1, -1)),
    -(2**31),
]
FAR = [0, 2**24, 2**31, 2**32, 2**33, 2**63, 1 << 56, 2 << 56, 3 << 56]
SIZES = {"u8": 1, "s8": 1, "u16": 2, "s16": 2, "u32": 4, "s32": 4, "f32": 4, "u64": 8, "f64": 8}
REGISTERS = {"h": ("b16", "cvt.u16.u32"), "r": ("b32", "mov.b32"), "d": ("b64", "cvt.u64.u32"), "f": ("f32", "cvt.rn.f32.u32"),
             "e": ("f64", "cvt.rn.f64.u32")}  # fmt: skip
"""By the first letter of their names: their type, and how they are made of a number of 32 bits."""
ATOMIC = {
    "u32": [*((what, "u32") for what in ("add", "min", "max", "inc", "dec")), ("cas", "b32"), ("or", "b32")],
    "s32": [("add", "s32"), ("min", "s32"), ("max", "s32"), ("cas", "b32"), ("xor", "b32")],
    "f32": [("add", "f32")],
    "u64": [("add", "u64"), ("min", "u64"), ("max", "s64"), ("cas", "b64"), ("and", "b64")],
}
"""Updates of each type, with the type that they name."""
GUARDS = (
    "{access}",
    "{access}",
    "@%p {access}",
    "@!%p {access}",
    "@%p bra OVER{n}; {access} OVER{n}:",
    "@%never {access}",
)
BASES = {"global": "ld.param.u64 %base, [buffer];", "generic": "ld.param.u64 %base, [buffer];", "local": "mov.u64 %base, own;",
         "const": "mov.u64 %base, table;"}  # fmt: skip
"""The place where a space begins for the kernel; nothing: at 0."""

TEXT = """.version 7.8
.target sm_90
.address_size 64
.const .align 16 .b8 table[1024];
.visible .entry k(.param .u64 buffer, .param .u64 start, .param .u64 single, .param .u32 step, .param .u32 rest)
{{
    .reg .u64 %buffer, %base, %out, %a64, %b64, %w; .reg .u32 %t, %n, %a32, %b32, %step, %x; .reg .pred %p, %q, %never;
    .reg .b16 %h<8>; .reg .b32 %r<8>; .reg .f32 %f<8>; .reg .b64 %d<8>; .reg .f64 %e<8>;
    .shared .align 16 .b8 tile[1024];
    .local .align 16 .b8 own[1024];
    mov.u32 %t, %tid.x;
    ld.param.u64 %buffer, [buffer];
    mad.wide.u32 %out, %t, 16, %buffer;
    and.b32 %n, %t, 31;
    shl.b32 %n, %n, 4;
    mov.u32 %x, tile;
    add.u32 %n, %n, %x;
    st.shared.v4.u32 [%n], {{%n, %x, %n, 7}};
    st.shared.v4.u32 [%n+512], {{%n, 5, %x, %n}};
    mov.u64 %w, own;
    mov.u32 %x, 0;
FILL:
    st.local.v4.u32 [%w], {{%t, %x, %n, %x}};
    add.u64 %w, %w, 16;
    add.u32 %x, %x, 16;
    setp.lt.u32 %p, %x, 1024;
    @%p bra FILL;
    ld.param.u64 %a64, [start];
    ld.param.u64 %b64, [single];
    ld.param.u32 %step, [step];
    mov.u64 %base, 0;
    {base}
    add.u64 %a64, %a64, %base;
    add.u64 %b64, %b64, %base;
    cvt.u32.u64 %a32, %a64;
    cvt.u32.u64 %b32, %b64;
    {steps}
    setp.eq.u32 %q, %t, 37;
    setp.lt.u32 %p, %t, 20;
    setp.gt.u32 %never, %t, 64;
    {odd}
    {values}
    bar.sync 0;
    {accesses}
    bar.sync 0;
    {keep}
    ld.shared.v4.u32 {{%r0, %r1, %r2, %r3}}, [%n];
    ld.shared.v4.u32 {{%r4, %r5, %r6, %r7}}, [%n+512];
    st.global.v4.u32 [%out], {{%r0, %r1, %r2, %r3}};
    st.global.v4.u32 [%out+1024], {{%r4, %r5, %r6, %r7}};
    ret;
}}
"""


@dataclass(frozen=True)
class Case:
    """A kernel and its parameters: where addresses start, where one lane's does, and how far lanes are apart."""

    threads: int
    ptx: str
    start: int
    single: int
    step: int


def draw(seed: int, number: int) -> Case:
    """Draw the kernel of this number."""
    r = random.Random(f"{seed} {number}")
    space, kind = r.choice(["shared", "shared", *REACH]), r.choice(list(SIZES))
    size = SIZES[kind]
    bits = r.choice((32, 32, 64))
    elements = r.choice((1, 1, 1, 2, 4 if size < 8 else 1))
    whole = size * elements
    offset = r.choice(OFFSETS)
    if r.random() < 0.8:
        offset -= offset % whole

    def start() -> int:
        where = r.random()
        if where < 0.5:
            at = r.randrange(0, REACH[space] // 2, 16)
        elif where < 0.75:
            at = r.choice((0, REACH[space])) + r.randrange(-64, 65) * whole
        else:
            at = r.choice((1, -1)) * r.choice(FAR) + r.randrange(-8, 9) * whole
        return int((at - offset) % 2**bits)

    step = r.choice((0, 4, 8, -4, 24, 2**20, 2**28, -(2**31)))
    lane, address = f"%a{bits}", f"%b{bits}"
    known = r.choice((0, whole, whole, -whole, 4, 12))  # a fixed step, which the compiler sees
    fixed = f"mad.lo.u32 %a32, %t, {known}, %a32;" if bits == 32 else f"mad.wide.s32 %a64, %t, {known}, %a64;"
    drawn = "mad.lo.u32 %a32, %t, %step, %a32;" if bits == 32 else "mad.wide.s32 %a64, %t, %step, %a64;"
    letters = (
        "hr"
        if size < 4
        else "d"
        if kind == "u64"
        else "e"
        if kind == "f64"
        else "f"
        if kind == "f32"
        else "r"
    )
    letter = r.choice(letters)
    written, made = REGISTERS[letter]
    seen = r.choice(("%t", "%t", "5"))  # lanes store numbers of their own, or one
    values, accesses, keep = [], [], []
    for n in range(r.choice((1, 1, 2))):
        names = [f"%{letter}{4 * n + e}" for e in range(elements)]
        values += [
            f"mov.u32 %x, {seen}; add.u32 %x, %x, {e + 9}; {made} {name}, %x;" for e, name in enumerate(names)
        ]
        loads = space in ("const", "param") or r.random() < 0.5
        here = offset + n * whole * r.choice((1, 16, -1, 64))
        place = f"[{lane}+{here}]"
        name = f"{'ld' if loads else 'st'}{'' if space == 'generic' else '.' + space}{f'.v{elements}' if elements > 1 else ''}.{kind}"
        listed = names[0] if elements == 1 else "{" + ", ".join(names) + "}"
        access = f"{name} {listed}, {place};" if loads else f"{name} {place}, {listed};"
        if space in ("shared", "global", "generic") and elements == 1 and kind in ATOMIC and r.random() < 0.7:
            what, given = r.choice(ATOMIC[kind])
            named = "" if space == "generic" else f".{space}"
            result = what == "cas" or r.random() < 0.6
            access = f"{'atom' if result else 'red'}{named}.{what}.{given} {f'{names[0]}, ' if result else ''}{place}, {names[0]}{f', {names[0]}' if what == 'cas' else ''};"
        accesses.append(r.choice(GUARDS).format(access=access, n=n))
        keep += [
            f"st.global.{written} [%out+{2048 + 2048 * n + 8 * (e & 1) + 1024 * (e >> 1)}], {name};"
            for e, name in enumerate(names)
        ]
    threads = r.choice((32, 45, 64))
    text = TEXT.format(
        base=BASES.get(space, "") if bits == 64 or space == "local" else "",
        steps=r.choice(("", fixed, fixed, drawn)),
        odd=f"selp.b{bits} {lane}, {address}, {lane}, %q;" if r.random() < 0.3 else "",
        values="\n    ".join(values),
        # Warps do not race: the two tiers let them run in orders of their own.
        accesses=("\n    bar.sync 0;\n    " if threads > 32 else "\n    ").join(accesses),
        keep="\n    ".join(keep),
    )
    return Case(threads, text, start(), start(), step)


def run(case: Case) -> str:
    """Run a kernel; return the CUresult and a digest of the memory, where it came to its end."""
    memory = np.arange(BUFFER, dtype=np.uint8)
    try:
        numbers = np.uint64(case.start), np.uint64(case.single), np.int32(case.step), np.uint32(7)
        Device(str(simgpu_library())).run(case.ptx, "k", 1, case.threads, memory, *numbers)
    except LaunchFailed as failed:
        return str(failed)
    return f"0 {hashlib.sha256(memory.tobytes()).hexdigest()[:16]}"


def main(seed: int, count: int) -> None:
    """Run the kernels, each in a process of its own: an error is sticky, as on a GPU."""
    for number in range(count):
        print(f"# {number}", flush=True)
        child = os.fork()
        if child == 0:
            print(run(draw(seed, number)), flush=True)
            os._exit(0)
        if status := os.waitpid(child, 0)[1]:
            print(f"killed by signal {os.WTERMSIG(status)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
