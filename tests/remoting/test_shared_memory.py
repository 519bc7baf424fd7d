"""The ring of shared memory, from the side of a client that means no good."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import mmap
import os
import socket
import struct
from collections.abc import Callable

import pytest

from tests.remoting.conftest import Worker, worker
from tests.remoting.test_listeners import WELCOME, shake_hands, still_serves

SHARE_MEMORY = 28
HEAD_BYTES, RING_BYTES = 4096, 1 << 20
WRITTEN, READ, READER_SLEEPS = 0, 64, 128  # of the direction to the worker (wire/ring.h)
FUTEX, WAKE = 202, 1


def enter_with_ring(one: Worker) -> tuple[socket.socket, int]:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(next(e for e in one.handle.endpoints if e.startswith("unix:")).removeprefix("unix:"))
    sock.settimeout(20)
    assert shake_hands(sock, one.secret) == WELCOME
    sock.sendall(struct.pack("<IHH", 0, SHARE_MEMORY, 0))
    answer, descriptors, _, _ = socket.recv_fds(sock, 16, 1)
    assert struct.unpack("<IHHII", answer) == (8, SHARE_MEMORY, 0, 0, 0)
    return sock, descriptors[0]


def wake(memory: mmap.mmap) -> None:
    """A worker that sleeps until there is something to read."""
    word = ctypes.c_uint32.from_buffer(memory, READER_SLEEPS)
    word.value = 0
    ctypes.CDLL(None).syscall(FUTEX, ctypes.byref(word), WAKE, 1)
    del word  # or the memory cannot be closed


def test_a_client_cannot_take_the_pages_away_that_the_worker_reads() -> None:
    async def story() -> None:
        async with worker() as one:
            sock, descriptor = await asyncio.to_thread(enter_with_ring, one)
            for size in (0, HEAD_BYTES, HEAD_BYTES + 4 * RING_BYTES):
                with pytest.raises(PermissionError):
                    os.ftruncate(descriptor, size)
            sock.close()
            await still_serves(one)

    asyncio.run(story())


def more_than_there_is(memory: mmap.mmap) -> None:
    memory[WRITTEN : WRITTEN + 8] = struct.pack("<Q", RING_BYTES + 1)


def before_the_beginning(memory: mmap.mmap) -> None:
    memory[WRITTEN : WRITTEN + 8] = struct.pack("<Q", 2**64 - 8)


def a_frame_that_lies_about_its_size(memory: mmap.mmap) -> None:
    memory[HEAD_BYTES : HEAD_BYTES + 8] = struct.pack("<IHH", 2**32 - 1, 64, 0)
    memory[WRITTEN : WRITTEN + 8] = struct.pack("<Q", 8)


@pytest.mark.parametrize("lie", [more_than_there_is, before_the_beginning, a_frame_that_lies_about_its_size])
def test_positions_that_cannot_be_end_the_connection_and_nothing_else(
    lie: Callable[[mmap.mmap], None],
) -> None:
    async def story() -> None:
        async with worker() as one:
            sock, descriptor = await asyncio.to_thread(enter_with_ring, one)
            with mmap.mmap(descriptor, HEAD_BYTES + 2 * RING_BYTES) as memory:
                lie(memory)
                wake(memory)
                with contextlib.suppress(ConnectionResetError):  # it leaves what it had not read
                    while await asyncio.to_thread(sock.recv, 64):
                        pass
            await still_serves(one)

    asyncio.run(story())


def test_a_client_that_dies_in_the_middle_of_a_frame_costs_its_connection_only() -> None:
    async def story() -> None:
        async with worker() as one:
            sock, descriptor = await asyncio.to_thread(enter_with_ring, one)
            with mmap.mmap(descriptor, HEAD_BYTES + 2 * RING_BYTES) as memory:
                memory[HEAD_BYTES : HEAD_BYTES + 8] = struct.pack("<IHH", 4096, 64, 0)
                memory[WRITTEN : WRITTEN + 8] = struct.pack("<Q", 100)
                wake(memory)
            sock.close()
            await still_serves(one)
            async with asyncio.timeout(20):
                while (await one.handle.status()).connections:
                    await asyncio.sleep(0.02)

    asyncio.run(story())


LIE = """
import struct, time
begin(); flag = int(ok(d.cuMemAlloc(4))); ok(d.cuMemsetD32(flag, 0, 1)); s = ok(d.cuStreamCreate(1)); ok(d.cuStreamWaitValue32(s, flag, 1, 0))
ring = next(int(line.partition("-")[0], 16) for line in open("/proc/self/maps") if "gpukernel-ring" in line)
def lie():
    time.sleep(0.3); written = ctypes.c_uint64.from_address(ring + 256); answer = struct.pack("<IHHII", 8, 999, 777, 0, 0)
    ctypes.memmove(ring + {data} + written.value % {size}, answer, len(answer)); written.value += len(answer)
threading.Thread(target=lie).start(); begun = time.monotonic(); print(d.cuStreamSynchronize(s)[0].name, time.monotonic() - begun < 20)
"""


def test_a_worker_whose_answer_makes_no_sense_is_given_a_second_to_say_why() -> None:
    """The stream never comes to its end, and the worker has nothing to say."""

    async def story() -> None:
        async with worker() as one:
            done = await one.run(LIE.format(data=HEAD_BYTES + RING_BYTES, size=RING_BYTES))
            assert done.stdout.split() == ["CUDA_ERROR_DEVICE_UNAVAILABLE", "True"], done.stderr
            assert "an answer made no sense" in done.stderr
            await still_serves(one)

    asyncio.run(story())


CALLS = """
import time
from pathlib import Path
begin()
threads = [int(thread.name) for thread in Path("/proc/{pid}/task").iterdir()]
def place(processors):
    for thread in threads:
        os.sched_setaffinity(thread, processors)
everywhere = os.sched_getaffinity(0)
memory, word = int(ok(d.cuMemAlloc(4))), ctypes.create_string_buffer(4)
copy = ctypes.CDLL("libcuda.so.1").cuMemcpyDtoH_v2
copy.argtypes = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
to = ctypes.addressof(word)
ring = next(int(line.partition("-")[0], 16) for line in open("/proc/self/maps") if "gpukernel-ring" in line)
here, there = (ctypes.c_uint32.from_address(ring + at) for at in {processors})
apart = 0
for _ in range(10):
    os.sched_setaffinity(0, {processor})
    place({processor})
    copy(to, memory, 4)
    if {released}:
        os.sched_setaffinity(0, everywhere)
        place(everywhere)
    time.sleep(0.3)
    apart += sum(copy(to, memory, 4) or here.value != there.value for _ in range(2000))
print(apart, all(os.sched_getaffinity(thread) == (everywhere if {released} else {processor}) for thread in threads))
"""
PROCESSORS = 8, 256 + 8  # the program's and the worker's, as they tell each other


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_the_worker_leaves_the_processor_of_a_program_that_calls_and_calls() -> None:
    async def story() -> None:
        async with worker() as one:

            async def calls_apart(released: bool) -> int:
                code = CALLS.format(
                    pid=one.handle.pid, processor=processor, processors=PROCESSORS, released=released
                )
                done = await one.run(code)
                apart, stays_allowed_where_it_was = done.stdout.split() or [done.stderr, ""]
                assert stays_allowed_where_it_was == "True", done.stderr
                return int(apart)

            processor = {min(os.sched_getaffinity(0))}
            # Of 20,000.  Left to the kernel, a machine whose idle processors are halted has them at most 2,000 times.
            assert await calls_apart(released=True) > 10_000
            # Where somebody has placed the worker, it stays.
            assert await calls_apart(released=False) == 0

    asyncio.run(story())


LAUNCHES = """
begin(); p = int(ok(d.cuMemAlloc(4))); s = ok(d.cuStreamCreate(1))
for _ in range(2000): ok(d.cuMemsetD32Async(p, 1, 1, s))
ok(d.cuStreamSynchronize(s)); print("submitted", flush=True); sys.stdin.readline()
"""


def test_the_thread_that_runs_kernels_takes_the_processor_from_nobody() -> None:
    """Woken for each launch, it would keep the thread that reads launches from reading the next one."""

    async def story() -> None:
        async with worker() as one:
            with one.start(LAUNCHES) as program:
                assert program.stdout
                assert await asyncio.to_thread(program.stdout.readline) == "submitted\n"
                threads = map(int, os.listdir(f"/proc/{one.handle.pid}/task"))
                policies = {os.sched_getscheduler(thread) for thread in threads}
                program.communicate("\n")
            assert policies == {os.SCHED_OTHER, os.SCHED_BATCH}

    asyncio.run(story())
