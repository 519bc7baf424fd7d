"""Additions that frameworks need on a slice beyond CUDA's libraries; loaded by the frameworks themselves, in the program on the slice.

* `pytorch` computes PyTorch's CUDA operators on simulated devices: its wheels have no PTX
* `pytorch_memory` shows its CPU kernels a CUDA tensor's memory, `pytorch_cells` has operators that CUDA alone has

It imports nothing of gpukernel's, and of a framework only what is imported already.
"""

from __future__ import annotations

__all__ = ["SIMULATED_VARIABLE"]

SIMULATED_VARIABLE = "GPUKERNEL_SIMULATED"
"""Set to 1 in the environment of a program whose devices are all simulated (`gpukernel.remoting.environment`)."""
