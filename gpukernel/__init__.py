"""Slices of networked GPUs for Jupyter kernels."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> str:
    """Return ``__version__``, which is written in ``pyproject.toml`` and read when somebody asks: the reading takes 20 ms."""
    if name == "__version__":
        from importlib.metadata import version

        return version("gpukernel")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """Load the magics ``%gpu`` and ``%%gpu``, for ``%load_ext gpukernel``; kernels on slices load them by themselves."""
    from gpukernel.jupyter import magics

    magics.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Take the magics away again, for ``%unload_ext gpukernel``."""
    from gpukernel.jupyter import magics

    magics.unload(shell)
