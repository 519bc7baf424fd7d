"""Triton compiles matrix products by `tl.dot`; the driver API runs them, as Triton's own launcher would; compared with NumPy.

``triton_matmul.py KIND ROWS COLUMNS DEPTH`` with a KIND of ``KINDS``.  Triton decides by the device what `tl.dot` becomes: ``mma.sync`` with its
asynchronous copies on compute capability 8.x, warpgroups' instructions on 9.0.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import triton
import triton.language as tl
from cuda.bindings import driver
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TILE, DEPTH = (64, 32), 32


@triton.jit
def matmul(
    a, b, c, rows, columns, depth, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SUM: tl.constexpr
):  # type: ignore[no-untyped-def]
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    sums = tl.zeros((M, N), dtype=SUM)
    for first in range(0, depth, K):
        deep = first + tl.arange(0, K)
        x = tl.load(a + row[:, None] * depth + deep[None, :], mask=row[:, None] < rows, other=0)
        y = tl.load(b + deep[:, None] * columns + column[None, :], mask=column[None, :] < columns, other=0)
        sums = tl.dot(x, y, sums, out_dtype=SUM)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    tl.store(c + row[:, None] * columns + column[None, :], sums, mask=inside)


# Triton's names of the multiplicands' and the sums' types, NumPy's of both, and how many bits a multiplicand has.
KINDS: dict[str, tuple[str, Any, Any, Any, int]] = {
    "fp16": ("fp16", tl.float32, np.float16, np.float32, 11),
    "fp16 sums": ("fp16", tl.float16, np.float16, np.float16, 11),
    "bf16": ("bf16", tl.float32, np.uint16, np.float32, 8),
    "tf32": ("fp32", tl.float32, np.float32, np.float32, 11),
    "int8": ("i8", tl.int32, np.int8, np.int32, 8),
    "fp64": ("fp64", tl.float64, np.float64, np.float64, 53),
}
NAMES = {tl.float32: "fp32", tl.float16: "fp16", tl.int32: "i32", tl.float64: "fp64"}


def ok(answer):  # type: ignore[no-untyped-def]
    code, *values = answer
    if int(code):
        raise RuntimeError(f"{code!r}")
    return values[0] if len(values) == 1 else values


def main(kind: str = "fp16", rows: int = 100, columns: int = 96, depth: int = 160) -> None:
    name, sums, multiplicand, result, bits = KINDS[kind]
    ok(driver.cuInit(0))
    device = ok(driver.cuDeviceGet(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(device))))
    attributes = driver.CUdevice_attribute
    major = ok(driver.cuDeviceGetAttribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
    minor = ok(driver.cuDeviceGetAttribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
    pointers = {"a": f"*{name}", "b": f"*{name}", "c": f"*{NAMES[sums]}"}
    numbers = dict.fromkeys(("rows", "columns", "depth"), "i32")
    constants = dict.fromkeys(("M", "N", "K", "SUM"), "constexpr")
    divisible = {
        (n,): [["tt.divisibility", 16]] for n in (0, 1, 2, 4, 5)
    }  # what lets it copy 16 bytes at once
    source = ASTSource(
        matmul,
        pointers | numbers | constants,
        {(6,): TILE[0], (7,): TILE[1], (8,): DEPTH, (9,): sums},
        divisible,
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 10 * major + minor, 32))
    module = ok(driver.cuModuleLoadData(compiled.asm["ptx"].encode() + b"\0"))
    function = ok(driver.cuModuleGetFunction(module, compiled.metadata.name.encode()))
    most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    ok(driver.cuFuncSetAttribute(function, most, compiled.metadata.shared))

    random = np.random.default_rng(0)
    shapes = (rows, depth), (depth, columns)
    if kind == "int8":
        sent = [random.integers(-128, 128, shape).astype(np.int8) for shape in shapes]
    elif kind == "bf16":  # the upper half of a float
        sent = [
            (random.standard_normal(s).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            for s in shapes
        ]
    else:
        sent = [random.standard_normal(shape).astype(multiplicand) for shape in shapes]
    given = [(each.astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else each for each in sent]
    out = np.zeros((rows, columns), result)
    there = [ok(driver.cuMemAlloc(each.nbytes)) for each in (*sent, out)]
    for address, each in zip(there, sent, strict=False):
        ok(driver.cuMemcpyHtoD(address, np.ascontiguousarray(each), each.nbytes))
    addresses = [np.array([int(each)], np.uint64) for each in there]
    sizes = [np.array([each], np.int32) for each in (rows, columns, depth)]
    extra = [np.zeros(1, np.uint64) for _ in range(2)]  # the scratch memory that newer compilers ask for
    kept = [*addresses, *sizes, *extra]
    arguments = np.array([each.ctypes.data for each in kept], np.uint64)
    grid, block = (-(-rows // TILE[0]), -(-columns // TILE[1]), 1), (32 * compiled.metadata.num_warps, 1, 1)
    ok(driver.cuLaunchKernel(function, *grid, *block, compiled.metadata.shared, 0, arguments.ctypes.data, 0))
    ok(driver.cuMemcpyDtoH(out, there[-1], out.nbytes))

    x, y = (each.astype(np.float64) for each in given)
    # Each multiplicand may lose what its type does not hold, each sum half a unit of its own, or a whole one where it is cut.
    epsilon = (
        0.0
        if kind == "int8"
        else float(np.finfo(result).eps) * depth + (2.0 ** (1 - bits) * 2 if kind == "tf32" else 0)
    )
    error = np.abs(out.astype(np.float64) - x @ y)
    assert (error <= epsilon * (np.abs(x) @ np.abs(y))).all(), (error.max(), epsilon)
    instructions = sorted(
        {word for word in compiled.asm["ptx"].split() if word.startswith(("mma.", "wgmma.mma"))}
    )
    print(json.dumps({"triton": triton.__version__, "kind": kind, "instructions": instructions}))


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
