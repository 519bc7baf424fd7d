"""Boxes of tensors copied, stored and reduced by tensor maps (PTX ISA 5.5, 9.7.9.27), against slices of NumPy arrays."""

from __future__ import annotations

import ctypes as c
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.real_gpu import SIMULATED_ONLY

OWN_CALLS = True  # it calls the driver itself, so it runs in its device's process
INVALID_VALUE, NOT_SUPPORTED, ILLEGAL_ADDRESS, MISALIGNED = 1, 801, 700, 716
NONE, B32, B64, B128 = range(4)
U1, U2, U4, I4, U8, I8 = (np.dtype(t) for t in ("u1", "u2", "u4", "i4", "u8", "i8"))
F2, F4, F8 = (np.dtype(t) for t in ("f2", "f4", "f8"))
KINDS = {U1: 0, U2: 1, U4: 2, I4: 3, U8: 4, I8: 5, F2: 6, F4: 7, F8: 8}  # CUtensorMapDataType
BF16 = 9


class Map(c.Structure):
    """A ``CUtensorMap``, aligned by ``aligned_map``."""

    _fields_ = [("opaque", c.c_uint64 * 16)]


def aligned_map() -> Any:
    raw = (c.c_char * (128 + 64))()
    at = -(-c.addressof(raw) // 64) * 64
    return Map.from_buffer(raw, at - c.addressof(raw))


@dataclass
class Box:
    """Request to ``cuTensorMapEncodeTiled``; sizes as NumPy has them, the innermost last."""

    shape: tuple[int, ...]
    box: tuple[int, ...]
    dtype: Any = F4
    swizzle: int = NONE
    steps: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()  # in bytes, of all dimensions but the innermost
    changed: dict[str, Any] = field(default_factory=dict)

    def encode(self, device: Any, address: int, into: Any = None) -> tuple[int, Any]:
        rank = len(self.shape)
        strides = self.strides or np.empty(self.shape, self.dtype).strides[:-1]
        asked = {
            "map": into or aligned_map(), "type": KINDS.get(np.dtype(self.dtype)), "rank": rank, "address": address, "shape": self.shape[::-1],
            "strides": strides[::-1], "box": self.box[::-1], "steps": (self.steps or (1,) * rank)[::-1],
            "interleave": 0, "swizzle": self.swizzle, "promotion": 0, "fill": 0,
        } | self.changed  # fmt: skip
        arrays = {n: (t * max(len(asked[n]), 1))(*asked[n]) for n, t in
                  (("shape", c.c_uint64), ("strides", c.c_uint64), ("box", c.c_uint32), ("steps", c.c_uint32))}  # fmt: skip
        code = device._cuda.cuTensorMapEncodeTiled(
            c.byref(asked["map"]), asked["type"], asked["rank"], c.c_void_p(asked["address"]), arrays["shape"], arrays["strides"],
            arrays["box"], arrays["steps"], asked["interleave"], asked["swizzle"], asked["promotion"], asked["fill"])  # fmt: skip
        return code, asked["map"]

    def counts(self) -> tuple[int, ...]:
        steps = (self.steps or (1,) * len(self.box))[:-1]
        return (*(-(-b // s) for b, s in zip(self.box, steps, strict=False)), self.box[-1])

    def places(self, at: tuple[int, ...]) -> list[Any]:
        """The indices of the box in each dimension, inside the tensor or not."""
        steps = (*(self.steps or (1,) * len(self.box))[:-1], 1)
        return [start + np.arange(n) * s for start, n, s in zip(at, self.counts(), steps, strict=True)]


def picked(tensor: Any, box: Box, at: tuple[int, ...], fill: Any = 0) -> Any:
    """The box of a tensor, filled outside."""
    out = np.full(box.counts(), fill, tensor.dtype)
    places = box.places(at)
    inside = [(p >= 0) & (p < n) for p, n in zip(places, tensor.shape, strict=True)]
    out[np.ix_(*inside)] = tensor[np.ix_(*[p[i] for p, i in zip(places, inside, strict=True)])]
    return out


def swizzled(data: Any, swizzle: int) -> Any:
    """Chunks of 16 bytes where the programming guide's tables have them."""
    flat = np.ascontiguousarray(data).view(np.uint8).reshape(-1, 16)
    out = np.empty_like(flat)
    wide = (1, 2, 4, 8)[swizzle]
    for n, chunk in enumerate(flat):
        line = n * 16 // 128  # of 128 bytes
        out[(n // wide) * wide + (n % wide ^ line % wide)] = chunk
    return out.reshape(-1)


HEAD = """.version 8.6
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 box[];
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 p1{more}) {limits} {{
.reg .b64 %rd<20>; .reg .b32 %r<20>; .reg .b16 %h<4>; .reg .pred %p<9>;
.shared .align 8 .b64 come;
mov.b64 %rd0, map; cvta.param.u64 %rd0, %rd0; ld.param.u64 %rd1, [p1]; mov.u32 %r0, %tid.x;
mov.u32 %r1, box;
"""
WAIT = "wait: mbarrier.try_wait.parity.shared.b64 %p0, [come], 0; @!%p0 bra wait;\n"


def program(body: str, more: str = "", limits: str = "") -> str:
    return HEAD.format(more=more, limits=limits) + body + "ret; }\n"


def coordinates(at: tuple[int, ...]) -> str:
    return "{" + ", ".join(str(n) for n in at[::-1]) + "}"


def load_text(box: Box, at: tuple[int, ...], to: str = "shared::cluster", tile: str = ".tile") -> str:
    size = int(np.prod(box.counts())) * np.dtype(box.dtype).itemsize
    return f"""
mbarrier.init.shared.b64 [come], 1; fence.proxy.async.shared::cta; mbarrier.arrive.expect_tx.shared.b64 %rd3, [come], {size};
cp.async.bulk.tensor.{len(at)}d.{to}.global{tile}.mbarrier::complete_tx::bytes [%r1], [%rd0, {coordinates(at)}], [come];
{WAIT}
mov.u32 %r3, 0;
copy: add.u32 %r4, %r1, %r3; ld.shared.u32 %r5, [%r4]; cvt.u64.u32 %rd4, %r3; add.u64 %rd4, %rd1, %rd4; st.global.u32 [%rd4], %r5;
add.u32 %r3, %r3, 4; setp.lt.u32 %p0, %r3, {size}; @%p0 bra copy;
"""


class OnDevice:
    """A tensor in device memory."""

    def __init__(self, device: Any, values: Any) -> None:
        self._device, self._like, at = device, values, c.c_uint64()
        device._call("cuMemAlloc_v2", c.byref(at), c.c_size_t(values.nbytes))
        self.address = int(at.value)
        device._call("cuMemcpyHtoD_v2", at, c.c_void_p(values.ctypes.data), c.c_size_t(values.nbytes))

    def get(self) -> Any:
        out = np.empty_like(self._like)
        self._device._call(
            "cuMemcpyDtoH_v2", c.c_void_p(out.ctypes.data), c.c_uint64(self.address), c.c_size_t(out.nbytes)
        )
        return out


def numbers(dtype: Any, shape: tuple[int, ...]) -> Any:
    random = np.random.default_rng(int(np.prod(shape)))
    return random.integers(1, 99, shape).astype(dtype)


def loaded(device: Any, tensor: Any, box: Box, at: tuple[int, ...], **how: Any) -> Any:
    """The bytes of shared memory after one copy."""
    code, tensor_map = box.encode(device, OnDevice(device, tensor).address)
    assert code == 0
    out = np.zeros(int(np.prod(box.counts())) * tensor.itemsize, np.uint8)
    device.run(program(load_text(box, at, **how)), "k", 1, 1, bytes(tensor_map), out, shared=len(out) + 2048)
    return out


CASES = [
    (Box((40,), (16,)), (8,)),
    (Box((40,), (16,)), (30,)),  # across the end
    (Box((40,), (16,)), (-5,)),  # across the beginning
    (Box((40,), (16,)), (-99,)),  # nowhere
    (Box((20, 32), (8, 8)), (4, 16)),
    (Box((20, 32), (8, 8)), (15, 28)),
    (Box((20, 32), (8, 8)), (-3, -3)),
    (Box((20, 30), (4, 8), strides=(128,)), (17, 25)),  # padded rows
    (Box((6, 10, 12), (2, 3, 4)), (4, 9, 10)),
    (Box((3, 4, 5, 8), (2, 2, 2, 4)), (2, -1, 4, 6)),
    (Box((2, 3, 4, 5, 8), (2, 2, 2, 2, 4)), (1, 2, 3, 4, 2)),
    (Box((2, 3, 4, 5, 8), (1, 3, 1, 2, 8)), (0, 0, -1, 0, 0)),
    (Box((40, 32), (8, 8), steps=(2, 1)), (5, 0)),
    (Box((40, 32), (9, 8), steps=(4, 3)), (33, 8)),  # a step of the innermost dimension is ignored
    (Box((9, 9, 8), (6, 8, 8), steps=(3, 5, 1)), (-1, 6, 0)),
    (Box((64, 64), (16, 64), dtype=F2, swizzle=B128), (8, 0)),
    (Box((64, 64), (16, 64), dtype=F2, swizzle=B128), (55, 30)),
    (Box((64, 64), (16, 16), swizzle=B64), (60, 56)),
    (Box((64, 64), (32, 8), swizzle=B32), (1, 9)),
    (Box((8, 8, 64), (2, 5, 32), dtype=F4, swizzle=B128), (1, 6, 40)),
    *[(Box((16, 32), (4, 16), dtype=t), (14, 20)) for t in KINDS],
]


@pytest.mark.parametrize(("box", "at"), CASES, ids=str)
def test_a_box_comes_with_zeros_outside(device: Any, box: Box, at: tuple[int, ...]) -> None:
    if box.strides:
        memory = numbers(box.dtype, (box.shape[0], box.strides[0] // np.dtype(box.dtype).itemsize))
        tensor = memory[:, : box.shape[1]]
    else:
        memory = tensor = numbers(box.dtype, box.shape)
    got = loaded(device, memory, box, at)
    np.testing.assert_array_equal(got, swizzled(picked(tensor, box, at), box.swizzle))


def test_a_copy_names_its_own_block_and_no_mode(device: Any) -> None:
    box, at = Box((20, 32), (8, 8)), (4, 30)
    tensor = numbers(F4, box.shape)
    got = loaded(device, tensor, box, at, to="shared::cta", tile="")
    np.testing.assert_array_equal(got, swizzled(picked(tensor, box, at), NONE))


@pytest.mark.parametrize(
    ("box", "at"),
    [(Box((20, 32), (8, 8)), (4, 16)), (Box((2, 3, 4, 5, 8), (2, 2, 2, 2, 4)), (1, 2, 3, 4, 2))],
)
@pytest.mark.parametrize("what", ["the map", "the box"])
def test_prefetches_change_nothing(device: Any, what: str, box: Box, at: tuple[int, ...]) -> None:
    tensor = numbers(F4, box.shape)
    _, tensor_map = box.encode(device, OnDevice(device, tensor).address)
    text = (
        "prefetch.tensormap [%rd0];\n"
        if what == "the map"
        else f"cp.async.bulk.prefetch.tensor.{len(at)}d.L2.global.tile [%rd0, {coordinates(at)}];\n"
    )
    out = np.zeros(int(np.prod(box.counts())) * 4, np.uint8)
    device.run(program(text + load_text(box, at)), "k", 1, 1, bytes(tensor_map), out, shared=4096)
    np.testing.assert_array_equal(out, swizzled(picked(tensor, box, at), NONE))


@pytest.mark.parametrize("dtype", [F2, F4, F8])
def test_what_lies_outside_may_be_no_number(device: Any, dtype: Any) -> None:
    box = Box((20, 32), (4, 8), dtype=dtype, changed={"fill": 1})
    tensor = numbers(dtype, box.shape)
    got = loaded(device, tensor, box, (18, 28)).view(dtype).reshape(4, 8)
    np.testing.assert_array_equal(got, picked(tensor, box, (18, 28), np.nan))


def through_shared(box: Box, values: Any, instruction: str) -> str:
    """Shared memory filled from ``p1``, and one instruction."""
    return program(f"""
mov.u32 %r3, 0;
copy: add.u32 %r4, %r1, %r3; cvt.u64.u32 %rd4, %r3; add.u64 %rd4, %rd1, %rd4; ld.global.u32 %r5, [%rd4]; st.shared.u32 [%r4], %r5;
add.u32 %r3, %r3, 4; setp.lt.u32 %p0, %r3, {values.nbytes}; @%p0 bra copy;
fence.proxy.async.shared::cta; {instruction} cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;
""")


@pytest.mark.parametrize(("box", "at"), [c for c in CASES if not c[0].strides], ids=str)
def test_a_box_goes_where_the_tensor_is(device: Any, box: Box, at: tuple[int, ...]) -> None:
    tensor, values = (
        numbers(box.dtype, box.shape),
        numbers(box.dtype, box.counts()) + np.dtype(box.dtype).type(100),
    )
    on_device = OnDevice(device, tensor)
    code, tensor_map = box.encode(device, on_device.address)
    assert code == 0
    text = through_shared(
        box,
        values,
        f"cp.async.bulk.tensor.{len(at)}d.global.shared::cta.bulk_group [%rd0, {coordinates(at)}], [%r1];",
    )
    device.run(text, "k", 1, 1, bytes(tensor_map), swizzled(values, box.swizzle), shared=values.nbytes + 2048)
    want = tensor.copy()
    places = box.places(at)
    inside = [(p >= 0) & (p < n) for p, n in zip(places, tensor.shape, strict=True)]
    want[np.ix_(*[p[i] for p, i in zip(places, inside, strict=True)])] = values[np.ix_(*inside)]
    np.testing.assert_array_equal(on_device.get(), want)


REDUCTIONS = [
    *[("add", t) for t in (U4, I4, U8, F2, F4)], *[(w, t) for w in ("min", "max") for t in (U4, I4, U8, I8, F2)],
    *[(w, t) for w in ("and", "or", "xor") for t in (U4, U8)], ("inc", U4), ("dec", U4),
]  # fmt: skip
AS_NUMPY: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "inc": lambda old, most: np.where(old >= most, 0, old + 1), "dec": lambda old, most: np.where((old == 0) | (old > most), most, old - 1),
}  # fmt: skip


@pytest.mark.parametrize(("what", "dtype"), REDUCTIONS)
def test_a_box_is_reduced_onto_the_tensor(device: Any, what: str, dtype: Any) -> None:
    box, at = Box((10, 72), (3, 64), dtype=dtype), (8, 20)
    tensor, values = numbers(dtype, box.shape), numbers(dtype, box.counts())
    on_device = OnDevice(device, tensor)
    _, tensor_map = box.encode(device, on_device.address)
    text = through_shared(
        box,
        values,
        f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{what}.tile.bulk_group [%rd0, {coordinates(at)}], [%r1];",
    )
    device.run(text, "k", 1, 1, bytes(tensor_map), swizzled(values, NONE), shared=values.nbytes + 2048)
    want = tensor.copy()
    want[8:, 20:] = AS_NUMPY[what](tensor[8:, 20:], values[:2, :52])
    np.testing.assert_array_equal(on_device.get(), want)


def test_a_box_comes_to_several_blocks_of_a_cluster(device: Any) -> None:
    box, at = Box((20, 32), (8, 8)), (4, 16)
    tensor = numbers(F4, box.shape)
    _, tensor_map = box.encode(device, OnDevice(device, tensor).address)
    body = f"""
mov.b32 %r2, %cluster_ctarank; mov.b16 %h0, 6; setp.eq.u32 %p1, %r2, 0;
mbarrier.init.shared.b64 [come], 1; mbarrier.arrive.expect_tx.shared.b64 %rd3, [come], 256;
fence.mbarrier_init.release.cluster; fence.proxy.async;
barrier.cluster.arrive; barrier.cluster.wait;
@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [%rd0, {coordinates(at)}], [come], %h0;
@!%p1 bra wait; bra done;
{WAIT}
mul.wide.u32 %rd5, %r2, 256; add.u64 %rd5, %rd1, %rd5; mov.u32 %r3, 0;
copy: add.u32 %r4, %r1, %r3; ld.shared.u32 %r5, [%r4]; cvt.u64.u32 %rd4, %r3; add.u64 %rd4, %rd5, %rd4; st.global.u32 [%rd4], %r5;
add.u32 %r3, %r3, 4; setp.lt.u32 %p0, %r3, 256; @%p0 bra copy;
done: barrier.cluster.arrive; barrier.cluster.wait;
"""
    out = np.zeros((3, 8, 8), F4)
    device.run(program(body, limits=".reqnctapercluster 3"), "k", 3, 1, bytes(tensor_map), out, shared=4096)
    want = picked(tensor, box, at)
    np.testing.assert_array_equal(out, [np.zeros((8, 8)), want, want])


def test_a_kernel_writes_a_map_of_its_own(device: Any) -> None:
    """Field by field in shared memory, over zeros, and from there to global memory, as ``tl.make_tensor_descriptor`` does."""
    box, at = Box((20, 32), (8, 32), swizzle=B128), (15, 4)
    tensor = numbers(F4, box.shape)
    given = OnDevice(device, tensor).address
    own = OnDevice(device, np.zeros(128, np.uint8)).address
    fields = [
        ("global_address", "b64", "%rd6"), ("rank", "b32", "1"), ("box_dim", "b32", "0, 32"), ("box_dim", "b32", "1, 8"),
        ("global_dim", "b32", "0, 32"), ("global_dim", "b32", "1, 20"), ("global_stride", "b64", "0, 128"),
        ("element_stride", "b32", "0, 1"), ("element_stride", "b32", "1, 1"), ("elemtype", "b32", "7"),
        ("interleave_layout", "b32", "0"), ("swizzle_mode", "b32", "3"), ("fill_mode", "b32", "0"),
    ]  # fmt: skip
    zero = "".join(f"@%p2 st.shared.u32 [%r1+{4 * n}], 0;\n" for n in range(32))
    made = "".join(
        f"@%p2 tensormap.replace.tile.{name}.shared::cta.b1024.{bits} [%r1], {value};\n"
        for name, bits, value in fields
    )
    body = f"""
ld.param.u64 %rd6, [given]; ld.param.u64 %rd7, [own]; setp.eq.u32 %p2, %r0, 0;
{zero}{made}
bar.warp.sync -1;
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd7], [%r1], 128;
fence.proxy.tensormap::generic.acquire.gpu [%rd7], 128; mov.u64 %rd0, %rd7;
@!%p2 bra end;
{load_text(box, at)}
end:
"""
    out = np.zeros(8 * 128, np.uint8)
    text = program(body, ", .param .u64 given, .param .u64 own")
    device.run(text, "k", 1, 32, bytes(128), out, np.uint64(given), np.uint64(own), shared=4096)
    np.testing.assert_array_equal(out, swizzled(picked(tensor, box, at), B128))


def test_a_map_gets_another_address(device: Any) -> None:
    box, at = Box((20, 32), (8, 8)), (4, 16)
    tensor = numbers(F4, box.shape)
    code, tensor_map = box.encode(device, 4096)
    assert code == 0
    address = OnDevice(device, tensor).address
    assert (
        device._cuda.cuTensorMapReplaceAddress(c.byref(tensor_map), c.c_void_p(address + 8)) == INVALID_VALUE
    )
    assert device._cuda.cuTensorMapReplaceAddress(c.byref(tensor_map), c.c_void_p(address)) == 0
    out = np.zeros(256, np.uint8)
    device.run(program(load_text(box, at)), "k", 1, 1, bytes(tensor_map), out, shared=4096)
    np.testing.assert_array_equal(out, swizzled(picked(tensor, box, at), NONE))


WRONG = [
    ({"type": 99}, INVALID_VALUE), ({"rank": 0}, INVALID_VALUE), ({"rank": 6}, INVALID_VALUE), ({"address": 4104}, INVALID_VALUE),
    ({"shape": (0, 20)}, INVALID_VALUE), ({"shape": (2**32 + 1, 20)}, INVALID_VALUE), ({"strides": (136,)}, INVALID_VALUE),
    ({"strides": (2**40,)}, INVALID_VALUE), ({"box": (0, 8)}, INVALID_VALUE), ({"box": (260, 8)}, INVALID_VALUE),
    ({"box": (8, 257)}, INVALID_VALUE), ({"box": (6, 8)}, INVALID_VALUE), ({"steps": (1, 0)}, INVALID_VALUE),
    ({"steps": (1, 9)}, INVALID_VALUE), ({"interleave": 1}, INVALID_VALUE), ({"interleave": 3}, INVALID_VALUE),
    ({"swizzle": 1, "box": (16, 8)}, INVALID_VALUE), ({"swizzle": 2, "box": (32, 8)}, INVALID_VALUE),
    ({"swizzle": 3, "box": (64, 8)}, INVALID_VALUE), ({"swizzle": 7}, INVALID_VALUE), ({"promotion": 4}, INVALID_VALUE),
    ({"fill": 2}, INVALID_VALUE), ({"fill": 1, "type": 2}, INVALID_VALUE),
    *[pytest.param(c, NOT_SUPPORTED, marks=SIMULATED_ONLY) for c in ({"type": 10}, {"type": 11}, {"swizzle": 2, "box": (8, 8)})],
]  # fmt: skip


@pytest.mark.parametrize(("changed", "code"), WRONG, ids=str)
def test_a_map_that_cannot_be_is_refused(device: Any, changed: dict[str, Any], code: int) -> None:
    assert Box((20, 32), (8, 8), changed=changed).encode(device, 4096)[0] == code


def test_a_map_lies_at_a_multiple_of_64(device: Any) -> None:
    raw = (c.c_char * 320)()
    start = -(-c.addressof(raw) // 64) * 64 - c.addressof(raw)
    assert Box((20, 32), (8, 8)).encode(device, 4096, Map.from_buffer(raw, start))[0] == 0
    assert Box((20, 32), (8, 8)).encode(device, 4096, Map.from_buffer(raw, start + 16))[0] == INVALID_VALUE


LOAD = "cp.async.bulk.tensor.{n}d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1{plus}], [%rd0, {{{at}}}], [come];"
FAULTS = {
    "no map": ("mov.u64 %rd0, %rd1;", LOAD.format(n=2, plus="", at="0, 0"), ILLEGAL_ADDRESS, "A tensor map that does not fit its instruction: its bytes are no tensor map's, at k"),
    "another rank": ("", LOAD.format(n=3, plus="", at="0, 0, 0"), ILLEGAL_ADDRESS, "A tensor map that does not fit its instruction: it has another number of dimensions"),
    "a box that is not aligned": ("", LOAD.format(n=2, plus="+16", at="0, 0"), MISALIGNED, "Misaligned __shared__ write of size 256 bytes"),
    "a box outside": ("", LOAD.format(n=2, plus="+4096", at="0, 0"), ILLEGAL_ADDRESS, "Invalid __shared__ write of size 256 bytes"),
    "a tensor that is not there": ("", LOAD.format(n=2, plus="", at="0, 0"), ILLEGAL_ADDRESS, "Invalid __global__ read of size 32 bytes"),
    "a box larger than shared memory": ("", LOAD.format(n=5, plus="", at="0, 0, 0, 0, 0"), ILLEGAL_ADDRESS, "A tensor map that does not fit its instruction: its box is larger than shared memory"),
    "a map that is not aligned": ("add.u64 %rd0, %rd0, 16;", LOAD.format(n=2, plus="", at="0, 0"), MISALIGNED, "Misaligned parameter read of size 128 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_is_named(name: str) -> None:
    """Each in a process of its own: an error is sticky."""
    done = subprocess.run(
        [sys.executable, __file__, name], capture_output=True, text=True, check=True, timeout=120
    )
    line, answered = done.stdout.splitlines()
    assert line.startswith(f"gpukernel: {FAULTS[name][3]}"), line
    assert int(answered) == FAULTS[name][2]


def _fail(name: str) -> None:
    from gpukernel.native import simgpu_library
    from tests.native.simgpu_exec.conftest import Device, LaunchFailed

    device = Device(str(simgpu_library()))
    large = Box((16,) * 5, (255, 255, 255, 255, 256), dtype=F8)  # of 2^43 bytes
    _, tensor_map = (large if name.endswith("shared memory") else Box((20, 32), (8, 8))).encode(
        device, 1 << 40
    )
    before, instruction = FAULTS[name][:2]
    try:
        device.run(
            program(before + "mbarrier.init.shared.b64 [come], 1;" + instruction),
            "k",
            1,
            1,
            bytes(tensor_map),
            np.zeros(256, np.uint8),
            shared=3072,
        )
        print(0)
    except LaunchFailed as failed:
        print(failed.code)


if __name__ == "__main__":
    import os

    os.environ |= {"GPUKERNEL_MEMCHECK": "strict", "GPUKERNEL_SIMGPU": "h100"}
    sys.path.insert(0, str(Path(__file__).parents[3]))
    _fail(sys.argv[1])
