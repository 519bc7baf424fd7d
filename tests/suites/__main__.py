"""``python -m tests.suites [SUITE…]``: suites whole, and what fails that is not known to fail."""

from __future__ import annotations

import sys

from tests.suites.compiler_suites import CORE, PROGRAMS, TRITON_LANGUAGE
from tests.suites.deep_learning import JAX_TESTS, TENSORFLOW_LINEAR_ALGEBRA, TENSORFLOW_TESTS
from tests.suites.framework_suites import DRJIT, TAICHI, TINYGRAD_C, TINYGRAD_PTX
from tests.suites.runner import run
from tests.suites.runtime_suites import CUDA_SAMPLES, HECBENCH_PROGRAMS, ZLUDA_PROGRAMS
from tests.suites.sources import NotHere
from tests.suites.suites import CUDA_PYTHON, NUMBA, PYCUDA

_OWN = (CUDA_PYTHON, PYCUDA, NUMBA, CORE)
_FRAMEWORKS = (TINYGRAD_C, TINYGRAD_PTX, DRJIT, TAICHI, TRITON_LANGUAGE, PROGRAMS)
_DEEP_LEARNING = (JAX_TESTS, TENSORFLOW_TESTS, TENSORFLOW_LINEAR_ALGEBRA)
_RUNTIME = (CUDA_SAMPLES, HECBENCH_PROGRAMS, ZLUDA_PROGRAMS)
ALL = {suite.name: suite for suite in (*_OWN, *_FRAMEWORKS, *_DEEP_LEARNING, *_RUNTIME)}


def main(names: list[str]) -> int:
    unexpected = 0
    if strange := [name for name in names if name not in ALL]:
        print(f"No suite is called {strange[0]}; there are {', '.join(ALL)}.", file=sys.stderr)
        return 2
    print("| suite | passed | failed | skipped | passed of those that ran |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for suite in [ALL[name] for name in names or ALL]:
        try:
            version, outcome = suite.source().version, run(suite)
        except NotHere as why:
            print(f"| {suite.name} | not run: {why} | | | |", flush=True)
            unexpected += 1
            continue
        failed = len(outcome.failed) + len(suite.left_out)
        rate = len(outcome.passed) / (len(outcome.passed) + failed)
        print(
            f"| {suite.name} {version} | {len(outcome.passed)} | {failed} | {len(outcome.skipped)} | {rate:.1%} |",
            flush=True,
        )
        print(outcome.output, file=sys.stderr)
        for name in suite.unexpected(outcome):
            print(f"  failed: {name}", file=sys.stderr)
            unexpected += 1
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
