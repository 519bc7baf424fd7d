"""Runs one kernel of ``textures.cu`` that goes wrong, a warp on a surface of 6 x 4 numbers, and prints how the wait for it ended."""

from __future__ import annotations

import sys

import numpy as np
from cuda.bindings import driver

from tests.kernels.gpu import Gpu
from tests.kernels.textures import FILE, SURFACE, array_of, resource_of, surface, texture

if __name__ == "__main__":
    gpu = Gpu("compute_70", "--generate-line-info")
    array = array_of(np.zeros((4, 6, 1), np.int32), 2, SURFACE)
    gpu.launch(FILE, sys.argv[1], 1, 32, texture(resource_of(array)), surface(array))
    print(driver.cuCtxSynchronize()[0].name)
