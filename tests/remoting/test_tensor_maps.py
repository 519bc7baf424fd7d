"""Maps of tensors through shim and worker: the device's own driver encodes them."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.remoting.conftest import worker

ENCODE = """
import json
begin()
cuda = ctypes.CDLL("libcuda.so.1")
raw = (ctypes.c_char * 192)()
place = -ctypes.addressof(raw) % 64
memory = int(ok(d.cuMemAlloc(4096)))
def longs(*n): return (ctypes.c_uint64 * len(n))(*n)
def ints(*n): return (ctypes.c_uint32 * len(n))(*n)
def tiled(address=memory, box=ints(8, 8), at=place, rank=2):
    return cuda.cuTensorMapEncodeTiled(ctypes.byref(raw, at), 7, rank, ctypes.c_void_p(address), longs(32, 32), longs(128), box, ints(1, 1), 0, 0, 0, 0)
def im2col():
    return cuda.cuTensorMapEncodeIm2col(ctypes.byref(raw, place), 7, 4, ctypes.c_void_p(memory), longs(8, 4, 4, 4), longs(32, 128, 512),
                                        ints(0, 0), ints(0, 0), 8, 16, ints(1, 1, 1, 1), 0, 0, 0, 0)
def replace(address): return cuda.cuTensorMapReplaceAddress(ctypes.byref(raw, place), ctypes.c_void_p(address))
"""


def run(code: str) -> str:
    async def story() -> str:
        async with worker(memory_mib=64) as one:
            done = await one.run(ENCODE + code)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return asyncio.run(story())


def test_a_map_is_encoded_and_gets_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUKERNEL_SIMGPU", "h100")
    answer = run(
        """
codes = [tiled()]; first = raw[place:place + 128]
codes += [replace(memory + 512)]; moved = raw[place:place + 128]
codes += [tiled(memory + 512)]
print(json.dumps([codes, first != moved, moved == raw[place:place + 128]]))
"""
    )
    assert json.loads(answer) == [[0, 0, 0], True, True]


def test_wrong_arguments_are_refused_and_leave_the_map_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUKERNEL_SIMGPU", "h100")
    answer = run(
        """
codes = [tiled(memory + 8), tiled(box=None), tiled(box=ints(7, 8)), tiled(at=place + 16), tiled(rank=0), tiled(rank=9), replace(memory), im2col()]
print(json.dumps([codes, raw[:192] == bytes(192)]))
"""
    )
    assert json.loads(answer) == [[1, 1, 1, 1, 1, 1, 1, 801], True]


def test_an_older_device_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUKERNEL_SIMGPU", "a100")
    attribute = (
        "ok(d.cuDeviceGetAttribute(d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, 0))"
    )
    assert json.loads(run(f"print(json.dumps([tiled(), {attribute}]))")) == [801, 0]
