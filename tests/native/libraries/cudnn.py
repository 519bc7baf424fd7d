"""cuDNN by its C functions: descriptors of the backend API, and tensors in any order of their dimensions."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from cuda.bindings import driver

from tests.native.libraries.cublas_cases import BFLOAT, HALF
from tests.native.libraries.device import Library, ok

__all__ = ["DATA", "Cudnn", "Tensor"]

DATA = {np.float32: 0, np.float64: 1, HALF: 2, np.int32: 4, BFLOAT: 9, np.int64: 10}
"""cudnnDataType_t."""

HANDLE, TYPE, BOOLEAN, INT64, FLOAT, DOUBLE, POINTER, DESCRIPTOR = 0, 1, 2, 3, 4, 5, 6, 15
FALLBACK = 2  # engines that compute slowly, where a mode knows none
FORMATS = {"q": INT64, "f": FLOAT, "d": DOUBLE, "?": BOOLEAN}


class Tensor:
    """A tensor on the device whose dimensions lie in memory in the order of `order`, from the outermost."""

    def __init__(self, host: np.ndarray[Any, Any], order: Sequence[int] | None = None) -> None:
        self.order = tuple(order or range(host.ndim))
        self.shape, self.kind = host.shape, host.dtype.type
        lying = np.ascontiguousarray(host.transpose(self.order))
        self.bytes = lying.nbytes
        self.strides = [0] * host.ndim
        step = 1
        for dimension in reversed(self.order):
            self.strides[dimension] = step
            step *= host.shape[dimension]
        self.address = int(ok(driver.cuMemAlloc(max(self.bytes, 1))))
        ok(driver.cuMemcpyHtoD(self.address, lying.ctypes.data, self.bytes))

    @property
    def pointer(self) -> ctypes.c_void_p:
        """Return its address as an argument."""
        return ctypes.c_void_p(self.address)

    def get(self) -> np.ndarray[Any, Any]:
        """Return what is there now."""
        lying = np.empty([self.shape[i] for i in self.order], self.kind)
        ok(driver.cuMemcpyDtoH(lying.ctypes.data, self.address, self.bytes))
        return lying.transpose(np.argsort(self.order))


class Cudnn(Library):
    """A handle, and descriptors of the backend API by their attributes."""

    def __init__(self) -> None:
        super().__init__("libcudnn.so.9", "cudnnCreate")
        self.ids = 0
        self.kept: list[Any] = []

    def node(self, kind: int, attributes: dict[int, tuple[int, Any]], finish: bool = True) -> ctypes.c_void_p:
        """Return a descriptor with attributes: by name, the type and one value or several."""
        made = ctypes.c_void_p()
        status = self.library.cudnnBackendCreateDescriptor(kind, ctypes.byref(made))
        assert status == 0, status
        for name, (kind_of_value, given) in attributes.items():
            values = list(given) if isinstance(given, (list, tuple)) else [given]
            if kind_of_value in (DESCRIPTOR, HANDLE, POINTER):
                data = (ctypes.c_void_p * len(values))(
                    *(v.value if isinstance(v, ctypes.c_void_p) else v for v in values)
                )
            else:
                letter = {INT64: "q", FLOAT: "f", DOUBLE: "d", BOOLEAN: "?"}.get(kind_of_value, "i")
                packed = struct.pack(f"={len(values)}{letter}", *values)
                data = ctypes.create_string_buffer(packed, len(packed))
            set_attribute = self.library.cudnnBackendSetAttribute
            status = set_attribute(made, name, kind_of_value, ctypes.c_int64(len(values)), data)
            assert status == 0, f"attribute {name}: {status}"
        if finish:
            status = self.library.cudnnBackendFinalize(made)
            assert status == 0, f"descriptor of kind {kind}: {status}"
        return made

    def tensor(
        self,
        shape: Sequence[int],
        strides: Sequence[int],
        kind: Any,
        virtual: bool = False,
        by_value: bool = False,
        constant: int = 0,
    ) -> tuple[ctypes.c_void_p, int]:
        """Return a tensor's descriptor and its number; a `constant` lies at that address of the program's, for as long as this takes."""
        self.ids += 1
        attributes = {
            901: (TYPE, DATA[kind]),
            902: (INT64, list(shape)),
            903: (INT64, list(strides)),
            906: (INT64, self.ids),
            900: (INT64, 16),
        }
        if virtual:
            attributes[907] = (BOOLEAN, True)
        if by_value:
            attributes[908] = (BOOLEAN, True)
        if constant:
            attributes[910] = (POINTER, constant)
        return self.node(17, attributes), self.ids

    def of(self, tensor: Tensor) -> tuple[ctypes.c_void_p, int]:
        """Return the descriptor and number of a tensor on the device."""
        return self.tensor(tensor.shape, tensor.strides, tensor.kind)

    def plan(self, operations: Sequence[ctypes.c_void_p], mode: int = 3) -> tuple[ctypes.c_void_p, int]:
        """Return a plan of the first engine that is found, and the bytes of its workspace."""
        graph = self.node(15, {800: (HANDLE, self.handle), 801: (DESCRIPTOR, list(operations))})
        count = ctypes.c_int64()
        get = self.library.cudnnBackendGetAttribute
        for way in (mode, FALLBACK):
            heuristics = self.node(4, {201: (DESCRIPTOR, graph), 200: (8, way)})
            assert get(heuristics, 202, DESCRIPTOR, ctypes.c_int64(0), ctypes.byref(count), None) == 0
            if count.value > 0:
                break
        assert count.value > 0, "no engine"
        config = self.node(3, {}, finish=False)
        one = (ctypes.c_void_p * 1)(config.value)
        assert get(heuristics, 202, DESCRIPTOR, ctypes.c_int64(1), ctypes.byref(count), one) == 0
        plan = self.node(5, {400: (HANDLE, self.handle), 401: (DESCRIPTOR, config)})
        size = ctypes.c_int64()
        assert get(plan, 402, INT64, ctypes.c_int64(1), ctypes.byref(count), ctypes.byref(size)) == 0
        return plan, size.value

    def pack(self, plan: tuple[ctypes.c_void_p, int], tensors: dict[int, int]) -> ctypes.c_void_p:
        """Return a variant pack with addresses by the tensors' numbers, and with a workspace."""
        room = int(ok(driver.cuMemAlloc(plan[1]))) if plan[1] else 0
        return self.node(
            16,
            {
                1000: (INT64, list(tensors)),
                1001: (POINTER, list(tensors.values())),
                1003: (POINTER, room),
            },
        )

    def run(self, plan: tuple[ctypes.c_void_p, int], tensors: dict[int, int]) -> int:
        """Execute a plan with addresses by the tensors' numbers; return the status."""
        pack = self.pack(plan, tensors)
        status = int(self.library.cudnnBackendExecute(self.handle, plan[0], pack))
        assert self.library.cudnnBackendDestroyDescriptor(pack) == 0
        return status
