"""Numba kernels through the simulated driver library alone, in a fresh process as a user would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from gpukernel.native import simgpu_library

PROLOGUE = """
import math, warnings
import numpy as np
from numba import cuda, float32, float64
warnings.simplefilter("ignore")
rng = np.random.default_rng(1)
"""
PROGRAMS = {
    "element-wise": """
@cuda.jit
def k(a, b, o):
    i = cuda.grid(1)
    if i < o.size: o[i] = a[i] + b[i]
a, b = rng.random((2, 1000)); o = np.zeros(1000); k[8, 128](a, b, o); assert (o == a + b).all()
""",
    "reduction": """
@cuda.reduce
def total(a, b): return a + b
a = np.arange(1000.0); assert total(a) == a.sum()
""",
    "shared and atomic": """
@cuda.jit
def k(a, o, m):
    i = cuda.grid(1); s = cuda.shared.array(1, float64)
    if cuda.threadIdx.x == 0: s[0] = 0
    cuda.syncthreads(); cuda.atomic.add(s, 0, a[i]); cuda.atomic.max(m, 0, a[i]); cuda.syncthreads()
    if cuda.threadIdx.x == 0: cuda.atomic.add(o, 0, s[0])
a = rng.random(512); o = np.zeros(1); m = np.zeros(1); k[4, 128](a, o, m); assert np.isclose(o[0], a.sum()) and m[0] == a.max()
""",
    "mathematics": """
@cuda.jit
def k(a, o):
    i = cuda.grid(1)
    o[0, i] = math.sin(a[i]); o[1, i] = math.exp(a[i]); o[2, i] = math.log(a[i]); o[3, i] = math.erf(a[i]); o[4, i] = a[i] ** 2.5
    o[5, i] = math.atan2(a[i], 3.0); o[6, i] = math.gamma(a[i])
a = rng.uniform(0.1, 0.9, 32); o = np.zeros((7, 32)); k[1, 32](a, o)
e = [[math.sin(x), math.exp(x), math.log(x), math.erf(x), x**2.5, math.atan2(x, 3.0), math.gamma(x)] for x in a]
assert np.allclose(o.T, e, rtol=1e-13)
""",
    "half precision": """
@cuda.jit
def k(a, o):
    i = cuda.grid(1); o[i] = a[i] * a[i] + a[i]
a = rng.uniform(-3, 3, 32).astype(np.float16); o = np.zeros_like(a); k[1, 32](a, o); assert np.allclose(o, a * a + a, rtol=2e-3, atol=1e-2)
""",
    "shuffle and local array": """
@cuda.jit
def k(a, o):
    i = cuda.grid(1); l = cuda.local.array(4, float64)
    for j in range(4): l[j] = a[i] * j
    v = l[i & 3]; d = 16
    while d > 0:
        v += cuda.shfl_down_sync(0xffffffff, v, d); d //= 2
    o[i] = v
a = rng.random(32); o = np.zeros(32); k[1, 32](a, o); assert np.isclose(o[0], (a * (np.arange(32) & 3)).sum())
""",
    "all blocks meet": """
@cuda.jit
def k(a, s, o):
    g = cuda.cg.this_grid(); i = cuda.grid(1)
    cuda.atomic.add(s, 0, a[i]); g.sync()
    o[i] = a[i] / s[0]; g.sync()
    if i == 0: s[0] = -1
    g.sync(); o[i] += s[0]
a = np.arange(1.0, 321); s = np.zeros(1); o = np.zeros(320); k[5, 64](a, s, o); assert np.allclose(o, a / a.sum() - 1)
""",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_numba_program_agrees_with_numpy(program: str, device: Any) -> None:
    pytest.importorskip("numba.cuda")
    env = {**os.environ, "LD_LIBRARY_PATH": str(simgpu_library().parent), "GPUKERNEL_SIMGPU": "v100"}
    child = subprocess.run(
        [sys.executable, "-c", PROLOGUE + PROGRAMS[program]],
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert child.returncode == 0, child.stderr
