"""Programs of others: NVIDIA's cuda-samples and HeCBench, which nvcc compiles with the shared CUDA runtime, and ZLUDA's in PTX."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from tests.suites.git import checkout
from tests.suites.runner import Suite
from tests.suites.runtime_programs.cuda_samples_list import GROUPS, KNOWN, MINUTES
from tests.suites.runtime_programs.hecbench import PROGRAMS
from tests.suites.sources import NotHere, Source, toolkit

SAMPLES = "c94ff366aed18c797b8a85dfaac7817b0228b420"
ZLUDA = "8a7931be87d758835776f54ea2e33d30621c74ce"
HECBENCH = "f27000a5188f8ac79bd43fc95a1b3f890c18823d"


def _source(name: str, repository: str, commit: str, *paths: str) -> Source:
    folder = checkout(repository, commit, *paths)
    return Source(
        commit[:10],
        Path(__file__).parent / "runtime_programs",
        environment={"GPUKERNEL_SUITES_PROGRAMS": str(folder)},
        words=("-k", name),
    )


def _needs_nvcc() -> None:
    if shutil.which("nvcc") is None:
        raise NotHere("nvcc is not installed")


def zluda() -> Source:
    """Some two hundred PTX programs of an instruction or two, each with the output that a GPU gives."""
    return _source("zluda", "vosen/ZLUDA", ZLUDA, "ptx/src/test/spirv_run")


def cuda_samples() -> Source:
    """NVIDIA's samples; each ends with 0 where it found its results right."""
    _needs_nvcc()
    folders = (f"Samples/{group}/{name}" for name, group in GROUPS.items())
    source = _source("cuda_samples", "NVIDIA/cuda-samples", SAMPLES, "Common", *folders)
    places = {"GPUKERNEL_SUITES_TOOLKIT": str(toolkit()), "LD_LIBRARY_PATH": str(toolkit() / "lib")}
    return replace(source, environment={**source.environment, **places})


def hecbench() -> Source:
    """Benchmarks that compare with a result of the host, by their own makefiles, for small sizes."""
    _needs_nvcc()
    folders = (f"src/{name}-cuda" for name in PROGRAMS)
    return _source("hecbench", "zjin-lcf/HeCBench", HECBENCH, *folders)


def _of_samples(reasons: dict[str, str]) -> dict[str, str]:
    return {f"cuda_samples.test_cuda_samples[{name}]": reason for name, reason in reasons.items()}


CUDA_SAMPLES = Suite(
    "cuda-samples",
    cuda_samples,
    ("cuda_samples",),
    known=_of_samples(KNOWN),
    left_out=_of_samples(MINUTES),
    together=True,
    simulate="a100:2",
)
HECBENCH_PROGRAMS = Suite("hecbench", hecbench, ("hecbench",), together=True, simulate="a100:1")
_ZLUDA_KNOWN = {
    "zluda.test_a_program_gives_what_its_table_says[vector8]": "32 bytes at once, which compute capability 10.0 brought",
    "zluda.test_a_program_gives_what_its_table_says[vector8_extract]": "its text is for 12.0, and ptxas takes no .v8.u8 either",
    "zluda.test_a_program_gives_what_its_table_says[mma_m16n8k16_f32_bf16_bf16_f32_2x]": (
        "it writes 2,048 bytes to an output of 1,024, which is a fault here"
    ),
}
ZLUDA_PROGRAMS = Suite("zluda", zluda, ("zluda",), known=_ZLUDA_KNOWN, together=True, simulate="h100:1")
