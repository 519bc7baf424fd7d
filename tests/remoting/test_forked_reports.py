"""Programs that fork while their worker reports: the child cannot use CUDA and keeps nothing, the parent misses nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.remoting.conftest import worker
from tests.remoting.reports import REPORTS
from tests.remoting.test_worker import until, unused

FORKS = (
    REPORTS
    + """
def forked(child):
    if (pid := os.fork()) == 0: child()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def calls():
    return {name(d.cuEventQuery(e)), name(d.cuStreamQuery(s)), name(d.cuEventSynchronize(e)), name(d.cuStreamSynchronize(s)), name(d.cuCtxSynchronize()), name(d.cuEventRecord(e, t)), name(d.cuMemcpyHtoDAsync(r, h, 4, w)), name(d.cuMemcpyDtoH(h, r, 4)), name(d.cuStreamDestroy(s)), name(d.cuInit(0))}
"""
)
CHILDREN = {
    "ends at once": "os._exit(0)",
    "computes, and ends as Python does": "sum(range(100_000)); sys.exit(0)",
    "becomes another program": "os.execvp('true', ['true'])",
    "becomes a program of the slice": "os.execv(sys.executable, [sys.executable, '-c', 'import ctypes, sys; sys.exit(ctypes.CDLL(\"libcuda.so.1\").cuInit(0))'])",
    "calls CUDA": "before = len(ran); said, again = calls(), call(lambda: ran.append(-1)); os._exit((said, again, len(ran)) != ({'NOT_INITIALIZED'}, 3, before))",
}
WAYS: dict[str, dict[str, Any]] = {
    "shared memory": {},
    "unix": {"shared_memory": False},
    "tcp": {"kind": "tcp"},
    "tls": {"kind": "tls"},
}


def says(code: str, lines: list[str], way: str = "shared memory") -> None:
    async def story() -> None:
        async with worker(tls=way == "tls") as one:
            done = await one.run(code, **WAYS[way])
            assert (done.stdout.splitlines(), done.returncode) == (lines, 0), done.stdout + done.stderr
            await until(lambda: unused(one))

    asyncio.run(story())


@pytest.mark.parametrize("child", CHILDREN)
@pytest.mark.parametrize("first", ["fork", "release"])
def test_what_is_reported_comes_to_the_parent_whatever_its_child_does(child: str, first: str) -> None:
    """Reports are to come when the program forks, or are on their way."""
    steps = (
        "assert forked(child) == 0; release()" if first == "fork" else "release(); assert forked(child) == 0"
    )
    code = f"""
for i in range(3):
    def child(): {CHILDREN[child]}
    pend(i); {steps}; come(i)
print(ran)
"""
    says(FORKS + code, ["[0, 1, 2, 3, 4, 5]"])


@pytest.mark.parametrize("way", WAYS)
def test_no_kind_of_connection_is_disturbed(way: str) -> None:
    code = """
for i in range(3):
    pend(i); assert forked(lambda: os._exit(calls() != {"NOT_INITIALIZED"})) == 0; release(); come(i)
print(ran)
"""
    says(FORKS + code, ["[0, 1, 2, 3, 4, 5]"], way)


@pytest.mark.parametrize("way", WAYS)
def test_a_child_has_none_of_its_parent_s_connections(way: str) -> None:
    """Otherwise it would keep their places at the worker for as long as it lives."""
    count = """
def sockets():
    names = []
    for n in os.listdir("/proc/self/fd"):
        try: names.append(os.readlink("/proc/self/fd/" + n))
        except FileNotFoundError: pass  # of the list itself
    return sum(one.startswith("socket:") for one in names)
before = sockets()
"""
    code = "pend(0); print(sockets() - before > 1); print(forked(lambda: os._exit(sockets() - before))); release(); come(0)"
    says(count + FORKS + code, ["True", "0"], way)


def test_a_program_may_fork_inside_a_function_that_its_stream_calls() -> None:
    code = """
done = []
for i in range(3):
    pend(i); assert call(lambda: done.append(forked(lambda: os._exit(calls() != {"NOT_INITIALIZED"})))) == 0; note(100)
    release(); ok(d.cuStreamSynchronize(s)); assert ran.pop() == 100; come(i)
print(done, ran)
"""
    says(FORKS + code, ["[0, 0, 0] [0, 1, 2, 3, 4, 5]"])


def test_a_thread_that_waits_for_functions_hears_of_them_though_another_one_forks() -> None:
    code = """
over = threading.Event()
def work():
    ok(d.cuCtxSetCurrent(context))
    for i in range(200): ok(d.cuMemsetD32Async(p, i, 1, s)); note(i); ok(d.cuEventRecord(e, s)); ok(d.cuStreamSynchronize(s)); assert len(ran) == i + 1 and poll(e) and get(p, s) == i
    over.set()
thread = threading.Thread(target=work); thread.start(); children = 0
while not over.is_set() and thread.is_alive(): assert forked(lambda: os._exit(calls() != {"NOT_INITIALIZED"})) == 0; children += 1
thread.join(); print(ran == list(range(200)), children > 0)
"""
    says(FORKS + code, ["True True"])


def test_a_program_that_goes_leaves_the_slice_free_though_its_child_lives() -> None:
    """With functions due and an event that is not done."""
    code = """
pend(0)
if os.fork() == 0: os.write(1, b"child\\n"); sys.stdin.readline(); os._exit(0)
sys.stdin.readline(); os._exit(0)
"""

    async def story() -> None:
        async with worker() as one:
            program = one.start(FORKS + code)
            assert program.stdout is not None
            assert await asyncio.to_thread(program.stdout.readline) == "child\n"
            program.kill()
            await asyncio.to_thread(program.wait)
            await until(lambda: unused(one))
            done = await one.run("begin(); print(ok(d.cuMemGetInfo())[0] >> 20)")
            assert done.stdout == "64\n"
            await asyncio.to_thread(program.communicate, "\n")

    asyncio.run(story())
