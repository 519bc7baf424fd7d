"""The compiler's back end for AVX2: its sequences beside the instructions of AVX-512, and what it writes."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpukernel.native import NativePartMissing, simgpu_library
from tests.native.simgpu_compiler.conftest import has_avx512
from tests.native.simgpu_compiler.test_programs import KERNEL, PATHS, PROGRAMS
from tests.native.simgpu_exec.conftest import MODELS, Device

NATIVE = Path(__file__).parents[3] / "gpukernel" / "native"
NEWER = re.compile(r"%zmm|%k[0-7]|%[xy]mm(1[6-9]|2\d|3[01])|\{|\(bad\)|^(66 |f[23] |4\w )*62 ")
"""What no processor without AVX-512 has: its registers, and by its first byte (in 64-bit mode 62 is nothing else) every
instruction with the prefix of its own."""


@pytest.fixture(autouse=True)
def only_here(vectors: str) -> None:
    if vectors != "avx2":
        pytest.skip("It is about code for AVX2.")


def _instructions(code: Path) -> list[tuple[str, str]]:
    """Disassemble, and return each instruction's bytes and text."""
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("Needs objdump (Debian: apt-get install binutils).")
    done = subprocess.run(
        [objdump, "-D", "-w", "-b", "binary", "-m", "i386:x86-64", str(code)],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split("\t") for line in done.stdout.splitlines() if re.match(r" *[0-9a-f]+:\t", line)]
    return [(row[1], row[2] if len(row) > 2 else "") for row in rows]


def _newer(code: Path) -> list[tuple[str, str]]:
    instructions = _instructions(code)
    assert sum("%ymm" in text for _, text in instructions) > len(instructions) / 10
    return [each for each in instructions if NEWER.search(each[0]) or NEWER.search(each[1])]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("Needs a C++ compiler (Debian: apt-get install g++).")
    program = tmp_path_factory.mktemp("vectors") / "vectors"
    folder = NATIVE / "simgpu" / "compiler"
    sources = [
        Path(__file__).parent / "cases" / "vectors.cpp",
        folder / "assembler.cpp",
        *sorted((folder / "avx2").glob("*.cpp")),
    ]
    command = [compiler, "-std=c++20", "-I", str(NATIVE), *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


@pytest.mark.skipif(not has_avx512(), reason="It runs code for AVX-512, too.")
@pytest.mark.parametrize(
    ("length", "count"), [(1, 2000), pytest.param(1, 8000, marks=pytest.mark.thorough), (8, 2000), (60, 300)]
)
def test_sequences_of_avx2_leave_what_avx_512_leaves(
    harness: Path, tmp_path: Path, length: int, count: int
) -> None:
    words = [str(n) for n in (1000 * length, count, length, tmp_path / "code")]
    done = subprocess.run([harness, *words], capture_output=True, text=True, check=False, timeout=600)
    assert done.stdout == f"{count} sequences alike\n", (done.returncode, done.stdout, done.stderr)
    assert _newer(tmp_path / "code") == []


class Reading(Device):
    """A device that keeps the code of the kernels that it ran: what can be executed and is no file's."""

    code = b""

    def _call(self, name: str, *args: Any) -> None:
        before = _executable() if name == "cuLaunchKernel" else {}
        super()._call(name, *args)
        if name == "cuLaunchKernel":
            super()._call("cuCtxSynchronize")
            self.code += b"".join(_beside(at, code, before) for at, code in _executable().items())


def _beside(at: int, code: bytes, before: dict[int, bytes]) -> bytes:
    """Return what of `code` at an address was not there before: mappings side by side are shown as one."""
    new = bytearray(b"\1") * len(code)
    for old, text in before.items():
        first, last = max(old, at) - at, min(old + len(text), at + len(code)) - at
        if first < last:
            new[first:last] = bytes(last - first)
    return bytes(byte for byte, is_new in zip(code, new, strict=True) if is_new)


def _executable() -> dict[int, bytes]:
    found = {}
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
        for line in maps:
            where, rights, _, _, _, *name = line.split()
            if rights.startswith("r-x") and not name:
                begin, end = (int(word, 16) for word in where.split("-"))
                memory.seek(begin)
                found[begin] = memory.read(end - begin)
    return found


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    try:
        library = simgpu_library()
    except NativePartMissing as missing:
        pytest.skip(str(missing))
    monkeypatch.setenv("GPUKERNEL_SIMGPU", MODELS)
    monkeypatch.setenv("GPUKERNEL_SIMGPU_TIER", "compiled")
    opened = Reading(str(library))
    yield opened
    opened.close()


def test_kernels_have_nothing_of_avx_512(reading: Reading, nvrtc: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    words = random.integers(0, 20, (4, 96, 4), np.uint32)
    reading.run(PATHS, "paths", 4, 96, words, np.uint32(77))
    for text, grid, block, sizes in PROGRAMS.values():
        arrays = [random.standard_normal(n).astype(np.float32) for n in sizes]
        reading.run(nvrtc(KERNEL + text), "k", grid, block, *arrays)
    assert len(reading.code) > 4096 * len(PROGRAMS)
    code = tmp_path / "code"
    code.write_bytes(reading.code)
    assert _newer(code) == []


@pytest.mark.skipif(not has_avx512(), reason="It writes code for AVX-512, too.")
def test_code_for_avx_512_is_seen(
    reading: Reading, nvrtc: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUKERNEL_SIMGPU_VECTORS", "avx512")
    array = np.zeros(64, np.float32)
    reading.run(nvrtc(KERNEL + "(float*a){a[threadIdx.x]=sqrtf(threadIdx.x);}"), "k", 1, 64, array)
    code = tmp_path / "code"
    code.write_bytes(reading.code)
    instructions = _instructions(code)
    assert any(NEWER.search(raw) for raw, _ in instructions)
    assert any(NEWER.search(text) for _, text in instructions)


def test_no_newer_level_is_written_than_is_allowed(
    reading: Reading,
    nvrtc: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("GPUKERNEL_SIMGPU_VECTORS")
    monkeypatch.setenv("GPUKERNEL_SIMGPU_TIER_LOG", "1")
    array, text = np.zeros(64, np.float32), nvrtc(KERNEL + "(float*a){a[threadIdx.x]=sqrtf(threadIdx.x);}")
    monkeypatch.setenv("GPUKERNEL_SIMGPU_LEVEL", "3")
    reading.run(text, "k", 1, 64, array)
    code = tmp_path / "code"
    code.write_bytes(reading.code)
    assert _newer(code) == []
    monkeypatch.setenv("GPUKERNEL_SIMGPU_LEVEL", "2")
    reading.run(text, "k", 1, 64, array)
    assert "k: interpreted: GPUKERNEL_SIMGPU_LEVEL forbids AVX2" in capfd.readouterr().err
