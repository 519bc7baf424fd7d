"""Memory that is the program's and the device's ends where it was said to, though the device has more there, or other memory."""

from __future__ import annotations

import pytest

from tests.remoting.conftest import AT_ADDRESSES_OF_THE_PROGRAM
from tests.remoting.test_pinned import says

pytestmark = AT_ADDRESSES_OF_THE_PROGRAM

# Each makes two memories of `N` numbers, side by side where that is how they come: what the device calls each, and what the program sees.
BEGIN = """
N = 1000; s = ok(d.cuStreamCreate(1)); kept = []; around = np.zeros(2 * N, np.uint32)
def view(p): return np.ctypeslib.as_array((ctypes.c_uint32 * N).from_address(p))
def unused(): p, a = pinned(N); return p, a
def reached(): p, a = pinned(N); add(p, N); wait(); return p, a
def mapped(): p = int(ok(d.cuMemHostAlloc(4 * N, 2))); return p, view(p)
def plain(): return managed(N)
def registered(): a = np.zeros(N, np.uint32); kept.append(a); ok(d.cuMemHostRegister(a.ctypes.data, 4 * N, 2)); return int(ok(d.cuMemHostGetDevicePointer(a.ctypes.data, 0))), a
def by_its_own_address(): p, a = registered(); return a.ctypes.data, a
def refused(what, *arguments):
    said = name(what(*arguments)); said = name(d.cuCtxSynchronize()) if said == "SUCCESS" else said; assert said == "INVALID_VALUE", (what, arguments, said)
"""
KINDS = ("unused", "reached", "mapped", "plain", "registered", "by_its_own_address")
# Of memory at `x` with `left` bytes: what fills it to its end, and what goes further.
MEMSETS = {
    "D8": ("x, 3, left", "x, 3, left + 1"),
    "D16": ("x, 3, left // 2", "x, 3, left // 2 + 1"),
    "D32": ("x, 3, left // 4", "x, 3, (1 << 62) + 1"),
    "D2D8": ("x, left // 4, 3, left // 4, 4", "x, left // 4 + 1, 3, left // 4, 4"),
    "D2D16": ("x, left // 4, 3, left // 8, 4", "x, left // 4, 3, left // 8 + 1, 4"),
    "D2D32": ("x, left // 2, 3, left // 8, 2", "x, left // 2, 3, 4, 1 << 40"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memset", MEMSETS)
def test_a_memset_to_the_end_is_made_and_one_past_it_is_refused(memset: str, kind: str) -> None:
    """Up to the next 2 MiB it filled what the device has behind it, other memory of the program's, too."""
    inside, beyond = MEMSETS[memset]
    code = f"""
(p, a), (q, b) = {kind}(), {kind}(); a[:] = b[:] = 7
for after in (0, N // 2):
    x = p + 4 * after; left = 4 * (N - after)
    refused(d.cuMemset{memset}, {beyond}); refused(d.cuMemset{memset}Async, {beyond}, s); wait(); assert set(a.tolist()) == set(b.tolist()) == {{7}}
    ok(d.cuMemset{memset}({inside})); ok(d.cuMemset{memset}Async({inside}, s)); wait(); assert not (a[after:] == 7).any() and (a[:after] == 7).all() and (b == 7).all(); a[:] = 7
print("all")
"""
    says(BEGIN + code, ["all"])


@pytest.mark.parametrize("kind", ["mapped", "plain", "registered"])
def test_a_copy_past_the_end_is_refused(kind: str) -> None:
    code = f"""
(p, a), (q, b) = {kind}(), {kind}(); a[:] = b[:] = 7; other = int(ok(d.cuMemAlloc(8 * N))); h = around.ctypes.data
for x, left in ((p, 4 * N), (p + 2 * N, 2 * N)):
    for n in (left + 1, left + 96):
        refused(d.cuMemcpyHtoD, x, h, n); refused(d.cuMemcpyHtoDAsync, x, h, n, s); refused(d.cuMemcpyDtoH, h, x, n); refused(d.cuMemcpyDtoHAsync, h, x, n, s); refused(d.cuMemcpy, x, other, n)
        refused(d.cuMemcpyDtoD, x, other, n); refused(d.cuMemcpyDtoDAsync, other, x, n, s)
wait(); assert set(a.tolist()) == set(b.tolist()) == {{7}} and not around.any(); print("all")
"""
    says(BEGIN + code, ["all"])


@pytest.mark.parametrize("kind", ["unused", "reached", "mapped", "plain"])
def test_what_is_said_of_an_address_ends_with_the_memory(kind: str) -> None:
    code = f"""
p, a = {kind}(); P = d.CUpointer_attribute; asked = [P.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, P.CU_POINTER_ATTRIBUTE_RANGE_SIZE]
print([int(ok(d.cuPointerGetAttribute(one, p + 4 * N - 1))) for one in asked] == [p, 4 * N], name(d.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 4 * N)))
"""
    says(BEGIN + code, ["True INVALID_VALUE"])
