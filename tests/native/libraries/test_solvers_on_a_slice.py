"""Calls of cuFFT, cuSOLVER, cuSPARSE and cuRAND wait for nothing, are nodes of graphs, and say what a server lacks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.native.libraries.conftest import NEEDS_OPENBLAS, ROOT, in_one_process
from tests.native.libraries.test_on_a_slice import on_a_slice

pytestmark = NEEDS_OPENBLAS


def test_captured_calls_are_nodes_that_each_launch_repeats() -> None:
    done = on_a_slice(
        """
from tests.native.libraries import cufft_cases, cusparse_cases, curand_cases
from tests.native.libraries.cusparse_cases import described, vector
stream = ok(d.cuStreamCreate(1)); at = ctypes.c_void_p(int(stream))
f = cufft_cases.library
s, p = Library("libcusolver.so.11", "cusolverDnCreate"), cusparse_cases.library()
g = curand_cases.Generator(161, 7)
s.done("cusolverDnSetStream", at); p.done("cusparseSetStream", at); g.done("curandSetStream", at)
plan = cufft_cases.plan("cufftPlan1d", 8, 0x29, 1); f.cufftSetStream(plan, at)
x = cufft_cases.placed(np.arange(8).astype(np.complex64))
a, info = Array(np.eye(4) * 16), Array(np.zeros(1, np.int32))
matrix, y = np.diag(np.arange(6)).astype(np.float32), Array(np.ones(6, np.float32))
given, used = described(p, matrix, "Csr"), vector(p, y)
numbers_of = Array(np.zeros(16, np.float32))
ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
statuses = [
    f.cufftExecC2C(plan, x.pointer, x.pointer, -1),  # the plan is made while the stream captures
    s("cusolverDnDpotrf", 0, 4, a.pointer, 4, a.pointer, 16, info.pointer),
    p("cusparseSpMV", 0, scalar(2, np.float32), given, used, scalar(0, np.float32), used, 0, 0, None),
    g("curandGenerateUniform", numbers_of.pointer, ctypes.c_size_t(16)),
]
graph = ok(d.cuStreamEndCapture(stream))
print(statuses, int(ok(d.cuGraphGetNodes(graph, 0))[-1]), (y.get() == 1).all())
run = ok(d.cuGraphInstantiate(graph, 0))
f.cufftDestroy(plan); s.library.cusolverDnDestroy(s.handle)  # the graph outlives them
found = []
for _ in range(2):
    ok(d.cuGraphLaunch(run, stream)); ok(d.cuStreamSynchronize(stream)); found.append(numbers_of.get())
print(np.allclose(x.get(), np.fft.fft(np.fft.fft(np.arange(8))), atol=1e-4), a.get()[0, 0], y.get().tolist(), not np.array_equal(*found))
"""
    )
    assert done.stdout.splitlines() == [
        "[0, 0, 0, 0] 4 True",
        "True 2.0 [0.0, 4.0, 16.0, 36.0, 64.0, 100.0] True",
    ], done.stdout + done.stderr


def test_decompositions_and_transforms_are_queued() -> None:
    done = on_a_slice(
        """
from tests.native.libraries import cufft_cases
f, s = cufft_cases.library, Library("libcusolver.so.11", "cusolverDnCreate")
n = 700
a, pivots, info = Array(numbers((n, n), np.float32)), Array(np.zeros(n, np.int32)), Array(np.zeros(1, np.int32))
x = cufft_cases.placed(np.ones(2**18, np.complex64))
plan, size = cufft_cases.plan("cufftPlan1d", 2**18, 0x29, 1), ctypes.c_int()
def step():
    s.done("cusolverDnSgetrf_bufferSize", n, n, a.pointer, n, ctypes.byref(size))
    s.done("cusolverDnSgetrf", n, n, a.pointer, n, a.pointer, pivots.pointer, info.pointer)
    assert f.cufftExecC2C(plan, x.pointer, x.pointer, -1) == 0
step(); ok(d.cuCtxSynchronize())
start = time.perf_counter()
for _ in range(20): step()
queued = time.perf_counter() - start
ok(d.cuCtxSynchronize()); whole = time.perf_counter() - start
print(queued < whole / 4, queued, whole)
""",
        memory_mib=512,
    )
    assert done.stdout.startswith("True"), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("openblas", "sentence"),
    [
        ("/nowhere/libopenblas.so", "need OpenBLAS on its server: pip install 'gpukernel[libraries]'"),
        ("libm.so.6", "the OpenBLAS on this simulated GPU's server has no "),
    ],
)
@pytest.mark.parametrize("library", ["cublas", "cusolver", "cusparse"])
def test_an_openblas_that_lacks_functions_is_an_error_of_the_handle(
    library: str, openblas: str, sentence: str
) -> None:
    soname, create = {
        "cublas": ("libcublas.so.12", "cublasCreate_v2"),
        "cusolver": ("libcusolver.so.11", "cusolverDnCreate"),
        "cusparse": ("libcusparse.so.12", "cusparseCreate"),
    }[library]
    code = f"""
import ctypes
from cuda.bindings import driver as d
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
handle = ctypes.c_void_p()
print(ctypes.CDLL({soname!r}).{create}(ctypes.byref(handle)), handle.value)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=in_one_process(GPUKERNEL_OPENBLAS=openblas),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() == ["1", "None"], done.stderr
    assert sentence in done.stderr
