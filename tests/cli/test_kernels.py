"""``gpukernel run --profile`` and ``gpukernel smi --kernels``, on a real pool."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.conftest import Pool
from tests.native.simgpu_compiler.conftest import VECTORS

PROGRAM = """
import numpy as np
from numba import cuda
@cuda.jit
def rows(out, x):
    i = cuda.grid(1)
    for k in range(x.shape[1]):
        out[i] += x[i, k]
x = cuda.to_device(np.ones((256, 32), np.float32)); out = cuda.to_device(np.zeros(256, np.float32))
for _ in range(3): rows[4, 64](out, x)
print(out.copy_to_host().sum(), flush=True)  # before what other programs print
"""


def test_run_shows_what_each_kernel_did(shared_pool: Pool) -> None:
    done = shared_pool.gpukernel("run", "-m", "100", "--profile", "--", sys.executable, "-c", PROGRAM)
    assert (done.returncode, done.stdout) == (0, "24576.0\n"), done.stderr
    line, *said = done.stderr[done.stderr.index("Kernel  Block  Launches") :].splitlines()[1:]
    assert line.split()[:3] == ["rows", "64", "3"]
    assert any("let neighbouring threads use neighbouring words" in sentence for sentence in said)


def test_ranges_of_the_package_nvtx_are_shown(shared_pool: Pool) -> None:
    program = "import nvtx\n" + PROGRAM.replace(
        "for _ in range(3): rows", "with nvtx.annotate('sum'):\n  for _ in range(3): rows"
    )
    done = shared_pool.gpukernel("run", "-m", "100", "--profile", "--", sys.executable, "-c", program)
    assert (done.returncode, done.stdout) == (0, "24576.0\n"), done.stderr
    lines = done.stderr.splitlines()
    at = next(n for n, line in enumerate(lines) if line.split() == ["Range", "Launches", "Time", "Share"])
    assert (lines[at + 1].split()[:2], lines[at + 1].split()[-1]) == (["sum", "3"], "100%")
    assert "[sum]" in lines


def test_a_profile_is_written_as_json_and_as_a_page(shared_pool: Pool, tmp_path: Path) -> None:
    for name in ("profile.json", "profile.html"):
        words = (
            "run",
            "-m",
            "100",
            "--profile-to",
            str(tmp_path / name),
            "--",
            sys.executable,
            "-c",
            PROGRAM,
        )
        done = shared_pool.gpukernel(*words)
        assert (done.returncode, done.stdout) == (0, "24576.0\n")
    told = json.loads((tmp_path / "profile.json").read_text())
    (kernel,) = told["kernels"]
    assert (kernel["launches"], kernel["blocks"], kernel["block"]) == (3, 12, [64, 1, 1])
    # Of 32 rows of 128 bytes each thread reads its own: a sector a thread.  The sums lie side by side.
    assert kernel["load_requests"] > 3 * 8 * 32
    assert kernel["sectors_per_store"] == 4
    page = (tmp_path / "profile.html").read_text()
    assert "<svg" in page
    assert "<script" not in page
    assert "rows" in page


def test_a_profile_that_cannot_be_had_is_refused_before_the_program_starts(
    shared_pool: Pool, tmp_path: Path
) -> None:
    program = ("--", sys.executable, "-c", "print('it ran')")
    for words, sentence in (
        (("--profile", "--direct"), "leave out --direct or --profile"),
        (("--profile-to", str(tmp_path / "profile.txt")), "must end in .json or .html"),
        (("--profile-to", str(tmp_path / "nowhere" / "profile.json")), "There is no folder for"),
    ):
        done = shared_pool.gpukernel("run", "-m", "100", *words, *program)
        assert done.returncode == 2
        assert done.stdout == ""
        assert sentence in done.stderr


WARM = """
import json, subprocess, sys, time
ask = [sys.executable, '-m', 'gpukernel.cli', 'smi', '--kernels']
for _ in range(100):
    (kernel,) = json.loads(subprocess.run([*ask, '--json'], capture_output=True, check=True).stdout)
    if kernel['compiled_launches']: break
    time.sleep(0.1); rows[4, 64](out, x); cuda.synchronize()
subprocess.run([*ask, *sys.argv[1:]])
"""


def test_smi_says_which_tier_ran_each_kernel_and_why(shared_pool: Pool) -> None:
    run = ("run", "-m", "100", "--", sys.executable, "-c", PROGRAM + WARM)
    done = shared_pool.gpukernel(*run, "--json")
    (kernel,) = json.loads(done.stdout.partition("\n")[2])
    assert kernel["name"].startswith("__main__::rows(")
    assert (kernel["failed"], kernel["compiled"]) == (0, bool(VECTORS)), kernel["reason"]
    assert kernel["launches"] >= 3
    assert kernel["seconds"] > 0
    assert VECTORS or "AVX2" in kernel["reason"]
    table = shared_pool.gpukernel(*run).stdout.splitlines()[1:]
    assert table[0].split()[:3] == ["Kernel", "Tier", "Launches"]
    assert table[1].split()[:2] == ["rows", "compiled" if VECTORS else "interpreter"]
    outside = shared_pool.gpukernel("smi", "--kernels")
    assert outside.returncode == 5
    assert "Only a slice itself knows its kernels" in outside.stderr
