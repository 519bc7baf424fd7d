"""A GPU as a plain CUDA program sees it: NVRTC and the driver API, through cuda-python."""

from __future__ import annotations

import ctypes
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver, nvrtc

HERE = Path(__file__).parent
Size = int | tuple[int, ...]


def ok(result: Any) -> Any:
    code, *values = result
    if int(code):
        raise RuntimeError(f"{code!r}")
    return values[0] if len(values) == 1 else values


def include_folders() -> list[str]:
    """Return the folders of the headers that kernels may include: of NVIDIA's wheels of CUDA 12 or 13, else of the toolkit with ``nvcc``."""
    places = find_spec("nvidia")
    wheels = [Path(place) for place in (places.submodule_search_locations if places else None) or ()]
    found = [
        folder / name / "include"
        for folder in wheels
        for name in ("cuda_runtime", "cuda_cccl", "cuda_nvcc", "cu13")
    ]
    if nvcc := shutil.which("nvcc"):
        found.append(Path(nvcc).resolve().parents[1] / "include")
    return [str(one) for folder in found for one in (folder, folder / "cccl") if one.is_dir()]


def known_to_nvrtc(architecture: str) -> str:
    """Return `architecture`, or the oldest one that this NVRTC compiles for: that of CUDA 13 begins with ``compute_75``."""
    oldest = min(ok(nvrtc.nvrtcGetSupportedArchs()))
    number = int("".join(filter(str.isdigit, architecture)))
    return architecture if number >= oldest else f"compute_{oldest}"


def compile_cuda(source: str, name: str, architecture: str = "compute_70", *options: str) -> bytes:
    """PTX of a CUDA C++ text."""
    program = ok(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    flags = [f"--gpu-architecture={known_to_nvrtc(architecture)}", "--std=c++17", *options]
    flags += [f"--include-path={folder}" for folder in include_folders()]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])
    if int(code):
        log = b" " * ok(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.rstrip(b"\0").decode())
    ptx = b" " * ok(nvrtc.nvrtcGetPTXSize(program))
    ok(nvrtc.nvrtcGetPTX(program, ptx))
    return ptx


class Gpu:
    """Device 0: kernels of one ``.cu`` file at a time, arrays on the device, launches."""

    def __init__(self, architecture: str = "compute_70", *options: str) -> None:
        ok(driver.cuInit(0))
        ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(ok(driver.cuDeviceGet(0))))))
        self._architecture, self._options = architecture, options
        self._modules: dict[str, Any] = {}

    def function(self, file: str, name: str) -> Any:
        if file not in self._modules:
            ptx = compile_cuda((HERE / file).read_text(), file, self._architecture, *self._options)
            self._modules[file] = ok(driver.cuModuleLoadData(np.char.array(ptx)))
        return ok(driver.cuModuleGetFunction(self._modules[file], name.encode()))

    def array(self, values: Any) -> Array:
        return Array(np.ascontiguousarray(values))

    def zeros(self, shape: Any, dtype: Any) -> Array:
        return Array(np.zeros(shape, dtype))

    def tensor_map(self, array: Array, box: tuple[int, int], swizzle: int = 0) -> Any:
        """Return the map of a matrix of halves, as 128 bytes that a kernel takes; `swizzle` in bytes."""
        # By ctypes: CUDA Python's own structure is not aligned as the driver wants it.
        rows, columns = array.shape
        raw = (ctypes.c_char * (128 + 64))()
        place = -ctypes.addressof(raw) % 64
        half, none, kind = 6, 0, {0: 0, 32: 1, 64: 2, 128: 3}[swizzle]
        code = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
            ctypes.byref(raw, place),
            half,
            2,
            ctypes.c_void_p(array.address),
            (ctypes.c_uint64 * 2)(columns, rows),
            (ctypes.c_uint64 * 1)(2 * columns),
            (ctypes.c_uint32 * 2)(*box[::-1]),
            (ctypes.c_uint32 * 2)(1, 1),
            none,
            kind,
            none,
            none,
        )
        if code:
            raise RuntimeError(f"cuTensorMapEncodeTiled answered {code}")
        return np.frombuffer(raw.raw[place : place + 128], np.uint64)

    def launch(
        self,
        file: str,
        name: str,
        grid: Size,
        block: Size,
        *arguments: Any,
        shared: int = 0,
        cooperative: bool = False,
        cluster: tuple[int, int, int] | None = None,
    ) -> None:
        """Arguments are arrays on the device and NumPy scalars or structures; a cluster has so many blocks each way."""
        values = [
            np.array([a.address], np.uint64) if isinstance(a, Array) else np.atleast_1d(a) for a in arguments
        ]
        pointers = np.array([v.ctypes.data for v in values], np.uint64)
        function = self.function(file, name)
        shape = (*_dim3(grid), *_dim3(block), shared, 0, pointers.ctypes.data)
        if cluster:
            attribute, config = driver.CUlaunchAttribute(), driver.CUlaunchConfig()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            for side, blocks in zip("xyz", cluster, strict=True):
                setattr(attribute.value.clusterDim, side, blocks)
            for size, sides in (("gridDim", _dim3(grid)), ("blockDim", _dim3(block))):
                for side, count in zip("XYZ", sides, strict=True):
                    setattr(config, size + side, count)
            config.sharedMemBytes, config.attrs, config.numAttrs = shared, [attribute], 1
            ok(driver.cuLaunchKernelEx(config, function, pointers.ctypes.data, 0))
        elif cooperative:
            ok(driver.cuLaunchCooperativeKernel(function, *shape))
        else:
            ok(driver.cuLaunchKernel(function, *shape, 0))


class Array:
    """A NumPy array's copy on the device."""

    def __init__(self, values: Any) -> None:
        self._like = values
        self.address = int(ok(driver.cuMemAlloc(max(values.nbytes, 1))))
        if values.nbytes:
            ok(driver.cuMemcpyHtoD(self.address, values.ctypes.data, values.nbytes))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._like.shape)

    def get(self) -> Any:
        values = np.empty_like(self._like)
        if values.nbytes:
            ok(driver.cuMemcpyDtoH(values.ctypes.data, self.address, values.nbytes))
        return values


def _dim3(size: Size) -> tuple[int, int, int]:
    sizes = size if isinstance(size, tuple) else (size,)
    return (*sizes, *(1,) * (3 - len(sizes)))  # type: ignore[return-value]
