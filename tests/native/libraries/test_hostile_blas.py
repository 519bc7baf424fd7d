"""Words that cuBLAS and cuBLASLt in a program would never send, and handles that are not its own: refused, or a fault of the program's."""

from __future__ import annotations

import asyncio

from tests.native.libraries.conftest import NEEDS_OPENBLAS
from tests.native.libraries.test_hostile_cudnn import RECORDER
from tests.native.libraries.test_hostile_programs import AFTERWARDS
from tests.native.libraries.test_on_a_slice import BLAS, ROOT, run_on
from tests.remoting.conftest import WITHOUT_SANITIZER, worker

pytestmark = NEEDS_OPENBLAS

OF_BLAS = (
    RECORDER.replace(
        "cudnn_call_cases, cudnn_cases, cudnn_ctc_cases, cudnn_recurrent_cases",
        "cublas_cases, cublaslt_cases",
    )
    .replace("call.library & 0xffff == 3", "call.library & 0xffff in (1, 2)")
    .replace("seen.setdefault(call.function,", "seen.setdefault((call.library & 0xffff, call.function),")
)


PROGRAMS = 12  # a lost context ends one


@WITHOUT_SANITIZER
def test_every_word_of_a_product_or_a_vector_may_be_anything() -> None:
    """Sizes that overflow, strides out of the slice, addresses of nobody, workspaces that are none: a program for each case, until its first fault."""
    program = (
        OF_BLAS
        + """
chance.seed(SEED)
NAMES = ('batches_by_stride_and_by_addresses', 'vectors', 'a_matrix_and_vectors', 'triangular_systems_and_products',
         'symmetric_matrices', 'sums_and_scalings_of_matrices', 'many_small_systems', 'rotations', 'many_orthogonal_factors')
NAMES = [*NAMES, *list(cublaslt_cases.CASES)[:3]]
name = NAMES[SEED % len(NAMES)]
wrong = [name] if {**cublas_cases.CASES, **cublaslt_cases.CASES}[name]() else []
calls = list(seen.items())
places = [(function, at) for function, (_, _, words) in calls for at in range(1, len(words))]
chance.shuffle(places)
count = refused = 0
for function, at in places[:1500]:
    asked, library, words = seen[function]
    changed = words[:at] + [chance.choice(HOSTILE)] + words[at + 1:]
    if chance.random() < 0.1: changed = changed[:chance.randrange(len(changed))]
    error = send(asked, library, function[1], changed)
    count += 1; refused += error != 0
    if error in (700, 719): break  # an access of its own beyond its memory: the context is lost
print('RESULT', wrong, len(calls), count, refused)
"""
    )

    async def run() -> tuple[list[str], str]:
        async with worker(memory_mib=512) as its:
            found = [await run_on(its, f"SEED = {seed}\n{program}") for seed in range(PROGRAMS)]
            after = await run_on(its, AFTERWARDS)
            return [one.stdout + one.stderr for one in found], after.stdout.strip() + after.stderr

    found, after = asyncio.run(run())
    results = [line.split()[1:] for one in found for line in one.splitlines() if line.startswith("RESULT")]
    assert [result[0] for result in results] == ["[]"] * PROGRAMS, [one[-2000:] for one in found]
    assert sum(int(result[1]) for result in results) > 60, results  # functions
    assert sum(int(result[3]) for result in results) > 20, results
    assert after == "True"


def test_a_handle_that_was_destroyed_or_is_another_programs_is_none() -> None:
    code = (
        OF_BLAS
        + """
b = blas(); a = Array(np.ones(4, np.float32))
b.done('cublasSscal_v2', 4, scalar(2, np.float32), a.pointer, 1)
(key, (asked, library, words)), = seen.items()
print(hex(words[0]), send(asked, library, key[1], words), a.get()[0])
"""
    )

    async def run() -> tuple[str, str, str]:
        async with worker(memory_mib=64) as its:
            first = its.start(
                f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{BLAS}\n{code}\nfor _ in range(3): blas()\ninput()"
            )
            try:
                assert first.stdout
                own = await asyncio.to_thread(first.stdout.readline)
                # The other program has made one handle, and names those of the first by their numbers.
                other = await run_on(
                    its,
                    code
                    + "print([send(asked, library, key[1], [words[0] + i, *words[1:]]) for i in range(1, 8)], a.get()[0])",
                )
                gone = await run_on(
                    its,
                    code + "b('cublasDestroy_v2'); print(send(asked, library, key[1], words), a.get()[0])",
                )
            finally:
                first.communicate("\n")
            return own, other.stdout + other.stderr, gone.stdout + gone.stderr

    own, other, gone = asyncio.run(run())
    assert own.endswith(" 0 4.0\n"), own
    assert other.splitlines()[1].endswith("] 4.0"), other
    assert not {"[0", "0"} & set(other.splitlines()[1].replace(",", " ").split()), other
    assert gone.splitlines()[1] == "400 4.0", gone
