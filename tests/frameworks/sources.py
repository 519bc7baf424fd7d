"""The frameworks' packages, in folders beside those of the suites (`tests.suites.sources`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.suites.repositories import JAX as JAX_VERSION
from tests.suites.sources import TORCH, NotHere, _kept, _pip, is_kept

__all__ = ["CUDNN_FRONTEND", "JAX", "PYTORCH", "TENSORFLOW", "TENSORFLOW_ALONE", "Framework", "NotHere"]


@dataclass(frozen=True)
class Framework:
    """A framework as PyPI has it."""

    name: str
    packages: tuple[str, ...]
    words: tuple[str, ...] = ()
    """More words for pip."""

    def is_kept(self) -> bool:
        """Tell whether `site` has nothing to fetch."""
        return is_kept(self.name)

    def site(self) -> Path:
        """Return the folder of its packages.  Raises NotHere where they cannot be had."""
        with _kept(self.name) as (folder, fresh):
            if fresh:
                _pip("install", *self.words, "--target", folder, *self.packages)
        return folder


# Three equals signs: not a build for the CPU that a local index may have.  The last ones are what the tables of operators import.
PYTORCH = Framework(f"pytorch-{TORCH}", (f"torch==={TORCH}", "numpy", "scipy", "expecttest"))
JAX = Framework(f"jax-{JAX_VERSION}", (f"jax[cuda12]=={JAX_VERSION}", "flax", "optax", "flatbuffers"))
TENSORFLOW = Framework("tensorflow-2.21.0", ("tensorflow[and-cuda]==2.21.0",))
# Without NVIDIA's libraries, which a slice brings: of nvcc's package XLA needs a file of bitcode, libdevice.
TENSORFLOW_ALONE = Framework(
    "tensorflow-2.21.0-alone", ("tensorflow==2.21.0", "nvidia-cuda-nvcc-cu12==12.9.*")
)
# What frameworks have compiled in, newer than in any of them here, as a package for Python; it brings compilers that attention needs not.
CUDNN_FRONTEND = Framework("cudnn-frontend-1.32.0", ("nvidia-cudnn-frontend==1.32.0",), ("--no-deps",))
