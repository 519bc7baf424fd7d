"""Copies that name pinned memory by its address on the device, which is the program's: each takes it, before and after a kernel has."""

from __future__ import annotations

import pytest

from tests.remoting.conftest import AT_ADDRESSES_OF_THE_PROGRAM
from tests.remoting.test_pinned import says

pytestmark = AT_ADDRESSES_OF_THE_PROGRAM

N = 5000
BEGIN = f"""
N = {N}; s = ok(d.cuStreamCreate(1)); b = ok(d.cuStreamCreate(0)); turn = 0
def fresh(n, value): global turn; turn += 1; return (np.arange(n, dtype=np.uint32) * 7 + value + 1000 * turn)
def used(p): add(p, 0); return p
class Memory:
    def __init__(self, at, view): self.at, self.view = at, view
    def put(self, values): self.view[:] = values
    def get(self): return self.view.copy()
class OnDevice(Memory):
    def put(self, values): wait(); ok(d.cuMemcpyHtoD(self.at, values.ctypes.data, values.nbytes))
    def get(self): wait(); seen = np.zeros(N, np.uint32); ok(d.cuMemcpyDtoH(seen.ctypes.data, self.at, seen.nbytes)); return seen
def unused(): p, a = pinned(N); return Memory(p, a)
def reached(): p, a = pinned(N); add(p, N); wait(); return Memory(p, a)
def device(): return OnDevice(int(ok(d.cuMemAlloc(4 * N))), None)
def larger_device(): return OnDevice(int(ok(d.cuMemAlloc(8 * N))), None)
def larger_host(): a = np.zeros(2 * N, np.uint32); return Memory(a.ctypes.data, a[:N])
def host(): a = np.zeros(N, np.uint32); return Memory(a.ctypes.data, a)
def mapped(): p = int(ok(d.cuMemHostAlloc(4 * N, 2))); return Memory(p, np.ctypeslib.as_array((ctypes.c_uint32 * N).from_address(p)))
def box(to, of, bytes, kinds, rows, cls):
    c = cls(); T = d.CUmemorytype; c.dstMemoryType, c.srcMemoryType = T(kinds[0]), T(kinds[1]); c.dstDevice = c.dstHost = to; c.srcDevice = c.srcHost = of
    c.WidthInBytes = bytes // rows; c.Height = rows; c.srcPitch = c.dstPitch = bytes // rows + (PITCH if rows > 1 else 0)
    if cls is d.CUDA_MEMCPY3D: c.Depth = 1
    return c
PITCH = 0
"""
KINDS = ("unused", "reached", "mapped")
# Each copies `n` bytes from `of` to `to`; whether its sides are the device's.
CALLS = {
    "HtoD": ("d.cuMemcpyHtoD(to, of, n)", "DH"),
    "HtoDAsync": ("d.cuMemcpyHtoDAsync(to, of, n, s)", "DH"),
    "DtoH": ("d.cuMemcpyDtoH(to, of, n)", "HD"),
    "DtoHAsync": ("d.cuMemcpyDtoHAsync(to, of, n, s)", "HD"),
    "DtoD": ("d.cuMemcpyDtoD(to, of, n)", "DD"),
    "DtoDAsync": ("d.cuMemcpyDtoDAsync(to, of, n, s)", "DD"),
    "DtoDAsync in the legacy stream": ("d.cuMemcpyDtoDAsync(to, of, n, 0)", "DD"),
    "unified": ("d.cuMemcpy(to, of, n)", "DD"),
    "unified Async": ("d.cuMemcpyAsync(to, of, n, b)", "DD"),
    "Peer": ("d.cuMemcpyPeer(to, d.cuCtxGetCurrent()[1], of, d.cuCtxGetCurrent()[1], n)", "DD"),
    "PeerAsync": ("d.cuMemcpyPeerAsync(to, d.cuCtxGetCurrent()[1], of, d.cuCtxGetCurrent()[1], n, s)", "DD"),
    "2D HtoD": ("d.cuMemcpy2D(box(to, of, n, (2, 1), 4, d.CUDA_MEMCPY2D))", "DH"),
    "2DAsync DtoH": ("d.cuMemcpy2DAsync(box(to, of, n, (1, 2), 4, d.CUDA_MEMCPY2D), s)", "HD"),
    "2D DtoD": ("d.cuMemcpy2D(box(to, of, n, (2, 2), 4, d.CUDA_MEMCPY2D))", "DD"),
    "2D unified": ("d.cuMemcpy2D(box(to, of, n, (4, 4), 4, d.CUDA_MEMCPY2D))", "DD"),
    "3D DtoD": ("d.cuMemcpy3D(box(to, of, n, (2, 2), 4, d.CUDA_MEMCPY3D))", "DD"),
    "3DAsync HtoD": ("d.cuMemcpy3DAsync(box(to, of, n, (2, 1), 4, d.CUDA_MEMCPY3D), s)", "DH"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_copy_takes_pinned_memory_by_its_address_on_the_device(call: str) -> None:
    """Whole, and from the middle to the end; on either side, and on both."""
    ask, sides = CALLS[call]
    to_device, of_device = (side == "D" for side in sides)
    pairs = [(to, of) for to in KINDS for of in KINDS]
    pairs += [(to, "device" if of_device else "host") for to in KINDS]
    pairs += [("device" if to_device else "host", of) for of in KINDS]
    code = f"""
def copy(to, of, n): return {ask}
for makes, made in ({", ".join(f"({a}, {b})" for a, b in pairs)},):
    for begin in (0, N // 2):
        x, y = makes(), made(); old, new = fresh(N, 1), fresh(N, 2); x.put(old); y.put(new); at = 4 * begin
        said = name(copy(x.at + at, y.at + at, 4 * N - at)); assert said == "SUCCESS", (makes, made, begin, said); ok(d.cuStreamSynchronize(s)); ok(d.cuStreamSynchronize(b))
        seen = x.get(); assert (seen[begin:] == new[begin:]).all() and (seen[:begin] == old[:begin]).all() and (y.get() == new).all(), (makes, made, begin)
print("all")
"""
    says(BEGIN + code, ["all"])


@pytest.mark.parametrize("call", CALLS)
def test_a_copy_past_the_end_of_pinned_memory_is_refused(call: str) -> None:
    """On the side where it stands for the device's, whose other one is larger; nothing is copied."""
    ask, sides = CALLS[call]
    plain = {"D": "larger_device", "H": "larger_host"}
    tries = [(to, plain[sides[1]]) for to in ("unused", "reached") if sides[0] == "D"]
    tries += [(plain[sides[0]], of) for of in ("unused", "reached") if sides[1] == "D"]
    code = f"""
def copy(to, of, n): return {ask}
for makes, made in ({", ".join(f"({a}, {b})" for a, b in tries)},):
    for begin, n in ((0, 4 * N + 16), (N // 2, 2 * N + 16), (N - 4, 32)):
        x, y = makes(), made(); old, new = fresh(N, 1), fresh(N, 2); x.put(old); y.put(new)
        said = name(copy(x.at + 4 * begin, y.at + 4 * begin, n)); said = name(d.cuCtxSynchronize()) if said == "SUCCESS" else said
        assert said == "INVALID_VALUE", (makes, made, begin, said); assert (x.get() == old).all() and (y.get() == new).all()
print("all")
"""
    says(BEGIN + code, ["all"])


def test_rows_of_pinned_memory_are_copied_with_their_pitch() -> None:
    code = """
PITCH = 64; n = 4 * (N - 64)  # rows of a pitch that is wider than they are
for makes, made in ((unused, device), (unused, unused), (reached, unused), (device, unused), (unused, reached)):
    x, y = makes(), made(); old, new = fresh(N, 1), fresh(N, 2); x.put(old); y.put(new); ok(d.cuMemcpy2D(box(x.at, y.at, n, (2, 2), 4, d.CUDA_MEMCPY2D))); seen = x.get()
    width = n // 16; pitch = width + 16
    for i in range(4): row = slice(i * pitch, i * pitch + width); assert (seen[row] == new[row]).all(); seen[row] = old[row]
    assert (seen == old).all()
print("all")
"""
    says(BEGIN + code, ["all"])


def test_copies_of_pinned_memory_come_in_the_order_of_their_stream() -> None:
    """Those between the program's own places, too: behind a kernel, and before the next one."""
    code = """
x, y, z = unused(), unused(), device()
for i in range(20):
    x.put(i); ok(d.cuMemcpyHtoDAsync(z.at, x.at, 4 * N, s)); add(z.at, N, s); ok(d.cuMemcpyDtoDAsync(y.at, z.at, 4 * N, s)); ok(d.cuMemcpyDtoDAsync(x.at, y.at, 4 * N, s)); ok(d.cuMemcpyDtoDAsync(z.at, x.at, 4 * N, s)); add(z.at, N, s); ok(d.cuStreamSynchronize(s))
    assert set(x.get().tolist()) == {i + 1} == set(y.get().tolist()) and set(z.get().tolist()) == {i + 2}, i
print("all")
"""
    says(BEGIN + code, ["all"])


def test_pinned_memory_that_only_copies_use_costs_the_slice_nothing() -> None:
    code = """
before = free(); large, a = pinned(100 << 20); small, c = pinned(1 << 20); c[:] = np.arange(1 << 20); n = c.nbytes
ok(d.cuMemcpyDtoD(large + n, small, n)); ok(d.cuMemcpyHtoD(large, small, n)); ok(d.cuMemcpyDtoH(small, large + n, n)); print(before - free(), (a[: 2 << 20].reshape(2, -1) == np.arange(1 << 20)).all())
"""
    says(BEGIN + code, ["0 True"], memory_mib=64)


def test_a_graph_copies_pinned_memory() -> None:
    code = """
x, y, z = unused(), unused(), device(); x.put(5); ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
ok(d.cuMemcpyDtoDAsync(z.at, x.at, 4 * N, s)); add(z.at, N, s); ok(d.cuMemcpyDtoDAsync(y.at, z.at, 4 * N, s)); ok(d.cuMemcpyHtoDAsync(x.at, y.at, 4 * N, s))
g = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(s)), 0))
for i in range(3): ok(d.cuGraphLaunch(g, s)); ok(d.cuStreamSynchronize(s)); print(set(x.get().tolist()), set(y.get().tolist()))
"""
    says(BEGIN + code, ["{6} {6}", "{7} {7}", "{8} {8}"])
