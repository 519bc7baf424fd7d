"""Host functions that the worker has no room for: whoever waits hears of it, the others run first, and nothing of them stays."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE

import pytest

from tests.remoting.conftest import AT_ADDRESSES_OF_THE_PROGRAM, MIB, PRELUDE, worker
from tests.remoting.reports import REPORTS
from tests.remoting.round_trips import counted
from tests.remoting.test_reports_without_room import FILL, says
from tests.remoting.test_worker import until, unused

BACK = """
BACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p); heard = []
def back(n, stream=s): one = BACK(lambda stream, status, data: heard.append((n, status))); kept.append(one); return raw.cuStreamAddCallback(ctypes.c_void_p(int(stream)), one, None, 0)
"""
# As FILL, with a thread for each wait, which begins when it is put among `waiting` and says how it was and what had run.
THREADS = (
    FILL
    + """
said = []
def told(wait, *arguments): ok(d.cuCtxSetCurrent(context)); began.wait(); said.append((name(wait(*arguments)), len(ran)))
def begin_to_wait(*waits): global began, waiting; began = threading.Barrier(len(waits) + 1); waiting = [threading.Thread(target=told, args=one) for one in waits]; [one.start() for one in waiting]; began.wait()
def all_said(): [one.join() for one in waiting]; return said
def rest(): release_all(); first(d.cuCtxSynchronize); return len(ran)
def release_all(): ok(d.cuMemsetD32Async(flag, 1, 1, u)); on.set()
"""
)


def test_a_callback_without_room_hears_of_the_error_once_in_its_stream_s_order() -> None:
    """And a function is not called: before, neither was the callback."""
    code = (
        BACK
        + """
N = 900; hold(s); given = [back(n) if n % 3 else call(lambda n=n: heard.append((n, 0))) for n in range(N)]; print(set(given))
d.cuMemsetD32Async(flag, 1, 1, u)
while name(d.cuStreamSynchronize(s)) != "SUCCESS": pass
taken = [n for n, status in heard if status == 0]; other = [n for n, status in heard if status]
print(taken == list(range(len(taken))) and 100 < len(taken) < N, other == [n for n in range(len(taken), N) if n % 3], {status for _, status in heard}, heard == sorted(heard))
heard.clear(); assert back(7) == 0; ok(d.cuStreamSynchronize(s)); print(heard)
"""
    )
    says(code, ["{0}", "True True {0, 2} True", "[(7, 0)]"], host_memory=MIB // 4)


@pytest.mark.parametrize("stream", ["s", "b"])
def test_callbacks_without_room_of_a_stream_that_waits_for_the_legacy_one_hear_it_too(stream: str) -> None:
    """Of such a stream the worker itself waits for functions, so the order is its own."""
    code = (
        BACK
        + f"""
b = ok(d.cuStreamCreate(0)); N = 900; hold({stream}); given = [back(n, {stream}) for n in range(N)]; d.cuMemsetD32Async(flag, 1, 1, u)
while name(d.cuStreamSynchronize({stream})) != "SUCCESS": pass
print(len(heard) == N, [n for n, _ in heard] == list(range(N)), [status for _, status in heard] == sorted(status for _, status in heard))
"""
    )
    says(code, ["True True True"], host_memory=MIB // 4)


@AT_ADDRESSES_OF_THE_PROGRAM
def test_memory_of_graphs_goes_back_after_functions_without_room() -> None:
    """Memory that goes back waits for functions that are to come; those that never will must not count."""
    code = (
        FILL
        + """
def free(): return ok(d.cuMemGetInfo())[0]
def alloc():
    p = d.CUDA_MEM_ALLOC_NODE_PARAMS(); p.bytesize = 2 << 20; p.poolProps.allocType = d.CUmemAllocationType(1); p.poolProps.location.type = d.CUmemLocationType(1); p.poolProps.location.id = 0
    graph = ok(d.cuGraphCreate(0)); ok(d.cuGraphAddMemAllocNode(graph, [], 0, p)); return graph, int(p.dptr)
d.cuMemsetD32Async(flag, 1, 1, u); on.set(); first(d.cuStreamSynchronize, s); before = free()
for i in range(3):
    graph, x = alloc(); executable = ok(d.cuGraphInstantiate(graph, 0)); ok(d.cuGraphLaunch(executable, s)); ok(d.cuStreamSynchronize(s)); ok(d.cuMemsetD32(x, i, 4)); print((before - free()) >> 20)
    ok(d.cuGraphExecDestroy(executable)); ok(d.cuGraphDestroy(graph)); ok(d.cuMemFree(x)); ok(d.cuCtxSynchronize()); print((before - free()) >> 20)
"""
    )
    says(code, ["2", "0"] * 3, host_memory=MIB // 4)


def test_work_comes_behind_the_functions_that_were_taken_though_others_had_no_room() -> None:
    """The place at which it waits for them gets room that functions do not get."""
    code = (
        FILL
        + """
ok(d.cuMemsetD32Async(p, 77, 1, s)); d.cuMemsetD32Async(flag, 1, 1, u); first(d.cuStreamSynchronize, u)
while len(ran) < 100: pass
for _ in range(50): first(d.cuMemcpyDtoHAsync, there, p, 4, u); assert int(other[0]) != 77
print(len(ran)); on.set(); first(d.cuStreamSynchronize, s); first(d.cuMemcpyDtoHAsync, there, p, 4, u); print(int(other[0]), len(ran) > 100)
"""
    )
    says(code, ["100", "77 True"], host_memory=MIB // 4)


WAITS = {
    "its stream": "d.cuStreamSynchronize, s",
    "the device": "d.cuCtxSynchronize,",
    "a read": "d.cuMemcpyDtoHAsync, h, p, 4, s",
    "a large read": "d.cuMemcpyDtoHAsync, much.ctypes.data, large, much.nbytes, s",
    "an event": "d.cuEventSynchronize, f",
    "its stream, asked again and again": "lambda: asked(d.cuStreamQuery, s),",
    "an event, asked again and again": "lambda: asked(d.cuEventQuery, f),",
    "an event behind its stream's": "d.cuStreamSynchronize, w",
}
"""Waits for the functions of stream `s`; its event `f` is recorded behind them, and `w` waits for that."""


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("gates", [0, 300])
def test_a_wait_that_says_all_is_well_comes_after_the_functions_whoever_hears_of_the_others(
    wait: str, gates: int
) -> None:
    """Also where there is no room left for the places at which work waits: 300 are more than the worker keeps room for."""
    code = f"""
much = np.zeros(3 << 20, np.uint8); large = int(ok(d.cuMemAlloc(much.nbytes))); v = ok(d.cuStreamCreate(1)); wait()
{THREADS}
hold(v)
def asked(*question): return next(said for said in iter(lambda: question[0](question[1]), None) if name(said) != "NOT_READY")
for i in range({gates}): d.cuStreamWaitEvent(v, e, 0); call(lambda: None, v); d.cuMemsetD32Async(q, i, 1, v)
d.cuEventRecord(f, s); d.cuStreamWaitEvent(w, f, 0); d.cuMemsetD32Async(q, 1, 1, w)
d.cuMemsetD32Async(flag, 1, 1, u); begin_to_wait(*[({WAITS[wait]})] * 4)
while name(d.cuMemGetInfo()) == "SUCCESS" and len(said) < 4 and len(ran) < 100: pass
threading.Timer(0.3, on.set).start(); said = all_said(); n = rest()
print(len(said), {{word for word, _ in said}} <= {{"SUCCESS", "OUT_OF_MEMORY"}}, [one for one in said if one[0] == "SUCCESS" and one[1] <= 100], n > 100)
"""
    says(code, ["4 True [] True"], host_memory=MIB // 4)


FULL = {
    "among others that had": THREADS.replace("range(N)]", "range(N)]; x = s"),
    "where others have none": BACK
    + THREADS.replace(
        FILL.splitlines()[1],
        """made = []; on = threading.Event(); x = w; hold(x); ok(d.cuStreamWaitValue32(t, q, 9, 1))
while (said := name(d.cuMemGetInfo())) == "SUCCESS": made.append(ok(d.cuEventCreate(2)))
assert said == "OUT_OF_MEMORY"; ran = [0] * 101; assert back(0, t) == back(1, x) == 0  # one more may have room
ok(d.cuMemsetD32Async(q, 9, 1, u))
while len(heard) < 2: pass
assert (1, 2) in heard""",
    ),
}
"""Functions of stream `x` for which there is no room: behind some that are to come, or alone, and told of already."""


@pytest.mark.parametrize("full", FULL)
def test_all_who_wait_for_a_stream_hear_that_one_of_its_functions_had_no_room_until_somebody_has_heard(
    full: str,
) -> None:
    """An error of the stream's is everybody's who was waiting for it; who begins to wait afterwards is told nothing."""
    code = FULL[full] + (
        "print('ready', flush=True); input(); begin_to_wait(*[(d.cuStreamSynchronize, x)] * 3); print('ready', flush=True); input()\n"
        "print(name(d.cuMemGetInfo()), name(d.cuMemGetInfo())); release_all(); all_said(); print({word for word, _ in said}, min(n for _, n in said) > 100); print(name(d.cuStreamSynchronize(x)), name(d.cuCtxSynchronize()), flush=True)"
    )

    async def story() -> list[str]:
        async with worker(host_memory=MIB // 4) as one:
            environment = one.environment(kind="tcp", shared_memory=False)
            with counted(environment) as counter:
                program = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-u",
                    "-c",
                    PRELUDE + REPORTS + code,
                    env=environment,
                    stdin=PIPE,
                    stdout=PIPE,
                )
                assert program.stdout is not None
                await program.stdout.readuntil(b"ready\n")
                before = counter.requests.of("cuStreamSynchronize")
                assert program.stdin is not None
                program.stdin.write(b"\n")
                await program.stdout.readuntil(b"ready\n")

                async def all_wait() -> bool:
                    return counter.requests.of("cuStreamSynchronize") == before + 3

                await until(all_wait)
                told, _ = await program.communicate(b"\n")
                assert program.returncode == 0
            await until(lambda: unused(one))
            return [line for line in told.decode().splitlines() if not line.startswith("gpukernel: ")]

    assert asyncio.run(story()) == ["OUT_OF_MEMORY SUCCESS", "{'OUT_OF_MEMORY'} True", "SUCCESS SUCCESS"]
