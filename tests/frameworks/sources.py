"""The frameworks' packages, in folders beside those of the suites (`tests.suites.sources`)."""

from __future__ import annotations

from pathlib import Path

from tests.suites.repositories import TORCH
from tests.suites.sources import NotHere, _kept, _pip, is_kept

__all__ = ["NotHere", "Site", "pytorch", "pytorch_is_kept"]

Site = Path
_PYTORCH = f"pytorch-{TORCH}"


def pytorch_is_kept() -> bool:
    """Whether `pytorch` has nothing to fetch."""
    return is_kept(_PYTORCH)


def pytorch() -> Site:
    """PyTorch with NVIDIA's libraries, as PyPI has it, and what its own tables of operators import."""
    with _kept(_PYTORCH) as (folder, fresh):
        if fresh:
            # Three equals signs: not a build for the CPU that a local index may have.
            _pip("install", "--target", folder, f"torch==={TORCH}", "numpy", "scipy", "expecttest")
    return folder
