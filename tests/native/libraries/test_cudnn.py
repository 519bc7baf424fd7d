"""cuDNN computes what NumPy does, beside the simulated GPU in one process and from a slice; what it lacks is refused by name."""

from __future__ import annotations

from tests.native.libraries import cudnn_cases
from tests.native.libraries.conftest import NEEDS_OPENBLAS, both_ways, found_by
from tests.native.libraries.test_on_a_slice import on_a_slice

pytestmark = NEEDS_OPENBLAS


@both_ways(cudnn_cases)
def test_cudnn(where: str, name: str) -> None:
    assert found_by(cudnn_cases.__name__, where)[name] == ""


def test_handles_exist_and_what_is_not_there_is_refused_by_name() -> None:
    done = on_a_slice(
        """
n = ctypes.CDLL("libcudnn.so.9")
handle, stream = ctypes.c_void_p(), ctypes.c_void_p()
print(n.cudnnCreate(ctypes.byref(handle)), bool(handle.value))
print(n.cudnnSetStream(handle, ctypes.c_void_p(1)), n.cudnnGetStream(handle, ctypes.byref(stream)), stream.value)
print(n.cudnnSetStream(ctypes.c_void_p(4711), None), n.cudnnCreate(None))
print(n.cudnnMultiHeadAttnForward(handle), n.cudnnMultiHeadAttnForward(handle))
print(n.cudnnDestroy(handle), n.cudnnDestroy(handle))
"""
    )
    assert done.stdout.splitlines() == ["0 True", "0 0 1", "2000 2000", "3000 3000", "0 1001"], done.stderr
    assert done.stderr.count("cudnnMultiHeadAttnForward is not supported on a slice") == 1
