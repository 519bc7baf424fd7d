"""Stands in for ``nvcc``, which no wheel has: PyCUDA's kernels are compiled by NVRTC, to PTX."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import nvidia
import pycuda.compiler
import pycuda.driver
from cuda.bindings import nvrtc

_INCLUDE = [str(path) for each in nvidia.__path__ for path in Path(each).glob("*/include")]
_INCLUDE.append(os.environ["GPUKERNEL_SUITES_INCLUDE"])

# What nvcc knows without being told: printf comes without a header here, and C++ has pow of mixed types.
_HEADERS = [b"stdio.h", b"cstdio"]
_MIXED = """
__device__ inline double pow(float x, double y) { return pow(static_cast<double>(x), y); }
__device__ inline double pow(double x, float y) { return pow(x, static_cast<double>(y)); }
"""


def _options(given: list[str]) -> Iterator[str]:
    words = iter(given)
    for word in words:
        if word == "-arch":
            yield "--gpu-architecture=" + next(words).replace("sm_", "compute_")
        elif word == "-code":
            next(words)
        elif not word.startswith("-l"):
            yield word


def compile_plain(
    source: str, options: list[str], keep: bool, nvcc: str, cache_dir: str | None, target: str = "cubin"
) -> bytes:
    """Do as ``pycuda.compiler.compile_plain``, with NVRTC, and always to PTX."""
    words = [*_options(options), *(f"-I{each}" for each in _INCLUDE), "-default-device"]
    _, program = nvrtc.nvrtcCreateProgram(
        (_MIXED + source).encode(), b"kernel.cu", len(_HEADERS), [b""] * len(_HEADERS), _HEADERS
    )
    (failed,) = nvrtc.nvrtcCompileProgram(program, len(words), [word.encode() for word in words])
    if failed:
        log = bytes(nvrtc.nvrtcGetProgramLogSize(program)[1])
        nvrtc.nvrtcGetProgramLog(program, log)
        raise pycuda.driver.CompileError("nvrtc", words, stderr=log.decode())
    ptx = bytes(nvrtc.nvrtcGetPTXSize(program)[1])
    nvrtc.nvrtcGetPTX(program, ptx)
    return ptx


pycuda.compiler.compile_plain = compile_plain
