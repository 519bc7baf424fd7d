"""CUDA arrays, textures and surfaces through shim and worker: the cap, what is left behind, wrong handles, and every kind of copy."""

from __future__ import annotations

import asyncio

import pytest

from tests.remoting.conftest import MIB, worker

ARRAYS = """
import numpy as np
F = d.CUarray_format
def shape(width, height=0, depth=0, format=F.CU_AD_FORMAT_FLOAT, channels=1, flags=0):
    s = d.CUDA_ARRAY3D_DESCRIPTOR()
    s.Width, s.Height, s.Depth, s.Format, s.NumChannels, s.Flags = width, height, depth, format, channels, flags
    return s
def used():
    free, total = ok(d.cuMemGetInfo())
    return total - free
def of_array(array):
    r = d.CUDA_RESOURCE_DESC(); r.resType = d.CUresourcetype.CU_RESOURCE_TYPE_ARRAY; r.res.array.hArray = array
    return r
def of_memory(address, bytes):
    r = d.CUDA_RESOURCE_DESC(); r.resType = d.CUresourcetype.CU_RESOURCE_TYPE_LINEAR
    r.res.linear.devPtr, r.res.linear.sizeInBytes = address, bytes
    r.res.linear.format, r.res.linear.numChannels = F.CU_AD_FORMAT_FLOAT, 1
    return r
def of_rows(address, width, height, pitch):
    r = d.CUDA_RESOURCE_DESC(); r.resType = d.CUresourcetype.CU_RESOURCE_TYPE_PITCH2D
    p = r.res.pitch2D
    p.devPtr, p.width, p.height, p.pitchInBytes, p.format, p.numChannels = address, width, height, pitch, F.CU_AD_FORMAT_FLOAT, 1
    return r
def texture(resource, view=None): return d.cuTexObjectCreate(resource, d.CUDA_TEXTURE_DESC(), view)
"""


def run(code: str, *, memory_mib: int = 64, shared_memory: bool = True) -> str:
    async def story() -> str:
        async with worker(memory_mib=memory_mib) as one:
            done = await one.run(ARRAYS + code, shared_memory=shared_memory)
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

    return asyncio.run(story())


# --- the cap ---


def test_arrays_count_against_the_cap_with_their_true_size() -> None:
    code = """begin(); before = used()
a = ok(d.cuArray3DCreate(shape(1024, 1024)))
print(used() - before)
m = ok(d.cuMipmappedArrayCreate(shape(1024, 1024), 11))
print(used() - before - (4 << 20))
ok(d.cuArrayDestroy(a)); ok(d.cuMipmappedArrayDestroy(m)); print(used() - before)"""
    flat, levels, nothing = map(int, run(code).split())
    assert flat == 4 * MIB
    pyramid = sum(4 * (1024 >> n) ** 2 for n in range(11))
    assert pyramid <= levels <= pyramid + 11 * 512
    assert nothing == 0


def test_an_array_over_the_cap_is_out_of_memory_and_costs_nothing() -> None:
    code = """begin(); before = used()
print(d.cuArray3DCreate(shape(2048, 2048, channels=4))[0].name)
print(d.cuArray3DCreate(shape(16384, 16384, 16384))[0].name)
print(d.cuMipmappedArrayCreate(shape(2048, 1024, channels=4), 12)[0].name)
print(d.cuArray3DCreate(shape(2**63, 2, 2))[0].name)
print(used() - before, ok(d.cuMemAlloc(30 << 20)) != 0)"""
    assert run(code, memory_mib=32).split() == ["CUDA_ERROR_OUT_OF_MEMORY"] * 4 + ["0", "True"]


def test_arrays_and_memory_share_one_cap() -> None:
    code = """begin()
kept = []
while (made := d.cuArray3DCreate(shape(1024, 512)))[0] == 0: kept.append(made[1])
print(made[0].name, len(kept), d.cuMemAlloc(3 << 20)[0].name)
ok(d.cuArrayDestroy(kept.pop())); ok(d.cuArrayDestroy(kept.pop())); print(d.cuMemAlloc(3 << 20)[0].name)"""
    assert run(code, memory_mib=16).split() == [
        "CUDA_ERROR_OUT_OF_MEMORY",
        "8",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "CUDA_SUCCESS",
    ]


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)", ""])
def test_nothing_is_left_of_a_program_that_goes(end: str) -> None:
    make = """begin()
a = ok(d.cuArray3DCreate(shape(1024, 1024, flags=2))); m = ok(d.cuMipmappedArrayCreate(shape(512, 512), 4))
level = ok(d.cuMipmappedArrayGetLevel(m, 1))
ok(texture(of_array(a))); ok(texture(of_array(level))); ok(d.cuSurfObjectCreate(of_array(a))); p = ok(d.cuMemAlloc(1 << 20)); ok(texture(of_memory(int(p), 1 << 20)))
"""

    async def story() -> None:
        async with worker() as one:
            for _ in range(3):
                done = await one.run(ARRAYS + make + end)
                assert done.returncode in (0, -9), done.stderr
            usage = await one.run(ARRAYS + "begin(); print(used())")
            assert usage.stdout.strip() == "0", usage.stderr

    asyncio.run(story())


# --- what may not be ---


def test_wrong_shapes_are_refused() -> None:
    code = """begin()
for s in (shape(0), shape(4, 0, 4), shape(4, 4, channels=3), shape(4, 5, 6, flags=4), shape(4, 4, 5, flags=4), shape(4, 4, 0, flags=1), shape(200000), shape(4, 4, format=F.CU_AD_FORMAT_MAX)):
    print(d.cuArray3DCreate(s)[0].name)
for s in (shape(4, 4, flags=0x40), shape(4, 4, flags=0x80), shape(4, 4, format=F.CU_AD_FORMAT_NV12, channels=3)):
    print(d.cuArray3DCreate(s)[0].name)"""
    names = run(code).split()
    assert set(names[:7]) == {"CUDA_ERROR_INVALID_VALUE"}
    assert set(names[7:]) == {"CUDA_ERROR_NOT_SUPPORTED"}


def test_handles_are_checked() -> None:
    code = """begin()
a = ok(d.cuArray3DCreate(shape(16, 16, flags=2))); m = ok(d.cuMipmappedArrayCreate(shape(16, 16), 3)); level = ok(d.cuMipmappedArrayGetLevel(m, 0))
stray = d.CUarray(int(a) + 1); p = ok(d.cuMemAlloc(4))
t, s = int(ok(texture(of_array(a)))), int(ok(d.cuSurfObjectCreate(of_array(a))))
def name(result): print(result[0].name)
name(d.cuArrayDestroy(stray)); name(d.cuArrayDestroy(d.CUarray(int(m)))); name(d.cuArrayDestroy(level)); name(d.cuMipmappedArrayDestroy(d.CUmipmappedArray(int(a))))
name(d.cuArray3DGetDescriptor(stray)); name(d.cuMipmappedArrayGetLevel(d.CUmipmappedArray(int(a)), 0)); name(texture(of_array(stray))); name(d.cuSurfObjectCreate(of_array(stray)))
name(d.cuTexObjectDestroy(s)); name(d.cuSurfObjectDestroy(t)); name(d.cuTexObjectGetResourceDesc(t + 1000)); name(d.cuTexObjectDestroy(t + 1000))
ok(d.cuArrayDestroy(a)); name(d.cuArrayDestroy(a)); name(texture(of_array(a))); name((d.cuMemcpyAtoD(p, a, 0, 4), d.cuCtxSynchronize()[0])[1:])
ok(d.cuMipmappedArrayDestroy(m)); name(d.cuArray3DGetDescriptor(level))
ok(d.cuTexObjectDestroy(t)); name(d.cuTexObjectDestroy(t)); ok(d.cuSurfObjectDestroy(s)); name(d.cuSurfObjectDestroy(s)); print(d.cuCtxSynchronize()[0].name)"""
    names = run(code).split()
    # The copy from a destroyed array is queued: its error comes with the next answer, and once.
    assert names == ["CUDA_ERROR_INVALID_HANDLE"] * 18 + ["CUDA_SUCCESS"]


def test_textures_lie_over_the_leases_own_memory_only() -> None:
    code = """begin(); p = int(ok(d.cuMemAlloc(4096)))
for r in (of_memory(p, 4096), of_rows(p, 32, 32, 128), of_rows(p, 8, 16, 256)): print(texture(r)[0].name)
for r in (of_memory(p + 4096, 4), of_memory(4096, 4), of_memory(p, 0), of_rows(p, 32, 33, 128), of_rows(p, 32, 32, 64), of_rows(p, 2**61, 1, 128), of_rows(p, 32, 2**62, 128)):
    print(texture(r)[0].name)"""
    names = run(code).split()
    assert names == ["CUDA_SUCCESS"] * 3 + ["CUDA_ERROR_INVALID_VALUE"] * 7


def test_a_texture_that_is_longer_than_its_memory_ends_with_it() -> None:
    code = """begin(); import ctypes as c; PTX = b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry read(.param .u64 texture, .param .u64 out) { .reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .f32 %f<4>;
  ld.param.u64 %rd1, [texture]; ld.param.u64 %rd2, [out]; mov.u32 %r1, %tid.x; add.s32 %r2, %r1, 1022; tex.1d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [%rd1, {%r2}];
  mad.wide.u32 %rd3, %r1, 4, %rd2; st.global.f32 [%rd3], %f0; ret; }
'''
p, q, o = (int(ok(d.cuMemAlloc(4096))) for _ in range(3)); values = np.arange(1, 1025, dtype=np.float32)
for at in (p, q, o): ok(d.cuMemcpyHtoD(at, values.ctypes.data, 4096))
f = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(PTX + b"\\0")), b"read")); asked = of_memory(p, 1 << 20); t = ok(texture(asked))
x, y = c.c_uint64(int(t)), c.c_uint64(o); both = (c.c_void_p * 2)(c.addressof(x), c.addressof(y)); out = np.zeros(4, np.float32)
ok(d.cuLaunchKernel(f, 1, 1, 1, 4, 1, 1, 0, 0, c.addressof(both), 0)); ok(d.cuMemcpyDtoH(out.ctypes.data, o, 16))
print(out.tolist(), ok(d.cuTexObjectGetResourceDesc(t)).res.linear.sizeInBytes)"""
    assert run(code) == "[1023.0, 1024.0, 0.0, 0.0] 1048576"


def test_one_program_cannot_use_anothers_array() -> None:
    async def story() -> None:
        async with worker() as one:
            first = one.start(
                ARRAYS
                + "begin(); a = ok(d.cuArray3DCreate(shape(16, 16))); print(int(a), int(ok(texture(of_array(a)))), flush=True); input()"
            )
            assert first.stdout is not None
            array, object_ = (await asyncio.to_thread(first.stdout.readline)).split()
            code = f"""begin()
print(d.cuArrayDestroy(d.CUarray({array}))[0].name, d.cuTexObjectDestroy({object_})[0].name)"""
            second = await one.run(ARRAYS + code)
            assert second.stdout.split() == ["CUDA_ERROR_INVALID_HANDLE"] * 2, second.stderr
            await asyncio.to_thread(first.communicate, "\n")

    asyncio.run(story())


# --- what the descriptors say ---


def test_descriptors_are_told_as_they_were_given() -> None:
    code = """begin()
a = ok(d.cuArray3DCreate(shape(20, 10, 3, F.CU_AD_FORMAT_UNSIGNED_INT16, 2, 3))); got = ok(d.cuArray3DGetDescriptor(a))
print(got.Width, got.Height, got.Depth, got.Format.name, got.NumChannels, got.Flags)
flat = d.CUDA_ARRAY_DESCRIPTOR(); flat.Width, flat.Height, flat.Format, flat.NumChannels = 7, 5, F.CU_AD_FORMAT_HALF, 4
got = ok(d.cuArrayGetDescriptor(ok(d.cuArrayCreate(flat)))); print(got.Width, got.Height, got.Format.name, got.NumChannels)
m = ok(d.cuMipmappedArrayCreate(shape(20, 10), 99)); print([(g.Width, g.Height) for g in (ok(d.cuArray3DGetDescriptor(ok(d.cuMipmappedArrayGetLevel(m, n)))) for n in range(5))], d.cuMipmappedArrayGetLevel(m, 5)[0].name)
s = d.CUDA_TEXTURE_DESC(); s.borderColor, s.flags, s.addressMode = [1, 2, 3, 4], 2, [d.CUaddress_mode(n) for n in (3, 2, 1)]
v = d.CUDA_RESOURCE_VIEW_DESC(); v.width, v.height, v.lastLayer = 20, 10, 2
t = ok(d.cuTexObjectCreate(of_array(a), s, v)); plain = ok(texture(of_array(a)))
r, s, v = ok(d.cuTexObjectGetResourceDesc(t)), ok(d.cuTexObjectGetTextureDesc(t)), ok(d.cuTexObjectGetResourceViewDesc(t))
print(int(r.res.array.hArray) == int(a), s.borderColor, s.flags, [int(m) for m in s.addressMode], v.width, v.lastLayer, d.cuTexObjectGetResourceViewDesc(plain)[0].name)
r = ok(d.cuSurfObjectGetResourceDesc(ok(d.cuSurfObjectCreate(of_array(a))))); print(int(r.res.array.hArray) == int(a))
print(d.cuArrayGetMemoryRequirements(a, 0)[0].name, d.cuArrayGetSparseProperties(a)[0].name)
A = d.CUdevice_attribute; print(ok(d.cuDeviceGetAttribute(A.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, 0)), ok(d.cuDeviceGetTexture1DLinearMaxWidth(F.CU_AD_FORMAT_FLOAT, 1, 0)) >= 2**27)"""
    assert run(code).splitlines() == [
        "20 10 3 CU_AD_FORMAT_UNSIGNED_INT16 2 3",
        "7 5 CU_AD_FORMAT_HALF 4",
        "[(20, 10), (10, 5), (5, 2), (2, 1), (1, 1)] CUDA_ERROR_INVALID_VALUE",
        "True [1.0, 2.0, 3.0, 4.0] 2 [3, 2, 1] 20 2 CUDA_ERROR_INVALID_VALUE",
        "True",
        "CUDA_ERROR_INVALID_VALUE CUDA_ERROR_NOT_SUPPORTED",
        "131072 True",
    ]


# --- copies: every kind of memory to every other ---

PITCHED_COPIES = """
M = d.CUmemorytype
class Host:
    def __init__(self, values): self.values = values.copy(); self.pitch, self.rows = values.strides[1], values.shape[1]
    def fill(self, params, side):
        setattr(params, side + "MemoryType", M.CU_MEMORYTYPE_HOST); setattr(params, side + "Host", self.values.ctypes.data)
        setattr(params, side + "Pitch", self.pitch); setattr(params, side + "Height", self.rows)
    def get(self): return self.values
class Memory(Host):
    def __init__(self, values):
        super().__init__(values); self.address = ok(d.cuMemAlloc(values.nbytes)); ok(d.cuMemcpyHtoD(self.address, self.values.ctypes.data, values.nbytes))
    def fill(self, params, side): super().fill(params, side); setattr(params, side + "MemoryType", M.CU_MEMORYTYPE_DEVICE); setattr(params, side + "Device", self.address)
    def get(self): ok(d.cuMemcpyDtoH(self.values.ctypes.data, self.address, self.values.nbytes)); return self.values
class Unified(Memory):
    def fill(self, params, side): super().fill(params, side); setattr(params, side + "MemoryType", M.CU_MEMORYTYPE_UNIFIED)
class Array(Host):
    def __init__(self, values):
        super().__init__(values); z, y, x = values.shape; self.array = ok(d.cuArray3DCreate(shape(x, y, z, F.CU_AD_FORMAT_UNSIGNED_INT16)))
        self.whole(Host(values), self)
    def fill(self, params, side): setattr(params, side + "MemoryType", M.CU_MEMORYTYPE_ARRAY); setattr(params, side + "Array", self.array)
    def whole(self, source, destination):
        z, y, x = self.values.shape; copy(source, destination, (0, 0, 0), (0, 0, 0), (z, y, x))
    def get(self): back = Host(self.values); self.whole(self, back); return back.values
def copy(source, destination, a, b, size, stream=None):
    params = d.CUDA_MEMCPY3D(); source.fill(params, "src"); destination.fill(params, "dst")
    params.srcZ, params.srcY, params.srcXInBytes = a[0], a[1], a[2] * 2
    params.dstZ, params.dstY, params.dstXInBytes = b[0], b[1], b[2] * 2
    params.Depth, params.Height, params.WidthInBytes = size[0], size[1], size[2] * 2
    ok(d.cuMemcpy3D(params) if stream is None else d.cuMemcpy3DAsync(params, stream))
def part(values, at, size): return values[tuple(slice(a, a + n) for a, n in zip(at, size))]
def check(kinds, one, two, a, b, size, stream=None):
    for source in kinds:
        for destination in kinds:
            s, t = source(one), destination(two)
            copy(s, t, a, b, size, stream)
            if stream is not None: ok(d.cuStreamSynchronize(stream))
            want = two.copy(); part(want, b, size)[...] = part(one, a, size)
            assert (t.get() == want).all(), (source, destination, a, b, size)
            assert (s.get() == one).all()
"""


@pytest.mark.parametrize("shared_memory", [True, False])
def test_pitched_copies_between_every_kind_of_memory(shared_memory: bool) -> None:
    code = """begin(); r = np.random.default_rng(1)
one, two = r.integers(0, 2**16, (7, 11, 19), np.uint16), r.integers(0, 2**16, (6, 13, 23), np.uint16)
check([Host, Memory, Unified, Array], one, two, (1, 2, 3), (2, 1, 5), (4, 8, 14))
check([Host, Memory, Unified, Array], one, two, (0, 0, 0), (0, 0, 0), (1, 1, 1))
check([Host, Memory, Array], one, one[::-1], (2, 0, 0), (3, 0, 0), (4, 11, 19), ok(d.cuStreamCreate(1)))
empty = d.CUDA_MEMCPY3D(); Host(one).fill(empty, "src"); Memory(two).fill(empty, "dst"); ok(d.cuMemcpy3D(empty))
print("done")"""
    assert run(PITCHED_COPIES + code, shared_memory=shared_memory) == "done"


def test_pitched_copies_larger_than_a_piece() -> None:
    code = """begin(); r = np.random.default_rng(2)
one, two = r.integers(0, 2**16, (3, 700, 1201), np.uint16), np.zeros((3, 701, 1300), np.uint16)
check([Host, Memory, Array], one, two, (0, 1, 1), (1, 2, 3), (2, 690, 1100))
wide, zeros = r.integers(0, 2**16, (1, 3, 16384 * 7), np.uint16), np.zeros((1, 3, 16384 * 7 + 1), np.uint16)
class Flat(Array):
    def __init__(self, values):
        Host.__init__(self, values); z, y, x = values.shape; self.array = ok(d.cuArray3DCreate(shape(x, y, 0, F.CU_AD_FORMAT_UNSIGNED_INT16))); self.whole(Host(values), self)
check([Host, Memory, Flat], wide, zeros, (0, 0, 0), (0, 0, 1), (1, 3, 16384 * 7))
rows = r.integers(0, 2**16, (1, 2, 700000), np.uint16); check([Host, Memory], rows, rows * 0, (0, 0, 5), (0, 0, 0), (1, 2, 699990))
print("done")"""
    assert run(PITCHED_COPIES + code, memory_mib=512) == "done"


def test_pitched_copies_that_do_not_fit_are_refused() -> None:
    code = """begin(); values = np.zeros((4, 4, 4), np.uint16); host, memory, array = Host(np.zeros((9, 9, 9), np.uint16)), Memory(values), Array(values)
def name(source, destination, a, b, size):
    try: copy(source, destination, a, b, size); print(d.cuCtxSynchronize()[0].name)
    except AssertionError as error: print(error.args[0].name)
for there in (memory, array):
    name(host, there, (0, 0, 0), (1, 0, 0), (4, 4, 4)); name(there, host, (0, 0, 1), (0, 0, 0), (4, 4, 4)); name(host, there, (0, 0, 0), (0, 1, 0), (4, 4, 4))
name(memory, array, (0, 0, 0), (0, 0, 0), (4, 4, 5)); name(array, memory, (0, 0, 0), (5, 0, 0), (1, 1, 1))
params = d.CUDA_MEMCPY3D(); host.fill(params, "src"); memory.fill(params, "dst"); params.WidthInBytes, params.Height, params.Depth = 2**40, 2**40, 2**40; print(d.cuMemcpy3D(params)[0].name)
memory.pitch = 2; name(memory, array, (0, 0, 0), (0, 0, 0), (1, 4, 4))
print(d.cuCtxSynchronize()[0].name)"""
    names = run(PITCHED_COPIES + code).split()
    # A pitched copy of memory may cross from one row into the next, as long as it stays inside: only what ends outside is refused.
    assert names[:3] == ["CUDA_ERROR_INVALID_VALUE"] * 3
    assert names[3:] == ["CUDA_ERROR_INVALID_VALUE"] * 7 + ["CUDA_SUCCESS"]


def test_flat_copies_and_spans_of_arrays() -> None:
    code = """begin(); values = np.arange(40, dtype=np.float32); out = np.zeros(40, np.float32)
a, b = ok(d.cuArray3DCreate(shape(40))), ok(d.cuArray3DCreate(shape(40))); p = ok(d.cuMemAlloc(160)); s = ok(d.cuStreamCreate(0))
ok(d.cuMemcpyHtoA(a, 0, values.ctypes.data, 160)); ok(d.cuMemcpyAtoA(b, 40, a, 80, 80)); ok(d.cuMemcpyAtoD(p, b, 40, 80)); ok(d.cuMemcpyDtoH(out.ctypes.data, p, 80)); print((out[:20] == values[20:]).all())
ok(d.cuMemcpyHtoD(p, values.ctypes.data, 160)); ok(d.cuMemcpyDtoA(a, 16, int(p) + 40, 100)); ok(d.cuMemcpyAtoH(out.ctypes.data, a, 0, 160)); print((out[4:29] == values[10:35]).all(), out[3], out[29])
ok(d.cuMemcpyHtoAAsync(b, 0, values.ctypes.data, 160, s)); ok(d.cuMemcpyAtoHAsync(out.ctypes.data, b, 0, 160, s)); ok(d.cuStreamSynchronize(s)); print((out == values).all())
c = ok(d.cuArray3DCreate(shape(10, 4))); params = d.CUDA_MEMCPY2D(); M = d.CUmemorytype
params.srcMemoryType, params.srcHost, params.srcPitch, params.dstMemoryType, params.dstArray, params.WidthInBytes, params.Height = M.CU_MEMORYTYPE_HOST, values.ctypes.data, 40, M.CU_MEMORYTYPE_ARRAY, c, 40, 4
ok(d.cuMemcpy2D(params)); ok(d.cuMemcpy2DUnaligned(params)); ok(d.cuMemcpy2DAsync(params, s))
params = d.CUDA_MEMCPY2D(); params.srcMemoryType, params.srcArray, params.srcXInBytes, params.srcY = M.CU_MEMORYTYPE_ARRAY, c, 8, 1
params.dstMemoryType, params.dstHost, params.dstPitch, params.WidthInBytes, params.Height = M.CU_MEMORYTYPE_HOST, out.ctypes.data, 16, 12, 2; out[:] = -1
ok(d.cuMemcpy2D(params)); print(out[:8].tolist())
print(d.cuMemcpyHtoA(a, 100, values.ctypes.data, 160)[0].name, d.cuCtxSynchronize()[0].name)"""
    assert run(code).splitlines() == [
        "True",
        "True 3.0 29.0",
        "True",
        "[12.0, 13.0, 14.0, -1.0, 22.0, 23.0, 24.0, -1.0]",
        "CUDA_SUCCESS CUDA_ERROR_INVALID_VALUE",
    ]


def test_a_graph_may_copy_to_and_from_arrays() -> None:
    code = """begin(); values = np.arange(32, dtype=np.float32); out = np.zeros(32, np.float32); a = ok(d.cuArray3DCreate(shape(32))); s = ok(d.cuStreamCreate(1))
ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)); ok(d.cuMemcpyHtoAAsync(a, 0, values.ctypes.data, 128, s)); ok(d.cuMemcpyAtoHAsync(out.ctypes.data, a, 0, 128, s))
g = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(s)), 0)); print(out.sum()); values += 1; ok(d.cuGraphLaunch(g, s)); ok(d.cuStreamSynchronize(s)); print((out == values).all())"""
    assert run(code).split() == ["0.0", "True"]


def test_pitched_copies_between_devices_pass_through_the_program() -> None:
    code = """ok(d.cuInit(0)); contexts = [ok(d.cuDevicePrimaryCtxRetain(n)) for n in (0, 1)]; M = d.CUmemorytype
values = np.arange(3 * 500 * 700, dtype=np.uint16).reshape(3, 500, 700)
ok(d.cuCtxSetCurrent(contexts[0])); a = ok(d.cuArray3DCreate(shape(700, 500, 3, F.CU_AD_FORMAT_UNSIGNED_INT16)))
params = d.CUDA_MEMCPY3D(); params.srcMemoryType, params.srcHost, params.srcPitch, params.srcHeight = M.CU_MEMORYTYPE_HOST, values.ctypes.data, 1400, 500
params.dstMemoryType, params.dstArray, params.WidthInBytes, params.Height, params.Depth = M.CU_MEMORYTYPE_ARRAY, a, 1400, 500, 3; ok(d.cuMemcpy3D(params))
ok(d.cuCtxSetCurrent(contexts[1])); p = ok(d.cuMemAlloc(1500 * 490 * 2)); ok(d.cuMemsetD8(p, 0, 1500 * 490 * 2))
peer = d.CUDA_MEMCPY3D_PEER(); peer.srcMemoryType, peer.srcArray, peer.srcContext, peer.srcY, peer.srcZ = M.CU_MEMORYTYPE_ARRAY, a, contexts[0], 10, 1
peer.dstMemoryType, peer.dstDevice, peer.dstContext, peer.dstPitch, peer.dstHeight = M.CU_MEMORYTYPE_DEVICE, p, contexts[1], 1500, 490
peer.WidthInBytes, peer.Height, peer.Depth = 1400, 490, 2; ok(d.cuMemcpy3DPeer(peer))
out = np.zeros((2, 490, 750), np.uint16); ok(d.cuMemcpyDtoH(out.ctypes.data, p, out.nbytes)); print((out[:, :, :700] == values[1:, 10:]).all(), out[:, :, 700:].any())
peer.dstContext, peer.dstDevice = contexts[0], p; print(d.cuMemcpy3DPeer(peer)[0].name, d.cuCtxSynchronize()[0].name); ok(d.cuCtxSetCurrent(contexts[0])); print(d.cuCtxSynchronize()[0].name)"""

    async def story() -> str:
        async with worker() as one, worker(secret=one.secret) as two:
            done = await one.run(ARRAYS + code, second=two)
            assert done.returncode == 0, done.stderr
            return done.stdout

    assert asyncio.run(story()).splitlines() == [
        "True False",
        "CUDA_SUCCESS CUDA_SUCCESS",
        "CUDA_ERROR_INVALID_VALUE",
    ]


def test_a_batch_of_copies() -> None:
    code = """begin(); import ctypes as c; cuda = c.CDLL("libcuda.so.1"); values = np.arange(64, dtype=np.float32); s = ok(d.cuStreamCreate(0))
p, q = int(ok(d.cuMemAlloc(256))), int(ok(d.cuMemAlloc(256))); out = np.zeros(64, np.float32)
def batch(to, source, sizes, stream=s):
    n = len(sizes); attributes, first, failed = (c.c_char * 64)(), (c.c_size_t * 1)(0), c.c_size_t(7); attributes[0] = 1
    code = cuda.cuMemcpyBatchAsync((c.c_uint64 * n)(*to), (c.c_uint64 * n)(*source), (c.c_size_t * n)(*sizes), c.c_size_t(n), attributes, first, c.c_size_t(1), c.byref(failed), c.c_void_p(int(stream)))
    return code, c.c_ssize_t(failed.value).value
print(batch([p, p + 128, q], [values.ctypes.data, values.ctypes.data, p], [256, 128, 256])); print(batch([out.ctypes.data], [q], [256])); ok(d.cuStreamSynchronize(s)); print((out == np.tile(values[:32], 2)).all()); print(batch([p], [q], [256], 0))"""
    assert run(code).splitlines() == ["(0, -1)", "(0, -1)", "True", "(1, -1)"]


# --- texture references, as modules compiled before CUDA 12 have them ---


def test_texture_and_surface_references_of_a_module() -> None:
    code = """begin(); PTX = b'''.version 7.0
.target sm_70
.address_size 64
.global .texref image;
.global .texref line;
.global .surfref target;
.visible .entry read(.param .u64 out, .param .u32 first) { .reg .b64 %rd<4>; .reg .b32 %r<8>; .reg .f32 %f<12>;
  ld.param.u64 %rd1, [out]; ld.param.u32 %r3, [first]; mov.u32 %r1, %tid.x; cvt.rn.f32.u32 %f1, %r1; add.f32 %f1, %f1, 0f3F800000; mov.f32 %f2, 0f3FC00000;
  tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [image, {%f1, %f2}]; add.s32 %r2, %r1, %r3; tex.1d.v4.f32.s32 {%f7, %f8, %f9, %f10}, [line, {%r2}];
  mad.wide.u32 %rd2, %r1, 8, %rd1; st.global.v2.f32 [%rd2], {%f3, %f7}; shl.b32 %r4, %r1, 2; mov.b32 %r5, %f3; sust.b.1d.b32.trap [target, {%r4}], {%r5}; ret; }
'''
m = ok(d.cuModuleLoadData(PTX + b"\\0")); f = ok(d.cuModuleGetFunction(m, b"read")); image, line, target = ok(d.cuModuleGetTexRef(m, b"image")), ok(d.cuModuleGetTexRef(m, b"line")), ok(d.cuModuleGetSurfRef(m, b"target"))
print(d.cuModuleGetTexRef(m, b"lines")[0].name, d.cuModuleGetTexRef(m, b"target")[0].name, d.cuModuleGetGlobal(m, b"image")[0].name)
values = np.arange(32, dtype=np.float32).reshape(4, 8); a = ok(d.cuArray3DCreate(shape(8, 4))); t = ok(d.cuArray3DCreate(shape(8, flags=2))); M = d.CUmemorytype
params = d.CUDA_MEMCPY2D(); params.srcMemoryType, params.srcHost, params.srcPitch, params.dstMemoryType, params.dstArray, params.WidthInBytes, params.Height = M.CU_MEMORYTYPE_HOST, values.ctypes.data, 32, M.CU_MEMORYTYPE_ARRAY, a, 32, 4; ok(d.cuMemcpy2D(params))
p = int(ok(d.cuMemAlloc(512))); ok(d.cuMemcpyHtoD(p, values.ctypes.data, 128)); ok(d.cuMemcpyHtoD(p + 384, values.ctypes.data, 128)); out = np.zeros((8, 2), np.float32); o = ok(d.cuMemAlloc(64))
def launch(first):
    x, y = c.c_uint64(int(o)), c.c_uint32(first); both = (c.c_void_p * 2)(c.addressof(x), c.addressof(y)); ok(d.cuLaunchKernel(f, 1, 1, 1, 8, 1, 1, 0, 0, c.addressof(both), 0)); ok(d.cuMemcpyDtoH(out.ctypes.data, o, 64))
import ctypes as c
ok(d.cuTexRefSetArray(image, a, 1)); ok(d.cuTexRefSetFilterMode(image, d.CUfilter_mode.CU_TR_FILTER_MODE_LINEAR)); ok(d.cuTexRefSetAddressMode(image, 0, d.CUaddress_mode.CU_TR_ADDRESS_MODE_CLAMP)); ok(d.cuTexRefSetFlags(image, 0)); ok(d.cuSurfRefSetArray(target, t, 0))
ok(d.cuTexRefSetFormat(line, F.CU_AD_FORMAT_FLOAT, 1)); print(ok(d.cuTexRefSetAddress(line, p, 128)), ok(d.cuTexRefSetAddress(line, p + 384, 128)))
offset = ok(d.cuTexRefSetAddress(line, p + 384, 128)); launch(offset // 4 + 2); print(out[:3].tolist()); back = np.zeros(8, np.float32); ok(d.cuMemcpyAtoH(back.ctypes.data, t, 0, 32)); print((back == out[:, 0]).all())
print(int(ok(d.cuTexRefGetArray(image))) == int(a), ok(d.cuTexRefGetFilterMode(image)).name, ok(d.cuTexRefGetAddressMode(image, 0)).name, [int(x) for x in ok(d.cuTexRefGetFormat(line))], ok(d.cuTexRefGetFlags(image)))
rows = d.CUDA_ARRAY_DESCRIPTOR(); rows.Width, rows.Height, rows.Format, rows.NumChannels = 8, 4, F.CU_AD_FORMAT_FLOAT, 1; ok(d.cuTexRefSetAddress2D(image, rows, p, 32)); launch(0); print(out[:3, 0].tolist(), d.cuTexRefGetArray(image)[0].name)
print(d.cuTexRefSetAddress(line, p, 600)[0].name, d.cuTexRefSetAddress2D(image, rows, p + 400, 32)[0].name, d.cuTexRefSetArray(image, d.CUarray(5), 1)[0].name)
import ctypes; cuda = ctypes.CDLL("libcuda.so.1"); color = (ctypes.c_float * 4)(); r = ctypes.c_void_p(int(image))
cuda.cuTexRefGetBorderColor(color, r); print(list(color), end=" "); color[0], color[3] = 100, 0.25; print(cuda.cuTexRefSetBorderColor(r, color), cuda.cuTexRefSetBorderColor(r, None), cuda.cuTexRefSetBorderColor(None, color), end=" ")
color[0] = 0; cuda.cuTexRefGetBorderColor(color, r); print(list(color)); ok(d.cuTexRefSetArray(image, a, 1)); [ok(d.cuTexRefSetAddressMode(image, i, d.CUaddress_mode.CU_TR_ADDRESS_MODE_BORDER)) for i in (0, 1)]; launch(0); print(out[5:, 0].tolist())
ok(d.cuModuleUnload(m)); print(d.cuTexRefSetFlags(image, 0)[0].name, cuda.cuTexRefSetBorderColor(r, color))"""
    assert run(code).splitlines() == [
        "CUDA_ERROR_NOT_FOUND CUDA_ERROR_NOT_FOUND CUDA_ERROR_NOT_FOUND",
        "0 128",
        "[[8.5, 2.0], [9.5, 3.0], [10.5, 4.0]]",
        "True",
        "True CU_TR_FILTER_MODE_LINEAR CU_TR_ADDRESS_MODE_CLAMP [32, 1] 0",
        "[8.5, 9.5, 10.5] CUDA_ERROR_INVALID_VALUE",
        "CUDA_ERROR_INVALID_VALUE CUDA_ERROR_INVALID_VALUE CUDA_ERROR_INVALID_HANDLE",
        "[0.0, 0.0, 0.0, 0.0] 0 1 400 [100.0, 0.0, 0.0, 0.25]",
        "[13.5, 14.5, 57.5]",
        "CUDA_ERROR_INVALID_HANDLE 400",
    ]
