"""The output of commands: tables for people, JSON for programs, one sentence for trouble."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import time
from collections.abc import Iterable
from typing import Any

from gpukernel.common.logs import one_line

__all__ = ["Problem", "age", "bar", "complain", "estimate", "print_json", "seconds", "size"]


class Problem(Exception):
    """An error with which a command ends; the text is the sentence for the person, `status` the exit status."""

    def __init__(self, sentence: str, status: int = 1) -> None:
        super().__init__(sentence)
        self.status = status


def complain(sentence: str) -> None:
    """Print one sentence on standard error; what is in it of others' names and reasons cannot command the terminal."""
    print("\n".join(map(one_line, f"gpukernel: {sentence}".splitlines())), file=sys.stderr)


def print_json(objects: Iterable[Any]) -> None:
    """Print a list of objects as JSON; dataclasses become objects, secrets stay away."""

    def plain(value: Any) -> Any:
        data = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else dict(value)  # type: ignore[arg-type]
        data.pop("secret", None)
        return data

    print(json.dumps([plain(value) for value in objects], indent=2))


def size(count: int) -> str:
    """Return bytes as people read them: ``655 MiB``, ``32.0 GiB``."""
    return f"{count / 2**30:.1f} GiB" if count >= 10 * 2**30 else f"{count / 2**20:.0f} MiB"


def age(since: float) -> str:
    """Return the time since `since`, in seconds since the epoch, as a short span: ``4 s``, ``12 min``, ``3.5 h``."""
    seconds = max(time.time() - since, 0)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def estimate(seconds: float) -> str:
    """Return the pool's promise to somebody who waits, as the end of a sentence; nothing where it can promise nothing."""
    if seconds < 0:
        return ""
    return (
        f" It starts within {seconds:.0f} s."
        if seconds < 100
        else f" It starts within {seconds / 60:.0f} min."
    )


_TIME = re.compile(r"(-1|\d+(?:\.\d+)?) ?(s|m|min|h|d)?")
_SECONDS = {None: 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    """Return a time on the command line in seconds: ``90``, ``90s``, ``10m``, ``2h``, ``1d``; ``-1`` stays what it is.

    Raises
    ------
    Problem
        When it is none.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise Problem(f"“{text[:40]}” is no time; write seconds, or 90s, 10m, 2h.", 2)
    return float(match[1]) * _SECONDS[match[2]]


def bar(part: int, whole: int, width: int = 10) -> str:
    """Return a bar of `width` characters, `part` of `whole` filled."""
    filled = round(width * part / whole) if whole else 0
    if part and not filled:
        filled = 1
    return "█" * filled + "░" * (width - filled)
