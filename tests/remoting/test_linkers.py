"""NVRTC and nvJitLink of programs on simulated devices: NVIDIA's libraries, whose cubins hold the PTX that went in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpukernel import native
from tests.conftest import Pool
from tests.suites.sources import NotHere, linkers

HEAD = """
import ctypes, os, struct, sys
from cuda.bindings import driver as d, nvrtc
def ok(result):
    code, *values = result
    assert int(code) == 0, code
    return values[0] if len(values) == 1 else values
ok(d.cuInit(0)); ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0))))
def compiled(source, what, *options):
    program = ok(nvrtc.nvrtcCreateProgram(source.encode(), b"a.cu", 0, [], []))
    words = [each.encode() for each in options]
    ok(nvrtc.nvrtcCompileProgram(program, len(words), words))
    size = ok(getattr(nvrtc, f"nvrtcGet{what}Size")(program)); out = bytes(size)
    ok(getattr(nvrtc, f"nvrtcGet{what}")(program, out))
    return out
def run(image):
    function = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(image)), b"fill"))
    a = ok(d.cuMemAlloc(40)); values = ctypes.c_uint64(int(a)), ctypes.c_int(10)
    ok(d.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, 0, ctypes.addressof((ctypes.c_void_p * 2)(*map(ctypes.addressof, values))), 0))
    out = bytes(40); ok(d.cuMemcpyDtoH(out, a, 40))
    print(list(struct.unpack("10f", out)) == [3 * i + 1 for i in range(10)])
WHOLE = 'extern "C" __global__ void fill(float* a, int n) { if (threadIdx.x < n) a[threadIdx.x] = threadIdx.x * 3 + 1; }'
CALLS = 'extern __device__ float of(int); extern "C" __global__ void fill(float* a, int n) { if (threadIdx.x < n) a[threadIdx.x] = of(threadIdx.x); }'
CALLED = "__device__ float of(int i) { return i * 3 + 1; }"
"""

LINK = """
library = ctypes.CDLL(sys.argv[1])
CUBIN, PTX, LTOIR, FATBIN, LIBRARY = 1, 2, 3, 4, 6
def linked(*inputs, options=()):
    words = [b"-arch=sm_80", *options]
    link = ctypes.c_void_p()
    assert library.nvJitLinkCreate(ctypes.byref(link), len(words), (ctypes.c_char_p * len(words))(*words)) == 0
    def told():
        size = ctypes.c_size_t(); library.nvJitLinkGetErrorLogSize(link, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value + 1); library.nvJitLinkGetErrorLog(link, log)
        return log.value.decode()
    for kind, data in inputs:
        if library.nvJitLinkAddData(link, kind, data, ctypes.c_size_t(len(data)), b"an.input"): return told()
    if library.nvJitLinkComplete(link): return told()
    size = ctypes.c_size_t(); assert library.nvJitLinkGetLinkedCubinSize(link, ctypes.byref(size)) == 0
    image = ctypes.create_string_buffer(size.value); assert library.nvJitLinkGetLinkedCubin(link, image) == 0
    library.nvJitLinkDestroy(ctypes.byref(link))
    return image.raw
ptx = [compiled(each, "PTX", "-arch=compute_80", "-rdc=true") for each in (CALLS, CALLED)]
"""


def on_an_a100(folder: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    with Pool("a100:1", folder / "state") as pool:
        return pool.gpukernel("run", "-m", "256", "--", sys.executable, "-c", HEAD + code, *words)


@pytest.fixture(scope="module")
def nvidia_s() -> list[str]:
    try:
        folder = linkers()
        return [
            str(folder / "nvjitlink/lib/libnvJitLink.so.12"),
            str(folder / "nvfatbin/lib/libnvfatbin.so.12"),
        ]
    except NotHere as why:
        pytest.skip(str(why))


def test_a_program_compiled_for_the_gpu_runs(tmp_path: Path) -> None:
    done = on_an_a100(
        tmp_path,
        """
image = compiled(WHOLE, "CUBIN", "-arch=sm_80")
print(b".version" in image, len(image) == len(compiled(WHOLE, "PTX", "-arch=sm_80"))); run(image)
print(compiled(WHOLE, "CUBIN", "-arch=compute_80"), compiled(WHOLE, "LTOIR", "-arch=sm_80", "-dlto")[:4])
""",
    )
    assert done.stdout.splitlines() == ["True True", "True", r"b'' b'\xedCN\x7f'"], done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_nvjitlink_links_runs(nvidia_s: list[str], tmp_path: Path) -> None:
    done = on_an_a100(
        tmp_path,
        LINK
        + """
run(linked((PTX, ptx[0]), (PTX, ptx[1])))
lto = [compiled(each, "LTOIR", "-arch=sm_80", "-dlto") for each in (CALLS, CALLED)]
run(linked((LTOIR, lto[0]), (LTOIR, lto[1]), options=[b"-lto"]))
run(linked(*((CUBIN, compiled(each, "CUBIN", "-arch=sm_80", "-rdc=true")) for each in (CALLS, CALLED))))
text = compiled(WHOLE, "PTX", "-arch=compute_80"); alone = linked((PTX, text)); print(alone == text); run(alone)
# What was linked is linked again, with another text.
run(linked((CUBIN, linked((PTX, ptx[1]), (PTX, ptx[1].replace(b"_Z2ofi", b"_Z2xxi")))), (PTX, ptx[0])))
fatbin = ctypes.CDLL(sys.argv[2]); one = ctypes.c_void_p(); size = ctypes.c_size_t()
assert fatbin.nvFatbinCreate(ctypes.byref(one), None, ctypes.c_size_t(0)) == 0
assert fatbin.nvFatbinAddPTX(one, text, ctypes.c_size_t(len(text)), b"80", b"a", None) == 0
assert fatbin.nvFatbinSize(one, ctypes.byref(size)) == 0
fat = ctypes.create_string_buffer(size.value); assert fatbin.nvFatbinGet(one, fat) == 0; fat = fat.raw
link = linked((FATBIN, fat)); print(link[:21]); run(link)
""",
        *nvidia_s,
    )
    assert done.stdout.splitlines() == [
        *["True"] * 6,
        "b'GPUKERNEL LINKED PTX\\n'",
        "True",
    ], done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_cannot_be_linked_is_told_by_name(nvidia_s: list[str], tmp_path: Path) -> None:
    done = on_an_a100(
        tmp_path,
        LINK
        + """
print(linked((PTX, ptx[0])))
print(linked((PTX, b".version 8.0\\n.target sm_80\\n.address_size 64\\n.visible .entry f() { nonsense; }\\0")))
print(linked((CUBIN, b"\\x7fELF" + bytes(2000))))
print(linked((LIBRARY, b"!<arch>\\n" + bytes(2000))))
""",
        *nvidia_s,
    )
    assert done.returncode == 0, done.stderr
    assert "Undefined reference to '_Z2ofi'" in done.stdout  # NVIDIA's own checks
    assert "Parsing error near 'nonsense'" in done.stdout or "nonsense" in done.stdout
    sentence = (
        "gpukernel: an.input is machine code, and simulated devices execute PTX: hand nvJitLink the PTX"
    )
    assert done.stdout.count(sentence) == 2, done.stdout


# The loader alone: how a library is found, and that nothing else is changed.
@pytest.mark.parametrize(
    "way",
    [
        *("by path", "by its place in LD_LIBRARY_PATH", "by a name without version"),
        *("behind this installation's own", "behind another installation's"),
    ],
)
def test_a_library_is_replaced_wherever_it_is_found(way: str, tmp_path: Path) -> None:
    (nvrtc,) = Path(sys.prefix).glob("lib/python*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
    (tmp_path / "libnvrtc.so").symlink_to(nvrtc)
    name = {"by path": str(nvrtc), "by a name without version": "libnvrtc.so"}.get(way, "libnvrtc.so.12")
    own, other = native.compiler_auditor().parent, tmp_path / "other"
    shutil.copytree(own, other)
    first = {"behind this installation's own": own, "behind another installation's": other}.get(way, tmp_path)
    code = f"""
import ctypes
library = ctypes.CDLL({name!r}); version = ctypes.c_int(), ctypes.c_int()
print(library.nvrtcVersion(*map(ctypes.byref, version)), version[0].value)
print([line.split()[-1] for line in open("/proc/self/maps") if "libnvrtc.so.12" in line and "compilers" in line][0])
try: ctypes.CDLL("libnvrtc.so.13")
except OSError as error: print(error)
"""
    environment = {
        **os.environ,
        "LD_AUDIT": str(native.compiler_auditor()),
        "LD_LIBRARY_PATH": f"{first}:{nvrtc.parent}",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.splitlines() == [
        "0 12",
        str(native.compiler_auditor().parent / "libnvrtc.so.12"),
        "libnvrtc.so.13: cannot open shared object file: No such file or directory",
    ], done.stderr
    assert done.stderr == ""


def test_another_installation_s_copy_that_is_named_by_its_path_has_no_original(tmp_path: Path) -> None:
    """It says so and fails, where it took itself for NVIDIA's and called itself without end."""
    other = tmp_path / "other"
    shutil.copytree(native.compiler_auditor().parent, other)
    code = f"""
import ctypes
version = ctypes.c_int(), ctypes.c_int()
print(ctypes.CDLL({str(other / "libnvrtc.so.12")!r}).nvrtcVersion(*map(ctypes.byref, version)) != 0)
"""
    environment = {**os.environ, "LD_AUDIT": str(native.compiler_auditor())}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "True\n"
    assert "NVIDIA's libnvrtc.so.12 cannot be loaded" in done.stderr


def test_the_auditor_needs_no_other_library() -> None:
    environment = {**os.environ, "LD_AUDIT": str(native.compiler_auditor())}
    code = "print(open('/proc/self/maps').read())"
    maps = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    places = {line.split()[-1] for line in maps.splitlines() if "/" in line and line.split()[2] == "00000000"}
    assert str(native.compiler_auditor()) in places
    lines = [line for line in maps.splitlines() if "libc.so.6" in line and line.split()[2] == "00000000"]
    assert len(lines) == 1, maps  # a second one would be the auditor's
