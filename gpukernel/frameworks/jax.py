"""JAX on a slice: it looks for a device file of NVIDIA's driver before it asks the driver, and a remote slice has none.

JAX loads this through the entry point group ``jax_plugins`` and calls `initialize` before it looks.
"""

from __future__ import annotations

import os

__all__ = ["initialize"]

LEASE_FILE_VARIABLE = "GPUKERNEL_LEASE_FILE"


def initialize() -> None:
    """Let JAX take the lease file of the slice for a device file."""
    if not (lease := os.environ.get(LEASE_FILE_VARIABLE)):
        return
    from jax._src import hardware_utils

    files = getattr(hardware_utils, "_NVIDIA_GPU_DEVICES", None)
    if isinstance(files, list) and lease not in files:
        files.append(lease)
