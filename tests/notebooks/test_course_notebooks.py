"""The course notebooks teach what is true: each is executed on a slice, and its figures are looked at.

Their cells assert that what they compute is right; no time is asserted here.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from gpukernel.jupyter import kernelspecs
from tests.conftest import Pool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
COURSE = ("06-memory", "07-reduction", "08-transformer")


@pytest.fixture
def kernel(own_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("GPUKERNEL_STATE", str(own_pool.state))
    for kind in ("DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(tmp_path / kind.lower()))
    spec = kernelspecs.SliceSpec(0.02)
    kernelspecs.write(spec, tmp_path / "data" / "kernels")
    return spec.name


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


@pytest.mark.parametrize("name", COURSE)
def test_a_course_notebook_runs_and_shows_what_it_teaches(
    name: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(
        "PYTEST_CURRENT_TEST"
    )  # ipykernel leaves file descriptors alone where it believes to run inside pytest
    content = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(content)
    assert content.metadata.kernelspec.name == kernel
    assert outputs(content) == []
    done = NotebookClient(content, kernel_name=kernel, timeout=600).execute()
    assert [o.text for o in outputs(done) if o.get("name") == "stderr"] == []
    assert [o for o in outputs(done) if "image/png" in o.get("data", {})]
    said = "".join(o.text for o in outputs(done) if o.output_type == "stream")
    (result,) = [o for o in done.cells[-1].outputs if o.output_type == "execute_result"]
    figures = ast.literal_eval(result.data["text/plain"])
    if name == "06-memory":
        assert "stride  1:  2 lines" in said
        assert "stride 16: 32 lines" in said
    elif name == "07-reduction":
        # Both races show: sums that are wrong, and what a thread reads without a barrier.
        assert said.count("of the right sum") == 2
        rows = {line[:24].strip(): line[24:].split() for line in said.splitlines() if len(line) > 24}
        assert rows["read with syncthreads()"] == rows["expected"] != rows["read without a barrier"]
        assert len(figures["milliseconds"]) == 4
    else:
        assert figures["digits right"] > 0.95
        assert figures["attention to the right place"] > 0.7


def test_notebooks_link_to_notebooks_that_there_are() -> None:
    for path in NOTEBOOKS.glob("*.ipynb"):
        text = "".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
        for link in re.findall(r"\]\(([\w-]+\.ipynb)\)", text):
            assert (NOTEBOOKS / link).exists(), (path.name, link)
