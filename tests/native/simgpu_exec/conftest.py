"""A simulated device opened through its own driver library, and nothing else of gpukernel."""

from __future__ import annotations

import ctypes as c
import inspect
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpukernel.native import NativePartMissing
from tests.real_gpu import REAL, cuda_library

MODELS = "h100,b200"


class LaunchFailed(Exception):
    """A driver call that did not succeed; ``code`` is its CUresult."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(call, code)
        self.code = code

    def __str__(self) -> str:
        return f"{self.args[0]} answered {self.code}"


class Device:
    """Context 0 of the simulated library: loads PTX, runs kernels on NumPy arrays."""

    def __init__(self, library: str, ordinal: int = 0) -> None:
        self._cuda = c.CDLL(library)
        self._call("cuInit", 0)
        context = c.c_void_p()
        device = c.c_int()
        self._call("cuDeviceGet", c.byref(device), ordinal)
        self._call("cuCtxCreate_v2", c.byref(context), 0, device)
        self._context = context

    def _call(self, name: str, *args: Any) -> None:
        if code := getattr(self._cuda, name)(*args):
            raise LaunchFailed(name, code)

    def close(self) -> None:
        self._cuda.cuCtxDestroy_v2(self._context)

    def run(self, ptx: str, kernel: str, grid: Any, block: Any, *args: Any, shared: int = 0) -> None:
        """Run ``kernel``; arrays are copied to the device and, after it, back."""
        module, function = c.c_void_p(), c.c_void_p()
        self._call("cuModuleLoadData", c.byref(module), c.c_char_p(ptx.encode()))
        buffers: list[tuple[c.c_uint64, Any]] = []
        try:
            self._call("cuModuleGetFunction", c.byref(function), module, kernel.encode())
            values = []
            for arg in args:
                if isinstance(arg, np.ndarray):
                    address = c.c_uint64()
                    self._call("cuMemAlloc_v2", c.byref(address), c.c_size_t(arg.nbytes))
                    buffers.append((address, arg))
                    self._call(
                        "cuMemcpyHtoD_v2", address, c.c_void_p(arg.ctypes.data), c.c_size_t(arg.nbytes)
                    )
                    values.append(address)
                else:
                    data = arg if isinstance(arg, bytes) else arg.tobytes()
                    values.append(c.create_string_buffer(data, len(data)))
            pointers = (c.c_void_p * max(len(values), 1))(*[c.addressof(v) for v in values])
            sizes = [*_dim3(grid), *_dim3(block), shared]
            self._call("cuLaunchKernel", function, *[c.c_uint(n) for n in sizes], None, pointers, None)
            self._call("cuCtxSynchronize")
            for address, array in buffers:
                self._call(
                    "cuMemcpyDtoH_v2", c.c_void_p(array.ctypes.data), address, c.c_size_t(array.nbytes)
                )
        finally:
            for address, _ in buffers:
                self._cuda.cuMemFree_v2(address)
            self._cuda.cuModuleUnload(module)


class DeviceApart:
    """A `Device` in a process of its own, and in a new one after a kernel that failed.

    An error of a kernel on a real device is the process's: NVIDIA's driver gives it no other context afterwards.
    """

    def __init__(self, library: str) -> None:
        self._library = library
        self._process: Any = None

    def _serve(self, connection: Any) -> None:
        device = Device(self._library)
        while True:
            function, args, options = connection.recv()
            try:
                if function:
                    function(device=device, **options)
                else:
                    device.run(*args, **options)
                c.CDLL(None).fflush(None)  # what kernels print
                connection.send([arg for arg in args if isinstance(arg, np.ndarray)])
            except LaunchFailed as failed:
                connection.send(failed)
            except BaseException as failed:
                connection.send(AssertionError(f"{type(failed).__name__}: {failed}"))

    def _ask(self, function: Any, args: Any, options: Any) -> Any:
        if self._process is None:
            fork = multiprocessing.get_context("fork")
            self._connection, other = fork.Pipe()
            self._process = fork.Process(target=self._serve, args=(other,), daemon=True)
            self._process.start()
            other.close()
        try:
            self._connection.send((function, args, options))
            if not self._connection.poll(60):
                raise LaunchFailed("nothing within a minute", 702)
            found = self._connection.recv()
            if isinstance(found, Exception):
                raise found
        except BaseException:
            self.close()
            raise
        return found

    def call(self, function: Any, **options: Any) -> None:
        """Call a test's function with the device there."""
        self._ask(function, (), options)

    def run(self, *args: Any, **options: Any) -> None:
        """Run a kernel as `Device.run` does."""
        found = self._ask(None, args, options)
        for array, values in zip((arg for arg in args if isinstance(arg, np.ndarray)), found, strict=True):
            np.copyto(array, values)

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


@pytest.fixture(scope="session")
def device_apart() -> Iterator[DeviceApart]:
    opened = DeviceApart(str(cuda_library()))
    yield opened
    opened.close()


def _dim3(size: Any) -> tuple[int, int, int]:
    sizes = tuple(size) if isinstance(size, tuple) else (size,)
    return (*sizes, *(1,) * (3 - len(sizes)))  # type: ignore[return-value]


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Have a test that makes calls of the driver itself run where its device is."""
    if not REAL or not hasattr(pyfuncitem.module, "OWN_CALLS") or "device" not in pyfuncitem.fixturenames:
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    values = {name: pyfuncitem.funcargs[name] for name in names if name != "device"}
    pyfuncitem.funcargs["device"].call(pyfuncitem.obj, **values)
    return True


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Device | DeviceApart]:
    """A fresh context: an earlier test's sticky error is gone."""
    if REAL:
        yield request.getfixturevalue("device_apart")
        return
    try:
        library = cuda_library()
    except NativePartMissing as missing:
        pytest.skip(str(missing))
    monkeypatch.setenv("GPUKERNEL_SIMGPU", MODELS)
    opened = Device(str(library))
    yield opened
    opened.close()


@pytest.fixture
def blackwell(device: Device) -> Iterator[Device]:
    """The second simulated device, of compute capability 10.0."""
    if REAL:
        pytest.skip("it needs compute capability 10.0")
    opened = Device(str(cuda_library()), 1)
    yield opened
    opened.close()


def compile_cuda(source: str, *options: str, target: str = "compute_70") -> str:
    """PTX of a CUDA C++ text, by NVRTC, for `target`, or the oldest that it knows."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    from tests.kernels.gpu import known_to_nvrtc

    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    flags = [f"--gpu-architecture={known_to_nvrtc(target)}".encode(), *[o.encode() for o in options]]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    if int(result):
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise AssertionError(log.decode())
    _, size = nvrtc.nvrtcGetPTXSize(program)
    ptx = b" " * size
    nvrtc.nvrtcGetPTX(program, ptx)
    return ptx.rstrip(b"\0").decode()


@pytest.fixture
def nvrtc() -> Any:
    return compile_cuda


@pytest.fixture
def launch_failed() -> type[LaunchFailed]:
    return LaunchFailed


def element_text(body: str, in_bytes: int, out_bytes: int, target: str = "sm_90") -> str:
    """``cases/element.ptx`` around ``body``."""
    text = (Path(__file__).parent / "cases" / "element.ptx").read_text()
    for name, value in (
        ("INPUT", f"b{8 * in_bytes}"),
        ("OUTPUT", f"b{8 * out_bytes}"),
        ("IN_BYTES", str(in_bytes)),
        ("OUT_BYTES", str(out_bytes)),
        ("BODY", body),
        ("sm_90", target),
    ):
        text = text.replace(name, value)
    return text


def element(device: Device, body: str, a: Any, b: Any, c: Any, out_type: Any, target: str = "sm_90") -> Any:
    """Run ``body`` on every element of three arrays of one type; the result has ``out_type``."""
    out = np.zeros(len(a), out_type)
    text = element_text(body, a.itemsize, out.itemsize, target)
    device.run(text, "element", -(-len(a) // 96), 96, a, b, c, out, np.uint32(len(a)))
    return out
