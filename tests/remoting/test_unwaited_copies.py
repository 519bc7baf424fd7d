"""Copies from the program's memory: who waits for them alone does not wait for the network, and nothing comes before them."""

from __future__ import annotations

import asyncio

import pytest

from tests.remoting import test_round_trips as round_trips
from tests.remoting.conftest import worker
from tests.remoting.test_finished_work import HELD
from tests.remoting.test_round_trips import LATE, SPARES, STEP, waits

BEGIN = (
    STEP
    + SPARES
    + LATE
    + HELD
    + r"""
f = ok(d.cuEventCreate(2)); other = np.zeros(4, np.uint32); there = other.ctypes.data
def put(n, to=p, stream=s, bytes=4): own[0] = n; ok(d.cuMemcpyHtoDAsync(to, h, bytes, stream)); own[0] = 0
def get(of=p, stream=t, bytes=4): ok(d.cuMemcpyDtoHAsync(there, of, bytes, stream)); ok(d.cuStreamSynchronize(stream)); return int(other[0])
def elsewhere(f): T = threading.Thread(target=lambda: (ok(d.cuCtxSetCurrent(context)), f())); T.start(); T.join()
def poll(e):
    while (said := query(e)) == "NOT_READY": pass
    return said == "SUCCESS"
"""
)


@pytest.mark.parametrize(
    ("step", "trips"),
    [
        ("put(i); ok(d.cuStreamSynchronize(s))", 0),
        ("put(i); assert int(d.cuStreamQuery(s)[0]) == 0", 0),
        ("put(i); ok(d.cuEventRecord(e, s)); ok(d.cuEventSynchronize(e))", 0),
        ("put(i); put(i, q); ok(d.cuEventRecord(e, s)); assert poll(e)", 0),
        # Into a block that has many, and in pieces.
        ("put(i, q + 4092); ok(d.cuMemcpyHtoDAsync(large, much.ctypes.data, much.nbytes, s)); ok(d.cuStreamSynchronize(s))", 0),
        # The event is behind the copy alone, and the stream is not; who launches is another thread, since a
        # launch of this one's may have failed.
        ("put(i); ok(d.cuEventRecord(e, s)); elsewhere(lambda: add(1, q, s)); assert poll(e); ok(d.cuStreamSynchronize(s))", 1),
        # As TensorFlow does: the stream of copies waits for the one that computes, whose work was waited for.
        (
            "ok(d.cuEventRecord(f, s)); ok(d.cuStreamWaitEvent(t, f, 0)); put(i, p, t); ok(d.cuEventRecord(e, t)); assert poll(e); add(1, p, s); ok(d.cuEventRecord(f, s)); ok(d.cuStreamWaitEvent(u, f, 0)); assert get(p, u) == i + 1; ok(d.cuEventRecord(e, u)); assert poll(e)",
            1,
        ),
        # What may be something else is asked for.
        ("add(1, p, s); put(i, q); ok(d.cuStreamSynchronize(s))", 1),
        ("put(i, q, b); ok(d.cuStreamSynchronize(b))", 1),
    ],
)  # fmt: skip
def test_who_waits_for_a_copy_alone_asks_nobody(step: str, trips: int) -> None:
    begin = (
        BEGIN
        + "b = ok(d.cuStreamCreate(0)); much = np.ones(3 << 20, np.uint8); large = int(ok(d.cuMemAlloc(much.nbytes))); wait()\n"
    )
    assert waits(step, begin=begin) == pytest.approx(trips, abs=0.2)


@pytest.mark.parametrize(
    "step",
    [
        # Another stream reads, computes with it, or writes there.
        "put(i); ok(d.cuStreamSynchronize(s)); assert get() == i",
        "put(i); ok(d.cuEventRecord(e, s)); assert poll(e); add(1, p, t); assert get() == i + 1",
        "put(i); ok(d.cuStreamSynchronize(s)); ok(d.cuMemsetD32Async(p, 7 * i, 1, t)); assert get() == 7 * i",
        "put(i); ok(d.cuStreamSynchronize(s)); assert read() == i",
        # The program writes where the copy came from, and copies again.
        "put(i); ok(d.cuStreamSynchronize(s)); own[0] = 99; assert get() == i; put(2 * i); assert poll(e) and get(p, s) == 2 * i",
        # A large one, whose last bytes another stream reads at once.
        "much[-4:] = i; ok(d.cuMemcpyHtoDAsync(large, much.ctypes.data, much.nbytes, s)); ok(d.cuStreamSynchronize(s)); assert get(large + much.nbytes - 4) == i * 0x1010101",
        # The next copy comes after what another stream still does with the block.
        "late(p, i, 40_000_000, t); ok(d.cuEventRecord(f, t)); ok(d.cuStreamWaitEvent(s, f, 0)); put(3 * i); ok(d.cuStreamSynchronize(s)); assert get() == 3 * i",
        # A thread of its own reads.
        "seen = []; put(i); ok(d.cuStreamSynchronize(s)); T = threading.Thread(target=lambda: (ok(d.cuCtxSetCurrent(context)), seen.append(get()))); T.start(); T.join(); assert seen == [i]",
    ],
)  # fmt: skip
@pytest.mark.parametrize("copies", ["AT_ONCE", "LATE"])
def test_what_comes_after_a_copy_that_is_taken_for_done_finds_its_bytes(
    step: str, copies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUKERNEL_SIMGPU_COPIES", copies)  # for the worker
    begin = BEGIN + "much = np.ones(3 << 20, np.uint8); large = int(ok(d.cuMemAlloc(much.nbytes))); wait()\n"
    waits(step, begin=begin, few=10, many=20)


def says(code: str, lines: list[str]) -> None:
    round_trips.says(
        "said = []\ndef tell(*words): said.extend(words)\n"
        + code.replace("print(", "tell(")
        + "\nprint(*said)",
        lines,
        begin=BEGIN,
    )


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("hold(s); put(1); ok(d.cuEventRecord(e, s)); print(query(e), name(d.cuStreamQuery(s))); go(); print(query(e), get())", "NOT_READY NOT_READY SUCCESS 1"),
        # Done once, and recorded again.
        ("put(1); ok(d.cuEventRecord(e, s)); print(query(e)); hold(s); put(2); ok(d.cuEventRecord(e, s)); print(query(e), get()); go(); print(query(e), get())", "SUCCESS NOT_READY 1 SUCCESS 2"),
        # A stream that waits for one that is held, known or by an event that another program may record.
        ("hold(s); ok(d.cuEventRecord(e, s)); ok(d.cuStreamWaitEvent(t, e, 0)); put(1, q, t); ok(d.cuEventRecord(f, t)); print(query(f), name(d.cuStreamQuery(t))); go(); print(query(f), get(q))", "NOT_READY NOT_READY SUCCESS 1"),
        ("g = ok(d.cuEventCreate(6)); hold(s); ok(d.cuEventRecord(g, s)); ok(d.cuStreamWaitEvent(t, g, 0)); put(1, q, t); ok(d.cuEventRecord(f, t)); print(query(f)); go(); print(query(f), get(q))", "NOT_READY SUCCESS 1"),
        # A host function that has not come back.
        ("F = ctypes.CFUNCTYPE(None, ctypes.c_void_p); on = threading.Event(); fn = F(lambda data: on.wait(60)); ctypes.CDLL('libcuda.so.1').cuLaunchHostFunc(ctypes.c_void_p(int(s)), fn, None); put(1); ok(d.cuEventRecord(e, s)); print(query(e), name(d.cuStreamQuery(s))); on.set(); ok(d.cuEventSynchronize(e)); print(query(e), get())", "NOT_READY NOT_READY SUCCESS 1"),
        # Between the copy and the event another thread held the stream.
        ("put(1); T = threading.Thread(target=lambda: (ok(d.cuCtxSetCurrent(context)), hold(s))); T.start(); T.join(); ok(d.cuEventRecord(e, s)); print(query(e)); go(); print(query(e))", "NOT_READY SUCCESS"),
        # A stream that is gone is none.
        ("g = ok(d.cuStreamCreate(1)); put(1, p, g); ok(d.cuEventRecord(e, g)); ok(d.cuStreamDestroy(g)); print(name(d.cuStreamSynchronize(g))); ok(d.cuEventSynchronize(e)); print(query(e), get())", "INVALID_HANDLE SUCCESS 1"),
        # A copy that fails is told of by the wait for it.
        ("print(name(d.cuMemcpyHtoDAsync(1 << 40, h, 4, s)), name(d.cuStreamSynchronize(s)), name(d.cuStreamSynchronize(s)))", "SUCCESS INVALID_VALUE SUCCESS"),
        ("r = int(ok(d.cuMemAlloc(4096))); put(1, r + 4092); print(name(d.cuStreamSynchronize(s))); d.cuMemcpyHtoDAsync(r + 4092, h, 8, s); ok(d.cuEventRecord(e, s)); print(query(e), query(e))", "SUCCESS INVALID_VALUE SUCCESS"),
        ("r = int(ok(d.cuMemAlloc(4096))); ok(d.cuMemFree(r)); d.cuMemcpyHtoDAsync(r, h, 4, s); print(name(d.cuStreamSynchronize(s)))", "INVALID_VALUE"),
        ("r = int(ok(d.cuMemAlloc(4096))); ok(d.cuMemFreeAsync(r, s)); ok(d.cuStreamSynchronize(s)); d.cuMemcpyHtoDAsync(r, h, 4, s); print(name(d.cuStreamSynchronize(s)))", "INVALID_VALUE"),
        # Many events that are polled take no more places of a stream than they did.
        ("add(1, p, s); ok(d.cuEventRecord(e, s)); poll(e); es = [ok(d.cuEventCreate(2)) for _ in range(900)]; hold(s)\nfor one in es: ok(d.cuEventRecord(one, s)); query(one)\nprint(*{query(one) for one in es}); go(); wait(); print(*{query(one) for one in es})", "NOT_READY SUCCESS"),
        # A library's kernel and its function are one.
        ("M = d.CUfunction_attribute(8); k = ok(d.cuLibraryGetKernel(ok(d.cuLibraryLoadData(SOURCE + b'\\0', [], [], 0, [], [], 0)), b'add')); g = ok(d.cuKernelGetFunction(k))\nfor one, v in ((g, 60000), (d.CUfunction(int(k)), 1024), (g, 60000)): ok(d.cuFuncSetAttribute(one, M, v)[0:1]); print(ok(d.cuFuncGetAttribute(M, g)))", "60000 1024 60000"),
        ("d.cuMemcpyHtoDAsync(p, h, 4, 12345); print(name(d.cuStreamSynchronize(s)))", "INVALID_HANDLE"),
    ],
)  # fmt: skip
def test_what_may_not_be_done_or_may_have_failed_is_asked_for(code: str, line: str) -> None:
    says(code, [line])


def test_a_program_whose_worker_is_gone_hears_of_it_from_a_copy_that_it_waits_for() -> None:
    code = (
        BEGIN
        + "put(1); print(name(d.cuStreamSynchronize(s)), flush=True); input(); d.cuMemcpyHtoDAsync(p, h, 4, s); print(name(d.cuStreamSynchronize(s)), query(e))"
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

    assert asyncio.run(story()) == ["SUCCESS", "DEVICE_UNAVAILABLE DEVICE_UNAVAILABLE"]
