"""Memory of the program that kernels write: whoever hears that the work is done finds there what they wrote."""

from __future__ import annotations

import pytest

from tests.remoting.conftest import AT_ADDRESSES_OF_THE_PROGRAM
from tests.remoting.reports import REPORTS
from tests.remoting.test_round_trips import says

pytestmark = AT_ADDRESSES_OF_THE_PROGRAM

# A kernel that takes its time and then adds one to what it finds at another place.
HOST_MEMORY = (
    REPORTS
    + r'''
MOVE = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry move(.param .u64 to, .param .u64 from, .param .u32 n) { .reg .b64 %a<3>; .reg .b32 %r<3>; .reg .pred %p; ld.param.u64 %a1, [to]; ld.param.u64 %a2, [from]; ld.param.u32 %r1, [n];
again: sub.u32 %r1, %r1, 1; setp.ne.u32 %p, %r1, 0; @%p bra again; ld.global.u32 %r2, [%a2]; add.u32 %r2, %r2, 1; st.global.u32 [%a1], %r2; ret; }
"""
moving = load(MOVE, b"move")
def move(to, of, stream=s):
    v = ctypes.c_uint64(to), ctypes.c_uint64(of), ctypes.c_uint32(100_000); a = (ctypes.c_void_p * 3)(*map(ctypes.addressof, v)); ok(d.cuLaunchKernel(moving, 1,1,1, 1,1,1, 0, stream, ctypes.addressof(a), 0))
def view(address): return np.ctypeslib.as_array((ctypes.c_uint32 * 1024).from_address(address))
'''
)
KINDS = {
    "managed": "home = m = int(ok(d.cuMemAllocManaged(4096, 1)))",
    "mapped": "home = m = int(ok(d.cuMemHostAlloc(4096, 2)))",
    "pinned": "home = m = int(ok(d.cuMemAllocHost(4096)))",
    "registered": "own_pages = np.zeros(2048, np.uint32); home = own_pages.ctypes.data; ok(d.cuMemHostRegister(home, 4096, 2)); m = int(ok(d.cuMemHostGetDevicePointer(home, 0)))",
}
"""How each comes to be at `home` in the program, and at `m` for kernels."""
HEARS = {
    "a function": "assert call(lambda: heard.append(int(x[5]))) == 0; ok(d.cuStreamSynchronize(s))",
    "a callback": "one = BACK(lambda stream, status, data: heard.append(int(x[5]))); kept.append(one); assert raw.cuStreamAddCallback(ctypes.c_void_p(int(s)), one, None, 0) == 0; ok(d.cuStreamSynchronize(s))",
    "an event that is polled": "ok(d.cuEventRecord(e, s)); assert poll(e); heard.append(int(x[5]))",
    "an event of a stream that waits for another": "ok(d.cuEventRecord(e, s)); ok(d.cuStreamWaitEvent(t, e, 0)); ok(d.cuEventRecord(f, t)); assert poll(f); heard.append(int(x[5]))",
    "a stream that is polled": "[None for _ in iter(lambda: name(d.cuStreamQuery(s)), 'SUCCESS')]; heard.append(int(x[5]))",
    "an event that is waited for": "ok(d.cuEventRecord(e, s)); ok(d.cuEventSynchronize(e)); heard.append(int(x[5]))",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hear", HEARS)
def test_who_hears_that_a_kernel_is_done_reads_what_it_wrote(
    hear: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes a number that a copy brings, late and waited for by nobody; what the program wrote beside it stays."""
    monkeypatch.setenv("GPUKERNEL_SIMGPU_COPIES", "LATE")  # for the worker
    code = f"""
BACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p); learn(s, t); {KINDS[kind]}; x = view(home); x[:] = 7; heard = []
for i in range(5): put(10 * i); x[6] = i; move(m + 20, p); {HEARS[hear]}; assert x[4] == 7 and x[6] == i and x[1023] == 7
print(heard)
"""
    says(code, ["[1, 11, 21, 31, 41]"], begin=HOST_MEMORY)


@pytest.mark.parametrize("copies", ["AT_ONCE", "LATE"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_into_it_is_there_when_it_is_taken_for_done(
    kind: str, copies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUKERNEL_SIMGPU_COPIES", copies)
    code = f"""
learn(s, t); {KINDS[kind]}; x = view(home); x[:] = 7; heard = []; move(m + 20, m + 20); wait()  # before pinned memory is reached, copies do not take it for the device's
for i in range(5):
    put(10 * i, m + 20); ok(d.cuEventRecord(e, s)); assert poll(e); heard.append(int(x[5])); put(10 * i + 1, m + 20); ok(d.cuStreamSynchronize(s)); heard.append(int(x[5])); put(10 * i + 2, m + 20); move(r, m + 20); assert get(r, s) == 10 * i + 3
print(heard, set(x[6:].tolist()))
"""
    says(code, ["[0, 1, 10, 11, 20, 21, 30, 31, 40, 41] {7}"], begin=HOST_MEMORY)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_to_be_reported_when_the_first_such_memory_is_made_comes(kind: str) -> None:
    """Functions run in the thread that gives them as long as there is any, and in another one before and afterwards."""
    end = {
        "managed": "ok(d.cuMemFree(m))",
        "registered": "ok(d.cuMemHostUnregister(home))",
    }.get(kind, "ok(d.cuMemFreeHost(home))")
    code = f"""
who = []
for i in range(3):
    learn(s, t); late(p, i + 1, 4_000_000, s); note(2 * i); call(lambda: who.append(threading.get_native_id())); late(q, i + 50, 4_000_000, t); ok(d.cuEventRecord(e, t)); query(e); put(i + 1000, r, w)
    {KINDS[kind]}; x = view(home); x[5] = i; move(m + 20, m + 20, t); ok(d.cuEventRecord(f, t)); assert poll(f) and poll(e) and int(x[5]) == i + 1
    call(lambda: who.append(threading.get_native_id())); note(2 * i + 1); ok(d.cuStreamSynchronize(s)); assert get(p, s) == i + 1 and get(q, t) == i + 50 and get(r, w) == i + 1000
    {end}
print(ran, *((one == threading.get_native_id()) for one in who))
"""
    says(code, ["[0, 1, 2, 3, 4, 5] False True False True False True"], begin=HOST_MEMORY)
