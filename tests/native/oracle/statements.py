"""Statements of generated kernels, as a tree from which a shrinking step can drop parts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from tests.native.oracle.expressions import COMMON, FLOATS, HALVES, INTEGERS, Expressions, Scope

ATOMICS = {
    "u32": ("atomicAdd", "atomicMin", "atomicMax", "atomicAnd", "atomicOr", "atomicXor"),
    "i32": ("atomicAdd", "atomicMin", "atomicMax", "atomicAnd", "atomicOr", "atomicXor"),
    "u64": ("atomicAdd", "atomicMin", "atomicMax", "atomicAnd", "atomicOr", "atomicXor"),
    "i64": ("atomicMin", "atomicMax"),
    "f32": ("atomicAdd",),
    "f64": ("atomicAdd",),
}
# With a location of its own a thread may do what depends on the order, and look at what was there.
ALONE = {
    "u32": (
        "atomicAdd",
        "atomicSub",
        "atomicExch",
        "atomicInc",
        "atomicDec",
        "atomicMax",
        "atomicXor",
        "atomicCAS",
    ),
    "i32": ("atomicAdd", "atomicSub", "atomicExch", "atomicMin", "atomicAnd", "atomicCAS"),
    "u64": ("atomicAdd", "atomicExch", "atomicMax", "atomicOr", "atomicCAS"),
    "f32": ("atomicExch",),  # a GPU's sum in global memory flushes subnormal numbers
    "f64": ("atomicAdd",),
}
CELLS = [(kind, what) for kind, every in ATOMICS.items() for what in every]
SIZES = {"u8": 1, "i8": 1, "u16": 2, "i16": 2, "f16": 2, "bf16": 2, "u32": 4, "i32": 4, "f32": 4, "u64": 8, "i64": 8, "f64": 8}  # fmt: skip


@dataclass
class Node:
    """A statement: text, and between it lists of statements."""

    parts: list[str | list[Node]]

    def text(self) -> str:
        return "".join(p if isinstance(p, str) else "".join(n.text() for n in p) for p in self.parts)

    def lists(self) -> Iterator[list[Node]]:
        """Yield every list of statements below this one, outer ones first."""
        for part in self.parts:
            if isinstance(part, list):
                yield part
                for node in part:
                    yield from node.lists()


@dataclass(frozen=True)
class Place:
    """Threads that execute a statement, and what it may therefore do."""

    depth: int
    block: bool  # all threads of the block together: it may wait at a barrier
    mask: str | None  # the variable that holds the lanes which are here together; None: nobody knows
    loop: bool = False  # break and continue
    scope: Scope = field(default_factory=Scope)


class Statements:
    """Makes the statements of one kernel or function."""

    def __init__(self, chance: random.Random, expressions: Expressions) -> None:
        self._chance, self._expressions = chance, expressions
        self._names = 0
        self.assignable: dict[str, list[str]] = {}
        self.shared_words = (
            0  # the array of one word a thread and of as many halves of it; 0: the kernel has none
        )
        self.pointers = False  # the thread's own memory, cells, input
        self.arrays: dict[str, str] = {}  # a type to an array of eight of it
        self.threads = 0
        self.calls: list[Callable[[Place], str]] = []  # of functions that write through pointers

    def fresh(self, stem: str) -> str:
        self._names += 1
        return f"{stem}{self._names}"

    def expression(self, kind: str, place: Place, depth: int = 3) -> str:
        return self._expressions.make(kind, place.scope, depth)

    def variable(self) -> tuple[str, str]:
        kind = self._chance.choice([k for k in COMMON if self.assignable.get(k)])
        return kind, self._chance.choice(self.assignable[kind])

    def block(self, place: Place, count: int) -> list[Node]:
        return [self.statement(place) for _ in range(count)]

    def statement(self, place: Place) -> Node:
        chance = self._chance
        kinds: list[tuple[int, Callable[[Place], Node]]] = [(30, self.assign)]
        if place.depth > 0:
            kinds += [(7, self.branch), (5, self.loop), (3, self.switch)]
        if place.loop:
            kinds.append((6, self.leave))
        if self.arrays:
            kinds += [(6, self.array)]
        if self.pointers:
            kinds += [
                (5, self.memory),
                (3, self.vector),
                (2, self.packed),
                (3, self.atomic),
                (3, self.atomic_alone),
                (2, self.structure),
                (2, self.bit_field),
                (2, self.exchanged_until_it_holds),
            ]
        if self.calls:
            kinds += [(4, self.call)]
        if place.mask:
            kinds += [(16, self.exchange)]
        if place.block and self.shared_words:
            kinds += [(9, self.shared), (3, self.count)]
        if place.mask and self.shared_words:
            kinds += [(3, self.shared_of_warp)]
        return chance.choices([k for _, k in kinds], [w for w, _ in kinds])[0](place)

    # --- plain statements ---
    def assign(self, place: Place) -> Node:
        kind, name = self.variable()
        return Node([f"{name} = {self.expression(kind, place)};\n"])

    def set(self, place: Place, kind: str, value: str) -> str:
        """Return the text that lets a value matter: some variable takes it up."""
        names = self.assignable.get(kind)
        if names and self._chance.random() < 0.5 and kind not in HALVES:
            name = self._chance.choice(names)
            if kind in INTEGERS:
                return f"{name} = ({kind})({name} ^ {value});\n"
            return f"{name} = {value};\n"
        return f"fold(sum, {value});\n"

    def leave(self, place: Place) -> Node:
        what = self._chance.choice(("break", "break", "continue"))
        return Node([f"if ({self.expression('bool', place, 2)}) {what};\n"])

    def array(self, place: Place) -> Node:
        chance = self._chance
        kind, name = chance.choice(list(self.arrays.items()))
        at = f"{name}[{self.expression('u32', place, 1)} & 7]"
        if chance.random() < 0.6:
            return Node([f"{at} = {self.expression(kind, place, 2)};\n"])
        return Node([self.set(place, kind, at)])

    def call(self, place: Place) -> Node:
        return Node([self._chance.choice(self.calls)(place)])

    # --- control flow ---
    def branch(self, place: Place) -> Node:
        chance = self._chance
        inner = replace(place, depth=place.depth - 1)
        if chance.random() < 0.2 and "uniform" in place.scope.variables:  # the same for the whole block
            condition = (
                f"({chance.choice(place.scope.variables['uniform'])} & {1 << chance.randrange(3)}) != 0"
            )
            return Node(
                [f"if ({condition}) {{\n", self.block(inner, 3), "} else {\n", self.block(inner, 2), "}\n"]
            )
        condition = self.expression("bool", place, 2)
        if place.mask and chance.random() < 0.7:
            name, yes, no = self.fresh("c"), self.fresh("m"), self.fresh("m")
            head = f"const bool {name} = {condition};\nconst u32 {yes} = __ballot_sync({place.mask}, {name}), {no} = {place.mask} & ~{yes};\n"
            there, else_there = replace(inner, block=False, mask=yes), replace(inner, block=False, mask=no)
            parts: list[str | list[Node]] = [f"{{ {head}if ({name}) {{\n", self.block(there, 3)]
            if chance.random() < 0.5:
                parts += ["} else {\n", self.block(else_there, 2)]
            else:
                parts.append(f"(void){no};\n")
            return Node([*parts, "} }\n"])
        there = replace(inner, block=False, mask=None)
        parts = [f"if ({condition}) {{\n", self.block(there, chance.randint(1, 3))]
        if chance.random() < 0.5:
            parts += ["} else {\n", self.block(there, chance.randint(1, 2))]
        return Node([*parts, "}\n"])

    def loop(self, place: Place) -> Node:
        chance = self._chance
        name = self.fresh("turn")
        scope = place.scope.inner()
        scope.name("u32", name)
        same = f"u32 {name} = 0; {name} < {chance.randint(1, 6)}; {name} += {chance.randint(1, 2)}"
        inner = replace(place, depth=place.depth - 1, scope=scope)
        if place.mask and chance.random() < 0.6:
            if chance.random() < 0.4:  # every lane turns as often
                return Node([f"for ({same}) {{\n", self.block(replace(inner, loop=False), 3), "}\n"])
            mask, count = self.fresh("m"), self.fresh("n")
            there = replace(inner, block=False, mask=mask, loop=False)
            go, out = self.fresh("c"), self.fresh("c")
            return Node(
                [
                    f"{{ u32 {mask} = {place.mask}; const u32 {count} = {self.expression('u32', place, 2)} & 7;\n"
                    f"for (u32 {name} = 0;; ++{name}) {{\nconst bool {go} = {name} < {count};\n"
                    f"{mask} = __ballot_sync({mask}, {go});\nif (!{go}) break;\n",
                    self.block(there, 2),
                    f"const bool {out} = {self.expression('bool', there, 2)};\n"
                    f"{mask} = __ballot_sync({mask}, !{out});\nif ({out}) break;\n",
                    self.block(there, 1),
                    "} }\n",
                ]
            )
        there = replace(inner, block=False, mask=None, loop=True)
        if chance.random() < 0.5:
            same = f"u32 {name} = 0, n = {self.expression('u32', place, 2)} & 7; {name} < n; ++{name}"
        if chance.random() < 0.25:
            turns = f"{name} = {self.expression('u32', place, 2)} % {chance.randint(2, 6)}"
            return Node(
                [
                    f"{{ u32 {turns};\ndo {{\n",
                    self.block(there, 3),
                    f"}} while ({name}-- > 0 && {name} < 8); }}\n",
                ]
            )
        return Node([f"for ({same}) {{\n", self.block(there, 3), "}\n"])

    def switch(self, place: Place) -> Node:
        chance = self._chance
        there = replace(place, depth=place.depth - 1, block=False, mask=None, loop=False)
        kind = chance.choice(("u32", "i32", "u8", "i64"))
        span = chance.choice((3, 7, 15))
        most = span if chance.random() < 0.15 else 7  # dense ones become tables of labels
        parts: list[str | list[Node]] = [f"switch ({self.expression(kind, place, 2)} & {span}) {{\n"]
        for case in chance.sample(range(span + 1), min(span, chance.randint(2, most)) if most == 7 else span):
            parts += [f"case {case}: {{\n", self.block(there, 1), "}\n" + ("break;\n" if chance.random() < 0.7 else "[[fallthrough]];\n")]  # fmt: skip
        return Node([*parts, "default: {\n", self.block(there, 1), "} }\n"])

    # --- memory ---
    def memory(self, place: Place) -> Node:
        """Store a number into the thread's own memory, and load one of any type, in global or local memory."""
        chance = self._chance
        base = chance.choice(("own->bytes", "own->bytes", "local.bytes"))
        volatile = chance.choice(("", "", "volatile "))
        kind, other = chance.choice(COMMON), chance.choice(COMMON)
        value = self.expression(kind, place, 2)
        value = (
            f"one_nan({value})"
            if kind in FLOATS
            else f"{kind}{{(u16)bits({value})}}"
            if kind in HALVES
            else value
        )
        text = f"*({kind}*)({base} + ({self.expression('u32', place, 1)} & {64 - SIZES[kind]})) = {value};\n"
        at = f"({base} + ({self.expression('u32', place, 1)} & {64 - SIZES[other]}))"
        if other in INTEGERS and chance.random() < 0.3:  # an index below zero
            at = f"({base} + 32 + (i64)({self.expression('i8', place, 1)} % 3) * 8)"
        qualified = other if other in HALVES else volatile + other
        return Node([text + self.set(place, other, f"({other})*({qualified}*){at}")])

    def vector(self, place: Place) -> Node:
        chance = self._chance
        kind, parts, part = chance.choice(
            (("Quad", "xyzw", "i32"), ("Pair", "xy", "f32"), ("Four16", "xyzw", "u16"), ("Four8", "xyzw", "i8"), ("Pair64", "xy", "u64"))
        )  # fmt: skip
        size = {"Quad": 16, "Pair": 8, "Four16": 8, "Four8": 4, "Pair64": 16}[kind]
        name = self.fresh("q")
        mask = 64 - size
        values = "".join(
            f"{name}.{at} = {f'one_nan({e})' if part == 'f32' else e};\n"
            for at, e in ((at, self.expression(part, place, 1)) for at in parts)
        )
        return Node(
            [
                f"{{ {kind} {name} = *({kind}*)(own->bytes + ({self.expression('u32', place, 1)} & {mask}));\n"
                f"{self.set(place, part, f'{name}.{chance.choice(parts)}')}"
                f"{values}"
                f"*({kind}*)(own->bytes + ({self.expression('u32', place, 1)} & {mask})) = {name}; }}\n"
            ]
        )

    def packed(self, place: Place) -> Node:
        """Copy a structure without alignment from and to anywhere."""
        name = self.fresh("q")
        part, kind = self._chance.choice((("a", "u8"), ("b", "u32"), ("c", "u16"), ("d", "u64"), ("e", "i8")))
        at = [f"(own->bytes + {self.expression('u32', place, 1)} % 48)" for _ in range(2)]
        return Node(
            [
                f"{{ Packed {name} = *(Packed*){at[0]};\n{self.set(place, kind, f'({kind}){name}.{part}')}"
                f"{name}.{part} = {self.expression(kind, place, 2)};\n*(Packed*){at[1]} = {name}; }}\n"
            ]
        )

    def structure(self, place: Place) -> Node:
        """Change and copy elements of an array of structures in local memory."""
        part, kind = self._chance.choice(
            (("a", "u8"), ("b", "i16"), ("c", "f32"), ("d", "u64"), ("e[1]", "i8"), ("e[4]", "i8"))
        )
        to, of = (f"mixed[{self.expression('u32', place, 1)} & 3]" for _ in range(2))
        value = self.expression(kind, place, 2)
        return Node([f"{to}.{part} = {value};\n{to} = {of};\n{self.set(place, kind, f'{of}.{part}')}"])

    def bit_field(self, place: Place) -> Node:
        part, kind = self._chance.choice(
            (("a", "u32"), ("b", "i32"), ("c", "u64"), ("d", "i64"), ("e", "u8"))
        )
        text = f"fields.{part} = {self.expression(kind, place, 2)};\n"
        part, kind = self._chance.choice(
            (("a", "u32"), ("b", "i32"), ("c", "u64"), ("d", "i64"), ("e", "u8"))
        )
        return Node([text + self.set(place, kind, f"({kind})fields.{part}")])

    def exchanged_until_it_holds(self, place: Place) -> Node:
        """Add to a number of all threads by compare and swap, for as long as another one comes between."""
        kind = self._chance.choice(("u32", "u64"))
        cell = f"({kind}*)(cells + {CELLS.index((kind, 'atomicAdd'))})"
        old, seen = self.fresh("old"), self.fresh("seen")
        return Node(
            [
                f"{{ {kind} {old} = 0, {seen};\ndo {{ {seen} = {old}; "
                f"{old} = atomicCAS({cell}, {seen}, add({seen}, {self.expression(kind, place, 1)})); }} while ({old} != {seen}); }}\n"
            ]
        )

    def atomic(self, place: Place) -> Node:
        """Change a number that all threads change in the same way, whose order does not matter."""
        chance = self._chance
        kind = chance.choice(list(ATOMICS))
        what = chance.choice(ATOMICS[kind])
        value = self.expression(kind, place, 2)
        if kind in FLOATS:  # sums of small whole numbers are exact
            value = f"({kind})(i32)({self.expression('u32', place, 2)} & 63)"
        return Node([f"{what}(({kind}*)(cells + {CELLS.index((kind, what))}), {value});\n"])

    def atomic_alone(self, place: Place) -> Node:
        chance = self._chance
        kind = chance.choice(list(ALONE))
        what = chance.choice(ALONE[kind])
        at = f"({kind}*)(own->bytes + ({self.expression('u32', place, 1)} & {64 - SIZES[kind]}))"
        operands = ", ".join(
            f"one_nan({e})" if kind in FLOATS else e
            for e in (self.expression(kind, place, 2) for _ in range(2 if what == "atomicCAS" else 1))
        )
        if kind in FLOATS:
            name = self.fresh("p")
            stays = f"*{name} = one_nan(*{name});\n"
            return Node(
                [
                    f"{{ {kind}* {name} = {at};\n{self.set(place, kind, f'{what}({name}, {operands})')}{stays}}}\n"
                ]
            )
        before = ""
        if (
            what in ("atomicInc", "atomicDec") and chance.random() < 0.7
        ):  # both ends are met among small numbers
            at = f"({kind}*)(own->bytes + {4 * chance.randrange(16)})"
            before, operands = f"*{at} = {self.expression(kind, place, 2)} & 3;\n", f"{operands} & 3"
        return Node([before + self.set(place, kind, f"{what}({at}, {operands})")])

    # --- warps and blocks ---
    def exchange(self, place: Place) -> Node:
        chance = self._chance
        mask = place.mask
        word = self.expression(chance.choice(("u32", "u32", "i32")), place, 2)
        kind = chance.choice(("u32", "i32", "u64", "i64", "f32", "f64"))
        value = self.expression(kind, place, 2)
        lanes = self.expression("u32", place, 2)
        distance = chance.choice((str(1 << chance.randrange(5)), str(chance.randrange(32))))
        width = chance.choice((32, 32, 16, 8, 4, 2, 1))
        ways: list[tuple[str, str]] = [
            (kind, f"shuffled({mask}, {value}, lane, {lanes}, {width})"),
            (kind, f"shuffled({mask}, {value}, lane, {distance}, {width})"),
            (kind, f"shuffled_up({mask}, {value}, lane, {distance}, {width})"),
            (kind, f"shuffled_down({mask}, {value}, lane, {distance}, {width})"),
            (kind, f"shuffled_xor({mask}, {value}, lane, {distance}, {width})"),
            ("u32", f"__ballot_sync({mask}, {self.expression('bool', place, 2)})"),
            ("i32", f"(i32)(__any_sync({mask}, {self.expression('bool', place, 2)}) != 0)"),
            ("i32", f"(i32)(__all_sync({mask}, {self.expression('bool', place, 2)}) != 0)"),
            ("u32", f"__match_any_sync({mask}, (u32)({word}) & 3)"),
            ("u32", f"__match_any_sync({mask}, (u64)({word}) << 32)"),
            ("u32", f"match_all({mask}, (u32)({word}) & 1)"),
            (
                "u32",
                f"reduce_{chance.choice(('add', 'min', 'max', 'and', 'or', 'xor'))}({mask}, (u32){word})",
            ),
            ("i32", f"reduce_{chance.choice(('min', 'max'))}({mask}, (i32){word})"),
        ]
        made, text = chance.choice(ways)
        return Node([self.set(place, made, text)])

    def shared(self, place: Place) -> Node:
        """Everybody writes, waits, and reads what another one wrote."""
        chance = self._chance
        kind, array, step = chance.choice(
            (("u32", "words", 1), ("i32", "(i32*)words", 1), ("u64", "longs", 1), ("u8", "(u8*)words", 4), ("i16", "(i16*)words", 2), ("f32", "(f32*)words", 1))
        )  # fmt: skip
        value = self.expression(kind, place, 2)
        value = f"one_nan({value})" if kind == "f32" else value
        if array == "longs" and chance.random() < 0.4:  # an atomic whose cell all threads share
            what = chance.choice(ATOMICS["u32"])
            start = chance.choice(("0u", "~0u", "0x55aa1234u"))
            return Node(
                [
                    f"if (thread < 8) words[thread] = {start};\n__syncthreads();\n"
                    f"{what}(words + ({self.expression('u32', place, 2)} & 7), {self.expression('u32', place, 2)});\n"
                    f"__syncthreads();\n{self.set(place, 'u32', 'words[thread & 7]')}__syncthreads();\n"
                ]
            )
        other = f"{self.expression('u32', place, 2)} % {self.threads}"
        return Node(
            [
                f"({array})[thread * {step}] = {value};\n__syncthreads();\n"
                f"{self.set(place, kind, f'({array})[({other}) * {step}]')}__syncthreads();\n"
            ]
        )

    def shared_of_warp(self, place: Place) -> Node:
        """The same among the lanes that are here."""
        source = f"({self.expression('u32', place, 1)} & 31)"
        name = self.fresh("source")
        return Node(
            [
                f"{{ lane_words[thread] = {self.expression('u32', place, 2)};\n__syncwarp({place.mask});\n"
                f"const u32 {name} = {source};\n"
                f"{self.set(place, 'u32', f'lane_words[{place.mask} >> {name} & 1 ? (thread & ~31u) + {name} : thread]')}"
                f"__syncwarp({place.mask}); }}\n"
            ]
        )

    def count(self, place: Place) -> Node:
        what, test = self._chance.choice((("count", ""), ("and", " != 0"), ("or", " != 0")))
        text = f"(i32)(__syncthreads_{what}({self.expression('bool', place, 2)}){test})"
        return Node([self.set(place, "i32", text)])
