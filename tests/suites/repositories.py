"""Sources whose tests are in no wheel: the release from PyPI, and the tests from the project's repository at its tag."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from pathlib import Path

from tests.suites.git import checkout
from tests.suites.sources import NotHere, Source, _kept, _nvidia, _pip, is_kept, torch

# The newest releases whose repository's tag, and so whose own tests, could be had when this was written.
TINYGRAD = "0.13.0"
DRJIT = "1.5.0"
TAICHI = "1.7.4"
JAX = "0.10.2"

_COMMITS = {
    "tinygrad/tinygrad": (f"v{TINYGRAD}", "2d48fe8b7b"),
    "mitsuba-renderer/drjit": (f"v{DRJIT}", "671cbb2524"),
    "taichi-dev/taichi": (f"v{TAICHI}", "b4b956fdaa"),
    "NVIDIA/numba-cuda": ("v0.30.4", "152868224d"),
    "jax-ml/jax": (f"jax-v{JAX}", "990e6a0b84"),
}


def numba_as_its_developers_do() -> Source:
    """numba-cuda's tests from its wheel, with the settings of pytest that its repository keeps beside them."""
    version = importlib.metadata.version("numba-cuda")
    tag, _ = _COMMITS["NVIDIA/numba-cuda"]
    if tag != f"v{version}":
        raise NotHere(f"numba-cuda {version} is installed, and the settings are those of {tag}")
    testing = _checkout("NVIDIA/numba-cuda", "testing") / "testing"
    with _kept("numba-cuda-needs") as (needs, fresh):
        if fresh:
            _pip("install", "--no-deps", "--target", needs, "pytest-benchmark==5.3.1", "py-cpuinfo==9.0.0")
    # nvJitLink has to be absent where PTX is wanted; the sentence is newer than the list in their settings.
    words = ("-W", "ignore:cuda.bindings.nvjitlink is not available:RuntimeWarning")
    return Source(
        version,
        "numba.cuda.tests",
        environment={"PYTHONPATH": str(needs)},
        settings=testing / "pytest.ini",
        words=words,
    )


def tinygrad_c() -> Source:
    """tinygrad with the renderer that writes CUDA C for NVRTC."""
    return _tinygrad("CUDA")


def tinygrad_ptx() -> Source:
    """tinygrad with the renderer that writes PTX itself."""
    return _tinygrad("CUDA:PTX")


def _tinygrad(device: str) -> Source:
    """tinygrad's release, its tests and what these import from its repository, and PyTorch, with which they compare."""
    checkout = _checkout("tinygrad/tinygrad", "test", "extra", "examples")
    with _kept(f"tinygrad-{TINYGRAD}") as (folder, fresh):
        nvrtc = folder / "lib"
        if fresh:
            _pip("install", "--no-deps", "--target", folder / "site", f"tinygrad=={TINYGRAD}")
            nvrtc.mkdir()
            for library in (_nvidia("cuda_nvrtc") / "lib").glob("libnvrtc*"):
                (nvrtc / library.name).symlink_to(library)
                if library.name.startswith("libnvrtc.so"):  # the name that it looks for
                    (nvrtc / "libnvrtc.so").symlink_to(library)
    return Source(
        TINYGRAD,
        checkout / "test" / "backend",
        environment={
            "PYTHONPATH": os.pathsep.join([str(checkout), str(folder / "site"), str(torch())]),
            "LD_LIBRARY_PATH": str(nvrtc),
            "CUDA_PATH": str(_nvidia("cuda_runtime")),
            "DEV": device,
            "CACHELEVEL": "0",
            "CC": _clang(),
        },
    )


def _clang() -> str:
    """Return the compiler of tinygrad's own CPU device, which some tests use beside the GPU; Debian's has its version in its name."""
    names = ["clang", *(f"clang-{version}" for version in range(22, 14, -1))]
    return next(filter(shutil.which, names), "clang")


def drjit() -> Source:
    """Dr.Jit's release and its tests; of these, those for its CUDA backend, by their parameters."""
    checkout = _checkout("mitsuba-renderer/drjit", "tests")
    with _kept(f"drjit-{DRJIT}") as (folder, fresh):
        if fresh:
            _pip("install", "--no-deps", "--target", folder, f"drjit=={DRJIT}")
    # Whatever forces OptiX has True among its parameters, in the one test that is parametrised by it.
    tests = "cuda and not llvm and not (scatter_packet_reduce and True)"
    return Source(DRJIT, checkout / "tests", environment={"PYTHONPATH": str(folder)}, words=("-k", tests))


def taichi() -> Source:
    """Taichi's release and its tests; of these, those that it runs on CUDA."""
    checkout = _checkout("taichi-dev/taichi", "tests")
    with _kept(f"taichi-{TAICHI}") as (folder, fresh):
        if fresh:
            _pip(
                "install",
                "--no-deps",
                "--target",
                folder,
                f"taichi=={TAICHI}",
                "colorama==0.4.6",
                "dill==0.4.1",
                "rich==15.0.0",
                "markdown-it-py==4.3.0",
                "mdurl==0.1.2",
                "pygments==2.21.0",
                "autograd==1.9.1",
                "pytest-rerunfailures==16.7",
            )
    return Source(
        TAICHI,
        checkout / "tests" / "python",
        environment={
            "PYTHONPATH": os.pathsep.join([str(checkout), str(folder)]),
            "TI_WANTED_ARCHS": "cuda",
            "TI_OFFLINE_CACHE": "0",
        },
        settings=checkout / "tests" / "pytest.ini",
        words=("-k", "cuda"),
    )


def drjit_is_here() -> bool:
    """Tell whether `drjit` has nothing to fetch any more, for which a machine without a network would wait."""
    return is_kept(f"drjit-{DRJIT}") and is_kept(f"mitsuba-renderer-drjit-v{DRJIT}")


def _checkout(repository: str, *paths: str) -> Path:
    tag, commit = _COMMITS[repository]
    return checkout(repository, commit, *paths, tag=tag)
