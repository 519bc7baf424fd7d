"""Compilers of programs on simulated devices: a ``ptxas`` that hands PTX on, and the environment that names it."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpukernel import native
from gpukernel.common.model import Holder, Lease, Slice
from gpukernel.frameworks import SIMULATED_VARIABLE
from gpukernel.remoting.environment import (
    compiler_environment,
    compilers_for,
    shim_environment,
    with_commands,
)
from tests.conftest import Pool
from tests.remoting.conftest import PRELUDE, Worker, worker

PTX = """//
.version 7.0
.target sm_70
.address_size 64
.visible .entry store(.param .u64 to, .param .u32 value) { .reg .b64 %rd<2>; .reg .b32 %r<2>;
ld.param.u64 %rd1, [to]; ld.param.u32 %r1, [value]; st.global.u32 [%rd1], %r1; ret; }
"""
VARIABLES = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")


def _ptxas(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([native.ptxas(), *words], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in.ptx").write_text(PTX)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ("-lineinfo -v --regAllocOptLevel=2 --gpu-name=sm_80 in.ptx -o out", "out"),  # Triton 3.9
        (
            "-lineinfo -suppress-debug-info --fmad=false -v --opt-level 0 --gpu-name=sm_80 in.ptx -o out",
            "out",
        ),
        ("in.ptx -o out -arch=sm_70 --warn-on-spills -v", "out"),  # XLA
        ("-arch sm_70 -O 3 -m 64 --output-file=out in.ptx", "out"),  # nvcc -cubin
        ("--output-file out -O3 -m64 in.ptx -g -w", "out"),
        ("-maxrregcount 64 -e store in.ptx", "elf.o"),
    ],
)
def test_ptx_is_handed_on_whatever_the_options_are(folder: Path, words: str, output: str) -> None:
    done = _ptxas(folder, *words.split())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (folder / output).read_bytes() == PTX.encode() + b"\0"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("-arch=sm_70", "no file of PTX is named; write ptxas -arch=sm_70 FILE.ptx -o FILE.cubin"),
        ("absent.ptx -o out", "'absent.ptx' cannot be read: No such file or directory"),
        ("no.ptx -o out", "'no.ptx' is no PTX: it has no .version"),
        ("in.ptx -o absent/out", "'absent/out' cannot be written: No such file or directory"),
        ("in.ptx no.ptx -o out", "one file of PTX is taken, not 'in.ptx' and 'no.ptx'"),
        ("in.ptx -o", "the option '-o' needs a value"),
        ("--options-file all", "the option '--options-file' is not taken here: name a file of PTX"),
    ],
)
def test_what_it_cannot_do_is_one_sentence(folder: Path, words: str, sentence: str) -> None:
    (folder / "no.ptx").write_bytes(b"\x7fELF")
    done = _ptxas(folder, *words.split())
    assert (done.returncode, done.stderr) == (1, f"ptxas fatal   : {sentence}\n")
    assert not (folder / "out").exists()


def test_its_version_is_read_as_compilers_read_it(folder: Path) -> None:
    for word in ("--version", "-V"):
        assert "release 12.9, V12.9.86\n" in _ptxas(folder, word).stdout


def test_its_output_is_loaded_as_a_cubin_is(folder: Path) -> None:
    async def story() -> subprocess.CompletedProcess[str]:
        one: Worker
        async with worker() as one:
            return await one.run(f"""begin(); image = open({str(folder / "out")!r}, "rb").read(); a = ok(d.cuMemAlloc(4))
room = ctypes.create_string_buffer(image + bytes([255]) * 64, len(image) + 64)  # as a program keeps it, which ends it with nothing
f = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(ctypes.addressof(room))), b"store")); v = ctypes.c_uint64(int(a)), ctypes.c_uint32(4711)
ok(d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, ctypes.addressof((ctypes.c_void_p * 2)(*map(ctypes.addressof, v))), 0))
out = bytes(4); ok(d.cuMemcpyDtoH(out, a, 4)); print(int.from_bytes(out, "little"))""")

    _ptxas(folder, "in.ptx", "-o", "out")
    done = asyncio.run(story())
    assert done.stdout == "4711\n", done.stderr


def _lease(*names: str) -> Lease:
    slices = tuple(Slice("id", "server", 0, name, 1, 1) for name in names)
    return Lease("id", "key", Holder("someone"), slices, "live", 0, 0, 0, 1)


def test_the_environment_names_it_on_simulated_devices_only() -> None:
    simulated, real = "Tesla T4 (simulated)", "Tesla T4"
    audit, folder = str(native.compiler_auditor()), str(native.ptxas().parent)
    ranges = "NVTX_INJECTION64_PATH"
    told = {SIMULATED_VARIABLE: "1", ranges: str(native.shim_dir() / "libcuda.so.1")}
    xla = f"--xla_gpu_cuda_data_dir={folder} --xla_gpu_autotune_level=0"
    own = {**dict.fromkeys(VARIABLES, str(native.ptxas())), "LD_AUDIT": audit, "XLA_FLAGS": xla, **told}
    assert compilers_for(_lease(simulated, simulated), {"A": "b"}) == {"A": "b", **own}
    for names in ((real,), (real, simulated), ()):
        assert compilers_for(_lease(*names), {"A": "b"}) == {"A": "b"}
        assert compilers_for(_lease(*names), own) == {}  # started by a program on a simulated device
    users = {**dict.fromkeys(VARIABLES, "/usr/bin/ptxas"), "LD_AUDIT": "/a.so", "PATH": "/bin:/usr/bin"}
    users["XLA_FLAGS"] = "--xla_gpu_cuda_data_dir=/cuda"
    on_slice = compilers_for(_lease(simulated), users)
    assert on_slice == {**users, **told, "LD_AUDIT": f"/a.so:{audit}", "PATH": f"/bin:/usr/bin:{folder}"}
    assert compilers_for(_lease(simulated), on_slice) == on_slice
    assert compilers_for(_lease(real), on_slice) == compilers_for(_lease(real), users) == users
    for name in (simulated, real):
        assert compilers_for(_lease(name), {ranges: "/tool.so"})[ranges] == "/tool.so"


@pytest.mark.parametrize("level", ["", "--xla_gpu_autotune_level=0", "--xla_gpu_autotune_level=4"])
def test_xla_is_told_of_it_beside_flags_of_the_users(level: str) -> None:
    folder = f"--xla_gpu_cuda_data_dir={native.ptxas().parent}"
    users = {"XLA_FLAGS": f"--xla_dump_to=/a {level}".strip()}
    on_slice = compilers_for(_lease("Tesla T4 (simulated)"), users)
    more = folder if level else f"{folder} --xla_gpu_autotune_level=0"
    assert on_slice["XLA_FLAGS"] == f"{users['XLA_FLAGS']} {more}"
    assert compilers_for(_lease("Tesla T4 (simulated)"), on_slice) == on_slice
    assert compilers_for(_lease("Tesla T4"), on_slice) == users


def test_a_program_on_a_slice_finds_it(shared_pool: Pool) -> None:
    names = (*VARIABLES, "LD_AUDIT", "PATH")
    code = f"import json, os; print(json.dumps([os.environ.get(name) for name in {names}]))"
    done = shared_pool.gpukernel("run", "-m", "64", "--", sys.executable, "-c", code)
    first, second, audit, path = json.loads(done.stdout)
    assert (first, second, audit) == (
        *[str(native.ptxas())] * 2,
        f"{native.compiler_auditor()}:{native.runtime_auditor()}",
    ), done.stderr
    assert path.split(":")[-1] == str(native.ptxas().parent)


NUMBER_OF_ARCHITECTURES = """
import signal
signal.alarm(60)  # ends a call that goes on without end
from cuda.bindings import nvrtc
error, number = nvrtc.nvrtcGetNumSupportedArchs()
print(int(error), number > 1)
"""


def test_libraries_of_another_installation_are_not_asked_beside_its_own(
    shared_pool: Pool, tmp_path: Path
) -> None:
    """As in a container that was started with a slice, whose image has gpukernel for its kernels: two auditors took each other's libraries
    for NVIDIA's, and NVRTC's calls ended nowhere.
    """
    own = native.shim_dir().parent
    for name in ("shim", "cudart", "libraries", "compilers", "ptxas"):
        shutil.copytree(own / name, tmp_path / name)
    pool = shared_pool.environment
    theirs = shim_environment(
        Path("/run/lease"), compiler_environment({"PATH": "/bin"}, simulated=True, part=True)
    )
    outer = {name: value.replace(str(own), str(tmp_path)) for name, value in theirs.items()}
    assert outer["LD_AUDIT"] != theirs["LD_AUDIT"]
    inside = shim_environment(
        Path("/run/lease"), compiler_environment(with_commands(outer), simulated=True, part=True)
    )
    assert str(tmp_path) not in str(inside)
    command = [sys.executable, "-m", "gpukernel.cli", "run", "-m", "64", "--"]
    command += [sys.executable, "-c", NUMBER_OF_ARCHITECTURES]
    done = subprocess.run(command, env=pool | outer, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "0 True\n", done.stderr


CORE = """
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
import numpy as np
device = Device(); device.set_current(); stream = device.create_stream()
code = 'extern "C" __global__ void twice(float* a, int n) { int i = threadIdx.x; if (i < n) a[i] = i * 2.f; }'
program = Program(code, "c++", ProgramOptions(arch=f"sm_{device.arch}"))
kernel = program.compile("ptx").get_kernel("twice"); a = device.memory_resource.allocate(40, stream=stream)
launch(stream, LaunchConfig(grid=1, block=32), kernel, int(a.handle), np.int32(10)); stream.sync()
found = np.zeros(10, np.float32); ok(d.cuMemcpyDtoH(found.ctypes.data, int(a.handle), 40)); print(found.tolist() == [2 * i for i in range(10)])
try: program.compile("cubin").get_kernel("twice")
except Exception as error: print(str(error).split(":")[0])
"""


def test_machine_code_is_told_what_helps_where_nobody_named_the_compilers() -> None:
    pytest.importorskip("cuda.core", reason="cuda.core is not installed")

    async def story() -> subprocess.CompletedProcess[str]:
        one: Worker
        async with worker() as one:
            return await one.run(CORE)

    done = asyncio.run(story())
    assert done.stdout.splitlines() == ["True", "CUDA_ERROR_NO_BINARY_FOR_GPU"], done.stderr
    assert (
        "NVRTC and nvJitLink hand it over by themselves in a program that was started on its slice"
        in done.stderr
    )


def test_cuda_core_s_default_runs_on_a_slice(shared_pool: Pool) -> None:
    pytest.importorskip("cuda.core", reason="cuda.core is not installed")
    code = PRELUDE + CORE.replace('compile("ptx")', 'compile("cubin")')
    done = shared_pool.gpukernel("run", "-m", "256", "--", sys.executable, "-c", code)
    assert done.stdout.splitlines() == ["True"], done.stderr
