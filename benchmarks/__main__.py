"""The run of every benchmark, which writes docs/benchmarks.md; ``python -m benchmarks data_path`` prints one only."""

from __future__ import annotations

import asyncio
import datetime
import importlib
import os
import sys
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
REMARKS = "\n## What stands out\n"
"""From here on the page is people's, and stays."""
ALL = (
    "kernels",
    "data_path",
    "latency",
    "direct",
    "simulated_gpu",
    "simulated_kernels",
    "fma",
    "tensor_cores",
    "frameworks",
    "pool",
    "pools",
    "pauses",
    "hub",
)
BY_NAME = ("slurm", "containers")
"""Those that need what not everybody has, and are printed when they are named."""


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown processor"


def main(names: list[str]) -> None:
    if unknown := [name for name in names if name not in (*ALL, *BY_NAME)]:
        found = "" if unknown[0] in ("-h", "--help") else f"There is no benchmark {unknown[0]!r}.  "
        sys.exit(
            f"{found}Usage: python -m benchmarks [NAME …], of {', '.join((*ALL, *BY_NAME))}; without a name all but the last two are run and written."
        )
    sections = []
    for name in names or ALL:
        print(f"benchmarks: {name} …", file=sys.stderr, flush=True)
        for table in asyncio.run(importlib.import_module(f"benchmarks.{name}").measure()):
            sections.append(table.markdown())
    text = "\n".join(sections)
    if names:
        print(text)
        return
    remarks = PAGE.read_text().partition(REMARKS)[1:] if PAGE.exists() else ()
    PAGE.write_text(
        "# Benchmarks\n\n"
        f"Made by `make bench` on {datetime.date.today().isoformat()}: {os.cpu_count()} cores of an {_processor()}, simulated GPU. "
        "Every figure stands beside a baseline from the same run, since machines are noisy; read the ratios.\n\n"
        + text
        + "".join(remarks)
    )
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main(sys.argv[1:])
