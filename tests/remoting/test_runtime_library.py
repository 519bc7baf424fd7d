"""NVIDIA's runtime library on a slice, and the names by which programs load the driver."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
from pathlib import Path

import pytest

from gpukernel import native
from tests.remoting.conftest import Worker, worker

SENTENCE = (
    "gpukernel: this program uses NVIDIA's CUDA runtime (nvcc links it in), which gives up now: it asks the driver for "
    "undocumented functions that a slice does not have; link the shared one (nvcc -cudart shared), run it with "
    "'gpukernel run --direct' on the GPU's own machine, or use the driver API (Numba, PyCUDA, cuda.core): "
    "see “Which framework runs where” in docs/frameworks.md.\n"
)
STATIC = """
#include <cstdio>
extern "C" int cudaMalloc(void**, size_t);
int main() { void* to = nullptr; for (int i = 0; i < 3; ++i) std::printf("%d\\n", cudaMalloc(&to, 16) != 0); }
"""


RUNTIMES = pytest.mark.parametrize("major", [12, 13])


def _runtime(major: int) -> Path:
    """The folder of the runtime's libraries: CUDA 12's as installed, 13's as a build unpacked it for its headers."""
    if major == 13:
        built = sorted(Path(__file__).parents[2].glob("build/*/cuda/wheels/nvidia/cu13/lib"))
        if not built:
            pytest.skip("no build of this checkout has unpacked the wheel nvidia-cuda-runtime")
        return built[-1]
    spec = importlib.util.find_spec("nvidia.cuda_runtime")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the wheel nvidia-cuda-runtime-cu12 is not installed")
    return Path(spec.submodule_search_locations[0], "lib")


def _run(code: str, **options: object) -> subprocess.CompletedProcess[str]:
    async def story() -> subprocess.CompletedProcess[str]:
        one: Worker
        async with worker() as one:
            return await one.run(code, **options)

    return asyncio.run(story())


@RUNTIMES
def test_a_program_with_the_runtime_linked_in_is_told_once_why_it_fails(tmp_path: Path, major: int) -> None:
    program = tmp_path / "static"
    (tmp_path / "static.cpp").write_text(STATIC)
    build = ["c++", tmp_path / "static.cpp", "-o", program, _runtime(major) / "libcudart_static.a"]
    subprocess.run([*build, "-ldl", "-lrt", "-lpthread"], check=True)
    done = _run(f"import subprocess; subprocess.run([{str(program)!r}])")
    assert done.stdout.split() == ["1"] * 3
    assert done.stderr.count(SENTENCE) == 1


@RUNTIMES
def test_the_runtime_as_a_library_is_this_packages(major: int) -> None:
    done = _run(f"""import ctypes; runtime = ctypes.CDLL({str(_runtime(major) / f"libcudart.so.{major}")!r})
print(runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), 16))
print(*sorted({{line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line}}))""")
    assert done.stdout.splitlines() == ["0", str(native.runtime_dir() / f"libcudart.so.{major}")]
    assert done.stderr == ""


def test_who_asks_for_another_table_and_goes_on_is_told_nothing() -> None:
    done = _run("""import ctypes; cuda = ctypes.CDLL("libcuda.so.1"); table = ctypes.c_void_p(1)
print(cuda.cuGetExportTable(ctypes.byref(table), bytes(range(16))), table.value); begin()""")
    assert done.stdout.strip() == "500 None"
    assert "undocumented" not in done.stderr


@pytest.mark.parametrize("names", [("libcuda.so", "libcuda.so.1"), ("libcuda.so.1", "libcuda.so")])
def test_both_names_of_the_driver_are_one_library(names: tuple[str, str]) -> None:
    done = _run(f"""import ctypes; one, other = (ctypes.CDLL(name) for name in {names}); count = ctypes.c_int()
print(one.cuInit(0), other.cuDeviceGetCount(ctypes.byref(count)), count.value)
print(*sorted({{line.split()[-1] for line in open("/proc/self/maps") if "libcuda.so.1" in line}}))""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0 0 1", str(native.shim_dir() / "libcuda.so.1")]
