"""Tests on this machine's NVIDIA GPU in place of a simulated one: ``GPUKERNEL_TEST_GPU=real python -m pytest tests/remoting``.

What the simulated GPU's tests expect is held to NVIDIA's driver in this way; with ``native`` the programs of tests/remoting find
NVIDIA's driver in place of the shim.  A test of what only a simulated device promises (its
models, its sentences, its faults' threads and lines) carries `SIMULATED_ONLY`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpukernel import native
from gpukernel.remoting.direct_environment import find_driver

__all__ = ["NATIVE", "REAL", "SIMULATED_ONLY", "cuda_library", "library_folders"]

NATIVE = os.environ.get("GPUKERNEL_TEST_GPU") == "native"
"""Whether programs of tests/remoting run without gpukernel: what fails so too was never CUDA's promise."""
REAL = NATIVE or os.environ.get("GPUKERNEL_TEST_GPU") == "real"
SIMULATED_ONLY = pytest.mark.skipif(REAL, reason="it tests what only a simulated device promises")


def cuda_library() -> Path:
    """Return the ``libcuda.so.1`` of the devices that tests run on: NVIDIA's, or the simulated GPU's."""
    return find_driver(os.environ) if REAL else native.simgpu_library()


def library_folders() -> list[Path]:
    """Return the folders of the math libraries of these devices."""
    return (
        native.nvidia_library_folders() if REAL else [native.simgpu_library().parents[1] / "simgpu_libraries"]
    )
