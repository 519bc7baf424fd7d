"""The hour of the page “Kubernetes”: its files and commands, in their order, and what its administrator sees of the cluster."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.deploy.helm.chart import ROOT
from tests.e2e.machines import Shell

__all__ = ["IN_POOL", "asked", "steps"]

PAGE = ROOT / "docs" / "kubernetes.md"
IN_POOL = "kubectl -n gpukernel exec gpukernel-pool-0 -c pool --"


def steps() -> list[tuple[str, str]]:
    """Return the hour's files to write, as a name and a text, and commands to type, with no name; in their order."""
    _, _, rest = PAGE.read_text().partition("## An administrator's hour\n")
    hour, _, _ = rest.partition("\n## ")
    found: list[tuple[str, str]] = []
    for before, language, block in re.findall(r"([^\n]*)\n\n```(\w+)\n(.*?)```", hour, re.DOTALL):
        if language == "console":
            assert all(line.startswith("$ ") for line in block.splitlines())
            found += [("", line[2:]) for line in block.splitlines()]
        else:
            named = re.search(r"Write `([^`]+)`", before)
            assert named, before
            found.append((named[1], block))
    return found


def asked(shell: Shell, words: str) -> Any:
    """Return what ``kubectl`` says in JSON."""
    return json.loads(shell.run(f"{words} -o json"))
