"""NVIDIA's cuda-samples, compiled from their folders by what their CMakeLists.txt says.

A program is kept beside the samples for as long as what it is compiled from, and by, stays the same.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpukernel import native
from tests.suites.runtime_programs.cuda_samples_list import ARGUMENTS, GROUPS, RELOCATABLE, TWO_DEVICES

ROOT = Path(os.environ.get("GPUKERNEL_SUITES_PROGRAMS", "."))
TOOLKIT = Path(os.environ.get("GPUKERNEL_SUITES_TOOLKIT", "."))
NVCC = ["nvcc", "-w", "-std=c++17", f"-I{ROOT / 'Common'}", f"-I{TOOLKIT / 'include'}"]
FOR = ["-gencode", "arch=compute_80,code=compute_80"]

# The libraries that CMake's names stand for; those that are not gpukernel's own are found in the toolkit's folder.
LIBRARIES = {
    "cublas": "libcublas.so.13",
    "cuda_driver": "libcuda.so.1",
    "cufft": "libcufft.so.12",
    "cufft_static": "libcufft.so.12",
    "curand": "libcurand.so.10",
    "cusolver": "libcusolver.so.12",
    "cusparse": "libcusparse.so.12",
    "nvJitLink": "libnvJitLink.so.13",
    "nvrtc": "libnvrtc.so.13",
}
# What comes along with a target of CMake's, or is found by it in another way.
ALONG = {"CUDA::cusolver": "cusparse", "nvJitLink": "nvJitLink"}
# Of another project; where they are not installed, the sample is skipped.
OTHERS = ("boost/", "mpi.h")


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lacking = re.search(r"fatal error: (\S+): No such file", done.stderr)
    if lacking and lacking[1].startswith(OTHERS):
        pytest.skip(f"{lacking[1]} is not installed")
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    return done.stdout


@functools.cache
def compiler() -> tuple[str, Path]:
    """Return nvcc's version and the folder of its headers."""
    said = subprocess.run(
        ["nvcc", "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True, check=False
    )
    top = re.search(r"^#\$ TOP=(.*)$", said.stderr, re.MULTILINE)
    assert top, said.stderr[-2000:]
    return run(["nvcc", "--version"]), Path(top[1].strip(), "include")


def compiled(command: list[str], name: str) -> Path:
    """Return the file `name` that `command` compiles, from an earlier run where it is the same command."""
    key = hashlib.sha256("\0".join([compiler()[0], *command]).encode()).hexdigest()[:16]
    kept = ROOT / "compiled" / key / name
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        unfinished = kept.with_suffix(f".{os.getpid()}{kept.suffix}")
        run([*command, "-o", str(unfinished)])
        unfinished.rename(kept)
    return kept


def program(name: str, folder: Path, build: str) -> Path:
    """Return the sample's program, from the sources and with the libraries that `build` names."""
    sources = re.search(rf"add_executable\(\s*{re.escape(name)}\s([^)]*)\)", build)
    assert sources, build
    libraries = sorted(set(re.findall(r"CUDA::(\w+)", build)) & LIBRARIES.keys())
    libraries += [more for named, more in ALONG.items() if named in build]
    words = ["--extended-lambda", f"-I{folder / 'inc'}", "-cudart", "shared"]
    if "OpenMP" in build:
        words += ["-Xcompiler", "-fopenmp"]
    if name in RELOCATABLE:
        words.append("-rdc=true")
    linked = ["-Xlinker", "--as-needed"]
    for place in (native.shim_dir(), native.shim_dir().parent / "libraries", TOOLKIT / "lib"):
        linked += ["-L", str(place), "-Xlinker", f"-rpath-link={place}"]
    linked += [f"-l:{LIBRARIES[each]}" for each in libraries] + ["-l:libcuda.so.1"]
    files = [os.path.normpath(folder / source) for source in sources[1].split()]
    return compiled([*NVCC, *words, *FOR, *files, *linked], name)


def lay_out(name: str, folder: Path, build: str, place: Path) -> None:
    """Put what the sample looks for beside its program: its files, kernels that it loads, headers for NVRTC."""
    for path in folder.iterdir():
        (place / path.name).symlink_to(path)
    for kernels in re.findall(r'set\(CUDA_(?:FATBIN|PTX)_FILE "[^"]*/([^"/]*)"', build):
        form = ["-ptx", "-arch=compute_80"] if kernels.endswith(".ptx") else ["-fatbin", *FOR]
        source = re.search(r'set\(CUDA_KERNEL_SOURCE "[^"]*/([^"/]*)"', build)
        assert source, build
        (place / kernels).symlink_to(compiled([*NVCC, *form, str(folder / source[1])], kernels))
    if "nvrtc" in name:
        include = compiler()[1]
        for header in ("cooperative_groups.h", "cooperative_groups", "nv", "cuda"):
            found = next(each / header for each in (include, include / "cccl") if (each / header).exists())
            if not (place / header).exists():
                (place / header).symlink_to(found)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", GROUPS)
def test_cuda_samples(name: str, tmp_path: Path) -> None:
    folder = ROOT / "Samples" / GROUPS[name] / name
    build = (folder / "CMakeLists.txt").read_text()
    # Samples look for their files beside themselves as well.
    here = Path(shutil.copy(program(name, folder, build), tmp_path / "program"))
    lay_out(name, folder, build, tmp_path)
    command = [str(here), *ARGUMENTS.get(name, "").split()]
    if name in TWO_DEVICES:
        command = [sys.executable, "-m", "gpukernel.cli", "run", "-n", "2", "-p", "0.25", "--", *command]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=900, check=False
    )
    said = (done.stdout + done.stderr)[-2000:]
    print(said)
    if done.returncode == 2:  # the samples' word for a device that lacks what they show
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, f"ended with {done.returncode}: {said}"
    # Not every sample looks at the errors of its calls, or ends with one where it found its results wrong.
    assert not re.search(r"^gpukernel: |\bFAIL(ED)?\b", said, re.MULTILINE), said
