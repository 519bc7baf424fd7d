"""The version is written in ``pyproject.toml`` alone; what else must name one agrees with it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import gpukernel

ROOT = Path(__file__).parents[1]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_package_and_the_command_say_it() -> None:
    assert gpukernel.__version__ == VERSION, "install the package again: make .venv/.dev"
    said = subprocess.run(
        [sys.executable, "-m", "gpukernel.cli", "--version"], capture_output=True, text=True
    )
    assert said.stdout.strip() == f"gpukernel {VERSION}"


def test_a_name_that_is_not_there_is_the_usual_error() -> None:
    assert not hasattr(gpukernel, "__nothing__")


def test_the_extension_of_jupyterlab_has_it() -> None:
    for name in ("package.json", "built/package.json"):
        assert json.loads((ROOT / "labextension" / name).read_text())["version"] == VERSION, name
    locked = json.loads((ROOT / "labextension" / "package-lock.json").read_text())
    assert locked["version"] == locked["packages"][""]["version"] == VERSION


def test_the_changelog_tells_of_it() -> None:
    releases = re.findall(r"^## \[(\d[\d.]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == VERSION


def test_nobody_writes_it_a_second_time() -> None:
    found = subprocess.run(
        ["git", "grep", "-nE", r"__version__ *= *[\"']", "--", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert found.stdout == ""
