"""The runtime libraries as files: what they export, what they are linked with, and the errors they know."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gpukernel import native
from tests import sanitizers

VERSIONS = ["11.0", "12", "13"]
ROOT = Path(__file__).parents[3]


def ours(version: str) -> Path:
    path = native.runtime_dir() / f"libcudart.so.{version}"
    if not path.exists():
        pytest.skip(f"libcudart.so.{version} was not built: its headers were not at hand")
    return path


def nvidias(version: str) -> Path:
    """Find NVIDIA's library of the same name: the build's copy, a wheel's, or that of nvcc."""
    places = list((ROOT / "build").glob(f"*/cuda/runtime/*/libcudart.so.{version}"))
    places += Path(sys.prefix).glob(f"lib/python*/site-packages/nvidia/*/lib/libcudart.so.{version}")
    if nvcc := shutil.which("nvcc"):
        places += [Path(nvcc).resolve().parents[1] / "lib64" / f"libcudart.so.{version}"]
    for place in places:
        if place.exists():
            return place
    pytest.skip(f"NVIDIA's libcudart.so.{version} is not here to compare with")


def symbols(path: Path) -> set[str]:
    """Read the functions that a library exports, with their versions, from its dynamic section."""
    words = subprocess.run(
        ["readelf", "--dyn-syms", "-W", str(path)], capture_output=True, text=True, check=True
    ).stdout.split()
    return {word for word in words if "cuda" in word and "@@" in word}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_function_is_exported_under_nvidias_version(version: str) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not installed")
    theirs = symbols(nvidias(version))
    assert len(theirs) > 380
    assert theirs - symbols(ours(version)) == set()


@pytest.mark.parametrize("version", VERSIONS)
def test_it_needs_nothing_of_cuda(version: str) -> None:
    data = ours(version).read_bytes()
    assert b"cuGetExportTable" not in data
    needed = [name for name in (b"libcuda.so.1\0", b"libnvidia", b"libstdc++") if name in data]
    assert needed == [b"libcuda.so.1\0"]  # the name that it opens
    code = f"import ctypes; ctypes.CDLL({str(ours(version))!r}); print('libcuda.so' in open('/proc/self/maps').read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("version", VERSIONS)
def test_errors_have_nvidias_names_and_sentences(version: str) -> None:
    texts = []
    for path in (ours(version), nvidias(version)):
        library = ctypes.CDLL(str(path))
        for function in (library.cudaGetErrorName, library.cudaGetErrorString):
            function.restype = ctypes.c_char_p
        texts.append(
            {code: (library.cudaGetErrorName(code), library.cudaGetErrorString(code)) for code in range(1100)}
        )
    assert texts[0] == texts[1]


IN_PROCESS = """
import ctypes, sys
from cuda.bindings import driver as d
runtime = ctypes.CDLL(sys.argv[1])
def ok(code): assert code == 0, code
count = ctypes.c_int(); ok(runtime.cudaGetDeviceCount(ctypes.byref(count)))
"""


def run(code: str, *words: str) -> str:
    environment = {"LD_LIBRARY_PATH": str(native.simgpu_library().parent), "GPUKERNEL_SIMGPU": "t4,a100"}
    done = subprocess.run(
        [sys.executable, "-c", IN_PROCESS + code, *words],
        env={"PATH": "/usr/bin:/bin", **sanitizers.environment(), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_properties_are_where_cuda_12_has_them() -> None:
    """NVIDIA's bindings for Python read the structure by the header of CUDA 12."""
    out = run(
        """
from cuda.bindings import runtime as bindings
p = bindings.cudaDeviceProp(); ok(runtime.cudaGetDeviceProperties_v2(ctypes.c_void_p(p.getPtr()), 1))
print(p.name.split(b"\\0")[0].decode(), p.major, p.minor, p.multiProcessorCount, p.maxThreadsPerMultiProcessor, p.memoryBusWidth > 0,
      p.maxTexture3D, p.pciBusID, p.sharedMemPerBlockOptin, p.clusterLaunch, p.memoryPoolsSupported, p.unifiedFunctionPointers)
old = ctypes.create_string_buffer(728); guard = ctypes.create_string_buffer(bytes([7]) * 1100, 1100)
ok(runtime.cudaGetDeviceProperties(guard, 1)); print(guard.raw[728:] == bytes([7]) * 372, guard.raw[:27])
""",
        str(ours("12")),
    )
    assert out.splitlines() == [
        "NVIDIA A100-SXM4-40GB (simulated) 8.0 108 2048 True [16384, 16384, 16384] 2 166912 0 0 0".replace(
            "8.0", "8 0"
        ),
        "True b'NVIDIA A100-SXM4-40GB (simu'",
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_there_says_so(version: str) -> None:
    out = run(
        """
import os
print(runtime.cudaImportExternalMemory(None, None), runtime.cudaGetLastError(), runtime.cudaGetExportTable(None, None))
version = ctypes.c_int(); ok(runtime.cudaRuntimeGetVersion(ctypes.byref(version))); print(version.value // 1000)
""",
        str(ours(version)),
    )
    assert out.splitlines() == ["801 801 801", version.partition(".")[0]]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_context_of_the_driver_is_used_as_it_is(version: str) -> None:
    out = run(
        """
device = ctypes.c_int(); pointer = ctypes.c_void_p()
ok(int(d.cuInit(0)[0])); context = d.cuDevicePrimaryCtxRetain(1)[1]; d.cuCtxSetCurrent(context)
ok(runtime.cudaGetDevice(ctypes.byref(device))); ok(runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(64)))
print(device.value, d.cuPointerGetAttribute(d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer.value)[1])
ok(runtime.cudaSetDevice(0)); print(int(d.cuCtxGetDevice()[1]))
d.cuCtxSetCurrent(0); ok(runtime.cudaFree(None)); print(int(d.cuCtxGetDevice()[1]))
""",
        str(ours(version)),
    )
    assert out.split() == ["1", "1", "0", "0"]


def test_images_of_other_architectures_leave_the_one_that_suits(tmp_path: Path) -> None:
    """A fat binary of PTX for 8.0 and 9.0 runs on an A100: NVIDIA's driver takes what is not too new."""
    ptx = [
        f".version 8.0\n.target sm_{sm}\n.address_size 64\n.visible .entry f{sm}() {{ ret; }}\n\0\0".encode()
        for sm in (80, 90)
    ]
    entries = b"".join(
        struct.pack("<HHIQIIHHIIIQQQ", 1, 0x101, 64, len(text), 0, 0, 0, 8, sm, 0, 0, 0, 0, 0)[:64] + text
        for sm, text in zip((80, 90), ptx, strict=True)
    )
    image = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries
    (tmp_path / "image").write_bytes(image)
    out = run(
        """
ok(runtime.cudaSetDevice(1)); library = ctypes.c_void_p(); kernel = ctypes.c_void_p(); image = open(sys.argv[2], "rb").read()
ok(runtime.cudaLibraryLoadData(ctypes.byref(library), image, None, None, 0, None, None, 0))
print(runtime.cudaLibraryGetKernel(ctypes.byref(kernel), library, b"f80"), runtime.cudaLibraryGetKernel(ctypes.byref(kernel), library, b"f90"))
""",
        str(ours("12")),
        str(tmp_path / "image"),
    )
    assert out == "0 500\n"
