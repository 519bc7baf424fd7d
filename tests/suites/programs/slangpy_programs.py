"""slangpy's kernels: Slang makes CUDA C++ of them, and NVRTC PTX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import slangpy as spy

RANDOM = np.random.default_rng(1)
ACCESS = spy.BufferUsage.unordered_access | spy.BufferUsage.shader_resource


@pytest.fixture(scope="module")
def device() -> Any:
    return spy.Device(type=spy.DeviceType.cuda)


def kernel(device: Any, source: str) -> Any:
    module = device.load_module_from_source(f"module{abs(hash(source))}", source)
    return device.create_compute_kernel(device.link_program([module], [module.entry_point("fill")]))


def buffer(device: Any, data: np.ndarray[Any, Any]) -> Any:
    return device.create_buffer(
        element_count=data.size, struct_size=data.itemsize, usage=ACCESS, data=np.ascontiguousarray(data)
    )


def test_elements(device: Any) -> None:
    source = """[shader("compute")] [numthreads(64, 1, 1)]
void fill(uint3 id: SV_DispatchThreadID, StructuredBuffer<float> a, RWStructuredBuffer<float> b, uniform uint n, uniform float s)
{ if (id.x < n) b[id.x] = s * a[id.x] + sqrt(b[id.x]); }"""
    a, b = RANDOM.random(1000, dtype=np.float32), RANDOM.random(1000, dtype=np.float32)
    out = buffer(device, b)
    kernel(device, source).dispatch(thread_count=[1000, 1, 1], a=buffer(device, a), b=out, n=1000, s=2.5)
    np.testing.assert_allclose(out.to_numpy().view(np.float32), 2.5 * a + np.sqrt(b), rtol=1e-6)


def test_a_sum_in_shared_memory(device: Any) -> None:
    source = """groupshared int room[128];
[shader("compute")] [numthreads(128, 1, 1)]
void fill(uint3 id: SV_DispatchThreadID, uint3 thread: SV_GroupThreadID, uint3 group: SV_GroupID, StructuredBuffer<int> a, RWStructuredBuffer<int> sums)
{
    room[thread.x] = a[id.x];
    for (uint half = 64; half > 0; half /= 2) {
        GroupMemoryBarrierWithGroupSync();
        if (thread.x < half) room[thread.x] += room[thread.x + half];
    }
    if (thread.x == 0) sums[group.x] = room[0];
}"""
    a = RANDOM.integers(-1000, 1000, 128 * 9).astype(np.int32)
    out = buffer(device, np.zeros(9, np.int32))
    kernel(device, source).dispatch(thread_count=[a.size, 1, 1], a=buffer(device, a), sums=out)
    np.testing.assert_array_equal(out.to_numpy().view(np.int32), a.reshape(9, 128).sum(1))


def test_atomics_and_a_derivative(device: Any) -> None:
    source = """[Differentiable] float f(float x) { return x * x * x + sin(x); }
[shader("compute")] [numthreads(32, 1, 1)]
void fill(uint3 id: SV_DispatchThreadID, StructuredBuffer<float> a, RWStructuredBuffer<float> slope, RWStructuredBuffer<int> counts)
{
    DifferentialPair<float> pair = fwd_diff(f)(diffPair(a[id.x], 1.0));
    slope[id.x] = pair.d;
    int before;
    InterlockedAdd(counts[id.x % 4], 1, before);
}"""
    a = RANDOM.random(320, dtype=np.float32)
    slope, counts = buffer(device, np.zeros(320, np.float32)), buffer(device, np.zeros(4, np.int32))
    kernel(device, source).dispatch(thread_count=[320, 1, 1], a=buffer(device, a), slope=slope, counts=counts)
    np.testing.assert_allclose(slope.to_numpy().view(np.float32), 3 * a * a + np.cos(a), rtol=1e-5)
    np.testing.assert_array_equal(counts.to_numpy().view(np.int32), [80] * 4)
