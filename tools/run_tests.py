"""Run the tests, three at a time, and those few that failed once more, alone.

Many tests start real servers and browsers on two processors, and wait for them two fifths of their time.  One that waits
for something only so long may fail for want of a processor.  Alone it has the machine: a defect fails again, and a test
that passes is named at the end, to be mended.

``python -m tools.run_tests [arguments of pytest]``
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["FEW", "main", "run"]

FEW = 12  # more failures than this are no accident, on two processors that are busy otherwise, too
FAILED = 1  # pytest's exit status where tests ran and some failed


def run(arguments: list[str], parallel: tuple[str, ...] = ("-n", "3", "--dist", "worksteal")) -> int:
    """Run pytest with `arguments`, repeat a few failures alone, and return the exit status of the last run."""
    with tempfile.TemporaryDirectory() as folder:
        pytest = [sys.executable, "-m", "pytest", "-o", f"cache_dir={folder}"]
        status = subprocess.run([*pytest, *parallel, *arguments]).returncode
        book = Path(folder, "v/cache/lastfailed")
        failed = sorted(json.loads(book.read_text())) if status == FAILED and book.exists() else []
        if not 0 < len(failed) <= FEW:
            return status
        print(
            f"\n{len(failed)} failed beside others, and run once more, alone:",
            *failed,
            sep="\n  ",
            flush=True,
        )
        status = subprocess.run([*pytest, *failed]).returncode
        if not status:
            print("\nUNSTEADY, failed beside others and passed alone:", *failed, sep="\n  ", flush=True)
        return status


def main() -> None:
    """Run the tests with the arguments of the command line."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
