"""The native parts of the data path and their places: the shim, the worker and the simulated GPU.

The sources stand beside this file; what is built from them is installed into this package by the
wheel (``shim/libcuda.so.1``, ``shim/libnvidia-ml.so.1`` and, with OpenSSL, ``shim/libgpukernel-tls.so``, ``direct/libcuda.so.1``, ``simgpu/libcuda.so.1``,
``cudart/libcudart.so.12`` and its like, ``ptxas/ptxas``, ``compilers/``, ``libraries/``, ``simgpu_libraries/``, ``bin/gpukernel-worker``,
``wire/calls.json``).
An editable install puts them under ``site-packages`` while this file stays in the checkout, so both places are
looked at.  The agent, the command line and `gpukernel.remoting` import from here; it imports nothing of gpukernel.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from pathlib import Path

__all__ = [
    "NativePartMissing",
    "compiler_auditor",
    "direct_dir",
    "libraries_dir",
    "nvidia_library_folders",
    "nvml_library",
    "oci_hook",
    "openblas_library",
    "own_drivers",
    "ptxas",
    "runtime_auditor",
    "runtime_dir",
    "shim_dir",
    "simgpu_library",
    "slurm_hook",
    "tls_library",
    "wire_calls",
    "worker_executable",
]


class NativePartMissing(RuntimeError):
    """An error: a native part is not where the installation should have put it."""


def _find(relative: str) -> Path:
    override = os.environ.get("GPUKERNEL_NATIVE_DIR")
    roots = [Path(override)] if override else []
    roots += [Path(__file__).parent, Path(sysconfig.get_path("platlib"), "gpukernel", "native")]
    for root in roots:
        if (path := root / relative).exists():
            return path
    raise NativePartMissing(
        f"gpukernel's native part {relative!r} is missing from {roots[-1]}; install gpukernel again with pip."
    )


def shim_dir() -> Path:
    """Return the directory of the shim's ``libcuda.so.1``, which goes first in ``LD_LIBRARY_PATH``."""
    return _find("shim/libcuda.so.1").parent


def direct_dir() -> Path:
    """Return the directory of direct mode's ``libcuda.so.1``, which goes first in ``LD_LIBRARY_PATH`` there."""
    return _find("direct/libcuda.so.1").parent


def libraries_dir() -> Path:
    """Return the directory of the math libraries that forward their calls, which goes behind the shim's in ``LD_LIBRARY_PATH``."""
    return _find("libraries/libcublas.so.12").parent


def openblas_library() -> Path | None:
    """Return the OpenBLAS of the wheel ``scipy-openblas32``, with which math libraries compute beside the simulated GPU; None without it."""
    found = importlib.util.find_spec("scipy_openblas32")
    places = found.submodule_search_locations if found else None
    library = Path(next(iter(places)), "lib", "libscipy_openblas.so") if places else None
    return library if library and library.exists() else None


def nvidia_library_folders() -> list[Path]:
    """Return the folders of NVIDIA's own math libraries among this environment's wheels, for workers on real devices."""
    return sorted(Path(sysconfig.get_path("platlib"), "nvidia").glob("*/lib"))


def own_drivers() -> list[Path]:
    """Return every ``libcuda.so.1`` of this package: none of them is NVIDIA's."""
    return [shim_dir() / "libcuda.so.1", direct_dir() / "libcuda.so.1", simgpu_library()]


def nvml_library() -> Path:
    """Return the ``libnvidia-ml.so.1`` that shows NVML tools the slice; it lies beside the shim."""
    return _find("shim/libnvidia-ml.so.1")


def tls_library() -> Path:
    """Return the library of the data path's TLS, which lies beside the shim; it is missing where OpenSSL was when this was built."""
    return _find("shim/libgpukernel-tls.so")


def simgpu_library() -> Path:
    """Return the simulated GPU's ``libcuda.so.1``, which a worker loads in place of NVIDIA's."""
    return _find("simgpu/libcuda.so.1")


def ptxas() -> Path:
    """Return the ``ptxas`` that hands PTX on as it is, for compilers of programs on simulated devices."""
    return _find("ptxas/ptxas")


def wire_calls() -> Path:
    """Return the table of the remoting protocol's custom calls, ``calls.json``."""
    return _find("wire/calls.json")


def worker_executable() -> Path:
    """Return the program that executes one lease's CUDA calls on one device."""
    return _find("bin/gpukernel-worker")


def oci_hook() -> Path:
    """Return the program that container runtimes call before a container's program starts and after it has ended."""
    return _find("bin/gpukernel-oci-hook")


def slurm_hook() -> Path:
    """Return the program that is Slurm's Epilog on a node that gives slices to shard jobs."""
    return _find("bin/gpukernel-slurm-hook")


def compiler_auditor() -> Path:
    """Return the library that, named in ``LD_AUDIT``, has NVRTC and nvJitLink hand over PTX; theirs lie beside it."""
    return _find("compilers/libgpukernel-compilers.so")


def runtime_dir() -> Path:
    """Return the directory of the CUDA runtimes for programs on remote slices, ``libcudart.so.12`` and its like."""
    return _find("cudart/libcudart.so.12").parent


def runtime_auditor() -> Path:
    """Return the library that, named in ``LD_AUDIT``, puts the CUDA runtimes beside it before NVIDIA's."""
    return _find("cudart/libgpukernel-runtime.so")
