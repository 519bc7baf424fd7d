"""The rungs that a real device offers: MPS, which bounds a client's memory in the driver, and MIG, which divides the device itself.

Only NVIDIA's documented interfaces are used: the environment variables of MPS ("Multi-Process Service", section on environment variables)
and NVML's MIG mode.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpukernel.agent.inventory import Inventory
from gpukernel.common.model import Rung

__all__ = ["device_rungs", "mps_directory", "mps_environment"]

MIB = 2**20


def mps_directory() -> Path | None:
    """Return the directory of pipes of a running MPS control daemon; None where none is visible."""
    directory = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    return directory if directory.is_dir() else None


def mps_environment(inventory: Inventory, memory_bytes: int) -> Mapping[str, str]:
    """Return what has MPS bound a worker's memory on its only device below its cap; empty without MPS."""
    if inventory.simulated or mps_directory() is None:
        return {}
    return {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={-(-memory_bytes // MIB)}M"}


def device_rungs(inventory: Inventory) -> tuple[Rung, ...]:
    """Return whether MPS and MIG stand below the workers of `inventory`, and why not."""
    if inventory.simulated:
        return (
            Rung("mps", False, "simulated devices have no MPS"),
            Rung("mig", False, "simulated devices have no MIG"),
        )
    directory = mps_directory()
    mps = (
        Rung("mps", True, f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT for each worker; pipes in {directory}")
        if directory
        else Rung("mps", False, "no MPS control daemon runs (nvidia-cuda-mps-control -d)")
    )
    return (mps, _mig(inventory))


def _mig(inventory: Inventory) -> Rung:
    import pynvml

    states = []
    try:
        pynvml.nvmlInit()
        for device in inventory.devices:
            handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
            try:
                states.append(pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE)
            except pynvml.NVMLError_NotSupported:
                states.append(False)
    except pynvml.NVMLError as error:
        return Rung("mig", False, f"NVML: {error}")
    if not any(states):
        return Rung("mig", False, "no device is in MIG mode")
    return Rung("mig", True, f"{sum(states)} of {len(states)} devices are in MIG mode")
