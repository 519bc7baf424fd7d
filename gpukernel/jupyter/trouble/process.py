"""The libraries that a kernel's process has loaded, as ``/proc/PID/maps`` tells: they decide whether it can use another slice.

A process that has used CUDA holds contexts and compiled kernels of the slice that it had, and nothing can move them to another one.
Some frameworks also keep for good that they found no GPU.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

__all__ = ["CUDA", "REMEMBERS_NO_GPU", "keep_the_past", "loaded_libraries"]

CUDA = "libcuda.so"
REMEMBERS_NO_GPU = frozenset({"libtorch_cuda", "xla_cuda_plugin", "libtensorflow"})
"""Parts of the names of libraries that look for a GPU once: PyTorch, JAX and TensorFlow."""


def loaded_libraries(pid: int) -> Set[str]:
    """Return which of `CUDA` and `REMEMBERS_NO_GPU` process `pid` has loaded; empty where it has ended."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return frozenset()
    return frozenset(name for name in (CUDA, *REMEMBERS_NO_GPU) if name in maps)


def keep_the_past(libraries: Set[str], *, had_slice: bool, waited: bool) -> bool:
    """Return whether a process that has loaded `libraries` must be restarted before it can use a slice.

    Parameters
    ----------
    had_slice
        It had a slice, which is gone.
    waited
        A cell of it waited for a slice that it did not get, so it told its libraries that there is no GPU.
    """
    return CUDA in libraries and (had_slice or (waited and not libraries.isdisjoint(REMEMBERS_NO_GPU)))
