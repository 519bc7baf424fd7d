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


@pytest.mark.parametrize("name", NAMES)
def test_cuda_samples(name: str, tmp_path: Path) -> None:
    root = Path(os.environ["GPUKERNEL_SUITES_PROGRAMS"])
    folder, program = root / "Samples" / name, tmp_path / "program"
    sources = [str(path) for pattern in ("*.cu", "*.cpp") for path in sorted(folder.glob(pattern))]
    words = ["nvcc", "-w", "-std=c++17", "-cudart", "shared", "--extended-lambda", f"-I{root / 'Common'}"]
    words += ["-gencode", "arch=compute_80,code=compute_80", "-o", str(program), *sources]
    driver = ["-Xlinker", "--as-needed", "-L", str(native.shim_dir()), "-l:libcuda.so.1"]
    built = subprocess.run([*words, *driver], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-2000:]
    done = subprocess.run(
        [str(program)], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode == 2:  # the samples' word for a device that lacks what they show
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
