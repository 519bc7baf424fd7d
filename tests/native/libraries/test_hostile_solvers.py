"""Calls of cuFFT, cuSOLVER, cuSPARSE and cuRAND that would take the worker, its memory or its processor."""

from __future__ import annotations

import pytest

from tests.native.libraries.conftest import NEEDS_OPENBLAS
from tests.native.libraries.test_hostile_programs import said
from tests.remoting.conftest import WITHOUT_SANITIZER

pytestmark = NEEDS_OPENBLAS

ILLEGAL, LACKING, REFUSED = (
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_NOT_SUPPORTED",
    "CUDA_ERROR_INVALID_VALUE",
)


@WITHOUT_SANITIZER
@pytest.mark.parametrize(("index", "base"), [(16, 0), (-1, 0), (0, 1), (2**31 - 1, 0)])
def test_an_index_that_leads_out_of_a_matrix_is_a_fault_of_the_program(index: int, base: int) -> None:
    first, after = said(
        f"""
from tests.native.libraries.cusparse_cases import *
from tests.native.libraries.cusparse_cases import described, library, vector, long
s = library()
a = np.eye(16, dtype=np.float32)
m = described(s, a, "Csr")
columns = Array(np.full(16, {index}, np.int32))
rows, values = Array((np.arange(17) + {base}).astype(np.int32)), Array(np.ones(16, np.float32))
matrix = ctypes.c_void_p()
s.library.cusparseCreateCsr(ctypes.byref(matrix), long(16), long(16), long(16), rows.pointer, columns.pointer, values.pointer, 2, 2, {base}, 0)
x, y = vector(s, Array(np.ones(16, np.float32))), vector(s, Array(np.zeros(16, np.float32)))
print(s("cusparseSpMV", 0, scalar(1, np.float32), matrix, x, scalar(0, np.float32), y, 0, 0, None), d.cuCtxSynchronize()[0].name)
"""
    )
    assert f"0 {ILLEGAL}" in first, first
    assert "the indices" in first
    assert after == "True"


@WITHOUT_SANITIZER
def test_pivots_of_the_programs_choice_lead_nowhere() -> None:
    first, after = said(
        """
s = Library("libcusolver.so.11", "cusolverDnCreate")
a, b, info = Array(np.eye(8)), Array(np.ones((8, 1))), Array(np.zeros(1, np.int32))
pivots = Array(np.full(8, 10**6, np.int32))
s.done("cusolverDnDgetrs", 0, 8, 1, a.pointer, 8, pivots.pointer, b.pointer, 8, info.pointer)
print(d.cuCtxSynchronize()[0].name)
"""
    )
    assert ILLEGAL in first, first
    assert "a row that a pivot names" in first
    assert after == "True"


def test_what_nothing_could_pause_is_refused() -> None:
    first, after = said(
        """
s = Library("libcusolver.so.11", "cusolverDnCreate")
a = Array(np.zeros(1))
for n in (2**13, 2**30):
    s("cusolverDnDsyevd", 1, 0, n, a.pointer, n, a.pointer, a.pointer, 16, a.pointer)
    print(d.cuCtxSynchronize()[0].name)
f, plan = ctypes.CDLL("libcufft.so.11"), ctypes.c_int()
print(f.cufftPlan1d(ctypes.byref(plan), 2**22 + 1, 0x29, 1), f.cufftExecC2C(plan, a.pointer, a.pointer, -1), d.cuCtxSynchronize()[0].name)
print(f.cufftPlan3d(ctypes.byref(plan), 2**30, 2**30, 2, 0x29))
"""
    )
    lines = first.split("\n")
    assert lines[:4] == [LACKING, LACKING, f"0 0 {LACKING}", "8"], first
    assert "more than 4194304 points" in first or "cufftXtExec was refused" in first
    assert after == "True"


@WITHOUT_SANITIZER
def test_a_transform_beyond_its_memory_is_a_fault_that_names_it() -> None:
    first, after = said(
        """
f, plan, a = ctypes.CDLL("libcufft.so.11"), ctypes.c_int(), Array(np.zeros(64, np.complex64))
print(f.cufftPlan1d(ctypes.byref(plan), 4096, 0x29, 5000), f.cufftExecC2C(plan, a.pointer, a.pointer, -1), d.cuCtxSynchronize()[0].name)
"""
    )
    assert f"0 0 {ILLEGAL}" in first, first
    assert "cufftExec reaches beyond its memory: the input" in first
    assert after == "True"


@WITHOUT_SANITIZER
@pytest.mark.parametrize("seed", range(3))
def test_words_that_no_library_sends_do_no_harm(seed: int) -> None:
    first, after = said(
        f"""
import random
random.seed({seed})
class Call(ctypes.Structure):
    _fields_ = [('library', ctypes.c_uint32), ('function', ctypes.c_uint32), ('stream', ctypes.c_void_p), ('arguments', ctypes.c_void_p), ('words', ctypes.c_size_t)]
class Port(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ('queue', 'ask', 'name', 'device')]
cuda = ctypes.CDLL('libcuda.so.1')
cuda.gpukernel_library_port.restype = ctypes.POINTER(Port)
port = cuda.gpukernel_library_port(1).contents
queue = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Call), ctypes.POINTER(ctypes.c_bool))(port.queue)
fresh = ctypes.CFUNCTYPE(ctypes.c_uint64)(port.name)
room = Array(np.zeros(2**22, np.int32))
def send(library, function, words):
    data = (ctypes.c_uint64 * max(len(words), 1))(*[w & (2**64 - 1) for w in words])
    queue(ctypes.byref(Call(library, function, None, ctypes.addressof(data), len(words))), ctypes.byref(ctypes.c_bool()))
    return d.cuCtxSynchronize()[0].name
def word():
    kind = random.random()
    if kind < 0.45: return random.randrange(10)
    if kind < 0.85: return room.address + random.choice((0, 8, 4096, 2**20))
    return random.choice((2**64 - 1, 2**31, 2**40, 2**46, random.getrandbits(64), 64, 1000))
plain = [1, 8, 1, 1, 1] + [1, 1, 1, 1, 8] * 2 + [1, 4, 4, 4]  # a plan of eight points
sent = 0
for library in (4 | 11 << 16, 5 | 11 << 16, 6 | 12 << 16, 7 | 10 << 16):
    for turn in range(60):
        name = fresh()
        shape = [random.choice((w, w, w, w, word())) for w in plain] if library & 15 == 4 else [161] if library & 15 == 7 else []
        send(library, 0xfff0, [name, *shape])
        for _ in range(3):
            function = random.choice((random.randrange(150), 0x1000 + random.randrange(14), random.randrange(8) if library & 15 == 7 else 0 if library & 15 == 4 else 0x1002))
            words = [word() for _ in range(random.randrange(2, 60))]
            if 'ILLEGAL' in send(library, function, [name, 0, *words] if library & 15 != 4 else [name, *words]):
                break
            sent += 1
        send(library, 0xfff1, [name])
        if d.cuCtxSynchronize()[0].name == 'CUDA_ERROR_ILLEGAL_ADDRESS': break
print(sent > 0)
"""
    )
    assert "True" in first.split("\n"), first[-2000:]
    assert after == "True"
