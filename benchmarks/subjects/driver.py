"""The driver API through ctypes, so that no framework's own cost is in a figure."""

from __future__ import annotations

import ctypes
from collections.abc import Callable


def open_driver(image: bytes, kernel: bytes) -> tuple[ctypes.CDLL, Callable[..., None], ctypes.c_void_p]:
    """Return the ``libcuda.so.1`` that this process finds, with a current context, and `kernel` of `image`.

    Returns the library, a function that calls by name and ends the program on an error, and the kernel.
    """
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        if code := getattr(cuda, name)(*arguments):
            raise SystemExit(f"{name} returned {code}")

    call("cuInit", 0)
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), image)
    call("cuModuleGetFunction", ctypes.byref(function), module, kernel)
    return cuda, call, function
