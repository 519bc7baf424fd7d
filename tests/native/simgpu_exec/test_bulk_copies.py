"""Bulk copies and reductions (PTX ISA 9.7.9.25.4), and updates of memory by vectors of halves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.real_gpu import SIMULATED_ONLY

ILLEGAL_ADDRESS, ILLEGAL_INSTRUCTION, MISALIGNED = 700, 715, 716


def kernel(body: str) -> str:
    """A kernel ``k`` on three buffers, at %rd0 to %rd2, with its thread in %r0 and 16 KiB of shared memory."""
    return f""".version 8.6
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2) {{
.reg .b64 %rd<20>; .reg .b32 %r<20>; .reg .b16 %h<20>; .reg .pred %p<9>;
.shared .align 128 .b8 box[16384]; .shared .align 8 .b64 come;
ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p2]; mov.u32 %r0, %tid.x;
{body}
ret; }}
"""


FETCH = """
mov.u32 %r1, SIZE; createpolicy.fractional.L2::evict_first.b64 %rd3, 1.0;
mbarrier.init.shared.b64 [come], 1; fence.proxy.async.shared::cta; mbarrier.arrive.expect_tx.shared.b64 _, [come], %r1;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [box], [%rd0+FROM], %r1, [come], %rd3;
wait: mbarrier.try_wait.parity.shared.b64 %p0, [come], 0; @!%p0 bra wait;
"""


@pytest.mark.parametrize(("size", "start"), [(16, 0), (48, 16), (4096, 0), (0, 0)])
def test_bytes_come_and_go(device: Any, size: int, start: int) -> None:
    body = FETCH.replace("SIZE", str(size)).replace("FROM", str(start)) + (
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [box], %r1; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\n"
        "cp.async.bulk.prefetch.L2.global [%rd0], 16;\n"
    )
    data, out = np.random.default_rng(2).integers(0, 256, (2, 8192)).astype(np.uint8)
    expected = out.copy()
    expected[:size] = data[start : start + size]
    device.run(kernel(body), "k", 1, 1, data, out, np.zeros(1, np.uint8))
    assert np.array_equal(out, expected)


def _bf16(values: Any) -> Any:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


U32, S32, U64, S64, F16, F32, F64 = (
    np.uint32,
    np.int32,
    np.uint64,
    np.int64,
    np.float16,
    np.float32,
    np.float64,
)
REDUCTIONS = [
    *[("add", "u32", U32), ("add", "s32", S32), ("add", "u64", U64), ("add", "f32", F32), ("add", "f64", F64)],
    *[("add.noftz", "f16", F16), ("min", "f16", F16), ("max", "f16", F16), ("min", "s32", S32), ("max", "u32", U32)],
    *[("min", "s64", S64), ("max", "u64", U64), ("and", "b32", U32), ("or", "b32", U32), ("xor", "b64", U64)],
    *[("inc", "u32", U32), ("dec", "u32", U32)],
]  # fmt: skip
AS_NUMPY = {"add": np.add, "add.noftz": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
            "xor": np.bitwise_xor, "inc": lambda old, most: np.where(old >= most, 0, old + 1),
            "dec": lambda old, most: np.where((old == 0) | (old > most), most, old - 1)}  # fmt: skip


@pytest.mark.parametrize(("what", "kind", "dtype"), REDUCTIONS)
@pytest.mark.parametrize("count", [16, 40, 256])
def test_every_element_is_reduced_onto_its_own(
    device: Any, what: str, kind: str, dtype: Any, count: int
) -> None:
    """40 elements: neither a whole number of warps nor fewer than one; elements of 2 bytes are rounded to 16 bytes."""
    body = FETCH.replace("SIZE", str(count * np.dtype(dtype).itemsize)).replace("FROM", "0") + (
        f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{what}.{kind} [%rd1+16], [box], %r1;\n"
        "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\n"
    )
    random = np.random.default_rng(2)
    low, high = (-8, 8) if dtype in (F16, F32, F64, S32, S64) else (0, 9)
    data, out = (random.integers(low, high, count + 16).astype(dtype) for _ in range(2))
    if dtype in (U64, S64):
        data[::3] += dtype(2**40)
    first = 16 // np.dtype(dtype).itemsize
    expected = out.copy()
    expected[first : first + count] = AS_NUMPY[what](out[first : first + count], data[:count])
    device.run(kernel(body), "k", 1, 1, data, out, np.zeros(1, np.uint8))
    assert np.array_equal(out, expected)


def test_a_reduction_onto_another_block_s_memory_rings_there(device: Any) -> None:
    body = """
mov.b32 %r2, %cluster_ctarank; xor.b32 %r3, %r2, 1; add.u32 %r4, %r2, 5;
st.shared.u32 [box], %r4; st.shared.u32 [box+4], %r4; st.shared.u32 [box+8], 1; st.shared.u32 [box+12], 2;
st.shared.u32 [box+64], 100; st.shared.u32 [box+68], 200; st.shared.u32 [box+72], 300; st.shared.u32 [box+76], 400;
mbarrier.init.shared.b64 [come], 1; mbarrier.arrive.expect_tx.shared.b64 %rd3, [come], 16;
fence.mbarrier_init.release.cluster; fence.proxy.async;
barrier.cluster.arrive; barrier.cluster.wait;
mapa.shared::cluster.u32 %r5, box, %r3; mov.u32 %r7, come; mapa.shared::cluster.u32 %r6, %r7, %r3;
cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r5+64], [box], 16, [%r6];
wait: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p0, [come], 0; @!%p0 bra wait;
mul.wide.u32 %rd4, %r2, 16; add.u64 %rd4, %rd0, %rd4;
ld.shared.v4.u32 {%r8, %r9, %r10, %r11}, [box+64]; st.global.v4.u32 [%rd4], {%r8, %r9, %r10, %r11};
barrier.cluster.arrive; barrier.cluster.wait;
"""
    text = kernel(body).replace(".param .u64 p2) {", ".param .u64 p2) .reqnctapercluster 2 {")
    out = np.zeros((2, 4), np.uint32)
    device.run(text, "k", 2, 1, out, np.zeros(1, np.uint8), np.zeros(1, np.uint8))
    assert out.tolist() == [[106, 206, 301, 402], [105, 205, 301, 402]]


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        (
            FETCH.replace("SIZE", "24").replace("FROM", "0"),
            MISALIGNED,
            "A bulk copy of 24 bytes, which is no multiple of 16, at k (line 11 of its PTX) by thread (0,0,0) in block (0,0,0)",
        ),
        (
            FETCH.replace("SIZE", "32").replace("FROM", "8"),
            MISALIGNED,
            "Misaligned __global__ read of size 32 bytes at k (line 11 of its PTX) by thread (0,0,0) in block (0,0,0): address ",
        ),
        (
            FETCH.replace("SIZE", "80").replace("FROM", "0"),
            ILLEGAL_ADDRESS,
            "Invalid __global__ read of size 80 bytes at k (line 11 of its PTX) by thread (0,0,0) in block (0,0,0): address ",
        ),
        (  # what a barrier gives an arrival is no policy: an H100 has an illegal instruction here
            FETCH.replace("SIZE", "16").replace("FROM", "0").replace("b64 _, [come]", "b64 %rd3, [come]"),
            ILLEGAL_INSTRUCTION,
            "A bulk copy with the cache policy 0x100001, which no createpolicy has made, at k (line 11 of its PTX) by thread (0,0,0) in block (0,0,0)",
        ),
        (
            "mov.u32 %r1, 16; cp.async.bulk.global.shared::cta.bulk_group [%rd0], [box+16384], %r1;",
            ILLEGAL_ADDRESS,
            "Invalid __shared__ read of size 16 bytes at k (line 8 of its PTX) by thread (0,0,0) in block (0,0,0): address 0x4000 is out of bounds",
        ),
    ],
)
@SIMULATED_ONLY
def test_what_is_wrong_is_named(tmp_path: Path, device: Any, body: str, code: int, told: str) -> None:
    file = tmp_path / "k.ptx"
    file.write_text(
        kernel(body)
        .replace(", .param .u64 p1, .param .u64 p2", "")
        .replace("ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p2];", "")
    )
    command = [sys.executable, str(Path(__file__).with_name("fault.py")), str(file), "1", "64"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    line, answered = done.stdout.splitlines()
    assert line.startswith(f"gpukernel: {told}")
    assert int(answered) == code


@pytest.mark.parametrize("what", ["add", "min", "max"])
@pytest.mark.parametrize(("kind", "elements"), [("f16", 4), ("f16x2", 2), ("bf16", 8), ("bf16x2", 4)])
def test_vectors_of_halves_are_updated(device: Any, what: str, kind: str, elements: int) -> None:
    """Each of 32 threads updates the same vector; red gives nothing back, atom what was there."""
    pair, brain = kind.endswith("x2"), kind.startswith("b")
    register, width = ("%r", 4) if pair else ("%h", 2)
    names = ", ".join(f"{register}{n + 2}" for n in range(elements))
    load = "".join(
        f"ld.global.b{8 * width} {register}{n + 2}, [%rd4+{width * n}];\n" for n in range(elements)
    )
    body = f"""
mul.wide.u32 %rd4, %r0, {elements * width}; add.u64 %rd4, %rd0, %rd4;
{load}
red.relaxed.gpu.global.v{elements}.{kind}.{what}.noftz [%rd1], {{{names}}};
atom.relaxed.gpu.global.v{elements}.{kind}.{what}.noftz {{{names}}}, [%rd2], {{{names}}};
"""
    text = kernel(body)
    count = elements * (2 if pair else 1)
    values = np.random.default_rng(2).integers(-3, 4, (32, count)).astype(F32)
    start = np.arange(count, dtype=F32) - 3
    ways = {
        "add": values.sum(0) + start,
        "min": np.minimum(values.min(0), start),
        "max": np.maximum(values.max(0), start),
    }
    to = _bf16 if brain else (lambda v: v.astype(F16).view(np.uint16))
    given, out, again = to(values), to(start), to(start)
    device.run(text, "k", 1, 32, given, out, again)
    assert out.tolist() == again.tolist() == to(ways[what]).tolist()


def test_a_special_register_is_read_whole(device: Any) -> None:
    body = """
mov.v4.u32 {%r2, %r3, %r4, %r5}, %tid; mov.v4.u32 {%r6, %r7, %r8, _}, %ntid;
mad.lo.u32 %r9, %r4, %r7, %r3; mad.lo.u32 %r9, %r9, %r6, %r2; mul.wide.u32 %rd4, %r9, 16; add.u64 %rd4, %rd0, %rd4;
st.global.v4.u32 [%rd4], {%r2, %r3, %r4, %r5};
"""
    out = np.full((3, 2, 4, 4), 9, np.uint32)
    device.run(kernel(body), "k", 1, (4, 2, 3), out, np.zeros(1, np.uint8), np.zeros(1, np.uint8))
    z, y, x = np.indices((3, 2, 4))
    assert np.array_equal(out, np.stack([x, y, z, np.zeros_like(x)], -1))
