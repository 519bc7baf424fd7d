"""Runs one kernel of ``faults.cu``, two blocks of 32 threads, and prints how the wait for it ended."""

from __future__ import annotations

import sys

import numpy as np
from cuda.bindings import driver

from tests.kernels.gpu import Gpu

if __name__ == "__main__":
    name = sys.argv[1]
    gpu = Gpu("compute_70", "--generate-line-info")
    data = gpu.zeros(16, np.int32)
    arguments = [data, np.float32(1)][: 2 if name.startswith("_Z") else 1]
    gpu.launch("faults.cu", name, 2, 32, *arguments)
    print(hex(data.address), flush=True)
    print(driver.cuCtxSynchronize()[0].name)
