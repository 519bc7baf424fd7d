"""Work that a program knows to be finished is answered at once: streams and events, and nothing that may not be."""

from __future__ import annotations

import asyncio

import pytest

from tests.remoting.conftest import worker
from tests.remoting.test_round_trips import SPARES, STEP, says, waits

BEGIN = (
    STEP
    + SPARES
    + "e = ok(d.cuEventCreate(0)); f = ok(d.cuEventCreate(0)); t = ok(d.cuStreamCreate(1)); wait()\n"
)
HELD = """
e = ok(d.cuEventCreate(0)); t = ok(d.cuStreamCreate(1)); u = ok(d.cuStreamCreate(1)); flag = int(ok(d.cuMemAlloc(4))); ok(d.cuMemsetD32(flag, 0, 1)); wait()
def hold(s): ok(d.cuStreamWaitValue32(s, flag, 1, 0))
def go(): ok(d.cuMemsetD32Async(flag, 1, 1, u)); wait()
def query(e): return name(d.cuEventQuery(e))
"""


@pytest.mark.parametrize(
    ("step", "trips"),
    [
        # Behind a read that waited for the stream, or before it.
        (
            "add(1); assert read() == i + 1; ok(d.cuEventRecord(e, 0)); ok(d.cuEventSynchronize(e)); assert query(e)",
            1,
        ),
        (
            "add(1); ok(d.cuEventRecord(e, 0)); assert read() == i + 1; ok(d.cuEventSynchronize(e)); assert query(e)",
            1,
        ),
        ("add(1, p, s); ok(d.cuEventRecord(e, s)); ok(d.cuStreamSynchronize(s)); assert query(e)", 1),
        # Behind a wait for the device, in any stream.
        (
            "add(1); wait(); ok(d.cuEventRecord(e, s)); ok(d.cuEventRecord(f, t)); ok(d.cuStreamSynchronize(t)); assert query(e) and query(f); wait()",
            1,
        ),
        # Two streams that wait for each other.
        (
            "add(1, p, s); ok(d.cuEventRecord(e, s)); ok(d.cuStreamWaitEvent(t, e, 0)); add(1, q, t); ok(d.cuEventRecord(f, t)); ok(d.cuStreamWaitEvent(s, f, 0)); wait(); assert query(e) and query(f) and int(d.cuStreamQuery(s)[0]) == 0",
            1,
        ),
        # An event of its own in each step.
        (
            "g = ok(d.cuEventCreate(0)); ok(d.cuEventRecord(g, s)); assert query(g); ok(d.cuEventDestroy(g))",
            0,
        ),
        # What is not known is asked for.
        ("add(1); ok(d.cuEventRecord(e, 0)); ok(d.cuEventSynchronize(e))", 1),
        (
            "add(1); ok(d.cuEventRecord(e, 0)); ok(d.cuStreamWaitEvent(s, e, 0)); ok(d.cuStreamSynchronize(s))",
            1,
        ),
    ],
)
def test_what_is_known_to_be_finished_asks_nobody(step: str, trips: int) -> None:
    begin = BEGIN + "def query(e): return name(d.cuEventQuery(e)) == 'SUCCESS'\n"
    assert waits(step, begin=begin) == pytest.approx(trips, abs=0.2)


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("hold(s); ok(d.cuEventRecord(e, s)); print(query(e)); go(); print(query(e))", "NOT_READY SUCCESS"),
        # Done once, and recorded again.
        (
            "ok(d.cuEventRecord(e, s)); print(query(e)); hold(s); ok(d.cuEventRecord(e, s)); print(query(e)); go(); print(query(e))",
            "SUCCESS NOT_READY SUCCESS",
        ),
        # A read, and a wait, of another stream.
        (
            "hold(s); ok(d.cuEventRecord(e, s)); ok(d.cuMemcpyDtoHAsync(h, p, 4, t)); print(query(e)); ok(d.cuStreamSynchronize(t)); print(query(e), name(d.cuStreamQuery(s)), name(d.cuStreamQuery(t))); go(); print(query(e))",
            "NOT_READY NOT_READY NOT_READY SUCCESS SUCCESS",
        ),
        (
            "hold(s); ok(d.cuEventRecord(e, s)); add(1, q, t); ok(d.cuStreamSynchronize(t)); print(query(e), name(d.cuStreamQuery(s))); go(); print(query(e))",
            "NOT_READY NOT_READY SUCCESS",
        ),
        # Recorded after the wait that is over.
        (
            "wait(); hold(s); ok(d.cuEventRecord(e, t)); ok(d.cuStreamWaitEvent(t, e, 0)); print(query(e)); ok(d.cuEventRecord(e, s)); print(query(e), name(d.cuStreamQuery(s))); go()",
            "SUCCESS NOT_READY NOT_READY",
        ),
        # A stream that waits for an event of a stream that is held is held, too.
        (
            "hold(s); ok(d.cuEventRecord(e, s)); ok(d.cuStreamWaitEvent(t, e, 0)); g = ok(d.cuEventCreate(0)); ok(d.cuEventRecord(g, t)); print(query(g), name(d.cuStreamQuery(t))); go(); print(query(g))",
            "NOT_READY NOT_READY SUCCESS",
        ),
        # Another thread's work.
        (
            "c = ok(d.cuCtxGetCurrent()); T = threading.Thread(target=lambda: (ok(d.cuCtxSetCurrent(c)), hold(s), ok(d.cuEventRecord(e, s)))); T.start(); T.join(); print(query(e), name(d.cuStreamQuery(s))); go(); print(query(e))",
            "NOT_READY NOT_READY SUCCESS",
        ),
        # A host function that has not come back.
        (
            "F = ctypes.CFUNCTYPE(None, ctypes.c_void_p); on = threading.Event(); f = F(lambda data: on.wait(60)); ctypes.CDLL('libcuda.so.1').cuLaunchHostFunc(ctypes.c_void_p(int(s)), f, None); ok(d.cuEventRecord(e, s)); print(query(e), name(d.cuStreamQuery(s))); on.set(); ok(d.cuEventSynchronize(e)); print(query(e))",
            "NOT_READY NOT_READY SUCCESS",
        ),
        # The legacy stream comes after streams that block, and they come after it.
        (
            "b = ok(d.cuStreamCreate(0)); wait(); read(); hold(b); ok(d.cuEventRecord(e, 0)); print(query(e), name(d.cuStreamQuery(b))); go(); print(query(e))",
            "NOT_READY NOT_READY SUCCESS",
        ),
        (
            "b = ok(d.cuStreamCreate(0)); wait(); ok(d.cuMemcpyDtoHAsync(h, p, 4, b)); hold(0); ok(d.cuEventRecord(e, b)); print(query(e)); go(); print(query(e))",
            "NOT_READY SUCCESS",
        ),
        # A graph's work.
        (
            "ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)); hold(s); g = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(s)), 0)); wait(); ok(d.cuGraphLaunch(g, s)); ok(d.cuEventRecord(e, s)); print(query(e), name(d.cuStreamQuery(s))); go(); print(query(e))",
            "NOT_READY NOT_READY SUCCESS",
        ),
    ],
)
def test_what_may_not_be_finished_is_asked_for(code: str, line: str) -> None:
    says(
        HELD
        + "said = []\ndef tell(*words): said.extend(words)\n"
        + code.replace("print(", "tell(")
        + "\nprint(*said)",
        [line],
    )


def test_events_that_are_no_more_are_errors() -> None:
    code = "wait(); ok(d.cuEventRecord(e, 0)); ok(d.cuEventDestroy(e)); print(query(e), name(d.cuEventSynchronize(e)), query(12345), name(d.cuStreamWaitEvent(s, 12345, 0))); print(name(d.cuCtxSynchronize()), name(d.cuCtxSynchronize()))"
    says(HELD + code, ["INVALID_HANDLE INVALID_HANDLE INVALID_HANDLE SUCCESS", "INVALID_HANDLE SUCCESS"])


def test_an_error_of_a_queued_call_is_told_by_the_next_wait() -> None:
    """Though the device is known to have nothing left to do."""
    code = """
wait(); ok(d.cuEventRecord(e, 12345)); print(name(d.cuStreamSynchronize(0)), name(d.cuStreamSynchronize(0)))
wait(); ok(d.cuEventRecord(12345, 0)); print(query(e), query(e)); wait(); ok(d.cuEventDestroy(12345)); print(name(d.cuCtxSynchronize()), name(d.cuCtxSynchronize()))
"""
    says(HELD + code, ["INVALID_HANDLE SUCCESS", "INVALID_HANDLE SUCCESS", "INVALID_HANDLE SUCCESS"])


def test_an_error_of_the_kernels_is_told_by_an_event() -> None:
    code = "add(1, 8); ok(d.cuEventRecord(e, 0)); print(name(d.cuEventSynchronize(e)), query(e), name(d.cuStreamSynchronize(0)))"

    async def story() -> list[str]:
        async with worker() as one:
            done = await one.run(STEP.replace("sys.argv[1:]", "[]") + SPARES + HELD + code)
            return done.stdout.splitlines()

    assert asyncio.run(story())[-1:] == ["ILLEGAL_ADDRESS ILLEGAL_ADDRESS ILLEGAL_ADDRESS"]


def test_a_program_whose_worker_is_gone_hears_of_it_from_what_it_knows() -> None:
    code = (
        STEP
        + SPARES
        + HELD
        + "wait(); ok(d.cuEventRecord(e, 0)); print(query(e)); input(); print(query(e), name(d.cuStreamSynchronize(0)), name(d.cuCtxSynchronize()))"
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

    assert asyncio.run(story()) == ["SUCCESS", " ".join(["DEVICE_UNAVAILABLE"] * 3)]
