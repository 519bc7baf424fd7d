"""A pool with a simulated H100, and programs under a framework on a slice of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from gpukernel.embedded import EmbeddedPool
from gpukernel.jupyter import kernelspecs
from tests.frameworks.sources import CUDNN_FRONTEND, JAX, PYTORCH, TENSORFLOW, Framework, NotHere

PROGRAMS = Path(__file__).parent / "programs"
FETCH = os.environ.get("GPUKERNEL_FRAMEWORKS") == "1"

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"

Execute = Callable[[str | nbformat.NotebookNode, Framework], nbformat.NotebookNode]
"""Executes a notebook, or the one of `NOTEBOOKS` of a name, with a framework's packages in the kernel that it names, on a slice."""
Run = Callable[..., str]
"""Runs a program of `PROGRAMS` with words on a slice, and returns what it prints; without ``share`` off any slice, and with more variables in its environment."""


def site_of(framework: Framework) -> Path:
    if not FETCH and not framework.is_kept():
        pytest.skip(f"{framework.name} is not here: make frameworks fetches it")
    try:
        return framework.site()
    except NotHere as why:
        pytest.skip(str(why))


@pytest.fixture(scope="session")
def pytorch_site() -> Path:
    """The folder of PyTorch's packages."""
    return site_of(PYTORCH)


@pytest.fixture(scope="module")
def h100() -> Iterator[EmbeddedPool]:
    """A pool with one simulated H100."""
    with EmbeddedPool("h100:1") as pool:
        yield pool


def runs(site: Path, pool: EmbeddedPool, devices: int = 1) -> Run:
    def run(program: str, *words: str, share: str = "0.1", **variables: str) -> str:
        command = [sys.executable, str(PROGRAMS / f"{program}.py"), *words]
        if share:
            slices = ["-n", str(devices), "-p", share]
            command = [sys.executable, "-m", "gpukernel.cli", "run", *slices, "--", *command]
        environment = {**pool.environment, "PYTHONPATH": str(site), **variables}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        assert "Delay kernel timed out" not in done.stderr
        return done.stdout

    return run


@pytest.fixture
def on_pytorch(pytorch_site: Path, h100: EmbeddedPool) -> Run:
    """Run a program under PyTorch."""
    return runs(pytorch_site, h100)


@pytest.fixture
def on_jax(h100: EmbeddedPool) -> Run:
    """Run a program under JAX."""
    return runs(site_of(JAX), h100)


@pytest.fixture
def on_two_devices() -> Iterator[Run]:
    """Run a program under JAX, with a slice of each of two simulated H100s."""
    with EmbeddedPool("h100:2") as pool:
        yield runs(site_of(JAX), pool, devices=2)


@pytest.fixture
def on_frontend(h100: EmbeddedPool) -> Run:
    """Run a program with NVIDIA's frontend of cuDNN."""
    return runs(site_of(CUDNN_FRONTEND), h100)


@pytest.fixture
def on_tensorflow(h100: EmbeddedPool) -> Run:
    """Run a program under TensorFlow."""
    return runs(site_of(TENSORFLOW), h100)


@pytest.fixture
def execute(h100: EmbeddedPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Execute:
    """Execute a notebook as somebody with its framework in the kernel's environment does."""

    def execute(which: str | nbformat.NotebookNode, framework: Framework) -> nbformat.NotebookNode:
        monkeypatch.setenv("PYTHONPATH", str(site_of(framework)))
        monkeypatch.setenv("GPUKERNEL_STATE", str(h100.state))
        # ipykernel captures file descriptors only outside of pytest.
        monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
        for kind in ("DATA", "RUNTIME"):
            monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(tmp_path / kind.lower()))
        content = which
        if isinstance(content, str):
            content = nbformat.read(NOTEBOOKS / f"{content}.ipynb", as_version=4)
        assert not any(cell.get("outputs") for cell in content.cells)
        for share in (0.02, 0.05):
            spec = kernelspecs.SliceSpec(share, model="H100", wait_seconds=60)
            kernelspecs.write(spec, tmp_path / "data" / "kernels")
        return NotebookClient(
            content,
            kernel_name=content.metadata.kernelspec.name,
            timeout=600,
            resources={"metadata": {"path": str(NOTEBOOKS)}},
        ).execute()

    return execute


def notebook_of(program: str, *words: str, share: float = 0.02) -> nbformat.NotebookNode:
    """Return a notebook that runs a program of `PROGRAMS` in its kernel, as its one cell."""
    cell = nbformat.v4.new_code_cell(f"%run {PROGRAMS / program}.py {' '.join(words)}")
    return nbformat.v4.new_notebook(
        cells=[cell],
        metadata={"kernelspec": {"name": f"gpu-h100-{share}", "display_name": f"H100 × {share}"}},
    )


def said(done: nbformat.NotebookNode) -> str:
    """Return what the cells of an executed notebook printed or showed as text."""
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    return "\n".join(one.get("text", "") or one.get("data", {}).get("text/plain", "") for one in outputs)


def losses_in(text: str) -> list[float]:
    """Return the list of numbers that a notebook's training shows."""
    shown = re.search(r"\[(\d+\.\d+,[^\]]+)\]", text)
    assert shown is not None, text
    return [float(one) for one in shown[1].split(",")]
