"""Triton makes tensor maps on the device (`tl.make_tensor_descriptor`) and feeds `tl.dot` by them; compared with NumPy.

``triton_tensor_maps.py M N K`` with the sides of a tile.  The driver API runs the kernel, as Triton's own launcher would.
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

from tests.gpu.programs.triton_matmul import ok


@triton.jit
def matmul(a, b, c, rows, columns, depth, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):  # type: ignore[no-untyped-def]
    x = tl.make_tensor_descriptor(a, shape=[rows, depth], strides=[depth, 1], block_shape=[M, K])
    y = tl.make_tensor_descriptor(b, shape=[depth, columns], strides=[columns, 1], block_shape=[K, N])
    z = tl.make_tensor_descriptor(c, shape=[rows, columns], strides=[columns, 1], block_shape=[M, N])
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    sums = tl.zeros((M, N), dtype=tl.float32)
    for first in range(0, depth, K):
        sums = tl.dot(x.load([row, first]), y.load([first, column]), sums)
    z.store([row, column], sums.to(tl.float16))


def main(m: int = 64, n: int = 64, k: int = 64) -> None:
    rows, columns, depth = 200, 160, 192
    ok(driver.cuInit(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(ok(driver.cuDeviceGet(0))))))
    names = dict.fromkeys("abc", "*fp16") | dict.fromkeys(("rows", "columns", "depth"), "i32")
    divisible = {(at,): [["tt.divisibility", 16]] for at in range(6)}
    source = ASTSource(
        matmul, names | dict.fromkeys("MNK", "constexpr"), {(6,): m, (7,): n, (8,): k}, divisible
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    function = ok(
        driver.cuModuleGetFunction(
            ok(driver.cuModuleLoadData(compiled.asm["ptx"].encode() + b"\0")), b"matmul"
        )
    )
    most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    ok(driver.cuFuncSetAttribute(function, most, compiled.metadata.shared))
    random = np.random.default_rng(0)
    x, y = (random.integers(-4, 5, s).astype(np.float16) for s in ((rows, depth), (depth, columns)))
    out = np.zeros((rows, columns), np.float16)
    grid = -(-rows // m), -(-columns // n), 1
    scratch = ok(driver.cuMemAlloc(max(compiled.metadata.global_scratch_size, 1) * grid[0] * grid[1]))
    there = [ok(driver.cuMemAlloc(each.nbytes)) for each in (x, y, out)]
    for address, each in zip(there, (x, y), strict=False):
        ok(driver.cuMemcpyHtoD(address, each, each.nbytes))
    values = [np.array([int(each)], np.uint64) for each in there]
    values += [np.array([each], np.int32) for each in (rows, columns, depth)]
    values += [np.array([int(scratch)], np.uint64), np.zeros(1, np.uint64)]
    arguments = np.array([each.ctypes.data for each in values], np.uint64)
    block = 32 * compiled.metadata.num_warps, 1, 1
    ok(driver.cuLaunchKernel(function, *grid, *block, compiled.metadata.shared, 0, arguments.ctypes.data, 0))
    ok(driver.cuMemcpyDtoH(out, there[-1], out.nbytes))
    np.testing.assert_array_equal(out, (x.astype(np.float32) @ y.astype(np.float32)).astype(np.float16))
    kinds = ("wgmma.mma", "cp.async.bulk.tensor", "tensormap.replace")
    found = sorted({word for word in compiled.asm["ptx"].split() if word.startswith(kinds)})
    print(json.dumps({"triton": triton.__version__, "instructions": found}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
