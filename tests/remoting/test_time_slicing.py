"""Several busy leases on one device: compute by weight, and a kernel that never ends."""

from __future__ import annotations

import asyncio
import struct
import subprocess
from pathlib import Path

import pytest

from tests.remoting.conftest import AT_FULL_SPEED, Worker, worker

# Counts to its parameter; then, where told so, for ever.
SPIN = '''
SPIN = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u32 rounds, .param .u32 forever) {
    .reg .pred %p; .reg .b32 %r<4>;
    ld.param.u32 %r1, [rounds]; ld.param.u32 %r3, [forever]; mov.u32 %r2, 0;
again:
    add.u32 %r2, %r2, 1; setp.lt.u32 %p, %r2, %r1; @%p bra again;
    setp.ne.u32 %p, %r3, 0; @%p bra again;
    ret;
}
"""
import time
def spin(f, rounds, forever=0): ok(d.cuLaunchKernel(f, 4,1,1, 32,1,1, 0, 0, ((rounds, forever), (ctypes.c_uint32, ctypes.c_uint32)), 0))
begin(); f = load(SPIN, b"spin"); spin(f, 10); ok(d.cuCtxSynchronize())
'''

BUSY = (
    SPIN
    + """
print("ready", flush=True); sys.stdin.readline(); done = 0; end = time.monotonic() + SECONDS
while time.monotonic() < end:
    for _ in range(5): spin(f, 20000)
    ok(d.cuCtxSynchronize()); done += 5
print(done)
"""
)

# Launches that wait for nothing, so that the next one is always there whatever else runs on this machine.  How far a program
# gets ahead of the device is known after the first hundreds.
ALWAYS_BUSY = (
    SPIN
    + """
print("ready", flush=True); sys.stdin.readline()
for _ in range(300): spin(f, 20000)
print("busy", flush=True)
while True: spin(f, 20000)
"""
)

ENDLESS = SPIN + 'print("on", flush=True); spin(f, 10, 1); print(d.cuCtxSynchronize()[0].name, flush=True)'


async def compete(workers: list[Worker], seconds: float = 4) -> list[int]:
    """Return how many kernels the programs, one on each worker, ran in the same `seconds`."""
    running = [one.start(BUSY.replace("SECONDS", str(seconds))) for one in workers]
    for program in running:
        assert program.stdout is not None
        assert await asyncio.to_thread(program.stdout.readline) == "ready\n"
    for program in running:
        assert program.stdin is not None
        program.stdin.write("\n")
        program.stdin.flush()
    said = [await asyncio.to_thread(program.communicate) for program in running]
    assert all(not errors for _, errors in said), said
    return [int(out) for out, _ in said]


async def keep_busy(workers: list[Worker]) -> list[subprocess.Popen[str]]:
    """Start a program on each worker that always has work, until it is killed."""
    programs = [one.start(ALWAYS_BUSY) for one in workers]
    for program in programs:
        assert program.stdout is not None
        assert await asyncio.to_thread(program.stdout.readline) == "ready\n"
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("\n")
        program.stdin.flush()
    for program in programs:
        assert program.stdout is not None
        assert await asyncio.to_thread(program.stdout.readline) == "busy\n"
    return programs


async def end(programs: list[subprocess.Popen[str]]) -> None:
    for program in programs:
        program.kill()
        await asyncio.to_thread(program.communicate)


async def turn_seconds(workers: list[Worker]) -> list[float]:
    return [(await one.handle.status()).turn_seconds for one in workers]


async def turns(shared: Path, count: int) -> None:
    """Wait until `count` more of the device's turns have ended, however long they are on this machine."""

    def ended() -> int:
        return int(struct.unpack_from("<I", shared.read_bytes())[0])

    last = ended() + count
    while ended() < last:
        await asyncio.sleep(0.05)


@AT_FULL_SPEED
def test_busy_leases_get_compute_by_their_weights(tmp_path: Path) -> None:
    async def story(shared: Path) -> None:
        async with (
            worker(time_slicing=shared, weight=0.1) as light,
            worker(time_slicing=shared, weight=0.3) as heavy,
        ):
            programs = await keep_busy([light, heavy])
            before = await turn_seconds([light, heavy])
            await asyncio.sleep(4)
            had = [
                after - start for after, start in zip(await turn_seconds([light, heavy]), before, strict=True)
            ]
            await end(programs)
            assert had[1] / had[0] == pytest.approx(3, rel=0.1)
            assert sum(had) > 3  # of the four seconds: hardly anything is lost in passing it on

    # Who gets no processor for a while makes no use of its turns: one undisturbed run of three is enough.
    for attempt in range(3):
        try:
            return asyncio.run(story(tmp_path / str(attempt)))
        except AssertionError:
            if attempt == 2:
                raise


@AT_FULL_SPEED
def test_equal_leases_get_the_same_and_one_alone_gets_all(tmp_path: Path) -> None:
    async def story() -> None:
        shared = tmp_path / "time-slicing"
        async with (
            worker(time_slicing=shared, weight=0.02) as one,
            worker(time_slicing=shared, weight=0.02) as two,
            worker(time_slicing=shared, weight=0.9),  # idle: takes nothing of the others' time
        ):
            await compete([one], seconds=1)
            assert (await one.handle.status()).turn_seconds == 0  # nobody to take turns with
            # They wait for nothing: who waits for results and gets no processor meanwhile asks for less.
            programs = await keep_busy([one, two])
            before = await turn_seconds([one, two])
            await turns(shared, 400)
            had = [after - start for after, start in zip(await turn_seconds([one, two]), before, strict=True)]
            await end(programs)
            assert had[1] / had[0] == pytest.approx(1, rel=0.1)

    asyncio.run(story())


def test_a_kernel_that_never_ends_is_ended_by_an_interrupt_and_hurts_nobody_else(tmp_path: Path) -> None:
    async def story() -> None:
        shared = tmp_path / "time-slicing"
        async with worker(time_slicing=shared) as stuck, worker(time_slicing=shared) as other:
            program = stuck.start(ENDLESS)
            assert program.stdout is not None
            await asyncio.to_thread(program.stdout.readline)
            assert await compete([other], seconds=2) > [0]
            await stuck.handle.interrupt()
            out, errors = await asyncio.to_thread(program.communicate, timeout=30)
            assert out == "CUDA_ERROR_DEVICE_UNAVAILABLE\n"
            assert "what ran on the slice was interrupted" in errors
            assert (await stuck.run(SPIN + "print('fresh')")).stdout == "fresh\n"

    asyncio.run(story())


def test_an_interrupt_of_work_that_ends_changes_nothing() -> None:
    async def story() -> None:
        async with worker() as one:
            program = one.start(
                SPIN
                + "print('on', flush=True); sys.stdin.readline(); ok(d.cuCtxSynchronize()); print('fine')"
            )
            assert program.stdout is not None
            await asyncio.to_thread(program.stdout.readline)
            await one.handle.interrupt()
            for _ in range(3):  # longer than the grace of one second: the question was answered
                await asyncio.sleep(0.5)
                await one.handle.status()
            out, errors = await asyncio.to_thread(program.communicate, "\n")
            assert (out, errors) == ("fine\n", "")

    asyncio.run(story())


def test_what_a_killed_program_left_running_ends_too() -> None:
    async def story() -> None:
        async with worker() as one:
            program = one.start(ENDLESS)
            assert program.stdout is not None
            await asyncio.to_thread(program.stdout.readline)
            program.kill()
            await asyncio.to_thread(program.communicate)
            assert (await one.run(SPIN + "print('fresh')")).stdout == "fresh\n"

    asyncio.run(story())


def test_the_watchdog_ends_what_takes_too_long() -> None:
    async def story() -> None:
        async with worker(watchdog_seconds=1) as one:
            program = one.start(ENDLESS)
            out, errors = await asyncio.to_thread(program.communicate, timeout=30)
            assert out == "on\nCUDA_ERROR_DEVICE_UNAVAILABLE\n"
            assert "did not end within the 1 s that this server allows" in errors
            done = await one.run(BUSY.replace("sys.stdin.readline()", "None").replace("SECONDS", "3"))
            assert int(done.stdout.split()[-1]) > 0  # much work that ends is another matter

    asyncio.run(story())
