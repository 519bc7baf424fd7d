"""The device memory that a module takes beside its image, as NVML tells a worker that finds it."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.remoting.conftest import worker

MIB = 2**20

# Notes which device it is asked about; the worker has 7 MiB more each time that somebody looks.
NVML = r"""
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
struct ProcessInfo { unsigned pid; unsigned long long used_bytes; unsigned gpu_instance, compute_instance; };
extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
    std::FILE* file = std::fopen(std::getenv("ASKED_FOR"), "w");
    std::fputs(uuid, file), std::fclose(file);
    *device = file;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, ProcessInfo* processes) {
    static unsigned long long used = 100 << 20;
    processes[0] = {1, ~0ull, 0, 0};
    processes[1] = {static_cast<unsigned>(getpid()), used += 7 << 20, 0, 0};
    *count = 2;
    return 0;
}
}
"""


@pytest.fixture
def nvml(tmp_path: Path) -> Path:
    """A folder with an NVML of the test's own."""
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler is not None
    (tmp_path / "nvml.cpp").write_text(NVML)
    command = [compiler, "-shared", "-fPIC", "nvml.cpp", "-o", "libnvidia-ml.so.1"]
    subprocess.run(command, cwd=tmp_path, check=True)
    return tmp_path


def test_a_worker_asks_nvml_for_its_device_and_charges_what_a_module_takes(nvml: Path) -> None:
    code = """
begin(); ok(d.cuStreamSynchronize(0)); before = ok(d.cuMemGetInfo())[0]; load(STORE_U32, b"store")
print("GPU-" + ok(d.cuDeviceGetUuid(0)).bytes.hex(), before - ok(d.cuMemGetInfo())[0])
"""

    async def story() -> tuple[str, str]:
        asked = nvml / "asked"
        environment = {**os.environ, "LD_LIBRARY_PATH": str(nvml), "ASKED_FOR": str(asked)}
        async with worker(env=environment) as one:
            said = await one.run(code)
            assert said.returncode == 0, said.stderr
            return said.stdout, asked.read_text()

    said, asked = asyncio.run(story())
    uuid, taken = said.split()
    digits = uuid.removeprefix("GPU-")
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    assert asked == "GPU-" + "-".join(parts)
    assert int(taken) == 7 * MIB
