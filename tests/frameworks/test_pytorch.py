"""PyTorch from PyPI on a simulated slice: its operators, its training, and what people do beside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.frameworks.conftest import Execute, Run, notebook_of, said
from tests.frameworks.sources import PYTORCH

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "05-pytorch.ipynb"
NOT_OF_CUDA = "PyTorch has it for the CPU alone"
KNOWN = {
    "histogram": NOT_OF_CUDA,
    "histogramdd": NOT_OF_CUDA,
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": NOT_OF_CUDA,
    "tensor_split": "wants its indices on the CPU, and the comparison moves them",
    "as_strided.partial_views": "looks beyond its tensor, whose copy on the slice has nothing there",
    "sparse.sampled_addmm": "tensors of layout sparse_csr",
    "sparse.mm.reduce": "tensors of layout sparse_csr, and the CPU's alone",
    "to_sparse": "gradients through tensors of layout sparse_csr",
}


@pytest.mark.parametrize(("what", "least"), [("values", 600), ("gradients", 500)])
def test_operators_give_what_the_cpu_gives(what: str, least: int, on_pytorch: Run) -> None:
    found = json.loads(on_pytorch("pytorch_operators", what).splitlines()[-1])
    assert {name: why for name, why in found["failed"].items() if name not in KNOWN} == {}
    assert found["passed"] >= least


def test_what_people_do_beside_operators_works(on_pytorch: Run) -> None:
    assert on_pytorch("pytorch_life").splitlines()[-1] == "compiled"


def test_a_group_of_one_process_has_collectives(on_pytorch: Run) -> None:
    assert on_pytorch("pytorch_distributed").splitlines()[-1] == "collected"


def test_training_loses_as_on_the_cpu_at_every_share_and_in_a_kernel(
    on_pytorch: Run, execute: Execute
) -> None:
    wanted = json.loads(on_pytorch("pytorch_training", "cpu", share=""))
    for share in ("1", "0.1", "0.05", "0.02"):
        found = json.loads(on_pytorch("pytorch_training", "cuda", share=share).splitlines()[-1])
        for name, (losses, _) in wanted.items():
            assert found[name][0] == pytest.approx(losses, abs=1e-3)
    text = said(execute(notebook_of("pytorch_training", "cuda"), PYTORCH))
    found = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    for name, (losses, _) in wanted.items():
        assert found[name][0] == pytest.approx(losses, abs=1e-3)


def test_the_notebook_runs_in_a_kernel_with_a_slice(pytorch_site: Path, tmp_path: Path) -> None:
    done = tmp_path / "done.ipynb"
    command = [sys.executable, "-m", "gpukernel.cli", "demo", "--no-browser", "--keep", str(done)]
    environment = {**os.environ, "PYTHONPATH": str(pytorch_site)}
    subprocess.run([*command, "--notebook", str(NOTEBOOK)], env=environment, check=True, timeout=900)
    text = done.read_text()
    assert "Tesla V100-SXM2-32GB (simulated): 655 MiB in this slice" in text
    assert text.count("PyTorch's CUDA operators are computed by its CPU kernels") == 1
    assert "OutOfMemoryError" in text
    assert "but 163 MiB are there" in text


def test_two_programs_share_a_device(on_pytorch: Run) -> None:
    with ThreadPoolExecutor() as threads:
        both = list(
            threads.map(lambda share: on_pytorch("pytorch_training", "cuda", share=share), ("0.2", "0.3"))
        )
    first, second = (json.loads(one.splitlines()[-1])["transformer"][0] for one in both)
    assert first == pytest.approx(second, abs=1e-3)


def test_expandable_segments_are_used_within_the_cap_and_change_no_value(on_pytorch: Run) -> None:
    """The program says of every segment whether it is one, takes the slice to its end, and gives everything back."""
    found = {}
    for wanted in (True, False):
        setting = f"expandable_segments:{wanted}"
        text = on_pytorch("pytorch_expandable", share="0.02", PYTORCH_ALLOC_CONF=setting)
        found[wanted] = json.loads(text.splitlines()[-1])
        assert found[wanted]["expandable"] is wanted
        (taken,) = found[wanted]["results"].pop("out of memory")
        assert 0.8 < taken <= 1
    assert found[True]["results"] == found[False]["results"]
    losses = found[True]["results"]["losses"]
    assert losses[9] < 0.8 * losses[0]
    assert found[True]["results"]["again"] == losses
