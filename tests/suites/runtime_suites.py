"""Programs of others that nvcc compiles to PTX with the shared CUDA runtime: NVIDIA's cuda-samples and HeCBench."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.suites.git import checkout
from tests.suites.runner import Suite
from tests.suites.runtime_programs.cuda_samples import DRIVER_SAMPLES, NAMES
from tests.suites.runtime_programs.hecbench import PROGRAMS
from tests.suites.sources import NotHere, Source

SAMPLES = "c94ff366aed18c797b8a85dfaac7817b0228b420"
HECBENCH = "f27000a5188f8ac79bd43fc95a1b3f890c18823d"


def _source(name: str, repository: str, commit: str, *paths: str) -> Source:
    if shutil.which("nvcc") is None:
        raise NotHere("nvcc is not installed")
    folder = checkout(repository, commit, *paths)
    return Source(
        commit[:10],
        Path(__file__).parent / "runtime_programs",
        environment={"GPUKERNEL_SUITES_PROGRAMS": str(folder)},
        words=("-k", name),
    )


def cuda_samples() -> Source:
    """NVIDIA's samples; each ends with 0 where it found its results right."""
    folders = (f"Samples/{name}" for name in (*NAMES, *DRIVER_SAMPLES))
    return _source("cuda_samples", "NVIDIA/cuda-samples", SAMPLES, "Common", *folders)


def hecbench() -> Source:
    """Benchmarks that compare with a result of the host, by their own makefiles, for small sizes."""
    folders = (f"src/{name}-cuda" for name in PROGRAMS)
    return _source("hecbench", "zjin-lcf/HeCBench", HECBENCH, *folders)


CUDA_SAMPLES = Suite("cuda-samples", cuda_samples, ("cuda_samples",), together=True, simulate="a100:1")
HECBENCH_PROGRAMS = Suite("hecbench", hecbench, ("hecbench",), together=True, simulate="a100:1")
