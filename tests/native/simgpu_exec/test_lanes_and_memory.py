"""Exchange between lanes, atomics, vectors and the state spaces: one warp, each lane its element, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.native.simgpu_compiler.conftest import VECTORS
from tests.native.simgpu_exec.conftest import element, element_text
from tests.native.simgpu_exec.exact import BRAIN, HALF
from tests.real_gpu import REAL

LANE = np.arange(32)
U4 = np.uint32


def warp(device: Any, text: str, a: Any, b: Any = None, c: Any = None, out: Any = U4) -> Any:
    a = np.asarray(a)
    b, c = (a if v is None else np.asarray(v, a.dtype) for v in (b, c))
    return element(device, text, a, b, c, out)


VALUES = np.array([(n * 2654435761) % 2**32 for n in range(32)], U4)
SMALL = (VALUES >> 28).astype(U4)
EXCHANGE: list[tuple[str, Any, Any]] = [
    ("shfl.sync.up.b32 %d|%p1, %a, 3, 0, -1;", VALUES, np.where(LANE >= 3, np.roll(VALUES, 3), VALUES)),
    ("shfl.sync.down.b32 %d, %a, 5, 31, -1;", VALUES, np.where(LANE < 27, np.roll(VALUES, -5), VALUES)),
    ("shfl.sync.bfly.b32 %d, %a, 6, 31, -1;", VALUES, VALUES[LANE ^ 6]),
    ("shfl.sync.idx.b32 %d, %a, 2, 0x181f, -1;", VALUES, VALUES[LANE // 8 * 8 + 2]),
    ("shfl.sync.down.b32 %x0|%p1, %a, 3, 0x181f, -1; selp.b32 %d, 1, 0, %p1;", VALUES, LANE % 8 < 5),
    ("redux.sync.add.s32 %d, %a, -1;", VALUES, np.full(32, VALUES.sum(dtype=U4))),
    ("redux.sync.min.u32 %d, %a, -1;", VALUES, np.full(32, VALUES.min())),
    ("redux.sync.max.s32 %d, %a, -1;", VALUES, np.full(32, VALUES.view(np.int32).max()).astype(U4)),
    ("redux.sync.xor.b32 %d, %a, -1;", VALUES, np.full(32, np.bitwise_xor.reduce(VALUES))),
    ("match.any.sync.b32 %d, %a, -1;", SMALL, [(1 << np.flatnonzero(s == SMALL)).sum() for s in SMALL]),
    ("match.all.sync.b32 %d|%p1, %a, -1; @%p1 mov.b32 %d, 77;", SMALL, np.zeros(32)),
    ("match.all.sync.b32 %x0|%p1, 5, -1; selp.b32 %d, %x0, 0, %p1;", SMALL, np.full(32, 2**32 - 1)),
    ("setp.gt.u32 %p1, %a, 7; vote.sync.ballot.b32 %d, %p1, -1;", SMALL, np.full(32, (1 << np.flatnonzero(SMALL > 7)).sum())),
    ("setp.lt.u32 %p1, %a, 99; vote.sync.all.pred %p2, !%p1, -1; selp.b32 %d, 1, 0, %p2;", SMALL, np.zeros(32)),
    ("setp.lt.u32 %p1, %a, 99; vote.sync.uni.pred %p2, %p1, -1; selp.b32 %d, 1, 0, %p2;", SMALL, np.ones(32)),
    ("elect.sync %x0|%p1, -1; selp.b32 %d, %x0, 9, %p1;", SMALL, np.where(LANE == 0, 0, 9)),
    ("activemask.b32 %d;", SMALL, np.full(32, 2**32 - 1)),
    ("mov.u32 %d, %lanemask_gt;", SMALL, [(2**32 - 2 << n) % 2**32 for n in range(32)]),
    ("mov.u32 %x0, %clusterid.x; mov.u32 %x1, %cluster_nctaid.y; add.u32 %d, %x0, %x1;", SMALL, np.ones(32)),
    ("mov.u32 %d, %laneid;", SMALL, LANE),
]  # fmt: skip


@pytest.mark.parametrize("row", EXCHANGE, ids=lambda row: row[0].split(" ")[0])
def test_exchange_between_lanes(device: Any, row: Any) -> None:
    text, a, want = row
    np.testing.assert_array_equal(warp(device, text, a), np.asarray(want).astype(U4))


def test_one_lane_of_a_diverged_half_is_elected(device: Any) -> None:
    text = """
    and.b32 %x0, %i, 1;
    setp.eq.u32 %p1, %x0, 1;
    mov.b32 %d, 0;
    @!%p1 bra SKIP;
    elect.sync %x1|%p2, 0xaaaaaaaa;
    selp.b32 %d, 5, %x1, %p2;
    SKIP:
    """
    want = np.where(LANE % 2, 1, 0)
    want[1] = 5
    np.testing.assert_array_equal(warp(device, text, VALUES), want)


@pytest.mark.parametrize(("kind", "form"), [("f16x2", HALF), ("bf16x2", BRAIN)])
def test_two_halves_are_compared_each(device: Any, kind: str, form: Any) -> None:
    one, two, nan = form.code(1), form.code(2), form.nan
    pairs = [(x, y) for x in (one, two, nan) for y in (one, two, nan)]
    low = np.array([x for x, _ in pairs])
    high = np.array([y for _, y in pairs])
    a = (high << 16 | low).astype(U4)
    b = np.full(len(a), one << 16 | two, U4)
    true, short = form.code(1), kind[:-2]
    less = [int(x == one) for x in low], [0 for _ in high]
    got = warp(device, f"set.lt.{kind}.{kind} %d, %a, %b;", a, b)
    np.testing.assert_array_equal(got, np.array(less[0]) * true)
    got = warp(device, f"set.geu.u32.{kind} %d, %a, %b;", a, b)
    want = [0xFFFF * (x != one) | 0xFFFF0000 for x in low]
    np.testing.assert_array_equal(got, want)
    got = warp(
        device,
        f"setp.eq.{kind} %p1|%p2, %a, %b; selp.b32 %x0, 1, 0, %p1; selp.b32 %d, 2, 0, %p2; or.b32 %d, %d, %x0;",
        a,
        b,
    )
    np.testing.assert_array_equal(got, [int(x == two) + 2 * int(y == one) for x, y in pairs])
    got = warp(device, f"fma.rn.{kind} %d, %a, %b, %a;", a, b)
    alone = [
        warp(
            device,
            f"fma.rn.{short} %d, %a, %b, %a;",
            part.astype(np.uint16),
            np.full(len(a), other),
            out=np.uint16,
        )
        for part, other in ((low, two), (high, one))
    ]
    np.testing.assert_array_equal(got, alone[1].astype(U4) << 16 | alone[0])


#   atom on 32 lanes one after the other: what it is, operand type, function of (old, operand)
ATOMS: list[tuple[str, str, Any]] = [
    ("add.u32", "u4", lambda o, v: o + v),
    ("add.u64", "u8", lambda o, v: o + v),
    ("min.s32", "i4", min),
    ("max.u32", "u4", max),
    ("min.u64", "u8", min),
    ("max.s64", "i8", max),
    ("and.b32", "u4", lambda o, v: o & v),
    ("or.b64", "u8", lambda o, v: o | v),
    ("xor.b32", "u4", lambda o, v: o ^ v),
    ("exch.b32", "u4", lambda o, v: v),
    ("exch.b64", "u8", lambda o, v: v),
    ("inc.u32", "u4", lambda o, v: 0 if o >= v else o + 1),
    ("dec.u32", "u4", lambda o, v: v if o == 0 or o > v else o - 1),
    ("add.f32", "f4", lambda o, v: o + v),
    ("add.f64", "f8", lambda o, v: o + v),
    ("add.noftz.f16", "f2", lambda o, v: o + v),
]


def after(function: Any, old: Any, value: Any) -> Any:
    with np.errstate(over="ignore"):  # sums wrap
        return np.asarray(function(old, value)).astype(np.asarray(value).dtype)[()]


@pytest.mark.parametrize("space", ["global", "shared", "generic"])
@pytest.mark.parametrize("row", ATOMS, ids=lambda row: row[0])
def test_atomic_updates_give_what_was_before(device: Any, row: Any, space: str) -> None:
    name, dtype, function = row
    bits = np.dtype(dtype).itemsize * 8
    a = SMALL.astype(dtype) if "f" in dtype else (VALUES.astype(np.uint64) * 0x9E3779B97F4A7C15).astype(dtype)
    if name[:3] in ("inc", "dec"):
        a = np.full(32, 6, dtype)
    load = f"ld.b{bits}" if space == "generic" else f"ld.{space}.b{bits}"
    where = "" if space == "generic" else f".{space}"
    place = "ld.param.u64 %y0, [pb];" if space == "global" else "mov.u64 %y0, cell;"
    if space == "generic":
        place += " cvta.shared.u64 %y0, %y0;"
    declared = f".shared .align 16 .b8 cell[16]; {place}"
    clear = "" if space == "global" else f"mov.b{bits} %c, 0; st{where}.b{bits} [%y0], %c; bar.warp.sync -1;"
    text = f"{declared} {clear} atom{where}.{name} %d, [%y0], %a; {load} %b, [%y0]; "
    got = element(device, text, a, np.zeros(32, dtype), a, dtype)
    if not REAL:  # a GPU has them in any order
        old, want = np.zeros(1, dtype)[0], []
        for value in a:
            want.append(old)
            old = after(function, old, value)
        np.testing.assert_array_equal(got, np.array(want, dtype))
    # In some order each finds what the one before it has left; first those that change nothing.
    rest, old = list(zip(got, a, strict=True)), np.zeros(1, dtype)[0]
    while rest:
        next_ones = [n for n, (found, _) in enumerate(rest) if found == old]
        assert next_ones, f"nobody has found {old}"
        idle = [n for n in next_ones if after(function, old, rest[n][1]) == old]
        old = after(function, *rest.pop((idle or next_ones)[0]))


#   what is there, what is added, and what is there afterwards: in global memory and in shared memory
SMALL_SUMS = [
    (0x00400000, 0x00000000, 0x00000000, 0x00400000),  # one that is subnormal before
    (0x00000000, 0x00400000, 0x00000000, 0x00400000),  # that is added
    (0x80400000, 0x80000000, 0x80000000, 0x80400000),  # zeros of their signs
    (0x00800000, 0x80C00000, 0x80000000, 0x80400000),  # a sum of normal ones
    (0x00400000, 0x00400000, 0x00000000, 0x00800000),  # whose sum is normal
    (0x00800000, 0x00400000, 0x00800000, 0x00C00000),
    (0x00C00000, 0x80800000, 0x00000000, 0x00400000),
    (0x3F800000, 0x40000000, 0x40400000, 0x40400000),
]


@pytest.mark.parametrize("how", ["interpreter", *VECTORS])
@pytest.mark.parametrize("wanted", [True, False], ids=["atom", "red"])
@pytest.mark.parametrize("space", ["global", "shared", "generic", "both"])
def test_additions_flush_subnormal_numbers_in_global_memory_alone(
    device: Any, monkeypatch: pytest.MonkeyPatch, how: str, wanted: bool, space: str
) -> None:
    monkeypatch.setenv("GPUKERNEL_SIMGPU_TIER", "interpreter" if how == "interpreter" else "compiled")
    monkeypatch.setenv("GPUKERNEL_SIMGPU_VECTORS", "" if how == "interpreter" else how)
    before, added, in_global, in_shared = (
        np.resize(np.array(column, U4), 32) for column in zip(*SMALL_SUMS, strict=True)
    )
    text = """
    { .shared .align 4 .b8 cell[128]; .reg .b64 %g, %s, %here; .reg .pred %odd; .reg .f32 %v, %old;
    ld.param.u64 %g, [pb]; mul.wide.u32 %y0, %i, 4; add.u64 %g, %g, %y0;
    mov.u64 %s, cell; add.u64 %s, %s, %y0; st.shared.b32 [%s], %b; GENERIC
    and.b32 %x0, %i, 1; setp.eq.u32 %odd, %x0, 1; mov.b32 %v, %a; mov.b32 %old, %b; mov.u64 %here, %PLACE; CHOOSE
    UPDATE
    mov.b32 %c, %old; setp.ne.b32 %p1, %c, %b; ld.LOADED.b32 %d, [%here]; @%p1 mov.b32 %d, 0x7fc00000; }
    """
    name = space if space in ("global", "shared") else ""
    text = text.replace("GENERIC", "" if name else "cvta.shared.u64 %s, %s;").replace(
        "PLACE", space[0] if name else "s"
    )
    text = text.replace("CHOOSE", "@%odd mov.u64 %here, %g;" if space == "both" else "")
    update = f"atom.{name}.add.f32 %old, [%here], %v;" if wanted else f"red.{name}.add.f32 [%here], %v;"
    text = text.replace("UPDATE", update).replace("LOADED", name).replace("..", ".")
    got = element(device, text, added, before, added, U4)
    want = {"global": in_global, "both": np.where(LANE % 2, in_global, in_shared)}.get(space, in_shared)
    np.testing.assert_array_equal(got, want, err_msg=space)


def test_brain_float_and_vector_atomics(device: Any) -> None:
    text = """
    .shared .align 16 .b8 cell[16]; mov.u64 %y0, cell;
    mov.b32 %x0, 0; st.shared.b32 [%y0], %x0; bar.warp.sync -1;
    atom.shared.add.noftz.bf16x2 %x0, [%y0], %a; bar.warp.sync -1;
    ld.shared.b32 %d, [%y0];
    """
    got = warp(device, text, np.full(32, BRAIN.code(2) << 16 | BRAIN.code(1), U4))
    assert set(got.tolist()) == {BRAIN.code(64) << 16 | BRAIN.code(32)}
    text = """
    { .reg .f32 %v<4>; .reg .b64 %g; ld.param.u64 %g, [pb];
    mov.b32 %v0, %a; mov.b32 %v1, 0f40000000;
    red.global.add.v2.f32 [%g+8], {%v0, %v1}; bar.warp.sync -1;
    ld.global.v2.f32 {%v2, %v3}, [%g+8]; add.f32 %v2, %v2, %v3; mov.b32 %d, %v2; }
    """
    one = np.full(32, np.float32(1).view(U4))
    assert set(warp(device, text, one, np.zeros(32)).view(np.float32).tolist()) == {96.0}


def test_sixteen_bytes_are_compared_and_exchanged_at_once(device: Any) -> None:
    text = """
    { .reg .b128 %w<4>; .reg .b64 %g; ld.param.u64 %g, [pb];
    mov.b128 %w0, {%y2, %y3}; mov.b64 %y2, 0; mov.b64 %y3, 0; mov.b128 %w0, {%y2, %y3};
    mov.b128 %w1, {%a, %c};
    atom.global.cas.b128 %w2, [%g], %w0, %w1; mov.b128 {%y0, %y1}, %w2; add.u64 %d, %y0, %y1; }
    """
    a, c = np.arange(32, dtype=np.uint64) + 100, np.arange(32, dtype=np.uint64) * 1000
    got = element(device, text, a, np.zeros(32, np.uint64), c, np.uint64)
    first = a[got == 0]  # that lane finds zeros, the others what it left
    assert len(first) == 1
    assert set(got[got != 0].tolist()) == {first[0] + c[first[0] - 100]}


@pytest.mark.parametrize(
    ("text", "dtype", "function"),
    [
        ("{ .reg .b32 %q<4>; ld.global.v2.s8 {%q0, %q1}, [%y0]; sub.s32 %d, %q0, %q1; }", "i1", lambda v: v[0] - v[1]),
        ("{ .reg .b32 %q<4>; ld.global.v4.u8 {%q0, %q1, _, %q3}, [%y0]; add.s32 %d, %q0, %q3; }", "u1", lambda v: v[0] + v[3]),
        ("{ .reg .b64 %q<2>; .reg .b32 %h; ld.global.v2.s32 {%q0, %q1}, [%y0]; sub.s64 %q0, %q0, %q1; mov.b64 {%h, %d}, %q0; }", "i4", lambda v: (v[0] - v[1]) >> 32),
        ("{ .reg .b64 %q<4>; ld.global.v4.u8 {%q0, _, %q2, %q3}, [%y0]; mul.lo.u64 %q0, %q0, %q3; cvt.u32.u64 %d, %q0; }", "u1", lambda v: v[0] * v[3]),
        ("{ .reg .b64 %q<2>; .reg .b32 %h; ld.global.v2.s8 {%q0, %q1}, [%y0]; add.s64 %q0, %q0, %q1; mov.b64 {%h, %d}, %q0; }", "i1", lambda v: (v[0] + v[1]) >> 32),
        ("{ .local .align 4 .b8 m[4]; .reg .b64 %q<2>; cvta.to.global.u64 %q0, %y0; ld.global.v2.u16 {%q1, _}, [%q0]; st.local.v2.u16 [m], {%q1, %q0}; ld.local.u16 %d, [m]; }", "u2", lambda v: v[0]),
        ("{ .reg .b32 %q<4>; ld.global.nc.L1::no_allocate.v4.s16 {%q0, %q1, %q2, %q3}, [%y0]; add.s32 %d, %q1, %q2; }", "i2", lambda v: v[1] + v[2]),
        ("{ .reg .b16 %q<4>; ld.volatile.global.v2.u16 {%q0, %q1}, [%y0]; mov.b32 %d, {%q1, %q0}; }", "u2", lambda v: v[1] | v[0] << 16),
        ("{ .reg .b128 %w; .reg .b64 %q<2>; ld.global.b128 %w, [%y0]; mov.b128 {%q0, %q1}, %w; cvt.u32.u64 %d, %q1; }", "u4", lambda v: v[2]),
        ("ld.acquire.gpu.global.b32 %d, [%y0+4];", "u4", lambda v: v[1]),
        ("ld.global.b32 { %d }, [%y0+8];", "u4", lambda v: v[2]),
        ("ld.relaxed.sys.global.s8 %d, [%y0+3];", "i1", lambda v: v[3]),
        ("{ .reg .b64 %q; ld.global.s16 %q, [%y0+6]; shr.s64 %q, %q, 4; cvt.u32.u64 %d, %q; }", "i2", lambda v: v[3] >> 4),
    ],
    ids=lambda v: v.split("ld.")[1].split(" ")[0] if isinstance(v, str) and "ld." in v else None,
)  # fmt: skip
def test_loads_of_every_shape(device: Any, text: str, dtype: str, function: Any) -> None:
    random = np.random.default_rng(3)
    cells = random.integers(0, 256, (32, 16)).astype(np.uint8)
    a = cells.view(U4)[:, :1].ravel()
    address = "mul.wide.u32 %y1, %i, 16; ld.param.u64 %y0, [pb]; add.u64 %y0, %y0, %y1;"
    out = np.zeros(32, U4)
    device.run(element_text(f"{address} {text}", 4, 4), "element", 1, 32, a, cells, a, out, U4(32))
    want = [int(function([int(v) for v in row.view(dtype)])) % 2**32 for row in cells]
    np.testing.assert_array_equal(out, want)


def test_a_thread_grows_its_own_stack(device: Any) -> None:
    """In either direction: each piece keeps what was written to it, and lies at a multiple of what was asked."""
    text = """
    and.b32 %x0, %i, 7; add.u32 %x0, %x0, 1; mul.lo.u32 %x0, %x0, 16; cvt.u64.u32 %y0, %x0;
    stacksave.u64 %y3;
    alloca.u64 %y1, %y0, 16;
    alloca.u64 %y2, 16;
    st.local.b32 [%y1+8], %a;
    st.local.b32 [%y2], %i; st.local.b32 [%y2+12], 5;
    sub.u32 %x2, %x0, 4; cvt.u64.u32 %y0, %x2; add.u64 %y0, %y1, %y0; st.local.b32 [%y0], 6;
    ld.local.b32 %d, [%y1+8]; ld.local.b32 %x1, [%y2]; add.u32 %d, %d, %x1;
    stackrestore.u64 %y3;
    stacksave.u64 %y0; setp.ne.u64 %p1, %y0, %y3; @%p1 mov.b32 %d, 0;
    or.b64 %y0, %y1, %y2; and.b64 %y0, %y0, 15; setp.ne.u64 %p1, %y0, 0; @%p1 mov.b32 %d, 0;
    """
    np.testing.assert_array_equal(warp(device, text, VALUES), VALUES + LANE.astype(U4))


def test_a_table_of_branches(device: Any) -> None:
    text = """
    and.b32 %x0, %i, 3;
    TABLE: .branchtargets L0, L1, L2, L1;
    brx.idx %x0, TABLE;
    L0: mov.b32 %d, 10; bra DONE;
    L1: mov.b32 %d, 11; bra DONE;
    L2: mov.b32 %d, 12;
    DONE:
    """
    np.testing.assert_array_equal(warp(device, text, VALUES), np.array([10, 11, 12, 11])[LANE % 4])


@pytest.mark.parametrize("name", ["sin", "cos", "lg2", "ex2", "tanh", "rsqrt", "sqrt", "rcp"])
@pytest.mark.parametrize("flush", ["", ".ftz"])
def test_approximations_hold_the_isa_s_bounds(device: Any, name: str, flush: str) -> None:
    random = np.random.default_rng(4)
    a = np.concatenate(
        [random.uniform(-3, 3, 200), random.uniform(0, 100, 50), [0, -0.0, np.inf, np.nan, 1e-40, 1]]
    )
    a = a.astype(np.float32)
    if name == "tanh":
        flush = ""  # it has no such form
    got = warp(device, f"{name}.approx{flush}.f32 %d, %a;", a.view(U4)).view(np.float32)
    seen = np.where(np.abs(a) < 2**-126, np.copysign(0, a), a) if flush else a
    functions = {"sin": np.sin, "cos": np.cos, "lg2": np.log2, "ex2": np.exp2, "tanh": np.tanh, "sqrt": np.sqrt,
                 "rsqrt": lambda v: 1 / np.sqrt(v), "rcp": lambda v: 1 / v}  # fmt: skip
    with np.errstate(all="ignore"):
        want = functions[name](seen.astype(np.float64)).astype(np.float32)
        if flush:
            want = np.where(np.abs(want) < 2**-126, np.copysign(np.float32(0), want), want)
    relative, absolute = np.full(len(a), 3e-6), np.full(len(a), 5e-7)
    if REAL and name in ("sin", "cos"):
        absolute = np.where(np.abs(a) <= np.pi, 2.0**-20.5, 2.0**-14.7)
    if REAL and name == "tanh":
        relative[:] = 2.0**-11
    number = np.isfinite(want)
    np.testing.assert_array_equal(got[~number], want[~number])
    a, got, want, relative, absolute = (each[number] for each in (a, got, want, relative, absolute))
    excess = np.abs(got - want) - (absolute + relative * np.abs(want))
    assert excess.max() <= 0, a[excess > 0]


SHAPES = {
    "uniform": np.zeros(32, int),
    "contiguous": LANE,
    "rows of 16": 20 * (LANE // 16) + LANE % 16,
    "rows of 8": 40 * (LANE // 8) + LANE % 8,
    "blocks of 16": 3 * (LANE // 16),
    "blocks of 8": 7 * (LANE // 8)[::-1],
    "backwards": LANE[::-1],
    "anywhere": (LANE * 37) % 64,
}


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_patterns_of_shared_accesses(device: Any, shape: str, size: int, width: int) -> None:
    """One address register at several offsets, changed in between, as a load's own destination too."""
    lanes = SHAPES[shape]
    kind = f"u{8 * size}"
    at, convert = ("%t", "") if width == 32 else ("%u", "cvt.u64.u32 %u, %t;")
    wide = 64 if size == 8 else 32
    text = f"""
    {{ .shared .align 8 .b8 cells[2048]; .reg .b32 %t, %s; .reg .b64 %u, %v; .reg .b{wide} %l<5>;
    mov.u32 %s, cells;
    mul.lo.u32 %t, %i, 64; add.u32 %t, %t, %s;
    FILL
    bar.warp.sync -1;
    mad.lo.u32 %t, %a, {size}, %s; {convert}
    ld.shared.{kind} %l0, [{at}];
    ld.shared.{kind} %l1, [{at}+{16 * size}];
    add.u{width} {at}, {at}, {8 * size};
    ld.shared.{kind} %l2, [{at}];
    st.shared.{kind} [{at}+{4 * size}], %l1;
    ld.shared.{kind} %l3, [{at}+{4 * size}];
    LAST
    RESULT }}
    """
    fill = "".join(
        f"sub.u32 %x0, %t, %s; xor.b32 %x0, %x0, {4 * n}; mul.lo.u32 %x0, %x0, 2654435761; st.shared.u32 [%t+{4 * n}], %x0;"
        for n in range(16)
    )
    text = text.replace("FILL", fill)
    if width == wide and size >= 4:  # the address register is the destination
        text = text.replace("LAST", f"and.b{wide} %l4, %l0, 1016; st.shared.u{wide} [{at}], %l4; ld.shared.u{wide} {at}, [{at}]; "
                                    f"add.u{wide} {at}, {at}, {{BASE}}; ld.shared.{kind} %l4, [{at}];")  # fmt: skip
        text = text.replace("{BASE}", "%s" if width == 32 else "%v").replace("LAST", "")
        if width == 64:
            text = text.replace("mov.u32 %s, cells;", "mov.u32 %s, cells; mov.u64 %v, cells;")
        last = True
    else:
        text, last = text.replace("LAST", f"mov.b{wide} %l4, 0;"), False
    sums = "".join(f"mul.lo.u{wide} %l0, %l0, 31; add.u{wide} %l0, %l0, %l{n};" for n in (1, 2, 3, 4))
    text = text.replace("RESULT", sums + (" cvt.u32.u64 %d, %l0;" if wide == 64 else " mov.b32 %d, %l0;"))
    got = warp(device, text, lanes.astype(U4))

    places = np.arange(512, dtype=np.uint64) * 4
    filled = ((places // 64 * 64) ^ (places % 64)).astype(np.uint64) * 2654435761 % 2**32
    memory = filled.astype(U4).view(f"u{size}").copy()
    modulus = 2**wide
    first = [int(v) for v in memory[lanes]]
    second = [int(v) for v in memory[lanes + 16]]
    third = [int(v) for v in memory[lanes + 8]]
    for lane, index in enumerate(lanes + 12):
        memory[index] = second[lane]
    fourth = [int(v) for v in memory[lanes + 12]]
    fifth = [0] * 32
    if last:
        masked = [v & 1016 for v in first]
        for lane, index in enumerate(lanes + 8):
            memory[index] = masked[lane]
        read = [int(memory[index]) for index in lanes + 8]
        fifth = [int(memory[v // size]) for v in read]
    want = []
    for values in zip(first, second, third, fourth, fifth, strict=True):
        total = values[0]
        for value in values[1:]:
            total = (total * 31 + value) % modulus
        want.append(total % 2**32)
    np.testing.assert_array_equal(got, np.array(want, U4))
