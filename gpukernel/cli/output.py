"""How commands speak: tables for people, JSON for programs, one sentence for trouble."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterable
from typing import Any

__all__ = ["Problem", "age", "bar", "complain", "print_json", "size"]


class Problem(Exception):
    """A command cannot go on; the text is the sentence for the person, `status` the exit status."""

    def __init__(self, sentence: str, status: int = 1) -> None:
        super().__init__(sentence)
        self.status = status


def complain(sentence: str) -> None:
    """One sentence on standard error."""
    print(f"gpukernel: {sentence}", file=sys.stderr)


def print_json(objects: Iterable[Any]) -> None:
    """A list of objects; dataclasses become objects, secrets stay away."""

    def plain(value: Any) -> Any:
        data = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else dict(value)  # type: ignore[arg-type]
        data.pop("secret", None)
        return data

    print(json.dumps([plain(value) for value in objects], indent=2))


def size(count: int) -> str:
    """Bytes as people read them: ``655 MiB``, ``32.0 GiB``."""
    return f"{count / 2**30:.1f} GiB" if count >= 10 * 2**30 else f"{count / 2**20:.0f} MiB"


def age(since: float) -> str:
    """Seconds since the epoch as a short span: ``4 s``, ``12 min``, ``3.5 h``."""
    seconds = max(time.time() - since, 0)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def bar(part: int, whole: int, width: int = 10) -> str:
    """A bar of `width` characters, `part` of `whole` filled."""
    filled = round(width * part / whole) if whole else 0
    if part and not filled:
        filled = 1
    return "█" * filled + "░" * (width - filled)
