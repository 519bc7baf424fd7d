"""Kernels that are drawn from the table of forms: every kind of instruction, under divergent control flow, on values from the edges.

A kernel's forms are dealt like cards: `deal` kernels from a multiple of that on have each form once, those of every second deal whatever
it needs (whole warps, of which no lane ends before the others).  What lanes do together names the lanes that are here, which the kernel keeps in a register of its own.
"""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Any

import numpy as np

from tests.native.simgpu_compiler.drawn.forms import Form
from tests.native.simgpu_compiler.drawn.places import FUNCTIONS, everything

HAND = 96
"""Forms that a kernel is dealt."""
OWN = 80
"""Bytes that each thread has of its own in each space, the last of them for sums that have no NaNs."""
ROWS = 96
"""Numbers of 64 bits that a thread finds in what is only read."""
COUNTS = {"h": 10, "r": 14, "d": 9, "q": 3, "p": 6}
SHARED = {"h": "hu", "r": "ru", "d": "du"}
BITS = {"h": 16, "r": 32, "d": 64, "q": 128}
IMMEDIATES = {
    "h": ["0", "1", "-1", "7", "15", "16", "0x7fff", "0x8000", "255", "300"],
    "r": ["0", "1", "-1", "5", "31", "32", "33", "63", "255", "256", "0x7fffffff", "0x80000000", "0xff00ff00", "0x7fc00001"],
    "d": ["0", "1", "-1", "63", "64", "65", "0x7fffffffffffffff", "0x8000000000000000", "0xffffffff", "0x100000000"],
    "f": ["0f3FC00000", "0fBE99999A", "0f80000000", "0f7F800000", "0f00000001", "0f7FFFFFFF"],
    "e": ["0d3FF8000000000000", "0dBFD3333333333333", "0d8000000000000000", "0d7FF0000000000000", "0d0000000000000001"],
}  # fmt: skip
SHAPES = [(1, 1, 1), (3, 1, 1), (31, 1, 1), (33, 1, 1), (100, 1, 1), (5, 7, 1), *[(32, 1, 1), (64, 1, 1), (96, 1, 1), (8, 8, 2), (32, 2, 2), (256, 1, 1)] * 2]  # fmt: skip
FOLD = {
    "h": "cvt.u64.u16 %y2, {};", "r": "cvt.u64.u32 %y2, {};", "d": "mov.u64 %y2, {};", "q": "mov.b128 {{%y2, %y3}}, {}; add.u64 %y2, %y2, %y3;", "p": "selp.u64 %y2, 1, 2, {};",
}  # fmt: skip
FOLD |= {kind + "u": FOLD[kind] for kind in "hrd"}
TOKEN = re.compile(r"([=?])([hrdqpnfekHRDQP])\b")


@cache
def deck() -> list[Form]:
    """Return all forms, in an order of their own."""
    forms = everything()
    random.Random(1).shuffle(forms)
    return forms


def deal() -> int:
    """Return how many kernels have all forms."""
    return -(-len(deck()) // HAND)


class Drawing:
    """One kernel, and how it is launched."""

    def __init__(self, seed: int, forms: list[Form] | None = None) -> None:
        self.chance = random.Random(seed)
        self.whole = seed // deal() % 2 == 0
        self.block = self.chance.choice(SHAPES[-6:] if self.whole else SHAPES)
        self.threads = self.block[0] * self.block[1] * self.block[2]
        self.grid = self.chance.choice([1, 2, 3, 7])
        self.all = self.threads * self.grid
        self.whole_warps = self.threads % 32 == 0
        number = seed % deal()
        hand = list(forms if forms is not None else deck()[number * HAND : (number + 1) * HAND])
        self.chance.shuffle(hand)
        self.hand = hand
        self.labels = self.masks = self.counters = 0
        self.mask, self.place = "%m0", "block"
        self.exits = False
        self.body = self._body()

    # One form.

    def source(self, kind: str, only_register: bool) -> str:
        """Return what an instruction reads."""
        chance = self.chance
        if kind == "p":
            return f"%p{chance.randrange(COUNTS['p'])}"
        if kind == "k" and chance.random() < 0.6:
            return str(
                chance.choice([0, 1, 5, 7, 8, 15, 16, 24, 31, 32, 33, 40, 63, 64, 200, chance.randrange(32)])
            )
        numbers = {"f": "r", "e": "d", "k": "r"}.get(kind, kind)
        which = 1 if kind == "k" else chance.random()
        if not only_register and which < 0.12:
            return chance.choice(IMMEDIATES[kind])
        if which < 0.3 and numbers in SHARED:
            return f"%{SHARED[numbers]}{chance.randrange(3)}"
        if which < 0.36 and numbers == "r":
            return chance.choice(["%t", "%lane", "%b", "%count"])
        return f"%{numbers}{chance.randrange(COUNTS[numbers])}"

    def write(self, form: Form) -> str:
        """Write a form with registers, some of which it reads and writes."""
        chance, written, read = self.chance, [], []
        text = form.text
        shares = chance.random() < 0.08  # all that it reads is the same for all threads of a block
        self.labels += 1

        def fill(found: re.Match[str]) -> str:
            way, kind = found[1], found[2]
            low = kind.lower()
            if way == "?":
                if low == "n":
                    return chance.choice(["", "!"]) + self.source("p", True)
                value = self.source(low, kind.isupper())
                if shares and low in SHARED and value[0] == "%":
                    value = f"%{SHARED[low]}{chance.randrange(3)}"
                read.append(value)
                return value
            numbers = {"f": "r", "e": "d"}.get(low, low)
            names = [f"%{numbers}{n}" for n in range(COUNTS[numbers])]
            if numbers in SHARED and chance.random() < (0.7 if shares else 0.05):
                names = [f"%{SHARED[numbers]}{n}" for n in range(3)]
            aliases = [name for name in read if name in names and name not in written]
            free = [name for name in names if name not in written] or [
                f"%{numbers}{n}" for n in range(COUNTS[numbers]) if f"%{numbers}{n}" not in written
            ]
            to = chance.choice(aliases) if aliases and chance.random() < 0.4 else chance.choice(free)
            written.append(to)
            if kind in "fe":
                canonical.append((to, kind))
            results.append(to)
            return to

        canonical: list[tuple[str, str]] = []
        results: list[str] = []
        # Operands before results, so that results can be among them.
        text = re.sub(r"\?([hrdqpnfekHRDQP])\b", lambda m: fill(re.fullmatch(TOKEN, m[0])), text)  # type: ignore[arg-type]
        parts = []
        for part in text.split("; "):  # each instruction has results of its own
            written.clear()
            parts.append(re.sub(r"=([hrdqpnfeHRDQP])\b", lambda m: fill(re.fullmatch(TOKEN, m[0])), part))  # type: ignore[arg-type]
        text = "; ".join(parts)
        text = text.replace("@m", self.mask).replace("@L", f"W{self.labels}")
        text = re.sub(r"@o(\d+)", lambda m: str(chance.randrange(64 // int(m[1])) * int(m[1])), text)
        text = re.sub(r"@i(\d+)", lambda m: str(chance.randrange(16384 // int(m[1])) * int(m[1])), text)
        text = re.sub(
            r"(ld|st)@c(\.global|\.shared|\.local|\.param|\.const|)",
            lambda m: self.cached(m[1], m[2], text),
            text,
        )
        if form.guarded and chance.random() < 0.2:
            text = f"@{chance.choice(['', '!'])}%p{chance.randrange(COUNTS['p'])} {text}"
        for to, kind in canonical:  # which of several NaNs it is nobody says
            text += f" setp.nan.{'f32' if kind == 'f' else 'f64'} %pz, {to}, {to}; @%pz mov.b{BITS['r' if kind == 'f' else 'd']} {to}, {'0x7fc00000' if kind == 'f' else '0x7ff8000000000000'};"
        for to in dict.fromkeys(results):  # kept in a sum, before others are written there
            if chance.random() < 0.8:
                text += (
                    " "
                    + FOLD[to.strip("%0123456789")].format(to)
                    + f" mad.lo.u64 %sum, %sum, {2 * chance.randrange(1000) + 1}, %y2;"
                )
        return text + " //-"

    def cached(self, name: str, space: str, text: str) -> str:
        """Return a load's or store's name with a cache operator, or with how strong it is."""
        if space in (".param", ".const") or "b128" in text or self.chance.random() < 0.4:
            return name + space
        if space != ".local" and self.chance.random() < 0.4:
            order = "acquire" if name == "ld" else "release"
            return (
                name
                + self.chance.choice([".volatile", ".relaxed.gpu", f".{order}.cta", f".{order}.sys", ".weak"])
                + space
            )
        return (
            name
            + space
            + self.chance.choice(
                [".ca", ".cg", ".cs", ".cv", ".lu"] if name == "ld" else [".wb", ".cg", ".cs", ".wt"]
            )
        )

    # Statements.

    def refresh(self) -> str:
        """Write loads of fresh values, so that the edges stay among those at hand."""
        chance, k = self.chance, self.chance.choice("hrrddq")
        if k in SHARED and chance.random() < 0.15:
            name = f"%{SHARED[k]}{chance.randrange(3)}"
            return f"ld.global.b{BITS[k]} {name}, [%inb+{16 * chance.randrange(ROWS // 2)}]; //-"
        row, name = chance.randrange(ROWS // 2) * 16, f"%{k}{chance.randrange(COUNTS[k])}"
        return f"ld.global.b{BITS[k]} {name}, [%mine+{row}]; //-"

    def fits(self, form: Form) -> bool:
        """Return whether a form may stand here."""
        places = ("any", "warp", "block", "whole")
        here = "whole" if self.place == "block" and self.whole_warps else self.place
        return places.index(form.where) <= places.index(here) and (form.where != "warp" or self.whole_warps)

    def take(self) -> list[str]:
        """Write one of the forms at hand that may stand here, or any."""
        for n, form in enumerate(self.hand):
            if self.fits(form):
                return [self.write(self.hand.pop(n))]
        form = self.chance.choice(deck())
        return [self.write(form)] if self.fits(form) else []

    def some(self, most: int) -> list[str]:
        lines: list[str] = []
        for _ in range(self.chance.randint(1, most)):
            lines += [self.refresh()] if self.chance.random() < 0.25 else self.take()
        return lines

    def new_mask(self) -> str:
        self.masks += 1
        return f"%m{self.masks}"

    def inside(self, mask: str, most: int, depth: int) -> list[str]:
        """Write what only some lanes do, those of a mask."""
        kept = self.mask, self.place
        self.mask, self.place = mask, "any"
        lines = self.some(most)
        if depth < 2 and self.chance.random() < 0.45:
            lines += self.part(depth + 1) + self.some(most // 2)
        self.mask, self.place = kept
        return lines

    def met(self) -> list[str]:
        """Write that the lanes of the mask meet; those that have ended are no longer of it."""
        if not self.exits:
            return [f"bar.warp.sync {self.mask};"]
        return [f"bar.warp.sync {self.mask}; vote.sync.ballot.b32 {self.mask}, %true, {self.mask};"]

    def part(self, depth: int) -> list[str]:
        """Write a piece of control flow."""
        chance, most = self.chance, 14 >> depth
        what = chance.choice(
            [
                "plain",
                "branch",
                "branch",
                "loop",
                "own loop",
                "own loop",
                "same loop",
                "table",
                "table",
                "exit",
                "skip",
            ]
        )
        self.labels += 1
        n, p = self.labels, f"%p{chance.randrange(COUNTS['p'])}"
        if what == "plain":
            return self.some(most)
        if what == "branch":
            yes, no = self.new_mask(), self.new_mask()
            head = [
                f"vote.sync.ballot.b32 {yes}, {p}, {self.mask}; not.b32 {no}, {yes}; and.b32 {no}, {no}, {self.mask};"
            ]
            return [
                *head,
                f"@{p} bra E{n};",
                *self.inside(no, most, depth),
                f"bra J{n};",
                f"E{n}:",
                *self.inside(yes, most, depth),
                f"J{n}:",
                *self.met(),
            ]
        if what == "skip":
            yes, no = self.new_mask(), self.new_mask()
            return [
                f"vote.sync.ballot.b32 {yes}, {p}, {self.mask}; not.b32 {no}, {yes}; and.b32 {no}, {no}, {self.mask};",
                f"@!{p} bra J{n};",
                *self.inside(yes, most, depth),
                f"J{n}:",
                *self.met(),
            ]
        if what == "exit" and depth and not self.whole and not self.exits:
            self.exits = True
            left = self.new_mask()
            return [
                *self.some(2),
                f"and.b32 %z0, %lane, {chance.choice([3, 7])}; setp.eq.u32 %pz, %z0, {chance.randrange(4)}; vote.sync.ballot.b32 {left}, !%pz, {self.mask}; @%pz exit; mov.b32 {self.mask}, {left};",
                *self.some(3),
            ]
        if what == "table":
            masks = [self.new_mask() for _ in range(3)]
            at = chance.choice(["%t", "%lane", f"%r{chance.randrange(COUNTS['r'])}", "%b"])
            head = [
                f"shr.u32 %z0, {at}, {chance.choice([0, 0, 1, 4])}; and.b32 %z0, %z0, 3; min.u32 %z0, %z0, 2;"
            ]
            falls = chance.random() < 0.5
            for k, mask in enumerate(masks):
                compare = "le" if falls and k == 1 else "eq"
                head.append(
                    f"setp.{compare}.u32 %pz, %z0, {k}; vote.sync.ballot.b32 {mask}, %pz, {self.mask};"
                )
            order = [f"B{n}_{k}" for k in range(3)]
            body = [*head, f"N{n}: .branchtargets {', '.join(order)};", f"brx.idx %z0, N{n};"]
            for k, mask in enumerate(masks):
                body += [f"B{n}_{k}:", *self.inside(mask, most // 2 + 1, depth)]
                if not (falls and k == 0):
                    body.append(f"bra J{n};")
            return [*body, f"J{n}:", *self.met()]
        if what in ("loop", "own loop", "same loop"):
            self.counters += 1
            counter, mask, again = f"%n{self.counters}", self.new_mask(), self.new_mask()
            begin = {
                "loop": "mov.u32 {0}, 0;",
                "own loop": "and.b32 {0}, %t, 3;",
                "same loop": "and.b32 {0}, %b, 1;",
            }[what].format(counter)
            lines = [f"mov.b32 {mask}, {self.mask};", begin, f"T{n}:", *self.inside(mask, most, depth)]
            if chance.random() < 0.5:  # some leave it
                left = self.new_mask()
                how = "exit" if chance.random() < 0.4 and not self.exits and not self.whole else f"bra O{n}"
                q = f"%p{chance.randrange(COUNTS['p'])}"
                if how == "exit":
                    self.exits = True
                    lines.append(
                        f"and.b32 %z0, %lane, 7; setp.eq.u32 %pz, %z0, {counter}; vote.sync.ballot.b32 {left}, !%pz, {mask}; @%pz exit; mov.b32 {mask}, {left};"
                    )
                else:
                    lines.append(
                        f"mov.pred %pz, {q}; vote.sync.ballot.b32 {left}, !%pz, {mask}; @%pz {how}; mov.b32 {mask}, {left};"
                    )
                lines += self.inside(mask, most // 2 + 1, 2)
            lines.append(
                f"add.u32 {counter}, {counter}, 1; setp.lt.u32 %pz, {counter}, {chance.choice([2, 4])}; vote.sync.ballot.b32 {again}, %pz, {mask}; mov.b32 {mask}, {again}; @%pz bra T{n};"
            )
            return [*lines, f"O{n}:", *self.met()]
        return self.some(most)

    def _body(self) -> list[str]:
        lines: list[str] = []
        for _ in range(self.chance.randint(2, 5)):
            lines += self.some(10)
            lines += self.part(0)
            if self.exits:
                self.place = "any"
        while any(self.fits(form) for form in self.hand):
            lines += self.take()
            if self.chance.random() < 0.4:
                lines.append(self.refresh())
        return lines

    # The whole kernel.

    def text(self, body: list[str] | None = None) -> str:
        """Write the kernel, or one with less in it."""
        lines = self.body if body is None else body
        bx, by, _ = self.block
        stored = [f"%{k}{n}" for k in "hrdq" for n in range(COUNTS[k])] + [
            f"%{k}{n}" for k in SHARED.values() for n in range(3)
        ]
        width = {**BITS, "hu": 16, "ru": 32, "du": 64}
        head, tail, at = [], [], 0
        for name in stored:
            bits = width[name.strip("%0123456789")]
            base = "%inb" if name[2] == "u" else "%mine"
            head.append(f"ld.global.b{bits} {name}, [{base}+{(at * 16 + 32) % (ROWS * 8)}];")
            tail.append(f"st.global.b{bits} [%out+{at * 16}], {name};")
            at += 1
        for n in range(COUNTS["p"]):
            head.append(
                f"setp.{('gt.s32', 'lt.u32', 'eq.u32', 'ne.u32')[n % 4]} %p{n}, {('%r0', '%t', '%lane', '%b')[n % 4]}, {(0, 40, 5, 0)[n % 4]};"
            )
            tail.append(f"selp.u32 %z0, 1, 2, %p{n}; st.global.u32 [%out+{at * 16 + 4 * n}], %z0;")
        at += 2
        tail += [
            f"ld.{space}.v2.u64 {{%y0, %y1}}, [{base}+{16 * n}]; st.global.v2.u64 [%out+{(at + 5 * k + n) * 16}], {{%y0, %y1}};"
            for k, (space, base) in enumerate((("shared", "%s"), ("local", "%l")))
            for n in range(OWN // 16)
        ]
        tail.append(f"st.global.u64 [%out+{(at + 13) * 16}], %sum;")
        self.out_bytes = 16 * (at + 14)
        registers = (
            " ".join(f".reg .b{BITS[k]} %{k}<{COUNTS[k]}>;" for k in "hrdq")
            + " "
            + " ".join(f".reg .b{width[k]} %{k}<3>;" for k in SHARED.values())
        )
        fill = [
            f"ld.global.v2.u64 {{%y0, %y1}}, [%mine+{16 * n}]; st.shared.v2.u64 [%s+{16 * n}], {{%y0, %y1}}; st.local.v2.u64 [%l+{16 * n}], {{%y1, %y0}};"
            for n in range(OWN // 16 - 1)
        ]
        fill.append(
            "mov.u64 %y0, 0x3ff0000040000000; mov.u64 %y1, 0x3fe0000000000000; "
            + " ".join(
                f"st{space}.v2.u64 [{base}+64], {{%y0, %y1}};"
                for space, base in ((".global", "%g"), (".shared", "%s"), (".local", "%l"))
            )
        )
        return "\n".join([
            ".version 8.6\n.target sm_90\n.address_size 64", f".const .align 16 .b8 kk[64] = {{{', '.join(str(n * 37 % 256) for n in range(64))}}};", FUNCTIONS,
            ".visible .entry k(.param .u64 in, .param .u64 own, .param .u64 out, .param .align 16 .b8 some[64])\n{",
            f"{registers} .reg .pred %p<{COUNTS['p']}>, %pz, %true, %first; .reg .b32 %z<8>, %t, %b, %lane, %count, %s4, %s8, %w, %m<{self.masks + 1}>, %n<{self.counters + 1}>, %x<24>;",
            ".reg .b8 %k<2>; .reg .b32 %onef16, %onebf16; .reg .f64 %v<8>; .reg .b64 %sum, %in, %inb, %g, %out, %s, %sg, %l, %lg, %pa, %ka, %mine, %alls, %y<4>;",
            f".shared .align 16 .b8 s[{self.threads * OWN}]; .shared .align 16 .b8 e[1024]; .shared .align 16 .b8 w[{-(-self.threads // 32) * 1024}]; .shared .align 16 .b8 all[64]; .shared .align 16 .b8 bulk[64]; .shared .align 8 .b64 mb; .local .align 16 .b8 d[{OWN}];",
            "two: .callprototype (.reg .b32 _) _ (.reg .b32 _, .reg .b32 _);",
            "mov.u32 %t, %tid.x;" if self.block[1:] == (1, 1) else f"mov.u32 %t, %tid.z; mov.u32 %z0, %tid.y; mad.lo.u32 %t, %t, {by}, %z0; mov.u32 %z0, %tid.x; mad.lo.u32 %t, %t, {bx}, %z0;",
            f"mov.u32 %b, %ctaid.x; mov.u32 %lane, %laneid; mov.u32 %count, {self.threads}; setp.eq.u32 %first, %t, 0; setp.eq.u32 %true, %b, %b; mov.u32 %onef16, 0x3c003c00; mov.u32 %onebf16, 0x3f803f80;",
            f"ld.param.u64 %in, [in]; ld.param.u64 %g, [own]; ld.param.u64 %out, [out]; mad.lo.u32 %z0, %b, {self.threads}, %t; mad.wide.u32 %g, %z0, {OWN}, %g; mad.wide.u32 %out, %z0, {self.out_bytes}, %out; mad.wide.u32 %mine, %z0, {ROWS * 8}, %in;",
            f"mul.wide.u32 %y0, %b, {ROWS * 8 + 16}; add.u64 %inb, %in, %y0; mov.u64 %y0, s; mad.wide.u32 %s, %t, {OWN}, %y0; cvt.u32.u64 %s4, %s; cvta.shared.u64 %sg, %s; mov.u64 %l, d; cvta.local.u64 %lg, %l; mov.u64 %pa, some; mov.u64 %ka, kk; mov.u32 %s8, e;",
            "shr.u32 %z0, %t, 5; mov.u32 %w, w; mad.lo.u32 %w, %z0, 1024, %w; mov.u64 %alls, all; cvta.shared.u64 %alls, %alls; mov.u64 %y0, 0; mad.lo.u32 %z0, %lane, 32, %w; st.shared.v2.u64 [%z0], {%y0, %y0}; st.shared.v2.u64 [%z0+16], {%y0, %y0};", *fill,
            f"rem.u32 %z0, %t, 64; FILL: mad.wide.u32 %y0, %z0, 16, %in; ld.global.v2.u64 {{%y1, %y2}}, [%y0]; mad.lo.u32 %z1, %z0, 16, %s8; st.shared.v2.u64 [%z1], {{%y1, %y2}}; add.u32 %z0, %z0, {self.threads}; setp.lt.u32 %pz, %z0, 64; @%pz bra FILL;",
            "mov.u64 %y1, 0; @%first st.shared.u64 [all], %y1; @%first st.shared.u64 [all+8], %y1; @%first st.shared.u64 [all+16], %y1; @%first st.shared.u64 [all+24], %y1; @%first st.shared.u64 [all+32], %y1; @%first st.shared.u64 [all+40], %y1; @%first st.shared.v2.u64 [bulk], {%y1, %y1}; @%first st.shared.v2.u64 [bulk+16], {%y1, %y1}; @%first st.shared.v2.u64 [bulk+32], {%y1, %y1}; @%first st.shared.v2.u64 [bulk+48], {%y1, %y1}; bar.sync 0;",
            *head, "mov.u64 %sum, 0; activemask.b32 %m0;", *lines, *tail, *(["bar.sync 0;", *(f"@%first ld.shared.v2.u64 {{%y0, %y1}}, [all+{16 * n}]; @%first st.global.v2.u64 [%out+{16 * (at + 10 + n)}], {{%y0, %y1}};" for n in range(3))] if not self.exits else []), "ret;\n}\n",
        ])  # fmt: skip

    # What it reads.

    def arrays(self, seed: int) -> list[np.ndarray[Any, Any]]:
        """Return what it reads, what each thread has of its own, and where it stores."""
        self.text()
        random = np.random.default_rng(seed)
        given = edges(random, self.all * ROWS + (self.grid * 16 + 16384) // 8 + 64)
        own = edges(random, self.all * OWN // 8)
        own.reshape(self.all, OWN // 8)[:, 8:] = 0  # the kernel itself says what is in them
        return [given, own, np.zeros(self.all * self.out_bytes // 8, np.uint64)]

    def parameters(self, seed: int) -> bytes:
        """Return the last parameter's bytes."""
        return edges(np.random.default_rng(seed), 8).tobytes()


def edges(random: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
    """Return numbers of 64 bits that are edges in one of their readings: infinities, NaNs, subnormals, zeros, long shifts; and usual ones."""
    f64 = [
        0,
        1,
        0x000FFFFFFFFFFFFF,
        0x0010000000000000,
        0x3FF0000000000000,
        0x3FEFFFFFFFFFFFFF,
        0x7FEFFFFFFFFFFFFF,
        0x7FF0000000000000,
        0x7FF0000000000001,
        0x7FF8000000000123,
        0x43E0000000000000,
        0x41DFFFFFFFC00000,
        0x380FFFFFF0000000,
        0x47EFFFFFF0000000,
        0x3690000000000000,
    ]
    f32 = [
        0,
        1,
        0x7FFFFF,
        0x800000,
        0x3F800000,
        0x3F7FFFFF,
        0x7F7FFFFF,
        0x7F800000,
        0x7F800001,
        0x7FC01234,
        0x4F000000,
        0x4EFFFFFF,
        0x5F000000,
        0x33800000,
        0x387FC000,
        0x477FF000,
        0x477FE000,
        0x33000000,
        0x3F808000,
        0x3F818000,
        0x7F7F8000,
    ]
    f16 = [0, 1, 0x3FF, 0x400, 0x3C00, 0x3BFF, 0x7BFF, 0x7C00, 0x7C01, 0x7E12, 0x7FFF, 0x3555, 0x1001]
    bf16 = [0, 1, 0x7F, 0x80, 0x3F80, 0x3F7F, 0x7F7F, 0x7F80, 0x7F81, 0x7FC1, 0x7FFF, 0x3EAB, 0x4780]
    small = np.arange(-70, 71)

    def some(values: list[int], bits: int) -> np.ndarray[Any, Any]:
        lanes = 64 // bits
        chosen = random.choice(np.array(values, np.uint64), (count, lanes))
        chosen = chosen | random.integers(0, 2, (count, lanes)).astype(np.uint64) << np.uint64(bits - 1)
        return sum((chosen[:, n] << np.uint64(bits * n) for n in range(lanes)), np.zeros(count, np.uint64))

    usual = (
        (random.standard_normal((count, 2)) * 2.0 ** random.integers(-12, 12, (count, 2)))
        .astype(np.float32)
        .view(np.uint64)[:, 0]
    )
    kinds = [
        some(f64, 64), some(f32, 32), some(f16, 16), some(bf16, 16), usual, (random.standard_normal(count) * 100).view(np.uint64),
        random.standard_normal((count, 4)).astype(np.float16).view(np.uint64)[:, 0], random.integers(0, 2**64, count, np.uint64),
        random.choice(small, count).astype(np.int64).view(np.uint64), random.choice(small, (count, 2)).astype(np.int32).view(np.uint64)[:, 0],
        random.choice(np.array([0x7FFF, 0x8000, 0x80000000, 0x7FFFFFFF, 2**63, 2**63 - 1, 2**64 - 1, 0xFF, 0x100], np.uint64), count),
    ]  # fmt: skip
    return np.choose(random.integers(0, len(kinds), count), kinds)
