"""The ways from one source to an answer: compilers to PTX for the simulated GPU, and the host's compiler to a library."""

from __future__ import annotations

import ctypes as c
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tests.native.oracle.kernels import Kernel
from tests.real_gpu import REAL, cuda_library

HERE = Path(__file__).parent
STACK_SIZE, STACK_BYTES = 0, 16384  # CU_LIMIT_STACK_SIZE, for a thread
ROOT = HERE.parents[2]


class DoesNotCompile(Exception):
    """A compiler's objection, its whole text."""


@cache
def clang() -> str | None:
    """Return the Clang that deploy/clang.sh finds, or None."""
    found = subprocess.run([ROOT / "deploy/clang.sh"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


@cache
def host_compiler() -> str | None:
    return shutil.which("g++") or clang()


def has_nvrtc() -> bool:
    try:
        return find_spec("cuda.bindings.nvrtc") is not None
    except ModuleNotFoundError:
        return False


def _text(*files: str) -> str:
    return "".join((HERE / file).read_text() for file in files)


def nvrtc(*options: str) -> Callable[[str], str]:
    def compiled(source: str) -> str:
        from cuda.bindings import nvrtc as library

        text = _text("common.h", "device.h") + source
        _, program = library.nvrtcCreateProgram(text.encode(), b"kernels.cu", 0, [], [])
        flags = ["--std=c++17", "-fmad=false", "--device-int128", "--disable-warnings", *options]
        (code,) = library.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])
        try:
            if int(code):
                _, size = library.nvrtcGetProgramLogSize(program)
                log = b" " * size
                library.nvrtcGetProgramLog(program, log)
                raise DoesNotCompile(log.decode(errors="replace"))
            _, size = library.nvrtcGetPTXSize(program)
            ptx = b" " * size
            library.nvrtcGetPTX(program, ptx)
            return ptx.rstrip(b"\0").decode()
        finally:
            library.nvrtcDestroyProgram(program)

    return compiled


def _run(command: list[str], source: str) -> str:
    done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise DoesNotCompile(done.stderr)
    return done.stdout


def clang_ptx(*options: str) -> Callable[[str], str]:
    def compiled(source: str) -> str:
        command = [
            clang() or "clang++",
            "-x",
            "cuda",
            "--cuda-device-only",
            "-nocudainc",
            "-nocudalib",
            "-S",
            "-o",
            "-",
            "-",
        ]
        flags = [
            "-std=c++17",
            "-ffp-contract=off",
            "-fno-strict-aliasing",
            "-w",
            "-Wno-c++11-narrowing",
            "-I",
            str(HERE),
            *options,
        ]
        return _run([*command, *flags], _text("clang.h") + source)

    return compiled


# By name: the compiler, and whether it has CUDA's library of device code.
PTX_PATHS: dict[str, tuple[Callable[[str], str], bool]] = {
    "nvrtc-70": (nvrtc("--gpu-architecture=compute_70"), True),
    "nvrtc-90": (nvrtc("--gpu-architecture=compute_90"), True),
    "nvrtc-80-G": (nvrtc("--gpu-architecture=compute_80", "-G"), True),
    "nvrtc-75-fast": (nvrtc("--gpu-architecture=compute_75", "--Ofast-compile=max"), True),
    "clang-70": (clang_ptx("--cuda-gpu-arch=sm_70", "-O2"), False),
    "clang-90": (clang_ptx("--cuda-gpu-arch=sm_90", "-O1"), False),
}


def available() -> list[str]:
    """Return the paths to PTX that this machine has."""
    return [n for n in PTX_PATHS if (has_nvrtc() if n.startswith("nvrtc") else clang() is not None)]


@dataclass
class Answer:
    """Results of a kernel: its slots, the cells of all threads, the threads' own memory."""

    out: bytes
    cells: bytes
    own: bytes


class Host:
    """A source's kernels on the host's processor."""

    def __init__(self, source: str, *options: str) -> None:
        compiler = host_compiler()
        assert compiler is not None
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder, "kernels.so")
            flags = ["-std=c++20", "-O1", "-w", "-fPIC", "-shared"]
            # -frounding-math: GCC 12 makes 0.0 - (double)n a negation, which for n = 0 has another sign.
            flags += ["-fwrapv", "-ffp-contract=off", "-frounding-math", "-fno-strict-aliasing"]
            if "fma" in Path("/proc/cpuinfo").read_text().split():  # else the math library has it
                flags.append("-mfma")
            flags += ["-DORACLE_HOST", "-I", str(HERE), *options, "-x", "c++", "-", "-o", str(library)]
            _run([compiler, *flags], '#include "host.h"\n' + source)
            self._library = c.CDLL(str(library), mode=os.RTLD_NOW | os.RTLD_LOCAL)

    def run(self, kernel: Kernel, order: int = 0) -> Answer | str:
        """Run it with fibers and blocks in one order, or (1) in the other one."""
        buffers = [_aligned(data) for data in _memory(kernel)]
        pointers = [c.c_void_p(address) for _, address in buffers]
        values = [c.create_string_buffer(a, len(a)) for a in kernel.arguments]
        arguments = (c.c_void_p * (4 + len(values)))(*(c.addressof(v) for v in (*pointers, *values)))
        if getattr(self._library, f"run_{kernel.name}")(
            arguments, (c.c_uint * 6)(*kernel.grid, *kernel.block), order
        ):
            return "no thread can go on"
        sizes = [len(data) for data in _memory(kernel)]
        _, *rest = [c.string_at(address, size) for (_, address), size in zip(buffers, sizes, strict=True)]
        return Answer(*rest)


def _memory(kernel: Kernel) -> list[bytes]:
    return [kernel.input, bytes(8 * len(kernel.slots) * kernel.threads), kernel.cells, kernel.own]


def _aligned(data: bytes) -> tuple[object, int]:
    """Return a copy that begins at a multiple of 256 bytes, as device memory does, and its address."""
    buffer = c.create_string_buffer(len(data) + 256)
    address = (c.addressof(buffer) + 255) & ~255
    c.memmove(address, data, len(data))
    return buffer, address


class Simulated:
    """The simulated GPU's own library, with one thread of the host's unless the environment says otherwise."""

    def __init__(self, library: Path | None = None, level: int | None = None) -> None:
        os.environ.setdefault(
            "GPUKERNEL_SIMGPU", "h100"
        )  # every compute capability that simulated devices have
        os.environ.setdefault("GPUKERNEL_SIMGPU_THREADS", "1")
        self._cuda = c.CDLL(str(library or cuda_library()))
        self._check("cuInit", 0)
        self._context, self._level = c.c_void_p(), level
        self._open()

    def _check(self, name: str, *arguments: object) -> None:
        if code := getattr(self._cuda, name)(*arguments):
            raise RuntimeError(f"{name}: {code}")

    def _open(self) -> None:
        self._check("cuCtxCreate_v2", c.byref(self._context), 0, 0)
        # Recursion and calls through pointers leave a GPU's stack at 1 KiB, less than kernels with -G take.
        self._check("cuCtxSetLimit", STACK_SIZE, c.c_size_t(STACK_BYTES))

    def close(self) -> None:
        self._cuda.cuCtxDestroy_v2(self._context)

    def load(self, ptx: str) -> c.c_void_p | str:
        """Load a module, or return what the library has against it."""
        module, log = c.c_void_p(), c.create_string_buffer(4000)
        # CU_JIT_ERROR_LOG_BUFFER, its size, and CU_JIT_OPTIMIZATION_LEVEL, which NVIDIA's driver alone reads
        options = (c.c_int * 3)(5, 6, 7)
        values = (c.c_void_p * 3)(c.cast(log, c.c_void_p), len(log), self._level)
        if code := self._cuda.cuModuleLoadDataEx(
            c.byref(module), c.c_char_p(ptx.encode()), 2 if self._level is None else 3, options, values
        ):
            return f"the module is refused ({code}): {log.value.decode(errors='replace').strip()}"
        return module

    def unload(self, module: c.c_void_p) -> None:
        self._cuda.cuModuleUnload(module)

    def run(self, module: c.c_void_p, kernel: Kernel) -> Answer | str:
        """Run one kernel of a module; an error is told, and the module is gone with its context."""
        memory, addresses, function = _memory(kernel), [], c.c_void_p()
        try:
            self._check("cuModuleGetFunction", c.byref(function), module, kernel.name.encode())
            for data in memory:
                address = c.c_uint64()
                self._check("cuMemAlloc_v2", c.byref(address), c.c_size_t(len(data)))
                addresses.append(address)
                self._check("cuMemcpyHtoD_v2", address, data, c.c_size_t(len(data)))
            values = [*addresses, *(c.create_string_buffer(a, len(a)) for a in kernel.arguments)]
            arguments = (c.c_void_p * len(values))(*(c.addressof(v) for v in values))
            sizes = [c.c_uint(n) for n in (*kernel.grid, *kernel.block, 4 * kernel.threads)]
            self._check("cuLaunchKernel", function, *sizes, None, arguments, None)
            self._check("cuCtxSynchronize")
            rest = []
            for address, data in zip(addresses[1:], memory[1:], strict=True):
                back = c.create_string_buffer(len(data))
                self._check("cuMemcpyDtoH_v2", back, address, c.c_size_t(len(data)))
                rest.append(back.raw)
            return Answer(*rest)
        except RuntimeError as error:
            self._cuda.cuCtxDestroy_v2(self._context)
            if not REAL:  # whose process has no other context afterwards
                self._open()
            return str(error)
        finally:
            for address in addresses:
                self._cuda.cuMemFree_v2(address)
