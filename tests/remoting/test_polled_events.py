"""Events of which a program asks again and again: the worker reports them, and none is done before its work is."""

from __future__ import annotations

import asyncio

import pytest

from tests.remoting import test_round_trips as round_trips
from tests.remoting.conftest import AT_FULL_SPEED, worker
from tests.remoting.round_trips import each_step
from tests.remoting.test_unwaited_copies import BEGIN


def answers(call: str, step: str, few: int = 10, many: int = 30, one_way: float = 0) -> float:
    """Return how often `call` is answered, or sent and not answered, in a `step`."""
    return each_step(
        lambda counter: max(counter.answers.of(call), counter.requests.of(call)),
        BEGIN,
        step,
        few=few,
        many=many,
        one_way=one_way,
    )


# A stream's first event is asked for until its kernel is done: hundreds of times, or here twice.
ASKED_BEFORE = "[(late(q, 1, 20_000, x), ok(d.cuEventRecord(e, x)), query(e), query(e), wait()) for x in (s, t)] if not i else None; "


@AT_FULL_SPEED
@pytest.mark.parametrize(
    "step",
    [
        "late(p, i, 20_000, s); ok(d.cuEventRecord(e, s)); assert poll(e)",
        # As TensorFlow's thread, which polls several streams in turn.
        "late(p, i, 20_000, s); ok(d.cuEventRecord(e, s)); ok(d.cuStreamWaitEvent(t, e, 0)); late(q, i, 20_000, t); ok(d.cuEventRecord(f, t)); assert poll(e) and poll(f)",
    ],
)
def test_the_worker_is_not_asked_again_and_again(step: str) -> None:
    """But what was queued may have failed, which the last question tells."""
    assert answers("cuEventQuery", ASKED_BEFORE + step) < 1.5


def test_a_thread_that_polls_what_another_one_submits_asks_nobody() -> None:
    step = "late(p, i, 20_000, s); ok(d.cuEventRecord(e, s)); go_on.set(); done.wait(); done.clear()"
    begin = """
go_on, done = threading.Event(), threading.Event()
def work():
    ok(d.cuCtxSetCurrent(context))
    while True: go_on.wait(); go_on.clear(); assert poll(e); done.set()
threading.Thread(target=work, daemon=True).start()
"""
    # In the loop's first turn, since the steps come behind a program's beginning.
    start = f"{ASKED_BEFORE}exec({begin!r}, globals()) if not i else None; "
    # Where the processors are busy, reports may come too late for some polls of one run.
    assert any(answers("cuEventQuery", start + step) < 0.5 for _ in range(3))
    # As far away as a report is waited for at first.
    assert any(answers("cuEventQuery", start + step, few=4, many=8, one_way=0.03) < 0.5 for _ in range(3))


@pytest.mark.parametrize(
    "step",
    [
        "late(p, i, 400_000, s); ok(d.cuEventRecord(e, s)); assert poll(e) and get() == i",
        # Recorded again while the report of the first time may be on its way.
        "late(p, i, 400_000, s); ok(d.cuEventRecord(e, s)); query(e); late(p, i + 50, 400_000, s); ok(d.cuEventRecord(e, s)); assert poll(e) and get() == i + 50",
        "late(p, i, 20_000, s); ok(d.cuEventRecord(e, s)); query(e); late(p, i + 50, 4_000_000, u); ok(d.cuEventRecord(e, u)); assert poll(e) and get() == i + 50",
        # Two events of one stream, and a stream that waits for another.
        "late(p, i, 400_000, s); ok(d.cuEventRecord(e, s)); late(p, i + 50, 400_000, s); ok(d.cuEventRecord(f, s)); assert poll(f) and query(e) == 'SUCCESS' and get() == i + 50",
        "late(p, i, 400_000, s); ok(d.cuEventRecord(e, s)); ok(d.cuStreamWaitEvent(t, e, 0)); add(1, p, t); ok(d.cuEventRecord(f, t)); assert poll(f) and get(p, u) == i + 1",
        # Copies are behind what another stream computes.
        "late(p, i, 400_000, s); ok(d.cuEventRecord(e, s)); ok(d.cuStreamWaitEvent(t, e, 0)); put(i + 50, p, t); ok(d.cuEventRecord(f, t)); assert poll(f) and get(p, u) == i + 50",
    ],
)  # fmt: skip
def test_what_an_event_comes_after_is_done_when_it_is(step: str) -> None:
    """Each event is polled before, so that it is reported."""
    learn = "late(q, 1, 2_000_000, s); ok(d.cuEventRecord(e, s)); poll(e); late(q, 1, 2_000_000, t); ok(d.cuEventRecord(e, t)); poll(e); late(q, 1, 2_000_000, u); ok(d.cuEventRecord(e, u)); poll(e); "
    round_trips.waits(learn + step, begin=BEGIN, few=5, many=10)


def says(code: str, lines: list[str]) -> None:
    learn = "late(q, 1, 2_000_000, s); ok(d.cuEventRecord(e, s)); poll(e)\n"
    round_trips.says(learn + code, lines, begin=BEGIN)


def test_an_event_that_is_held_is_not_done_and_is_when_it_is_let_go() -> None:
    code = """
hold(s); ok(d.cuEventRecord(e, s)); end = time.monotonic() + 0.3; said = {query(e)}
while time.monotonic() < end: said.add(query(e))
print(said); go(); print(poll(e))
"""
    says(code, ["{'NOT_READY'}", "True"])


def test_an_event_is_done_though_a_host_function_waits_for_it() -> None:
    """The thread that hears of it runs the function."""
    code = """
F = ctypes.CFUNCTYPE(None, ctypes.c_void_p); over = threading.Event(); fn = F(lambda data: over.wait(60)); late(q, 1, 2_000_000, t)
assert ctypes.CDLL('libcuda.so.1').cuLaunchHostFunc(ctypes.c_void_p(int(t)), fn, None) == 0
late(p, 7, 2_000_000, s); ok(d.cuEventRecord(e, s)); print(poll(e)); over.set(); ok(d.cuStreamSynchronize(t)); print(get(p, u))
"""
    says(code, ["True", "7"])


def test_an_event_that_nobody_asks_for_is_reported_no_more() -> None:
    """Reports cost a message each."""
    step = "ok(d.cuMemsetD32Async(p, i, 1, s)); ok(d.cuEventRecord(e, s))"
    learn = "(late(q, 1, 2_000_000, s), ok(d.cuEventRecord(e, s)), poll(e)) if not i else None; "
    assert answers("report", learn + step, few=100, many=300) < 0.05


def test_an_error_of_the_kernels_is_told_by_an_event_that_is_polled() -> None:
    code = "late(q, 1, 2_000_000, s); ok(d.cuEventRecord(e, s)); poll(e); add(1, 8, s); ok(d.cuEventRecord(e, s)); poll(e); print(query(e), name(d.cuStreamSynchronize(s)))"

    async def story() -> list[str]:
        async with worker() as one:
            done = await one.run(BEGIN.replace("sys.argv[1:]", "[]") + code)
            return done.stdout.splitlines()

    assert asyncio.run(story())[-1:] == ["ILLEGAL_ADDRESS ILLEGAL_ADDRESS"]


def test_events_that_are_destroyed_or_belong_to_a_stream_that_is_gone() -> None:
    code = """
late(p, 7, 2_000_000, s); ok(d.cuEventRecord(e, s)); ok(d.cuStreamDestroy(s)); print(poll(e), get()); ok(d.cuEventDestroy(e)); print(query(e))
"""
    says(code, ["True 7", "INVALID_HANDLE"])
