"""Each fuzzer over its corpus, for a few thousand inputs: what was found once stays mended.

``make fuzzers`` builds them where there is a Clang; ``make fuzz`` runs them for longer.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import sanitizers

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
BUILD = REPOSITORY / "build" / "fuzz"
INPUTS = {"ptx": 3000, "images": 20_000, "frames": 1500, "answers": 1500, "leases": 20_000, "records": 1500}
SLOWLY_BUILT = {"frames", "answers"}  # the Makefile's quick_fuzzers leave them out


def built(fuzzer: str) -> Path:
    """The fuzzer's executable; the test is skipped, and says what to do, where there is none."""
    if (path := BUILD / fuzzer).exists():
        return path
    clang = subprocess.run([REPOSITORY / "deploy" / "clang.sh"], capture_output=True, text=True, check=False)
    pytest.skip(clang.stderr.strip() or "the fuzzers are not built: make fuzzers")


@pytest.mark.parametrize(
    "fuzzer", [pytest.param(one, marks=pytest.mark.thorough if one in SLOWLY_BUILT else ()) for one in INPUTS]
)
def test_no_input_breaks(fuzzer: str, tmp_path: Path) -> None:
    built(fuzzer)
    done = subprocess.run(
        [HERE / "run.sh", fuzzer, f"-runs={INPUTS[fuzzer]}", "-seed=1", f"-artifact_prefix={tmp_path}/"],
        env={
            **sanitizers.without(),  # a fuzzer has its own
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "FUZZ_BUILD": str(BUILD),
            "FUZZ_CORPUS": str(tmp_path / "corpus"),
        },
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    # One with many seeds does more.
    ran = re.search(r"Done (\d+) runs", done.stderr)
    assert ran is not None, done.stderr[-6000:]
    assert int(ran[1]) >= INPUTS[fuzzer]
    if fuzzer == "ptx":  # both tiers have run, and what they left was looked at
        compared = re.search(r"compared (\d+) launches", done.stderr)
        assert compared is not None, done.stderr[-6000:]
        assert int(compared[1]) > 100


@pytest.mark.parametrize("fuzzer", ["ptx"])
def test_a_fuzzer_sees_what_it_is_there_for(fuzzer: str, tmp_path: Path) -> None:
    """A build without sanitizers or a harness that feeds nobody would pass the test above, too."""
    symbols = subprocess.run(["nm", "-C", built(fuzzer)], capture_output=True, text=True, check=True).stdout
    for needed in ("__asan_report_load8", "__ubsan_handle_", "simgpu::ptx::parse("):
        assert needed in symbols
