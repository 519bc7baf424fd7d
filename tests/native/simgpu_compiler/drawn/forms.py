"""The instructions that drawn kernels have: each kind that the compiler has a case for, in all its roundings, types and widths.

A form is text in which ``=r`` is a register that it writes and ``?r`` one that it reads: ``h`` 16 bits, ``r`` 32, ``d`` 64, ``q`` 128, ``k`` a
number of bits, ``p`` a predicate, ``n`` one that may be negated; ``f`` and ``e`` are 32 and 64 bits of which a NaN may be any.  A capital letter is a register and
never a number.  ``@m`` is the mask of the lanes that are here, ``@o8`` an offset into a thread's own bytes, a multiple of 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
NARROW = ("u8", "s8", *INTEGERS)
FLOATS = ("f16", "bf16", "f32", "f64")
ROUNDINGS = ("rn", "rz", "rm", "rp")
WHOLE = ("rni", "rzi", "rmi", "rpi")
ORDER = ("eq", "ne", "lt", "le", "gt", "ge")
UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


@dataclass(frozen=True)
class Form:
    """One instruction, or some that belong together.

    `where`: ``any`` place, where the ``warp`` is whole, where the whole ``block`` is, or where that has ``whole`` warps, too.
    """

    text: str
    where: str = "any"

    @property
    def guarded(self) -> bool:
        """Whether a predicate may stand before it."""
        return self.text.count(";") == 1 and "sync" not in self.text and "bar" not in self.text


def size(type_: str) -> int:
    """Return the bits of a number."""
    return 32 if type_.endswith("x2") and "16" in type_ else int("".join(c for c in type_.lstrip("bfus") if c.isdigit()))  # fmt: skip


def register(type_: str) -> str:
    """Return the kind of register that has such numbers."""
    return {8: "h", 16: "h", 32: "r", 64: "d", 128: "q"}[size(type_)]


def _plain(name: str, result: str, operands: str) -> Form:
    return Form(f"{name} {', '.join(['=' + result, *('?' + each for each in operands)])};")


def integers() -> list[Form]:
    """Return arithmetic, logic, fields of bits and carries."""
    forms = []
    for t in INTEGERS:
        k = register(t)
        forms += [
            _plain(f"{n}.{t}", k, k * 2)
            for n in ("add", "sub", "mul.lo", "mul.hi", "div", "rem", "min", "max")
        ]
        forms += [_plain(f"{n}.{t}", k, k * 3) for n in ("mad.lo", "mad.hi", "sad")]
        forms += [_plain(f"shr.{t}", k, k + "k"), _plain(f"selp.{t}", k, k * 2 + "P")]
        if t[0] == "s":
            forms += [_plain(f"{n}.{t}", k, k) for n in ("abs", "neg")]
        if "64" not in t:
            wide = {"h": "r", "r": "d"}[k]
            forms += [_plain(f"mul.wide.{t}", wide, k * 2), _plain(f"mad.wide.{t}", wide, k * 2 + wide)]
    for t in ("b16", "b32", "b64"):
        k = register(t)
        forms += [_plain(f"{n}.{t}", k, k * 2) for n in ("and", "or", "xor")]
        forms += [_plain(f"{n}.{t}", k, k) for n in ("not", "cnot", "mov")]
        forms += [
            _plain(f"shl.{t}", k, k + "k"),
            _plain(f"shr.{t}", k, k + "k"),
            _plain(f"slct.{t}.s32", k, k * 2 + "r"),
        ]
        forms += [_plain(f"slct{ftz}.{t}.f32", k, k * 2 + "R") for ftz in ("", ".ftz")]
    for t in ("b32", "b64"):
        k = register(t)
        forms += [_plain(f"{n}.{t}", "r", k) for n in ("popc", "clz")] + [
            _plain(f"brev.{t}", k, k),
            _plain(f"bfi.{t}", k, k * 2 + "kk"),
        ]
    for t in ("u32", "s32", "u64", "s64"):
        k = register(t)
        forms += [
            _plain(f"bfind.{t}", "r", k),
            _plain(f"bfind.shiftamt.{t}", "r", k),
            _plain(f"bfe.{t}", k, k + "kk"),
        ]
        forms += [
            Form(f"add.cc.{t} =1, ?1, ?1; addc.cc.{t} =1, ?1, ?1; addc.{t} =1, ?1, ?1;".replace("1", k))
        ]
        forms += [
            Form(f"sub.cc.{t} =1, ?1, ?1; subc.cc.{t} =1, ?1, ?1; subc.{t} =1, ?1, ?1;".replace("1", k))
        ]
        for a, b in product(("lo", "hi"), repeat=2):
            forms += [
                Form(
                    f"mad.{a}.cc.{t} =1, ?1, ?1, ?1; madc.{b}.cc.{t} =1, ?1, ?1, ?1; madc.{a}.{t} =1, ?1, ?1, ?1;".replace(
                        "1", k
                    )
                )
            ]
    for t in ("u32", "s32"):
        forms += [_plain(f"mul24.{part}.{t}", "r", "rr") for part in ("lo", "hi")] + [
            _plain(f"mad24.{part}.{t}", "r", "rrr") for part in ("lo", "hi")
        ]
        forms += [_plain(f"szext.{how}.{t}", "r", "rk") for how in ("clamp", "wrap")]
        for u in ("u32", "s32"):
            forms += [_plain(f"{n}.{t}.{u}", "r", "rrr") for n in ("dp4a", "dp2a.lo", "dp2a.hi")]
    forms += [
        _plain(f"{n}.sat.s32", "r", "r" * count)
        for n, count in (("add", 2), ("sub", 2), ("mad.hi", 3), ("mad24.hi", 3))
    ]
    forms += [_plain(f"{n}.{t}", "r", "rr") for n in ("add", "min", "max") for t in ("u16x2", "s16x2")]
    forms += [_plain(f"{n}.relu.{t}", "r", "rr") for n in ("min", "max") for t in ("s32", "s16x2")]
    forms += [
        _plain(f"prmt.b32{mode}", "r", "rrr")
        for mode in ("", "", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")
    ]
    forms += [_plain(f"shf.{way}.{how}.b32", "r", "rrk") for way in "lr" for how in ("clamp", "wrap")]
    forms += [_plain(f"bmsk.{how}.b32", "r", "kk") for how in ("clamp", "wrap")] + [
        _plain("fns.b32", "r", "rrr")
    ]
    forms += [Form(f"lop3.b32 =r, ?r, ?r, ?r, {table};") for table in (0x00, 0x96, 0xE8, 0xCA, 0x5B, 0xFF)]
    forms += [Form(f"lop3.{how}.b32 =r|=p, ?r, ?r, ?r, 0x6a, ?n;") for how in ("and", "or", "xor")]
    # What has code of its own where numbers of bits are known.
    forms += [_plain(f"bfe.{t}", "r", "Rkk") for t in ("u32", "s32")] * 2 + [
        _plain(f"bfi.{t}", k, k * 2 + "kk") for t, k in (("b32", "r"), ("b64", "d"))
    ] * 2
    forms += [
        Form(f"bfe.{t} =r, ?R, {at}, {length};")
        for t in ("u32", "s32")
        for at, length in ((0, 8), (24, 8), (20, 30), (31, 1), (8, 24), (40, 2))
    ]
    forms += [
        Form(f"prmt.b32 =r, ?R, ?R, {selector:#x};")
        for selector in (0x3210, 0x7654, 0x5140, 0x9210, 0xF2E4, 0x0123)
    ]
    forms += [
        Form(f"shf.{way}.{how}.b32 =r, ?R, ?R, {by};")
        for way in "lr"
        for how in ("wrap", "clamp")
        for by in (1, 31, 24)
    ]
    return forms


def single_and_double() -> list[Form]:
    """Return arithmetic in 32 and 64 bits."""
    forms = []
    for r, ftz, sat in product(ROUNDINGS, ("", ".ftz"), ("", ".sat")):
        forms += [_plain(f"{n}.{r}{ftz}{sat}.f32", "f", "ff") for n in ("add", "sub", "mul")] + [
            _plain(f"{n}.{r}{ftz}{sat}.f32", "f", "fff") for n in ("fma", "mad")
        ]
    for r in ROUNDINGS:
        forms += [_plain(f"{n}.{r}.f64", "e", "ee") for n in ("add", "sub", "mul", "div")] + [
            _plain(f"{n}.{r}.f64", "e", "eee") for n in ("fma", "mad")
        ]
        forms += [_plain(f"{n}.{r}.f64", "e", "e") for n in ("rcp", "sqrt")]
        for ftz in ("", ".ftz"):
            forms += [_plain(f"div.{r}{ftz}.f32", "f", "ff")] + [
                _plain(f"{n}.{r}{ftz}.f32", "f", "f") for n in ("rcp", "sqrt")
            ]
    for ftz in ("", ".ftz"):
        forms += [_plain(f"div.{how}{ftz}.f32", "f", "ff") for how in ("approx", "full")]
        forms += [
            _plain(f"{n}.approx{ftz}.f32", "f", "f")
            for n in ("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2")
        ]
        forms += [_plain(f"{n}{ftz}.f32", "f", "f") for n in ("abs", "neg")]
        for n, nan, sign in product(("min", "max"), ("", ".NaN"), ("", ".xorsign.abs")):
            if not sign:
                forms.append(_plain(f"{n}{ftz}{nan}{sign}.f32", "f", "ff"))
    forms += [
        _plain("tanh.approx.f32", "f", "f"),
        _plain("rcp.approx.ftz.f64", "e", "e"),
        _plain("rsqrt.approx.ftz.f64", "e", "e"),
        _plain("rsqrt.approx.f64", "e", "e"),
    ]
    forms += [_plain(f"{n}.f64", "e", "ee") for n in ("min", "max")] + [
        _plain(f"{n}.f64", "e", "e") for n in ("abs", "neg")
    ]
    forms += [_plain(f"copysign.{t}", k, of * 2) for t, k, of in (("f32", "r", "f"), ("f64", "d", "e"))]
    forms += [
        _plain(f"testp.{how}.{t}", "p", k)
        for how in ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
        for t, k in (("f32", "R"), ("f64", "D"))
    ]
    return forms


def halves() -> list[Form]:
    """Return arithmetic on f16 and bf16, alone and in pairs."""
    forms = []
    for t in ("f16", "bf16", "f16x2", "bf16x2"):
        k, brain = register(t), t[0] == "b"
        big = k.upper()
        for ftz, sat in product([""] if brain else ["", ".ftz"], [""] if brain else ["", ".sat"]):
            forms += [
                _plain(f"{n}{rn}{ftz}{sat}.{t}", k, big * 2)
                for n in ("add", "sub", "mul")
                for rn in ("", ".rn")
            ]
            forms.append(_plain(f"fma.rn{ftz}{sat}.{t}", k, big * 3))
        for ftz in [""] if brain else ["", ".ftz"]:
            forms.append(_plain(f"fma.rn{ftz}.relu.{t}", k, big * 3))
            forms += [_plain(f"{n}{ftz}.{t}", k, big) for n in ("abs", "neg")]
            forms += [
                _plain(f"{n}{ftz}{nan}{sign}.{t}", k, big * 2)
                for n in ("min", "max")
                for nan in ("", ".NaN")
                for sign in ("", ".xorsign.abs")
            ]
        forms += [_plain(f"ex2.approx{'.ftz' * brain}.{t}", k, big), _plain(f"tanh.approx.{t}", k, big)]
    return forms


def _results(type_: str) -> str:
    """Return the kinds of registers that a conversion's result may have."""
    return {8: "hrd", 16: "hrd", 32: "rd", 64: "d"}[size(type_)] if type_[0] in "us" else register(type_)


def conversions() -> list[Form]:
    """Return every pair of types in every rounding, and the packing of registers."""
    forms = []
    for to, of in product(NARROW, NARROW):
        holds = (to[0] == of[0] and size(to) >= size(of)) or (to[0] == "s" and size(to) > size(of))
        for k in _results(to):
            forms += [
                _plain(f"cvt{sat}.{to}.{of}", k, register(of).upper())
                for sat in ("", *[".sat"] * (not holds))
            ]
    for to, of, how in product(NARROW, FLOATS, WHOLE):
        if of == "bf16" and "8" in to:
            continue  # the same
        k = register(of).upper()
        for ftz, sat in product(
            ("", ".ftz") if of == "f32" else ("",), ("",) if of == "bf16" or "8" in to else ("", ".sat")
        ):
            forms.append(_plain(f"cvt.{how}{ftz}{sat}.{to}.{of}", register(to), k))
    for to, of, how in product(FLOATS, NARROW, ROUNDINGS):
        if to == "bf16" and "8" in of:
            continue  # bf16 takes no register that is wider than its number
        for sat in ("",) if to == "bf16" else ("", ".sat"):
            forms.append(_plain(f"cvt.{how}{sat}.{to}.{of}", register(to), register(of).upper()))
    for how, sat, ftz in product(ROUNDINGS, ("", ".sat"), ("", ".ftz")):
        forms += [
            _plain(f"cvt.{how}{ftz}{sat}.f32.f64", "f", "D"),
            _plain(f"cvt.{how}{ftz}{sat}.f16.f32", "h", "R"),
        ]
        if not ftz:
            forms.append(_plain(f"cvt.{how}{sat}.f16.f64", "h", "D"))
        if not sat:
            forms.append(_plain(f"cvt.{how}{ftz}.bf16.f32", "h", "R"))
    for how in ROUNDINGS:
        forms += [
            _plain(f"cvt.{how}.bf16.f16", "h", "H"),
            _plain(f"cvt.{how}.f16.bf16", "h", "H"),
            _plain(f"cvt.{how}.bf16.f64", "h", "D"),
        ]
    for how, sat in product(WHOLE, ("", ".sat")):
        forms += [
            _plain(
                f"cvt.{how}{sat}.{t}.{t}",
                register(t) if t == "f16" else {"f32": "f", "f64": "e"}[t],
                register(t).upper(),
            )
            for t in ("f16", "f32", "f64")
        ]
        forms += [_plain(f"cvt.{how}.ftz{sat}.f32.f32", "f", "R")] + [
            _plain(f"cvt.{how}.bf16.bf16", "h", "H")
        ] * (not sat)
    for sat in ("", ".sat"):
        forms += [_plain(f"cvt{ftz}{sat}.f32.f16", "f", "H") for ftz in ("", ".ftz")] + [
            _plain(f"cvt{ftz}{sat}.f64.f32", "e", "R") for ftz in ("", ".ftz")
        ]
        forms += [
            _plain(f"cvt{sat}.f64.f16", "e", "H"),
            _plain(f"cvt{sat}.f16.f16", "h", "H"),
            _plain(f"cvt{sat}.f32.f32", "f", "R"),
            _plain(f"cvt.ftz{sat}.f32.f32", "f", "R"),
        ]
    forms += [
        _plain("cvt.f32.bf16", "f", "H"),
        _plain("cvt.f64.bf16", "e", "H"),
        _plain("cvt.bf16.bf16", "h", "H"),
        _plain("cvt.f64.f64", "e", "D"),
        _plain("cvt.sat.f64.f64", "e", "D"),
    ]
    for how, relu, limit, t in product(("rn", "rz"), ("", ".relu"), ("", ".satfinite"), ("f16", "bf16")):
        if not limit:
            forms += [
                _plain(f"cvt.{how}{relu}.{t}.f32", "h", "R"),
                _plain(f"cvt.{how}{relu}.{t}x2.f32", "r", "RR"),
            ]
    forms += [_plain(f"cvt.pack.sat.{t}.s32", "r", "RR") for t in ("u16", "s16")] + [
        _plain(f"cvt.pack.sat.{t}.s32.b32", "r", "RRR") for t in ("u2", "s2", "u4", "s4", "u8", "s8")
    ]
    forms += [Form(text) for text in (
        "mov.b32 =r, {?H, ?H};", "mov.b64 =d, {?R, ?R};", "mov.b64 =d, {?H, ?H, ?H, ?H};", "mov.b32 {=h, =h}, ?R;", "mov.b64 {=r, =r}, ?D;", "mov.b64 {=h, =h, =h, =h}, ?D;",
        "mov.b32 {_, =h}, ?R;", "mov.b64 {=r, _}, ?D;", "mov.b128 =q, {?D, ?D};", "mov.b128 {=d, =d}, ?Q;", "mov.b128 =q, ?Q;",
        "mov.b16 {%k0, %k1}, ?H; mov.b16 =h, {%k1, %k0}; cvt.rn.bf16.u8 =h, %k0; cvt.rm.bf16.s8 =h, %k1; cvt.rz.bf16.u8 =h, %k1; cvt.rp.bf16.s8 =h, %k0;",
        "cvt.u8.u32 %k0, ?R; cvt.rm.bf16.u8 =h, %k0; cvt.rz.bf16.s8 =h, %k0; cvt.rp.bf16.u8 =h, %k0; cvt.rn.bf16.s8 =h, %k0;",
        "cvt.rni.u8.bf16 %k0, ?H; cvt.rzi.s8.bf16 %k1, ?H; mov.b16 =h, {%k0, %k1};", "cvt.rmi.u8.bf16 %k0, ?H; cvt.rpi.s8.bf16 %k1, ?H; mov.b16 =h, {%k0, %k1};",
        "cvt.rpi.u8.bf16 %k0, ?H; cvt.rni.s8.bf16 %k1, ?H; mov.b16 =h, {%k0, %k1};", "cvt.rzi.u8.bf16 %k0, ?H; cvt.rmi.s8.bf16 %k1, ?H; mov.b16 =h, {%k0, %k1};",
        "mov.pred =p, ?P;", "not.pred =p, ?P;", "and.pred =p, ?P, ?P;", "or.pred =p, ?P, ?P;", "xor.pred =p, ?P, ?P;",
    )]  # fmt: skip
    return forms


def comparisons() -> list[Form]:
    """Return setp and set, alone and combined with a predicate."""
    forms = []
    for t in ("s16", "u16", "b16", "s32", "u32", "b32", "s64", "u64", "b64", *FLOATS):
        k = {"f16": "H", "bf16": "H", "f32": "f", "f64": "e"}.get(t, register(t))
        names = (
            ORDER[:2]
            if t[0] == "b" and t != "bf16"
            else (*ORDER, *(UNORDERED if "f" in t else ("lo", "ls", "hi", "hs") if t[0] == "u" else ()))
        )
        second = "" if "16" in t and "f" in t else "|=p"
        for number, name in enumerate(names):
            ftz = ".ftz" * (t in ("f16", "f32") and number % 2)
            forms.append(Form(f"setp.{name}{ftz}.{t} =p{second if number % 3 else ''}, ?{k}, ?{k};"))
            forms.append(
                Form(f"setp.{name}.{('and', 'or', 'xor')[number % 3]}{ftz}.{t} =p{second}, ?{k}, ?{k}, ?n;")
            )
            whole = ("u32", "s32", "f32")[number % 3]
            if t in ("f16", "bf16"):
                whole = ("u32", "s32", "u16", t)[number % 4]
            forms.append(Form(f"set.{name}{ftz}.{whole}.{t} ={register(whole)}, ?{k}, ?{k};"))
            forms.append(
                Form(
                    f"set.{name}.{('xor', 'and', 'or')[number % 3]}{ftz}.{whole}.{t} ={register(whole)}, ?{k}, ?{k}, ?n;"
                )
            )
    for t, name in product(("f16x2", "bf16x2"), (*ORDER, *UNORDERED)):
        forms += [
            Form(f"setp.{name}.{t} =p|=p, ?R, ?R;"),
            Form(f"set.{name}.{t}.{t} =r, ?R, ?R;"),
            Form(f"set.{name}.u32.{t} =r, ?R, ?R;"),
        ]
        forms.append(Form(f"setp.{name}.or.{t} =p|=p, ?R, ?R, ?n;"))
    return forms


def video() -> list[Form]:
    """Return scalar and SIMD video instructions."""
    forms = []
    for n, name in enumerate(("vadd", "vsub", "vabsdiff", "vmin", "vmax")):
        for sat, then in product(("", ".sat"), ("", ".add", ".min", ".max")):
            types = ("u32.u32.u32", "s32.s32.u32", "u32.s32.s32", "s32.u32.s32")[(n + len(then)) % 4]
            a, b = (".b1", ".h1", "", ".b3")[n % 4], ("", ".h0", ".b2")[n % 3]
            forms.append(Form(f"{name}.{types}{sat}{then} =r, ?R{a}, ?R{b}{', ?R' * bool(then)};"))
        forms.append(Form(f"{name}.s32.s32.s32.sat =r.{('b0', 'h1', 'b2', 'h0', 'b3')[n]}, ?R, ?R, ?R;"))
    for name, how, sat, then in product(("vshl", "vshr"), ("clamp", "wrap"), ("", ".sat"), ("", ".add")):
        forms.append(
            Form(
                f"{name}.{'s32.s32' if sat else 'u32.u32'}.u32{sat}.{how}{then} =r, ?R, ?R{', ?R' * bool(then)};"
            )
        )
    forms += [
        Form(f"vmad.{t}{sat}{shift} =r, ?R.h0, ?R.b1, ?R;")
        for t in ("u32.u32.u32", "s32.s32.s32", "s32.u32.s32")
        for sat in ("", ".sat")
        for shift in ("", ".shr7", ".shr15")
    ]
    forms += [Form(f"vset.{t}.{how} =r, ?R.b0, ?R.h1;") for t in ("u32.u32", "s32.s32") for how in ORDER]
    for lanes, name, sat in product(
        "24", ("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax"), ("", ".sat", ".add")
    ):
        forms += [
            Form(f"{name}{lanes}.{t}{sat} =r, ?R, ?R, ?R;")
            for t in ("u32.u32.u32", "s32.s32.s32", "s32.u32.s32")
        ]
    forms += [
        Form(f"vset{lanes}.{t}.{how}{add} =r, ?R, ?R, ?R;")
        for lanes in "24"
        for t in ("u32.u32", "s32.s32")
        for how in ORDER
        for add in ("", ".add")
    ]
    return forms
