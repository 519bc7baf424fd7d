"""Fragments between registers and memory: ``ldmatrix``, ``stmatrix``, ``movmatrix`` and ``wmma``; and what is caught of wrong use."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.native.simgpu_exec.fragments import from_bits, kernel, to_bits
from tests.real_gpu import SIMULATED_ONLY

LANE = np.arange(32)
TYPES = {
    "f16": np.uint16,
    "bf16": np.uint16,
    "tf32": np.uint32,
    "f32": np.uint32,
    "s32": np.uint32,
    "f64": np.uint64,
}
TYPES |= {"s8": np.uint8, "u8": np.uint8}


def in_registers(block: Any) -> Any:
    """Eight rows of eight 16-bit numbers as one register: lane 4 r + q has elements 2 q and 2 q + 1 of row r."""
    block = block.astype(np.uint32)
    return np.array(
        [block[lane // 4, lane % 4 * 2] | block[lane // 4, lane % 4 * 2 + 1] << 16 for lane in LANE],
        np.uint32,
    )


@pytest.mark.parametrize("space", [".shared", ".shared::cta", ""])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_rows_are_loaded_where_each_lane_says(device: Any, count: int, transposed: bool, space: str) -> None:
    random = np.random.default_rng(count)
    rows = random.integers(0, 2**16, (40, 8)).astype(np.uint16)
    order = random.permutation(40)[:32].astype(np.uint32)
    offsets = order * 16
    offsets[8 * count :] = 0xFFFFFFF1  # of lanes whose address is not used
    generic = "" if space else "cvta.shared.u64 %y0, %y0;"
    more = f"""
    .shared .align 16 .b8 tile[640]; mov.u64 %y0, tile; {generic}
    ld.param.u64 %at, [p0]; mad.wide.u32 %y1, %lane, 4, %y0; mad.wide.u32 %at, %lane, 4, %at;
    """ + "".join(
        f"ld.global.b32 %x0, [%at+{128 * n}]; st{'.shared' * bool(space)}.b32 [%y1+{128 * n}], %x0;"
        for n in range(5)
    )
    more += "bar.sync 0; cvt.u64.u32 %y2, %in1_0; add.u64 %y2, %y2, %y0; add.u64 %y2, %y2, -32;"
    packed, offsets = rows.view(np.uint32).reshape(5, 32), offsets.reshape(1, 32)
    out = np.zeros((count, 32), np.uint32)
    text = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' * transposed}{space}.b16 {{out}}, [%y2+32];"
    device.run(kernel(text, [packed, offsets], count, more=more), "k", 1, 32, packed, offsets, out)
    for n in range(count):
        block = rows[order[8 * n : 8 * n + 8]]
        np.testing.assert_array_equal(out[n], in_registers(block.T if transposed else block))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_rows_are_stored_where_each_lane_says(device: Any, count: int, transposed: bool) -> None:
    random = np.random.default_rng(count)
    blocks = random.integers(0, 2**16, (count, 8, 8)).astype(np.uint16)
    registers = np.array([in_registers(block) for block in blocks])
    order = random.permutation(32).astype(np.uint32)
    more = """.shared .align 16 .b8 tile[512]; mov.u64 %y0, tile; mov.b32 %x0, 0; mad.wide.u32 %y1, %lane, 16, %y0;
    st.shared.v4.b32 [%y1], {{%x0, %x0, %x0, %x0}}; mad.wide.u32 %y2, %in1_0, 16, %y0; bar.sync 0;""".replace(
        "{{", "{"
    ).replace("}}", "}")
    text = f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' * transposed}.shared.b16 [%y2], {{0}}; bar.sync 0; "
    text += "ld.shared.v4.b32 {out}, [%y1];"
    out, places = np.zeros((4, 32), np.uint32), order.reshape(1, 32)
    device.run(kernel(text, [registers, places], 4, more=more), "k", 1, 32, registers, places, out)
    want = np.zeros((32, 8), np.uint16)
    for n, block in enumerate(blocks):
        want[order[8 * n : 8 * n + 8]] = block.T if transposed else block
    np.testing.assert_array_equal(np.ascontiguousarray(out.T).view(np.uint16), want)


def test_a_block_is_transposed_between_registers(device: Any) -> None:
    block = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1021
    given, out = in_registers(block).reshape(1, 32), np.zeros((1, 32), np.uint32)
    device.run(
        kernel("movmatrix.sync.aligned.m8n8.trans.b16 %out0, %in0_0;", [given], 1), "k", 1, 32, given, out
    )
    np.testing.assert_array_equal(out[0], in_registers(block.T))


# Registers of wmma's fragments (9.7.14.4.1).
SHAPES = [(16, 16, 16), (32, 8, 16), (8, 32, 16)]
FORMS = [
    *[(s, a, d, c) for s in SHAPES for a, d, c in (("f16", "f32", "f32"), ("f16", "f16", "f16"), ("f16", "f32", "f16"), ("f16", "f16", "f32"),
                                                  ("bf16", "f32", "f32"), ("s8", "s32", "s32"), ("u8", "s32", "s32"))],
    ((16, 16, 8), "tf32", "f32", "f32"),
    ((8, 8, 4), "f64", "f64", "f64"),
]  # fmt: skip
COUNTS = {("bf16", 16): 4, ("bf16", 32): 8, ("bf16", 8): 2, ("s8", 16): 2, ("s8", 32): 4, ("s8", 8): 1}


def registers(kind: str, rows: int) -> int:
    if kind == "f16":
        return 8
    if kind in ("tf32", "f64"):
        return 4 if kind == "tf32" else 1
    return COUNTS["s8" if kind == "u8" else kind, rows]


def accumulators(kind: str, m: int, n: int) -> int:
    return m * n // 32 // (2 if kind == "f16" else 1)


def multiply(
    shape: Any, a: str, d: str, c: str, layouts: Any, strides: Any, space: str, saturates: bool = False
) -> str:
    """The text of a kernel that multiplies with wmma; its matrices are copied to shared memory and back where that is asked."""
    m, n, k = shape
    fragments = {
        "a": (a, registers(a, m)),
        "b": (a, registers(a, n)),
        "c": (c, accumulators(c, m, n)),
        "d": (d, accumulators(d, m, n)),
    }
    declared = "".join(
        f".reg .{'f64' if kind == 'f64' else 'b32'} %{x}<{count}>;" for x, (kind, count) in fragments.items()
    )
    lists = {
        x: "{" + ", ".join(f"%{x}{i}" for i in range(count)) + "}" for x, (_, count) in fragments.items()
    }
    name = f"m{m}n{n}k{k}"
    types = f"{d}.{c}" if a == "f16" else f"{d}.{a}.{a}.{c}"
    loads = "".join(
        f"ld.param.u64 %p, [p{x}]; {'cvta.to.global.u64 %p, %p;' if space == '.global' else ''}"
        f"wmma.load.{x}.sync.aligned.{layouts[x]}.{name}{space}.{fragments[x][0]} {lists[x]}, [%p]"
        + (f", {strides[x]};" if strides[x] else ";")
        for x in "abc"
    )
    return f"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd, .param .u32 stride) {{
    {declared} .reg .b64 %p; .reg .b32 %stride; ld.param.u32 %stride, [stride];
    {loads}
    wmma.mma.sync.aligned.{layouts["a"]}.{layouts["b"]}.{name}.{types}{".satfinite" * saturates} {lists["d"]}, {lists["a"]}, {lists["b"]}, {lists["c"]};
    ld.param.u64 %p, [pd];
    wmma.store.d.sync.aligned.{layouts["d"]}.{name}{space}.{d} [%p], {lists["d"]}, %stride;
    ret;
}}
"""


def laid_out(values: Any, kind: str, layout: str, stride: int) -> Any:
    """A matrix in memory: rows or columns, ``stride`` elements apart, garbage between them."""
    lines = to_bits(values, kind).astype(TYPES[kind])
    lines = lines if layout == "row" else lines.T
    out = np.full((lines.shape[0], stride), 0x5A, TYPES[kind])
    out[:, : lines.shape[1]] = lines
    return out


@pytest.mark.parametrize("layouts", ["row row row", "col col col", "row col row", "col row col"])
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f"m{f[0][0]}n{f[0][1]}k{f[0][2]}.{'.'.join(f[1:])}")
def test_wmma_multiplies_matrices_in_memory(device: Any, form: Any, layouts: str) -> None:
    (m, n, k), a, d, c = form
    names = dict(zip("abcd", (*layouts.split(), layouts.split()[2]), strict=True))
    random = np.random.default_rng(m)
    low, high = (0, 200) if a == "u8" else (-9, 10)
    x, y, z = (
        random.integers(low, high, (m, k)),
        random.integers(low, high, (k, n)),
        random.integers(-99, 99, (m, n)),
    )
    lengths = {"a": k if names["a"] == "row" else m, "b": n if names["b"] == "row" else k}
    lengths["c"] = lengths["d"] = n if names["c"] == "row" else m
    apart = {each: length + 16 for each, length in lengths.items()}
    given = {"a": apart["a"], "b": 0, "c": apart["c"]}  # B has the stride that needs no word
    arrays = [
        laid_out(v, kind, names[x], s)
        for v, kind, x, s in ((x, a, "a", apart["a"]), (y, a, "b", lengths["b"]), (z, c, "c", apart["c"]))
    ]
    out = np.zeros((m if names["d"] == "row" else n, apart["d"]), TYPES[d])
    for space in (".global", ""):
        text = multiply(form[0], a, d, c, names, given, space)
        device.run(text, "k", 1, 32, *arrays, out, np.uint32(apart["d"]))
        got = from_bits(
            np.ascontiguousarray(out[:, : lengths["d"]]).astype(np.uint64 if d == "f64" else np.uint32), d
        )
        np.testing.assert_array_equal(got if names["d"] == "row" else got.T, x @ y + z)
        assert not out[:, lengths["d"] :].any()
        out[:] = 0


def test_wmma_reads_and_writes_shared_memory(device: Any) -> None:
    """D has registers of its own: ptxas 13.0 writes it by halves, and would read C's second half from the first."""
    text = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 pin, .param .u64 pout) {
    .shared .align 32 .b8 tile[1024]; .shared .align 32 .b8 sums[1280]; .reg .b64 %p<4>; .reg .b32 %l, %v, %a<4>, %b<4>; .reg .f32 %c0, %d<8>;
    mov.u32 %l, %laneid; ld.param.u64 %p0, [pin]; mov.u64 %p1, tile; mad.wide.u32 %p0, %l, 4, %p0; mad.wide.u32 %p2, %l, 4, %p1;
    COPY
    bar.sync 0;
    wmma.load.a.sync.aligned.row.m16n16k8.shared.tf32 {%a0, %a1, %a2, %a3}, [%p1+32], 16;
    wmma.load.b.sync.aligned.col.m16n16k8.shared.tf32 {%b0, %b1, %b2, %b3}, [tile+32], 16;
    mov.f32 %c0, 1.0;
    wmma.mma.sync.aligned.row.col.m16n16k8.f32.tf32.tf32.f32 {%d0, %d1, %d2, %d3, %d4, %d5, %d6, %d7}, {%a0, %a1, %a2, %a3}, {%b0, %b1, %b2, %b3}, {%c0, %c0, %c0, %c0, %c0, %c0, %c0, %c0};
    wmma.store.d.sync.aligned.row.m16n16k8.shared::cta.f32 [sums], {%d0, %d1, %d2, %d3, %d4, %d5, %d6, %d7}, 20;
    bar.sync 0; ld.param.u64 %p0, [pout]; mov.u64 %p1, sums; mad.wide.u32 %p0, %l, 4, %p0; mad.wide.u32 %p2, %l, 4, %p1;
    BACK
    ret;
}
""".replace("COPY", "".join(f"ld.global.b32 %v, [%p0+{128 * n}]; st.shared.b32 [%p2+{128 * n}], %v;" for n in range(8)))  # fmt: skip
    text = text.replace(
        "BACK",
        "".join(f"ld.shared.b32 %v, [%p2+{128 * n}]; st.global.b32 [%p0+{128 * n}], %v;" for n in range(10)),
    )
    values = np.random.default_rng(1).integers(-9, 9, (16, 16)).astype(np.float32)
    out = np.zeros((16, 20), np.float32)
    device.run(text, "k", 1, 32, values, out)
    a = values[:, 8:]
    np.testing.assert_array_equal(out[:, :16], a @ a.T + 1)


@pytest.mark.parametrize("kind", ["s4", "u4", "and", "xor"])
def test_wmma_of_parts_of_bytes(device: Any, kind: str) -> None:
    """A by rows, B by columns, the strides in elements and longer than the rows."""
    random = np.random.default_rng(3)
    bits, depth = (4, 32) if kind in ("s4", "u4") else (1, 128)
    low, high = {"s4": (-8, 8), "u4": (0, 16)}.get(kind, (0, 2))
    x, y, z = (
        random.integers(low, high, (8, depth)),
        random.integers(low, high, (depth, 8)),
        random.integers(-9, 9, (8, 8)),
    )
    name, operation = (kind, "") if bits == 4 else ("b1", f".{kind}.popc")

    def lines(values: Any) -> Any:
        codes = (values & (1 << bits) - 1).reshape(8, -1, 8 // bits)
        packed = (codes << bits * np.arange(8 // bits)).sum(2).astype(np.uint8)
        return np.ascontiguousarray(np.concatenate([packed, np.full_like(packed, 0x5A)], axis=1))

    shape = f"m8n8k{depth}"
    text = f"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc) {{
    .reg .b64 %p; .reg .b32 %a, %b, %c<2>;
    ld.param.u64 %p, [pa]; wmma.load.a.sync.aligned.row.{shape}.global.{name} {{%a}}, [%p], {2 * depth};
    ld.param.u64 %p, [pb]; wmma.load.b.sync.aligned.col.{shape}.{name} {{%b}}, [%p], {2 * depth};
    ld.param.u64 %p, [pc]; wmma.load.c.sync.aligned.row.{shape}.s32 {{%c0, %c1}}, [%p], 8;
    wmma.mma{operation}.sync.aligned.row.col.{shape}.s32.{name}.{name}.s32 {{%c0, %c1}}, {{%a}}, {{%b}}, {{%c0, %c1}};
    wmma.store.d.sync.aligned.row.{shape}.s32 [%p], {{%c0, %c1}}, 8;
    ret;
}}
"""
    c = z.astype(np.int32)
    device.run(text, "k", 1, 32, lines(x), lines(y.T), c)
    pairs = {"and": x[:, :, None] & y[None], "xor": x[:, :, None] ^ y[None]}.get(
        kind, x[:, :, None] * y[None]
    )
    np.testing.assert_array_equal(c, pairs.sum(1) + z)


def test_a_fragment_is_worked_on_element_by_element(device: Any) -> None:
    """Every register of A times two is A times two, however many registers hold one element."""
    for shape, kind in (((16, 16, 16), "f16"), ((8, 32, 16), "f16"), ((32, 8, 16), "bf16")):
        m, n, k = shape
        names = dict.fromkeys("abcd", "row")
        text = multiply(shape, kind, "f32", "f32", names, dict.fromkeys("abc", 0), ".global")
        double = "".join(f"add.{kind}x2 %a{i}, %a{i}, %a{i};" for i in range(registers(kind, m)))
        if kind == "bf16":
            double = "mov.b32 %stride, 0x40004000;" + "".join(
                f"mul.rn.bf16x2 %a{i}, %a{i}, %stride;" for i in range(registers(kind, m))
            )
            double += f"mov.b32 %stride, {n};"
        text = text.replace("wmma.mma", double + " wmma.mma").replace(".target sm_80", ".target sm_90")
        random = np.random.default_rng(2)
        x, y, z = (
            random.integers(-9, 9, (m, k)),
            random.integers(-9, 9, (k, n)),
            random.integers(-9, 9, (m, n)),
        )
        arrays = [laid_out(v, t, "row", v.shape[1]) for v, t in ((x, kind), (y, kind), (z, "f32"))]
        out = np.zeros((m, n), np.uint32)
        device.run(text, "k", 1, 32, *arrays, out, np.uint32(n))
        np.testing.assert_array_equal(out.view(np.float32), 2 * x @ y + z)


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_satfinite_leaves_finite_numbers(device: Any, kind: str) -> None:
    names = dict.fromkeys("abcd", "row")
    text = (
        multiply((16, 16, 16), "f16", kind, kind, names, dict.fromkeys("abc", 0), ".global", saturates=True)
        .replace(".version 8.0", ".version 6.4")
        .replace(".target sm_80", ".target sm_70")
    )
    x, y, z = np.zeros((16, 16)), np.eye(16), np.zeros((16, 16))
    z[0, :3] = np.inf, -np.inf, np.nan
    z[1, :3] = 5, -5, 0
    arrays = [laid_out(v, t, "row", 16) for v, t in ((x, "f16"), (y, "f16"), (z, kind))]
    out = np.zeros((16, 16), TYPES[kind])
    device.run(text, "k", 1, 32, *arrays, out, np.uint32(16))
    most = np.finfo(np.float16 if kind == "f16" else np.float32).max
    want = np.zeros((16, 16))
    want[0, :3], want[1, :3] = (most, -most, 0), (5, -5, 0)
    np.testing.assert_array_equal(from_bits(out, kind).astype(np.float64), want)


LOAD = "wmma.load.a.sync.aligned.row.m16n16k16.global.bf16 {out}, [%y0], %x0;"
MMA = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {out}, {0}, {{%in0_0, %in0_1}}, {0};"
SHARED = ".shared .align 16 .b8 tile[256]; mov.u64 %y0, tile; mad.wide.u32 %y0, %lane, 16, %y0;"
#        what goes wrong, before the instruction, the instruction, threads, the words of the fault
FAULTS = {
    "half a warp": ("setp.lt.u32 %p0, %lane, 16;", f"@%p0 {MMA}", 32, "Only 16 of the 32 threads of a warp execute mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 at k "),
    "threads that have ended": ("setp.eq.u32 %p0, %lane, 7; @%p0 exit;", MMA, 32, "Only 31 of the 32 threads of a warp execute"),
    "a small block": ("", MMA, 20, "Only 20 of the 32 threads of a warp execute"),
    "a row that is misaligned": (SHARED + "add.u64 %y0, %y0, 8;", "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {out}, [%y0];", 32, "Misaligned __shared__ read of size 16 bytes"),
    "a row outside": (SHARED, "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {out}, [%y0];", 32, r"Invalid __shared__ read of size 16 bytes .*by thread \(16,0,0\) in block \(0,0,0\): address 0x100 is out of bounds, the block has 256 bytes"),
    "a row stored outside": (SHARED, "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%y0], {0};", 32, r"Invalid __shared__ write of size 16 bytes"),
    "a row that is not shared": ("ld.param.u64 %y0, [p0];", "ldmatrix.sync.aligned.m8n8.x1.b16 {{%out0}}, [%y0];", 32, "Invalid __shared__ read of size 16 bytes"),
    "a row at a null pointer": (f"{SHARED} mov.u64 %y0, 16;", "ldmatrix.sync.aligned.m8n8.x1.b16 {{%out0}}, [%y0];", 32, "Invalid __shared__ read of size 16 bytes"),
    "a matrix beyond the end": ("ld.param.u64 %y0, [p0]; mov.u32 %x0, 64;", LOAD, 32, "Invalid __global__ read of size 32 bytes"),
    "a misaligned matrix": ("ld.param.u64 %y0, [p0]; mov.u32 %x0, 17;", LOAD, 32, "Misaligned __global__ read of size 32 bytes"),
    "a matrix of one's own": (".local .align 16 .b8 own[512]; mov.u64 %y0, own; cvta.local.u64 %y0, %y0; mov.u32 %x0, 16;", LOAD.replace(".global", ""), 32, "Invalid __global__ read of size 32 bytes"),
    "many matrices": ("ld.param.u64 %y0, [p0]; mov.u32 %x0, 0; mad.wide.u32 %y0, %lane, 16, %y0;", LOAD, 32, "Another address or stride than the first thread of the warp has, in wmma.load.a.sync.aligned.row.m16n16k16.global.bf16"),
    "sparse operands": ("", "mma.sp.sync.aligned.m16n8k16.row.col.f32.tf32.tf32.f32 {out}, {0}, {0}, {0}, %x0, 0;", 32, "'mma.sp.sync.aligned.m16n8k16.row.col.f32.tf32.tf32.f32' is not supported"),
    "an unknown shape": ("", MMA.replace("m16n8k8", "m16n8k32"), 32, "is not supported by the simulated GPU"),
    "a copy of odd size": (SHARED, "cp.async.ca.shared.global [%y0], [%y1], 12;", 32, "a copy has 16 bytes, or with .ca 4 or 8"),
    "too few registers": ("", MMA.replace("{out}", "{{%out0, %out1}}"), 32, "a fragment of 4 registers is needed, not of 2"),
    "sums of another type": ("", "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f16 {out}, {{%in0_0, %in0_1}}, {{%in0_2}}, {{%in0_0, %in0_1}};", 32, "D has the type of C"),
    "a fragment without braces": ("", MMA.replace("{{%in0_0, %in0_1}}", "%in0_0"), 32, "a fragment is a vector"),
    "products of halves that end at the largest": ("", MMA.replace("row.col", "row.col.satfinite"), 32, "no .satfinite of floating-point numbers since PTX 6.5"),
    "layouts that there are not": ("", MMA.replace("row.col", "row.row"), 32, "the layouts are .row.col"),
}  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the output of each, all from one start of Python."""
    folder = tmp_path_factory.mktemp("faults")
    for name, (before, instruction, threads, _) in FAULTS.items():
        text = kernel(instruction, [np.zeros((4, 32), np.uint32)], 4, more=before)
        (folder / f"{name}.{threads}.ptx").write_text(text)
    command = [sys.executable, str(Path(__file__).with_name("fault.py")), str(folder), "512", "2"]
    subprocess.run(command, env={**os.environ, "GPUKERNEL_SIMGPU": "h100"}, check=True)
    return {
        name: (folder / f"{name}.{threads}.txt").read_text() for name, (_, _, threads, _) in FAULTS.items()
    }


@SIMULATED_ONLY
@pytest.mark.parametrize("name", FAULTS)
def test_wrong_use_is_caught_and_named(name: str, told: dict[str, str]) -> None:
    assert re.search(FAULTS[name][3], told[name]), told[name]
