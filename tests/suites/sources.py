"""The sources of the suites: installed packages, and releases on PyPI that carry their tests.

What is fetched and built lies in ``build/suites`` and is kept there; nothing of it is part of this repository.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpukernel import native

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "suites"

# The last release whose wheel has the tests inside, and its own bindings: later ones are tested in their repository only.
CUDA_PYTHON = "12.6.0"
PYCUDA = "2026.1"
# PyTorch, with which other suites compare, and the Triton that belongs to it.
TORCH, TRITON = "2.14.1", "3.8.0"


class NotHere(Exception):
    """The suite's sources cannot be had; the sentence says what is missing."""


@dataclass(frozen=True)
class Source:
    """The place of a suite's tests, and their needs.

    Parameters
    ----------
    version
        Of the package that is tested.
    tests
        A package's name, or a folder of test modules.
    plugin
        What the tests expect around them, as a pytest plugin; none where empty.
    environment
        Variables for the tests' process; ``PYTHONPATH`` and ``LD_LIBRARY_PATH`` come before what is there.
    settings
        pytest's settings of the tests' own project, in whose folder it starts; none where None.
    words
        More words for pytest, among them the choice of tests.
    """

    version: str
    tests: str | Path
    plugin: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    settings: Path | None = None
    words: tuple[str, ...] = ()


def numba() -> Source:
    """numba-cuda's tests, which its wheel carries."""
    version = importlib.metadata.version("numba-cuda")
    return Source(version, "numba.cuda.tests.cudapy", "tests.suites.numba_fixtures")


def cuda_python() -> Source:
    """cuda-python's tests with the bindings of the same release, unpacked beside and not over the installed ones."""
    with _kept(f"cuda-python-{CUDA_PYTHON}") as (folder, fresh):
        if fresh:
            _pip(
                "download",
                "--no-deps",
                "--only-binary=:all:",
                f"cuda-python=={CUDA_PYTHON}",
                "--dest",
                folder,
            )
            for wheel in folder.glob("*.whl"):
                zipfile.ZipFile(wheel).extractall(folder / "site")
                wheel.unlink()
    return Source(
        CUDA_PYTHON,
        folder / "site" / "cuda" / "tests",
        "tests.suites.cuda_python_fixtures",
        {
            "PYTHONPATH": str(folder / "site"),
            "LD_LIBRARY_PATH": str(_nvidia("cuda_nvrtc") / "lib"),
            "CUDA_HOME": str(_nvidia("cuda_runtime")),
        },
    )


def linkers() -> Path:
    """The folder of nvJitLink and nvFatbin, which no environment of this project has: the first changes what Numba does."""
    with _kept("nvidia-linkers-12.9") as (folder, fresh):
        if fresh:
            wheels = ["nvidia-nvjitlink-cu12==12.9.*", "nvidia-nvfatbin-cu12==12.9.*"]
            _pip("install", "--no-deps", "--target", folder / "site", *wheels)
    return folder / "site" / "nvidia"


def toolkit() -> Path:
    """The folder of CUDA 13's ``include`` and ``lib``: headers of the math libraries, NVRTC and nvJitLink; a gigabyte on the way."""
    with _kept("cuda-libraries-13.0") as (folder, fresh):
        whole, libraries = folder / "site" / "nvidia" / "cu13", ("libnvrtc", "libnvJitLink")
        if fresh:
            wheels = ["cublas==13.1", "cuda-nvrtc==13.0", "cufft==12.0", "curand==10.4"]
            wheels += ["cusolver==12.0", "cusparse==12.6", "nvjitlink==13.0"]
            names = [f"nvidia-{wheel}.*" for wheel in wheels]
            _pip("install", "--no-deps", "--target", folder / "site", *names)
            for library in (whole / "lib").iterdir():
                if not library.name.startswith(libraries):
                    library.unlink()
    return whole


def torch() -> Path:
    """The folder of PyTorch and Triton, which several suites share: four gigabytes."""
    with _kept(f"torch-{TORCH}") as (folder, fresh):
        if fresh:
            _pip("install", "--target", folder, f"torch=={TORCH}", f"triton=={TRITON}", "numpy<2.5")
    return folder


def pycuda_is_built() -> bool:
    """Tell whether `pycuda` needs no compiler any more, which it keeps busy for some minutes."""
    return is_kept(f"pycuda-{PYCUDA}")


def pycuda() -> Source:
    """PyCUDA, built from its source release against ``cuda.h`` and the simulated library, and its tests."""
    with _kept(f"pycuda-{PYCUDA}") as (folder, fresh):
        sources, site, toolkit = folder / f"pycuda-{PYCUDA}", folder / "site", folder / "toolkit"
        curand = toolkit / "nvidia" / "curand"
        if fresh:
            _build_pycuda(folder, sources, site, toolkit)
    return Source(
        PYCUDA,
        sources / "test",
        "tests.suites.pycuda_fixtures",
        {
            "PYTHONPATH": str(site),
            "LD_LIBRARY_PATH": str(curand / "lib"),
            "GPUKERNEL_SUITES_INCLUDE": str(curand / "include"),
        },
    )


def _build_pycuda(folder: Path, sources: Path, site: Path, toolkit: Path) -> None:
    _pip(
        "install",
        "--no-deps",
        "--target",
        toolkit,
        "nvidia-cuda-profiler-api-cu12==12.9.*",
        "nvidia-curand-cu12==10.3.*",
    )
    _pip("install", "--no-deps", "--target", site, "pytools", "mako", "siphash24")
    # Its metadata is asked for on the way, so that pip builds where it only should fetch.
    _pip("download", "--no-deps", "--no-binary", "pycuda", f"pycuda=={PYCUDA}", "--dest", folder)
    archive = next(folder.glob("pycuda-*.tar.gz"))
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()
    libraries = folder / "lib"
    libraries.mkdir()
    (libraries / "libcuda.so").symlink_to(native.simgpu_library())
    (libraries / "libcurand.so").symlink_to(next((toolkit / "nvidia/curand/lib").glob("libcurand.so.*")))
    include = [toolkit / "nvidia" / each / "include" for each in ("cuda_profiler_api", "curand")]
    include += [_nvidia(each) / "include" for each in ("cuda_runtime", "cuda_nvcc")]
    compiler = {
        "CPATH": os.pathsep.join(map(str, include)),
        "LIBRARY_PATH": str(libraries),
        "CFLAGS": "-O0 -g0 -w",
    }
    _pip("install", "--no-deps", "--target", site, sources, environment=compiler)


def _nvidia(name: str) -> Path:
    """The folder of one of NVIDIA's wheels, which share a package without a file of its own."""
    import nvidia

    found = next((Path(each) / name for each in nvidia.__path__ if (Path(each) / name).is_dir()), None)
    if found is None:
        raise NotHere(f"nvidia/{name} is not installed: make .venv/.test")
    return found


def is_kept(name: str) -> bool:
    """Tell whether the folder for `name` is filled."""
    return (KEPT / f"{name}-{sys.implementation.cache_tag}" / ".done").exists()


@contextmanager
def _kept(name: str) -> Iterator[tuple[Path, bool]]:
    """The folder for `name`, and whether it is still to be filled; one process at a time, and whole or not at all."""
    KEPT.mkdir(parents=True, exist_ok=True)
    tag = f"{name}-{sys.implementation.cache_tag}"
    folder = KEPT / tag
    with (KEPT / f"{tag}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / ".done"
        if fresh := not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        yield folder, fresh
        done.touch()


def _pip(*words: str | Path, environment: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, words)]
    done = subprocess.run(
        command, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.lower().startswith("error")] or [
            "no reason given"
        ]
        raise NotHere(f"pip {words[0]} {words[-1]}: {said[-1]}")
