"""Textures and surfaces of CUDA C++ kernels, through shim and worker on a simulated device, against NumPy."""

from __future__ import annotations

import asyncio
import re
import subprocess

import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from tests.kernels.textures import CASES
from tests.remoting.conftest import worker


def run(*words: str) -> subprocess.CompletedProcess[str]:
    async def story() -> subprocess.CompletedProcess[str]:
        async with worker(memory_mib=256) as one:
            return await one.run_module(*words)

    return asyncio.run(story())


@pytest.mark.parametrize("name", CASES)
def test_textures_agree_with_the_guide(name: str) -> None:
    done = run("tests.kernels.textures", name)
    assert done.returncode == 0, done.stderr
    assert re.search(r": [1-9]\d* comparisons agree\n$", done.stdout)


AT = r" at {name}, textures\.cu:\d+ \(line \d+ of its PTX\) by thread \({thread},0,0\) in block \(0,0,0\): "
FAULTS = {
    "beyond_the_surface": (
        "6",
        "gpukernel: Invalid surface write of size 4 bytes" + AT + "byte 24, row 2 is out of bounds, "
        "the surface has 24 bytes by 4 rows",
    ),
    "no_texture": (
        "3",
        "gpukernel: Invalid texture or surface" + AT + "0x123456 names none that was there at the launch",
    ),
    "surface_as_texture": ("0", "gpukernel: Invalid texture or surface" + AT + "it is a surface"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_texture_that_is_wrong_is_told_where_the_person_looks(name: str) -> None:
    done = run("tests.kernels.texture_fault", name)
    assert done.returncode == 0, done.stderr
    thread, text = FAULTS[name]
    told, ended = done.stdout.splitlines()
    assert ended == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert re.fullmatch(text.format(name=name, thread=thread), told), told
