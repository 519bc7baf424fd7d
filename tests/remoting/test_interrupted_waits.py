"""Signals while a program waits for its device: the wait goes on, and what the worker reports is neither lost nor taken for something else."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpukernel.remoting.lease_file import LEASE_FILE_VARIABLE
from tests.remoting.conftest import PRELUDE, worker
from tests.remoting.reports import REPORTS
from tests.remoting.round_trips import Counter

WAYS: dict[str, dict[str, Any]] = {
    "shared memory": {},
    "tcp": {"kind": "tcp", "shared_memory": False},
}
INTERRUPTS = (
    REPORTS
    + r"""
import random, signal
main = threading.main_thread()
def interrupted(wait, *arguments):
    try:
        wait(*arguments)
        for _ in range(2): pass  # where Python looks for signals
    except KeyboardInterrupt: return True
def sleeps():  # the main thread in that call; it does not wait for Python's lock, since it is not asked for there
    frame = sys._current_frames()[main.ident]; inside = frame.f_code is interrupted.__code__ and frame.f_lineno == frame.f_code.co_firstlineno + 2
    return inside and open(f"/proc/self/task/{main.native_id}/syscall").read()[:3] in ("45 ", "202")  # recvfrom, futex
def interrupt():
    for _ in range(3):
        while not sleeps(): pass
        signal.pthread_kill(main.ident, signal.SIGINT)
    while not sleeps(): pass
"""
)
WAITS = {
    "a stream": "d.cuStreamSynchronize, s",
    "an event": "d.cuEventSynchronize, f",
    "the device": "d.cuCtxSynchronize",
    "a read": "d.cuMemcpyDtoHAsync, h, p, 4, s",
}


def says(code: str, lines: list[str], way: str = "shared memory") -> None:
    async def story() -> None:
        async with worker() as one:
            done = await one.run(INTERRUPTS + code, **WAYS[way])
            assert (done.stdout.splitlines(), done.returncode) == (lines, 0), done.stdout + done.stderr

    asyncio.run(story())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_that_is_interrupted_is_over_when_the_functions_have_run(wait: str, way: str) -> None:
    """Those of its stream, of which one interrupts it."""
    code = f"""
for i in range(4):
    pend(i); assert call(interrupt) == 0; note(-1); ok(d.cuEventRecord(f, s)); release(); print(interrupted({WAITS[wait]}), ran[2 * i:]); ran.pop(); come(i)
"""
    says(code, [f"True [{2 * i}, {2 * i + 1}, -1]" for i in range(4)], way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_goes_on_until_another_thread_lets_the_work_go_on(wait: str, way: str) -> None:
    code = f"""
before = []
def meddle(): ok(d.cuCtxSetCurrent(context)); interrupt(); before.append(len(ran)); release()
for i in range(4):
    pend(i); ok(d.cuEventRecord(f, s)); thread = threading.Thread(target=meddle); thread.start(); print(interrupted({WAITS[wait]}), ran[2 * i:]); thread.join(); come(i)
print(before)
"""
    says(code, [*(f"True [{2 * i}, {2 * i + 1}]" for i in range(4)), "[0, 2, 4, 6]"], way)


def test_a_wait_for_functions_that_are_due_at_once_goes_on() -> None:
    code = """
for i in range(4): assert call(interrupt, w) == 0; note(i, w); print(interrupted(d.cuStreamSynchronize, w), ran)
"""
    says(code, [f"True {list(range(i + 1))}" for i in range(4)])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(2))
def test_interrupts_at_any_moment_change_no_result_and_no_order(seed: int, way: str) -> None:
    """An interrupt ends a step anywhere: what it had submitted stays, and the next steps are as ever."""
    code = f"""
draw = random.Random({seed}); armed, interrupts, asked, launched = False, 0, {{}}, {{}}; streams = [s, t, w]; words = {{one: int(ok(d.cuMemAlloc(4))) for one in streams}}
def alarm(*_):
    global armed
    if armed: armed = False; raise KeyboardInterrupt
def step(i):
    one = draw.choice(streams); asked.setdefault(one, []).append(i); note((one, i), one); launched.setdefault(one, []).append(i)
    ok(d.cuMemsetD32Async(words[one], i, 1, one)); ok(d.cuEventRecord(e, one)); put(i + 1000, r, w)
    if draw.random() < 0.5: assert poll(e)
    elif draw.random() < 0.5: ok(d.cuEventSynchronize(e))
    else: ok(d.cuStreamSynchronize(one))
    assert set(launched[one]) <= {{n for of, n in ran if of is one}} and get(words[one], one) == i; ok(d.cuStreamSynchronize(w)); assert get(r, u) == i + 1000
learn(*streams); signal.signal(signal.SIGALRM, alarm); signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
for i in range(300):
    try: armed = True; step(i); armed = False
    except KeyboardInterrupt: interrupts += 1
signal.setitimer(signal.ITIMER_REAL, 0); ok(d.cuCtxSynchronize())
for one in streams: order = [n for of, n in ran if of is one]; assert order == sorted(order) and set(launched[one]) <= set(order) <= set(asked[one])
step(300); print(0 < interrupts < 300)
"""
    says(code, ["True"], way)


@pytest.mark.parametrize("way", WAYS)
def test_a_signal_while_a_wait_looks_whether_its_worker_is_there_does_not_end_it(way: str) -> None:
    """A signal at the moment of that look makes it an error, although it waits for nothing: once in two hundred signals."""
    code = """
wait(); hold(s); ok(d.cuMemsetD32Async(p, 7, 1, s)); came = [0]
def alarm(*_): came[0] += 1
def meddle(): ok(d.cuCtxSetCurrent(context)); time.sleep(1); signal.setitimer(signal.ITIMER_REAL, 0); release()
meddler = threading.Thread(target=meddle); signal.signal(signal.SIGALRM, alarm); signal.setitimer(signal.ITIMER_REAL, 5e-5, 5e-5)
meddler.start(); print(name(d.cuStreamSynchronize(s))); meddler.join(); print(get(p), came[0] > 0)
"""
    says(code, ["SUCCESS", "7 True"], way)


@contextlib.contextmanager
def behind_a_full_queue(environment: dict[str, str]) -> Iterator[threading.Event]:
    """Lead the TCP endpoint of an environment's lease file to a listener that takes connections once the event is set."""
    path = Path(environment[LEASE_FILE_VARIABLE])
    text = path.read_text()
    (port,) = re.findall(r"tcp:127\.0\.0\.1:(\d+)", text)
    takes, counter = threading.Event(), Counter()
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as listener,
        socket.create_connection(listener.getsockname()),  # which is all that its queue has room for
    ):

        def serve() -> None:
            takes.wait()
            with contextlib.suppress(OSError):
                listener.accept()[0].close()
                while True:
                    program, _ = listener.accept()
                    real = socket.create_connection(("127.0.0.1", int(port)))
                    for ends in ((program, real, [False], True), (real, program, [False], False)):
                        threading.Thread(target=counter.forward, args=ends, daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        path.write_text(text.replace(f"tcp:127.0.0.1:{port}", f"tcp:127.0.0.1:{listener.getsockname()[1]}"))
        yield takes


def test_signals_do_not_keep_a_program_from_its_worker() -> None:
    """A timer or a profiler may interrupt the making of a connection again and again."""
    code = """
import signal, socket
heard, hears = socket.socketpair(); hears.setblocking(False); signal.set_wakeup_fd(hears.fileno(), warn_on_full_buffer=False)
threading.Thread(target=lambda: ([heard.recv(1) for _ in range(3)], os.write(1, b"signals\\n")), daemon=True).start()
signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05); begin(); signal.setitimer(signal.ITIMER_REAL, 0); print(ok(d.cuMemGetInfo())[1] >> 20)
"""

    async def story() -> None:
        async with worker() as one:
            environment = one.environment(kind="tcp", shared_memory=False)
            with behind_a_full_queue(environment) as takes:
                program = await asyncio.create_subprocess_exec(
                    sys.executable, "-u", "-c", PRELUDE + code, env=environment, stdout=PIPE
                )
                assert program.stdout is not None
                assert await program.stdout.readline() == b"signals\n"
                takes.set()
                said, _ = await program.communicate()
                assert said == b"64\n"

    asyncio.run(story())
