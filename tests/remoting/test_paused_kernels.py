"""Turns of a simulated device, which end in the middle of kernels: weights, and what happens to who is paused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.remoting.conftest import AT_FULL_SPEED, Worker, worker

# Adds one to a counter after every 2,000 rounds of a loop: `times` times, or for ever where that is 0.
COUNT = '''
COUNT = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry count(.param .u64 to, .param .u64 times) {
    .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [to]; ld.param.u64 %rd2, [times]; mov.u64 %rd3, 0; mov.u32 %r3, %tid.x;
next:
    mov.u32 %r2, 0;
again:
    add.u32 %r2, %r2, 1; setp.lt.u32 %p, %r2, 2000; @%p bra again;
    setp.eq.u32 %p, %r3, 0; @%p red.global.add.u64 [%rd1], 1;
    add.u64 %rd3, %rd3, 1; setp.ne.u64 %p, %rd3, %rd2; @%p bra next;
    ret;
}
"""
begin(); f = load(COUNT, b"count"); counter = ok(d.cuMemAlloc(8)); ok(d.cuMemsetD32(counter, 0, 2))
def count(times, stream=0):
    ok(d.cuLaunchKernel(f, 4,1,1, 32,1,1, 0, stream, ((int(counter), times), (ctypes.c_uint64, ctypes.c_uint64)), 0))
aside = ok(d.cuStreamCreate(1))
def counted():
    value = (ctypes.c_uint64 * 1)()
    ok(d.cuMemcpyDtoHAsync(value, counter, 8, aside)); ok(d.cuStreamSynchronize(aside))
    return value[0]
'''

# Kernels without end in several streams; answers each line with what they have counted.
ENDLESS = (
    COUNT
    + """
for _ in range(4): count(0, ok(d.cuStreamCreate(1)))
print("on", flush=True)
for line in sys.stdin: print(counted(), flush=True)
"""
)

# One small kernel after another, each waited for; answers each line with how many.  It tells how many turns of the device ended
# during the last 1,000 of them, too: the 99th percentile.
SMALL = (
    COUNT
    + """
import mmap
table = mmap.mmap(os.open(os.environ["TABLE"], os.O_RDONLY), 4, prot=mmap.PROT_READ)
turns = lambda: int.from_bytes(table[:4], "little")
done, passed = 0, []
def answer():
    for line in sys.stdin: print(done, sorted(passed[-1000:])[-len(passed[-1000:]) // 100] if passed else 0, flush=True)
count(1); ok(d.cuCtxSynchronize()); print("on", flush=True)
threading.Thread(target=answer, daemon=True).start()
while True:
    before = turns(); count(1); ok(d.cuCtxSynchronize()); passed.append(turns() - before); done += 1
"""
)


def ask(program: subprocess.Popen[str]) -> list[int]:
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write("\n")
    program.stdin.flush()
    return [int(word) for word in program.stdout.readline().split()]


async def begin(one: Worker, code: str) -> subprocess.Popen[str]:
    program = one.start(code)
    assert program.stdout is not None
    said = await asyncio.to_thread(program.stdout.readline)
    assert said == "on\n", program.communicate()
    return program


@contextlib.asynccontextmanager
async def busy(
    shared: Path, *slices: tuple[float, str]
) -> AsyncIterator[list[tuple[Worker, subprocess.Popen[str]]]]:
    """Workers of one device with these weights, each with a program that runs that code."""
    async with contextlib.AsyncExitStack() as stack:
        everybody = []
        for weight, code in slices:
            one = await stack.enter_async_context(worker(time_slicing=shared, weight=weight))
            everybody.append((one, await begin(one, code)))
        try:
            yield everybody
        finally:
            for _, program in everybody:
                program.kill()
                program.communicate()


def turns(shared: Path) -> int:
    return int(struct.unpack_from("<I", shared.read_bytes())[0])


async def until(program: subprocess.Popen[str], more: int) -> None:
    """Wait until the program has counted so much more."""
    async with asyncio.timeout(60):
        start = ask(program)[0]
        while ask(program)[0] < start + more:
            await asyncio.sleep(0.05)


@AT_FULL_SPEED
def test_kernels_without_end_get_the_device_by_their_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "time-slicing"
    # A kernel that is compiled counts many times as fast as one that began before, and stays, in the interpreter.
    monkeypatch.setenv("GPUKERNEL_SIMGPU_TIER", "interpreter")

    async def story() -> None:
        async with busy(shared, (0.1, ENDLESS), (0.3, ENDLESS)) as everybody:
            before = [(await one.handle.status()).turn_seconds for one, _ in everybody]
            counts = [ask(program)[0] for _, program in everybody]
            end = turns(shared) + 400
            while turns(shared) < end:
                await asyncio.sleep(0.05)
            had = [
                (await one.handle.status()).turn_seconds - start
                for (one, _), start in zip(everybody, before, strict=True)
            ]
            done = [ask(program)[0] - start for (_, program), start in zip(everybody, counts, strict=True)]
            assert had[1] / had[0] == pytest.approx(3, rel=0.15)
            assert done[1] > 1.5 * done[0]  # what else runs on this machine disturbs that figure

    asyncio.run(story())


@AT_FULL_SPEED
def test_small_launches_wait_for_at_most_a_turn_of_each_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "time-slicing"
    monkeypatch.setenv("TABLE", str(shared))

    async def story() -> None:
        async with busy(shared, (0.5, SMALL), *[(0.02, ENDLESS)] * 3) as everybody:
            mine = everybody[0][1]
            await until(mine, 2000)
            assert ask(mine)[1] <= 4

    asyncio.run(story())


def test_a_kernel_that_is_paused_can_be_interrupted(tmp_path: Path) -> None:
    async def story() -> None:
        async with busy(tmp_path / "time-slicing", (0.02, ENDLESS), (1, ENDLESS)) as (
            (stuck, program),
            (_, other),
        ):
            await until(other, 100)
            await stuck.handle.interrupt()
            async with asyncio.timeout(60):
                while ask(program):
                    await asyncio.sleep(0.1)
            _, errors = await asyncio.to_thread(program.communicate)
            assert "what ran on the slice was interrupted" in errors
            await until(other, 100)
            fresh = await begin(stuck, ENDLESS)  # in the same lease, and it gets its share again
            await until(fresh, 100)
            fresh.kill()
            fresh.communicate()

    asyncio.run(story())


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_who_holds_the_turn_and_ends_or_stops_keeps_nobody_waiting(tmp_path: Path, sent: int) -> None:
    shared = tmp_path / "time-slicing"

    async def story() -> None:
        async with busy(shared, (1, ENDLESS), (1, ENDLESS), (1, ENDLESS)) as everybody:
            rest = [program for _, program in everybody]
            for one, _ in everybody[:2]:  # sooner or later it has the turn
                pid = one.handle.pid
                async with asyncio.timeout(60):
                    while True:
                        holder = struct.unpack_from("<i", shared.read_bytes(), 4)[0]
                        if holder and struct.unpack_from("<i", shared.read_bytes(), 64 * holder)[0] == pid:
                            break
                        await asyncio.sleep(0)
                os.kill(pid, sent)
                rest.pop(0)
                for program in rest:
                    await until(program, 200)
            if sent == signal.SIGSTOP:  # both go on where they were
                for one, program in everybody[:2]:
                    os.kill(one.handle.pid, signal.SIGCONT)
                    await until(program, 200)

    asyncio.run(story())


def test_a_stream_that_waits_for_ever_holds_no_turn(tmp_path: Path) -> None:
    shared = tmp_path / "time-slicing"
    waits = (
        COUNT
        + """
for _ in range(4):
    stream = ok(d.cuStreamCreate(1)); flag = ok(d.cuMemAlloc(4)); ok(d.cuMemsetD32(flag, 0, 1))
    ok(d.cuStreamWaitValue32(stream, int(flag), 1, 0))
    for _ in range(100): count(0, stream)
print("on", flush=True); sys.stdin.readline()
"""
    )

    async def story() -> None:
        async with busy(shared, (1, waits), (0.02, ENDLESS)) as ((idle, _), (_, other)):
            before = turns(shared)
            await until(other, 500)
            assert (await idle.handle.status()).turn_seconds == 0
            assert turns(shared) - before <= 1  # who is alone takes none

    asyncio.run(story())


def test_a_worker_stops_while_its_kernels_are_paused(tmp_path: Path) -> None:
    async def story() -> None:
        async with busy(tmp_path / "time-slicing", (0.02, ENDLESS), (1, ENDLESS)) as ((one, _), (_, other)):
            await until(other, 100)
            await one.handle.stop("the test is over")
            async with asyncio.timeout(30):
                await one.handle.wait()
            await until(other, 100)

    asyncio.run(story())
