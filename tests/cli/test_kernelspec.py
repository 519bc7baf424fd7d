"""“gpukernel kernelspec”: kernels on slices, installed, listed and removed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpukernel.cli.kernelspec import app
from gpukernel.cli.terminal.output import Problem
from gpukernel.common.model import SliceRequest
from gpukernel.jupyter.slice_size import request_from


@pytest.fixture
def jupyter_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A prefix that Jupyter searches, and no other data directory of the user."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "share" / "jupyter"))
    return tmp_path


def test_install_list_and_remove(jupyter_home: Path) -> None:
    run = CliRunner()
    assert run.invoke(app, ["install", "--user", "--share", "0.3", "--model", "A100"]).exit_code == 0
    kernel = jupyter_home / "share/jupyter/kernels/gpu-a100-0.3"
    content = json.loads((kernel / "kernel.json").read_text())
    assert content["display_name"] == "A100 × 0.3"
    assert content["argv"][0] == sys.executable
    assert content["metadata"]["kernel_provisioner"] == {
        "provisioner_name": "gpu-slice",
        "config": {"share": 0.3, "model": "A100"},
    }
    listed = json.loads(run.invoke(app, ["list", "--json"]).stdout)
    assert [row["directory"] for row in listed if row["name"] == "gpu-a100-0.3"] == [str(kernel)]
    assert run.invoke(app, ["remove", "gpu-a100-0.3"]).exit_code == 0
    assert not kernel.exists()


@pytest.mark.parametrize("share", ["0", "1.5", "-0.1", "nan"])
def test_a_share_that_cannot_be_is_refused_by_a_sentence(share: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["install", "--prefix", str(tmp_path), "--share", share])
    assert isinstance(result.exception, Problem)
    assert result.exception.status == 2
    assert str(result.exception).startswith("A share lies between")
    assert not list(tmp_path.iterdir())


def test_remove_never_touches_other_kernels(jupyter_home: Path) -> None:
    other = jupyter_home / "share/jupyter/kernels/other"
    other.mkdir(parents=True)
    (other / "kernel.json").write_text('{"argv": ["true"], "display_name": "Other", "language": "x"}')
    refused = CliRunner().invoke(app, ["remove", "other"]).exception
    assert isinstance(refused, Problem)
    assert refused.status == 5
    assert other.exists()


def test_a_kernelspec_may_ask_in_a_later_class(jupyter_home: Path) -> None:
    run = CliRunner()
    assert run.invoke(app, ["install", "--user", "--share", "0.3", "--class", "batch"]).exit_code == 0
    path = jupyter_home / "share/jupyter/kernels/gpu-v100-0.3-batch/kernel.json"
    content = json.loads(path.read_text())
    assert content["display_name"] == "V100 × 0.3, batch"
    config = content["metadata"]["kernel_provisioner"]["config"]
    assert config == {"share": 0.3, "model": "V100", "priority": "batch"}
    refused = run.invoke(app, ["install", "--user", "--share", "0.3", "--class", "urgent"]).exception
    assert isinstance(refused, Problem)
    assert str(refused) == "A class is interactive, batch or scavenger; “urgent” is none."
    # Another size of a kernel that runs stays in its class.
    again = request_from({"share": 0.5}, SliceRequest(0.3, priority="batch"))
    assert (again.share, again.priority) == (0.5, "batch")


def test_a_kernelspec_may_ask_on_first_use(jupyter_home: Path) -> None:
    arguments = ["install", "--user", "--share", "0.3", "--on-first-use", "--wait", "5"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    content = json.loads((jupyter_home / "share/jupyter/kernels/gpu-v100-0.3/kernel.json").read_text())
    config = content["metadata"]["kernel_provisioner"]["config"]
    assert config == {"share": 0.3, "model": "V100", "wait_seconds": 5.0, "acquire": "on_first_use"}
