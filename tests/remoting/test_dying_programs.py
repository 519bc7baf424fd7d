"""A program that dies, at whatever moment and with whatever it has queued, costs neither the next program nor its neighbours anything."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.remoting.conftest import AT_FULL_SPEED, MIB, Worker, worker
from tests.remoting.dying import begun, killed, until_served

# The promise is 2 s; ``python -m tests.remoting.dying`` kills in every way, and more often.
PROMISED = 2
SOME_WAYS = [
    "kernels of half a millisecond",
    "queued, then idle",
    "host functions",
    "a value that never comes",
    "freed in stream order",
    "endless on the default stream",
]


@AT_FULL_SPEED
def test_the_next_program_is_served_as_soon_as_on_an_idle_slice(tmp_path: Path) -> None:
    async def work() -> None:
        chance = random.Random(20)
        async with worker(time_slicing=tmp_path / "time-slicing") as one:
            idle = max([await until_served(one) for _ in range(2)])
            for way in SOME_WAYS:
                late = []
                for _attempt in range(3):  # something else may have had the processors
                    await killed(one, way, chance.uniform(0, 0.5))
                    late.append(await until_served(one) - idle)
                    if late[-1] < PROMISED:
                        break
                else:
                    pytest.fail(f"after {way!r} the next program was served {late} s later")

    asyncio.run(work())


# It has memory with something in it, and a kernel that ends when the program says so.
BYSTANDER = """
HOLD = b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry hold(.param .u64 flag) {
    .reg .b64 %rd<2>; .reg .b32 %r<3>; .reg .pred %p;
    ld.param.u64 %rd1, [flag];
again:
    ld.volatile.global.u32 %r1, [%rd1]; setp.eq.u32 %p, %r1, 0; @%p bra again;
    add.u32 %r2, %r1, 1; st.global.u32 [%rd1+4], %r2;
    ret;
}'''
begin(); hold = load(HOLD, b"hold"); flag = ok(d.cuMemAlloc(8)); ok(d.cuMemsetD32(flag, 0, 2))
kept = ok(d.cuMemAlloc(1 << 20)); ok(d.cuMemsetD8(kept, 42, 1 << 20)); ok(d.cuStreamSynchronize(0))
stream = ok(d.cuStreamCreate(1)); ok(d.cuLaunchKernel(hold, 1,1,1, 1,1,1, 0, stream, ((int(flag),), (ctypes.c_uint64,)), 0))
print("on", flush=True); sys.stdin.readline()
assert int(d.cuStreamQuery(stream)[0]) == 600, "its kernel runs still"
other = ok(d.cuStreamCreate(1)); ok(d.cuMemsetD32Async(flag, 7, 1, other)); ok(d.cuStreamSynchronize(stream))
out = bytearray(8); ok(d.cuMemcpyDtoH(out, flag, 8)); assert out[4] == 8, out
out = bytearray(1 << 20); ok(d.cuMemcpyDtoH(out, kept, 1 << 20)); assert set(out) == {42}
print("as before", flush=True)
"""
NEWCOMER = """
begin(); memory = ok(d.cuMemAlloc(48 << 20)); f = load(STORE_U32, b"store")
ok(d.cuLaunchKernel(f, 1,1,1, 1,1,1, 0, 0, ((int(memory), 7), (ctypes.c_uint64, ctypes.c_uint32)), 0))
out = bytearray(4); ok(d.cuMemcpyDtoH(out, memory, 4)); print("served", out[0])
"""


async def used(one: Worker) -> int:
    """Return what is charged to the slice once nothing more comes back."""
    figures = []
    for _ in range(100):
        figures.append((await one.handle.status()).memory_used_bytes)
        if len(figures) > 3 and len(set(figures[-4:])) == 1:
            break
        await asyncio.sleep(0.05)
    return figures[-1]


def test_neighbours_keep_their_work_and_their_memory_and_the_dead_ones_comes_back() -> None:
    async def work() -> None:
        async with worker(memory_mib=96) as one:
            bystander = one.start(BYSTANDER)
            assert bystander.stdout is not None
            assert await asyncio.to_thread(bystander.stdout.readline) == "on\n", bystander.communicate()
            before = await used(one)
            for way in ("many streams", "copies", "endless", "a large module", "freed in stream order"):
                program = await begun(one, way)
                await asyncio.sleep(0.2)
                assert (await one.handle.status()).memory_used_bytes >= before + 40 * MIB
                program.kill()
                program.communicate()
                # More than the dead one left over: what was its own is free again, though the bystander's kernel runs.
                done = await one.run(NEWCOMER)
                assert done.stdout == "served 7\n", (way, done.stderr)
                assert await used(one) == before, way
            out, err = await asyncio.to_thread(bystander.communicate, "go\n")
            assert out == "as before\n", err

    asyncio.run(work())


def test_what_a_dead_program_had_queued_is_not_done() -> None:
    async def work() -> None:
        async with worker() as one:
            program = await begun(one, "queued, then idle")  # 20,000 launches
            begun_with = (await one.handle.status()).launches
            program.kill()
            program.communicate()
            await until_served(one)
            # The worker is as far ahead of the device as before.  It took all 20,000.
            taken = (await one.handle.status()).launches
            assert begun_with <= taken < begun_with + 4000 < 16_000

    asyncio.run(work())


# --- what a program is told that is not let in ---


LOST_CONTEXT = """
begin(); f = load(WILD, b"wild"); ok(d.cuLaunchKernel(f, 1,1,1, 1,1,1, 0, 0, 0, 0)); assert int(d.cuCtxSynchronize()[0]) == 700
print("on", flush=True)
sys.stdin.readline()
"""


def test_who_waits_for_another_program_is_told_for_whom() -> None:
    async def work() -> None:
        async with worker() as one:
            faulty = one.start(LOST_CONTEXT)
            assert faulty.stdout is not None
            while await asyncio.to_thread(faulty.stdout.readline) not in ("on\n", ""):
                pass
            await asyncio.sleep(3.2)
            for refused in await asyncio.gather(*(one.run("begin()", kind=kind) for kind in ("unix", "tcp"))):
                assert "an error has ended the slice's context, and for " in refused.stderr
                assert f"(process {faulty.pid}, '" in refused.stderr, refused.stderr
                assert "version" not in refused.stderr
            faulty.communicate("go\n")
            await until_served(one)

    asyncio.run(work())
