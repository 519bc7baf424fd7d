"""``--filter`` of ``leases``: which leases are shown."""

from __future__ import annotations

import re

from gpukernel.cli.terminal.output import USAGE, Problem
from gpukernel.common.model import DECIDERS

__all__ = ["lease_conditions"]

_CONDITION = re.compile(r"\s*(key|decided_by)\s*=\s*(\S+)\s*")


def lease_conditions(text: str) -> dict[str, str]:
    """Return the conditions of a filter, such as ``key=12 and decided_by=slurm``; a `Problem` where it is not understood."""
    found: dict[str, str] = {}
    for part in re.split(r"\s+and\s+", text) if text.strip() else ():
        match = _CONDITION.fullmatch(part)
        if match is None or match[1] in found:
            raise Problem(
                f"“{part[:40]}” is no filter; write key=KEY or decided_by=NAME, each once, with “and” between.",
                USAGE,
            )
        if match[1] == "decided_by" and match[2] not in DECIDERS:
            raise Problem(
                f"“{match[2][:40]}” decides over nothing; it is one of {', '.join(DECIDERS)}.", USAGE
            )
        found[match[1]] = match[2]
    return found
