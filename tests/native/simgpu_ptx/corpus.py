"""Small PTX programs, valid and broken: instructions with modifiers, types and operands from wide pools, and mutations.

Nothing here knows which of them are valid; ptxas says so (:mod:`tests.native.simgpu_ptx.acceptance`).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

VERSION, TARGET = "8.7", "sm_90"
REGISTERS = """.reg .pred %p<6>; .reg .b16 %h<6>; .reg .u16 %hu<6>; .reg .s16 %hs<6>; .reg .f16 %hf<6>; .reg .f16x2 %hx<6>;
.reg .b32 %b<6>; .reg .u32 %r<6>; .reg .s32 %s<6>; .reg .f32 %f<6>; .reg .b64 %bd<6>; .reg .u64 %rd<6>; .reg .s64 %sd<6>;
.reg .f64 %fd<6>; .reg .b128 %q<6>; .reg .v4 .f32 vec; .reg .v2 .u32 two; .shared .b32 tile[8]; .local .b32 own[8];
.param .align 16 .b8 argument[16];"""
MODULE = ".global .b32 far[8];\n.const .b32 table[8];\n.func device(.param .b32 x) { ret; }\n"
# A register of each type, and its neighbours.
OF = {
    "b16": "%h", "u16": "%hu", "s16": "%hs", "f16": "%hf", "bf16": "%h", "b32": "%b", "u32": "%r", "s32": "%s",
    "f32": "%f", "f16x2": "%hx", "bf16x2": "%b", "u16x2": "%b", "s16x2": "%b", "tf32": "%b", "b64": "%bd", "u64": "%rd",
    "s64": "%sd", "f64": "%fd", "pred": "%p", "b8": "%h", "u8": "%hu", "s8": "%hs", "b128": "%q", "e4m3x2": "%h",
}  # fmt: skip
ALL = [*OF]
ROUND, FTZ, SAT = ("rn", "rz", "rm", "rp"), ("ftz",), ("sat",)
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "ltu", "gtu", "num", "nan")
LOGIC = ("and", "or", "xor")
SPACES = ("global", "shared", "local", "param", "const", "shared::cta")
SCOPES = ("cta", "gpu", "sys", "cluster")


@dataclass(frozen=True)
class Op:
    """An instruction: pools of modifiers of which one each may stand, how many types, and its operands.

    An operand is ``d`` or ``T`` of the first type, ``U`` of the last, ``W`` as wide as the first twice; a type's name;
    ``p`` a predicate, ``@`` an address, ``i`` a constant.
    """

    name: str
    pools: tuple[tuple[str, ...], ...]
    operands: str
    types: int = 1


OPS = [
    *[Op(n, (ROUND, FTZ, SAT, ("cc", "relu", "NaN", "approx")), "d T T") for n in ("add", "sub")],
    *[Op(n, (("cc", "lo", "hi"),), "d T T") for n in ("addc", "subc", "sad")],
    Op("mul", (("lo", "hi", "wide"), ROUND, FTZ, SAT), "d T T"),
    Op("mul", (("wide",), SAT), "W T T"),
    Op("mad", (("lo", "hi", "wide"), ("cc", "sat", *ROUND), FTZ), "d T T T"),
    Op("mad", (("wide",), SAT), "W T T W"),
    Op("madc", (("lo", "hi", "wide"), ("cc", "sat")), "d T T T"),
    Op("fma", (ROUND, FTZ, SAT, ("relu", "approx")), "d T T T"),
    *[Op(n, (("lo", "hi", "wide"), SAT), "d T T") for n in ("mul24",)],
    Op("mad24", (("lo", "hi"), SAT), "d T T T"),
    Op("sad", (SAT,), "d T T T"),
    Op("div", (("rn", "rz", "approx", "full"), FTZ, SAT), "d T T"),
    Op("rem", (("rn", "wide"),), "d T T"),
    *[Op(n, (FTZ, ("sat", "relu", "rn"), ("NaN",)), "d T") for n in ("abs", "neg")],
    *[Op(n, (FTZ, ("NaN",), ("relu", "sat", "xorsign.abs")), "d T T") for n in ("min", "max")],
    *[Op(n, (("approx", "rn", "rz"), FTZ, SAT), "d T") for n in ("rcp", "sqrt", "rsqrt")],
    *[Op(n, (("approx", "rn", "full"), FTZ), "d T") for n in ("sin", "cos", "lg2", "ex2", "tanh")],
    *[Op(n, (("lo", "shiftamt"),), "u32 T") for n in ("popc", "clz", "bfind")],
    Op("brev", (("lo",),), "d T"),
    Op("bfe", (("lo",),), "d T u32 u32"),
    Op("bfi", (("lo",),), "d T T u32 u32"),
    Op("fns", (SAT,), "d T T s32"),
    Op("szext", (("clamp", "wrap"),), "d T u32"),
    Op("bmsk", (("clamp", "wrap"),), "d u32 u32"),
    *[Op(n, (("cc", "rn"),), "d T T") for n in ("and", "or", "xor")],
    *[Op(n, (("cc", "rn"),), "d T") for n in ("not", "cnot")],
    Op("lop3", (LOGIC,), "d T T T i"),
    Op("lop3", (LOGIC,), "d|p T T T i p"),
    Op("shf", (("l", "r"), ("clamp", "wrap")), "d T T u32"),
    *[Op(n, (("clamp", "wrap"),), "d T u32") for n in ("shl", "shr")],
    Op("prmt", (("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"),), "d T T u32"),
    Op("dp4a", (SAT,), "s32 T U s32", 2),
    Op("dp4a", (), "u32 T U u32", 2),
    Op("dp2a", (("lo", "hi"),), "s32 T U s32", 2),
    Op("copysign", (FTZ,), "d T T"),
    Op("testp", (("finite", "infinite", "number", "notanumber", "normal", "subnormal"), FTZ), "p T"),
    Op("setp", (COMPARE, FTZ), "p T T"),
    Op("setp", (COMPARE, LOGIC), "p|p T T p"),
    Op("set", (COMPARE, FTZ), "d U U", 2),
    Op("set", (("eq", "lt"), LOGIC), "d U U p", 2),
    Op("selp", (FTZ,), "d T T p"),
    Op("slct", (FTZ,), "d T T U", 2),
    Op("cvt", ((*ROUND, "rni", "rzi", "rmi", "rpi", "rna"), FTZ, ("sat", "relu", "satfinite")), "d U", 2),
    Op("cvt", (("rn", "rz"), ("relu", "satfinite")), "d U U", 2),
    Op("mov", (("v2", "rn"),), "d T"),
    Op("ld", (("weak", "volatile", "relaxed", "acquire", "release"), SCOPES, SPACES), "d @"),
    Op(
        "ld",
        (SPACES, ("ca", "cg", "cs", "lu", "cv", "nc", "wb"), ("L1::evict_last", "L1::no_allocate")),
        "d @",
    ),
    Op("st", (("weak", "volatile", "relaxed", "acquire", "release"), SCOPES, SPACES), "@ T"),
    Op("st", (SPACES, ("wb", "cg", "cs", "wt", "ca", "nc")), "@ T"),
    Op(
        "atom",
        (
            ("relaxed", "acquire", "release", "acq_rel", "volatile"),
            SCOPES,
            ("global", "shared", "local"),
            ("add", "min", "max", "and", "or", "xor", "inc", "dec", "exch"),
        ),
        "d @ T",
    ),
    Op("atom", (("global", "shared"), ("cas",)), "d @ T T"),
    Op("atom", (("global", "shared"), ("add", "min", "max"), ("noftz",)), "d @ T"),
    Op(
        "red",
        (
            ("relaxed", "release"),
            SCOPES,
            ("global", "shared"),
            ("add", "min", "max", "and", "or", "xor", "inc", "dec", "exch"),
        ),
        "@ T",
    ),
    Op("red", (("global",), ("add",), ("noftz",)), "@ T"),
    Op("cvta", (("to",), SPACES), "d T"),
    Op("isspacep", (SPACES,), "p u64", 0),
    Op("shfl", (("sync",), ("up", "down", "bfly", "idx")), "d T u32 u32 b32"),
    Op("shfl", (("sync",), ("up", "idx")), "d|p T u32 u32 b32"),
    Op("vote", (("sync",), ("all", "any", "uni", "ballot")), "p p b32"),
    Op("vote", (("sync",), ("all", "any", "uni", "ballot")), "b32 p b32"),
    Op("match", (("sync",), ("any", "all")), "b32 T b32"),
    Op("match", (("sync",), ("all",)), "b32|p T b32"),
    Op("redux", (("sync",), ("add", "min", "max", "and", "or", "xor")), "d T b32"),
    Op("activemask", (("sync",),), "d"),
    Op("bar", (("sync", "arrive"), ("aligned",)), "u32 u32", 0),
    Op("bar", (("sync", "arrive"),), "i", 0),
    Op("barrier", (("sync", "arrive"), ("aligned", "cta")), "u32 u32", 0),
    Op("bar", (("red",), ("popc", "and", "or")), "d u32 p"),
    Op("bar", (("warp",), ("sync",)), "b32", 0),
    Op("membar", ((*SCOPES, "gl"),), "", 0),
    Op("fence", (("sc", "acq_rel", "acquire", "relaxed"), SCOPES), "", 0),
    Op("nanosleep", (("sync",),), "u32"),
    Op("prefetch", (("global", "local", "shared"), ("L1", "L2")), "@", 0),
]
PLACES = {
    "global": "[far]",
    "shared": "[tile]",
    "shared::cta": "[tile]",
    "local": "[own]",
    "const": "[table]",
    "param": "[argument]",
}
ODD = ["%p1", "%h1", "%hu1", "%hs1", "%hf1", "%hx1", "%b1", "%r1", "%s1", "%f1", "%bd1", "%rd1", "%sd1", "%fd1", "%q1", "1", "-1",
       "1.5", "0f3F800000", "0d3FF0000000000000", "_", "!%p1", "-%r1", "-%f1", "%tid.x", "%laneid", "%clock64", "WARP_SZ", "%r1+1",
       "%rd1+1", "%f1+1", "vec.x", "vec", "two", "{%r1,%r2}", "{%f1}", "[%rd1]", "[%rd1+4]", "[%r1]", "[far]", "[far+4]", "[tile]",
       "[%f1]", "[nothing]", "far", "far[1]", "far[%r1]", "tile", "tile+4", "nothing", "%nothing", "device", "%p1|%p2", "%r1|%p1",
       "(1+2)*3", "~1", "%r1.x", "%r99", "!%r1", "END"]  # fmt: skip


def _operand(spec: str, types: list[str], place: str, n: int) -> str:
    if "|" in spec:
        return "|".join(_operand(part, types, place, n + k) for k, part in enumerate(spec.split("|")))
    if spec == "@":
        return place
    if spec == "i":
        return "1"
    if spec == "p":
        return f"%p{n}"
    first, last = (types[0], types[-1]) if types else ("b32", "b32")
    wide = {"16": "32", "32": "64", "64": "64"}.get(first[1:], "64")
    kind = {"d": first, "T": first, "U": last, "W": first[0] + wide}.get(spec, spec)
    return f"{OF.get(kind, '%b')}{n}"


def line(op: Op, modifiers: tuple[str, ...], types: list[str]) -> tuple[str, list[str]]:
    """Return the name with all that belongs to it, and the operands."""
    place = next((PLACES[m] for m in modifiers if m in PLACES), "[%rd5]")
    name = ".".join([op.name, *[m for m in modifiers if m], *types])
    return name, [_operand(spec, types, place, n + 1) for n, spec in enumerate(op.operands.split())]


def every_form() -> Iterator[str]:
    """Yield each instruction with each choice of modifiers and types, and operands that go with them."""
    for op in OPS:
        choices = [("", *pool) for pool in op.pools]
        kinds = (
            [[t] for t in ALL]
            if op.types == 1
            else [[]]
            if not op.types
            else [[a, b] for a in ALL for b in ALL]
        )
        for modifiers in itertools.product(*choices):
            for types in kinds:
                name, operands = line(op, modifiers, types)
                yield f"{name} {', '.join(operands)};"


def mutated(text: str, random: random.Random) -> str:
    """Return ``text``, one instruction, with one or two things changed."""
    name, _, rest = text.rstrip(";").partition(" ")
    operands = [o for o in rest.split(", ") if o]
    for _ in range(random.choice((1, 1, 2))):
        what = random.randrange(9)
        parts = name.split(".")
        if what <= 3 and operands:
            operands[random.randrange(len(operands))] = random.choice(ODD)
        elif what == 4 and operands:
            operands.pop(random.randrange(len(operands)))
        elif what == 5:
            operands.insert(random.randrange(len(operands) + 1), random.choice(ODD))
        elif what == 6 and len(parts) > 1:
            parts.pop(random.randrange(1, len(parts)))
        elif what == 7:
            other = random.choice(
                [
                    *ROUND,
                    *SPACES,
                    *SCOPES,
                    *ALL,
                    "ftz",
                    "sat",
                    "sync",
                    "uni",
                    "foo",
                    "v2",
                    "cc",
                    "wide",
                    "approx",
                ]
            )
            parts.insert(random.randrange(1, len(parts) + 1), other)
        elif len(parts) > 1:
            parts[random.randrange(1, len(parts))] = random.choice(ALL)
        name = ".".join(parts)
    return f"{name} {', '.join(operands)};".replace(" ;", ";")


def program(lines: list[str], places: bool = True) -> str:
    """Put instructions into a kernel that ends before it comes to any of them, one each line."""
    head = f".version {VERSION}\n.target {TARGET}\n.address_size 64\n{MODULE}.visible .entry k(.param .u64 a) {{\n{REGISTERS}\n"
    return head + "bra END;\n" + "\n".join(lines) + "\nEND: ret;\n}\n"


FIRST_LINE = program(["@@"]).split("\n").index("@@") + 1
