"""Random programs that compute, wait for a stream and read: each read gives what its place has, whether or not it came with the wait."""

from __future__ import annotations

import pytest

from tests.remoting.test_early_reads_at_random import ANY, RUN, reads_early

WAITING = r"""
ways = "eehhppaaasd"
def asks(*_): ok(d.cuMemGetInfo()); ok(d.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, r.choice([32, 64, 96, 128]), 0)); ok(d.cuPointerGetAttribute(d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, r.choice(places).a))
def known_by_event(n):
    i = r.randrange(4); record(n, i)
    if r.random() < 0.5: poll(i)
    else: ok(d.cuEventSynchronize(events[i])); merge(host, at[i])
def foreseen(n, p):  # mostly
    if r.random() < 0.7: p = places[0]; p.last = 0, 4
    if r.random() < calm / 2:  # no wait for a stream throws away what came with this one
        m = r.choice(list(S)); which = r.random()
        if which < 0.2: lates(m, p)
        adds(n, p if which > 0.2 else places[1]); sync(n)
        if 0.2 < which < 0.4: r.choice([adds, fill, writes, put])(m, p)
        if which < 0.4: known_by_event(m)
        return read(r.choice(list(S)), p)
    if r.random() < 0.3: everything()
    if r.random() < 0.7: r.choice([adds, lates, fill, put])(n, p)
    if r.random() > calm: r.choice([adds, lates, lates, lates, put, fill, across])(*r.choice([(n, p), (r.choice(list(S)), p), (r.choice(list(S)), p), any_one()]))
    everything() if r.random() < 0.15 else sync(n)
    if r.random() > calm: r.choice([adds, lates, put, fill, across, writes, again, stream_again, elsewhere, asks, asks])(*r.choice([(n, p), (r.choice(list(S)), p), any_one()]))
    if p not in places: p = r.choice(places)
    if r.random() < 0.3: m = r.choice(list(S)); i = r.randrange(4); record(n, i); join(m, i)
    read(n if r.random() < 0.5 else r.choice(list(S)), p if r.random() < 0.95 else r.choice(places))
over = False; bad = []
def beside(seed):  # in streams and places of its own
    r = random.Random(seed); mine = [ok(d.cuStreamCreate(r.choice([1, 1, 1, 0]))) for _ in range(2)]; size = r.choice([4, 64, 4096]); there = [int(ok(d.cuMemAlloc(4096))) for _ in range(2)]; got = np.zeros(1024, np.uint32); event = ok(d.cuEventCreate(2))
    while not over:
        a = r.choice(mine); b = r.choice(mine); i = r.randrange(2); v = r.randrange(1 << 30)
        if r.random() < 0.05: ok(d.cuMemFree(there[i])); there[i] = int(ok(d.cuMemAlloc(4096)))
        ok(d.cuMemsetD32Async(there[i], v, 1024, a))
        if r.random() < 0.3: v += 1; late(there[i], v, r.choice([1000, 100_000]), a)
        ok(d.cuStreamSynchronize(a) if r.random() < 0.95 else d.cuCtxSynchronize())
        if r.random() < 0.3: v += 1; late(there[i], v, r.choice([1000, 100_000]), a); ok(d.cuEventRecord(event, a)); ok(d.cuStreamWaitEvent(b, event, 0))
        if r.random() < 0.1: ok(d.cuMemsetD32Async(there[1 - i], 1, 4, b))
        got[0] = 1; ok(d.cuMemcpyDtoHAsync(got.ctypes.data, there[i], size, b)); assert got[0] == v, (seed, got[0], v)
def guarded(seed):
    try: ok(d.cuCtxSetCurrent(context)); beside(seed)
    except BaseException as error: bad.append(repr(error))
others = [threading.Thread(target=guarded, args=(i,), daemon=True) for i in range(THREADS)]
for one in others: one.start()
"""
END = """
over = True
for one in others: one.join()
assert not bad, bad
"""


@pytest.mark.parametrize(("kind", "threads"), [("tcp", 0), ("tcp", 3), ("unix", 3)])
def test_each_read_behind_a_wait_gives_what_the_device_has_then(kind: str, threads: int) -> None:
    reads_early(ANY + WAITING.replace("THREADS", str(threads)) + RUN + END, kind, range(3 if threads else 6))
