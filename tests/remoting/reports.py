"""A program that has functions, polled events and copies on their way, of which its worker says unasked when they have come."""

from __future__ import annotations

from tests.remoting.test_unwaited_copies import BEGIN

__all__ = ["REPORTS"]

REPORTS = (
    BEGIN
    + r"""
HOST = ctypes.CFUNCTYPE(None, ctypes.c_void_p); raw = ctypes.CDLL("libcuda.so.1"); kept, ran = [], []; r = int(ok(d.cuMemAlloc(4096))); w = ok(d.cuStreamCreate(1))
def call(function, stream=s): one = HOST(lambda data: function()); kept.append(one); return raw.cuLaunchHostFunc(ctypes.c_void_p(int(stream)), one, None)
def note(n, stream=s): assert call(lambda: ran.append(n), stream) == 0
def learn(*streams):  # after which their events are reported
    for one in streams: late(q, 1, 2_000_000, one); ok(d.cuEventRecord(e, one)); assert poll(e)
def release(): ok(d.cuMemsetD32Async(flag, 1, 1, u)); ok(d.cuStreamSynchronize(u))
def pend(i):
    ok(d.cuMemsetD32(flag, 0, 1)); wait(); learn(t); hold(s); note(2 * i); note(2 * i + 1); hold(t); ok(d.cuMemsetD32Async(p, i, 1, t)); ok(d.cuEventRecord(e, t)); put(i + 1000, r, w); assert query(e) == "NOT_READY" and ran == list(range(2 * i))
def come(i):
    assert poll(e) and get(p, u) == i; ok(d.cuStreamSynchronize(s)); assert ran == list(range(2 * i + 2)), ran; ok(d.cuStreamSynchronize(w)); assert get(r, u) == i + 1000
"""
)
"""After `pend(i)` two functions are due in `s` and an event of `t` is done once `release()` was called, and `r` gets a number in `w`."""
