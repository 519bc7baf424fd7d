"""Programs on virtual memory that must say the same in process and on a slice, and what they say."""

from __future__ import annotations

MEMORY = """
U = 2 << 20; F = d.CUmemAccess_flags; RW = F.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
RO = F.CU_MEM_ACCESS_FLAGS_PROT_READ; NONE = F.CU_MEM_ACCESS_FLAGS_PROT_NONE
def name(result): return result[0].name.removeprefix("CUDA_").removeprefix("ERROR_")
def place(device=0):
    at = d.CUmemLocation(); at.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE; at.id = device; return at
def prop(device=0):
    p = d.CUmemAllocationProp(); p.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED; p.location = place(device); return p
def access(flags=RW, device=0):
    a = d.CUmemAccessDesc(); a.location = place(device); a.flags = flags; return [a]
def create(size=U, device=0): return ok(d.cuMemCreate(size, prop(device), 0))
def reserve(size=U, alignment=0, at=0): return int(ok(d.cuMemAddressReserve(size, alignment, at, 0)))
def mapped(address, size=U, handle=None, flags=RW):
    handle = handle or create(size); ok(d.cuMemMap(address, size, 0, handle, 0)); ok(d.cuMemSetAccess(address, size, access(flags), 1)); return handle
def read(address, n): out = bytearray(n); ok(d.cuMemcpyDtoH((ctypes.c_char * n).from_buffer(out), address, n)); return bytes(out)
def free(): return ok(d.cuMemGetInfo())[0]
def store(kernel, to, value):
    a, b = ctypes.c_uint64(to), ctypes.c_uint32(value); p = (ctypes.c_void_p * 2)(ctypes.addressof(a), ctypes.addressof(b))
    return d.cuLaunchKernel(kernel, 1,1,1, 1,1,1, 0, 0, ctypes.addressof(p), 0)[0].name
COPY_U32 = b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry copy(.param .u64 to, .param .u64 from, .param .u32 n) { .reg .b64 %rd<6>; .reg .b32 %r<6>; .reg .pred %p; ld.param.u64 %rd1, [to]; ld.param.u64 %rd2, [from]; ld.param.u32 %r5, [n];
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r1, %r1, %r2, %r3; setp.ge.u32 %p, %r1, %r5; @%p ret; mul.wide.u32 %rd3, %r1, 4; add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3; ld.global.u32 %r4, [%rd2]; st.global.u32 [%rd1], %r4; ret; }
'''
def copy(kernel, to, source, n):
    values = ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_uint32(n); p = (ctypes.c_void_p * 3)(*map(ctypes.addressof, values))
    ok(d.cuLaunchKernel(kernel, (n + 127) // 128,1,1, 128,1,1, 0, 0, ctypes.addressof(p), 0))
begin()
"""

ALIASES = """
h = create(); a, b = reserve(), reserve(2 * U); mapped(a, U, h); mapped(b + U, U, h)
ok(d.cuMemsetD8(a, 7, U)); print(set(read(b + U, U)))
kernel = load(STORE_U32, b"store"); print(store(kernel, b + U + 8, 0x01020304)); print(read(a + 4, 12).hex())
print(int(ok(d.cuMemGetAccess(place(), a))), name(d.cuMemGetAccess(place(), b)))
again = ok(d.cuMemRetainAllocationHandle(a)); print(int(again) == int(h)); ok(d.cuMemRelease(again))
found = ok(d.cuMemGetAllocationPropertiesFromHandle(h)); print(found.type.name, found.location.id)
print([int(x) for x in ok(d.cuMemGetAddressRange(b + U + 5))] == [b + U, U])
"""
ALIASES_SAY = ["{7}", "CUDA_SUCCESS", "070707070403020107070707", "3 INVALID_VALUE", "True"]
ALIASES_SAY += ["CU_MEM_ALLOCATION_TYPE_PINNED 0", "True"]

BOOKS = """
before = free(); h = create(3 * U); print((before - free()) // U); a = reserve(8 * U); mapped(a, 3 * U, h)
ok(d.cuMemsetD8(a, 5, 3 * U)); ok(d.cuMemRelease(h)); print((before - free()) // U, set(read(a, 9)))
again = ok(d.cuMemRetainAllocationHandle(a + U)); ok(d.cuMemUnmap(a, 3 * U)); print((before - free()) // U)
mapped(a + U, 3 * U, again); print(set(read(a + U, 9)))
ok(d.cuMemUnmap(a + U, 3 * U)); ok(d.cuMemRelease(again)); print((before - free()) // U, name(d.cuMemRelease(again)))
mapped(a, U); print(set(read(a, U)))
"""
BOOKS_SAY = ["3", "3 {5}", "3", "{5}", "0 INVALID_VALUE", "{0}"]

RULES = """
g = d.CUmemAllocationGranularity_flags; print(*(ok(d.cuMemGetAllocationGranularity(prop(), o)) // U for o in (g.CU_MEM_ALLOC_GRANULARITY_MINIMUM, g.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)))
print("create", *(name(d.cuMemCreate(*x)) for x in ((0, prop(), 0), (U + 4096, prop(), 0), (U, prop(), 1), (U, d.CUmemAllocationProp(), 0), (U, prop(9), 0))))
shared = prop(); shared.requestedHandleTypes = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC
print("share", name(d.cuMemCreate(U, shared, 0)), name(d.cuMemExportToShareableHandle(create(), d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC, 0)))
print("reserve", *(name(d.cuMemAddressReserve(*x)) for x in ((0, 0, 0, 0), (100, 0, 0, 0), (U, 3, 0, 0), (U, 0, 0, 1), (1 << 60, 0, 0, 0))))
print(reserve(U, 64 * U) % (64 * U))
h = create(2 * U); a = reserve(4 * U)
print("map", *(name(d.cuMemMap(*x)) for x in ((a, U, U, h, 0), (a, 4 * U, 0, h, 0), (a + 4 * U, U, 0, h, 0), (a + 4096, U, 0, h, 0), (a, 4096, 0, h, 0), (a, U, 0, 12345, 0), (a, U, 0, h, 1), (1 << 46, U, 0, h, 0))))
ok(d.cuMemMap(a + U, 2 * U, 0, h, 0)); print("again", *(name(d.cuMemMap(x, U, 0, h, 0)) for x in (a + U, a + 2 * U)), name(d.cuMemMap(a, 2 * U, 0, h, 0)))
print("access", *(name(d.cuMemSetAccess(x, n, access(), 1)) for x, n in ((a, 3 * U), (a + U, U), (a + U, 3 * U), (a + U, 2 * U))), name(d.cuMemSetAccess(a + U, 2 * U, access(RW, 5), 1)))
print("unmap", *(name(d.cuMemUnmap(x, n)) for x, n in ((a, U), (a + U, U), (a, 3 * U), (a + U, 3 * U))))
print("free", *(name(d.cuMemAddressFree(x, n)) for x, n in ((a, 4 * U), (a, U), (a + U, U), (4096, U))))
ok(d.cuMemUnmap(a + U, 2 * U)); ok(d.cuMemAddressFree(a, 4 * U)); print("after", name(d.cuMemMap(a, U, 0, h, 0)), name(d.cuMemAddressFree(a, 4 * U)))
a = reserve(); mapped(a, U, None, RO); print(set(read(a, 4))); fill = d.cuMemsetD8(a, 1, 1); wait = d.cuCtxSynchronize()
print("read only", *{name(fill), name(wait)} - {"SUCCESS"})
"""
_BAD = "INVALID_VALUE"
RULES_SAY = ["1 1", f"create {_BAD} {_BAD} {_BAD} {_BAD} INVALID_DEVICE", "share NOT_SUPPORTED NOT_SUPPORTED"]
RULES_SAY += [f"reserve {_BAD} {_BAD} {_BAD} {_BAD} OUT_OF_MEMORY", "0", "map " + " ".join([_BAD] * 8)]
RULES_SAY += [f"again {_BAD} {_BAD} {_BAD}", f"access {_BAD} {_BAD} {_BAD} SUCCESS INVALID_DEVICE"]
RULES_SAY += [f"unmap {_BAD} {_BAD} {_BAD} {_BAD}", f"free {_BAD} {_BAD} {_BAD} {_BAD}"]
RULES_SAY += [f"after {_BAD} {_BAD}", "{0}", f"read only {_BAD}"]

# As allocators with segments that grow use it: one range, and pieces that come one after the other.
GROWS = """
import numpy as np
a = reserve(16 * U); n = 5 * U // 4; handles = [mapped(a + i * U) for i in range(5)]; kernel = load(COPY_U32, b"copy")
data = np.arange(n, dtype=np.uint32); out = np.zeros_like(data); b = int(ok(d.cuMemAlloc(5 * U)))
ok(d.cuMemcpyHtoD(a, data.ctypes.data, 5 * U)); copy(kernel, b, a, n); ok(d.cuMemcpyDtoH(out.ctypes.data, b, 5 * U)); print((out == data).all())
ok(d.cuMemsetD32(a, 9, n)); copy(kernel, a, b, n); ok(d.cuMemcpyDtoH(out.ctypes.data, a, 5 * U)); print((out == data).all())
ok(d.cuMemUnmap(a + U, 2 * U)); print(name(d.cuMemcpyDtoH(out.ctypes.data, a, 5 * U)), read(a + 3 * U, 4) == data[3 * U // 4:][:1].tobytes())
"""
GROWS_SAY = ["True", "True", "INVALID_VALUE True"]

HINTS = """
a = reserve(4 * U); ok(d.cuMemAddressFree(a, 4 * U)); b = reserve(4 * U, 0, a); print(a == b)
c = reserve(4 * U, 0, b + U); print(c != b + U, c % U)
"""
HINTS_SAY = ["True", "True 0"]

FREED = """
opened, ended = threading.Event(), []; raw = ctypes.CDLL("libcuda.so.1"); gate = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: ended.append(opened.wait(10)))
stream = ok(d.cuStreamCreate(1)); assert raw.cuLaunchHostFunc(ctypes.c_void_p(int(stream)), gate, None) == 0
a = reserve(); print(name(d.cuMemAddressFree(a, U)), ended); opened.set(); ok(d.cuCtxSynchronize()); print(ended)
"""
FREED_SAY = ["SUCCESS []", "[True]"]

PROGRAMS = {
    "two mappings of one memory are one": (ALIASES, ALIASES_SAY),
    "memory counts until nothing refers to it": (BOOKS, BOOKS_SAY),
    "what does not fit is refused": (RULES, RULES_SAY),
    "pieces side by side are one memory": (GROWS, GROWS_SAY),
    "a wanted address is given where it is free": (HINTS, HINTS_SAY),
    "addresses that nothing was mapped at are given back beside other work": (FREED, FREED_SAY),
}

# What a kernel that stores at `a` is told.
FAULTS = {
    "a = reserve()": "is reserved, but no memory is mapped there",
    "a = reserve(); ok(d.cuMemMap(a, U, 0, create(), 0))": "is mapped, but access to it was not granted (cuMemSetAccess)",
    "a = reserve(); mapped(a, U, None, RO)": "is mapped for reading only (cuMemSetAccess)",
    "a = reserve(); mapped(a); ok(d.cuMemUnmap(a, U))": "is reserved, but no memory is mapped there",
}
FAULT = """
print(store(load(STORE_U32, b"store"), a + 64, 1)); print(d.cuCtxSynchronize()[0].name)
"""
