"""Host functions that the program runs at once, and those that the worker reports without waiting: all else keeps its place."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE

import pytest

from tests.remoting.conftest import PRELUDE, worker
from tests.remoting.round_trips import counted, each_step
from tests.remoting.test_host_functions import HOST, says
from tests.remoting.test_worker import until

ORDER = r"""
import random, time
a, b, c, u = (stream() for _ in range(4)); legacy, blocking = 0, stream(0); p = int(ok(d.cuMemAlloc(4))); flag = int(ok(d.cuMemAlloc(4))); e = ok(d.cuEventCreate(0)); f = ok(d.cuEventCreate(0))
ok(d.cuMemsetD32(p, 1, 1)); ok(d.cuMemsetD32(flag, 0, 1)); ok(d.cuCtxSynchronize())
def hold(s): ok(d.cuStreamWaitValue32(s, flag, 1, 0))  # until `release`
def release(): ok(d.cuMemsetD32Async(flag, 1, 1, u)); ok(d.cuStreamSynchronize(u))
def fill(s, v): ok(d.cuMemsetD32Async(p, v, 1, s))
def seen(): out = bytes(4); ok(d.cuMemcpyDtoHAsync(out, p, 4, c)); ok(d.cuStreamSynchronize(c)); return out[0]
def slow(s, v): call(s, lambda: (time.sleep(0.3), said.append(v)))
def waits(s, v): call(s, lambda: (go.wait(60), said.append(v)))
def due(s): pass  # a function in it is due at once
def then(): go.set(); ok(d.cuCtxSynchronize()); return said, seen()
"""
BEFORE = {"due": "due(a)", "reported": "hold(a)"}
"""The work in stream `a` before its function."""


def order(code: str, line: str, before: str) -> None:
    says(ORDER + code.replace("BEFORE", BEFORE[before]), [line])


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize(
    ("code", "line"),
    [
        # Work of its own stream.
        (
            "BEFORE; waits(a, 1); fill(a, 7); release(); print(seen(), len(said), state(d.cuStreamQuery(a)), *then())",
            "1 0 NOT_READY [1] 7",
        ),
        # Two functions, and work behind the second.
        (
            "BEFORE; call(a, lambda: said.append(0)); waits(a, 1); fill(a, 7); release(); print(seen(), 1 in said, *then())",
            "1 False [0, 1] 7",
        ),
        # Another stream, by an event.
        (
            "BEFORE; waits(a, 1); ok(d.cuEventRecord(e, a)); ok(d.cuStreamWaitEvent(b, e, 0)); fill(b, 7); release(); print(seen(), state(d.cuEventQuery(e)), state(d.cuStreamQuery(b)), *then())",
            "1 NOT_READY NOT_READY [1] 7",
        ),
        # One that has work before, one that others wait for, and the legacy one.
        (
            "BEFORE; waits(a, 1); ok(d.cuEventRecord(e, a)); hold(b); ok(d.cuStreamWaitEvent(b, e, 0)); fill(b, 7); release(); print(seen(), *then())",
            "1 [1] 7",
        ),
        (
            "BEFORE; waits(a, 1); ok(d.cuEventRecord(e, a)); ok(d.cuStreamWaitEvent(blocking, e, 0)); fill(blocking, 7); release(); print(seen(), *then())",
            "1 [1] 7",
        ),
        (
            "BEFORE; waits(a, 1); ok(d.cuEventRecord(e, a)); ok(d.cuStreamWaitEvent(0, e, 0)); fill(0, 7); release(); print(seen(), *then())",
            "1 [1] 7",
        ),
        # Events behind events, and functions behind them.
        (
            "BEFORE; waits(a, 1); ok(d.cuEventRecord(e, a)); ok(d.cuStreamWaitEvent(b, e, 0)); call(b, lambda: said.append(2)); ok(d.cuEventRecord(f, b)); ok(d.cuStreamWaitEvent(u, f, 0)); call(u, lambda: said.append(3)); print(said); release_late()",
            "[]\n[1, 2, 3]",
        ),
        # What waits for other work behind a function: its own next function, and who waits for an event behind that wait.
        (
            "BEFORE; waits(a, 1); hold(b); ok(d.cuEventRecord(e, b)); ok(d.cuStreamWaitEvent(a, e, 0)); call(a, lambda: said.append(2)); release(); time.sleep(0.2); print(seen(), list(said), *then())",
            "1 [] [1, 2] 1",
        ),
        (
            "w = stream(); BEFORE; waits(a, 1); hold(b); ok(d.cuEventRecord(e, b)); ok(d.cuStreamWaitEvent(a, e, 0)); ok(d.cuEventRecord(f, a)); ok(d.cuStreamWaitEvent(w, f, 0)); fill(w, 7); release(); print(seen(), state(d.cuEventQuery(f)), *then())",
            "1 NOT_READY [1] 7",
        ),
        (
            "BEFORE; waits(a, 1); hold(b); ok(d.cuEventRecord(e, b)); ok(d.cuStreamWaitEvent(a, e, 0)); ok(d.cuEventRecord(f, a)); ok(d.cuStreamWaitEvent(blocking, f, 0)); fill(blocking, 7); release(); print(seen(), *then())",
            "1 [1] 7",
        ),
        # An event that programs may share.
        (
            "g = ok(d.cuEventCreate(4 | 2)); BEFORE; waits(a, 1); ok(d.cuEventRecord(g, a)); release(); print(state(d.cuEventQuery(g)), len(said), *then(), state(d.cuEventQuery(g)))",
            "NOT_READY 0 [1] 1 SUCCESS",
        ),
        # The time between events.
        (
            "BEFORE; ok(d.cuEventRecord(f, a)); waits(a, 1); ok(d.cuEventRecord(e, a)); release(); print(state(d.cuEventElapsedTime(f, e)), *then(), state(d.cuEventElapsedTime(f, e)))",
            "NOT_READY [1] 1 SUCCESS",
        ),
    ],
)
def test_what_comes_after_a_function_waits_for_it(code: str, line: str, before: str) -> None:
    late = "def release_late(): ok(d.cuMemsetD32Async(flag, 1, 1, c)); go.set(); ok(d.cuCtxSynchronize()); print(said)\n"
    says(ORDER + late + code.replace("BEFORE", BEFORE[before]), line.splitlines())


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize(
    "wait",
    [
        "ok(d.cuCtxSynchronize())",
        "ok(d.cuStreamSynchronize(a))",
        "ok(d.cuEventRecord(e, a)); ok(d.cuEventSynchronize(e))",
        "ok(d.cuEventRecord(e, a)); ok(d.cuStreamWaitEvent(b, e, 0)); ok(d.cuStreamSynchronize(b))",
        "ok(d.cuMemcpyDtoHAsync(bytes(4), p, 4, a))",
        "p = int(ok(d.cuMemAllocManaged(4, 1)))",
        "ok(d.cuEventRecord(e, a)); [time.sleep(0.01) for _ in iter(lambda: state(d.cuEventQuery(e)), 'SUCCESS')]",
        "[time.sleep(0.01) for _ in iter(lambda: state(d.cuStreamQuery(a)), 'SUCCESS')]",
    ],
)
def test_a_wait_is_over_when_the_functions_have_run(wait: str, before: str) -> None:
    order(
        f"BEFORE; slow(a, 1); slow(a, 2); ok(d.cuMemsetD32Async(flag, 1, 1, u)); {wait}; print(said)",
        "[1, 2]",
        before,
    )


@pytest.mark.parametrize("seed", range(6))
def test_functions_keep_their_order_among_any_work(seed: int) -> None:
    """Each stream counts in a word of its own, and a function comes after those before it, in its stream or by events."""
    code = f"""
r = random.Random({seed}); streams = [a, b, blocking, 0]; words = {{int(s): int(ok(d.cuMemAlloc(4))) for s in streams}}; counts = dict.fromkeys(words, 0); ran = {{s: [] for s in words}}; asked = {{s: [] for s in words}}
knows = {{s: {{}} for s in words}}; at = {{}}; early = []  # functions that a stream's next one comes after, by their streams; those of events; those that came before
ok(d.cuCtxSynchronize()); events = [ok(d.cuEventCreate(0)) for _ in range(4)]
def put(s):
    n, first = len(asked[int(s)]), dict(knows[int(s)]); asked[int(s)].append(n); knows[int(s)][int(s)] = n + 1
    def run(): time.sleep(r.choice([0, 0, 0.002])); early.extend((s, n, t) for t, least in first.items() if len(ran[t]) < least); ran[int(s)].append(n)
    (call if r.random() < 0.7 else lambda s, f: back(s, lambda status: f()))(s, run)
def learn(s, of): knows[int(s)] = {{t: max(knows[int(s)].get(t, 0), of.get(t, 0)) for t in words}}
def work(s): counts[int(s)] += 1; ok(d.cuMemsetD32Async(words[int(s)], counts[int(s)], 1, s))
def record(s): e = r.choice(events); ok(d.cuEventRecord(e, s)); at[int(e)] = dict(knows[int(s)])
def join(s): e = r.choice(events); ok(d.cuStreamWaitEvent(s, e, 0)); learn(s, at.get(int(e), {{}}))
def sync(s): ok(d.cuStreamSynchronize(s)); assert ran[int(s)] == asked[int(s)] and all(len(ran[t]) >= least for t, least in knows[int(s)].items())
def read(s): out = bytes(4); ok(d.cuMemcpyDtoHAsync(out, words[int(s)], 4, s)); ok(d.cuStreamSynchronize(s)); assert int.from_bytes(out, "little") == counts[int(s)] and ran[int(s)] == asked[int(s)]
def query(s): assert state(d.cuStreamQuery(s)) == "NOT_READY" or ran[int(s)] == asked[int(s)]
def everything(s): ok(d.cuCtxSynchronize()); assert ran == asked
for s in streams: ok(d.cuMemsetD32Async(words[int(s)], 0, 1, s))
for i in range(400): r.choices([put, work, record, join, sync, read, query, everything], [8, 4, 3, 3, 1, 1, 2, 0.3])[0](r.choice(streams))
everything(0); print(ran == asked, sum(map(len, ran.values())) > 50, early)
"""
    says(ORDER + code, ["True True []"])


@pytest.mark.parametrize(
    ("step", "most"),
    [
        # Due at once: nobody is asked.
        (
            "ok(d.cuMemcpyDtoHAsync(bytes(4), p, 4, a)); ok(d.cuEventRecord(e, a)); ok(d.cuStreamWaitEvent(b, e, 0)); call(b, lambda: None)",
            0,
        ),
        # What another stream waited for is known to be done with it.
        (
            "fill(a, i); ok(d.cuEventRecord(e, a)); ok(d.cuStreamWaitEvent(b, e, 0)); ok(d.cuMemcpyDtoHAsync(bytes(4), p, 4, b)); ok(d.cuEventRecord(f, a)); ok(d.cuStreamWaitEvent(c, f, 0)); call(c, lambda: None)",
            0,
        ),
    ],
)
def test_the_worker_is_asked_for_no_more_functions_than_it_must_report(step: str, most: int) -> None:
    # One question for each report, and as many ahead each time.
    asked = each_step(
        lambda counter: counter.requests.of("next_host_function"),
        HOST + ORDER,
        step,
        "ok(d.cuCtxSynchronize())",
        few=5,
        many=25,
    )
    assert asked <= most + 0.2


def test_a_function_is_reported_while_the_one_before_it_runs() -> None:
    """The worker does not wait for a function that only functions follow."""
    code = f"{PRELUDE}{HOST}{ORDER}\nhold(a); waits(a, 1); call(a, lambda: said.append(2)); release(); print(flush=True); input(); go.set(); ok(d.cuCtxSynchronize()); print(said)"

    async def story() -> None:
        async with worker() as one:
            environment = one.environment(kind="tcp", shared_memory=False)
            with counted(environment) as counter:
                program = await asyncio.create_subprocess_exec(
                    sys.executable, "-u", "-c", code, env=environment, stdin=PIPE, stdout=PIPE
                )
                assert program.stdout is not None
                await program.stdout.readline()

                async def both_are_reported() -> bool:
                    return counter.answers.of("next_host_function") == 2

                await until(both_are_reported)
                said, _ = await program.communicate(b"\n")
                assert said == b"[1, 2]\n"

    asyncio.run(story())
