"""ZLUDA's small PTX programs, by the driver API: each has the output that its table says, bit by bit but for NaNs."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from cuda.bindings import driver

from tests.suites.runtime_programs.zluda_table import TABLE, Program, programs

_REPOSITORY = Path(os.environ.get("GPUKERNEL_SUITES_PROGRAMS", os.devnull))
_PROGRAMS = programs(_REPOSITORY) if (_REPOSITORY / TABLE).exists() else []


def ok(result: tuple[object, ...]) -> object:
    code, *values = result
    assert code == driver.CUresult.CUDA_SUCCESS, code
    return values[0] if values else None


@pytest.fixture(scope="module", autouse=True)
def context() -> object:
    ok(driver.cuInit(0))
    handle = ok(driver.cuDevicePrimaryCtxRetain(0))
    ok(driver.cuCtxSetCurrent(handle))
    return handle


def output_of(program: Program) -> bytes:
    """Run a program as its table's own tests do: with 1,024 bytes of shared memory, and an output of zeros."""
    text = (_REPOSITORY / TABLE).with_name(f"{program.name}.ptx").read_bytes()
    module = ok(driver.cuModuleLoadData(text + b"\0"))
    kernel = ok(driver.cuModuleGetFunction(module, program.name.encode()))
    size = len(program.output.data)
    out = ok(driver.cuMemAlloc(size))
    ok(driver.cuMemsetD8(out, 0, size))
    given = out
    if program.input:
        given = ok(driver.cuMemAlloc(len(program.input.data)))
        ok(driver.cuMemcpyHtoD(given, program.input.data, len(program.input.data)))
    values = ((given, out), (None, None))
    ok(driver.cuLaunchKernel(kernel, 1, 1, 1, program.threads, 1, 1, 1024, 0, values, 0))
    found = bytearray(size)
    ok(driver.cuMemcpyDtoH(found, out, size))
    ok(driver.cuModuleUnload(module))
    return bytes(found)


@pytest.mark.parametrize("program", _PROGRAMS, ids=lambda program: program.name)
def test_a_program_gives_what_its_table_says(program: Program) -> None:
    found = output_of(program)
    if found != program.output.data:
        wanted = program.output.values(program.output.data)
        got = program.output.values(found)
        pairs = zip(got, wanted, strict=True)
        assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs), f"{got} and not {wanted}"
