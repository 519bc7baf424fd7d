"""``wgmma``: every kind of operand on one warpgroup, laid out in shared memory by the ISA's formulas (9.7.15.5), against NumPy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.native.simgpu_exec.fragments import BITS, from_bits, pack_a, pack_c, to_bits, unpack_c
from tests.real_gpu import SIMULATED_ONLY

WIDTHS = {0: 16, 1: 128, 2: 64, 3: 32}  # bytes of a row of the pattern, by the number of its mode
DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32, "b1": 256}
IMAGE = 65536
A_AT, B_AT = 1024, 16384


def encode(start: int, leading: int, stride: int, mode: int, base: int = 0) -> int:
    """A matrix's descriptor."""
    return (start & 0x3FFFF) >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | base << 49 | mode << 62


def swizzled(at: int, mode: int, base: int = 0) -> int:
    """Return the place of an address' bytes: chunks of 16 bytes change places within a row of the pattern, by its number."""
    chunks = WIDTHS[mode] // 16
    row = (at // 128 - base) % chunks
    return at ^ row << 4


def lay_out(image: Any, bits: Any, kind: str, start: int, mode: int, across: bool, base: int = 0) -> int:
    """Write a matrix (rows, depth) into shared memory; return its descriptor.

    ``across``: elements of one depth lie side by side ("MN-major"), else those of one row ("K-major").
    """
    rows, depth = bits.shape
    width, per_chunk = WIDTHS[mode], 128 // BITS[kind]
    lines, line = (depth, rows) if across else (rows, depth)  # 8 lines of 16 bytes are a core matrix
    table = bits.T if across else bits
    if kind == "b1":
        data = np.packbits(table.astype(np.uint8), axis=1, bitorder="little")
    else:
        data = np.ascontiguousarray(table.astype(f"u{BITS[kind] // 8}")).view(np.uint8).reshape(lines, -1)
    chunks = line // per_chunk
    # Every distance is a number of its own, so that a wrong one is seen.
    eight_lines = width * 8 + (0 if mode else 32)
    if mode == 0:
        next_chunk = eight_lines * (-(-lines // 8)) + 64
        if across:
            leading, stride = eight_lines, next_chunk
        else:
            leading, stride = next_chunk, eight_lines
    else:
        next_chunk = eight_lines * (-(-lines // 8))  # of a whole row of the pattern
        leading, stride = next_chunk if across else 16, eight_lines
    for n in range(lines):
        for c in range(chunks):
            at = start + n // 8 * eight_lines + n % 8 * width
            per_row = width // 16
            at += c // per_row * next_chunk + c % per_row * 16
            at = swizzled(at, mode, base)
            image[at : at + 16] = data[n, 16 * c : 16 * c + 16]
    return encode(start, leading, stride, mode, base)


def program(
    instruction: str, count: int, a_registers: bool = False, after: str = "", threads: str = ""
) -> str:
    """A kernel on an image of shared memory, A's fragment, D before and after, and the descriptors."""
    d = [f"%d{i}" for i in range(count)]
    loads = "".join(f"ld.global.b32 %d{i}, [%rd2+{512 * i}];\n" for i in range(count))
    stores = "".join(f"st.global.b32 [%rd2+{512 * i}], %d{i};\n" for i in range(count))
    a = "".join(f"ld.global.b32 %a{i}, [%rd1+{512 * i}];\n" for i in range(4)) if a_registers else ""
    text = instruction.replace("{D}", "{" + ", ".join(d) + "}").replace("{A}", "{%a0, %a1, %a2, %a3}")
    return f""".version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 pa, .param .u64 pb, .param .u32 adds) {{
.reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .b32 %d<{count}>; .reg .b32 %a<4>; .reg .b64 %desc<2>; .reg .pred %p<4>;
.shared .align 1024 .b8 box[{IMAGE}];
ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p2]; ld.param.u64 %desc0, [pa]; ld.param.u64 %desc1, [pb];
ld.param.u32 %r1, [adds]; setp.ne.u32 %p1, %r1, 0;
mov.u32 %r5, box; shr.u32 %r5, %r5, 4; cvt.u64.u32 %rd4, %r5; add.u64 %desc0, %desc0, %rd4; add.u64 %desc1, %desc1, %rd4;
mov.u32 %r0, %tid.x; mul.wide.u32 %rd3, %r0, 4; add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3; add.u64 %rd0, %rd0, %rd3;
mov.u32 %r2, box; shl.b32 %r3, %r0, 2; add.u32 %r2, %r2, %r3;
fill: ld.global.u32 %r4, [%rd0]; st.shared.u32 [%r2], %r4;
add.u64 %rd0, %rd0, 512; add.u32 %r2, %r2, 512; add.u32 %r3, %r3, 512; setp.lt.u32 %p0, %r3, {IMAGE}; @%p0 bra fill;
{a}{loads}
fence.proxy.async; bar.sync 0;
{threads}
wgmma.fence.sync.aligned;
{text}
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
{after}
{stores}
ret; }}
"""


def run(
    device: Any,
    name: str,
    tail: str,
    d: str,
    columns: int,
    image: Any,
    a: Any,
    b: int,
    z: Any,
    adds: bool = True,
) -> Any:
    """D as numbers; ``a`` is a descriptor, or the fragments of four warps."""
    count = columns * (2 if d == "f16" else 4) // 8
    in_registers = not isinstance(a, int)
    bits = to_bits(z, d)
    out = np.concatenate([pack_wide(bits[16 * w : 16 * w + 16], d) for w in range(4)], axis=1)
    text = program(
        f"{name} {{D}}, {'{A}' if in_registers else '%desc0'}, %desc1, {tail}", count, in_registers
    )
    fragments = np.ascontiguousarray(a) if in_registers else np.zeros((4, 128), np.uint32)
    device.run(
        text,
        "k",
        1,
        128,
        image,
        fragments,
        out,
        np.uint64(0 if in_registers else a),
        np.uint64(b),
        np.uint32(adds),
    )
    warps = [unpack_wide(out[:, 32 * w : 32 * w + 32], d, columns) for w in range(4)]
    return from_bits(np.concatenate(warps), d).astype(np.float64)


def pack_wide(bits: Any, d: str) -> Any:
    """Sixteen rows as one warp's registers: those of ``mma`` for each eight columns (9.7.15.5)."""
    return np.concatenate(
        [pack_c(np.ascontiguousarray(bits[:, n : n + 8]), d) for n in range(0, bits.shape[1], 8)]
    )


def unpack_wide(registers: Any, d: str, columns: int) -> Any:
    each = len(registers) * 8 // columns
    parts = [np.ascontiguousarray(registers[n : n + each]) for n in range(0, len(registers), each)]
    return np.concatenate([unpack_c(part, d, 16) for part in parts], axis=1)


def small(random: np.random.Generator, kind: str, shape: tuple[int, int]) -> Any:
    low, high = {"b1": (0, 2), "u8": (0, 256), "s8": (-128, 128)}.get(kind, (-6, 7))
    return random.integers(low, high, shape)


def tail_of(
    kind: str, a_registers: bool, a_across: bool = False, b_across: bool = False, signs: str = "1, 1"
) -> str:
    parts = ["%p1"]
    if kind not in ("s8", "u8", "b1"):
        parts.append(signs)
    if DEPTHS[kind] == 16:
        parts += [str(int(b_across))] if a_registers else [str(int(a_across)), str(int(b_across))]
    return ", ".join(parts) + ";"


def instruction(d: str, a: str, b: str, columns: int, more: str = "") -> str:
    return f"wgmma.mma_async.sync.aligned.m64n{columns}k{DEPTHS[a]}.{d}.{a}.{b}{more}"


PAIRS = [("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32")]
PAIRS += [(d, a, b) for d in ("f32", "f16") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")]
PAIRS += [("s32", a, b) for a in ("s8", "u8") for b in ("s8", "u8")] + [("s32", "b1", "b1")]


def product(x: Any, y: Any) -> Any:
    return x.astype(np.int64) @ y.astype(np.int64)


@pytest.mark.parametrize("in_registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize("mode", WIDTHS)
@pytest.mark.parametrize(("d", "a", "b"), PAIRS)
def test_products_of_integers_are_exact(
    device: Any, d: str, a: str, b: str, mode: int, in_registers: bool
) -> None:
    columns = {0: 24, 1: 64, 2: 8, 3: 96}[mode]
    random, depth = np.random.default_rng(mode), DEPTHS[a]
    x, y, z = (
        small(random, a, (64, depth)),
        small(random, b, (columns, depth)),
        random.integers(-99, 99, (64, columns)),
    )
    image = random.integers(0, 256, IMAGE).astype(np.uint8)
    descriptor = lay_out(image, to_bits(y, b), b, B_AT, mode, False)
    bits = to_bits(x, a)
    if in_registers:
        given: Any = np.concatenate(
            [pack_a(np.ascontiguousarray(bits[n : n + 16]), a) for n in range(0, 64, 16)], 1
        )
    else:
        given = lay_out(image, bits, a, A_AT, mode, False)
    more = ".and.popc" if a == "b1" else ""
    got = run(
        device,
        instruction(d, a, b, columns, more),
        tail_of(a, in_registers),
        d,
        columns,
        image,
        given,
        descriptor,
        z,
    )
    np.testing.assert_array_equal(got, product(x, y.T) + z)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("mode", WIDTHS)
@pytest.mark.parametrize("which", ["a", "b", "both"])
def test_operands_of_sixteen_bits_lie_the_other_way_round(
    device: Any, kind: str, mode: int, which: str
) -> None:
    a_across, b_across, columns = which != "b", which != "a", 128
    random = np.random.default_rng(mode)
    x, y, z = small(random, kind, (64, 16)), small(random, kind, (columns, 16)), np.zeros((64, columns))
    image = random.integers(0, 256, IMAGE).astype(np.uint8)
    first = lay_out(image, to_bits(x, kind), kind, A_AT, mode, a_across)
    second = lay_out(image, to_bits(y, kind), kind, B_AT, mode, b_across)
    tail = tail_of(kind, False, a_across, b_across)
    got = run(device, instruction("f32", kind, kind, columns), tail, "f32", columns, image, first, second, z)
    np.testing.assert_array_equal(got, product(x, y.T))


@pytest.mark.parametrize("columns", [8, 16, 40, 120, 256])
def test_a_product_is_as_wide_as_its_shape(device: Any, columns: int) -> None:
    random = np.random.default_rng(columns)
    x, y, z = (
        small(random, "f16", (64, 16)),
        small(random, "f16", (columns, 16)),
        small(random, "f16", (64, columns)),
    )
    image = np.zeros(IMAGE, np.uint8)
    first, second = (
        lay_out(image, to_bits(v, "f16"), "f16", at, 3, False) for v, at in ((x, A_AT), (y, B_AT))
    )
    got = run(
        device,
        instruction("f32", "f16", "f16", columns),
        tail_of("f16", False),
        "f32",
        columns,
        image,
        first,
        second,
        z,
    )
    np.testing.assert_array_equal(got, product(x, y.T) + z)


def whole(device: Any, tail: str, adds: bool, z: Any, base: int = 0, offset: int = 0) -> tuple[Any, Any]:
    """One product of halves, and what NumPy says of it without ``z``."""
    random = np.random.default_rng(3)
    x, y = small(random, "f16", (64, 64)), small(random, "f16", (16, 64))
    image = np.zeros(IMAGE, np.uint8)
    first, second = (
        lay_out(image, to_bits(v, "f16"), "f16", at + 128 * base, 1, False, base)
        for v, at in ((x, A_AT), (y, B_AT))
    )
    name = instruction("f32", "f16", "f16", 16)
    got = run(device, name, tail, "f32", 16, image, first + offset // 16, second + offset // 16, z, adds)
    k = offset // 2
    return got, product(x[:, k : k + 16], y[:, k : k + 16].T)


@pytest.mark.parametrize("offset", [0, 32, 64, 96])
def test_a_start_within_a_row_of_the_pattern_is_further_in_the_depth(device: Any, offset: int) -> None:
    got, want = whole(device, "%p1, 1, 1, 0, 0;", True, np.zeros((64, 16)), offset=offset)
    np.testing.assert_array_equal(got, want)


def test_a_pattern_may_begin_at_another_row(device: Any) -> None:
    got, want = whole(device, "%p1, 1, 1, 0, 0;", True, np.zeros((64, 16)), base=3)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("tail", "adds", "sign", "kept"),
    [("%p1, 1, 1, 0, 0;", False, 1, 0), ("!%p1, 1, 1, 0, 0;", False, 1, 1), ("1, -1, 1, 0, 0;", False, -1, 1),
     ("%p1, 1, -1, 0, 0;", True, -1, 1), ("0, -1, -1, 0, 0;", True, 1, 0)],
)  # fmt: skip
def test_sums_begin_anew_and_products_change_sign(
    device: Any, tail: str, adds: bool, sign: int, kept: int
) -> None:
    z = np.arange(64 * 16).reshape(64, 16)
    got, want = whole(device, tail, adds, z)
    np.testing.assert_array_equal(got, sign * want + kept * z)


@pytest.mark.parametrize("saturates", [True, False])
def test_integers_end_at_the_largest_or_wrap_around(device: Any, saturates: bool) -> None:
    x, y = np.full((64, 32), -128), np.full((8, 32), 127)
    y[4:] = -128
    z = np.zeros((64, 8), np.int64)
    z[:, 1::4], z[:, 2::4] = 2**31 - 1, -(2**31)
    image = np.zeros(IMAGE, np.uint8)
    first, second = (lay_out(image, to_bits(v, "s8"), "s8", at, 0, False) for v, at in ((x, A_AT), (y, B_AT)))
    name = instruction("s32", "s8", "s8", 8, ".satfinite" if saturates else "")
    got = run(device, name, "%p1;", "s32", 8, image, first, second, z)
    want = product(x, y.T) + z
    np.testing.assert_array_equal(got, want.clip(-(2**31), 2**31 - 1) if saturates else want.astype(np.int32))


def test_groups_are_done_when_all_four_warps_have_done_theirs(device: Any) -> None:
    """One warp waits and then overwrites what all four multiply; the three others come late."""
    random = np.random.default_rng(9)
    x, y = small(random, "f16", (64, 16)), small(random, "f16", (8, 16))
    image = np.zeros(IMAGE, np.uint8)
    first, second = (
        lay_out(image, to_bits(v, "f16"), "f16", at, 0, False) for v, at in ((x, A_AT), (y, B_AT))
    )
    late = "setp.lt.u32 %p2, %r0, 32; mov.u32 %r5, 0; @%p2 bra on;\nspin: add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 50000; @%p3 bra spin;\non:"
    overwrite = "".join(
        f"@%p2 st.shared.u32 [box+{at + 4 * n}], 0;\n" for at in (A_AT, B_AT) for n in range(0, 300, 20)
    )
    text = program(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {D}, %desc0, %desc1, 0, 1, 1, 0, 0;",
        4,
        after=overwrite,
        threads=late,
    )
    out = np.zeros((4, 128), np.uint32)
    device.run(
        text,
        "k",
        1,
        128,
        image,
        np.zeros((4, 128), np.uint32),
        out,
        np.uint64(first),
        np.uint64(second),
        np.uint32(0),
    )
    warps = [unpack_wide(out[:, 32 * w : 32 * w + 32], "f32", 8) for w in range(4)]
    np.testing.assert_array_equal(from_bits(np.concatenate(warps), "f32"), product(x, y.T))


def test_two_warpgroups_have_their_own_groups(device: Any) -> None:
    """The second one multiplies only when the first has ended: the one does not wait for the other."""
    random = np.random.default_rng(9)
    x, y = small(random, "f16", (64, 16)), small(random, "f16", (8, 16))
    image = np.zeros(IMAGE, np.uint8)
    first, second = (
        lay_out(image, to_bits(v, "f16"), "f16", at, 0, False) for v, at in ((x, A_AT), (y, B_AT))
    )
    text = program("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {D}, %desc0, %desc1, 0, 1, 1, 0, 0;", 4,
                   threads="setp.ge.u32 %p2, %r0, 128; @%p2 bar.sync 1, 256;", after="@!%p2 bar.sync 1, 256;")  # fmt: skip
    text = (
        text.replace("add.u32 %r2, %r2, %r3;", "add.u32 %r2, %r2, %r3; ", 1)
        .replace("mul.wide.u32 %rd3, %r0, 4;", "and.b32 %r7, %r0, 127; mul.wide.u32 %rd3, %r7, 4;")
        .replace("shl.b32 %r3, %r0, 2;", "shl.b32 %r3, %r7, 2;")
    )
    out = np.zeros((4, 128), np.uint32)
    device.run(
        text,
        "k",
        1,
        256,
        image,
        np.zeros((4, 128), np.uint32),
        out,
        np.uint64(first),
        np.uint64(second),
        np.uint32(0),
    )
    warps = [unpack_wide(out[:, 32 * w : 32 * w + 32], "f32", 8) for w in range(4)]
    np.testing.assert_array_equal(from_bits(np.concatenate(warps), "f32"), product(x, y.T))


def test_a_group_may_be_empty(device: Any) -> None:
    commit = "wgmma.commit_group.sync.aligned;"
    body = f"""{commit} wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%d0,%d1,%d2,%d3}}, %x, %x, 0, 1, 1, 0, 0;
    {commit} wgmma.wait_group.sync.aligned 0; add.u32 %r0, %r0, 1; st.global.u32 [%at], %r0; ret;"""
    text = f""".version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {{
.shared .align 1024 .b8 box[4096]; .reg .b32 %r<4>; .reg .f32 %d<4>; .reg .b64 %x, %at;
ld.param.u64 %at, [out]; mov.u32 %r1, box; mov.u32 %r0, %tid.x; mad.wide.u32 %at, %r0, 4, %at; mov.b64 %x, 0;
{"".join(f"mov.f32 %d{n}, 0f00000000; " for n in range(4))}
{body} }}"""
    out = np.zeros(128, np.uint32)
    device.run(text, "k", 1, 128, out)
    assert out.tolist() == list(range(1, 129))


MMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {D}, %desc0, %desc1, %p1, 1, 1, 0, 0;"
#        before the instruction, the instruction, threads, the words of the fault
FAULTS = {
    "one warp": ("setp.ge.u32 %p2, %r0, 32; @%p2 exit;", MMA, 128, "Only 1 of the 4 warps of a warpgroup execute the wgmma instructions that are waited for, at k .* by thread \\(0,0,0\\)"),
    "a warp at a barrier": ("setp.ge.u32 %p2, %r0, 96; @%p2 bar.sync 1, 64;", MMA, 128, "Only 3 of the 4 warps of a warpgroup execute"),
    "a commit of no warpgroup": ("setp.ge.u32 %p2, %r0, 128; @%p2 wgmma.commit_group.sync.aligned; @%p2 exit;", MMA, 160, "wgmma.commit_group.* takes a warpgroup of 128 threads; a block of 160 has none for it, at k"),
    "a small block": ("", MMA, 64, "wgmma.mma_async.* takes a warpgroup of 128 threads; a block of 64 has none for it, at k"),
    "half a warp": ("setp.ge.u32 %p2, %r0, 16; @%p2 exit;", MMA, 128, "Only 16 of the 32 threads of a warp execute wgmma.fence"),
    "many descriptors": ("cvt.u64.u32 %desc1, %r0;", MMA, 128, "Another descriptor or predicate than the first thread of the warp has, in wgmma.mma_async"),
    "a descriptor for each warp": ("shr.u32 %r5, %r0, 5; cvt.u64.u32 %desc1, %r5;", MMA, 128, "The warps of a warpgroup execute different wgmma instructions, or with different descriptors"),
    "a matrix outside": ("mov.u64 %desc1, 0x3fff;", MMA, 128, "Invalid __shared__ read of size 16 bytes .*address 0x3fff0 is out of bounds, the block has 65536 bytes"),
    "sparse operands": ("", "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {D}, %desc0, %desc1, %r0, 0, %p1, 1, 1, 0, 0;", 128, "is not supported by the simulated GPU: sparse operands"),
}  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the output of each, all from one start of Python."""
    folder = tmp_path_factory.mktemp("faults")
    for name, (before, instruction, threads, _) in FAULTS.items():
        text = program(instruction, 4, threads=before).replace(
            ", .param .u64 pa, .param .u64 pb, .param .u32 adds", ", .param .u64 pa"
        )
        text = text.replace("ld.param.u64 %desc1, [pb];", "mov.u64 %desc0, 64; mov.u64 %desc1, 64;")
        text = text.replace("ld.param.u64 %desc0, [pa];", "").replace(
            "ld.param.u32 %r1, [adds];", "mov.u32 %r1, 1;"
        )
        (folder / f"{name}.{threads}.ptx").write_text(text)
    command = [sys.executable, str(Path(__file__).with_name("fault.py")), str(folder), str(IMAGE + 512), "4"]
    subprocess.run(command, env={**os.environ, "GPUKERNEL_SIMGPU": "h100"}, check=True)
    return {
        name: (folder / f"{name}.{threads}.txt").read_text() for name, (_, _, threads, _) in FAULTS.items()
    }


@SIMULATED_ONLY
@pytest.mark.parametrize("name", FAULTS)
def test_wrong_use_is_caught_and_named(name: str, told: dict[str, str]) -> None:
    assert re.search(FAULTS[name][3], told[name]), told[name]
