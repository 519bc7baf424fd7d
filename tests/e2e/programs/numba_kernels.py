"""An ordinary Numba program: element-wise, shared memory, atomics, divergence, float64. Prints what it computed."""

import json
import math

import numpy as np
from numba import cuda, float64

N = 50_000


@cuda.jit
def saxpy(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@cuda.jit
def block_sums(x, out):
    shared = cuda.shared.array(256, float64)
    i, t = cuda.grid(1), cuda.threadIdx.x
    shared[t] = x[i] if i < x.size else 0.0
    cuda.syncthreads()
    half = 128
    while half:
        if t < half:
            shared[t] += shared[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        cuda.atomic.add(out, 0, shared[0])


@cuda.jit
def collatz(numbers, steps):
    i = cuda.grid(1)
    if i < numbers.size:
        n, count = numbers[i], 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            count += 1
        steps[i] = count


@cuda.jit
def waves(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = math.sin(x[i]) * math.exp(-x[i]) + math.sqrt(x[i])


def collatz_steps(n: int) -> int:
    count = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        count += 1
    return count


random = np.random.default_rng(1)
x, y = random.random(N, dtype=np.float32), random.random(N, dtype=np.float32)
grid = (N + 255) // 256

out = cuda.device_array(N, np.float32)
saxpy[grid, 256](np.float32(2), cuda.to_device(x), cuda.to_device(y), out)
np.testing.assert_allclose(out.copy_to_host(), 2 * x + y, rtol=1e-6)

values = random.random(N)
total = cuda.to_device(np.zeros(1))
block_sums[grid, 256](values, total)
np.testing.assert_allclose(total.copy_to_host()[0], values.sum(), rtol=1e-12)

numbers = np.arange(1, 1025, dtype=np.int64)
steps = cuda.device_array(1024, np.int64)
collatz[4, 256](numbers, steps)
np.testing.assert_array_equal(steps.copy_to_host(), [collatz_steps(int(n)) for n in numbers])

curve = cuda.device_array(N, np.float64)
waves[grid, 256](values, curve)
np.testing.assert_allclose(
    curve.copy_to_host(), np.sin(values) * np.exp(-values) + np.sqrt(values), rtol=1e-12
)

print(
    json.dumps(
        {
            "device": cuda.get_current_device().name.decode()
            if isinstance(cuda.get_current_device().name, bytes)
            else cuda.get_current_device().name,
            "saxpy": float(out.copy_to_host().sum(dtype=np.float64)),
            "waves": float(curve.copy_to_host().sum()),
            "collatz": int(steps.copy_to_host().sum()),
        }
    )
)
