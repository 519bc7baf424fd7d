"""``gpukernel demo``: others reach its pool while it runs, and the second one goes straight to JupyterLab."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from gpukernel.cli import demo as demo_module
from gpukernel.cli.demo import demo

WAITS = """
import pathlib, time
while not pathlib.Path({path!r}).exists():
    time.sleep(0.05)
"""


def test_what_it_prints_reaches_its_pool_from_another_terminal(tmp_path: Path) -> None:
    go = tmp_path / "go"
    notebook = nbformat.v4.new_notebook(  # type: ignore[no-untyped-call]
        cells=[nbformat.v4.new_code_cell(WAITS.format(path=str(go)))]  # type: ignore[no-untyped-call]
    )
    nbformat.write(notebook, tmp_path / "waits.ipynb")  # type: ignore[no-untyped-call]
    command = [sys.executable, "-m", "gpukernel.cli", "demo", "--no-browser", "--notebook"]
    running = subprocess.Popen(
        [*command, str(tmp_path / "waits.ipynb")], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        assert running.stdout is not None
        lines = (line.strip() for line in iter(running.stdout.readline, ""))
        line = next(one for one in lines if one.endswith(" ps"))
        asked = subprocess.run(
            f"{line.removesuffix(' ps')} list-gpus --json",
            shell=True,
            capture_output=True,
            text=True,
            check=False,
        )
        assert asked.returncode == 0, (line, asked.stderr)
        assert len(json.loads(asked.stdout)) == 2
    finally:
        go.touch()
        running.communicate(timeout=120)
    assert running.returncode == 0


TWICE = """
import time
import numpy as np
from numba import cuda
small = cuda.to_device(np.zeros(1000))
time.sleep(2.5)  # in which the pool is told of it
large = cuda.to_device(np.zeros(2**22))
"""


def test_its_table_has_what_the_notebook_did_last(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(TWICE)])  # type: ignore[no-untyped-call]
    nbformat.write(notebook, tmp_path / "twice.ipynb")  # type: ignore[no-untyped-call]
    command = [sys.executable, "-m", "gpukernel.cli", "demo", "--no-browser", "--notebook"]
    said = subprocess.run([*command, str(tmp_path / "twice.ipynb")], stdout=subprocess.PIPE, text=True, cwd=tmp_path, check=True).stdout  # fmt: skip
    assert " 32.0 MiB " in said, said
    table = said.partition("What the pool saw")[2]
    assert "twice.ipynb" in table, said
    assert "kernel " not in table, said


NAMES_ITS_DEVICE = """
import ctypes
cuda, name = ctypes.CDLL("libcuda.so.1"), ctypes.create_string_buffer(100)
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetName(name, 100, 0) == 0
name.value.decode()
"""


@pytest.mark.parametrize(
    ("own", "words", "found"),
    [
        ("gpu-h100-0.02", (), "H100"),
        pytest.param("gpu-h100-0.02", ("--kernel", "gpu-v100-0.05"), "V100", marks=pytest.mark.thorough),
        pytest.param("python3", (), "V100", marks=pytest.mark.thorough),
    ],
)
def test_its_devices_are_those_that_the_kernel_asks_for(
    own: str, words: tuple[str, ...], found: str, tmp_path: Path
) -> None:
    """The notebook's own kernel, unless another one is named; one that has nothing to do with slices does not count."""
    notebook = nbformat.v4.new_notebook(  # type: ignore[no-untyped-call]
        cells=[nbformat.v4.new_code_cell(NAMES_ITS_DEVICE)],  # type: ignore[no-untyped-call]
        metadata={"kernelspec": {"name": own, "display_name": own}},
    )
    nbformat.write(notebook, tmp_path / "names.ipynb")  # type: ignore[no-untyped-call]
    command = [sys.executable, "-m", "gpukernel.cli", "demo", "--no-browser", *words]
    command += ["--notebook", str(tmp_path / "names.ipynb")]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, check=True).stdout
    result = said.partition("What the notebook found")[2].partition("What the pool saw")[0]
    assert found in result, said
    # No kernel stays behind that a pool of the standard model cannot give.
    assert not list(Path(sys.prefix, "share", "jupyter", "kernels").glob("gpu-h100-*"))


class Steps:
    """A demo whose pool, notebook and JupyterLab are only noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, prefix: Path) -> None:
        self.taken: list[str] = []
        environment: dict[str, str] = {}

        class Pool:
            def __init__(self, *_: object) -> None:
                self.environment = environment

            def start(self) -> None:
                pass

            def stop(self) -> None:
                pass

        monkeypatch.setenv("GPUKERNEL_STATE", "")
        monkeypatch.setattr(sys, "prefix", str(prefix))
        monkeypatch.setattr(demo_module, "EmbeddedPool", Pool)
        monkeypatch.setattr(demo_module, "at_terminal", lambda: True)
        monkeypatch.setattr(demo_module, "_execute", lambda *_: self.taken.append("notebook"))
        monkeypatch.setattr(demo_module, "_open_lab", lambda *_: self.taken.append("lab"))

    def of(self, **options: object) -> list[str]:
        self.taken.clear()
        demo(**options)  # type: ignore[arg-type]
        return list(self.taken)


def test_the_second_demo_goes_straight_to_jupyterlab(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = Steps(monkeypatch, tmp_path)
    assert steps.of() == ["notebook", "lab"]
    assert "was executed here before" not in capsys.readouterr().out
    assert steps.of() == ["lab"]
    assert "--again" in capsys.readouterr().out
    assert steps.of(again=True) == ["notebook", "lab"]
    assert steps.of(no_browser=True) == ["notebook"]
    assert steps.of(keep=tmp_path / "kept.ipynb") == ["notebook", "lab"]
    monkeypatch.setattr(demo_module, "__version__", "9.9")
    assert steps.of() == ["notebook", "lab"]  # another version has something else to show


def test_a_demo_that_failed_is_no_first_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    steps = Steps(monkeypatch, tmp_path)

    def fail(*_: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as broken:
        broken.setattr(demo_module, "_execute", fail)
        with pytest.raises(demo_module.Problem, match="The demo stopped: no"):
            steps.of()
    assert steps.of() == ["notebook", "lab"]
    assert os.environ["GPUKERNEL_STATE"]
