"""A slice without room while its worker has something to report: the error is the right one, and all that was taken comes."""

from __future__ import annotations

import asyncio

import pytest

from tests.remoting.conftest import MIB, worker
from tests.remoting.reports import REPORTS
from tests.remoting.test_worker import until, unused


def says(code: str, lines: list[str], **options: int) -> None:
    async def story() -> None:
        async with worker(**options) as one:
            done = await one.run(REPORTS + code)
            told = [line for line in done.stdout.splitlines() if not line.startswith("gpukernel: ")]
            assert (told, done.returncode) == (lines, 0), done.stdout + done.stderr
            await until(lambda: unused(one))

    asyncio.run(story())


@pytest.mark.parametrize(
    "ask",
    [
        "d.cuMemAlloc(64 << 20)",  # more than the slice
        "d.cuMemAlloc(7 << 20)",  # more than is left
        "d.cuMemAllocAsync(64 << 20, u)",
        "d.cuMemAllocAsync(7 << 20, u)",
        "d.cuMemCreate(8 << 20, prop, 0)",
    ],
)
def test_memory_that_the_slice_has_not_is_refused_once_and_what_is_reported_comes(ask: str) -> None:
    code = f"""
prop = d.CUmemAllocationProp(); prop.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED; prop.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
taken = int(ok(d.cuMemAlloc(2 << 20)))
for i in range(3):
    pend(i); print(name({ask}), name({ask}), name(d.cuEventQuery(e)), len(ran) - 2 * i); x = int(ok(d.cuMemAlloc(1 << 20))); ok(d.cuMemsetD32Async(x, i, 1, u)); assert get(x, u) == i
    release(); come(i); ok(d.cuMemFree(x))
print(name(d.cuCtxSynchronize()))
"""
    says(code, ["OUT_OF_MEMORY OUT_OF_MEMORY NOT_READY 0"] * 3 + ["SUCCESS"], memory_mib=8)


def test_blocks_that_were_freed_make_room_though_a_function_waits_for_the_program() -> None:
    """What the program keeps for its next allocation goes back before it hears that there is no room."""
    code = """
for i in range(3):
    small = [int(ok(d.cuMemAlloc(8192))) for _ in range(4)]
    for one in small: ok(d.cuMemFree(one))
    pend(i); print(name(d.cuMemAlloc(64 << 20))); x = int(ok(d.cuMemAlloc(2 << 20))); release(); come(i); ok(d.cuMemFree(x))
"""
    says(code, ["OUT_OF_MEMORY"] * 3, memory_mib=8)


# More functions than the worker has room for (512 bytes each), behind work that is held; one of them waits for the program.
FILL = """
N = 600; on = threading.Event(); hold(s); results = [call(lambda n=n: (n == 100 and on.wait(60), ran.append(n))) for n in range(N)]
def first(wait, *arguments):  # that tells of no error
    while (said := name(wait(*arguments))) != "SUCCESS": assert said == "OUT_OF_MEMORY"
"""


def test_functions_for_which_there_is_no_room_are_an_error_and_the_others_run() -> None:
    code = (
        FILL
        + """
print(set(results), name(d.cuMemGetInfo()), name(d.cuMemGetInfo()), len(ran)); release(); on.set(); first(d.cuStreamSynchronize, s); n = len(ran); print(100 < n < N, ran == list(range(n)))
ran.clear(); note(1); ok(d.cuMemsetD32Async(p, 3, 1, s)); note(2); ok(d.cuStreamSynchronize(s)); print(ran, get(p, s)); learn(s)
"""
    )
    says(code, ["{0} OUT_OF_MEMORY SUCCESS 0", "True True", "[1, 2] 3"], host_memory=MIB // 4)


@pytest.mark.parametrize(
    "wait",
    [
        "first(d.cuStreamSynchronize, s)",
        "first(d.cuCtxSynchronize)",
        "first(d.cuMemcpyDtoHAsync, h, p, 4, s)",
        "first(lambda: d.cuEventRecord(f, s) and d.cuEventSynchronize(f))",
    ],
)
def test_a_wait_without_an_error_comes_after_the_functions_though_others_had_no_room(wait: str) -> None:
    """Where the worker has no room for the place in the stream at which it would wait for them."""
    code = (
        FILL
        + f"""
ok(d.cuMemsetD32Async(flag, 1, 1, u)); threading.Timer(0.3, on.set).start(); {wait}; n = len(ran); print(n > 100); ok(d.cuCtxSynchronize()); print(len(ran) - n)
"""
    )
    says(code, ["True", "0"], host_memory=MIB // 4)


def test_a_wait_without_an_error_comes_after_a_function_that_was_due_at_once() -> None:
    """The program runs it, and the worker has no room for the place at which later work waits for it."""
    code = (
        FILL
        + """
mine = threading.Event(); assert call(lambda: (mine.wait(60), ran.append("due")), w) == 0; ok(d.cuMemsetD32Async(p, 7, 1, w)); print(name(d.cuMemGetInfo()), name(d.cuMemGetInfo()), ran)
threading.Timer(0.3, mine.set).start(); first(d.cuStreamSynchronize, w); print(ran); on.set(); release(); first(d.cuCtxSynchronize); print(len(ran) > 100)
"""
    )
    says(code, ["OUT_OF_MEMORY SUCCESS []", "['due']", "True"], host_memory=MIB // 4)


@pytest.mark.parametrize("make", ["d.cuStreamCreate(1)", "d.cuEventCreate(2)"])
def test_streams_and_events_for_which_there_is_no_room_cost_no_report(make: str) -> None:
    code = f"""
for i in range(3):
    pend(i); made = []
    while (said := name(d.cuMemGetInfo())) == "SUCCESS": made.append(ok({make}))
    print(said, name(d.cuMemGetInfo()), name(d.cuEventQuery(e)), len(ran) - 2 * i); release(); come(i)
    for one in made[:-1]: ok((d.cuStreamDestroy if "Stream" in {make!r} else d.cuEventDestroy)(one))
    one = ok({make}); ok(d.cuMemGetInfo())
"""
    says(code, ["OUT_OF_MEMORY SUCCESS NOT_READY 0"] * 3, host_memory=MIB // 4)
