"""NCCL over two devices of one lease, in one process: every collective against NumPy, in groups and in threads."""

from __future__ import annotations

import asyncio

from tests.native.libraries.conftest import NEEDS_OPENBLAS
from tests.native.libraries.test_on_a_slice import BLAS, ROOT
from tests.remoting.conftest import worker

pytestmark = NEEDS_OPENBLAS

BEGIN = """
import threading
n = ctypes.CDLL("libnccl.so.2")
n.ncclGetLastError.restype = ctypes.c_char_p
P, C = ctypes.c_void_p, ctypes.c_size_t
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
contexts = [ok(d.cuDevicePrimaryCtxRetain(i)) for i in range(2)]
def use(i): ok(d.cuCtxSetCurrent(contexts[i]))
streams = []
for i in range(2): use(i); streams.append(P(int(ok(d.cuStreamCreate(1)))))
comms = (P * 2)()
assert n.ncclCommInitAll(comms, 2, None) == 0, n.ncclGetLastError(None)
comms = [P(c) for c in comms]
def on(i, host):
    use(i); return Array(host)
def get(i, array):
    use(i); ok(d.cuStreamSynchronize(d.CUstream(streams[i].value))); return array.get()
def last(): return n.ncclGetLastError(None).decode()
def grouped(*calls):
    assert n.ncclGroupStart() == 0
    for call in calls: assert call() == 0, last()
    return n.ncclGroupEnd()
def both(call):
    status = grouped(*(lambda i=i: call(i) for i in range(2)))
    assert status == 0, last()
FLOAT, SUM = 7, 0
rng = np.random.default_rng(0)
"""


def on_two_devices(code: str) -> list[str]:
    async def run() -> list[str]:
        async with (
            worker(memory_mib=64, secret="ab" * 32) as first,
            worker(memory_mib=64, secret="ab" * 32) as second,
        ):
            done = await first.run(
                f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{BLAS}{BEGIN}{code}", second=second
            )
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines()

    return asyncio.run(run())


def test_every_collective_gives_what_numpy_gives() -> None:
    assert on_two_devices(
        """
N = 1000
whole = rng.standard_normal((2, 2 * N)).astype(np.float32)  # a row for each rank
sums = whole.sum(0)
k = C(N)
def check(name, call, wanted, sizes=(N, N), given=N):
    source = [on(i, whole[i, :given]) for i in range(2)]
    to = [on(i, np.full(sizes[i], -1, np.float32)) for i in range(2)]
    both(lambda i: call(i, source[i].pointer, to[i].pointer))
    for i in range(2):
        got = get(i, to[i])
        assert np.allclose(got, wanted[i], rtol=1e-6), (name, i, got[:5], wanted[i][:5])
kept = np.full(N, -1, np.float32)
check("all-reduce", lambda i, f, t: n.ncclAllReduce(f, t, k, FLOAT, SUM, comms[i], streams[i]), [sums[:N]] * 2)
check("reduce", lambda i, f, t: n.ncclReduce(f, t, k, FLOAT, SUM, 1, comms[i], streams[i]), [kept, sums[:N]])
check("reduce-scatter", lambda i, f, t: n.ncclReduceScatter(f, t, k, FLOAT, SUM, comms[i], streams[i]), [sums[:N], sums[N:]], given=2 * N)
check("broadcast", lambda i, f, t: n.ncclBroadcast(f, t, k, FLOAT, 1, comms[i], streams[i]), [whole[1, :N]] * 2)
together = whole[:, :N].reshape(-1)
check("all-gather", lambda i, f, t: n.ncclAllGather(f, t, k, FLOAT, comms[i], streams[i]), [together] * 2, (2 * N, 2 * N))
check("gather", lambda i, f, t: n.ncclGather(f, t, k, FLOAT, 0, comms[i], streams[i]), [together, kept], (2 * N, N))
check("scatter", lambda i, f, t: n.ncclScatter(f, t, k, FLOAT, 1, comms[i], streams[i]), [whole[1, :N], whole[1, N:]], given=2 * N)
check("all-to-all", lambda i, f, t: n.ncclAlltoAll(f, t, k, FLOAT, comms[i], streams[i]),
      [np.r_[whole[0, :N], whole[1, :N]], np.r_[whole[0, N:], whole[1, N:]]], (2 * N, 2 * N), 2 * N)
place = [on(i, whole[i]) for i in range(2)]
both(lambda i: n.ncclBcast(place[i].pointer, k, FLOAT, 0, comms[i], streams[i]))
assert np.array_equal(get(1, place[1]), np.r_[whole[0, :N], whole[1, N:]])
both(lambda i: n.ncclAllReduce(place[i].pointer, place[i].pointer, C(0), FLOAT, SUM, comms[i], streams[i]))
print("all")
"""
    ) == ["all"]


def test_every_type_and_operation() -> None:
    assert on_two_devices(
        """
def halves(x): return x.astype(np.float16)
def brain(x):  # to the nearest, ties to even
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)
def of_brain(b): return (b.astype(np.uint32) << 16).view(np.float32)
def small(e, m, top):  # every float of 8 bits, by its bits
    values = []
    for b in range(256):
        x, f = b >> m & (1 << e) - 1, b & (1 << m) - 1
        v = (f / 2**m) * 2.0 ** (2 - 2 ** (e - 1)) if not x else (1 + f / 2**m) * 2.0 ** (x - 2 ** (e - 1) + 1)
        values.append(np.nan if (b & 0x7f) > top else (-v if b & 0x80 else v))
    return np.array(values)
def nearest(table, x):
    order = [b for b in range(256) if not np.isnan(table[b])]
    return np.array([min(order, key=lambda b: (abs(table[b] - v), b & 1)) for v in x], np.uint8)
OPERATIONS = [np.add, np.multiply, np.maximum, np.minimum, lambda a, b: (a + b) / 2]
def run(type, operation, a, b):
    given = [on(i, x) for i, x in enumerate((a, b))]
    both(lambda i: n.ncclAllReduce(given[i].pointer, given[i].pointer, C(a.size), type, operation, comms[i], streams[i]))
    first, second = get(0, given[0]), get(1, given[1])
    assert first.tobytes() == second.tobytes()
    return first
INTEGERS = {0: np.int8, 1: np.uint8, 2: np.int32, 3: np.uint32, 4: np.int64, 5: np.uint64}
for type, kind in INTEGERS.items():
    a, b = (np.frombuffer(rng.bytes(64 * np.dtype(kind).itemsize), kind) for _ in range(2))
    for o in range(4): assert np.array_equal(run(type, o, a, b), OPERATIONS[o](a, b)), (type, o)
    assert np.array_equal(run(type, 4, a // 2, b // 2), np.trunc((a // 2 + b // 2) / 2).astype(kind)) or kind in (np.int64, np.uint64)
x, y = rng.standard_normal((2, 4096)) * 10.0 ** rng.integers(-9, 5, (2, 4096))
for o in range(5):
    for type, kind in {6: np.float16, 7: np.float32, 8: np.float64}.items():
        with np.errstate(over="ignore"):
            a, b = x.astype(kind), y.astype(kind)
            wanted = OPERATIONS[o](a.astype(np.float64), b.astype(np.float64)).astype(kind)
        assert np.array_equal(run(type, o, a, b), wanted, equal_nan=True), (type, o)
    a, b = brain(x), brain(y)
    assert np.array_equal(run(9, o, a, b), brain(OPERATIONS[o](of_brain(a).astype(float), of_brain(b).astype(float)))), (9, o)
    for type, table in {10: small(4, 3, 0x7e), 11: small(5, 2, 0x7b)}.items():
        a, b = nearest(table, x[:300]), nearest(table, y[:300])
        wanted = nearest(table, OPERATIONS[o](table[a], table[b]))
        got = run(type, o, a, b)
        assert np.array_equal(table[got], table[wanted]), (type, o)
special = np.array([np.nan, np.inf, -np.inf, 0.0], np.float16)
assert np.array_equal(run(6, 0, special, special), special, equal_nan=True)
print("all")
"""
    ) == ["all"]


def test_a_collective_waits_for_its_streams_and_its_ranks_may_be_threads() -> None:
    assert on_two_devices(
        """
id = Id(); n.ncclGetUniqueId(ctypes.byref(id))
found = [None, None]
def rank(i):
    use(i); comm = P()
    assert n.ncclCommInitRankConfig(ctypes.byref(comm), 2, id, i, None) == 0, last()
    count, own, device = (ctypes.c_int(77) for _ in range(3))
    n.ncclCommCount(comm, ctypes.byref(count)), n.ncclCommUserRank(comm, ctypes.byref(own)), n.ncclCommCuDevice(comm, ctypes.byref(device))
    a, total = Array(np.zeros(100_000, np.float32)), 0
    stream = d.CUstream(streams[i].value)
    for step in range(20):
        ok(d.cuMemsetD32Async(a.address, int(np.float32(step + i + 1).view(np.uint32)), 100_000, stream))
        assert n.ncclAllReduce(a.pointer, a.pointer, C(100_000), FLOAT, SUM, comm, streams[i]) == 0, last()
        ok(d.cuStreamSynchronize(stream)); total += a.get()
    found[i] = (count.value, own.value, device.value, set(total), n.ncclCommDestroy(comm))
threads = [threading.Thread(target=rank, args=(i,)) for i in range(2)]
for t in threads: t.start()
for t in threads: t.join()
print(found)
"""
    ) == [
        f"[(2, 0, 0, {{np.float32({sum(2 * s + 3 for s in range(20))}.0)}}, 0), (2, 1, 1, {{np.float32({sum(2 * s + 3 for s in range(20))}.0)}}, 0)]"
    ]


def test_ranks_send_and_receive_and_split() -> None:
    assert on_two_devices(
        """
own = [on(i, np.arange(10, dtype=np.float32) + 100 * i) for i in range(2)]
to = [on(i, np.zeros(10, np.float32)) for i in range(2)]
k = C(10)
print(grouped(*(call for i in range(2) for call in (
    lambda i=i: n.ncclSend(own[i].pointer, k, FLOAT, 1 - i, comms[i], streams[i]),
    lambda i=i: n.ncclRecv(to[i].pointer, k, FLOAT, 1 - i, comms[i], streams[i])))),
    [np.array_equal(get(i, to[i]), own[1 - i].host) for i in range(2)])
print(grouped(lambda: n.ncclSend(own[0].pointer, k, FLOAT, 1, comms[0], streams[0]),
              lambda: n.ncclRecv(to[1].pointer, C(9), FLOAT, 0, comms[1], streams[1])), last())
half = [P(), P()]
both(lambda i: n.ncclCommSplit(comms[i], 0, -i, ctypes.byref(half[i]), None))  # the other way round
ranks = [ctypes.c_int() for _ in range(2)]
for i in range(2): n.ncclCommUserRank(half[i], ctypes.byref(ranks[i]))
both(lambda i: n.ncclBcast(own[i].pointer, k, FLOAT, 0, half[i], streams[i]))
print([r.value for r in ranks], get(0, own[0])[0])
alone = [P(), P()]
both(lambda i: n.ncclCommSplit(comms[i], i - 1, 0, ctypes.byref(alone[i]), None))
n.ncclCommCount(alone[1], ctypes.byref(ranks[0])); print(alone[0].value, ranks[0].value)
"""
    ) == [
        "0 [True, True]",
        "5 NCCL: 40 bytes are sent, and 36 received",
        "[1, 0] 100.0",
        "None 1",
    ]


def test_what_does_not_fit_together_is_refused_in_a_sentence() -> None:
    assert on_two_devices(
        """
a = [on(i, np.zeros(10, np.float32)) for i in range(2)]
id, stranger = Id(), Id(); n.ncclGetUniqueId(ctypes.byref(id)); comm = P()
def init(ranks, its, rank): return n.ncclCommInitRank(ctypes.byref(comm), ranks, its, rank), last()
use(0)
print(init(3, id, 0)); print(init(2, stranger, 0)); print(init(2, id, 0)[0]); print(init(2, id, 0)); print(init(2, id, 1))
stream = d.CUstream(streams[0].value)
ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
print(n.ncclAllReduce(a[0].pointer, a[0].pointer, C(10), FLOAT, SUM, comms[0], streams[0]), last())
d.cuStreamEndCapture(stream)
print(n.ncclAllReduce(a[0].pointer, a[0].pointer, C(2**62), FLOAT, SUM, comms[0], streams[0]), last())
print(n.ncclReduce(a[0].pointer, a[0].pointer, C(1), FLOAT, SUM, 2, comms[0], streams[0]), last())
print(grouped(lambda: n.ncclAllReduce(a[0].pointer, a[0].pointer, C(10), FLOAT, SUM, comms[0], streams[0]),
              lambda: n.ncclAllReduce(a[1].pointer, a[1].pointer, C(9), FLOAT, SUM, comms[1], streams[1])), last())
error = ctypes.c_int(); n.ncclCommGetAsyncError(comms[1], ctypes.byref(error)); print(error.value)
pair = (P * 2)(); n.ncclCommInitAll(pair, 2, None)
found = []
def wait(): use(1); found.append(n.ncclAllReduce(a[1].pointer, a[1].pointer, C(10), FLOAT, SUM, P(pair[1]), streams[1]))
thread = threading.Thread(target=wait); thread.start()
print(n.ncclCommAbort(P(pair[0]))); thread.join(); print(found)
wild = (P * 2)(); n.ncclCommInitAll(wild, 2, None)
print(grouped(*(lambda i=i: n.ncclAllReduce(P(4096), a[i].pointer, C(10), FLOAT, SUM, P(wild[i]), streams[i]) for i in range(2))))
"""
    ) == [
        "(5, 'NCCL on a slice has a rank for each of its devices, of which there are 2, and 3 were asked for: ask for a slice of more devices')",
        "(5, 'NCCL on a slice joins devices of one process, and this identity is of another process: let one process train on all devices')",
        "0",
        "(5, 'NCCL: rank 0 is there already')",
        "(5, 'NCCL: two ranks cannot be on one device, and another is on device 0')",
        "5 NCCL: a collective of several devices cannot be captured into a graph on a slice",
        "4 NCCL: too many elements",
        "4 NCCL: there is no rank 2 among 2",
        "5 NCCL: the ranks' calls differ: of the same number are collectives of another kind, count, type, operation or root",
        "6",
        "0",
        "[5]",
        "1",
    ]
