"""Tables for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Table:
    """A table with one figure a row, each beside its own baseline from the same run."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: str = ""

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", "| " + " | ".join(self.columns) + " |"]
        lines.append("| " + " | ".join(["---"] + ["---:"] * (len(self.columns) - 1)) + " |")
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        if self.notes:
            lines += ["", self.notes]
        return "\n".join(lines) + "\n"


def microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} µs"


def gigabytes_per_second(rate: float) -> str:
    return f"{rate / 1e9:.2f} GB/s"


def mebibytes(count: float) -> str:
    return f"{count / 2**20:.1f} MiB"


def ratio(value: float, baseline: float) -> str:
    return f"{value / baseline:.2f}"
