"""Reads that follow a wait for a stream come with it, and only where nothing can have changed the memory since."""

from __future__ import annotations

import asyncio

import pytest

from tests.remoting import test_round_trips as round_trips
from tests.remoting.conftest import worker
from tests.remoting.round_trips import conversation
from tests.remoting.test_early_reads import EARLY
from tests.remoting.test_round_trips import waits

WAITS = (
    EARLY
    + r"""
places = [int(ok(d.cuMemAlloc(4096))) for _ in range(12)]; much = np.zeros(1024, np.uint32); ok(d.cuCtxSynchronize())
def sync(s=s): ok(d.cuStreamSynchronize(s))
def fill(to, n, stream=s, words=1024): ok(d.cuMemsetD32Async(to, n, words, stream))
def all_of(of, stream=t): ok(d.cuMemcpyDtoHAsync(much.ctypes.data, of, 4096, stream)); return set(much.tolist())
def learn_wait(of=p, n=4):
    for i in range(n): fill(of, 1000 + i); sync(); assert copy(of) == 1000 + i
    fill(of, 5); sync(); assert copy(of) == 5
def elsewhere(f): T = threading.Thread(target=lambda: (ok(d.cuCtxSetCurrent(context)), f())); T.start(); T.join()
"""
)


@pytest.mark.parametrize("threads", ["one", "two"])
@pytest.mark.parametrize(
    "step",
    [
        # As TensorFlow reads a value: the wait is for the stream that computes, the read in another one.
        "add(1, p, s); sync(); assert copy() == i + 1",
        "add(1, p, s); sync(); ok(d.cuEventRecord(e, s)); ok(d.cuStreamWaitEvent(t, e, 0)); assert copy() == i + 1",
        "add(1, p, s); sync(); assert copy(stream=s) == i + 1",
        # An allocator's addresses in turn, and more than 1 KiB.
        "r = places[i % 12]; fill(r, 7 * i); sync(); assert copy(r) == 7 * i",
        "r = places[i % 12]; fill(r, 7 * i); sync(); assert all_of(r) == {7 * i}",
        # What only asks, in between.
        "add(1, p, s); ok(d.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(kernel, 64, 0, 0)); sync(); assert copy() == i + 1",
    ],
)
def test_the_read_after_a_wait_for_a_stream_comes_with_it(step: str, threads: str) -> None:
    begin = WAITS + ("elsewhere(lambda: ok(d.cuMemGetInfo()))\n" if threads == "two" else "")
    assert waits(step, begin=begin, few=36, many=84) == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(
    "work", ["d.cuMemsetD32(q, 5, 1)", "d.cuMemcpyDtoD(p, q, 0)", "d.cuMemsetD32Async(q, 5, 1, 0)"]
)
def test_work_of_the_default_stream_that_is_long_over_keeps_no_read_from_coming(work: str) -> None:
    """Whether it is over is asked for with a wait."""
    begin = f"{WAITS}ok({work}); time.sleep(0.5)\n"  # the device may be busy with others' work
    assert waits("add(1, p, s); sync(); assert copy() == i + 1", begin=begin) == pytest.approx(1, abs=0.2)


def test_a_question_for_occupancy_keeps_no_read_from_coming_with_a_function() -> None:
    begin = EARLY + "ok(d.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(kernel, 64, 0, 0))\n"
    step = "add(1, p, s); hear(); assert copy() == i + 1"
    assert 0.5 < waits(step, begin=begin, few=20, many=40) < 1.3


def test_an_event_that_programs_may_share_is_waited_for() -> None:
    """It is not known here, so a wait for the device asks the worker although the stream has nothing else to do."""
    step = "ok(d.cuEventRecord(g, s)); ok(d.cuCtxSynchronize())"
    assert waits(step, begin=EARLY + "g = ok(d.cuEventCreate(4 | 2))\n") == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("threads", ["one", "two"])
@pytest.mark.parametrize(
    "step",
    [
        # Between the wait and the read the program changes what it reads.
        "add(1, p, s); sync(); fill(p, 3 * i, u); sync(u); assert copy() == 3 * i",
        "add(1, p, s); sync(); fill(p, 3 * i, u); ok(d.cuEventRecord(e, u)); ok(d.cuEventSynchronize(e)); assert copy() == 3 * i",
        "add(1, p, s); sync(); ok(d.cuMemsetD32(p, 3 * i, 1)); sync(0); assert copy() == 3 * i",
        "add(1, p, s); sync(); add(1, p, s); assert copy(stream=s) == i + 2",
        "fill(q, i); sync(); ok(d.cuMemcpyDtoDAsync(p, q, 4, s)); assert copy(stream=s) == i",
        "add(1, p, s); sync(); own[0] = 9 * i; ok(d.cuMemcpyHtoD(p, h, 4)); own[0] = 0; assert copy() == 9 * i",
        "add(1, p, s); sync(); late(p, i + 100, 200_000, u); ok(d.cuEventRecord(e, u)); ok(d.cuStreamWaitEvent(t, e, 0)); assert copy() == i + 100",
        "add(1, p, s); sync(); elsewhere(lambda: (fill(p, 3 * i, u), sync(u))); assert copy() == 3 * i",
        # Another stream has work that is not finished when this one's is.
        "late(p, i + 50, 40_000_000, u); add(1, q, s); sync(); sync(u); assert copy() == i + 50",
        "late(p, i + 50, 40_000_000, u); add(1, q, s); sync(); assert copy(stream=u) == i + 50",
        "late(p, i + 50, 40_000_000, u); add(1, q, s); sync(); ok(d.cuEventRecord(e, u)); ok(d.cuEventSynchronize(e)); assert copy() == i + 50",
        "late(p, i + 50, 40_000_000, 0); add(1, q, s); sync(); assert read() == i + 50",
        "ok(d.cuEventRecord(e, u)); late(p, i + 50, 40_000_000, u); ok(d.cuStreamWaitEvent(s, e, 0)); add(1, q, s); sync(); sync(u); assert copy() == i + 50",
        # The stream in which the program reads has.
        "late(p, i + 50, 40_000_000, t); sync(); assert copy() == i + 50",
        # The same value twice, another size, and a neighbour.
        "add(1, p, s); sync(); assert copy() == i + 1 and copy() == i + 1 and copy(n=8) == i + 1",
        "fill(p, i, words=1); sync(); assert copy(n=8) == i and own[1] == 5 and copy(p + 4) == 5",
        # Memory that is freed, and the next block there.
        "r = int(ok(d.cuMemAlloc(4096))); learn_wait(r); fill(r, 4); sync(); ok(d.cuMemFree(r)); sync(); again = int(ok(d.cuMemAlloc(4096))); fill(again, 6, u, 4); sync(u); assert copy(again) == 6; ok(d.cuMemFree(again))",
        "r = int(ok(d.cuMemAlloc(2 << 20))); learn_wait(r); fill(r, 4); sync(); ok(d.cuMemFree(r)); add(1, p, s); sync(); assert copy() == i + 1",
    ],
)
def test_what_is_read_after_the_wait_is_what_the_device_has(step: str, threads: str) -> None:
    """Each step first has the same reads come with waits, so that they are expected."""
    begin = WAITS + ("elsewhere(lambda: ok(d.cuMemGetInfo()))\n" if threads == "two" else "")
    waits(f"learn_wait(); fill(p, i, words=1); sync(); copy(); {step}", begin=begin, few=3, many=6)


@pytest.mark.parametrize("threads", ["one", "two"])
@pytest.mark.parametrize(
    ("code", "lines"),
    [
        # The wait tells of an error, whichever of the two is answered first.
        (
            "for _ in range(30): learn_wait(); d.cuMemsetD32Async(p + (1 << 40), 1, 1, s); assert name(d.cuStreamSynchronize(s)) == 'INVALID_VALUE' and copy() == 5\nprint(copy())",
            ["5"],
        ),
        (
            "learn_wait(); add(1, 8, s); print(name(d.cuStreamSynchronize(s)), name(d.cuMemcpyDtoHAsync(h, p, 4, t)))",
            [
                "gpukernel: Invalid __global__ read of size 4 bytes at add (line 4 of its PTX) by thread (0,0,0) in block (0,0,0): address 0x8 is out of bounds",
                "ILLEGAL_ADDRESS ILLEGAL_ADDRESS",
            ],
        ),
        # A wait comes after its stream's functions.
        (
            "order = []; slow_one = HOST(lambda data: (time.sleep(0.05), order.append(1)))\nfor _ in range(3): learn_wait(); call(slow_one); sync(); print(order, copy()); order.clear()",
            ["[1] 5"] * 3,
        ),
        (
            "order = []; slow_one = HOST(lambda data: (time.sleep(0.05), order.append(1)))\nfor _ in range(3): learn_wait(); call(slow_one, t); fill(q, 5); sync(); copy(); print(order); order.clear()",
            ["[1]"] * 3,
        ),
        # Memory that pages move.
        (
            "learn_wait(); m = int(ok(d.cuMemAllocManaged(4096, 1))); w = (ctypes.c_uint32 * 1).from_address(m); w[0] = 3\nfor _ in range(3): add(4, m, s); sync(); print(copy(m), w[0], copy()); w[0] = 3",
            ["7 7 5"] * 3,
        ),
        ("learn_wait(); print(name(d.cuStreamSynchronize(12345)), copy())", ["INVALID_HANDLE 5"]),
    ],
)
def test_what_belongs_to_the_wait_comes_with_it(code: str, lines: list[str], threads: str) -> None:
    begin = WAITS + ("elsewhere(lambda: ok(d.cuMemGetInfo()))\n" if threads == "two" else "")
    round_trips.says(code, lines, begin=begin, tcp=True)


def test_many_threads_may_wait_for_what_another_one_begins() -> None:
    """A read that comes with a wait takes a thread of the worker, which has no more than 64 besides for a program."""
    code = """
elsewhere(lambda: ok(d.cuMemGetInfo())); learn_wait(); ok(d.cuCtxSynchronize())
streams = [ok(d.cuStreamCreate(1)) for _ in range(64)]; ok(d.cuMemsetD32(q, 0, 1)); ok(d.cuCtxSynchronize())
ok(d.cuStreamWaitValue32(s, q, 1, 1)); ok(d.cuEventRecord(e, s))
for one in streams: ok(d.cuStreamWaitEvent(one, e, 0))
waiting = [threading.Thread(target=lambda of=one: (ok(d.cuCtxSetCurrent(context)), sync(of)), daemon=True) for one in streams]
for one in waiting: one.start()
time.sleep(0.5); ok(d.cuStreamWriteValue32(t, q, 1, 1))
for one in waiting: one.join(20)
print(sum(one.is_alive() for one in waiting), copy()); sys.stdout.flush(); os._exit(0)
"""
    round_trips.says(code, ["0 5"], begin=WAITS, tcp=True)


@pytest.mark.parametrize(
    "step",
    [
        # Nobody reads behind the first wait, though somebody does behind the second.
        "fill(p, i); sync(); fill(p, i); sync(); assert copy(q) == 5",
        # Nobody knows which is the next.
        "r = places[chance.randrange(12)]; fill(r, i); sync(); assert copy(r) == i",
    ],
)
def test_reads_that_nobody_uses_are_few(step: str) -> None:
    async def story() -> int:
        async with worker() as one:
            code = f"{WAITS}\nimport random; chance = random.Random(1)\nfor i in range(N):\n    {step}\n"
            return (await conversation(one, code, 200)).answers.of("copy_to_host")

    assert asyncio.run(story()) < 350


def test_a_wait_for_the_default_stream_says_nothing_of_others_that_it_waits_for() -> None:
    """No driver promises that it is one for the work of streams that block."""
    begin = WAITS + "b = ok(d.cuStreamCreate(0))\n"
    assert waits("add(1, p, b); sync(0); sync(0)", begin=begin) == pytest.approx(2, abs=0.2)
