"""Reads after a host function come with the news that the function is due, and only where nothing can have changed the memory since."""

from __future__ import annotations

import pytest

from tests.remoting import test_round_trips as round_trips
from tests.remoting.test_round_trips import LATE, SPARES, STEP, waits
from tests.remoting.test_streams import PRINTS

EARLY = (
    STEP
    + SPARES
    + LATE
    + r"""
HOST = ctypes.CFUNCTYPE(None, ctypes.c_void_p); raw = ctypes.CDLL("libcuda.so.1"); news = threading.Event(); told = HOST(lambda data: news.set())
t = ok(d.cuStreamCreate(1)); u = ok(d.cuStreamCreate(1)); e = ok(d.cuEventCreate(2)); blocks = [int(ok(d.cuMemAlloc(512))) for _ in range(3)]; ok(d.cuCtxSynchronize())
def call(function, stream=s): assert raw.cuLaunchHostFunc(ctypes.c_void_p(int(stream)), function, None) == 0
def hear(stream=s): news.clear(); call(told, stream); news.wait(); time.sleep(0.001)  # the function has ended then, too
large = [int(ok(d.cuMemAlloc(65536))) for _ in range(3)]; much = np.zeros(8192, np.uint32); ok(d.cuCtxSynchronize())
def all_of(of, bytes, stream=t): ok(d.cuMemcpyDtoHAsync(much.ctypes.data, of, bytes, stream)); return much[:bytes // 4].tolist()
def copy(of=p, n=4, stream=t): ok(d.cuMemcpyDtoHAsync(h, of, n, stream)); return int(own[0])
def learn(of=p, n=6):
    for i in range(n): ok(d.cuMemsetD32Async(of, 1000 + i, 1, s)); hear(); assert copy(of) == 1000 + i
    ok(d.cuMemsetD32Async(of, 5, 1, s)); hear()
"""
)


@pytest.mark.parametrize(
    "step",
    [
        "add(1, p, s); hear(); assert copy() == i + 1",
        "add(1, p, s); hear(); assert read() == i + 1",  # by the default stream, which has nothing to do
        # As much as comes early at most, and some such places in turn.
        "r = large[0]; ok(d.cuMemsetD32Async(r, 7 * i, 4096, s)); add(1, r, s); hear(); assert all_of(r, 16384) == [7 * i + 1] + [7 * i] * 4095",
        "r = large[i % 3]; ok(d.cuMemsetD32Async(r, 7 * i, 1024, s)); add(1, r, s); hear(); assert all_of(r, 4096) == [7 * i + 1] + [7 * i] * 1023",
        # An allocator's addresses in turn.
        "r = blocks[i % 3]; ok(d.cuMemsetD32Async(r, 7 * i, 4, s)); add(1, r, s); hear(); assert copy(r) == 7 * i + 1",
        # As JAX does: what tells is another stream, which waits for the step's event.
        "add(1, p, s); ok(d.cuEventRecord(e, s)); ok(d.cuStreamWaitEvent(u, e, 0)); hear(u); ok(d.cuStreamWaitEvent(t, e, 0)); assert copy() == i + 1",
    ],
)
def test_the_read_after_a_host_function_comes_with_its_news(step: str) -> None:
    # Less than one where the processors are busy: the shorter run hears some news too late for its reads.
    assert 0.5 < waits(step, begin=EARLY, few=20, many=40) < 1.3


@pytest.mark.parametrize(
    ("step", "trips"),
    [
        # Those that are in use stay when another one comes, which was not expected.
        ("r = seven[i % 7]", 1),
        ("r = seven[i % 7] if i % 14 else others[i // 14]", 15 / 14),
    ],
)
def test_seven_addresses_in_turn_are_expected_though_others_come_between(step: str, trips: float) -> None:
    begin = (
        EARLY
        + "seven, others = ([int(ok(d.cuMemAlloc(512))) for _ in range(7)] for _ in range(2)); ok(d.cuCtxSynchronize())\n"
    )
    step += "; ok(d.cuMemsetD32Async(r, 7 * i, 4, s)); hear(); assert copy(r) == 7 * i"
    assert waits(step, begin=begin, few=28, many=84) == pytest.approx(trips, abs=0.2)


@pytest.mark.parametrize(
    "step",
    [
        # Between the news and the read the program changes what it reads.
        "add(1, p, s); hear(); ok(d.cuMemsetD32Async(p, 3 * i, 1, u)); ok(d.cuStreamSynchronize(u)); assert copy() == 3 * i",
        "add(1, p, s); hear(); ok(d.cuMemsetD32(p, 3 * i, 1)); ok(d.cuStreamSynchronize(0)); assert copy() == 3 * i",
        "add(1, p, s); hear(); add(1, p, s); ok(d.cuStreamSynchronize(s)); assert copy() == i + 2",
        "ok(d.cuMemsetD32Async(q, i, 1, s)); hear(); ok(d.cuMemcpyDtoDAsync(p, q, 4, s)); assert copy(stream=s) == i",
        "add(1, p, s); hear(); own[0] = 9 * i; ok(d.cuMemcpyHtoD(p, h, 4)); own[0] = 0; assert copy() == 9 * i",
        "add(1, p, s); hear(); late(p, i + 100, 200_000, u); ok(d.cuEventRecord(e, u)); ok(d.cuStreamWaitEvent(t, e, 0)); assert copy() == i + 100",
        # And does not: the same value twice, and another size.
        "add(1, p, s); hear(); assert copy() == i + 1 and copy() == i + 1 and copy(n=8) == i + 1",
        # Before the news another stream began what is not finished then.
        "late(p, i + 50, 40_000_000, u); add(1, q, s); hear(); ok(d.cuStreamSynchronize(u)); assert copy() == i + 50",
        "late(p, i + 50, 40_000_000, u); add(1, q, s); hear(); assert copy(stream=u) == i + 50",
        "late(p, i + 50, 40_000_000, 0); add(1, q, s); hear(); assert read() == i + 50",
        "late(p, i + 50, 40_000_000, 0); add(1, q, s); hear(); ok(d.cuStreamSynchronize(0)); assert copy() == i + 50",
        "late(p, i + 50, 40_000_000, u); ok(d.cuMemGetInfo()); ok(d.cuStreamDestroy(u)); u = ok(d.cuStreamCreate(1)); add(1, q, s); hear(); wait(); assert copy() == i + 50",
        # The event that is waited for is an older one than the work.
        "ok(d.cuEventRecord(e, u)); late(p, i + 50, 40_000_000, u); ok(d.cuStreamWaitEvent(s, e, 0)); add(1, q, s); hear(); ok(d.cuStreamSynchronize(u)); assert copy() == i + 50",
    ],
)
def test_what_is_read_after_the_news_is_what_the_device_has(step: str) -> None:
    """Each step first has the same reads come early, so that they are expected."""
    waits(
        f"learn(); ok(d.cuMemsetD32Async(p, i, 1, s)); ok(d.cuStreamSynchronize(s)); {step}",
        begin=EARLY,
        few=3,
        many=6,
    )


COPIES = (
    EARLY
    + r"""
places = [int(ok(d.cuMemAlloc(512))) for _ in range(20)]; ok(d.cuCtxSynchronize())
def put(n, to, stream=s): own[0] = n; ok(d.cuMemcpyHtoDAsync(to, h, 4, stream)); own[0] = 0
def learn_copies():
    for i in range(4): add(1, q, s); put(90 + i, places[-i]); hear(); assert copy(places[-i]) == 90 + i
"""
)


@pytest.mark.parametrize(
    "step",
    [
        # As TensorFlow does with a condition, at another address each time.
        "r = places[i % 20]; add(1, q, s); put(7 * i, r); hear(); assert copy(r) == 7 * i",
        # And a value at a known address besides.
        "r = places[i % 20]; add(1, p, s); put(7 * i, r); hear(); assert copy(r) == 7 * i and copy() == i + 1",
    ],
)
def test_what_a_program_copies_and_reads_back_comes_with_the_news_at_any_address(step: str) -> None:
    assert 0.5 < waits(step, begin=COPIES, few=20, many=60) < 1.3


@pytest.mark.parametrize(
    ("step", "trips"),
    [
        # They take no place from eight addresses in turn.
        ("r = eight[i % 8]; ok(d.cuMemsetD32Async(r, 7 * i, 4, s)); put(1, q); hear(); assert copy(r) == 7 * i", 1),
        # Nor are the reads of another stream held to be in vain.
        ("[(put(1, places[j], u), hear(u)) for j in range(20)]; add(1, p, s); hear(); assert copy() == i + 1", 21),
    ],
)  # fmt: skip
def test_copies_that_are_read_back_no_more_cost_no_round_trips(step: str, trips: int) -> None:
    begin = COPIES + "eight = [int(ok(d.cuMemAlloc(512))) for _ in range(8)]; wait(); learn_copies()\n"
    # Where the processors are busy, the shorter run hears some news too late, as above.
    assert any(trips - 0.6 < waits(step, begin=begin, few=48, many=80) < trips + 0.4 for _ in range(2))


@pytest.mark.parametrize(
    "step",
    [
        # Before the news, and after it, the program changes what it has copied.
        "put(9 * i, r); add(1, r, s); hear(); assert copy(r) == 9 * i + 1",
        "put(9 * i, r); put(4 * i, r); hear(); assert copy(r) == 4 * i",
        "put(9 * i, r); hear(); ok(d.cuMemsetD32Async(r, 3 * i, 1, u)); ok(d.cuStreamSynchronize(u)); assert copy(r) == 3 * i",
        "put(9 * i, r); hear(); put(4 * i, r, t); assert copy(r) == 4 * i",
        "put(9 * i, r); hear(); put(4 * i, r, u); ok(d.cuStreamSynchronize(u)); assert copy(r) == 4 * i",
        # Another stream does, which the copy's waits for, or which waits for the copy's.
        "put(9 * i, r); ok(d.cuEventRecord(e, s)); ok(d.cuStreamWaitEvent(u, e, 0)); late(r, i + 50, 40_000_000, u); hear(); ok(d.cuStreamSynchronize(u)); assert copy(r) == i + 50",
        "put(9 * i, r); ok(d.cuEventRecord(e, s)); ok(d.cuStreamWaitEvent(u, e, 0)); late(r, i + 50, 400_000, u); ok(d.cuEventRecord(e, u)); ok(d.cuStreamWaitEvent(s, e, 0)); hear(); assert copy(r) == i + 50",
        "late(r, i + 50, 40_000_000, u); ok(d.cuEventRecord(e, u)); ok(d.cuStreamWaitEvent(s, e, 0)); put(9 * i, r); hear(); assert copy(r) == 9 * i",
        # The bytes are those of the copy, and another size, and a neighbour.
        "put(9 * i, r); own[0] = 1; hear(); assert copy(r) == 9 * i and copy(r, 8) == 9 * i and copy(r + 4) == 0",
        # It is freed, and the next block there is another's.
        "m = int(ok(d.cuMemAlloc(512))); put(9 * i, m); hear(); ok(d.cuMemFree(m)); k = int(ok(d.cuMemAlloc(512))); ok(d.cuMemsetD32Async(k, 6, 1, u)); ok(d.cuStreamSynchronize(u)); assert copy(k) == 6; ok(d.cuMemFree(k))",
    ],
)
def test_what_is_read_back_is_what_the_device_has(step: str) -> None:
    waits(
        f"r = places[i]; ok(d.cuMemsetD32(r, 0, 128)); ok(d.cuCtxSynchronize()); learn_copies(); {step}",
        begin=COPIES,
        few=3,
        many=6,
    )


@pytest.mark.parametrize(
    "step",
    [
        # More than comes early, by a word; several that are too much together, with a small one that still comes.
        "r = large[0]; ok(d.cuMemsetD32Async(r, 7 * i, 4097, s)); hear(); assert all_of(r, 16388) == [7 * i] * 4097",
        "[ok(d.cuMemsetD32Async(r, 7 * i, 4096, s)) for r in large]; add(1, p, s); hear(); assert [all_of(r, 16384) for r in large] == [[7 * i] * 4096] * 3 and copy() == i + 1",
        "[ok(d.cuMemsetD32Async(r, 7 * i, 4096, s)) for r in large]; hear(); assert [all_of(r + at, 2048) for r in large for at in range(0, 16384, 2048)] == [[7 * i] * 512] * 24",
    ],
)
def test_what_is_too_much_together_is_read_as_it_is(step: str) -> None:
    waits(step, begin=EARLY, few=3, many=30)


def says(code: str, lines: list[str]) -> None:
    round_trips.says(code, lines, begin=EARLY, tcp=True)


def test_what_another_thread_launches_after_the_news_is_seen() -> None:
    code = """
def work(): ok(d.cuCtxSetCurrent(context)); ok(d.cuMemsetD32Async(p, 8, 1, u)); ok(d.cuStreamSynchronize(u))
for _ in range(5): learn(); other = threading.Thread(target=work); other.start(); other.join(); print(copy())
"""
    says(code, ["8"] * 5)


def test_memory_that_is_freed_after_the_news_is_an_error_and_the_next_block_there_has_its_own_bytes() -> None:
    code = """
for size in (512, 2 << 20):
    r = int(ok(d.cuMemAlloc(size))); learn(r); ok(d.cuMemFree(r)); print(name(d.cuMemcpyDtoHAsync(h, r, 4, t)), name(d.cuMemcpyDtoH(h, r, 4)))
    again = int(ok(d.cuMemAlloc(size))); ok(d.cuMemsetD32Async(again, 6, 1, u)); ok(d.cuStreamSynchronize(u)); print(again == r or size > 512, copy(again)); ok(d.cuMemFree(again))
"""
    says(code, ["INVALID_VALUE INVALID_VALUE", "True 6"] * 2)


def test_a_graph_that_is_launched_after_the_news_is_seen() -> None:
    code = """
ok(d.cuStreamBeginCapture(u, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)); add(1, p, u); graph = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(u)), 0))
for _ in range(3): learn(); ok(d.cuGraphLaunch(graph, u)); ok(d.cuStreamSynchronize(u)); print(copy())
"""
    says(code, ["6"] * 3)


def test_with_managed_memory_nothing_is_read_early() -> None:
    code = """
learn(); m = int(ok(d.cuMemAllocManaged(4096, 1))); (ctypes.c_uint32 * 1).from_address(m)[0] = 3; add(4, m, s); ok(d.cuStreamSynchronize(s)); print(copy(), (ctypes.c_uint32 * 1).from_address(m)[0]); learn(); print(copy(m))
"""
    says(code, ["5 7", "7"])


def test_a_read_comes_after_the_host_functions_of_its_stream() -> None:
    code = """
order = []; slow_one = HOST(lambda data: (time.sleep(0.05), order.append(1)))
for _ in range(3): learn(); call(slow_one, t); copy(); print(order); order.clear()
"""
    says(code, ["[1]"] * 3)


def test_an_error_of_a_queued_call_is_told_by_the_read_and_what_kernels_printed_comes_before() -> None:
    code = """
learn(); d.cuMemsetD32Async(p + (1 << 40), 1, 1, s); hear(); print(name(d.cuMemcpyDtoHAsync(h, p, 4, t)), copy())
learn(); d.cuMemsetD32Async(p + (1 << 40), 1, 1, u); print(name(d.cuMemcpyDtoHAsync(h, p, 4, t)), copy())
learn()
for _ in range(2): ok(d.cuLaunchKernel(say, 1, 1, 1, 1, 1, 1, 0, s, 0, 0)); hear(); copy(); os.write(1, b"read\\n")
"""
    says(PRINTS + code, ["INVALID_VALUE 5", "INVALID_VALUE 5", "hello", "read", "hello", "read"])


def test_a_thread_that_sends_much_behind_a_host_function_does_not_keep_it_from_ending() -> None:
    """The worker takes no more before the function has run, and who sends holds the connection meanwhile."""
    code = """
ran = []; note = HOST(lambda data: (time.sleep(0.2), ran.append(1))); big = np.zeros(24 << 20, np.uint8); r = int(ok(d.cuMemAlloc(big.nbytes))); b = ok(d.cuStreamCreate(0))
call(note, b); ok(d.cuMemcpyHtoD(r, big.ctypes.data, big.nbytes)); wait(); print(ran)
"""
    says(code, ["[1]"])
