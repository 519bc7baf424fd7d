"""Random programs that copy, compute, wait and read back: each read gives what its place has, whether or not it came early."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from tests.remoting.conftest import PRELUDE, worker
from tests.remoting.round_trips import counted
from tests.remoting.test_early_reads import EARLY

ANY = r"""
import random
r = random.Random(int(sys.argv[1])); S = {"s": s, "t": t, "u": u, "b": ok(d.cuStreamCreate(0)), "0": 0}; SIZE = 2048; pinned = int(ok(d.cuMemHostAlloc(SIZE, 0))); own = np.zeros(SIZE, np.uint8); h = own.ctypes.data; reads = 0; ways = "eeehhpsad"
# How much each stream has been given, and by stream how much its next work, the program and an event come after.
given = dict.fromkeys(S, 0); after = {n: {} for n in S}; host = {}; events = [ok(d.cuEventCreate(2)) for _ in range(4)]; at = [{} for _ in events]
class Place:  # with its bytes, who has written and read it, and what was copied there last
    def __init__(self): self.a = int(ok(d.cuMemAlloc(SIZE))); self.data = bytearray(SIZE); self.written = {}; self.read = {}; self.last = 0, 4; ok(d.cuMemsetD8(self.a, 0, SIZE)); ok(d.cuCtxSynchronize())
    def change(self, at, data): self.data[at : at + len(data)] = data
    def word(self, at): return int.from_bytes(self.data[at : at + 4], "little")
def merge(to, of): to.update({n: max(to.get(n, 0), v) for n, v in of.items()})
def known(n):
    k = dict(host); others = "b0" if n in "b0" else n
    for o in others: merge(k, after[o]); k[o] = given[o]
    return k
def lacks(n, what): k = known(n); return [o for o, v in what.items() if k.get(o, 0) < v]
def record(n, i): ok(d.cuEventRecord(events[i], S[n])); at[i] = known(n)
def join(n, i): ok(d.cuStreamWaitEvent(S[n], events[i], 0)); merge(after[n], at[i])
def heard(n): k = known(n); hear(S[n]); merge(host, k)
def poll(i):
    while (said := int(d.cuEventQuery(events[i])[0])) == 600: pass
    assert said == 0; merge(host, at[i])
def sync(n): ok(d.cuStreamSynchronize(S[n])); merge(host, after[n]); merge(host, {n: given[n]})
def everything(*_): ok(d.cuCtxSynchronize()); merge(host, given)
def need(n, what):
    while missing := lacks(n, what):
        how = r.choice(ways); o = missing[0]; i = r.randrange(4)
        if how in "epa": record(o, i)
        if how == "e": join(n, i)
        elif how == "h": heard(o)
        elif how == "p": poll(i)
        elif how == "s": sync(o)
        elif how == "a": ok(d.cuEventSynchronize(events[i])); merge(host, at[i])
        else: everything()
def begin(n, p): need(n, {o: max(p.read.get(o, 0), p.written.get(o, 0)) for o in S})
def end(n, p): merge(after[n], known(n)); given[n] += 1; p.written[n] = given[n]
def span(): return r.choice([(0, 4)] * 9 + [(4, 4), (512, 4), (0, 1), (4, 1024), (0, 1024), (0, 1025), (1000, 16), (1, 3), (0, 0)])
def word(p): return p.last[0] // 4 * 4 if r.random() < 0.6 else r.choice([0, 4, 512])
def put(n, p, how=None):
    how = how or r.choice(["async"] * 4 + ["sync", "any", "pinned", "pieces"]); n = "0" if how == "sync" else n; off, size = span(); data = r.randbytes(size); begin(n, p); to = p.a + off; own[:size] = list(data)
    if how == "sync": ok(d.cuMemcpyHtoD(to, h, size))
    elif how == "any": ok(d.cuMemcpyAsync(to, h, size, S[n]))
    elif how == "pinned": ctypes.memmove(pinned, data, size); ok(d.cuMemcpyHtoDAsync(to, pinned, size, S[n]))
    elif how == "pieces": half = size // 2; ok(d.cuMemcpyHtoDAsync(to, h, half, S[n])); ok(d.cuMemcpyHtoDAsync(to + half, h + half, size - half, S[n]))
    else: ok(d.cuMemcpyHtoDAsync(to, h, size, S[n]))
    own[:] = 170; end(n, p); p.change(off, data); p.last = (off, size) if size else p.last
    if how == "pinned": sync(n)
def adds(n, p): off, v = word(p), r.randrange(1000); begin(n, p); add(v, p.a + off, S[n]); end(n, p); p.change(off, ((p.word(off) + v) % 2**32).to_bytes(4, "little"))
def lates(n, p): off, v = word(p), r.randrange(1000); begin(n, p); late(p.a + off, v, r.choice([1000, 5_000_000]), S[n]); end(n, p); p.change(off, v.to_bytes(4, "little"))
def writes(n, p): off, v = word(p), r.randrange(1000); begin(n, p); ok(d.cuStreamWriteValue32(S[n], p.a + off, v, 0)); end(n, p); p.change(off, v.to_bytes(4, "little"))
def fill(n, p): off, size = span(); v = r.randrange(256); begin(n, p); size and ok(d.cuMemsetD8Async(p.a + off, v, size, S[n])); end(n, p); p.change(off, bytes([v]) * size)
def across(n, p):
    of = r.choice([o for o in places if o is not p]); off, size = span(); begin(n, p); need(n, of.written)
    if size: ok(d.cuMemcpyDtoDAsync(p.a + off, of.a + off, size, S[n])); end(n, p); of.read[n] = given[n]; p.change(off, of.data[off : off + size])
def read(n, p):
    global reads
    off, size = p.last if r.random() < 0.8 else span(); need(n, p.written); got = np.full(SIZE, 99, np.uint8); to = got.ctypes.data; reads += 1
    ok(d.cuMemcpyDtoH(to, p.a + off, size) if n == "0" else d.cuMemcpyDtoHAsync(to, p.a + off, size, S[n])); assert got.tobytes() == bytes(p.data[off : off + size]) + b"c" * (SIZE - size)
    if size: merge(host, known(n))
def again(n, p): everything(); places.remove(p); ok(d.cuMemFree(p.a)); places.append(Place())
def elsewhere(n, p):
    failed = []
    def run():
        try: ok(d.cuCtxSetCurrent(context)); r.choice([put, adds, fill, read])(n, p)
        except BaseException as error: failed.append(error)
    T = threading.Thread(target=run); T.start(); T.join(); assert not failed, failed
def stream_again(n, p):
    if n in "stu": sync(n); ok(d.cuStreamDestroy(S[n])); S[n] = ok(d.cuStreamCreate(1))
def foreseen(n, p):  # mostly
    if r.random() < calm: everything()
    if r.random() < 0.5: r.choice([adds, lates])(n, r.choice(places))
    put(n, p, "async")
    if r.random() > calm: r.choice([adds, lates, lates, lates, put, fill, across])(*r.choice([(n, p), (r.choice(list(S)), p), (r.choice(list(S)), p), any_one()]))
    if r.random() < 0.7: heard(n)
    else: i = r.randrange(4); record(n, i); poll(i)
    if r.random() > calm: r.choice([adds, lates, put, fill, across, writes])(*r.choice([(n, p), (r.choice(list(S)), p), any_one()]))
    read(n if r.random() < 0.7 else r.choice(list(S)), p)
"""
RUN = r"""
places = [Place() for _ in range(4)]; calm = r.uniform(0.5, 0.9); often = r.choice([[6, 2, 2, 1, 1], [20, 1, 1, 0.2, 0.2], [5, 5, 0, 0, 0], [1, 1, 1, 20, 3], [1, 1, 1, 3, 20]])
def any_one(): return r.choices(list(S), often)[0], r.choice(places)
steps = {foreseen: 10, put: 4, adds: 2, lates: 1, fill: 1, writes: 0.5, across: 1, read: 4, again: 0.2, stream_again: 0.3, everything: 0.2, elsewhere: int(sys.argv[1]) % 2, lambda n, p: heard(n): 1, lambda n, p: record(n, r.randrange(4)): 1, lambda n, p: poll(r.randrange(4)): 1, lambda n, p: join(n, r.randrange(4)): 1}
for step in r.choices(list(steps), list(steps.values()), k=400): step(*any_one())
everything(); print(reads)
"""


def reads_early(code: str, kind: str, seeds: range) -> int:
    """Run programs with the `code` behind that of EARLY, and return how many of their reads asked nobody; that is not counted with unix sockets."""
    code = PRELUDE + EARLY.replace("int(sys.argv[1]) if len(sys.argv) > 1 else 0", "0") + code

    async def run(environment: dict[str, str], seed: int) -> int:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-u", "-c", code, str(seed)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, (seed, done.stderr)
        return int(done.stdout)

    async def story() -> int:
        early = 0
        async with worker() as one:
            for seed in seeds:
                environment = one.environment(kind=kind)
                if kind == "unix":
                    await run(environment, seed)
                    continue
                with counted(environment) as counter:
                    early += await run(environment, seed) - counter.answers.of("copy_to_host")
        return early

    return asyncio.run(story())


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_each_read_gives_what_the_device_has_then(kind: str) -> None:
    """The program knows what that is, since it makes no read or change that is not ordered behind those before."""
    early = reads_early(ANY + RUN, kind, range(2))
    assert early > 10 or kind == "unix"
