"""A ``torch.cuda`` for Triton's tests where torch is the CPU's: tensors lie in managed memory, which kernels reach as well.

Triton asks torch which device there is, and its tests make their tensors with ``device="cuda"``.  Torch's own CUDA build needs
NVIDIA's CUDA runtime, which a slice does not serve.  Nothing of Triton or of its tests is changed.
"""

from __future__ import annotations

import ctypes
import os
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

_driver = ctypes.CDLL("libcuda.so.1")


def _ok(result: int) -> None:
    if result:
        raise RuntimeError(f"CUDA error {result}")


def _attribute(number: int) -> int:
    value = ctypes.c_int()
    _ok(_driver.cuDeviceGetAttribute(ctypes.byref(value), number, 0))
    return value.value


def _name() -> str:
    room = ctypes.create_string_buffer(100)
    _ok(_driver.cuDeviceGetName(room, 100, 0))
    return room.value.decode()


def _open_context() -> None:
    context = ctypes.c_void_p()
    _ok(_driver.cuInit(0))
    _ok(_driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    _ok(_driver.cuCtxSetCurrent(context))


class _Event:
    """A point in the default stream; times are not compared by the tests."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._moment = 0.0

    def record(self, stream: Any = None) -> None:
        _synchronize()

    def synchronize(self) -> None:
        _synchronize()

    def elapsed_time(self, other: _Event) -> float:
        return 1.0


def _synchronize(device: Any = None) -> None:
    _ok(_driver.cuCtxSynchronize())


def _capability(device: Any = None) -> tuple[int, int]:
    return _attribute(75), _attribute(76)


def _properties(device: Any = None) -> SimpleNamespace:
    major, minor = _capability()
    return SimpleNamespace(
        name=_name(),
        major=major,
        minor=minor,
        multi_processor_count=_attribute(16),
        shared_memory_per_block_optin=_attribute(97),
        total_memory=1 << 30,
    )


def _stand_in() -> None:
    default = SimpleNamespace(cuda_stream=0, synchronize=_synchronize)
    functions: dict[str, Any] = {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "set_device": lambda device: None,
        "current_stream": lambda device=None: default,
        "Stream": lambda *words, **more: default,
        "stream": lambda stream: nullcontext(),
        "device": lambda device=None: nullcontext(),
        "Event": _Event,
        "synchronize": _synchronize,
        "get_device_capability": _capability,
        "get_device_name": lambda device=None: _name(),
        "get_device_properties": _properties,
        "empty_cache": lambda: None,
        "manual_seed": torch.manual_seed,
    }
    for name, function in functions.items():
        setattr(torch.cuda, name, function)


def _is_cuda(word: Any) -> bool:
    return str(word).partition(":")[0] == "cuda" if isinstance(word, (str, torch.device)) else False


class _InManagedMemory(TorchFunctionMode):
    """Tensors that are asked for on ``cuda``, made on the CPU, whose allocator hands out managed memory."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0].clone()
        asked = _is_cuda(kwargs.get("device"))
        if asked:
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        if function is torch.Tensor.to and any(_is_cuda(word) for word in args[1:]):
            asked = True
            args = (args[0], *("cpu" if _is_cuda(word) else word for word in args[1:]))
        result = function(*args, **kwargs)
        # What torch did not allocate itself, a NumPy array's memory for one, is elsewhere.
        if asked and function is torch.Tensor.to and result.data_ptr() == args[0].data_ptr():
            return result.clone()
        return result


def pytest_configure(config: pytest.Config) -> None:
    _open_context()
    _ok(ctypes.CDLL(os.environ["GPUKERNEL_SUITES_ALLOCATOR"]).use_managed_memory())
    _stand_in()
    mode = _InManagedMemory()
    mode.__enter__()
    config.add_cleanup(lambda: mode.__exit__(None, None, None))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep of each test function its first case and one in ``GPUKERNEL_SUITES_SAMPLE`` of the others, always the same ones."""
    every, seen, kept = int(os.environ.get("GPUKERNEL_SUITES_SAMPLE", "1")), set(), []
    for item in items:
        function = item.nodeid.partition("[")[0]
        if function not in seen or zlib.crc32(item.nodeid.rpartition("/")[2].encode()) % every == 0:
            kept.append(item)
        seen.add(function)
    items[:] = kept
