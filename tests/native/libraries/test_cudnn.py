"""cuDNN on a slice: handles exist, and every operation is refused by its name."""

from __future__ import annotations

from tests.native.libraries.conftest import NEEDS_OPENBLAS
from tests.native.libraries.test_on_a_slice import on_a_slice

pytestmark = NEEDS_OPENBLAS  # which `on_a_slice` begins with


def test_handles_exist_and_operations_are_refused_by_name() -> None:
    done = on_a_slice(
        """
n = ctypes.CDLL("libcudnn.so.9")
handle, stream = ctypes.c_void_p(), ctypes.c_void_p()
print(n.cudnnCreate(ctypes.byref(handle)), bool(handle.value))
print(n.cudnnSetStream(handle, ctypes.c_void_p(1)), n.cudnnGetStream(handle, ctypes.byref(stream)), stream.value)
print(n.cudnnSetStream(ctypes.c_void_p(4711), None), n.cudnnCreate(None))
print(n.cudnnConvolutionForward(handle), n.cudnnConvolutionForward(handle))
print(n.cudnnDestroy(handle), n.cudnnDestroy(handle))
"""
    )
    assert done.stdout.splitlines() == ["0 True", "0 0 1", "2000 2000", "3000 3000", "0 1001"], done.stderr
    assert done.stderr.count("cudnnConvolutionForward is not supported on a slice") == 1
