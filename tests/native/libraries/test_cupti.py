"""CUPTI on a slice: a profiler finds it, gets no records, and the person is told so once."""

from __future__ import annotations

import pytest

from tests.native.libraries.conftest import NEEDS_OPENBLAS
from tests.native.libraries.test_on_a_slice import on_a_slice

pytestmark = NEEDS_OPENBLAS  # which `on_a_slice` begins with


@pytest.mark.parametrize(("major", "version"), [(12, 28), (13, 130001)])
def test_a_profiler_gets_nothing_and_the_person_is_told(major: int, version: int) -> None:
    done = on_a_slice(
        f"""
n = ctypes.CDLL("libcupti.so.{major}")
P = ctypes.c_void_p
number, time, dropped, id = ctypes.c_uint32(), ctypes.c_uint64(), ctypes.c_size_t(7), ctypes.c_uint64()
print(n.cuptiGetVersion(ctypes.byref(number)), number.value)
called = []
callback = ctypes.CFUNCTYPE(None, P, ctypes.c_int, ctypes.c_uint32, P)(lambda *_: called.append(1))
first, second = P(), P()
print(n.cuptiSubscribe(ctypes.byref(first), callback, None), n.cuptiSubscribe(ctypes.byref(second), callback, None))
print(n.cuptiEnableDomain(1, first, 1), n.cuptiEnableDomain(1, P(4711), 1), n.cuptiActivityRegisterCallbacks(callback, callback))
print(n.cuptiActivityEnable(3), n.cuptiActivityEnable(1), n.cuptiActivityRegisterCallbacks(None, None))
a = Array(np.ones(64, np.float32)); ok(d.cuCtxSynchronize())
print(n.cuptiActivityFlushAll(1), n.cuptiActivityGetNextRecord(bytes(64), ctypes.c_size_t(64), ctypes.byref(second)), called)
print(n.cuptiActivityGetNumDroppedRecords(None, 0, ctypes.byref(dropped)), dropped.value)
import time as t
before = t.time_ns(); n.cuptiGetTimestamp(ctypes.byref(time)); print(before <= time.value <= t.time_ns())
for value in (5, 6): n.cuptiActivityPushExternalCorrelationId(2, ctypes.c_uint64(value))
print([(n.cuptiActivityPopExternalCorrelationId(2, ctypes.byref(id)), id.value) for _ in range(3)])
text = ctypes.c_char_p()
print(n.cuptiGetResultString(39, ctypes.byref(text)), text.value.decode())
print(n.cuptiUnsubscribe(P(4711)), n.cuptiUnsubscribe(first), n.cuptiUnsubscribe(first), n.cuptiDeviceGetNumMetrics(0, None))
"""
    )
    assert done.stdout.splitlines() == [
        f"0 {version}",
        "0 39",
        "0 1 0",
        "0 0 1",
        "0 12 []",
        "0 0",
        "True",
        "[(0, 6), (0, 5), (18, 5)]",
        "0 CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
        "1 0 1 27",
    ], done.stderr
    assert done.stderr.count("CUPTI records nothing on a slice") == 1
    assert done.stderr.count("cuptiDeviceGetNumMetrics is not supported on a slice") == 1
