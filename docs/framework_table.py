"""MkDocs hook: writes the table of which framework runs where into the page ``frameworks.md``; a test holds each row to what shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from docs.in_pages import put


@dataclass(frozen=True)
class Row:
    """A framework, or several of one kind.

    Attributes
    ----------
    name
        What people call it, perhaps with a link.
    simulated, real, direct
        Whether it runs on a remote slice of a simulated GPU, of a real one, and in direct mode.
    install
        What is installed beside gpukernel.
    shown_by
        Files of the tests that show it; a file's test may be named behind ``::``, a suite of ``make suites`` behind ``suite:``.
    otherwise
        The way out where a remote slice is no place for it.
    """

    name: str
    simulated: str
    real: str
    direct: str
    install: str
    shown_by: tuple[str, ...]
    otherwise: str = ""


UNTRIED = "the same calls, not tried"
SEEN = "[yes](real-gpu.md)"
ROWS = (
    Row("Numba", "yes", SEEN, "yes", "numba-cuda[cu12]", ("suite:numba-cuda", "tests/e2e/programs/numba_kernels.py")),
    Row("cuda-python (NVRTC, `cuda.core`)", "yes", f"NVRTC: {SEEN}", "yes", "cuda-python", ("suite:cuda-python", "suite:cuda.core", "tests/e2e/programs/nvrtc_matmul.py")),
    Row("PyCUDA", "yes", UNTRIED, "yes", "pycuda", ("suite:pycuda",)),
    Row("[PyTorch](#pytorch-on-a-simulated-slice)", "yes; operators compute on the processor", SEEN, "yes, on a real GPU", "torch", ("tests/frameworks/test_pytorch.py",)),
    Row("[TensorFlow, Keras](#tensorflow-on-a-simulated-slice)", "yes, on models of compute capability 9.0 (`h100`, `h200`)", "not tried", "yes", "tensorflow[and-cuda]", ("tests/frameworks/test_tensorflow.py",)),
    Row("[JAX](#jax-on-a-simulated-slice)", "yes", SEEN, "yes", "jax[cuda12]", ("tests/frameworks/test_jax.py",)),
    Row("Triton", "yes", SEEN, "yes", "triton", ("suite:triton",)),
    Row("tinygrad", "yes", UNTRIED, "yes", "tinygrad", ("suite:tinygrad", "suite:tinygrad-ptx")),
    Row("Taichi", "yes", UNTRIED, "yes", "taichi", ("suite:taichi",)),
    Row("Dr.Jit", "yes", UNTRIED, "yes", "drjit", ("suite:drjit",)),
    Row("programs of `nvcc -cudart shared`", "yes", UNTRIED, "yes", "", ("tests/remoting/test_runtime_library.py::test_the_runtime_as_a_library_is_this_packages",)),
    Row("CuPy, Warp, `cuda.compute`", "no", "no", "yes, on a real GPU", "", ("tests/remoting/test_runtime_library.py::test_a_program_with_the_runtime_linked_in_is_told_once_why_it_fails",), "[direct mode](direct-mode.md), Numba or PyCUDA"),
    Row("programs of plain `nvcc`", "no", "no", "yes, on a real GPU", "", ("tests/remoting/test_runtime_library.py::test_a_program_with_the_runtime_linked_in_is_told_once_why_it_fails",), "`nvcc -cudart shared`, or [direct mode](direct-mode.md)"),
)  # fmt: skip


def table() -> Iterator[str]:
    """Return the table's lines."""
    yield "| framework | `pip install` | remote slice of a simulated GPU | of a real GPU | [direct mode](direct-mode.md) | shown by |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in ROWS:
        simulated = f"**{row.simulated}**: {row.otherwise}" if row.otherwise else row.simulated
        shown = ", ".join(f"`{_shown(one)}`" for one in row.shown_by)
        install = f"`{row.install}`" if row.install else ""
        yield f"| {row.name} | {install} | {simulated} | {row.real} | {row.direct} | {shown} |"


def _shown(one: str) -> str:
    kind, _, name = one.partition(":")
    return f"make suites SUITE={name}" if kind == "suite" else one.partition("::")[0]


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Fill in the table."""
    return (
        put(markdown, "frameworks", "\n".join(table())) if page.file.src_path == "frameworks.md" else markdown
    )
