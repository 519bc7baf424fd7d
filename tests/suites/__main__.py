"""``python -m tests.suites``: every suite whole, and what fails that is not known to fail."""

from __future__ import annotations

import importlib.metadata
import sys

from tests.suites.runner import run
from tests.suites.suites import NUMBA

ALL = (NUMBA,)


def main() -> int:
    unexpected = 0
    print("| suite | passed | failed | skipped | passed of those that ran |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for suite in ALL:
        outcome = run(suite)
        failed = len(outcome.failed) + len(suite.left_out)
        rate = len(outcome.passed) / (len(outcome.passed) + failed)
        version = importlib.metadata.version(suite.name)
        print(
            f"| {suite.name} {version} | {len(outcome.passed)} | {failed} | {len(outcome.skipped)} | {rate:.1%} |"
        )
        print(outcome.output, file=sys.stderr)
        unknown = {n for n in outcome.failed if not suite.known.keys() & {n, n.partition(".")[0]}}
        for name in sorted(unknown):
            print(f"  failed: {name}", file=sys.stderr)
            unexpected += 1
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
