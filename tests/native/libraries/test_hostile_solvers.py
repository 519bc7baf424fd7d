"""Calls of cuFFT, cuSOLVER, cuSPARSE and cuRAND that would take the worker, its memory or its processor."""

from __future__ import annotations

import ast
import asyncio
import collections
import importlib
import sys
from pathlib import Path

import pytest

from tests.native.libraries.conftest import NEEDS_OPENBLAS
from tests.native.libraries.test_hostile_programs import AFTERWARDS, said
from tests.native.libraries.test_on_a_slice import run_on
from tests.remoting.conftest import WITHOUT_SANITIZER, worker

pytestmark = NEEDS_OPENBLAS

NATIVE = Path(__file__).parents[3] / "gpukernel/native"
PROGRAMS, TURNS = 8, 150  # and calls of each program, at most

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
@pytest.mark.parametrize("broken", ["columns", "offsets"])
def test_an_index_that_leads_out_of_a_sparse_system_is_a_fault_of_the_program(broken: str) -> None:
    first, after = said(
        f"""
from tests.native.libraries.cusolver_sparse_cases import matrix_form
s = Library("libcusolver.so.11", "cusolverSpCreate")
columns, offsets = np.arange(8, dtype=np.int32), np.arange(9, dtype=np.int32)
{broken}[5] = 10**6
a, offsets, columns, b = Array(np.ones(8)), Array(offsets), Array(columns), Array(np.ones(8))
print(s("cusolverSpDcsrlsvqr", 8, 8, matrix_form(0), a.pointer, offsets.pointer, columns.pointer, b.pointer, ctypes.c_double(0), 0, b.pointer, ctypes.byref(ctypes.c_int())), d.cuCtxSynchronize()[0].name)
"""
    )
    assert f"6 {ILLEGAL}" in first, first
    assert f"the {broken}" in first
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


def templates() -> dict[int, list[tuple[int, list[str]]]]:
    """Return the roles of the words of every call by the number of its library: of the tables, and those written by hand."""
    sys.path.insert(0, str(NATIVE / "codegen"))
    try:
        generator = importlib.import_module("library_calls")
    finally:
        sys.path.pop(0)
    found = {}
    for library, number in (("cusolver", 5 | 11 << 16), ("cusparse", 6 | 12 << 16)):
        table = generator.read_library_table(NATIVE / "libraries" / library / "calls.txt")
        found[number] = [
            (
                call.number,
                ["modes"] + [p.role for p in call.as_sent if p.role not in ("params", "syevj", "gesvdj", "host", "room", "estimate")],
            )
            for call in table.calls
        ]  # fmt: skip
    sparse = ["csr", *["int"] * 3, *["in"] * 3, "index", "index", *["zero"] * 2, "one", *["int"] * 2]
    dense = [*["int"] * 3, "in", "zero", "one", "one", "int"]
    scalars = ["zero", "zero", "in"]
    by_hand = {
        0x1000: [sparse, dense, dense], 0x1002: [sparse, dense, dense], 0x1004: [dense, dense, sparse],
        0x1006: [sparse, dense], 0x1008: [sparse, dense], 0x100A: [dense], 0x100B: [sparse] * 3, 0x100C: [sparse] * 2,
    }  # fmt: skip
    found[6 | 12 << 16] += [
        (function, ["modes", *(["zero"] * 4 if function != 0x100A else []), *(role for one in parts for role in one), *scalars])
        for function, parts in by_hand.items()
    ] * 6  # fmt: skip
    solve = ["modes", "zero", "int", "int", "zero", *["in"] * 4, "zero", "in"]
    found[5 | 11 << 16] += [(0x1000, solve)] * 6
    found[4 | 11 << 16] = [(0, ["in", "in", "forward"])]
    found[7 | 10 << 16] = [
        (kind, ["modes", "philox", "hundred", "int", "int", "one", "in", "int", "zero", "zero"])
        for kind in range(8)
    ]
    return found


@WITHOUT_SANITIZER
def test_words_that_no_library_sends_do_no_harm() -> None:
    """Send calls with one or two words changed, from many programs of one worker, each until its first fault."""

    def program(seed: int) -> str:
        return f"""
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
def send(library, function, words):
    data = (ctypes.c_uint64 * max(len(words), 1))(*[w & (2**64 - 1) for w in words])
    queue(ctypes.byref(Call(library, function, None, ctypes.addressof(data), len(words))), ctypes.byref(ctypes.c_bool()))
    return d.cuCtxSynchronize()[0].name
def good(role):
    if role in ('in', 'out'): return room.address + random.choice((0, 4096, 2**19))
    given = dict(int=8, i64=8, size=64, zero=0, one=1, modes=0, char=ord('N'), csr=random.choice((1, 1, 2, 3)), index=random.choice((2, 3)), forward=-1, philox=161, hundred=100, matrix=0)
    return given.get(role, random.choice((0, 1)))
def bad():
    return random.choice((0, 1, 2, 3, 7, 9, 64, 1000, 2**31 - 1, 2**31, 2**40, 2**46, 2**63, 2**64 - 1, random.getrandbits(64), 4096, room.address + 2**20, room.address + 2**21 - 4))
plan = [1, 8, 1, 1, 1] + [1, 1, 1, 1, 8] * 2 + [2, 4, 4, 4]  # two of eight points
seen, calls_of = dict(), {templates()!r}
room = Array(np.zeros(2**19, np.int32))
for turn in range({TURNS}):
    library, calls = random.choice(list(calls_of.items()))
    function, roles = random.choice(calls)
    name, words = fresh(), [good(role) for role in roles]
    more = list(plan) if library & 15 == 4 else [161] if library & 15 == 7 else []
    target = more if library & 15 == 4 else words
    for _ in range(random.choice((0, 1, 1, 2))): target[random.randrange(len(target))] = bad()
    if random.random() < 0.05: words = words[:random.randrange(len(words))]
    send(library, 0xfff0, [name, *more])
    answer = send(library, function, [name, *words])
    seen[library & 15, answer] = seen.get((library & 15, answer), 0) + 1
    if 'ILLEGAL' in answer: break  # it ends the context, as a kernel's does
    send(library, 0xfff1, [name])
print('SEEN', list(seen.items()))
"""

    async def run() -> tuple[list[str], str]:
        async with worker(memory_mib=256) as its:
            printed = [await run_on(its, program(seed)) for seed in range(PROGRAMS)]
            after = await run_on(its, AFTERWARDS)
            return [one.stdout + one.stderr for one in printed], after.stdout.strip() + after.stderr

    printed, after = asyncio.run(run())
    seen: collections.Counter[tuple[int, str]] = collections.Counter()
    for text in printed:
        line = next((line for line in text.split("\n") if line.startswith("SEEN ")), "")
        assert line, text[-2500:]
        seen.update(dict(ast.literal_eval(line.removeprefix("SEEN "))))
    assert after == "True"
    for library in (4, 5, 6, 7):  # some come through, and some are refused
        assert seen[library, "CUDA_SUCCESS"] > 5, seen
        assert seen[library, REFUSED] > 0, seen
