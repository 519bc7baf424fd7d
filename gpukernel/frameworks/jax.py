"""JAX on a slice: where it looks for a device, and on simulated devices for an assembler of PTX.

JAX loads this through the entry point group ``jax_plugins`` and calls `initialize` before it looks for devices.
"""

from __future__ import annotations

import os
from pathlib import Path

from gpukernel.frameworks import SIMULATED_VARIABLE

__all__ = ["initialize"]

LEASE_FILE_VARIABLE, OF_SLURM = "GPUKERNEL_LEASE_FILE", "slurm:"
ASSEMBLER_VARIABLE = "TRITON_PTXAS_PATH"
"""Names this package's ``ptxas``, which lets PTX be PTX (`gpukernel.remoting.environment`)."""

FLAGS = {
    # A call of cuDNN's attention that is captured into a graph copies numbers from host memory that is freed before the graph runs.
    # A collective of several devices passes through the program, which no graph of one device contains.
    "--xla_gpu_enable_command_buffer": "-CUDNN,-CUSTOM_CALL,-COLLECTIVES",
}
"""XLA's flags on slices, where the program does not give them itself."""

SIMULATED_FLAGS = {
    # Compilers to machine code that are linked in; without them XLA runs ``ptxas``.
    "--xla_gpu_enable_libnvptxcompiler": "false",
    "--xla_gpu_enable_libnvjitlink": "false",
    # To try kernels takes seconds each, and their times on a simulated device say nothing.
    "--xla_gpu_autotune_level": "0",
    # Untried, its kernels for products of bytes take tiles of 16 for an instruction of 32, and give twice the product.
    "--xla_gpu_enable_triton_gemm": "false",
}
"""XLA's flags on simulated devices, where the program does not give them itself."""


def initialize() -> None:
    """Let JAX take the slice's lease file for a device file, and on simulated devices have it run this package's ``ptxas``."""
    if not (lease := os.environ.get(LEASE_FILE_VARIABLE)):
        return
    from jax._src import hardware_utils, lib

    files = getattr(hardware_utils, "_NVIDIA_GPU_DEVICES", None)
    there = lease.removeprefix(OF_SLURM)  # the folder of a Slurm job's file
    if isinstance(files, list) and there not in files:
        files.append(there)
    _add_flags(FLAGS)
    assembler = Path(os.environ.get(ASSEMBLER_VARIABLE, ""))
    own = assembler.parent / "bin" / "ptxas"
    if os.environ.get(SIMULATED_VARIABLE) != "1" or "CUDA_ROOT" in os.environ or not own.exists():
        return
    lib.cuda_path = str(assembler.parent)  # where XLA looks for bin/ptxas
    _add_flags(SIMULATED_FLAGS)


def _add_flags(flags: dict[str, str]) -> None:
    given = os.environ.get("XLA_FLAGS", "")
    more = [f"{flag}={value}" for flag, value in flags.items() if flag not in given]
    os.environ["XLA_FLAGS"] = " ".join(filter(None, (given, *more)))
