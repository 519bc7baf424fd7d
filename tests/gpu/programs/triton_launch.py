"""A kernel that Triton compiles and launches itself, as its users write it, on memory of the driver API; compared with NumPy."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import triton
import triton.language as tl
from cuda.bindings import driver


@dataclass
class Array:
    """The attributes that Triton asks of an array."""

    address: int
    dtype: str = "float32"

    def data_ptr(self) -> int:
        return self.address


@triton.jit
def scaled_sum(x, y, out, factor, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + at, mask=at < n), tl.load(y + at, mask=at < n)
    tl.store(out + at, a * factor + tl.exp(b), mask=at < n)


def ok(answer):  # type: ignore[no-untyped-def]
    code, *values = answer
    if int(code):
        raise RuntimeError(f"{code!r}")
    return values[0] if len(values) == 1 else values


def main() -> None:
    n, block = 1000, 256
    ok(driver.cuInit(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
    generator = np.random.default_rng(1)
    x, y, found = (generator.random(n, dtype=np.float32) for _ in range(3))
    at = [int(ok(driver.cuMemAlloc(x.nbytes))) for _ in range(3)]
    for array, address in zip((x, y), at, strict=False):
        ok(driver.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes))
    kernel = scaled_sum[(triton.cdiv(n, block),)](*map(Array, at), 3.0, n, BLOCK=block)
    ok(driver.cuCtxSynchronize())
    ok(driver.cuMemcpyDtoH(found.ctypes.data, at[2], found.nbytes))
    np.testing.assert_allclose(found, x * 3 + np.exp(y), rtol=1e-5)
    image = bytes(kernel.asm["cubin"])
    print(json.dumps({"image": image[:200].decode("latin-1")}))


if __name__ == "__main__":
    main()
