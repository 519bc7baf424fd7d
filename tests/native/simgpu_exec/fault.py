"""Runs kernels that fail, each in a process of its own: an error is sticky, as on a GPU.  Accesses are checked to the byte.

python fault.py FILE.ptx THREADS BUFFER_BYTES [BLOCKS]  prints the CUresult of what failed, or 0
python fault.py FOLDER BUFFER_BYTES BUFFERS [BLOCKS]    runs each FOLDER/NAME.THREADS.ptx and writes what it printed to NAME.THREADS.txt
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3])]
from conftest import Device, LaunchFailed  # noqa: E402

from tests.real_gpu import cuda_library  # noqa: E402


def run(path: Path, threads: int, size: int, count: int, blocks: int = 1) -> None:
    try:
        Device(str(cuda_library())).run(
            path.read_text(), "k", blocks, threads, *[np.zeros(size, np.uint8)] * count
        )
        print(0, flush=True)
    except LaunchFailed as failed:
        print(failed.code, flush=True)


def run_apart(path: Path, size: int, count: int, blocks: int = 1) -> None:
    if child := os.fork():
        os.waitpid(child, 0)
        return
    out = os.open(path.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    run(path, int(path.suffixes[-2][1:]), size, count, blocks)
    os._exit(0)


if __name__ == "__main__":
    os.environ["GPUKERNEL_MEMCHECK"] = "strict"
    path, *numbers = Path(sys.argv[1]), *map(int, sys.argv[2:])
    if path.is_dir():
        for each in sorted(path.glob("*.ptx")):
            run_apart(each, *numbers)
    else:
        threads, size, *blocks = numbers
        run(path, threads, size, bool(size), *blocks)
