"""The simulated GPU's driver API, in process: no shim, no worker.  Each test is a program of its own."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gpukernel import native
from tests.conftest import PROGRAMS
from tests.remoting.conftest import PRELUDE

FATBIN_OF_100 = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 100)
ADD = """
ADD = b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 p, .param .u32 n) {
  .reg .b64 %rd<5>; .reg .b32 %r<8>; .reg .pred %q;
  ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %q, %r5, %r1; @%q bra done;
  mul.wide.u32 %rd2, %r5, 4; add.s64 %rd3, %rd1, %rd2; ld.global.u32 %r6, [%rd3]; add.s32 %r7, %r6, 1; st.global.u32 [%rd3], %r7;
done: ret; }
'''
def launch(f, p, n, stream=0, blocks=None):
    a, b = ctypes.c_uint64(int(p)), ctypes.c_uint32(n)
    kp = (ctypes.c_void_p * 2)(ctypes.addressof(a), ctypes.addressof(b))
    return d.cuLaunchKernel(f, blocks or (n + 127) // 128, 1, 1, 128, 1, 1, 0, stream, ctypes.addressof(kp), 0)[0]
"""


def run(code: str, models: str = "v100", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + ADD + code],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(native.simgpu_library().parent),
            "GPUKERNEL_SIMGPU": models,
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def out(code: str, **options: str) -> str:
    done = run(code, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", ["numba_kernels.py", "nvrtc_matmul.py"])
def test_real_programs_run_without_a_shim(name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / name)],
        env={**os.environ, "LD_LIBRARY_PATH": str(native.simgpu_library().parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("level", ["2", "3", "4"])
def test_every_level_of_the_processor_gives_the_same_numbers(level: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "numba_kernels.py")],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(native.simgpu_library().parent),
            "GPUKERNEL_SIMGPU_LEVEL": level,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"saxpy": 74868.64552503824' in done.stdout


def test_models_have_their_figures() -> None:
    code = """ok(d.cuInit(0))
for i in range(ok(d.cuDeviceGetCount())):
    print(ok(d.cuDeviceGetName(99, i)).rstrip(b"\\0").decode(), ok(d.cuDeviceTotalMem(i)) >> 30, ok(d.cuDeviceGetAttribute(d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, i)))"""
    assert out(code, models="t4,h100:2").splitlines() == [
        "Tesla T4 (simulated) 16 40",
        "NVIDIA H100 80GB HBM3 (simulated) 80 132",
        "NVIDIA H100 80GB HBM3 (simulated) 80 132",
    ]


def test_an_unknown_model_is_no_device_and_a_sentence() -> None:
    done = run("print(d.cuInit(0)[0].name)", models="v1000")
    assert done.stdout.strip() == "CUDA_ERROR_NO_DEVICE"
    assert "'v1000'; known are v100" in done.stderr


def test_a_processor_that_is_older_than_the_build_is_no_device_and_a_sentence() -> None:
    done = run("print(d.cuInit(0)[0].name)", GPUKERNEL_SIMGPU_LEVEL="1")
    assert done.stdout.strip() == "CUDA_ERROR_NO_DEVICE"
    assert re.search(r"built for processors of x86-64-v\d and newer, and may use v1 here", done.stderr)


def test_a_device_is_found_by_the_bus_it_names_where_others_are_hidden() -> None:
    code = """ok(d.cuInit(0)); assert d.cuDeviceGetPCIBusId(12, 0)[0].name == "CUDA_ERROR_INVALID_VALUE"
bus = ok(d.cuDeviceGetPCIBusId(13, 0)).rstrip(b"\\0"); print(ok(d.cuDeviceGetCount()), bus.decode(), int(ok(d.cuDeviceGetByPCIBusId(bus))))"""
    assert out(code, models="v100:3", CUDA_VISIBLE_DEVICES="2") == "1 0000:03:00.0 0"


def test_calls_about_contexts_say_when_the_driver_is_not_initialised() -> None:
    code = """calls = [d.cuCtxPushCurrent(0), d.cuCtxPopCurrent(), d.cuCtxGetDevice(), d.cuCtxGetId(0), d.cuDeviceGetCount(), d.cuProfilerStart()]
print({call[0].name for call in calls})"""
    assert out(code) == "{'CUDA_ERROR_NOT_INITIALIZED'}"


def test_a_context_that_is_named_need_not_be_current() -> None:
    code = """begin(); c = ok(d.cuCtxGetCurrent()); n = ok(d.cuCtxGetId(c)); ok(d.cuCtxPopCurrent())
print(ok(d.cuCtxGetId(c)) == n, d.cuCtxGetId(0)[0].name)"""
    assert out(code) == "True CUDA_ERROR_INVALID_CONTEXT"


def test_calls_that_need_a_context_say_so_before_they_look_at_anything_else() -> None:
    code = """print(d.cuModuleLoad(b"/none")[0].name, d.cuLibraryLoadFromFile(b"/none", [], [], 0, [], [], 0)[0].name)
ok(d.cuInit(0)); calls = [d.cuModuleLoad(b"/none"), d.cuMemHostGetFlags(64), d.cuMemHostGetDevicePointer(64, 0), d.cuProfilerStart(), d.cuProfilerStop()]
print({call[0].name for call in calls}, d.cuLibraryLoadFromFile(b"/none", [], [], 0, [], [], 0)[0].name)
begin(); print(d.cuModuleLoad(b"/none")[0].name, d.cuMemHostGetFlags(64)[0].name, d.cuProfilerStart()[0].name)"""
    assert out(code).splitlines() == [
        "CUDA_ERROR_NOT_INITIALIZED CUDA_ERROR_NOT_INITIALIZED",
        "{'CUDA_ERROR_INVALID_CONTEXT'} CUDA_ERROR_FILE_NOT_FOUND",
        "CUDA_ERROR_FILE_NOT_FOUND CUDA_ERROR_INVALID_VALUE CUDA_SUCCESS",
    ]


def test_a_log_buffer_without_a_size_is_not_written() -> None:
    code = """begin(); libc = ctypes.CDLL("libcuda.so.1"); J = d.CUjit_option; text = ctypes.c_char_p(ADD)
BUFFER, SIZE = int(J.CU_JIT_INFO_LOG_BUFFER), int(J.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES)
def load(*options):
    log = ctypes.create_string_buffer(b"x"); values = (ctypes.c_void_p * 2)(*(ctypes.addressof(log) if o == BUFFER else o[1] for o in options))
    keys = (ctypes.c_int * 2)(*(BUFFER if o == BUFFER else SIZE for o in options)); m = ctypes.c_void_p()
    assert libc.cuModuleLoadDataEx(ctypes.byref(m), text, len(options), keys, values) == 0
    return log.value.decode(), values[len(options) - 1] or 0
print(load(BUFFER)[0], load((SIZE, 0), BUFFER)[0], load(BUFFER, (SIZE, 0)), load(BUFFER, (SIZE, 2)))"""
    assert out(code) == "x x ('x', 0) ('', 0)"


def test_a_kernel_changes_memory_and_streams_keep_their_order() -> None:
    code = """begin(); f = load(ADD, b"add"); n = 1000; p = ok(d.cuMemAlloc(4 * n)); s = [ok(d.cuStreamCreate(0)) for _ in range(2)]
ok(d.cuMemsetD32Async(p, 5, n, s[0])); e = ok(d.cuEventCreate(0))
for i in range(20): launch(f, p, n, s[0])
ok(d.cuEventRecord(e, s[0])); ok(d.cuStreamWaitEvent(s[1], e, 0)); launch(f, p, n, s[1]); ok(d.cuStreamSynchronize(s[1]))
import array; host = array.array("I", [0]) * n; ok(d.cuMemcpyDtoH(host.buffer_info()[0], p, 4 * n)); print(set(host))"""
    assert out(code) == "{26}"


def test_host_functions_run_in_their_place() -> None:
    code = """begin(); seen = []; libc = ctypes.CDLL("libcuda.so.1")
K = ctypes.CFUNCTYPE(None, ctypes.c_void_p); one, two = K(lambda _: seen.append(1)), K(lambda _: seen.append(2))
s = ok(d.cuStreamCreate(0))
for k in (one, two): assert libc.cuLaunchHostFunc(ctypes.c_void_p(int(s)), k, None) == 0
ok(d.cuStreamSynchronize(s)); print(seen)"""
    assert out(code) == "[1, 2]"


def test_an_access_outside_is_illegal_sticky_and_named() -> None:
    code = """begin(); f = load(ADD, b"add"); p = ok(d.cuMemAlloc(400)); launch(f, p, 1000)
print(d.cuCtxSynchronize()[0].name, d.cuMemAlloc(4)[0].name, d.cuStreamSynchronize(0)[0].name)"""
    done = run(code)
    told, codes = done.stdout.splitlines()
    assert codes.split() == ["CUDA_ERROR_ILLEGAL_ADDRESS"] * 3
    assert re.search(r"\badd\b.*address 0x[0-9a-f]+ is out of bounds", told)


def test_an_unknown_instruction_is_not_supported_and_named() -> None:
    ptx = """begin(); X = ADD.replace(b"add.s32 %r7, %r6, 1;", b"frobnicate.s32 %r7, %r6, 1;")
code, m = d.cuModuleLoadData(X + b"\\0")
if int(code) == 0: f = ok(d.cuModuleGetFunction(m, b"add")); code = launch(f, ok(d.cuMemAlloc(4)), 1); code = code if int(code) else d.cuCtxSynchronize()[0]
print(code.name)"""
    done = run(ptx)
    told, code = done.stdout.splitlines()
    assert code == "CUDA_ERROR_NOT_SUPPORTED"
    assert "frobnicate" in told


@pytest.mark.parametrize(
    ("image", "error"),
    [
        (b"not ptx at all", "CUDA_ERROR_INVALID_PTX"),
        (b".version 7.0\n.target sm_70\n.visible .entry x( {", "CUDA_ERROR_INVALID_PTX"),
        (b"\x7fELF" + bytes(200), "CUDA_ERROR_NO_BINARY_FOR_GPU"),
        (b"GPUKERNEL LINKED PTX\nabc", "CUDA_ERROR_INVALID_IMAGE"),
        (b"GPUKERNEL LINKED PTX\n999\nshort", "CUDA_ERROR_INVALID_IMAGE"),
        (FATBIN_OF_100 + struct.pack("<HHI", 1, 1, 200) + bytes(92), "CUDA_ERROR_NO_BINARY_FOR_GPU"),
        (
            FATBIN_OF_100
            + struct.pack("<HHIQI", 1, 1, 64, 36, 2**31)
            + bytes(20)
            + struct.pack("<Q", 0x2000)
            + bytes(52),
            "CUDA_ERROR_NO_BINARY_FOR_GPU",
        ),
    ],
)
def test_images_that_cannot_run_are_refused(image: bytes, error: str) -> None:
    assert out(f"begin(); print(d.cuModuleLoadData({image!r} + bytes(8))[0].name)") == error


def test_fat_binaries_are_read_plain_and_compressed() -> None:
    code = """import struct
def fatbin(payload, flags=0, full=0):
    entry = struct.pack("<HHIQIIIIIIQQQ", 1, 0x101, 64, len(payload), len(payload) if flags else 0, 0, 0, 70, 0, 0, flags, 0, full)
    assert len(entry) == 64, len(entry)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry) + len(payload)) + entry + payload
def lz4(data):  # one run of literals
    n = len(data); head = bytes([0xF0]) ; n -= 15
    while n >= 255: head += b"\\xff"; n -= 255
    return head + bytes([n]) + data
begin()
for image in (fatbin(ADD + b"\\0"), fatbin(lz4(ADD + b"\\0"), 0x2000, len(ADD) + 1)):
    print(ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(image)), b"add")) is not None)
print(d.cuModuleLoadData(fatbin(b"junk", 0x2000, 100))[0].name)"""
    assert out(code).split() == ["True", "True", "CUDA_ERROR_NO_BINARY_FOR_GPU"]


@pytest.mark.parametrize(
    ("machine_code", "target", "answer"),
    [
        ([70], "sm_120", "CUDA_SUCCESS"),
        ([60], "sm_120", "CUDA_ERROR_INVALID_PTX"),  # of another generation
        ([75], "sm_120", "CUDA_ERROR_INVALID_PTX"),  # newer than the device
        ([], "sm_120", "CUDA_ERROR_INVALID_PTX"),
        ([70], "sm_120a", "CUDA_ERROR_INVALID_PTX"),  # for that architecture alone
    ],
)
def test_ptx_of_a_newer_target_stands_for_machine_code_of_this_device(
    machine_code: list[int], target: str, answer: str
) -> None:
    code = f"""import struct
def entry(kind, sm, payload):
    return struct.pack("<HHIQIIIIIIQQQ", kind, 0x101, 64, len(payload), 0, 0, 0, sm, 0, 0, 0, 0, 0) + payload
text = ADD.replace(b".version 7.0", b".version 8.8").replace(b".target sm_70", b".target {target}") + bytes(1)
entries = b"".join(entry(2, sm, bytes(64)) for sm in {machine_code}) + entry(1, 120, text)
begin()
print(d.cuModuleLoadData(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries)[0].name)"""
    assert out(code) == answer


NVCC_13 = """
UO1VugEAEACoAQAAAAAAAAEAAQFQAAAAWAEAAAAAAABVAQAAQAAAAAAACQBLAAAAAAAAAAAAAAARgAAAAAAAAAAAAAAAAAAAWwIAAAAAAABI
AAAAAAAAAAAAAAAAAAAAKLUv/WBbAV0KADaRNyJAa/TYNgPsgW9M9Y8UXOx3HHsB405NV1uSlYEwy5zhju1GLQAtAC4AkXw59Qq4S3b42pjN
E2oe+jyF58NDI6Xz3WVvQhAjynU6L2sv0gbckB7689EbzAIv5q8c2l2YSBZ/xU9Rlm/cwlDcHAMm2jIp9vlTszO/F2IHljW3kBif4mgOCkWM
CgEsv2E2KYSFbZpOT3XShckvRluC2qXildSG4vUa2h9ZF4qXe0jRQoY1GAC7Ebuwzt+DShciBQmOgTDu0XaXC5/z94ehIUe0kHmDZCNBTku1
ZX0sdmGLSDAoQAJCpFUdEEDnTNK0BjgeWAFqcIOAsxGiWhAVsADmS2espFAWgxSBBDv8Q1y5OQWNqdz+MncbBIaRjTB7raa2PWwckTwVff6P
Rq5riFBEGFEsMALpiwqdXNDn69FumPEIXYnc5EKBFSEAAAA=
"""  # of CUDA 13.0, nvcc -fatbin: __global__ void add(float* a, int n), which adds 1


def test_a_fat_binary_as_nvcc_of_cuda_13_makes_it_runs() -> None:
    ctypes.CDLL("libzstd.so.1")  # distributions have it
    code = f"""import base64; begin(); f = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(base64.b64decode({NVCC_13!r}))), b"add"))
a = ok(d.cuMemAlloc(12)); host = (ctypes.c_float * 3)(1, 2, 3); ok(d.cuMemcpyHtoD(a, host, 12)); print(launch(f, a, 2).name)
ok(d.cuMemcpyDtoH(host, a, 12)); print(list(host))"""
    assert out(code, models="t4").splitlines() == ["CUDA_SUCCESS", "[2.0, 3.0, 3.0]"]


DAMAGED = """import base64, struct
image = bytearray(base64.b64decode(NVCC_13)); begin()
def says(image): return d.cuModuleLoadData(bytes(image) + bytes(64))[0].name.removeprefix("CUDA_ERROR_")
def changed(at, layout, value):
    copy = bytearray(image); struct.pack_into(layout, copy, at, value); return copy
FULL, COMPRESSED, START = 16 + 56, 16 + 16, 16 + 80  # places in the file: of the entry's header, and its end
"""


@pytest.mark.parametrize(
    "change",
    [
        "changed(FULL, '<Q', 602)",
        "changed(FULL, '<Q', 604)",
        "changed(FULL, '<Q', 1 << 40)",
        "changed(COMPRESSED, '<I', 200)",
        "changed(START, '<I', 0)",
        "changed(START + 9, '<I', 0xFFFFFFFF)",
    ],
)
def test_a_damaged_fat_binary_of_zstandard_is_refused(change: str) -> None:
    done = run(f"NVCC_13 = {NVCC_13!r}\n{DAMAGED}print(says({change}))", models="t4")
    assert done.stdout.strip() == "NO_BINARY_FOR_GPU", done.stderr
    assert "the fat binary's compressed PTX is damaged" in done.stderr


def test_without_zstandard_the_sentence_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "libzstd.so.1").touch()  # found first, and no library
    path = os.pathsep.join([str(native.simgpu_library().parent), str(tmp_path)])
    done = run(f"NVCC_13 = {NVCC_13!r}\n{DAMAGED}print(says(image))", models="t4", LD_LIBRARY_PATH=path)
    assert done.stdout.strip() == "NO_BINARY_FOR_GPU", done.stderr
    assert "the GPU server has no libzstd.so.1: install it" in done.stderr


LINKED = """begin()
CALLEE = b'''.version 7.0
.target sm_70
.address_size 64
{callee}
'''
CALLER = b'''.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b32 out) twice(.param .b32 x);
.visible .entry go(.param .u64 p) {{ .reg .b64 %rd<2>; .reg .b32 %r<3>; ld.param.u64 %rd1, [p]; mov.u32 %r1, 21;
{{ .param .b32 a; st.param.b32 [a], %r1; .param .b32 b; call.uni (b), twice, (a); {after} }} st.global.u32 [%rd1], %r2; ret; }}
'''
link = ok(d.cuLinkCreate(0, [], []))
for text in (CALLER, CALLEE): ok(d.cuLinkAddData(link, d.CUjitInputType.CU_JIT_INPUT_PTX, text, len(text), b"x", 0, [], []))
image, size = ok(d.cuLinkComplete(link)); f = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(image)), b"go"))
p = ok(d.cuMemAlloc(4)); a = ctypes.c_uint64(int(p)); kp = (ctypes.c_void_p * 1)(ctypes.addressof(a))
ok(d.cuLaunchKernel(f, 1,1,1, 1,1,1, 0, 0, ctypes.addressof(kp), 0)); h = (ctypes.c_uint32 * 1)(); ok(d.cuMemcpyDtoH(ctypes.addressof(h), p, 4)); print(h[0])"""


def test_the_linker_joins_texts() -> None:
    callee = """.visible .func (.param .b32 out) twice(.param .b32 x)
{ .reg .b32 %r<3>; ld.param.b32 %r1, [x]; add.s32 %r2, %r1, %r1; st.param.b32 [out], %r2; ret; }"""
    assert out(LINKED.format(callee=callee, after="ld.param.b32 %r2, [b];")) == "42"


def test_another_text_may_declare_a_result_that_a_function_does_not_give() -> None:
    # Numba declares functions of type void so, and NVIDIA's linker does not compare.
    callee = ".visible .func twice(.param .b32 x) { ret; }"
    assert out(LINKED.format(callee=callee, after="mov.u32 %r2, 7;")) == "7"


def test_functions_are_found_by_name_and_version() -> None:
    code = """lib = ctypes.CDLL("libcuda.so.1"); f = ctypes.c_void_p(); s = ctypes.c_int()
def find(name, version, flags=0):
    code = lib.cuGetProcAddress_v2(name, ctypes.byref(f), version, ctypes.c_uint64(flags), ctypes.byref(s))
    return code, s.value, f.value
def is_(name): return ctypes.cast(getattr(lib, name), ctypes.c_void_p).value
print(find(b"cuMemAlloc", 11080)[2] == is_("cuMemAlloc_v2"), find(b"cuMemAlloc", 2000)[2] == is_("cuMemAlloc"))
print(find(b"cuMemcpyHtoD", 12000, 2)[2] == is_("cuMemcpyHtoD_v2_ptds"), find(b"cuStreamSynchronize", 12000, 2)[2] == is_("cuStreamSynchronize_ptsz"))
print(find(b"cuCtxCreate", 12000)[2] == is_("cuCtxCreate_v3"), find(b"cuLaunchKernelEx", 11000)[:2], find(b"cuNoSuch", 12000)[:2])"""
    assert out(code).splitlines() == ["True True", "True True", "True (0, 2) (0, 1)"]


def test_every_name_of_cuda_h_is_exported_and_what_is_lacking_says_so_once() -> None:
    code = """begin(); print(d.cuGraphCreate(0)[0].name, d.cuGraphCreate(0)[0].name, d.cuGetExportTable(d.CUuuid())[0].name)"""
    done = run(code)
    assert done.stdout.split() == [
        "CUDA_ERROR_NOT_SUPPORTED",
        "CUDA_ERROR_NOT_SUPPORTED",
        "CUDA_ERROR_NOT_FOUND",
    ]
    assert done.stderr.count("cuGraphCreate") == 1
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", native.simgpu_library()], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1] for line in symbols.stdout.splitlines()}
    # Its own names: time slicing pauses kernels (common/execution_gate.h), the worker says how accesses are checked
    # (common/memory_check.h), bounds host memory, and cancels the work of programs that are gone (common/cancellation.h), and asks about kernels (common/kernel_table.h), and names the range that a program marks; NVTX
    # finds its own entry; math libraries put work of theirs into its streams (simgpu_libraries/device_work.h),
    # and are charged for what they compute with; the worker ends a heap with its program (worker/server/driver.h).
    assert {name for name in names if not name.startswith("cu")} == {
        "InitializeInjectionNvtx2",
        "gpukernel_end_program",
        "gpukernel_kernels",
        "gpukernel_profile",
        "gpukernel_set_execution_gate",
        "gpukernel_set_memory_check",
        "gpukernel_set_range",
        "gpukernel_simgpu_bound",
        "gpukernel_simgpu_clear_heap",
        "gpukernel_simgpu_give_back",
        "gpukernel_simgpu_run",
        "gpukernel_simgpu_take",
        "gpukernel_work_for",
    }
    assert len(names) > 600


def test_wrong_handles_are_errors_and_no_crash() -> None:
    code = """begin()
print(d.cuStreamSynchronize(0x1234)[0].name, d.cuModuleGetFunction(d.CUmodule(0x1234), b"x")[0].name, d.cuEventQuery(d.CUevent(0x1234))[0].name, d.cuMemFree(0x1234)[0].name)"""
    bad = "CUDA_ERROR_INVALID_HANDLE"
    assert out(code).split() == [bad, bad, bad, "CUDA_ERROR_INVALID_VALUE"]


def test_what_would_take_for_ever_or_all_memory_is_refused() -> None:
    code = """begin(); p = ok(d.cuMemAlloc(4096)); f = load(ADD, b"add")
print(d.cuMemsetD2D8(p, 0, 1, 16, 1 << 62)[0].name, d.cuMemsetD2D32(p, 8, 1, 4, 3)[0].name, d.cuMemsetD2D32(p, 16, 1, 4, 3)[0].name)
print(d.cuFuncSetAttribute(f, d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 2**31 - 1)[0].name)
a, b = ctypes.c_uint64(int(p)), ctypes.c_uint32(1)
kp = (ctypes.c_void_p * 2)(ctypes.addressof(a), ctypes.addressof(b))
for blocks in (1 << 30, 80): print(d.cuLaunchCooperativeKernel(f, blocks, 1, 1, 128, 1, 1, 0, 0, ctypes.addressof(kp))[0].name)
ok(d.cuCtxSynchronize())"""
    assert out(code).split() == [
        "CUDA_ERROR_INVALID_VALUE",
        "CUDA_ERROR_INVALID_VALUE",
        "CUDA_SUCCESS",
        "CUDA_ERROR_INVALID_VALUE",
        "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        "CUDA_SUCCESS",
    ]


def test_work_that_nobody_waits_for_stays_bounded() -> None:
    code = """import re
rss = lambda: int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10
begin(); p = ok(d.cuMemAlloc(1 << 20)); f = load(ADD, b"add"); host = bytearray(1 << 20); source = ctypes.addressof((ctypes.c_char * len(host)).from_buffer(host)); before = rss()
for _ in range(600): assert launch(f, p, 1 << 18) == 0; ok(d.cuMemcpyHtoDAsync(p, source, 1 << 20, 0))
print(rss() - before < 100); ok(d.cuCtxSynchronize())"""
    assert out(code) == "True"


def test_the_library_is_small_at_rest() -> None:
    code = """begin(); ok(d.cuMemAlloc(30 << 30)); import re; print(int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) < 200_000)"""
    assert out(code) == "True"


def test_pitched_copies_keep_what_lies_between() -> None:
    code = """import numpy as np
begin(); host = np.arange(64, dtype=np.uint8).reshape(8, 8); p, pitch = ok(d.cuMemAllocPitch(8, 8, 4)); ok(d.cuMemsetD8(p, 99, pitch * 8))
c = d.CUDA_MEMCPY2D(); c.srcMemoryType = d.CUmemorytype.CU_MEMORYTYPE_HOST; c.srcHost = host.ctypes.data; c.srcPitch = 8; c.srcXInBytes = 2; c.srcY = 1
c.dstMemoryType = d.CUmemorytype.CU_MEMORYTYPE_DEVICE; c.dstDevice = p; c.dstPitch = pitch; c.WidthInBytes = 3; c.Height = 2; ok(d.cuMemcpy2D(c))
back = np.zeros(int(pitch) * 2, np.uint8); ok(d.cuMemcpyDtoH(back.ctypes.data, p, back.nbytes)); print(back[:5].tolist(), back[int(pitch):][:5].tolist())"""
    assert out(code) == "[10, 11, 12, 99, 99] [18, 19, 20, 99, 99]"


def test_copies_past_the_caches_are_whole_wherever_they_begin_and_end() -> None:
    code = """
import random
begin(); most = (64 << 20) + 100_000
host, back = ctypes.create_string_buffer(random.Random(5).randbytes(most), most), ctypes.create_string_buffer(most)
p, q = int(ok(d.cuMemAlloc(most))), int(ok(d.cuMemAlloc(most)))
there, here = ctypes.addressof(host), ctypes.addressof(back)
for start, to, end in ((0, 0, 0), (1, 64, 1), (63, 7, 32_767), (8, 4096, 33_000), (17, 5, 65)):
    size = most - 70_000 + end
    ctypes.memset(here, 0, most)
    ok(d.cuMemcpyHtoD(p + to, there + start, size))
    ok(d.cuMemcpyDtoD(q + start, p + to, size))
    ok(d.cuMemcpyDtoH(here + to, q + start, size))
    ok(d.cuCtxSynchronize())
    same = back.raw == bytes(to) + host.raw[start:start + size] + bytes(most - to - size)
    print(same, end=" ")
"""
    assert out(code) == "True True True True True"


def test_sizes_whose_products_do_not_fit_are_refused() -> None:
    code = """begin(); p = int(ok(d.cuMemAlloc(4096)))
print(d.cuMemAllocPitch(1 << 33, (1 << 31) + 1, 4)[0].name)
print(d.cuMemAllocPitch((1 << 64) - 100, 1, 4)[0].name)
print(d.cuMemsetD2D8(p, 1 << 63, 0, 1, 3)[0].name)
print(d.cuMemsetD2D32(p, 1 << 62, 0, 1, 5)[0].name)
copy = d.CUDA_MEMCPY2D(); copy.srcMemoryType = copy.dstMemoryType = d.CUmemorytype.CU_MEMORYTYPE_DEVICE
copy.srcDevice = copy.dstDevice = p; copy.WidthInBytes = 16; copy.Height = 3; copy.srcPitch = copy.dstPitch = 1 << 63
print(d.cuMemcpy2D(copy)[0].name)
copy.srcPitch = copy.dstPitch = 16; copy.srcY = (1 << 60) - 1; copy.Height = 2; print(d.cuMemcpy2D(copy)[0].name)"""
    assert out(code).split() == ["CUDA_ERROR_OUT_OF_MEMORY"] * 2 + ["CUDA_ERROR_INVALID_VALUE"] * 4


def test_the_newest_of_what_kernels_print_is_kept_where_the_buffer_is_full() -> None:
    code = '''begin()
say = load(b"""
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b32 length) vprintf(.param .b64 format, .param .b64 values);
.global .align 1 .b8 text[9] = {108, 105, 110, 101, 32, 37, 100, 10, 0};
.visible .entry say(.param .u64 values) {
  .reg .b64 %rd<3>;
  mov.u64 %rd1, text; cvta.global.u64 %rd1, %rd1; ld.param.u64 %rd2, [values];
  { .param .b64 format; .param .b64 values; .param .b32 length;
    st.param.b64 [format], %rd1; st.param.b64 [values], %rd2; call.uni (length), vprintf, (format, values); }
  ret;
}""", b"say")
limit = d.CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE
ok(d.cuCtxSetLimit(limit, 4096))
values = int(ok(d.cuMemAlloc(4000)))
numbers = (ctypes.c_uint32 * 1000)(*range(1000)); ok(d.cuMemcpyHtoD(values, numbers, 4000))
for n in range(1000): ok(d.cuLaunchKernel(say, 1, 1, 1, 1, 1, 1, 0, 0, ((values + 4 * n,), (ctypes.c_void_p,)), 0))
ok(d.cuCtxSynchronize())'''
    assert run(code).stdout == "".join(f"line {n}\n" for n in range(1000))[-4096:]


def test_a_librarys_kernel_has_a_name_and_is_no_function_otherwise() -> None:
    code = """begin(); kernel = ok(d.cuLibraryGetKernel(ok(d.cuLibraryLoadData(ADD + b"\\0", [], [], 0, [], [], 0)), b"add"))
print(ok(d.cuKernelGetName(kernel)).decode(), ok(d.cuFuncGetName(ok(d.cuKernelGetFunction(kernel)))).decode(), d.cuFuncGetName(d.CUfunction(int(kernel)))[0].name)"""
    assert out(code) == "add add CUDA_ERROR_INVALID_HANDLE"
