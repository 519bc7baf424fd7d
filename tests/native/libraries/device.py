"""A program's side of the tests of math libraries: arrays on the device, a library by its C functions, cases and what they found.

It runs in a process of its own, with the simulated GPU in it or on a slice.  `Cases.main` runs the cases of a module and prints one
line of JSON: the name of each case, and what was wrong, which is empty where nothing was.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from cuda.bindings import driver

from tests.real_gpu import REAL

__all__ = ["Array", "Cases", "Library", "close", "forwarded", "of_each", "ok", "scalar", "soname"]


OF_CUDA_13 = {
    "libcublas.so.12": "libcublas.so.13",
    "libcublasLt.so.12": "libcublasLt.so.13",
    "libcufft.so.11": "libcufft.so.12",
    "libcusolver.so.11": "libcusolver.so.12",
}


def soname(of_cuda_12: str) -> str:
    """Return the name of a library of CUDA 12, or of the same one of CUDA 13 where ``GPUKERNEL_TEST_CUDA`` is 13."""
    return (
        OF_CUDA_13.get(of_cuda_12, of_cuda_12)
        if os.environ.get("GPUKERNEL_TEST_CUDA") == "13"
        else of_cuda_12
    )


def ok(result: tuple[Any, ...]) -> Any:
    """Return what a driver call returned, or fail with its error."""
    code, *values = result
    assert int(code) == 0, code
    return values[0] if len(values) == 1 else values


def forwarded() -> bool:
    """Return whether this process's ``libcuda.so.1`` is gpukernel's, that is, whether the program runs on a slice."""
    return hasattr(ctypes.CDLL("libcuda.so.1"), "gpukernel_library_port")


class Cases(dict[str, Callable[[], str]]):
    """Functions by their names, each of which returns what is wrong, or an empty text."""

    def __init__(self) -> None:
        super().__init__()
        self.never_native: set[str] = set()

    def add(self, function: Callable[[], str]) -> Callable[[], str]:
        """Add `function`: a decorator."""
        self[function.__name__] = function
        return function

    def simulated_only(self, reason: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
        """Return a decorator that adds a function where the device is simulated; `reason` says what NVIDIA's library does instead."""
        assert reason
        return lambda function: function if REAL else self.add(function)

    def not_native(self, function: Callable[[], str]) -> Callable[[], str]:
        """Add `function`, but not for NVIDIA's own library in the process, which crashes at what gpukernel checks: a decorator."""
        self.never_native.add(function.__name__)
        return self.add(function)

    def runs_in(self, where: str) -> list[str]:
        """Return the names of the functions to run "on a slice" or "in one process"."""
        return [
            name for name in self if not (REAL and where == "in one process" and name in self.never_native)
        ]

    def main(self) -> None:
        """Run every case, or those that the command line names, and print what they found."""
        ok(driver.cuInit(0))
        ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
        found = {}
        for name in sys.argv[1:] or self.runs_in("on a slice" if forwarded() else "in one process"):
            try:
                found[name] = self[name]()
            except Exception:  # a case that fails is a finding
                found[name] = traceback.format_exc(limit=-3)
        print("FOUND " + json.dumps(found))


class Array:
    """An array in device memory, in columns, in `room` elements from the beginning of an allocation of its own."""

    def __init__(self, host: np.ndarray[Any, Any]) -> None:
        self.host = np.asfortranarray(host)
        self.address = int(ok(driver.cuMemAlloc(max(self.host.nbytes, 1))))
        if self.host.nbytes:
            ok(driver.cuMemcpyHtoD(self.address, self.host.ctypes.data, self.host.nbytes))

    @property
    def pointer(self) -> ctypes.c_void_p:
        """Return its address as an argument."""
        return ctypes.c_void_p(self.address)

    def get(self) -> np.ndarray[Any, Any]:
        """Return what is there now, after everything that was submitted."""
        out = np.empty_like(self.host, order="F")
        if out.nbytes:
            ok(driver.cuMemcpyDtoH(out.ctypes.data, self.address, out.nbytes))
        return out


def scalar(value: complex, kind: Any) -> Any:
    """Return `value` on the host, as a pointer to a number of the NumPy type `kind`."""
    kept = np.array([value if np.iscomplexobj(np.empty(0, kind)) else np.real(value)], kind)
    pointer = ctypes.c_void_p(kept.ctypes.data)
    pointer.kept = kept  # type: ignore[attr-defined]
    return pointer


class Library:
    """A math library by its soname, and a handle of it; its functions take the handle by themselves."""

    def __init__(self, name: str, create: str) -> None:
        self.library = ctypes.CDLL(soname(name))
        self.handle = ctypes.c_void_p()
        status = getattr(self.library, create)(ctypes.byref(self.handle))
        assert status == 0, f"{create}: {status}"

    def __call__(self, name: str, *arguments: Any) -> int:
        """Call a function, and return its status."""
        return int(getattr(self.library, name)(self.handle, *arguments))

    def done(self, name: str, *arguments: Any) -> None:
        """Call a function, and fail where its status is not 0."""
        status = self(name, *arguments)
        assert status == 0, f"{name}: {status}"


def of_each(one: Callable[..., str], combinations: Iterable[tuple[Any, ...]]) -> str:
    """Return what is wrong with each of the combinations of a case, the first few of them."""
    found = []
    for words in combinations:
        try:
            wrong = one(*words)
        except AssertionError as refused:
            wrong = str(refused) or traceback.format_exc(limit=-1)
        if wrong:
            found.append(f"{words}: {wrong}")
    return "; ".join(found[:6]) + (f"; {len(found)} in all" if len(found) > 6 else "")


def close(got: Any, wanted: Any, kind: Any, terms: int = 1) -> str:
    """Return what is wrong with `got`: its distance from `wanted` in units of the last place of `kind`, for sums of so many terms."""
    names = {"float16": 1e-3, "bfloat16": 8e-3, "float8_e4m3fn": 0.13, "float8_e5m2": 0.26}
    unit = names.get(
        np.dtype(kind).name, 1.2e-7 if np.dtype(kind).name in ("float32", "complex64") else 2.3e-16
    )
    wide = np.complex128 if np.iscomplexobj(wanted) else np.float64
    a, b = np.asarray(got).astype(wide), np.asarray(wanted).astype(wide)
    if a.shape != b.shape:
        return f"shape {a.shape}, not {b.shape}"
    if not np.isfinite(a).all():
        return f"{np.count_nonzero(~np.isfinite(a))} numbers are not finite"
    size = max(float(np.abs(b).max(initial=0)), 1e-30)
    distance = float(np.abs(a - b).max(initial=0)) / size
    # A real device may multiply numbers of single precision as TF32, by the libraries' own defaults.
    bound = max(unit, 5e-4 if REAL and unit == 1.2e-7 else 0) * (4 + 2 * terms**0.5)
    return "" if distance <= bound else f"off by {distance:.3g} of the largest, and {bound:.3g} are allowed"
