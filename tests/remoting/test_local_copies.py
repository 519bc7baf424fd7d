"""Copies of managed memory that the program makes itself: they ask nobody, and keep the order of all pending work."""

from __future__ import annotations

import asyncio

import pytest

from tests.remoting.conftest import AT_ADDRESSES_OF_THE_PROGRAM, worker
from tests.remoting.test_managed import MANAGED, says
from tests.remoting.test_round_trips import waits

pytestmark = AT_ADDRESSES_OF_THE_PROGRAM

BLOCK = 16384  # numbers of four bytes in a block of pages that comes and goes as one
OWN = f"""
n = {BLOCK}; p, x = managed(n); q, y = managed(n); h = np.zeros(n, np.uint32); out = np.zeros(n, np.uint32); device = int(ok(d.cuMemAlloc(4 * n))); x[:] = 1; y[:] = 2; wait()
def to(p, v, s=0): h[:] = v; ok(d.cuMemcpyHtoDAsync(p, h.ctypes.data, 4 * n, s))
def back(p, s=0): ok(d.cuMemcpyDtoHAsync(out.ctypes.data, p, 4 * n, s)); ok(d.cuStreamSynchronize(s)); assert len(set(out)) == 1; return int(out[0])
"""
ORDER = (
    OWN
    + r"""
s = ok(d.cuStreamCreate(1)); t = ok(d.cuStreamCreate(1)); flag = int(ok(d.cuMemAlloc(4))); ok(d.cuMemsetD32(flag, 0, 1)); wait()
def hold(s): ok(d.cuStreamWaitValue32(s, flag, 1, 0))
def go(): ok(d.cuMemsetD32Async(flag, 1, 1, u)); wait()
u = ok(d.cuStreamCreate(1))
"""
)


@pytest.mark.parametrize(
    ("step", "trips"),
    [
        ("to(p, i); assert x[9] == i", 0),
        ("to(p, i); ok(d.cuStreamSynchronize(0)); ok(d.cuMemcpyDtoD(q, p, 4 * n)); assert y[-1] == i", 0),
        ("x[:] = i; assert back(p) == i; wait()", 0),
        ("ok(d.cuMemcpyDtoD(p, p + 400, 4 * n - 400)); x[-100:] = i; assert x[0] <= max(i, 1)", 0),
        (
            "to(p, i); ok(d.cuEventRecord(e, 0)); ok(d.cuStreamWaitEvent(t, e, 0)); ok(d.cuMemcpyDtoDAsync(q, p, 4 * n, t)); ok(d.cuEventSynchronize(e)); assert y[3] == i",
            0,
        ),
        # The device works on it: a touch waits, and fetches.
        ("to(p, i); add(p, n); assert x[9] == i + 1", 2),
    ],
)
def test_what_is_here_is_copied_here(step: str, trips: int) -> None:
    begin = MANAGED + OWN + "\ne = ok(d.cuEventCreate(0)); t = ok(d.cuStreamCreate(1)); wait()\n"
    assert waits(step, begin=begin) == pytest.approx(trips, abs=0.2)


def test_kernels_see_what_was_copied_here() -> None:
    code = """
for i in range(5): to(p, 10 * i); ok(d.cuMemcpyDtoD(q + 400, p, 4 * n - 400)); add(p, n); add(q, n); wait(); print(x[0], x[-1], y[100], y[-1], back(p))
"""
    says(OWN + code, [f"{10 * i + 1} {10 * i + 1} {10 * i + 1} {10 * i + 1} {10 * i + 1}" for i in range(5)])


@pytest.mark.parametrize(
    ("code", "line"),
    [
        # A kernel that is still to come: the copy comes after it, and the next one after the copy.
        ("hold(s); add(p, n, s); to(p, 40, s); add(p, n, s); go(); print(x[0], x[-1])", "41 41"),
        # A read: it sees what was there before the copy, and not what later work makes the program send.
        (
            "to(p, 5); hold(s); ok(d.cuMemcpyDtoDAsync(device, p, 4 * n, s)); to(p, 40, s); add(p, n, s); go(); print(back(device), x[0])",
            "5 41",
        ),
        # The same read in another stream, and an event between them.
        (
            "to(p, 5); e = ok(d.cuEventCreate(0)); hold(t); ok(d.cuMemcpyDtoDAsync(device, p, 4 * n, t)); ok(d.cuEventRecord(e, t)); ok(d.cuStreamWaitEvent(s, e, 0)); to(p, 40, s); add(p, n, s); go(); print(back(device), x[0])",
            "5 41",
        ),
        # A copy from plain device memory, which is filled later.
        (
            "ok(d.cuMemsetD32(device, 3, n)); wait(); hold(s); ok(d.cuMemsetD32Async(device, 7, n, s)); ok(d.cuMemcpyDtoDAsync(p, device, 4 * n, s)); ok(d.cuMemcpyDtoDAsync(q, p, 4 * n, s)); go(); print(x[0], y[0])",
            "7 7",
        ),
        # An event that was done is recorded again behind a kernel.
        (
            "e = ok(d.cuEventCreate(0)); ok(d.cuEventRecord(e, s)); ok(d.cuEventSynchronize(e)); hold(t); add(p, n, t); ok(d.cuEventRecord(e, t)); print(name(d.cuEventQuery(e)), name(d.cuStreamQuery(t))); ok(d.cuStreamWaitEvent(s, e, 0)); to(p, 40, s); add(p, n, s); go(); print(x[0], name(d.cuEventQuery(e)))",
            "NOT_READY NOT_READY\n41 SUCCESS",
        ),
    ],
)
def test_a_copy_keeps_its_place_among_pending_work(code: str, line: str) -> None:
    says(ORDER + code, line.splitlines())


def test_host_functions_see_the_copies_before_them_and_copies_what_functions_wrote() -> None:
    code = """
cuda = ctypes.CDLL("libcuda.so.1"); HOST = ctypes.CFUNCTYPE(None, ctypes.c_void_p); seen = []
def call(function, s=s): f = HOST(lambda data: function()); assert cuda.cuLaunchHostFunc(ctypes.c_void_p(int(s)), f, None) == 0; wait()
def write(): x[:] = 9
to(p, 5, s); call(lambda: seen.append(int(x[0]))); to(p, 6, s); call(lambda: seen.append(int(x[-1]))); call(write); ok(d.cuMemcpyDtoDAsync(q, p, 4 * n, s)); print(seen, y[0])
add(p, n, s); call(lambda: seen.append(int(x[0]))); to(p, 7, s); add(p, n, s); call(lambda: seen.append(int(x[0]))); print(seen)
"""
    says(ORDER + code, ["[5, 6] 9", "[5, 6, 10, 8]"])


def test_graphs_copy_what_was_copied_here_before_each_launch() -> None:
    code = """
ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)); ok(d.cuMemcpyDtoDAsync(q, p, 4 * n, s)); add(q, n, s); graph = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(s)), 0))
for i in range(3): to(p, i, s); ok(d.cuGraphLaunch(graph, s)); to(p, 50, s); ok(d.cuStreamSynchronize(s)); print(y[0], x[0])
"""
    says(ORDER + code, [f"{i + 1} 50" for i in range(3)])


def test_another_thread_s_kernel_comes_first() -> None:
    code = """
context = ok(d.cuCtxGetCurrent())
def work(): ok(d.cuCtxSetCurrent(context)); hold(s); add(p, n, s)
other = threading.Thread(target=work); other.start(); other.join(); to(p, 40, s); add(p, n, s); go(); print(x[0])
"""
    says(ORDER + code, ["41"])


def test_part_of_a_block_that_the_device_has_changed_keeps_the_rest() -> None:
    """Of memory of several blocks, which a wait does not fetch by itself."""
    code = """
m = 3 * n; p, x = managed(m); x[:] = 1
add(p, m); wait(); h[:10] = 40; ok(d.cuMemcpyHtoD(p + 400, h.ctypes.data, 40)); print(x[99], x[100], x[109], x[110])
add(p, m); wait(); print(x[99], x[100]); ok(d.cuMemcpyHtoD(p + 400, h.ctypes.data, 40)); add(p, m); wait(); print(x[99], x[100], x[110])
"""
    says(OWN + code, ["2 40 40 2", "3 41", "4 41 4"])


def test_what_was_fetched_and_then_copied_over_is_sent() -> None:
    code = """
m = 3 * n; p, x = managed(m); x[:] = 1
for i in range(3): add(p, m); wait(); print(x[0], x[n], x[-1]); to(p + 4 * n, 10 * i); ok(d.cuMemcpyDtoD(p, p + 4 * n, 4 * n))
add(p, m); wait(); to(p + 8 * n, 7); add(p, m); wait(); print(x[0], x[n], x[-1])
"""
    says(OWN + code, ["2 2 2", "1 1 3", "11 11 4", "22 22 8"])


def test_bad_copies_are_errors_as_before() -> None:
    code = """
print(name(d.cuMemcpyHtoD(p, 0, 16)), name(d.cuMemcpyDtoH(0, p, 16)), name(d.cuMemcpyHtoD(p, h.ctypes.data, 0)))
h[:] = 7; ok(d.cuMemcpyHtoD(p, h.ctypes.data, 4 * n)); print(x[0], x[-1])
"""
    says(OWN + code, ["INVALID_VALUE INVALID_VALUE SUCCESS", "7 7"])


def test_copies_of_a_program_whose_worker_is_gone_are_errors() -> None:
    code = (
        MANAGED
        + OWN
        + "to(p, 3); print(x[0]); input(); d.cuMemcpyHtoD(p, h.ctypes.data, 16); print(name(d.cuStreamSynchronize(0)), name(d.cuMemcpyHtoD(p, h.ctypes.data, 16)))"
    )

    async def story() -> list[str]:
        async with worker() as one:
            program = one.start(code)
            assert program.stdout is not None
            first = await asyncio.to_thread(program.stdout.readline)
            one.handle.kill()
            await one.handle.wait()
            rest, _ = await asyncio.to_thread(program.communicate, "\n")
            return [first.strip(), *rest.splitlines()]

    assert asyncio.run(story()) == ["3", "DEVICE_UNAVAILABLE DEVICE_UNAVAILABLE"]
