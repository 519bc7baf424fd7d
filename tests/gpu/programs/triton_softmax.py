"""Triton compiles a row-wise softmax; the driver API runs it, as Triton's own launcher would; compared with NumPy.

Triton's launcher insists on PyTorch's CUDA build, which links the CUDA runtime statically and so needs direct mode; its compiler does not.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import triton
import triton.language as tl
from cuda.bindings import driver
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def softmax(out, rows, columns, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    at = tl.arange(0, WIDTH)
    values = tl.load(rows + row * columns + at, mask=at < columns, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + at, powers / tl.sum(powers, axis=0), mask=at < columns)


def ok(answer):  # type: ignore[no-untyped-def]
    code, *values = answer
    if int(code):
        raise RuntimeError(f"{code!r}")
    return values[0] if len(values) == 1 else values


def main(rows: int = 200, columns: int = 777, width: int = 1024) -> None:
    ok(driver.cuInit(0))
    device = ok(driver.cuDeviceGet(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(device))))
    capability = [
        ok(driver.cuDeviceGetAttribute(getattr(driver.CUdevice_attribute, name), device))
        for name in (
            "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
            "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
        )
    ]
    source = ASTSource(
        softmax, {"out": "*fp32", "rows": "*fp32", "columns": "i32", "WIDTH": "constexpr"}, {(3,): width}
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 10 * capability[0] + capability[1], 32))
    module = ok(driver.cuModuleLoadData(compiled.asm["ptx"].encode() + b"\0"))
    function = ok(driver.cuModuleGetFunction(module, compiled.metadata.name.encode()))

    values = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    there, out = ok(driver.cuMemAlloc(values.nbytes)), ok(driver.cuMemAlloc(values.nbytes))
    ok(driver.cuMemcpyHtoD(there, values, values.nbytes))
    pointers = [np.array([int(each)], np.uint64) for each in (out, there)]
    extra = [np.zeros(1, np.uint64) for _ in range(2)]  # the scratch memory that newer compilers ask for
    kept = [*pointers, np.array([columns], np.int32), *extra]
    arguments = np.array([each.ctypes.data for each in kept], np.uint64)
    block = 32 * compiled.metadata.num_warps
    ok(
        driver.cuLaunchKernel(
            function, rows, 1, 1, block, 1, 1, compiled.metadata.shared, 0, arguments.ctypes.data, 0
        )
    )
    answer = np.empty_like(values)
    ok(driver.cuMemcpyDtoH(answer, out, values.nbytes))
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    np.testing.assert_allclose(answer, powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)
    print(json.dumps({"triton": triton.__version__, "rows": rows}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
