"""Words that cuDNN's library in the program would never send: refused, or a fault of the program's own, and the worker goes on."""

from __future__ import annotations

import asyncio

import pytest

from tests.native.libraries.conftest import NEEDS_OPENBLAS
from tests.native.libraries.test_hostile_programs import AFTERWARDS, said
from tests.native.libraries.test_on_a_slice import run_on
from tests.remoting.conftest import WITHOUT_SANITIZER, worker

pytestmark = NEEDS_OPENBLAS

RECORDER = """
import json
import random as chance
from tests.native.libraries import cudnn_call_cases, cudnn_cases, cudnn_ctc_cases, cudnn_recurrent_cases

class Call(ctypes.Structure):
    _fields_ = [('library', ctypes.c_uint32), ('function', ctypes.c_uint32), ('stream', ctypes.c_void_p), ('arguments', ctypes.c_void_p), ('words', ctypes.c_size_t)]
class Port(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ('queue', 'ask', 'name', 'device')]
cuda = ctypes.CDLL('libcuda.so.1')
cuda.gpukernel_library_port.restype = ctypes.c_void_p
at = cuda.gpukernel_library_port(1)
port = Port.from_address(at)
QUEUE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Call), ctypes.POINTER(ctypes.c_bool))
ASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Call), ctypes.c_bool, ctypes.POINTER(ctypes.c_int32), ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t))
queue, ask = QUEUE(port.queue), ASK(port.ask)
seen = {}
def record(call, asked):
    call = call.contents
    if call.library & 0xffff == 3 and call.function not in (0xfff0, 0xfff1):
        words = list((ctypes.c_uint64 * call.words).from_address(call.arguments)) if call.words else []
        seen.setdefault(call.function, (asked, call.library, words))
own_queue = QUEUE(lambda call, captured: record(call, False) or queue(call, captured))
own_ask = ASK(lambda call, *rest: record(call, True) or ask(call, *rest))
page = at & ~4095
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), ctypes.c_size_t(8192), 3) == 0
port.queue, port.ask = (ctypes.cast(one, ctypes.c_void_p).value for one in (own_queue, own_ask))
def send(asked, library, function, words):
    data = (ctypes.c_uint64 * max(len(words), 1))(*[w & (2**64 - 1) for w in words])
    call = Call(library, function, None, ctypes.addressof(data), len(words))
    if asked:
        answer = ctypes.create_string_buffer(1 << 20)
        status, got = ctypes.c_int32(-1), ctypes.c_size_t()
        error = ask(ctypes.byref(call), False, ctypes.byref(status), answer, ctypes.c_size_t(1 << 20), ctypes.byref(got))
        return error or status.value
    queue(ctypes.byref(call), ctypes.byref(ctypes.c_bool()))
    return int(d.cuCtxSynchronize()[0])
HOSTILE = [0, 1, 2**64 - 1, 2**63, 2**31 - 1, 2**31, 2**32, 2**40, 2**44, 2**62, 7, 4096, 0x7ff8000000000000]
"""


def test_every_word_of_a_graph_may_be_anything() -> None:
    first, after = said(
        RECORDER
        + """
wrong = [name for name in ('a_convolution_with_bias_and_rectifier', 'pointwise_operations_with_a_number_by_value_and_a_reduction') if cudnn_cases.CASES[name]()]
chance.seed(1)
count = refused = 0
for function, (asked, library, words) in list(seen.items()):
    assert send(asked, library, function, words) == 0, hex(function)
    for length in range(0, len(words), 7):
        refused += send(asked, library, function, words[:length]) != 0; count += 1
    for at, word in enumerate(words):
        for value in chance.sample(HOSTILE, 3) + [word ^ 1 << chance.randrange(64)]:
            if value == word: continue
            error = send(asked, library, function, words[:at] + [value] + words[at + 1:])
            assert error not in (700, 719), (hex(function), at, value)  # the context is lost
            refused += error != 0; count += 1
    assert send(asked, library, function, words) == 0, hex(function)
print(wrong, len(seen), count > 1000, refused > count / 3)
"""
    )
    assert "[] 4 True True" in first, first
    assert after == "True"


@WITHOUT_SANITIZER
def test_every_word_of_the_other_functions_may_be_anything() -> None:
    """A program ends with the first access beyond its memory; two of them share the worker."""
    program = (
        RECORDER
        + """
chance.seed(SEED)
wrong = [name for cases in (cudnn_call_cases.CASES, cudnn_ctc_cases.CASES, cudnn_recurrent_cases.CASES) for name in cases if cases[name]()]
calls = list(seen.items())
places = [(function, at) for function, (_, _, words) in calls for at in range(1, len(words))]
chance.shuffle(places)
count = refused = 0
for function, at in places[:500]:
    asked, library, words = seen[function]
    error = send(asked, library, function, words[:at] + [chance.choice(HOSTILE)] + words[at + 1:])
    count += 1; refused += error != 0
    if error in (700, 719): break  # an access of its own beyond its memory: the context is lost
print('RESULT', wrong, len(calls), count, refused)
"""
    )

    async def run() -> tuple[list[str], str]:
        async with worker(memory_mib=512) as its:
            found = [await run_on(its, f"SEED = {seed}\n{program}") for seed in range(2)]
            after = await run_on(its, AFTERWARDS)
            return [one.stdout + one.stderr for one in found], after.stdout.strip() + after.stderr

    found, after = asyncio.run(run())
    results = [line.split()[1:] for one in found for line in one.splitlines() if line.startswith("RESULT")]
    assert [result[0] for result in results] == ["[]"] * 2, found
    assert all(int(result[1]) > 30 for result in results)  # functions
    assert sum(int(result[3]) for result in results) > 100, results
    assert after == "True"


def test_work_that_nothing_could_pause_or_pay_for_is_refused() -> None:
    """Extents of nothing but repetition: strides of 0, in a few bytes."""
    first, after = said(
        """
from tests.native.libraries.cudnn import *
from tests.native.libraries.cudnn_cases import operation, parameters
n = Cudnn()
def refused(direction, shapes, **given):
    tensors = [n.tensor(shape, [0] * len(shape), np.float32)[0] for shape in shapes]
    made = operation(n, direction, tensors, parameters(2, **given), np.float32)
    graph = n.node(15, {800: (0, n.handle), 801: (15, made)}, finish=False)
    return n.library.cudnnBackendFinalize(graph)
print(refused('forward', [(1, 2**30, 8, 8), (1, 2**30, 1, 1), (1, 1, 8, 8)]))                           # a sum of so many terms
print(refused('forward', [(1, 1, 2**20, 2**20), (1, 1, 2**20, 2**19), (1, 1, 1, 2**19 + 1)]))           # a filter of so many places
print(refused('filter', [(1, 1, 2**21, 2**21), (1, 1, 1, 1), (1, 1, 2**21, 2**21)]))                    # a sum over so many places
print(refused('data', [(1, 1, 2**20, 2**20), (1, 1, 1, 1), (1, 1, 1, 1)], stride=2**20))                # so many remainders
print(refused('forward', [(1, 1, 4, 4), (1, 1, 1, 1), (1, 1, 4, 4)], before=2**62))
"""
    )
    assert first.split()[:5] == ["3000", "3000", "3000", "3000", "2000"], first
    assert after == "True"


def test_plans_count_against_the_leases_host_memory_and_have_an_end() -> None:
    first, after = said(
        """
from tests.native.libraries.cudnn import *
from tests.native.libraries.cudnn_cases import operation, parameters
n = Cudnn()
for number in range(1100):  # more than a handle keeps
    shape = (1, 1, 4, 4 + number % 1100)
    described = [n.tensor(s, (9999, 9999, s[3], 1), np.float32)[0] for s in (shape, (1, 1, 1, 1), shape)]
    n.plan([operation(n, 'forward', described, parameters(2), np.float32)])
print('made')
"""
    )
    assert first.strip() == "made", first
    assert after == "True"


@WITHOUT_SANITIZER
@pytest.mark.parametrize(
    ("lengths", "steps", "labels"),
    [([2**31 - 1, 1], [5, 5], [1, 1]), ([1, 1], [5, 10**9], [1, 1]), ([1, 1], [5, 5], [1, 99])],
)
def test_labels_on_the_device_lead_nowhere(lengths: list[int], steps: list[int], labels: list[int]) -> None:
    first, after = said(
        f"""
from tests.native.libraries.cudnn import Tensor
from tests.native.libraries.cudnn_call_cases import Calls
n = Calls()
x, costs = Tensor(np.ones((5, 2, 4), np.float32)), Array(np.zeros(2, np.float32))
labels, lengths, steps = (Array(np.array(one, np.int32)) for one in ({labels}, {lengths}, {steps}))
how = n.made("CTCLoss", "cudnnSetCTCLossDescriptor_v9", 0, 1, 0, 3)
print(n("cudnnCTCLoss_v8", 0, how, n.layout(x), x.pointer, labels.pointer, lengths.pointer, steps.pointer, costs.pointer, None, None, ctypes.c_size_t(0), None), d.cuCtxSynchronize()[0].name)
"""
    )
    assert "0 CUDA_ERROR_ILLEGAL_ADDRESS" in first, first
    assert "cudnnCTCLoss_v8 reaches beyond its memory: " in first
    assert after == "True"
