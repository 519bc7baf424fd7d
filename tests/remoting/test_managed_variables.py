"""Managed variables of modules and libraries on a slice: one address in the program and on the device."""

from __future__ import annotations

import asyncio

from tests.remoting.conftest import worker
from tests.remoting.test_managed import MANAGED

VARIABLES = (
    MANAGED
    + r"""
SOURCE = b'''.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .attribute(.managed) .u32 counter = 40;
.visible .global .align 4 .u32 plain = 3;
.visible .global .align 4 .attribute(.managed) .u32 table[3000] = {1, 2, 3};
.visible .entry count() { .reg .b32 %r<4>; .reg .b64 %a<3>; ld.global.u32 %r1, [counter]; add.u32 %r1, %r1, 1; st.global.u32 [counter], %r1; ld.global.u32 %r2, [table+11996]; add.u32 %r2, %r2, %r1; st.global.u32 [table+11996], %r2; ret; }
.visible .entry through(.param .u64 to) { .reg .b32 %r<4>; .reg .b64 %a<3>; ld.param.u64 %a1, [to]; ld.global.u32 %r1, [%a1]; add.u32 %r1, %r1, 1000; st.global.u32 [%a1], %r1; ret; }
\0'''
def values(p, n=1): return np.ctypeslib.as_array((ctypes.c_uint32 * n).from_address(int(p)))
def launch(f, *arguments):
    v = [ctypes.c_uint64(int(a)) for a in arguments]; a = (ctypes.c_void_p * max(len(v), 1))(*map(ctypes.addressof, v)); ok(d.cuLaunchKernel(f, 1,1,1, 1,1,1, 0, 0, ctypes.addressof(a), 0))
def library():
    l = ok(d.cuLibraryLoadData(SOURCE, [], [], 0, [], [], 0)); return l, *(ok(d.cuKernelGetFunction(ok(d.cuLibraryGetKernel(l, n)))) for n in (b"count", b"through"))
"""
)


def says(code: str, lines: list[str], kinds: tuple[str, ...] = ("unix", "tcp")) -> None:
    """Run `code` with a worker of its own over each kind of connection, and expect it to print `lines`."""

    async def story() -> None:
        for kind in kinds:
            async with worker() as one:
                done = await one.run(VARIABLES + code, kind=kind)
                assert done.stdout.splitlines() == lines, (kind, done.stdout, done.stderr)
                assert (done.returncode, done.stderr) == (0, "")

    asyncio.run(story())


def test_program_and_kernels_see_what_the_other_wrote() -> None:
    """Also where a kernel gets the address as an argument, and where kernels ran before the program asked."""
    code = """
l, count, through = library(); launch(count)
p, size = ok(d.cuLibraryGetManaged(l, b"counter")); c = values(p); t, many = ok(d.cuLibraryGetManaged(l, b"table")); t = values(t, 3000)
print(size, many, c[0], *t[:4], t[2999])
c[0] = 7; launch(count); t[1] = 50; launch(count); wait(); print(c[0], *t[:4], t[2999])
launch(through, p); ok(d.cuStreamSynchronize(0)); print(c[0])
print(ok(d.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_IS_MANAGED, p)), int(p) == int(ok(d.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_DEVICE_POINTER, p))))
"""
    says(code, ["4 12000 41 1 2 3 0 41", "9 1 50 3 0 58", "1009", "True True"])


def test_copies_and_fills_reach_both_sides() -> None:
    code = """
l, count, through = library(); p, _ = ok(d.cuLibraryGetManaged(l, b"table")); t = values(p, 3000); own = np.arange(10, dtype=np.uint32)
ok(d.cuMemcpyHtoD(p, own.ctypes.data, 40)); print(*t[:11]); t[2] = 99; ok(d.cuMemcpyDtoH(own.ctypes.data, p, 40)); print(*own)
ok(d.cuMemsetD32(int(p) + 4, 6, 2)); wait(); print(*t[:4]); other = int(ok(d.cuMemAlloc(4096))); t[0] = 11; ok(d.cuMemcpyDtoD(other, p, 40)); ok(d.cuMemcpyDtoH(own.ctypes.data, other, 16)); print(*own[:4])
"""
    says(code, ["0 1 2 3 4 5 6 7 8 9 0", "0 1 99 3 4 5 6 7 8 9", "0 6 6 3", "11 6 6 3"], kinds=("unix",))


def test_each_library_has_its_own_and_a_new_one_begins_afresh() -> None:
    code = """
a, count_a, _ = library(); b, count_b, _ = library(); pa, pb = (ok(d.cuLibraryGetManaged(l, b"counter"))[0] for l in (a, b)); ca, cb = values(pa), values(pb)
launch(count_a); launch(count_a); launch(count_b); wait(); print(ca[0], cb[0], int(pa) != int(pb))
ok(d.cuLibraryUnload(a)); launch(count_b); wait(); print(cb[0])
for _ in range(3):
    a, count_a, _ = library(); ca = values(ok(d.cuLibraryGetManaged(a, b"counter"))[0]); begin_ = int(ca[0]); launch(count_a); wait(); print(begin_, ca[0], cb[0]); ok(d.cuLibraryUnload(a))
"""
    says(code, ["42 41 True", "42", *["40 41 42"] * 3], kinds=("unix",))


def test_modules_have_them_too_and_other_variables_stay_the_device_s() -> None:
    code = """
module = ok(d.cuModuleLoadData(SOURCE)); p, n = ok(d.cuModuleGetGlobal(module, b"counter")); c = values(p); launch(ok(d.cuModuleGetFunction(module, b"count"))); wait(); print(n, c[0])
plain, n = ok(d.cuModuleGetGlobal(module, b"plain")); own = np.zeros(1, np.uint32); ok(d.cuMemcpyDtoH(own.ctypes.data, plain, 4)); print(n, own[0], ok(d.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_IS_MANAGED, plain)))
l, *_ = library(); print(name(d.cuLibraryGetManaged(l, b"plain")), name(d.cuLibraryGetManaged(l, b"nothing")), name(d.cuModuleGetGlobal(module, b"nothing"))); ok(d.cuModuleUnload(module))
"""
    says(code, ["4 41", "4 3 False", "NOT_FOUND NOT_FOUND NOT_FOUND"], kinds=("unix",))
