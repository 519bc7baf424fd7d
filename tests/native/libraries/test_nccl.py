"""NCCL on a slice of one device: a collective is a copy in the order of its stream; more ranks are refused."""

from __future__ import annotations

from tests.native.libraries.conftest import NEEDS_OPENBLAS
from tests.native.libraries.test_on_a_slice import on_a_slice

pytestmark = NEEDS_OPENBLAS  # which `on_a_slice` begins with

BEGIN = """
n = ctypes.CDLL("libnccl.so.2")
n.ncclGetLastError.restype = n.ncclGetErrorString.restype = ctypes.c_char_p
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
P, C = ctypes.c_void_p, ctypes.c_size_t
id, other = Id(), Id()
assert n.ncclGetUniqueId(ctypes.byref(id)) == 0 == n.ncclGetUniqueId(ctypes.byref(other))
assert bytes(id) != bytes(other)
comm = P()
def whole():
    assert n.ncclCommInitRank(ctypes.byref(comm), 1, id, 0) == 0
FLOAT, SUM = 7, 0
stream = ok(d.cuStreamCreate(1))
s = P(int(stream))
a = Array(np.arange(1000, dtype=np.float32))
def fresh(): return Array(np.zeros(1000, np.float32))
def same(*results):
    ok(d.cuStreamSynchronize(stream))
    return all(np.array_equal(one.get(), np.arange(1000)) for one in results)
"""


def test_collectives_of_one_rank_copy_in_the_order_of_their_stream() -> None:
    done = on_a_slice(
        BEGIN
        + """
whole()
count, rank, device, error = (ctypes.c_int(77) for _ in range(4))
n.ncclCommCount(comm, ctypes.byref(count)), n.ncclCommUserRank(comm, ctypes.byref(rank))
n.ncclCommCuDevice(comm, ctypes.byref(device)), n.ncclCommGetAsyncError(comm, ctypes.byref(error))
print(count.value, rank.value, device.value, error.value)
to = [fresh() for _ in range(9)]
k = C(1000)
print(
    n.ncclAllReduce(a.pointer, to[0].pointer, k, FLOAT, SUM, comm, s),
    n.ncclReduce(to[0].pointer, to[1].pointer, k, FLOAT, 4, 0, comm, s),
    n.ncclReduceScatter(to[1].pointer, to[2].pointer, k, FLOAT, 2, comm, s),
    n.ncclBroadcast(to[2].pointer, to[3].pointer, k, FLOAT, 0, comm, s),
    n.ncclAllGather(to[3].pointer, to[4].pointer, k, FLOAT, comm, s),
    n.pncclAllReduce(to[4].pointer, to[5].pointer, k, FLOAT, SUM, comm, s),
    n.ncclAlltoAll(to[5].pointer, to[6].pointer, k, FLOAT, comm, s),
    n.ncclGather(to[6].pointer, to[7].pointer, k, FLOAT, 0, comm, s),
    n.ncclScatter(to[7].pointer, to[8].pointer, k, FLOAT, 0, comm, s),
    n.ncclAllReduce(to[8].pointer, to[8].pointer, k, FLOAT, SUM, comm, s),
    n.ncclBcast(to[8].pointer, k, FLOAT, 0, comm, s),
)
print(same(*to))
part = fresh()
n.ncclAllReduce(a.pointer, part.pointer, C(10), 6, SUM, comm, s)  # ten halves
ok(d.cuStreamSynchronize(stream))
print(np.array_equal(part.get()[:5], np.arange(5)), part.get()[5:].any())
"""
    )
    assert done.stdout.splitlines() == ["1 0 0 0", "0 " * 10 + "0", "True", "True False"], done.stderr


def test_a_group_waits_for_its_end_and_pairs_what_is_sent_with_what_is_received() -> None:
    done = on_a_slice(
        BEGIN
        + """
whole()
to = [fresh() for _ in range(3)]
second = ok(d.cuStreamCreate(1))
n.ncclGroupStart(); n.ncclGroupStart()
print(n.ncclRecv(to[0].pointer, C(1000), FLOAT, 0, comm, s), n.ncclSend(a.pointer, C(1000), FLOAT, 0, comm, s))
print(n.ncclSend(a.pointer, C(1000), FLOAT, 0, comm, P(int(second))), n.ncclRecv(to[1].pointer, C(1000), FLOAT, 0, comm, s))
n.ncclAllReduce(a.pointer, to[2].pointer, C(1000), FLOAT, SUM, comm, s)
print(n.ncclGroupEnd(), same(to[0]), n.ncclGroupEnd(), same(*to))
print(n.ncclSend(a.pointer, C(10), FLOAT, 0, comm, s), n.ncclGetLastError(None).decode())
n.ncclGroupStart(); n.ncclSend(a.pointer, C(10), FLOAT, 0, comm, s); n.ncclRecv(to[0].pointer, C(9), FLOAT, 0, comm, s)
print(n.ncclGroupEnd(), n.ncclGetLastError(None).decode())
n.ncclGroupStart(); n.ncclAllReduce(a.pointer, to[0].pointer, C(10), 99, SUM, comm, s)
print(n.ncclGroupEnd(), n.ncclGroupEnd())
"""
    )
    assert done.stdout.splitlines() == [
        "0 0",
        "0 0",
        "0 False 0 True",
        "5 NCCL: what a rank sends to itself it must receive in the same group",
        "5 NCCL: 40 bytes are sent, and 36 received",
        "4 5",
    ], done.stderr


def test_a_captured_collective_is_a_node_that_each_launch_repeats() -> None:
    done = on_a_slice(
        BEGIN
        + """
whole()
to = fresh()
ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
n.ncclAllReduce(a.pointer, to.pointer, C(1000), FLOAT, SUM, comm, s)
run = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(stream)), 0))
print(same(to)); ok(d.cuGraphLaunch(run, stream)); print(same(to))
"""
    )
    assert done.stdout.splitlines() == ["False", "True"], done.stderr


def test_more_ranks_and_what_is_no_communicator_are_refused_in_a_sentence() -> None:
    done = on_a_slice(
        BEGIN
        + """
print(n.ncclCommInitRank(ctypes.byref(comm), 2, id, 0), comm.value, n.ncclGetLastError(None).decode())
print(n.ncclCommInitRank(ctypes.byref(comm), 1, id, 1), n.ncclCommInitRank(None, 1, id, 0))
print(n.ncclAllReduce(a.pointer, a.pointer, C(1), FLOAT, SUM, P(4711), s), n.ncclCommDestroy(P(4711)))
whole()
print(n.ncclAllReduce(a.pointer, a.pointer, C(1), FLOAT, 5, comm, s), n.ncclReduce(a.pointer, a.pointer, C(1), FLOAT, SUM, 1, comm, s))
half = P()
print(n.ncclCommSplit(comm, 0, 0, ctypes.byref(half), None), n.ncclCommDestroy(half), n.ncclCommSplit(comm, -1, 0, ctypes.byref(half), None), half.value)
print(n.ncclCommDestroy(comm), n.ncclCommDestroy(comm), n.ncclRedOpCreatePreMulSum(None))
print(n.ncclCommInitAll(ctypes.byref(comm), 1, None), n.ncclCommAbort(comm))
"""
    )
    assert done.stdout.splitlines() == [
        "5 None NCCL on a slice has a rank for each of its devices, of which there are 1, and 2 were asked for: ask for a slice of more devices",
        "4 4",
        "4 4",
        "4 4",
        "0 0 0 None",
        "0 4 5",
        "0 0",
    ], done.stderr
    assert done.stderr.count("ncclRedOpCreatePreMulSum is not supported on a slice") == 1
