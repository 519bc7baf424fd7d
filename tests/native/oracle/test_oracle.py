"""Generated CUDA kernels give the same bits on the simulated GPU, by way of several compilers, and on the host's processor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpukernel.native import NativePartMissing, simgpu_library
from tests.native.oracle import paths
from tests.native.oracle.compare import Tally, batch, compare, first_difference, paths_of, report
from tests.native.oracle.kernels import generate
from tests.native.oracle.paths import PTX_PATHS, Answer, Host, Simulated
from tests.native.simgpu_compiler.conftest import VECTORS
from tests.native.simgpu_exec.conftest import MODELS

SEED, PROGRAMS, SIZE = 1, 4, 15

pytestmark = [
    pytest.mark.skipif(
        paths.host_compiler() is None, reason="Needs a C++ compiler (Debian: apt-get install g++)."
    ),
    pytest.mark.skipif(
        not paths.has_nvrtc(), reason="Needs NVRTC (pip install nvidia-cuda-nvrtc-cu12 cuda-python)."
    ),
]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulated]:
    try:
        simgpu_library()
    except NativePartMissing as missing:
        pytest.skip(str(missing))
    monkeypatch.setenv("GPUKERNEL_SIMGPU", MODELS)
    monkeypatch.setenv("GPUKERNEL_SIMGPU_THREADS", "1")
    opened = Simulated()
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("program", "tier"),
    [
        *[(n, "interpreter") for n in range(PROGRAMS)],
        *[(n, "compiled") for n in range(0, PROGRAMS, 2)],
        *[(n, "avx2") for n in range(1, PROGRAMS, 4)],
    ],
)
def test_generated_kernels_give_the_hosts_answers(
    program: int,
    tier: str,
    device: Simulated,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GPUKERNEL_SIMGPU_TIER", "compiled" if tier == "avx2" else tier)
    monkeypatch.setenv("GPUKERNEL_SIMGPU_VECTORS", "avx2" if tier == "avx2" else "")
    monkeypatch.setenv("GPUKERNEL_SIMGPU_TIER_LOG", "1")
    tally = Tally()
    names = paths_of(program, paths.available(), each=2)
    compare(batch(SEED, program, SIZE), names, device, tally)
    assert [str(found) for found in tally.differences] == []
    assert tally.executions >= SIZE * min(len(names), 2)
    said = capfd.readouterr().err
    if (
        tier != "interpreter" and VECTORS
    ):  # most of them are, so that the interpreter's answers are not its own
        assert said.count(": compiled: ") > 2 * said.count(": interpreted: ")
    elif tier == "interpreter":
        assert "compiled" not in said


def test_a_seed_is_a_kernel() -> None:
    kernel, again, other = generate(5), generate(5), generate(6)
    assert kernel.text() == again.text()
    assert (kernel.arguments, kernel.input, kernel.own) == (again.arguments, again.input, again.own)
    assert kernel.text().replace("k5", "k6") != other.text()


def test_an_instruction_that_is_wrong_is_found_and_its_kernel_made_short(
    device: Simulated, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = PTX_PATHS["nvrtc-70"][0]
    wrong = (lambda source: compiler(source).replace("xor.b32", "or.b32"), True)
    monkeypatch.setitem(PTX_PATHS, "nvrtc-70", wrong)
    tally = Tally()
    kernels = [generate(n) for n in range(3)]
    compare(kernels, ["nvrtc-70"], device, tally)
    assert tally.differences
    found = min(tally.differences, key=lambda d: len(d.kernel.text()))
    before = len(found.kernel.text())
    report(found, tmp_path, device, attempts=6)
    assert len(found.kernel.text()) < before
    (short,) = tmp_path.glob("*.short.cu")
    assert short.read_text().startswith(f"// {found.kernel.name}, nvrtc-70: ")
    assert "or.b32" in short.with_suffix(".ptx").read_text()


def test_a_kernel_that_no_thread_can_end_is_told() -> None:
    kernel = generate(1)
    kernel.main.body[:] = []
    source = kernel.text().replace(
        "u64 sum = id;\n", "u64 sum = id;\nif (thread == 0) __syncwarp(3);\n__syncthreads();\n"
    )
    assert Host(source).run(kernel) == "no thread can go on"


def test_the_first_difference_names_thread_and_variable() -> None:
    kernel = generate(1)
    size = 8 * len(kernel.slots) * kernel.threads
    answer = Answer(bytes(size), kernel.cells, kernel.own)
    at = 8 * (len(kernel.slots) * 3 + 1)
    other = Answer(bytes(at) + b"\x07" + bytes(size - at - 1), kernel.cells, kernel.own)
    assert first_difference(kernel, answer, answer) == ""
    assert first_difference(kernel, answer, other) == (
        f"thread 3 of block 0, {kernel.slots[1]}: 0x0 on the host, 0x7 on the GPU"
    )
    memory = Answer(answer.out, answer.cells, bytes(1) + kernel.own[1:])
    if kernel.own[0]:
        assert first_difference(kernel, answer, memory).startswith("byte 0 of thread 0's own memory")
