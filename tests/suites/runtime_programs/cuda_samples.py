"""NVIDIA's cuda-samples, compiled from their folders.

What needs a window, a math library, files of another build or minutes (``matrixMul``, ``simpleStreams``, ``simplePitchLinearTexture``) is not in the list.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpukernel import native

SAMPLES = {
    "0_Introduction": (
        "asyncAPI clock fp16ScalarProduct mergeSort simpleAWBarrier simpleAtomicIntrinsics simpleAttributes simpleCallback "
        "simpleCooperativeGroups simpleCubemapTexture simpleHyperQ simpleLayeredTexture simpleMultiCopy "
        "simpleOccupancy simplePrintf simpleSurfaceWrite simpleTemplates simpleTexture "
        "simpleVoteIntrinsics simpleZeroCopy systemWideAtomics template vectorAdd"
    ),
    "1_Utilities": "deviceQuery",
    "3_CUDA_Features": "binaryPartitionCG graphConditionalNodes graphMemoryNodes simpleCudaGraphs",
}
NAMES = [f"{group}/{name}" for group, names in SAMPLES.items() for name in names.split()]

# Samples of the driver API: the file that each loads its kernels from, and which of the common sources it needs.
DRIVER_SAMPLES = {
    "0_Introduction/matrixMulDrv": "matrixMul_kernel64.fatbin",
    "0_Introduction/simpleTextureDrv": "simpleTexture_kernel64.fatbin",
    "0_Introduction/vectorAddDrv": "vectorAdd_kernel64.fatbin",
    "0_Introduction/vectorAddMMAP": "vectorAdd_kernel64.fatbin",
    "1_Utilities/deviceQueryDrv": "",
    "2_Concepts_and_Techniques/threadMigration": "threadMigration_kernel64.fatbin",
    "3_CUDA_Features/memMapIPCDrv": "memMapIpc_kernel64.ptx",
}
COMMON = {"3_CUDA_Features/memMapIPCDrv": "helper_multiprocess.cpp"}

ROOT = Path(os.environ.get("GPUKERNEL_SUITES_PROGRAMS", "."))
NVCC = ["nvcc", "-w", "-std=c++17", f"-I{ROOT / 'Common'}"]
FOR = ["-gencode", "arch=compute_80,code=compute_80"]


def compiled(program: Path, *words: str) -> None:
    linked = ["-Xlinker", "--as-needed", "-L", str(native.shim_dir()), "-l:libcuda.so.1"]
    command = [*NVCC, "-cudart", "shared", "-o", str(program), *words, *linked]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-2000:]


def ends_well(program: Path, folder: Path) -> None:
    done = subprocess.run(
        [str(program)], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode == 2:  # the samples' word for a device that lacks what they show
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]


@pytest.mark.parametrize("name", NAMES)
def test_cuda_samples(name: str, tmp_path: Path) -> None:
    folder, program = ROOT / "Samples" / name, tmp_path / "program"
    sources = [str(path) for pattern in ("*.cu", "*.cpp") for path in sorted(folder.glob(pattern))]
    compiled(program, "--extended-lambda", *FOR, *sources)
    ends_well(program, folder)


@pytest.mark.parametrize("name", DRIVER_SAMPLES)
def test_cuda_samples_of_the_driver_api(name: str, tmp_path: Path) -> None:
    folder, program = ROOT / "Samples" / name, tmp_path / "program"
    sources = [str(path) for path in sorted(folder.glob("*.cpp"))]
    if name in COMMON:
        sources.append(str(ROOT / "Common" / COMMON[name]))
    compiled(program, *sources)
    if DRIVER_SAMPLES[name]:
        kernels = tmp_path / DRIVER_SAMPLES[name]
        form = ["-ptx", "-arch=compute_80"] if kernels.suffix == ".ptx" else ["-fatbin", *FOR]
        source = str(next(folder.glob("*_kernel.cu")))
        subprocess.run([*NVCC, *form, "-o", str(kernels), source], check=True)
    if (folder / "data").exists():
        (tmp_path / "data").symlink_to(folder / "data")
    ends_well(program, tmp_path)
