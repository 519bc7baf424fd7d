"""HeCBench: its CUDA programs as their makefiles build them, for sizes that a simulated GPU does in seconds.

Not in the list: what needs data files or minutes, or checks its results for its own size alone (``crc64``).
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

# Program and arguments; it ends with an error, or says FAIL, where its results are not those of the host.
PROGRAMS = {
    "adam": "1000 20 2",
    "all-pairs-distance": "1",
    "aobench": "1",
    "attention": "256 64 0 2",
    "bilateral": "64 48 0.5 0.5 1",
    "bitonic-sort": "8 2",
    "bsearch": "4096 1",
    "collision": "1",
    "colorwheel": "10 64 1",
    "conversion": "4096 1",
    "dct8x8": "64 64 1",
    "epistasis": "16 256 1",
    "floydwarshall": "64 1 16",
    "gaussian": "-q -t -s 64",
    "iso2dfd": "64 64 2",
    "mandelbrot": "1",
    "matrix-rotate": "64 1",
    "merge": "1000 1",
    "murmurhash3": "1000 1",
    "nw": "64 10 1",
    "pathfinder": "1000 50 5",
    "popcount": "4096 1",
    "reverse": "1",
    "scan2": "1 4096 256",
    "softmax": "64 128 0 1",
    "stencil1d": "65536 1",
    "threadfence": "1 65536",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_hecbench(name: str, tmp_path: Path) -> None:
    source = Path(os.environ["GPUKERNEL_SUITES_PROGRAMS"], "src", f"{name}-cuda")
    options = ["ARCH=compute_80", "CC=nvcc -cudart shared -w"]
    built = subprocess.run(
        ["make", "-s", "-B", *options], cwd=source, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr[-2000:]
    done = subprocess.run(
        ["./main", *PROGRAMS[name].split()],
        cwd=source,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-2000:]
    assert not re.search(r"\bFAIL(ED)?\b|^error|mismatch", said, re.IGNORECASE | re.MULTILINE), said[-2000:]
