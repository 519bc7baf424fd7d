"""More forms for drawn kernels (`forms`): of memory, of a warp's lanes together, of matrices, of calls and branches by number.

Each thread has 64 bytes of its own in each space: at ``%g`` global ones, at ``%s`` (64 bits) and ``%s4`` (32) shared ones, generic at ``%sg``, at
``%l`` local ones, generic at ``%lg``; the bytes of the parameter ``some`` are read only, as are 1,024 shared ones at ``%s8``.  A warp's own
1,024 shared bytes are at ``%w``.  ``%z0`` to ``%z7`` and ``%y0``, ``%y1`` (64 bits), ``%pz`` are free between forms.
"""

from __future__ import annotations

from itertools import product

from tests.native.simgpu_compiler.drawn.forms import Form, register, size

SPACES = {
    ".global": "%g",
    ".shared": "%s",
    ".local": "%l",
    "": "%g %sg %lg",
    ".param": "some %pa",
    ".const": "kk %ka",
}
LOADED = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "b8", "b16", "b32", "b64", "f32", "f64")


def accesses() -> list[Form]:
    """Return loads and stores of all spaces, widths and vectors."""
    forms: list[Form] = []
    for (space, bases), t, count in product(SPACES.items(), LOADED, (1, 2, 4)):
        bytes_ = size(t) // 8 * count
        if bytes_ > 16:
            continue
        wider = {8: "hrd", 16: "hrd", 32: "rd", 64: "d"}[size(t)] if t[0] in "us" else register(t)
        vector = f".v{count}" if count > 1 else ""
        for number, k in enumerate(wider):
            every = bases.split() + ["%s4"] * (space == ".shared")
            base = every[(number + len(forms)) % len(every)]
            place = f"[{base}+@o{bytes_}]"
            listed = ", ".join(["=" + k] * count)
            forms.append(
                Form(f"ld@c{space}{vector}.{t} {'{' * (count > 1)}{listed}{'}' * (count > 1)}, {place};")
            )
            if count == 4 and number == 0:
                forms.append(Form(f"ld{space}.v4.{t} {{={k}, _, =={k}, _}}, {place};".replace("==", "=")))
            if space not in (".param", ".const") and t[0] != "s":
                listed = ", ".join(["?" + k.upper()] * count)
                forms.append(
                    Form(f"st@c{space}{vector}.{t} {place}, {'{' * (count > 1)}{listed}{'}' * (count > 1)};")
                )
    forms += [
        Form(f"ld@c{space}.b128 =q, [{base}+@o16];")
        for space, base in (
            (".global", "%g"),
            (".shared", "%s"),
            (".local", "%l"),
            ("", "%lg"),
            (".param", "some"),
        )
    ]
    forms += [
        Form(f"st@c{space}.b128 [{base}+@o16], ?Q;")
        for space, base in ((".global", "%g"), (".shared", "%s"), (".local", "%l"), ("", "%sg"))
    ]
    forms += [
        Form(f"ld.global.nc{vector}.{t} {text}, [%in+@i{bytes_}];")
        for vector, t, text, bytes_ in (
            ("", "b32", "=r", 4),
            (".v2", "b64", "{=d, =d}", 16),
            (".v4", "b32", "{=r, =r, =r, =r}", 16),
            ("", "u8", "=h", 1),
        )
    ]
    # Any thread's place, which nobody writes; and one for all lanes.
    forms += [
        Form(f"and.b32 %z0, ?r, 63; mad.lo.u32 %z0, %z0, 16, %s8; ld.shared.{t} {text}, [%z0];")
        for t, text in (
            ("v4.u32", "{=r, =r, =r, =r}"),
            ("u32", "=r"),
            ("u8", "=r"),
            ("v2.u64", "{=d, =d}"),
            ("u16", "=h"),
        )
    ]
    forms += [
        Form(
            f"and.b32 %z0, ?r, 1023; mul.wide.u32 %y0, %z0, 16; add.u64 %y0, %y0, %in; ld.global.{t} {text}, [%y0];"
        )
        for t, text in (
            ("v4.u32", "{=r, =r, =r, =r}"),
            ("u32", "=r"),
            ("s8", "=d"),
            ("v2.f64", "{=d, =d}"),
            ("v4.u8", "{=h, =h, =h, =h}"),
        )
    ]
    # Addresses of one space made of another's.
    forms += [Form(text) for text in (
        "cvta.to.shared.u64 %y0, %sg; ld.shared.u32 =r, [%y0+@o4];", "cvta.to.local.u64 %y0, %lg; ld.local.u32 =r, [%y0+@o4];", "cvta.shared.u64 %y0, %s; sub.u64 =d, %y0, %sg;",
        "cvta.local.u64 %y0, %l; ld.u64 =d, [%y0+@o8];", "isspacep.shared =p, %sg;", "isspacep.local =p, %lg;", "isspacep.global =p, %g;", "isspacep.shared =p, %lg;", "isspacep.const =p, %g;",
        "cvta.param.u64 %y0, %pa; ld.u32 =r, [%y0+@o4];", "isspacep.param =p, %g;", "mapa.shared::cluster.u32 %z0, %s4, 0; ld.shared::cluster.u32 =r, [%z0+@o4];",
        "mapa.shared::cluster.u64 %y0, %s, 0; getctarank.shared::cluster.u64 =r, %y0;", "getctarank.shared::cluster.u32 =r, %s4;", "prefetch.global.L1 [%g];", "mapa.u64 %y0, %sg, 0; ld.u16 =h, [%y0+@o2];", "getctarank.u64 =r, %sg;",
    )]  # fmt: skip
    forms += [Form(f"mov.u{bits} ={k}, %{name};") for bits, k, names in ((32, "r", ("tid.x", "tid.y", "tid.z", "ntid.x", "ctaid.x", "ctaid.y", "nctaid.x", "laneid", "warpid", "lanemask_eq", "lanemask_lt", "lanemask_le", "lanemask_gt", "lanemask_ge", "total_smem_size")), (16, "h", ("tid.x", "ntid.x", "ctaid.x"))) for name in names]  # fmt: skip
    forms += [
        Form("mov.u64 %y0, %globaltimer; setp.ne.u64 %pz, %y0, 0; selp.u32 =r, 1, 2, %pz;"),
        Form(
            "createpolicy.fractional.L2::evict_last.b64 %y0, 1.0; ld.global.L2::cache_hint.u32 =r, [%g+@o4], %y0;"
        ),
        Form(
            "createpolicy.fractional.L2::evict_first.b64 %y0, 0.5; atom.global.add.L2::cache_hint.u32 =r, [%g+@o4], ?r, %y0;"
        ),
    ]
    forms += [
        Form("cvt.u64.u32 =d, %tid.x;"),
        Form("mov.v4.u32 {=r, =r, =r, _}, %tid;"),
        Form("mov.u32 %z0, d; sub.u32 =r, %z0, %z0;"),
    ]
    return forms


def atomics() -> list[Form]:
    """Return updates of a thread's own bytes, and those of shared ones whose order nobody sees."""
    forms = []
    number = 0
    every = [
        f"{n}.{t}"
        for n, types in (
            ("add", "u32 s32 u64"),
            ("min", "u32 s32 u64 s64"),
            ("max", "u32 s32 u64 s64"),
            ("and", "b32 b64"),
            ("or", "b32 b64"),
            ("xor", "b32 b64"),
            ("exch", "b32 b64"),
            ("cas", "b32 b64 b16"),
            ("inc", "u32"),
            ("dec", "u32"),
        )
        for t in types.split()
    ]
    every += [f"{n}.noftz.{t}" for n in ("add",) for t in ("f16", "bf16", "f16x2", "bf16x2")]
    for name in every:
        t = name.rsplit(".", 1)[1]
        k, bytes_ = register(t).upper(), size(t) // 8
        for space, base in ((".global", "%g"), (".shared", "%s"), ("", "%sg"), ("", "%g")):
            scope = ("", ".relaxed.gpu", ".acq_rel.cta", ".release.sys", ".acquire.gpu")[number % 5]
            second = f", ?{k}" if name.startswith("cas") else ""
            value = f"?{k if '16' in t else k.lower()}"
            forms.append(
                Form(f"atom{scope}{space}.{name} ={k.lower()}, [{base}+@o{bytes_}], {value}{second};")
            )
            if not second and not name.startswith("exch"):
                plain = "" if "ac" in scope else scope
                forms.append(Form(f"red{plain}{space}.{name} [{base}+@o{bytes_}], {value};"))
            number += 1
    forms += [
        Form(f"atom{space}.{n}.b128 =q, [{base}+@o16], ?Q{', ?Q' * (n == 'cas')};")
        for n in ("exch", "cas")
        for space, base in ((".global", "%g"), (".shared", "%s"))
    ]
    # Of places of their own, that have no NaNs.
    for t, k, mask in (("f32", "r", "0xbfffffff"), ("f64", "d", "0xbfffffffffffffff")):
        z = "%z0" if k == "r" else "%y0"
        for space, base in ((".global", "%g"), (".shared", "%s"), ("", "%sg")):
            forms.append(
                Form(
                    f"and.b{t[1:]} {z}, ?{k}, {mask}; atom{space}.add.{t} ={k}, [{base}+{64 if k == 'r' else 72}], {z};"
                )
            )
            forms.append(
                Form(
                    f"and.b{t[1:]} {z}, ?{k}, {mask}; red{space}.add.{t} [{base}+{64 if k == 'r' else 72}], {z};"
                )
            )
    # Subnormal numbers and such as have subnormal sums, which global memory alone flushes.
    tiny = "and.b32 %z0, ?r, 0x80ffffff; st{0}.b32 [{1}+64], %z0; and.b32 %z1, ?r, 0x80ffffff; "
    for space, base in ((".global", "%g"), (".shared", "%s"), ("", "%sg"), ("", "%g")):
        start = tiny.format(space, base)
        forms.append(Form(f"{start}atom{space}.add.f32 =r, [{base}+64], %z1; ld{space}.b32 =r, [{base}+64];"))
        forms.append(Form(f"{start}red{space}.add.f32 [{base}+64], %z1; ld{space}.b32 =r, [{base}+64];"))
    for n, of in product(("add", "min", "max"), ("f16", "bf16", "f16x2", "bf16x2")):
        k, bytes_ = register(of), size(of) // 8
        forms += [
            Form(
                f"{what}.global.{n}.noftz.v2.{of} {result}[%g+@o{bytes_ * 2}], {{?{k.upper()}, ?{k.upper()}}};"
            )
            for what, result in (("atom", f"{{={k}, ={k}}}, "), ("red", ""))
        ]
    # All lanes', in an order that does not tell: ones until the sum does not change any more.
    forms += [
        Form(f"red.shared.add.noftz.{t} [all+{at}], %one{t[:-2]};") for at, t in ((0, "f16x2"), (4, "bf16x2"))
    ]
    forms += [
        Form(f"red{space}.{name} [{'all' if space else '%alls'}+{at}], ?{k};")
        for at, name, k in (
            (8, "add.u32", "r"),
            (16, "add.u64", "d"),
            (24, "min.s32", "r"),
            (28, "max.u32", "r"),
            (32, "xor.b32", "r"),
            (40, "or.b64", "d"),
        )
        for space in (".shared", "")
    ]
    return forms


def lanes() -> list[Form]:
    """Return what the lanes of a warp do together, under the mask of those that are here."""
    forms = [Form(f"vote.sync.{how}.pred =p, ?n, @m;") for how in ("all", "any", "uni")] + [
        Form("vote.sync.ballot.b32 =r, ?n, @m;")
    ] * 2
    forms += [Form(f"match.any.sync.{t} =r, ?{k}, @m;") for t, k in (("b32", "r"), ("b64", "d"))]
    forms += [
        Form("and.b32 %z0, ?r, 3; match.any.sync.b32 =r, %z0, @m;"),
        Form("and.b64 %y0, ?d, 1; match.any.sync.b64 =r, %y0, @m;"),
    ]
    forms += [
        Form(f"match.all.sync.{t} =r{p}, ?{k}, @m;")
        for t, k in (("b32", "r"), ("b64", "d"))
        for p in ("", "|=p")
    ]
    forms += [Form("and.b32 %z0, ?r, 0x80000000; match.all.sync.b32 =r|=p, %z0, @m;")]
    forms += [
        Form(f"redux.sync.{n} =r, ?r, @m;")
        for n in (
            "add.u32",
            "add.s32",
            "min.u32",
            "max.u32",
            "min.s32",
            "max.s32",
            "and.b32",
            "or.b32",
            "xor.b32",
        )
    ]
    forms += [
        Form("activemask.b32 =r;"),
        Form("elect.sync =r|=p, @m;"),
        Form("elect.sync _|=p, @m;"),
        Form("bar.warp.sync @m;"),
    ]
    nth = "popc.b32 %z0, @m; rem.u32 %z1, ?r, %z0; add.u32 %z1, %z1, 1; fns.b32 %z2, @m, 0, %z1; "  # a lane that is here
    forms += [Form(f"{nth}shfl.sync.idx.b32 =r{p}, ?r, %z2, 31, @m;") for p in ("", "|=p")]
    there = "shr.u32 %z3, @m, %z3; and.b32 %z3, %z3, 1; setp.ne.u32 %pz, %z3, 0; selp.b32 =r, %z4, 0, %pz;"  # or 0: it is not here
    forms += [Form(f"and.b32 %z2, ?r, 31; shfl.sync.{mode}.b32 %z4{p}, ?r, %z2, {last}, @m; {source} {there}")
              for p in ("", "|=p")
              for mode, last, source in (("bfly", "31", "xor.b32 %z3, %lane, %z2;"),
                                         ("up", "0", "sub.s32 %z3, %lane, %z2; setp.lt.s32 %pz, %z3, 0; selp.b32 %z3, %lane, %z3, %pz;"),
                                         ("down", "31", "add.s32 %z3, %lane, %z2; setp.gt.s32 %pz, %z3, 31; selp.b32 %z3, %lane, %z3, %pz;"))]  # fmt: skip
    forms += [
        Form(f"shfl.sync.{mode}.b32 =r{p}, ?r, ?r, {last}, -1;", "warp")
        for mode in ("up", "down", "bfly", "idx")
        for p in ("", "|=p")
        for last in ("?r", "0x1c03", "0x101f")
    ]
    return forms


MMA = [  # name behind the shape and the layouts, registers of d, a, b and c, and their kinds
    *[(f"m16n8k{k}.row.col.f32.{t}.{t}.f32", 4, k // 4, k // 8, 4, "rrrr") for t in ("f16", "bf16") for k in (8, 16)],
    *[(f"m16n8k{k}.row.col.f16.f16.f16.f16", 2, k // 4, k // 8, 2, "rrrr") for k in (8, 16)],
    *[(f"m16n8k{k}.row.col.f32.tf32.tf32.f32", 4, k // 2, k // 4, 4, "rrrr") for k in (4, 8)],
    ("m8n8k4.row.col.f64.f64.f64.f64", 2, 1, 1, 2, "dddd"), ("m16n8k4.row.col.f64.f64.f64.f64", 4, 2, 1, 4, "dddd"),
    ("m16n8k32.row.col.f32.e4m3.e5m2.f32", 4, 4, 2, 4, "rrrr"), ("m16n8k16.row.col.s32.s8.u8.s32", 4, 2, 1, 4, "rrrr"),
    ("m16n8k32.row.col.satfinite.s32.u8.s8.s32", 4, 4, 2, 4, "rrrr"), ("m16n8k64.row.col.s32.s4.u4.s32", 4, 4, 2, 4, "rrrr"), ("m8n8k32.row.col.s32.s4.s4.s32", 2, 1, 1, 2, "rrrr"),
    ("m8n8k16.row.col.s32.s8.s8.s32", 2, 1, 1, 2, "rrrr"), ("m8n8k128.row.col.s32.b1.b1.s32.xor.popc", 2, 1, 1, 2, "rrrr"), ("m16n8k256.row.col.s32.b1.b1.s32.and.popc", 4, 4, 2, 4, "rrrr"),
    ("m8n8k4.row.col.f32.f16.f16.f32", 8, 2, 2, 8, "rrrr"), ("m8n8k4.col.row.f16.f16.f16.f16", 4, 2, 2, 4, "rrrr"),
]  # fmt: skip
WMMA = [  # shape, element of a and b, of c and d, registers of a, b, c, and their kinds
    ("m16n16k16", "f16", "f32", 8, 8, 8, "r"), ("m32n8k16", "f16", "f16", 8, 8, 4, "r"), ("m8n32k16", "bf16", "f32", 2, 8, 8, "r"),
    ("m16n16k16", "s8", "s32", 2, 2, 8, "r"), ("m16n16k16", "u8", "s32", 2, 2, 8, "r"), ("m16n16k8", "tf32", "f32", 4, 4, 8, "r"), ("m8n8k4", "f64", "f64", 1, 1, 2, "d"),
]  # fmt: skip


def _many(token: str, count: int) -> str:
    return "{" + ", ".join([token] * count) + "}"


def matrices() -> list[Form]:
    """Return products of matrices, and their fragments' way to and from memory."""
    forms = [
        Form(
            f"mma.sync.aligned.{name} {_many('=' + kinds[0], d)}, {_many('?' + kinds[1].upper(), a)}, {_many('?' + kinds[2].upper(), b)}, {_many('?' + kinds[3].upper(), c)};",
            "warp",
        )
        for name, d, a, b, c, kinds in MMA
    ]
    forms += [
        Form(
            f"and.b32 %z0, ?R, 63; mad.lo.u32 %z0, %z0, 16, %s8; ldmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 {_many('=r', n)}, [%z0];",
            "warp",
        )
        for n in (1, 2, 4)
        for trans in ("", ".trans")
    ]
    forms += [
        Form(
            f"mad.lo.u32 %z0, %lane, 16, %w; stmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 [%z0], {_many('?R', n)}; bar.warp.sync -1; ld.shared.v2.u64 {{=d, =d}}, [%z0]; bar.warp.sync -1;",
            "warp",
        )
        for n in (1, 2, 4)
        for trans in ("", ".trans")
    ]
    forms += [Form("movmatrix.sync.aligned.m8n8.trans.b16 =r, ?R;", "warp")]
    for number, (shape, of, to, a, b, c, k) in enumerate(WMMA):
        ab = 16 if of == "f64" else 32
        row, col = ("row", "col") if number % 2 else ("col", "row")
        if to in ("s32", "f64") or of == "tf32":
            row, col = "row", "col"
        tokens = [f"%{'x' if k == 'r' else 'v'}{n}" for n in range(8)]
        text = f"mul.wide.u32 %y0, %b, 16; add.u64 %y0, %y0, %in; wmma.load.a.sync.aligned.{row}.{shape}.global.{of} {{{', '.join(tokens[:a])}}}, [%y0], {ab}; "
        text += f"wmma.load.b.sync.aligned.{col}.{shape}.shared.{of} {_many('=' + k, b) if b < 8 else '{' + ', '.join(f'%x{n + 8}' for n in range(b)) + '}'}, [%s8], {16 if of != 'f64' else 8}; "
        last = (
            "{"
            + ", ".join(f"%{'x' if k == 'r' else 'v'}{n + 16 if k == 'r' else n + 4}" for n in range(c))
            + "}"
        )
        text += f"wmma.mma.sync.aligned.{row}.{col}.{shape}.{f'{to}.{to}' if of == 'f16' else f'{to}.{of}.{of}.{to}'} {last}, {{{', '.join(tokens[:a])}}}, {_many('?' + k.upper(), b) if b < 8 else '{' + ', '.join(f'%x{n + 8}' for n in range(b)) + '}'}, {_many('?' + k.upper(), c)}; "
        text += f"wmma.store.d.sync.aligned.row.{shape}.shared.{to} [%w], {last}, {shape[shape.index('n') + 1 : shape.index('k')]}; bar.warp.sync -1; mad.lo.u32 %z0, %lane, 16, %w; ld.shared.v2.u64 {{=d, =d}}, [%z0]; bar.warp.sync -1;"
        forms.append(Form(text, "warp"))
    return forms


def waits() -> list[Form]:
    """Return copies that go on by themselves, and barriers of all kinds."""
    forms = []
    for count, how, (n, many) in product((4, 8, 16), ("ca", "cg"), ((0, 1), (1, 2), (0, 2))):
        if how == "cg" and count != 16:
            continue
        copies = " ".join(f"cp.async.{how}.shared.global{hint} [%s{four}+@o{count}], [%g+@o{count}], {count}{rest}; cp.async.commit_group;"
                          for hint, four, rest in (("", "", ""), (".L2::128B", "4", ", %z0"))[:many])  # fmt: skip
        wait = f"cp.async.wait_group {n}; cp.async.wait_all;" if n else "cp.async.wait_group 0;"
        forms.append(
            Form(
                f"and.b32 %z0, ?r, {count // 2 + count // 4}; {copies} add.u32 =r, ?r, ?r; {wait} ld.shared.u32 =r, [%s+@o4];"
            )
        )
    forms += [
        Form(
            "cp.async.ca.shared.global [%s+@o16], [%g+@o16], 16, ?P; cp.async.wait_all; ld.shared.v2.u64 {=d, =d}, [%s+@o16];"
        )
    ]
    forms += [
        Form(
            "cp.async.ca.shared.global [%s+@o8], [%g+@o8], 8; cp.async.wait_all; ld.shared.u64 =d, [%s+@o8];"
        )
    ]
    forms += [Form("bar.sync 0;", "block"), Form("barrier.sync.aligned 3;", "block"), Form("bar.sync 1, %count;", "block"), Form("bar.red.popc.u32 =r, 0, ?n;", "block"), Form("bar.red.or.pred =p, 2, ?n;", "block"),
              Form("barrier.red.and.pred =p, 0, ?n;", "block"), Form("setp.lt.u32 %pz, %t, 32; @!%pz bar.arrive 5, %count; @%pz bar.sync 5, %count; bar.sync 0;", "whole"), Form("membar.gl;"), Form("fence.acq_rel.gpu;"), Form("membar.cta;"), Form("nanosleep.u32 1;")]  # fmt: skip
    free = "bar.sync 0; @%first mbarrier.inval.shared.b64 [mb]; bar.sync 0;"
    begin = "@%first mbarrier.init.shared.b64 [mb], %count; bar.sync 0; "
    forms += [Form(begin + middle + free, "block") for middle in (
        "mbarrier.arrive.shared.b64 %y0, [mb]; mbarrier.pending_count.b64 %z0, %y0; min.u32 =r, %z0, 1; @L: mbarrier.test_wait.shared.b64 %pz, [mb], %y0; @!%pz bra @L; ",
        "mbarrier.arrive.shared.b64 _, [mb], 1; @L: mbarrier.try_wait.parity.shared.b64 %pz, [mb], 0; @!%pz bra @L; ",
        "mbarrier.arrive.shared.b64 %y0, [mb]; @L: mbarrier.try_wait.shared.b64 %pz, [mb], %y0; @!%pz bra @L; ",
        "@%first mbarrier.expect_tx.relaxed.cta.shared.b64 [mb], 64; bar.sync 0; @%first cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [bulk], [%in], 64, [mb]; mbarrier.arrive.shared.b64 %y0, [mb]; @L: mbarrier.test_wait.shared.b64 %pz, [mb], %y0; @!%pz bra @L; ld.shared.u64 =d, [bulk+@o8]; ",
        "createpolicy.fractional.L2::evict_first.b64 %y1, 0.5; @%first mbarrier.expect_tx.relaxed.cta.shared.b64 [mb], 32; bar.sync 0; @%first cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [bulk], [%in+64], 32, [mb], %y1; mbarrier.arrive.shared.b64 %y0, [mb]; @L: mbarrier.test_wait.shared.b64 %pz, [mb], %y0; @!%pz bra @L; ld.shared.u64 =d, [bulk+@o8]; ",
        "@!%first mbarrier.arrive.shared.b64 %y0, [mb]; @%first mbarrier.arrive.expect_tx.shared.b64 %y0, [mb], 16; @%first mbarrier.complete_tx.relaxed.cta.shared.b64 [mb], 16; @L: mbarrier.test_wait.parity.shared.b64 %pz, [mb], 0; @!%pz bra @L; ",
        "mbarrier.arrive_drop.shared.b64 %y0, [mb]; @L: mbarrier.test_wait.shared.b64 %pz, [mb], %y0; @!%pz bra @L; ",
    )]  # fmt: skip
    return forms


def calls() -> list[Form]:
    """Return calls of functions by name and by address."""
    forms = [Form(f"call (=r), f{n}, (?R, ?R);") for n in range(3)] + [
        Form("call (=d), f3, (?D, ?H);"),
        Form("call f4, (%g, ?R);"),
    ]
    forms += [Form("setp.lt.s32 %pz, ?r, ?r; mov.u64 %y0, f0; mov.u64 %y1, f1; selp.b64 %y0, %y0, %y1, %pz; call (=r), %y0, (?R, ?R), two;"),
              Form("mov.u64 %y0, f2; call (=r), %y0, (?R, ?R), two;")]  # fmt: skip
    for n, (t, k) in enumerate(
        (
            ("u8", "h"),
            ("u8", "r"),
            ("u8", "d"),
            ("u16", "h"),
            ("u16", "r"),
            ("u16", "d"),
            ("u32", "r"),
            ("u32", "d"),
            ("u64", "d"),
        )
    ):
        more = f"st.param.{t} [@L+{8 + size(t) // 8}], ?{k.upper()};"
        if n % 2:
            more = (
                f"st.param.v2.{t} [@L+8], {{?{k.upper()}, ?{k.upper()}}};"
                if (t, k) not in (("u16", "d"), ("u8", "d"), ("u32", "d"))
                else more
            )
        forms.append(
            Form(
                f"{{ .param .align 16 .b8 @L[32]; .param .b64 r@L; st.param.v2.b64 [@L], {{?D, ?D}}; st.param.v2.b64 [@L+16], {{?D, ?D}}; st.param.{t} [@L], ?{k.upper()}; {more} call (r@L), g, (@L); ld.param.b64 =d, [r@L]; }}"
            )
        )
    forms += [Form(f"{{ .param .align 16 .b8 @L[32]; .param .b64 r@L; {first} {second} call (r@L), g, (@L); ld.param.b64 =d, [r@L]; }}") for first, second in (
        ("st.param.v4.b32 [@L], {?R, ?R, ?R, ?R};", "st.param.v4.u16 [@L+16], {?H, ?H, ?H, ?H}; st.param.b64 [@L+24], ?D;"),
        ("st.param.v2.b32 [@L], {?R, ?R}; st.param.v4.u8 [@L+8], {?H, ?H, ?H, ?H}; st.param.v4.u8 [@L+12], {?R, ?R, ?R, ?R};", "st.param.v4.u16 [@L+16], {?R, ?R, ?R, ?R}; st.param.v2.u16 [@L+24], {?H, ?H}; st.param.v2.u16 [@L+28], {?R, ?R};"),
        ("mov.b128 %q0, {?D, ?D}; st.param.b128 [@L], %q0;", "st.param.v2.u8 [@L+16], {?H, ?H}; st.param.v2.u8 [@L+18], {?R, ?R}; st.param.b32 [@L+20], ?R; st.param.b64 [@L+24], ?D;"),
    )]  # fmt: skip
    return forms


FUNCTIONS = """
.func (.reg .b32 out) f0(.reg .b32 a, .reg .b32 b) { .reg .b32 %r<4>; mad.lo.s32 %r1, a, 3, b; xor.b32 out, %r1, 77; ret; }
.func (.reg .b32 out) f1(.reg .b32 a, .reg .b32 b) { .reg .pred %p; .reg .b32 %r; setp.lt.s32 %p, a, b; mov.u32 out, 5; @%p ret; sub.u32 %r, a, b; shl.b32 out, %r, 2; ret; }
.func (.reg .b32 out) f2(.reg .b32 a, .reg .b32 b) { .reg .pred %p; .reg .b32 %r, %n; and.b32 %n, a, 3; mov.u32 %r, b;
 L: call (%r), f0, (%r, %n); add.u32 %n, %n, 1; setp.lt.u32 %p, %n, 4; @%p bra L; mov.u32 out, %r; ret; }
.func (.reg .b64 out) f3(.reg .b64 a, .reg .b16 b) { .reg .b64 %d; cvt.s64.s16 %d, b; sub.s64 out, a, %d; ret; }
.func (.param .b64 out) g(.param .align 16 .b8 a[32]) { .reg .b64 %d<5>; ld.param.v2.b64 {%d1, %d2}, [a]; ld.param.v2.b64 {%d3, %d4}, [a+16];
 xor.b64 %d1, %d1, %d2; shl.b64 %d3, %d3, 1; xor.b64 %d3, %d3, %d4; xor.b64 %d1, %d1, %d3; st.param.b64 [out], %d1; ret; }
.func f4(.reg .b64 a, .reg .b32 b) { .reg .b32 %r; ld.global.u32 %r, [a+8]; add.u32 %r, %r, b; st.global.u32 [a+8], %r; ret; }
"""


def everything() -> list[Form]:
    """Return all forms that are drawn."""
    from tests.native.simgpu_compiler.drawn import forms

    parts = (
        forms.integers,
        forms.single_and_double,
        forms.halves,
        forms.conversions,
        forms.comparisons,
        forms.video,
        accesses,
        atomics,
        *[lanes] * 4,
        *[matrices] * 2,
        waits,
        calls,
    )
    return [form for part in parts for form in part()]
