"""One tiled matrix multiplication with Numba, on whatever device this process finds; prints seconds as JSON.

``python -m benchmarks.subjects.matmul N`` multiplies two N × N float32 matrices through 16 × 16 shared-memory tiles.
With ``NUMBA_ENABLE_CUDASIM=1`` the same source runs in Numba's own simulator.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from numba import cuda, float32

TILE = 16


@cuda.jit
def multiply(a, b, c):  # type: ignore[no-untyped-def]
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0.0)
    for step in range(a.shape[1] // TILE):
        tile_a[ty, tx] = a[y, step * TILE + tx]
        tile_b[ty, tx] = b[step * TILE + ty, x]
        cuda.syncthreads()
        for k in range(TILE):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    c[y, x] = total


def main(n: int, repeats: int) -> None:
    random = np.random.default_rng(0)
    a, b = (random.random((n, n), dtype=np.float32) for _ in range(2))
    device_a, device_b, device_c = cuda.to_device(a), cuda.to_device(b), cuda.device_array((n, n), np.float32)
    grid, block = (n // TILE, n // TILE), (TILE, TILE)
    if repeats > 1:  # compile outside the figure; the simulator has nothing to compile
        multiply[grid, block](device_a, device_b, device_c)
        cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        multiply[grid, block](device_a, device_b, device_c)
    cuda.synchronize()
    seconds = (time.perf_counter() - start) / repeats
    np.testing.assert_allclose(device_c.copy_to_host(), a @ b, rtol=1e-4)
    print(json.dumps({"n": n, "seconds": seconds}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
