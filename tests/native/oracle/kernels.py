"""Whole kernels from a seed: declarations, device functions, launch and arguments."""

from __future__ import annotations

import ctypes as c
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.native.oracle.expressions import COMMON, FLOATS, HALVES, INTEGERS, Expressions, Scope, constant
from tests.native.oracle.statements import CELLS, SIZES, Node, Place, Statements

BLOCKS = ((32, 1, 1), (33, 1, 1), (64, 1, 1), (8, 5, 1), (16, 2, 3), (47, 2, 1), (96, 1, 1), (11, 1, 1))
GRIDS = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (3, 1, 1))
CTYPES: dict[str, type[c._SimpleCData[int]] | type[c._SimpleCData[float]]] = {
    "u8": c.c_uint8, "i8": c.c_int8, "u16": c.c_uint16, "i16": c.c_int16, "u32": c.c_uint32, "i32": c.c_int32,
    "u64": c.c_uint64, "i64": c.c_int64, "f32": c.c_float, "f64": c.c_double,
}  # fmt: skip
NUMBERS = (*INTEGERS, *FLOATS)
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-40, -3e-45, 3.4e38, float("inf"), float("-inf"), float("nan"), 2.0**31, -(2.0**63), 2.0**64, 1.5, 2.5)  # fmt: skip


def floating(chance: random.Random) -> float:
    """Return a number that single precision has, often a special one."""
    value = chance.choice((chance.choice(SPECIAL), chance.uniform(-10, 10), chance.randint(-20, 20) / 2, float(chance.randint(-70000, 70000)), chance.uniform(-1, 1) * 10.0 ** chance.randint(-36, 36)))  # fmt: skip
    return float(struct.unpack("f", struct.pack("f", value))[0])


def integer(chance: random.Random, bits: int) -> int:
    return chance.choice((chance.getrandbits(bits), chance.randrange(40), (1 << chance.randrange(bits)) - chance.randrange(2), (1 << bits) - 1 - chance.randrange(4)))  # fmt: skip


def input_bytes(chance: random.Random) -> bytes:
    """Return an ``Input`` of common.h."""
    words = struct.pack("256I", *(integer(chance, 32) for _ in range(256)))
    floats = struct.pack("256f", *(floating(chance) for _ in range(256)))
    wide = (floating(chance) * chance.choice((1.0, 1.0, 1e200, 1 / 3)) for _ in range(256))
    return words + floats + struct.pack("256d", *wide)


@dataclass
class Function:
    """A device function: its text around the statements, which may be dropped."""

    head: str
    body: list[Node]
    tail: str

    def text(self) -> str:
        return self.head + "".join(n.text() for n in self.body) + self.tail


@dataclass
class Kernel:
    """A kernel, what it is launched with, and its output: ``slots`` numbers of 64 bits a thread."""

    name: str
    declarations: str
    functions: list[Function]
    main: Function
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    slots: list[str]
    arguments: list[bytes]  # after the four pointers
    argument_types: list[str]
    library: bool = True
    cells: bytes = b""
    own: bytes = b""
    input: bytes = field(default=b"", repr=False)

    @property
    def threads(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2] * self.block[0] * self.block[1] * self.block[2]

    def text(self) -> str:
        return (
            self.declarations + "".join(f.text() for f in self.functions) + self.main.text() + self._runner()
        )

    def _runner(self) -> str:
        """Return what makes the host's program call the kernel as a driver does: with an array of pointers."""
        types = ["const Input*", "u64*", "u64*", "Own*", *self.argument_types]
        values = ", ".join(f"*({kind}*)a[{n}]" for n, kind in enumerate(types))
        return (
            f"#ifdef ORACLE_HOST\nstatic void {self.name}_body(void** a) {{ {self.name}({values}); }}\n"
            f'extern "C" int run_{self.name}(void** a, const u32* sizes, int order) {{ return oracle::launch({self.name}_body, a, sizes, order); }}\n'
            "#endif\n"
        )

    def lists(self) -> Iterator[list[Node]]:
        """Yield every list of statements, outer ones first."""
        for function in (self.main, *self.functions):
            yield function.body
            for node in function.body:
                yield from node.lists()


class Generator:
    """Makes one kernel."""

    def __init__(self, seed: int, library: bool) -> None:
        self._chance = random.Random(seed)
        self._library = library
        self._expressions = Expressions(self._chance, library)
        self._name = f"k{seed}"
        self._declarations: list[str] = []
        self._functions: list[Function] = []
        self._ways: list[tuple[str, str]] = []  # what every function may call and read

    def kernel(self) -> Kernel:
        chance, name = self._chance, self._name
        self._tables()
        fields = [
            (f"f{n}", chance.choice(NUMBERS), chance.choice((1, 1, 3))) for n in range(chance.randint(1, 6))
        ]
        text = "".join(f"{kind} {f}{f'[{count}]' if count > 1 else ''}; " for f, kind, count in fields)
        self._declarations.append(f"struct {name}_s {{ {text}}};\n")
        for n in range(chance.randint(0, 3)):
            self._function(n)
        if chance.random() < 0.4:
            self._indirect()
        writers = [self._writer(n) for n in range(chance.randint(0, 2))]
        return self._main(fields, writers)

    def _tables(self) -> None:
        chance, name = self._chance, self._name
        for n, space in enumerate(("__constant__", "static __device__")):
            kind = chance.choice((*INTEGERS, "f32"))
            values = ", ".join(constant(kind, chance) for _ in range(16))
            self._declarations.append(
                f"{space} {'const ' if n else ''}{kind} {name}_t{n}[16] = {{{values}}};\n"
            )
            self._ways.append((kind, f"{name}_t{n}[{{u32}} & 15]"))

    def _scope(self, variables: list[tuple[str, str]]) -> Scope:
        scope = Scope()
        for kind, variable in variables:
            scope.name(kind, variable)
        for kind, way in self._ways:
            scope.way(kind, way)
        return scope

    def _locals(self, statements: Statements, scope: Scope, count: int) -> str:
        """Declare variables that statements may change."""
        text = []
        kinds = [self._chance.choice(COMMON) for _ in range(count)]
        for n, kind in enumerate(kinds):
            text.append(f"{kind} v{n} = {self._expressions.make(kind, scope, 1)};\n")
        for n, kind in enumerate(kinds):
            scope.name(kind, f"v{n}")
            statements.assignable.setdefault(kind, []).append(f"v{n}")
        return "".join(text)

    def _arrays(self, statements: Statements, scope: Scope) -> str:
        kind = self._chance.choice(NUMBERS)
        values = ", ".join(self._expressions.make(kind, scope, 1) for _ in range(8))
        statements.arrays[kind] = "array"
        return f"{kind} array[8] = {{{values}}};\n"

    def _qualifier(self) -> str:
        return self._chance.choice(("__noinline__", "__noinline__", "__forceinline__"))

    def _function(self, number: int) -> None:
        chance = self._chance
        name = f"{self._name}_f{number}"
        made = chance.choice(NUMBERS)
        taken = [chance.choice(COMMON) for _ in range(chance.randint(1, 4))]
        recursive = chance.random() < 0.3
        parameters = [f"{kind} a{n}" for n, kind in enumerate(taken)]
        scope = self._scope([(kind, f"a{n}") for n, kind in enumerate(taken)])
        head = f"static __device__ {'__noinline__' if recursive else self._qualifier()} {made} {name}({', '.join([*(['u32 depth'] if recursive else []), *parameters])}) {{\n"
        operands = ", ".join(f"{{{kind}}}" for kind in taken)
        statements = Statements(chance, self._expressions)
        body: list[Node] = []
        if recursive:
            head += f"if (depth - 1 > 3) return {self._expressions.make(made, scope, 2)};\n"
        head += "u64 sum = 1;\n" + self._locals(statements, scope, 3)
        if chance.random() < 0.5:
            head += self._arrays(statements, scope)
        place = Place(2, False, None, False, scope)
        body = statements.block(place, chance.randint(1, 4))
        if recursive:
            call = self._expressions.fill(
                f"{name}(depth - 1, {operands})", made, lambda k: self._expressions.make(k, scope, 2)
            )
            body.append(Node([f"fold(sum, {call});\n"]))
        value = self._expressions.make(made, scope, 2)
        result = (
            f"({made})({value} ^ ({made})sum)"
            if made in INTEGERS
            else f"(sum & 1 ? {value} : {self._expressions.make(made, scope, 1)})"
        )
        self._functions.append(Function(head, body, f"return {result};\n}}\n"))
        self._ways.append((made, f"{name}({'{constant:5}, ' if recursive else ''}{operands})"))

    def _indirect(self) -> None:
        """Two functions in a table, called by their address."""
        name = self._name
        for n in range(2):
            scope = self._scope([("u32", "a"), ("i32", "b")])
            text = f"return {self._expressions.make('u32', scope, 3)};\n}}\n"
            self._functions.append(
                Function(f"static __device__ __noinline__ u32 {name}_p{n}(u32 a, i32 b) {{\n", [], text)
            )
        self._functions.append(
            Function(
                f"static __device__ u32 (*const {name}_pointers[2])(u32, i32) = {{{name}_p0, {name}_p1}};\n",
                [],
                "",
            )
        )
        self._ways.append(("u32", f"{name}_pointers[{{u32}} & 1]({{u32}}, {{i32}})"))

    def _writer(self, number: int) -> tuple[str, str, str, str]:
        """A function that changes what two pointers point to."""
        chance = self._chance
        name = f"{self._name}_w{number}"
        first, second, third = (chance.choice(INTEGERS) for _ in range(3))
        scope = self._scope([(first, "*a"), (second, "*b"), (third, "c")])
        statements = Statements(chance, self._expressions)
        statements.assignable = {first: ["(*a)"]}
        statements.assignable.setdefault(second, []).append("(*b)")
        head = f"static __device__ {self._qualifier()} void {name}({first}* a, {second}* b, {third} c) {{\nu64 sum = 0;\n"
        body = statements.block(Place(2, False, None, False, scope), 3)
        self._functions.append(Function(head, body, f"*a = ({first})(*a + ({first})sum);\n}}\n"))
        return name, first, second, third

    def _call_of(self, statements: Statements, writer: tuple[str, str, str, str], place: Place) -> str:
        chance = self._chance
        name, first, second, third = writer
        pointers = []
        for kind, base in ((first, "own->bytes"), (second, "local.bytes")):
            names = [v for v in statements.assignable.get(kind, []) if v.startswith("v")]
            if names and chance.random() < 0.6 and not (pointers and pointers[0][1:] in names):
                pointers.append("&" + chance.choice(names))
            else:
                pointers.append(
                    f"({kind}*)({base} + ({statements.expression('u32', place, 1)} & {64 - SIZES[kind]}))"
                )
        return f"{name}({pointers[0]}, {pointers[1]}, {statements.expression(third, place, 2)});\n"

    def _main(self, fields: list[tuple[str, str, int]], writers: list[tuple[str, str, str, str]]) -> Kernel:
        chance, name = self._chance, self._name
        block, grid = chance.choice(BLOCKS), chance.choice(GRIDS)
        threads = block[0] * block[1] * block[2]
        scalars = [chance.choice(NUMBERS) for _ in range(chance.randint(0, 4))]
        known = [
            ("u32", "thread"),
            ("u32", "lane"),
            ("u32", "id"),
            *((kind, f"s{n}") for n, kind in enumerate(scalars)),
        ]
        scope = self._scope(known)
        scope.variables["uniform"] = [
            "block",
            *(f"s{n}" for n, kind in enumerate(scalars) if kind in INTEGERS),
        ]
        for kind in INTEGERS:
            scope.way(kind, f"({kind})in->words[{{u32}} & 255]")
            scope.way(kind, f"((const {kind}*)in->words)[({{u32}} & {1024 // SIZES[kind] - 1})]")
        scope.way("f32", "in->floats[{u32} & 255]")
        scope.way("f32", "in->floats[(id * 3 + {constant:256}) & 255]")
        scope.way("f64", "in->doubles[{u32} & 255]")
        scope.way("f64", "in->doubles[(id * 5 + {constant:256}) & 255]")
        statements = Statements(chance, self._expressions)
        statements.threads, statements.pointers = threads, True
        for f, kind, count in fields:
            if count > 1:
                scope.way(kind, f"p.{f}[{{u32}} % {count}]")
                scope.way(kind, f"t.{f}[{{u32}} % {count}]")
            else:
                scope.name(kind, f"p.{f}")
                scope.name(kind, f"t.{f}")
                statements.assignable.setdefault(kind, []).append(f"t.{f}")
        parameters = [
            f"const Input* {chance.choice(('', '__restrict__ '))}in",
            "u64* out",
            "u64* cells",
            "Own* all",
            *(f"{kind} s{n}" for n, kind in enumerate(scalars)),
            f"{name}_s p",
        ]
        bar = "const u32" if chance.random() < 0.5 else "u32"
        head = f"KERNEL {name}({', '.join(parameters)}) {{\n"
        head += (
            "const u32 thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z), lane = thread & 31;\n"
            "const u32 block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);\n"
            f"{bar} id = block * {threads} + thread;\nOwn* own = all + id;\nu64 sum = id;\n"
            f"alignas(16) Own local = {{}};\nMixed mixed[4] = {{}};\nFields fields = {{}};\n{name}_s t = p;\n"
            f"const u32 m0 = thread >= {threads // 32 * 32} ? {(1 << threads % 32) - 1}u : ~0u;\n"
        )
        if chance.random() < 0.3:
            head += "DYNAMIC_SHARED(dynamic);\nu32* words = (u32*)dynamic;\n"
        else:
            head += f"__shared__ u32 words[{threads}];\n"
        head += f"__shared__ u32 lane_words[{threads}];\n__shared__ u64 longs[{threads}];\n(void)mixed, (void)fields, (void)lane_words, (void)longs, (void)words, (void)m0, (void)local;\n"
        statements.shared_words = threads
        head += self._locals(statements, scope, chance.randint(6, 12))
        for _ in range(chance.randint(0, 1)):
            head += self._arrays(statements, scope)
        statements.calls = [
            (lambda place, w=writer: self._call_of(statements, w, place)) for writer in writers
        ]
        slots = [v for names in statements.assignable.values() for v in names]
        count = len(slots) + 1
        end = "".join(f"out[id * {count} + {n}] = bits({v});\n" for n, v in enumerate(slots))
        if statements.arrays:
            end += "for (u32 n = 0; n < 8; ++n) fold(sum, array[n]);\n"
        end += f"out[id * {count} + {count - 1}] = sum;\n"
        place = Place(3, True, "m0", False, scope)
        body = statements.block(place, chance.randint(6, 14))
        if chance.random() < 0.3:
            gone, left = statements.fresh("c"), statements.fresh("m")
            body.append(
                Node(
                    [
                        f"const bool {gone} = {statements.expression('bool', place, 2)};\nconst u32 {left} = __ballot_sync(m0, !{gone});\nif ({gone}) {{\n{end}return;\n}}\n(void){left};\n"
                    ]
                )
            )
            body += self._rest(statements, Place(2, False, left, False, scope))
        return Kernel(
            name, "".join(self._declarations), self._functions, Function(head, body, end + "}\n"), grid, block, [*slots, "sum"],
            [*(self._value(kind) for kind in scalars), self._structure(fields)], [*scalars, f"{name}_s"], self._library,
            b"".join(bytes(8) if kind in FLOATS else struct.pack("Q", chance.getrandbits(64)) for kind, _ in CELLS),
            chance.randbytes(64 * threads * grid[0] * grid[1] * grid[2]), input_bytes(chance),
        )  # fmt: skip

    def _rest(self, statements: Statements, place: Place) -> list[Node]:
        return [Node([statements.block(place, self._chance.randint(1, 4))])]

    def _value(self, kind: str) -> bytes:
        number = floating(self._chance) if kind in FLOATS else integer(self._chance, 8 * SIZES[kind])
        return bytes(CTYPES[kind](number))  # type: ignore[arg-type]

    def _structure(self, fields: list[tuple[str, str, int]]) -> bytes:
        shape = type(
            "Shape",
            (c.Structure,),
            {"_fields_": [(f, CTYPES[k] * n if n > 1 else CTYPES[k]) for f, k, n in fields]},
        )
        value = shape()
        for f, kind, count in fields:
            numbers = [
                floating(self._chance) if kind in FLOATS else integer(self._chance, 8 * SIZES[kind])
                for _ in range(count)
            ]
            if count > 1:
                getattr(value, f)[:] = numbers
            else:
                setattr(value, f, numbers[0])
        return bytes(value)


def generate(seed: int, library: bool = True) -> Kernel:
    """Return the kernel of a seed, always the same."""
    return Generator(seed, library).kernel()


__all__ = ["HALVES", "Kernel", "generate"]
