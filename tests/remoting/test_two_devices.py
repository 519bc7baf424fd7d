"""Two devices of one lease: a stream or an event says by itself which of them it is of (programming guide, “Multi-Device System”).

What waits here waits for a flag that another thread writes when the call under test has begun.
"""

from __future__ import annotations

import asyncio

from tests.remoting.conftest import worker

BEGIN = """
ok(d.cuInit(0))
contexts = [ok(d.cuDevicePrimaryCtxRetain(i)) for i in range(2)]
def use(i): ok(d.cuCtxSetCurrent(contexts[i]))
streams, events, memory, flags, beside = [], [], [], [], []
for i in range(2):
    use(i)
    streams.append(ok(d.cuStreamCreate(1))); beside.append(ok(d.cuStreamCreate(1)))
    events.append(ok(d.cuEventCreate(2)))
    memory.append(ok(d.cuMemAlloc(4096))); flags.append(ok(d.cuMemAlloc(4)))
    ok(d.cuMemsetD8(memory[i], 0, 4096)); ok(d.cuMemsetD8(flags[i], 0, 4)); ok(d.cuCtxSynchronize())
def code(result): return int(result[0])  # 600: not ready; 400: invalid handle
def blocked(i):
    use(i); ok(d.cuStreamWaitValue32(streams[i], flags[i], 1, 0))
def opened(i):
    def run():
        use(i)
        for _ in range(50): ok(d.cuMemGetInfo())
        ok(d.cuStreamWriteValue32(beside[i], flags[i], 1, 0)); ok(d.cuStreamSynchronize(beside[i]))
    thread = threading.Thread(target=run); thread.start(); return thread
def bytes_of(i):
    use(i); host = bytearray(4096); ok(d.cuMemcpyDtoH(host, memory[i], 4096)); return set(host)
"""


def with_two_devices(code: str) -> list[str]:
    async def run() -> list[str]:
        async with worker(secret="ab" * 32) as first, worker(secret="ab" * 32) as second:
            done = await first.run(BEGIN + code, second=second)
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines()

    return asyncio.run(run())


def test_no_handle_is_of_two_devices() -> None:
    assert with_two_devices("print(len({int(h) for h in (*streams, *events, *beside)}))") == ["6"]


def test_queries_and_waits_reach_the_handles_own_device() -> None:
    assert with_two_devices(
        """
blocked(0); ok(d.cuEventRecord(events[0], streams[0]))
use(1)
print(code(d.cuStreamQuery(streams[0])), code(d.cuEventQuery(events[0])), code(d.cuStreamQuery(streams[1])))
thread = opened(0)
print(code(d.cuStreamSynchronize(streams[0])), code(d.cuEventQuery(events[0]))); thread.join()
print([int(ok(d.cuStreamGetDevice(s))) for s in streams], [int(ok(d.cuStreamGetCtx(s))) == int(c) for s, c in zip(streams, contexts)])
ok(d.cuCtxSetCurrent(d.CUcontext(0)))
print(code(d.cuStreamSynchronize(streams[1])), code(d.cuEventSynchronize(events[0])))
"""
    ) == ["600 600 0", "0 0", "[0, 1] [True, True]", "0 0"]


def test_a_stream_waits_for_the_other_devices_event() -> None:
    assert with_two_devices(
        """
blocked(0); ok(d.cuMemsetD8Async(memory[0], 7, 4096, streams[0])); ok(d.cuEventRecord(events[0], streams[0]))
use(1); thread = opened(0)
ok(d.cuStreamWaitEvent(streams[1], events[0], 0))
ok(d.cuMemcpyPeerAsync(memory[1], contexts[1], memory[0], contexts[0], 4096, streams[1]))
ok(d.cuStreamSynchronize(streams[1])); thread.join()
print(bytes_of(1))
"""
    ) == ["{7}"]


def test_a_copy_between_devices_is_in_the_order_of_its_stream() -> None:
    assert with_two_devices(
        """
blocked(0); ok(d.cuMemsetD8Async(memory[0], 7, 4096, streams[0])); thread = opened(0)
ok(d.cuMemcpyPeerAsync(memory[1], contexts[1], memory[0], contexts[0], 4096, streams[0])); thread.join()
print(bytes_of(1))
blocked(1); ok(d.cuMemsetD8Async(memory[1], 5, 2048, streams[1]))
thread = opened(1); use(1)
ok(d.cuMemcpyPeerAsync(memory[1], contexts[1], memory[0], contexts[0], 4096, streams[1])); thread.join()
ok(d.cuStreamSynchronize(streams[1]))
print(bytes_of(1))
"""
    ) == ["{7}", "{7}"]


def test_an_event_is_recorded_and_timed_on_its_own_device_alone() -> None:
    assert with_two_devices(
        """
use(0)
timed = [ok(d.cuEventCreate(0))]; use(1); timed.append(ok(d.cuEventCreate(0)))
print(code(d.cuEventRecord(events[1], streams[0])), code(d.cuEventRecord(events[0], streams[1])))
for i in range(2): use(i); ok(d.cuEventRecord(timed[i], streams[i])); ok(d.cuEventSynchronize(timed[i]))
print(code(d.cuEventElapsedTime(timed[0], timed[1])))
"""
    ) == ["400 400", "400"]


def test_a_copy_between_addresses_finds_their_devices() -> None:
    assert with_two_devices(
        """
use(1); ok(d.cuMemsetD8Async(memory[1], 9, 4096, streams[1]))
ok(d.cuMemcpyDtoDAsync(memory[0], memory[1], 4096, streams[1])); print(bytes_of(0))
use(0); ok(d.cuMemsetD8Async(memory[0], 4, 4096, streams[0]))
ok(d.cuMemcpyAsync(memory[1], memory[0], 4096, streams[0])); ok(d.cuStreamSynchronize(streams[0])); print(bytes_of(1))
use(0); ok(d.cuMemcpyDtoD(memory[0], memory[1], 2048)); print(bytes_of(0))
"""
    ) == ["{9}", "{4}", "{4}"]
