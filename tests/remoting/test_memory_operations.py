"""Values in memory that a stream writes, or waits for (driver API, "Stream Memory Operations"; nodes of graphs).

Nothing here measures time: a stream that does not wait leaves a wrong value, one that waits for nothing a program that
never ends.  SPIN's words, streams and kernels are those of the tests of streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.native.simgpu_driver.test_driver import out
from tests.native.simgpu_driver.test_streams import SPIN
from tests.remoting.conftest import WITHOUT_THREAD_SANITIZER, worker
from tests.remoting.test_streams import said

OPERATIONS = (
    SPIN
    + """
T = d.CUstreamBatchMemOpType
GEQ, EQ, AND, NOR = range(4)
s, other = free_stream(), free_stream()
def operation(kind, address=0, value=0, flags=0):
    one = d.CUstreamBatchMemOpParams()
    if kind == T.CU_STREAM_MEM_OP_BARRIER:
        one.operation = kind; one.memoryBarrier.flags = flags; return one
    part = one.waitValue if kind in (T.CU_STREAM_MEM_OP_WAIT_VALUE_32, T.CU_STREAM_MEM_OP_WAIT_VALUE_64) else one.writeValue
    part.operation = kind; part.address = address; part.flags = flags
    if kind in (T.CU_STREAM_MEM_OP_WAIT_VALUE_64, T.CU_STREAM_MEM_OP_WRITE_VALUE_64): part.value64 = value
    else: part.value = value
    return one
def waits(value, flags, address=FLAG): return operation(T.CU_STREAM_MEM_OP_WAIT_VALUE_32, address, value, flags)
def writes(value, address=FLAG): return operation(T.CU_STREAM_MEM_OP_WRITE_VALUE_32, address, value)
def batch(stream, *operations): return int(d.cuStreamBatchMemOp(stream, len(operations), list(operations), 0)[0])
def long_word(address):
    host = ctypes.c_uint64()
    ok(d.cuMemcpyDtoHAsync(host, address, 8, beside)); ok(d.cuStreamSynchronize(beside)); return host.value
"""
)


def through(**transport: object) -> Callable[[str], str]:
    return lambda code: said(code, prelude="", **transport)


WHERE = pytest.mark.parametrize(
    "result_of",
    [pytest.param(out, marks=WITHOUT_THREAD_SANITIZER), through(), through(kind="tcp")],
    ids=["in process", "shared memory", "tcp"],
)


@WHERE
def test_a_stream_writes_words_of_both_sizes_and_no_byte_beside_them(result_of: Callable[[str], str]) -> None:
    assert result_of(
        OPERATIONS
        + """
ok(d.cuMemsetD8(words, 0xff, 32)); ok(d.cuCtxSynchronize())
ok(d.cuStreamWriteValue32(s, words + 4, 0x01020304, 0))
ok(d.cuStreamWriteValue64(s, words + 16, 0x0102030405060708, d.CUstreamWriteValue_flags.CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER))
ok(d.cuStreamSynchronize(s))
print(*(hex(long_word(words + 8 * i)) for i in range(4)))
"""
    ).split() == ["0x1020304ffffffff", "0xffffffffffffffff", "0x102030405060708", "0xffffffffffffffff"]


@WHERE
def test_what_follows_a_wait_runs_when_another_stream_has_written(result_of: Callable[[str], str]) -> None:
    assert (
        result_of(
            OPERATIONS
            + """
ok(d.cuStreamWaitValue32(s, FLAG, 3, EQ))
ok(d.cuMemcpyDtoDAsync(SEEN, OTHER, 4, s))   # what the other stream has written by then
before = is_done(s), word(SEEN)
ok(d.cuMemsetD32Async(OTHER, 42, 1, other)); ok(d.cuStreamWriteValue32(other, FLAG, 3, 0))
ok(d.cuStreamSynchronize(s)); print(*before, word(SEEN))
"""
        )
        == "False 0 42"
    )


@WHERE
def test_a_wait_ends_by_a_kernels_store_and_by_a_copy(result_of: Callable[[str], str]) -> None:
    assert (
        result_of(
            OPERATIONS
            + """
ok(d.cuStreamWaitValue32(s, FLAG, 1, EQ)); ok(d.cuStreamWriteValue32(s, SEEN, 1, 0))
ok(d.cuStreamWaitValue64(s, OTHER, 1 << 40, GEQ)); ok(d.cuStreamWriteValue32(s, DONE, 2, 0))
signal(other)
while word(SEEN) != 1: pass
between = word(DONE), is_done(s)
ok(d.cuMemcpyHtoDAsync(OTHER, ctypes.c_uint64(1 << 40), 8, beside))
ok(d.cuStreamSynchronize(s)); print(*between, word(DONE))
"""
        )
        == "0 False 2"
    )


@WHERE
def test_each_condition_holds_for_the_values_that_the_reference_says(result_of: Callable[[str], str]) -> None:
    """Of each pair the stream must wait for the first value, and go on at the second."""
    full = 2**32 - 1
    cases = [
        ("GEQ", 5, 4, 5),
        ("GEQ", 5, 2**31 + 5, 2**31 + 4),  # cyclic: half of all values are ahead
        ("GEQ", 0, full, 0),
        ("EQ", 7, 8, 7),
        ("AND", 0b110, 0b001, 0b100),
        ("NOR", 0xFFFF0000, 0xFFFF, 0xFFFE),
        ("NOR", 0, full, 0),
    ]
    result = result_of(
        OPERATIONS
        + f"""
for how, value, no, yes in {cases!r}:
    for call, wide in ((d.cuStreamWaitValue32, 0), (d.cuStreamWaitValue64, 1)):
        # The same at the upper end of 64 bits.
        v, n, y = ((x << 32) | (0xffffffff if how == "NOR" else 0) if wide else x for x in (value, no, yes))
        put = d.cuStreamWriteValue64 if wide else d.cuStreamWriteValue32
        ok(put(other, FLAG, n, 0)); ok(d.cuStreamSynchronize(other))
        ok(call(s, FLAG, v, globals()[how])); ok(d.cuStreamQuery(other))
        held = not is_done(s)
        ok(put(other, FLAG, y, 0)); ok(d.cuStreamSynchronize(s))
        print(held, end=" ")
"""
    )
    assert result.split() == ["True"] * 2 * len(cases)


@WHERE
def test_a_batch_is_done_in_its_order_or_not_at_all(result_of: Callable[[str], str]) -> None:
    result = result_of(
        OPERATIONS
        + """
barrier = operation(T.CU_STREAM_MEM_OP_BARRIER, flags=int(d.CUstreamMemoryBarrier_flags.CU_STREAM_MEMORY_BARRIER_TYPE_GPU))
print(batch(s, writes(1, SEEN), waits(1, EQ), barrier, writes(2, SEEN)))
while word(SEEN) != 1: pass
print(is_done(s)); ok(d.cuStreamWriteValue32(other, FLAG, 1, 0)); ok(d.cuStreamSynchronize(s)); print(word(SEEN))
# One that cannot be, behind one that could.
for wrong in (operation(T.CU_STREAM_MEM_OP_WRITE_VALUE_32, FLAG + 2, 9), operation(T.CU_STREAM_MEM_OP_WRITE_VALUE_64, FLAG + 4, 9),
              waits(1, 4), operation(T.CU_STREAM_MEM_OP_WRITE_VALUE_32, FLAG, 9, 2), operation(T.CU_STREAM_MEM_OP_BARRIER, flags=2)):
    print(batch(s, writes(9, SEEN), wrong), end=" ")
print(batch(s, writes(9, SEEN), operation(T.CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES)), batch(s), batch(s, *[writes(9, SEEN)] * 257))
ok(d.cuStreamSynchronize(s)); print(word(SEEN))
print(batch(s, *[writes(10, SEEN)] * 256)); ok(d.cuStreamSynchronize(s)); print(word(SEEN))
"""
    )
    assert result.split("\n") == ["0", "False", "2", "1 1 1 1 1 801 1 1", "2", "0", "10"]


@pytest.mark.parametrize("transport", [{}, {"kind": "tcp"}], ids=["shared memory", "tcp"])
def test_memory_that_is_not_the_programs_is_neither_written_nor_looked_at(
    transport: dict[str, object],
) -> None:
    """The error comes with the next answer, as for any call in a queue."""
    assert (
        said(
            OPERATIONS
            + """
print(int(d.cuStreamWriteValue32(s, words + 4096, 1, 0)[0]), int(d.cuStreamSynchronize(s)[0]), end=" ")
print(int(d.cuStreamWaitValue64(s, words + 4096, 1, EQ)[0]), int(d.cuStreamSynchronize(s)[0]))
""",
            prelude="",
            **transport,
        )
        == "0 1 0 1"
    )


@WHERE
def test_streams_that_wait_take_nothing_from_the_others(result_of: Callable[[str], str]) -> None:
    """More of them than the simulated GPU has threads; and what waits behind an event waits, too."""
    assert (
        result_of(
            OPERATIONS
            + """
streams = [free_stream() for _ in range(80)]
for i, stream in enumerate(streams):
    ok(d.cuStreamWaitValue32(stream, FLAG, i + 1, GEQ)); ok(d.cuStreamWriteValue32(stream, words + 1024 + 4 * i, i + 1, 0))
event = ok(d.cuEventCreate(0)); ok(d.cuEventRecord(event, streams[-1])); ok(d.cuStreamWaitEvent(s, event, 0))
ok(d.cuStreamWriteValue32(s, SEEN, 1, 0))
signal(other, DONE); ok(d.cuStreamSynchronize(other))
print(word(DONE), word(SEEN), sum(is_done(x) for x in streams), end=" ")
ok(d.cuStreamWriteValue32(other, FLAG, 40, 0)); ok(d.cuStreamSynchronize(streams[39]))
while sum(is_done(x) for x in streams) != 40: pass
print(word(words + 1024 + 4 * 39), word(words + 1024 + 4 * 40), word(SEEN), end=" ")
ok(d.cuStreamWriteValue32(other, FLAG, 80, 0)); ok(d.cuStreamSynchronize(s)); print(word(SEEN))
"""
        )
        == "1 0 0 40 0 0 1"
    )


@pytest.mark.parametrize("transport", [{}, {"kind": "tcp"}], ids=["shared memory", "tcp"])
def test_a_captured_wait_and_write_are_nodes_of_a_graph(transport: dict[str, object]) -> None:
    result = said(
        OPERATIONS
        + """
ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
ok(d.cuStreamWaitValue32(s, FLAG, 1, EQ)); ok(d.cuStreamWriteValue32(s, SEEN, 5, 0))
graph = ok(d.cuStreamEndCapture(s))
print(word(SEEN), [ok(d.cuGraphNodeGetType(n)).name for n in d.cuGraphGetNodes(graph, 8)[1][:2]])
executable = ok(d.cuGraphInstantiate(graph, 0))
ok(d.cuGraphLaunch(executable, s)); held = not is_done(s)
ok(d.cuStreamWriteValue32(other, FLAG, 1, 0)); ok(d.cuStreamSynchronize(s)); print(held, word(SEEN))
node = d.cuGraphGetNodes(graph, 8)[1][1]
params = ok(d.cuGraphBatchMemOpNodeGetParams(node)); print(params.count, params.flags)
# Another value, first in the executable and then in the graph.
params = d.CUDA_BATCH_MEM_OP_NODE_PARAMS(); params.count, params.paramArray = 1, [writes(6, SEEN)]
ok(d.cuGraphExecBatchMemOpNodeSetParams(executable, node, params)); ok(d.cuGraphLaunch(executable, s)); ok(d.cuStreamSynchronize(s)); print(word(SEEN))
params.paramArray = [writes(7, SEEN)]
ok(d.cuGraphBatchMemOpNodeSetParams(node, params)); ok(d.cuGraphExecUpdate(executable, graph))
ok(d.cuGraphLaunch(executable, s)); ok(d.cuStreamSynchronize(s)); print(word(SEEN))
params.paramArray = [operation(T.CU_STREAM_MEM_OP_WRITE_VALUE_32, SEEN + 1, 7)]
print(int(d.cuGraphBatchMemOpNodeSetParams(node, params)[0]), int(d.cuGraphExecBatchMemOpNodeSetParams(executable, node, params)[0]))
""",
        prelude="",
        **transport,
    )
    assert result.split("\n") == [
        "0 ['CU_GRAPH_NODE_TYPE_BATCH_MEM_OP', 'CU_GRAPH_NODE_TYPE_BATCH_MEM_OP']",
        "True 5",
        "1 0",
        "6",
        "7",
        "1 1",
    ]


def test_nodes_are_made_by_hand_in_both_ways() -> None:
    result = said(
        OPERATIONS
        + """
graph = ok(d.cuGraphCreate(0))
params = d.CUDA_BATCH_MEM_OP_NODE_PARAMS(); params.count, params.paramArray = 2, [writes(1, SEEN), writes(2, OTHER)]
first = ok(d.cuGraphAddBatchMemOpNode(graph, None, 0, params))
node = d.CUgraphNodeParams(); node.type = d.CUgraphNodeType.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP
node.memOp.count, node.memOp.paramArray = 1, [writes(3, SEEN)]
ok(d.cuGraphAddNode(graph, [first], 1, node))
executable = ok(d.cuGraphInstantiate(graph, 0)); ok(d.cuGraphLaunch(executable, s)); ok(d.cuStreamSynchronize(s))
print(word(SEEN), word(OTHER))
""",
        prelude="",
    )
    assert result == "3 2"


def test_a_wait_for_what_the_program_writes_without_a_copy_is_refused() -> None:
    """What a program writes into managed memory, and into host memory that kernels reach, travels when a stream's work is
    done, so that it would wait for ever; to write there is like a kernel's store."""
    result = said(
        OPERATIONS
        + """
managed = int(ok(d.cuMemAllocManaged(4096, 1)))
mapped = int(ok(d.cuMemHostAlloc(4096, d.CU_MEMHOSTALLOC_DEVICEMAP)))
for address in (managed, mapped):
    there = ctypes.c_uint32.from_address(address); there.value = 5
    print(int(d.cuStreamWaitValue32(s, address, 1, EQ)[0]), int(d.cuStreamWriteValue32(s, address, 8, 0)[0]), end=" ")
    ok(d.cuStreamSynchronize(s)); print(there.value)
""",
        prelude="",
    )
    assert result.split("\n") == ["801 0 8"] * 2


def test_a_program_that_leaves_a_stream_waiting_for_ever_costs_itself_only() -> None:
    async def story() -> None:
        async with worker() as one:
            code = "ok(d.cuStreamWaitValue32(s, FLAG, 1, EQ)); is_done(s); os._exit(0)"
            left = await one.run(OPERATIONS + code)
            assert left.returncode == 0, left.stderr
            then = await one.run(OPERATIONS + "print(word(FLAG))")
            assert then.stdout == "0\n", then.stderr

    asyncio.run(story())
