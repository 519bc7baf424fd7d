"""Slices of networked GPUs for Jupyter kernels."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext gpukernel``: the magics ``%gpu`` and ``%%gpu``; kernels on slices load them by themselves."""
    from gpukernel.jupyter import magics

    magics.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext gpukernel``."""
    from gpukernel.jupyter import magics

    magics.unload(shell)
