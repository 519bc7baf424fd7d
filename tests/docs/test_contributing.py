"""The promises of CONTRIBUTING.md to somebody who has just cloned."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_the_hooks_need_no_activated_environment() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    programs = {hook["id"]: hook["entry"].split()[0] for repo in config["repos"] for hook in repo["hooks"]}
    assert {name: program for name, program in programs.items() if not program.startswith(".venv/bin/")} == {
        "quick": "make"
    }
