"""Runs a kernel that fails, in a process of its own: its error is sticky, as on a GPU.

python fault.py FILE.ptx THREADS BUFFER_BYTES [BUFFERS]      prints the CUresult of what failed, or 0
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from conftest import Device, LaunchFailed

from gpukernel.native import simgpu_library

if __name__ == "__main__":
    path, threads, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    count = int(sys.argv[4]) if len(sys.argv) > 4 else bool(size)
    try:
        Device(str(simgpu_library())).run(
            Path(path).read_text(), "k", 1, threads, *[np.zeros(size, np.uint8)] * count
        )
        print(0)
    except LaunchFailed as failed:
        print(failed.code)
