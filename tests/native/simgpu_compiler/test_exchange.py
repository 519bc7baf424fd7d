"""Atomic updates, shuffles, votes and reductions of compiled kernels: the interpreter's bits, by random kernels."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.native.simgpu_compiler.conftest import Tiers

TEMPLATE = """.version 7.8
.target sm_90
.address_size 64
.visible .entry k(.param .u64 given, .param .u64 places, .param .u64 table, .param .u64 out, .param .u32 some)
{{
    .reg .pred %p, %q, %all, %in; .reg .b32 %t, %n, %m, %some, %lane, %r<8>; .reg .b64 %at, %g, %pl, %tab, %o, %d<8>;
    .reg .f32 %f<4>; .reg .f64 %e<4>;
    .shared .align 16 .b8 tile[512];
    ld.param.u64 %g, [given]; ld.param.u64 %pl, [places]; ld.param.u64 %tab, [table]; ld.param.u64 %o, [out];
    ld.param.u32 %some, [some];
    mov.u32 %t, %tid.x; and.b32 %lane, %t, 31;
    mul.wide.u32 %at, %t, 16; add.u64 %g, %g, %at; add.u64 %o, %o, %at;
    mul.wide.u32 %at, %t, 4; add.u64 %pl, %pl, %at;
    ld.global.u64 %d1, [%g]; ld.global.u64 %d2, [%g+8]; cvt.u32.u64 %r1, %d1; cvt.u32.u64 %r2, %d2;
    mov.b32 %f1, %r1; mov.b32 %f2, %r2; mov.b64 %e1, %d1; mov.b64 %e2, %d2;
    ld.global.u32 %n, [%pl];
    mov.u32 %r3, 77; mov.u64 %d3, 77; mov.f32 %f3, 0f42000000; mov.f64 %e3, 0d4040000000000000;
    mov.u32 %m, tile;
    shl.b32 %r4, %t, 3; add.u32 %r5, %m, %r4;
    cvt.u64.u32 %d4, %r4; add.u64 %d5, %tab, %d4; ld.global.u64 %d6, [%d5];
    setp.lt.u32 %p, %t, 64;
    @%p st.shared.u64 [%r5], %d6;
    bar.sync 0;
    setp.lt.u32 %q, %lane, %some; setp.ne.u32 %all, %some, 0; setp.lt.s32 %in, %r1, 0;
    {body}
    bar.sync 0;
    @%p ld.shared.u64 %d6, [%r5];
    @%p st.global.u64 [%o+2048], %d6;
    ret;
}}
"""
GUARDS = ("{0}", "@%q {0}", "@!%q {0}", "@%q bra OVER; {0} OVER:", "@%all {0}")

UPDATES = [f"add.{t}" for t in ("u32", "s32", "u64", "f32", "f64")]
UPDATES += [f"{name}.b{bits}" for name in ("and", "or", "xor", "exch", "cas") for bits in (32, 64)]
UPDATES += [f"{name}.{sign}{bits}" for name in ("min", "max") for sign in "us" for bits in (32, 64)]
UPDATES += ["inc.u32", "dec.u32"]


def numbers(random: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
    """Words of 64 bits: large, small, and floating-point numbers with what is special among them."""
    kinds = [
        random.integers(0, 2**64, count, np.uint64),
        random.integers(0, 5, count).astype(np.uint64),
        (random.integers(0, 5, count).astype(np.uint64) << np.uint64(32)) | np.uint64(2**32 - 3),
        random.standard_normal(count).view(np.uint64),
        random.standard_normal(2 * count).astype(np.float32).view(np.uint64),
        random.choice(np.array([0x7FF0000000000001, 0xFFF8000000000000, 0x7F8000017FC00000, 0x800000007FA00005], np.uint64), count),
    ]  # fmt: skip
    return (
        random.choice(np.array(kinds), axis=0)[..., :]
        if count == 1
        else np.array([kinds[k][n] for n, k in enumerate(random.integers(0, len(kinds), count))], np.uint64)
    )


def run(
    tiers: Tiers, body: str, seed: int, places: Any, some: int, threads: int = 32, floats: int = 0
) -> None:
    random = np.random.default_rng(seed)
    given, table = numbers(random, 128), numbers(random, 64)
    out = np.zeros(1024, np.uint64)
    ptx = TEMPLATE.format(body=body)
    indices = np.resize(places, 64).astype(np.uint32)
    tiers.same(ptx, "k", 1, threads, given, indices, table, out, np.uint32(some), floats=floats)


@pytest.mark.parametrize("space", ["shared", "global", "generic"])
@pytest.mark.parametrize("update", UPDATES)
def test_atomic_updates(tiers: Tiers, update: str, space: str) -> None:
    wide, kind = update.endswith("64"), update.split(".")[1]
    size = 8 if wide else 4
    letter = {"f32": "f", "f64": "e"}.get(kind, "d" if wide else "r")
    operands = f"%{letter}1" + (f", %{letter}2" if update.startswith("cas") else "")
    base = {
        "shared": "mov.u64 %at, tile;",
        "global": "mov.u64 %at, %tab;",
        "generic": "cvta.shared.u64 %at, %at;",
    }
    start = base["shared"] + base["generic"] if space == "generic" else base[space]
    named = "" if space == "generic" else f".{space}"
    patterns = {
        "one place": np.zeros(32),
        "a row": np.arange(32),
        "pairs": np.arange(32) // 2 * 3 % 32,
        "scattered": np.random.default_rng(7).integers(0, 32, 32),
    }
    for seed, ((_, places), (guard, result)) in enumerate(
        product(
            patterns.items(),
            [*product(GUARDS[:1], (True, False)), (GUARDS[1], True), (GUARDS[3], False), (GUARDS[4], True)],
        )
    ):
        name = ("atom" if result else "red") + f"{named}.{update}"
        if not result and update.split(".")[0] in ("exch", "cas"):
            continue
        text = f"{name} {f'%{letter}3, ' if result else ''}[%at], {operands};"
        body = f"{start} mul.wide.u32 %d7, %n, {size}; add.u64 %at, %at, %d7; {guard.format(text)} st.global.b{size * 8} [%o], %{letter}3;"
        floats = size if kind in ("f32", "f64") else 0
        run(tiers, body, seed, places, 11 if seed % 3 else 0, floats=floats)
        assert tiers.handlers() <= (space == "generic"), tiers.said[-1]


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffles(tiers: Tiers, mode: str) -> None:
    random = np.random.default_rng(5)
    clamps = [0x1F, 0, 0x1C1F, 0x181F, 0x100F, 0x1E00, *random.integers(0, 2**14, 6).tolist()]
    for seed, clamp in enumerate(clamps):
        for by in ("%n", "%some", str(random.integers(0, 40)), "1"):
            target = random.choice(["%r3", "%r1", "%n"])  # a result may take its operand's place
            source = "%r1" if target != "%n" else "%n"
            predicate = "|%in" if seed % 2 else ""
            keep = "selp.u32 %r4, 1, 2, %in; st.global.u32 [%o+4], %r4;" if predicate else ""
            body = f"shfl.sync.{mode}.b32 {target}{predicate}, {source}, {by}, {clamp}, -1; st.global.u32 [%o], {target}; {keep}"
            run(tiers, body, seed, random.integers(0, 40, 32), int(random.integers(0, 33)))
            assert tiers.handlers() == 0, tiers.said[-1]
            # Half of a warp, while the other half waits.
            body = (
                f"setp.ge.u32 %q, %lane, 16; @%q bra OVER; shfl.sync.{mode}.b32 {target}{predicate}, {source}, {int(seed)}, 0x100F, 0xFFFF;"
                f"OVER: st.global.u32 [%o], {target}; {keep}"
            )
            run(tiers, body, seed, random.integers(0, 40, 32), 7)


VOTES = [
    "vote.sync.ballot.b32 %r3, {not}%in, {mask};",
    "vote.sync.all.pred %q, {not}%in, {mask}; selp.u32 %r3, 5, 6, %q;",
    "vote.sync.any.pred %q, {not}%in, {mask}; selp.u32 %r3, 5, 6, %q;",
    "vote.sync.uni.pred %q, {not}%in, {mask}; selp.u32 %r3, 5, 6, %q;",
    "activemask.b32 %r3;",
    *(f"redux.sync.{name}.{kind} %r3, %r1, {{mask}};" for name, kind in [*product(("add", "min", "max"), ("u32", "s32")), *product(("and", "or", "xor"), ("b32",))]),
]  # fmt: skip


@pytest.mark.parametrize("vote", range(len(VOTES)))
def test_votes_and_reductions(tiers: Tiers, vote: int) -> None:
    kinds = [
        "",
        "mov.u32 %r1, 5; setp.lt.s32 %in, %r1, 0;",
        "setp.lt.u32 %in, %t, 40;",
        "setp.lt.u32 %in, %some, 7;",
    ]
    for seed, (given, denied, lanes) in enumerate(product(kinds, ("", "!"), ("all", "half", "uneven"))):
        text = VOTES[vote].format(
            **{"not": denied, "mask": {"all": "-1", "half": "0xFFFF", "uneven": "%m"}[lanes]}
        )
        if lanes != "all":
            mask = {"half": "setp.ge.u32 %p, %lane, 16;", "uneven": "setp.lt.s32 %p, %r2, 0; "}[lanes]
            # Those that stay behind name exactly themselves.
            ballot = (
                "not.pred %p, %p; vote.sync.ballot.b32 %m, %p, -1; not.pred %p, %p;"
                if lanes == "uneven"
                else ""
            )
            text = f"{mask} {ballot} @%p bra OVER; {text} add.u32 %r3, %r3, 1; OVER:"
        body = f"{given} {text} st.global.u32 [%o], %r3; setp.lt.u32 %p, %t, 64;"
        run(tiers, body, seed, np.zeros(32), seed % 12, threads=64 if lanes == "all" else 32)
        assert tiers.handlers() == 0, tiers.said[-1]


MEET = """.version 7.8
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out)
{{
    .reg .pred %p, %q; .reg .b32 %t, %m, %r; .reg .b64 %d, %o;
    ld.param.u64 %o, [out]; mov.u32 %t, %tid.x; mul.wide.u32 %d, %t, 4; add.u64 %o, %o, %d;
    setp.lt.u32 %p, %t, 5; vote.sync.ballot.b32 %m, %p, -1;
    @!%p bra OVER;
    {exchange}
OVER:
    activemask.b32 %r; st.global.u32 [%o], %r;
    ret;
}}
"""


@pytest.mark.parametrize(
    "exchange",
    ["vote.sync.any.pred %q, %p, %m;", "bar.warp.sync %m;", "shfl.sync.idx.b32 %r, %t, 0, 31, %m;"],
)
def test_lanes_meet_right_behind_what_some_of_them_exchange(tiers: Tiers, exchange: str) -> None:
    """The others wait at the very next operation: nobody runs past them."""
    (active,) = tiers.same(MEET.format(exchange=exchange), "k", 1, 32, np.zeros(32, np.uint32))
    assert (active == 2**32 - 1).all()
