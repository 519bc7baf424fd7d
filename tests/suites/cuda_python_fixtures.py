"""Lets cuda-python's tests compile to PTX: they ask NVRTC for machine code, which no simulated GPU executes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nvidia

# By its full name, so that the bindings, which look for the short one, find it loaded.
for _path in nvidia.__path__:
    for _library in Path(_path, "cuda_nvrtc", "lib").glob("libnvrtc.so.*"):
        ctypes.CDLL(str(_library))

from cuda import nvrtc  # noqa: E402

_compile = nvrtc.nvrtcCompileProgram


def _compile_to_ptx(program: Any, count: int, options: Sequence[bytes]) -> Any:
    return _compile(program, count, [each.replace(b"=sm_", b"=compute_") for each in options])


nvrtc.nvrtcCompileProgram = _compile_to_ptx
nvrtc.nvrtcGetCUBINSize = nvrtc.nvrtcGetPTXSize
nvrtc.nvrtcGetCUBIN = nvrtc.nvrtcGetPTX
