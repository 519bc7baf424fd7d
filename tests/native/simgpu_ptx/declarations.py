"""Small PTX modules, valid and broken: declarations, initial values, functions and their calls, addresses, directives.

Each is one line, in which ``#`` stands for a number of its own, so that many stand in one text.  As in
:mod:`tests.native.simgpu_ptx.corpus`, nothing here knows which of them are valid.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.native.simgpu_ptx.corpus import TARGET, VERSION

HEAD = f""".version {VERSION}
.target {TARGET}
.address_size 64
.global .align 8 .b32 far[8];
.const .b32 table[8];
.func (.param .b32 r) device(.param .b32 x) {{ st.param.b32 [r], 1; ret; }}
.func (.reg .u32 r) inc(.reg .u32 x) {{ add.u32 r, x, 1; ret; }}
"""
TAIL = "\n.visible .entry k(.param .u64 a) { ret; }\n"
FIRST_LINE = HEAD.count("\n") + 1
REGISTERS = ".reg .pred %p<3>; .reg .b16 %h<3>; .reg .u32 %r<5>; .reg .f32 %f<3>; .reg .u64 %d<5>; .reg .f64 %e<3>; .reg .v2 .u32 %v;"

SPACES = ["global", "const", "shared", "local", "reg", "param", "tex", "sreg"]
TYPES = ["b8", "u8", "s8", "b16", "u16", "s16", "f16", "f16x2", "bf16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64", "b128",
         "pred", "tf32", "texref", "surfref", "samplerref", "u128", "b1"]  # fmt: skip
COMMON = ["u32", "b32", "f32", "u64", "b8", "u16"]
SIDES = [
    "",
    "[4]",
    "[2][3]",
    "[]",
    "[][2]",
    "[2][]",
    "[0]",
    "[-1]",
    "[2+2]",
    "[1<<2]",
    "[1.0]",
    "[4U]",
    "[WARP_SZ]",
    "[n]",
    "[2][2][2]",
]
VALUES = ["1", "-1", "0x7fffffff", "300", "4294967296", "1.5", "-2.5", "0f3f800000", "0d3ff0000000000000", "(1+2)*3", "~0", "!1", "1U",
          "far", "far+4", "far+4+4", "far-4", "generic(far)", "generic(far)+8", "generic(far+4)", "generic(table)", "device", "table", "tile#",
          "0xff(far)", "0xff00(far)", "0xff(generic(far))", "nowhere", "WARP_SZ", "{1}", "{}", "5 6", "-far", "far*2", "far[1]", '"text"',
          "1?2:3", "1<2", "7/0", "1e3", "'a'", "v#"]  # fmt: skip
PLACES = ["[far]", "[far+4]", "[far-4]", "[far+4+4]", "[far+(4)]", "[far+4*2]", "[far+%r1]", "[%d1+far]", "[%d1]", "[%d1+4]", "[%d1-4]", "[%d1+-4]",
          "[%d1+4-4]", "[%d1+%d2]", "[%r1]", "[%r1+4]", "[%h1]", "[%f1]", "[%e1]", "[%p1]", "[4]", "[0x10]", "[-4]", "[4+4]", "[4+%d1]", "[1.5]",
          "[]", "far[1]", "far[%r1]", "far[%d1]", "far[%r1+1]", "far[1]+4", "[far[1]]", "[far[%r1]]", "far[-1]", "far[%h1]", "far[1.0]",
          "far[far]", "far", "%d1", "4", "[tile]", "[tile+4]", "tile[1]", "[own]", "[own+4]", "own[%r1]", "[device]", "[nowhere]", "[L]",
          "[%d1+0x7fffffff]", "[%d1+0x100000000]", "[%d1+1.0]", "[%d1],4", "[%d1*2]", "[(%d1)]", "[%v]", "[%v.x]", "[{%d1}]", "[%tid.x]",
          "[WARP_SZ]", "[%d1+WARP_SZ]", "[a]", "[a+4]", "[table]", "[table+4]", "table[2]", "[_]"]  # fmt: skip
FORMALS = [".param .u32 x", ".reg .u32 x", ".param .b8 x[8]", ".param .align 8 .b8 x[8]", ".param .u32 x[2]", ".reg .u32 x[2]", ".reg .pred x",
           ".param .pred x", ".reg .v2 .u32 x", ".param .v2 .u32 x", ".param .u32", ".u32 x", "u32 x", ".param .u32 x = 1", ".param x", ".reg .f64 x",
           ".param .b8 x[]", ".reg .b128 x", ".param .u32 _", ".global .u32 x", ".param .align 3 .u32 x", ".param .u64 .ptr .global .align 4 x",
           ".param .u64 .ptr x", ".param .u32 .ptr .shared x", ".param .align 16 .u64 x", ".param .u32 x, .param .u32 y", ".param .u32 x, .param .u32 x",
           ".param .u32 x, .reg .u32 y", "", ".param .u32 x,", ".param .texref x", ".param .f16 x", ".reg .b8 x", ".param .b128 x", ".param .u8 x",
           ".reg .u32 x<2>", ".param .u64 .ptr .align 3 x", ".param .const .u32 x", ".param .b8 x[0]", ".param .align 128 .b8 x[4]"]  # fmt: skip
ACTUALS = ["%r1", "%d1", "%f1", "%h1", "%p1", "%v", "%v.x", "1", "-1", "1.5", "0f3f800000", "_", "a", "b8", "a+4", "%r1+1", "far", "[a]", "%tid.x",
           "WARP_SZ", "(%r1)", "%r1, %r2", "", "(1+2)", "nowhere", "device", "{%r1,%r2}", "!%p1", "-%r1", "%e1", "wide"]  # fmt: skip
CALLS = ["call device, (%r1);", "call (%r2), device, (%r1);", "call (%r2), device, (%r1), P;", "call.uni (%r2), device, (%r1);", "call (%r2), device;",
         "call (%r2), inc, (%r1);", "call (%r2), inc, (1);", "call (a), inc, (b);", "call (a), device, (b);", "call (_), device, (b);", "call (_), inc, (1);",
         "call inc, (1);", "call (%r2, %r3), inc, (1);", "call (%r2), %d1, (%r1), P;", "call (%r2), %d1, (%r1);", "call (%r2), %r1, (%r1), P;",
         "call (%r2), %d1, (%r1), Q;", "call (%r2), %d1, (%r1), T;", "call (%r2), nowhere, (%r1);", "call (%r2), far, (%r1);", "call k, (%d1);",
         "call (%r2), device+4, (%r1);", "call device;", "call;", "call (%r2) device, (%r1);", "call (%r2), device (%r1);", "call (), device, ();",
         "@%p1 call (%r2), inc, (%r1);", "call.sat (%r2), inc, (%r1);", "call (%r2), %d1, (%r1), L;", "call (%r2), [%d1], (%r1), P;",
         "call (%r2), %d1, (%f1), P;", "call (%r2), %d1, (%d2), P;", "call (%d2), %d1, (%r1), P;"]  # fmt: skip
PROTOTYPES = ["(.param .b32 _) _ (.param .b32 _)", "(.param .b32 r) _ (.param .b32 x)", "_ (.param .b32 _)", "_", "_ ()", "() _ ()", "(.reg .u32 _) _ (.reg .u32 _)",
              "(.param .b32 _) f (.param .b32 _)", "(.param .b32) _ (.param .b32)", "(.param .b32 _) _ (.param .b8 _[4])", "(.param .b32 _) _ (.param .align 8 .b8 _[])",
              "(.param .b32 _) _ (.param .b32 _) .noreturn", "(.param .b32 _)", "_ (.param .b32 _,)", "(.param .b32 _) _ (.param .b32 _);;"]  # fmt: skip
DIRECTIVES = [".maxntid 32", ".maxntid 32, 2", ".maxntid 32, 2, 1", ".maxntid 32,2,1,1", ".maxntid 0", ".maxntid", ".maxntid 2048", ".reqntid 32", ".reqntid 8,8,8", ".reqntid 0",
              ".minnctapersm 2", ".maxnctapersm 2", ".maxnreg 32", ".maxnreg", ".noreturn", '.pragma "nounroll";', '.pragma "nounroll"', ".pragma nounroll;", ".pragma \"a\", \"b\";",
              ".reqnctapercluster 2", ".reqnctapercluster 2, 1, 1", ".explicitcluster", ".maxclusterrank 8", ".blocksareclusters", ".foo 1", ".maxntid 32 .minnctapersm 2",
              ".maxntid 32 .maxntid 64", ".maxntid 32 .reqntid 32", ".minnctapersm 2 .maxntid 32", ".maxntid -1", ".maxntid 1.5", ".maxntid 16+16"]  # fmt: skip
STATEMENTS = ["L: ret;", "L: L: ret;", "L: M: ret;", "{ L: } L:", "{ }", "{", "}", ";", ";;", ".loc 1 2 3;", ".loc 1 2 3", '.pragma "nounroll";', "bra L; L:", "bra M;", "{ M: } bra M;",
              "M: bra M; { bra M; }", "@%p1 bra L; L:", "@!%p1 bra L; L:", "@%r1 bra L; L:", "@p9 bra L; L:", "bra.uni L; L:", "bra %r1;", "bra 4;", "bra L+4; L:", "bra device;",
              "T: .branchtargets L; brx.idx %r1, T; L:", "T: .branchtargets L, M; brx.idx %r1, T; L: M:", "T: .branchtargets L; brx.idx %r1, L; L:", "brx.idx %r1, T;",
              "T: .branchtargets nowhere; brx.idx %r1, T;", ".branchtargets L; L:", "T: .branchtargets; brx.idx %r1, T;", "T: .branchtargets L0; brx.idx %d1, T; L0:",
              ".reg .u32 x; .reg .f32 x;", ".reg .u32 x; { .reg .f32 x; mov.f32 x, %f1; }", "{ .reg .u32 x; } mov.u32 x, 1;", "mov.u32 x, 1; .reg .u32 x;",
              ".reg .u32 x, y; mov.u32 x, y;", ".reg .u32 x y;", ".reg .u32 x,;", ".reg .u32;", ".reg x;", ".reg .u32 .f32 x;", ".reg .u32 x<2>, y<3>; mov.u32 x1, y2;",
              ".reg .u32 x<2>; mov.u32 x2, 1;", ".reg .u32 x<2>; mov.u32 x01, 1;", ".reg .u32 x<0>;", ".reg .u32 x<2+2>; mov.u32 x3, 1;", ".reg .u32 x<2>; .reg .u32 x1;",
              ".reg .u32 x<2>; mov.u32 x, 1;", ".reg .u32 x<-1>;", ".reg .u32 %tid;", ".reg .u32 ret; mov.u32 ret, 1;", ".reg .u32 add; add.u32 add, add, 1;", ".reg .u32 $x; mov.u32 $x, 1;",
              ".reg .u32 _x; mov.u32 _x, 1;", ".reg .u32 _;", ".reg .u32 1x;", ".reg .u32 %; mov.u32 %, 1;", ".reg .u32 WARP_SZ;", ".reg .u32 x.y;", ".shared .u32 x; { .reg .u32 x; mov.u32 x, 1; }",
              ".shared .u32 x; ld.shared.u32 %r1, [x];", "ld.shared.u32 %r1, [x]; .shared .u32 x;", ".local .u32 x; .shared .u32 x;", ".reg .u32 far; mov.u32 far, 1;",
              ".reg .u32 a; mov.u32 a, 1;", "a: bra a;", ".shared .u32 a;", ".reg .u32 k; mov.u32 k, 1;", ".extern .shared .u32 x[];", ".shared .u32 x[];", ".extern .local .u32 x[];",
              ".visible .shared .u32 x;", ".weak .global .u32 x;", ".visible .global .u32 x;", ".extern .global .u32 x;", ".const .u32 x = 1;", ".global .u32 x = 1; ld.global.u32 %r1, [x];", ".param .u32 x;",
              ".param .u32 x = 1;", ".param .b8 x[4]; st.param.b32 [x], %r1;", ".func f() { ret; }", ".entry f() { ret; }", ".version 8.0", ".target sm_90", ".address_size 64",
              ".file 1 \"a\"", ".section .debug { }", ".alias x, device;", "add.u32 %r1, %r1, 1", "add.u32 %r1 %r1, 1;", "add.u32 %r1,, 1;", "add.u32, %r1, %r1, 1;", "add .u32 %r1, %r1, 1;",
              "add. u32 %r1, %r1, 1;", "add.u32%r1, %r1, 1;", "ADD.u32 %r1, %r1, 1;", "@%p1 { ret; }", "@%p1 @%p2 ret;", "@ %p1 ret;", "@!!%p1 ret;", "@1 ret;", "/* a */ ret; // b", "/* /* */ ret;",
              "mov.v2.u32 %v, {%r1, %r2};", "mov.v2.u32 {%r1, %r2}, %v;", "mov.b64 %v, %d1;", "mov.u32 %v, %r1;", "mov.u32 %v.x, %r1;", "mov.u32 %v.z, %r1;", "mov.u32 %v.r, %v.g;", "mov.u32 %v.xy, %r1;",
              "mov.v2.u32 %v, {%r1};", "mov.v2.u32 %v, {%r1, 2};", "mov.v2.u32 {%v.x, %v.y}, {%v.y, %v.x};", "mov.v2.u32 {%r1, %r1}, %v;", "mov.b64 %d1, {%r1, %r2};", "mov.b64 {%r1, _}, %d1;",
              "mov.b64 {_, _}, %d1;", "mov.b32 %r1, {%h1, %h2};", "mov.b64 %d1, {1, 2};", "mov.b64 %d1, {%f1, %f2};", "mov.b64 %d1, {%h1, %h2, %h1, %h2};", "mov.b64 %d1, {%r1, %h2};",
              "mov.u64 %d1, far;", "mov.u64 %d1, far+4;", "mov.u32 %r1, far;", "mov.u64 %d1, device;", "mov.u64 %d1, k;", "mov.u64 %d1, L; L:", "mov.u64 %d1, a;", "mov.b64 %d1, a+4;", "mov.u32 %r1, a;",
              "ld.global.v2.u32 %v, [far];", "ld.global.v2.u32 {%r1, %r2}, [far];", "ld.global.v4.u32 %v, [far];", "ld.global.v2.u64 {%d1, %d2}, [far];", "ld.global.v4.u64 {%d1, %d2, %d3, %d4}, [far];",
              "ld.global.v8.u32 {%r1, %r1, %r1, %r1, %r1, %r1, %r1, %r1}, [far];", "ld.global.v2.u32 {%r1}, [far];", "ld.global.u32 {%r1}, [far];", "ld.global.v2.u32 {%r1, _}, [far];", "st.global.v2.u32 [far], {%r1, 2};",
              "st.global.v2.u32 [far], {1, 2};", "st.global.v2.f32 [far], {1.0, %f1};", "st.global.u32 [far], far;", "st.global.u64 [far], far;", "st.global.u64 [far], device;", "st.global.f32 [far], 1;",
              "st.global.u32 [far], 1.0;", "st.global.u8 [far], %r1;", "st.global.u32 [far], %h1;", "st.global.u16 [far], %f1;", "ld.global.u8 %r1, [far];", "ld.global.u8 %f1, [far];", "ld.global.u32 %d1, [far];",
              "ld.global.u64 %r1, [far];", "ld.global.f32 %r1, [far];", "ld.global.f32 %d1, [far];", "ld.global.b32 %f1, [far];", "ld.global.u32 %f1, [far];", "ld.global.u16 %f1, [far];"]  # fmt: skip

Pick = Callable[[list[str]], str]


def _variable(pick: Pick, spaces: list[str]) -> str:
    kinds = pick([*COMMON, *COMMON, *TYPES])
    parts = [
        pick(["", "", "", ".visible ", ".extern ", ".weak ", ".common ", ".visible .extern "]),
        "." + pick(spaces),
        pick(["", "", "", " .align 8", " .align 1", " .align 3", " .align 0", " .align 16", " .align 1<<3", " .align", " .align 128"]),
        pick(["", "", "", " .v2", " .v4", " .v8", " .v3", " .v2 .v2"]),
        f" .{kinds}",
        pick(["", "", "", "", " .align 8", " .u32", " .v2"]),
        " v#" + pick(["", "", *SIDES]),
    ]  # fmt: skip
    values = [pick(VALUES) for _ in range(4)]
    one, two, three, four = values
    parts.append(
        pick(["", "", "", f" = {one}", f" = {{{one}}}", f" = {{{one}, {two}}}", f" = {{{{{one}, {two}}}, {{{three}}}}}", f" = {{{one}, {two}, {three}, {four}}}",
              f" = {{{{{one}}}, {two}}}", " = {}", " =", f" {one}", f" = {{{one},}}", f" = ({one})"])
    )  # fmt: skip
    return "".join(parts) + pick([";", ";", ";", ";", ", w#;", ", w#[2];", "", f", w# = {two};"])


def _kernel(body: str, directives: str = "") -> str:
    return f".visible .entry e#(.param .u64 a) {directives} {{ {REGISTERS} {body} }}"


def _formals(pick: Pick) -> str:
    return pick(FORMALS).replace("x", pick(["x", "x", "x", "r"]), 1)


def module(chance: random.Random) -> str:
    """Return one line of PTX."""
    pick: Pick = chance.choice
    what = chance.randrange(10)
    if what <= 1:
        return pick(["", "", ".shared .b32 tile#[4]; "]) + _variable(
            pick, SPACES[:3] if chance.random() < 0.8 else SPACES
        )
    if what == 2:
        return _kernel(_variable(pick, SPACES) + " ret;")
    if what == 3:
        results = pick(["", "", "() ", f"({_formals(pick)}) ", "(.param .u32 r) ", "(.reg .u32 r) "])
        linkage = pick(["", "", "", ".visible ", ".extern ", ".weak "])
        name = pick(["f#", "f#", "f#", "f#", "", "device", "_", "far", "%f#", "$f#"])
        end = pick(
            [
                "{ ret; }",
                "{ ret; }",
                "{ }",
                ";",
                "",
                ".noreturn { ret; }",
                "{ ret }",
                "{ exit; }",
                "; .func f#() { ret; }",
            ]
        )
        return f"{linkage}.func {results}{name}{pick(['(', '('])}{_formals(pick)}) {end}"
    if what == 4:
        linkage = pick(["", ".visible ", ".weak ", ".extern "])
        return f"{linkage}.entry f#({_formals(pick)}) {pick(['', '', pick(DIRECTIVES)])} {{ ret; }}"
    if what == 5:
        function = f".func ({pick(FORMALS[:10])}) f#({pick(FORMALS[:10])}) {{ ret; }} ".replace("x", "r", 1)
        own = ".param .u32 a1; .param .b8 b8[8]; .param .u64 wide; "
        result, given = pick(ACTUALS), pick(ACTUALS)
        return function + _kernel(f"{own}call ({result}), f#, ({given}); ret;".replace("(a)", "(a1)"))
    if what == 6:
        before = f"P: .callprototype {pick(PROTOTYPES)}; Q: .callprototype _ (); T: .calltargets device; "
        return _kernel(
            pick([before, before, ""]) + ".param .b32 b; mov.u64 %d1, device; L: " + pick(CALLS) + " ret;"
        )
    if what == 7:
        space = pick(["global", "shared", "local", "const", "param", ""])
        space = space and "." + space
        own = ".shared .b32 tile[4]; .local .b32 own[4]; L: "
        return _kernel(own + pick([f"ld{space}.u32 %r1, {pick(PLACES)};", f"st{space}.u32 {pick(PLACES)}, %r1;", f"ld{space}.u32 %r1, {pick(PLACES)};",
                                   f"atom{space}.add.u32 %r1, {pick(PLACES)}, 1;", f"mov.u64 %d1, {pick(PLACES)};", f"mov.u32 %r1, {pick(PLACES)};",
                                   f"cvta{space}.u64 %d1, {pick(PLACES)};", f"prefetch{space}.L1 {pick(PLACES)};", f"red{space}.add.u32 {pick(PLACES)}, 1;"]) + " ret;")  # fmt: skip
    if what == 8:
        return _kernel(" ".join(pick(STATEMENTS) for _ in range(chance.choice((1, 1, 2)))) + " ret;")
    return _kernel("ret;", pick(DIRECTIVES))


def program(lines: list[str]) -> str:
    """Put modules into one text, each on its line."""
    return HEAD + "\n".join(line.replace("#", str(n)) for n, line in enumerate(lines)) + TAIL


def sample(count: int, seed: int) -> list[str]:
    """Return ``count`` modules, the same for the same seed."""
    chance = random.Random(seed)
    return [module(chance) for _ in range(count)]
