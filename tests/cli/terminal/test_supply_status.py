"""``gpukernel slurm status`` in each format, of what a supply has published."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PUBLISHED = {
    "at": 1_000.0,
    "jobs": [
        {
            "job": "4711", "tag": "a", "state": "serves", "slurm_state": "RUNNING", "reason": "", "server": "gpu-4711",
            "node": "n1", "leases": 2, "ends": 0,
        }
    ],
    "log": [{"at": 900.0, "sentence": "Job 4711 was asked for, for 8 h."}],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "state.json").write_text(json.dumps(PUBLISHED))
    return tmp_path


@pytest.mark.parametrize("form", ["table", "wide", "json", "yaml", "name"])
def test_a_supply_s_jobs_come_in_the_format_that_was_asked_for(form: str, folder: Path) -> None:
    words = ["slurm", "status", "gpu", "--folder", str(folder), "-o", form]
    done = subprocess.run(
        [sys.executable, "-m", "gpukernel.cli", *words], capture_output=True, text=True, check=True
    )
    if form in ("json", "yaml"):
        (found,) = json.loads(done.stdout) if form == "json" else yaml.safe_load(done.stdout)
        assert found == {**PUBLISHED, "running": False}
        assert done.stdout.startswith("[" if form == "json" else "- ")
    elif form == "name":
        assert done.stdout == "4711\n"
    else:
        assert done.stdout.splitlines()[0].startswith("Job")
        assert "Job 4711 was asked for" in done.stdout
        assert "does not run" in done.stdout
