"""The program that tries a wheel runs, with this environment's installation in a wheel's place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_check_of_wheels_runs() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "wheels" / "check.py")],
        capture_output=True,
        text=True,
        timeout=250,
    )
    # A build without OpenSSL's static libraries has no TLS, and says so at this place.
    assert "TLS is not there" in done.stderr or "a kernel ran on 655 MiB" in done.stdout, done.stderr


def test_a_demo_takes_a_wheel_of_this_version(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "CMakeLists.txt").touch()
    (tmp_path / "gpukernel").mkdir()

    def plan() -> str:
        return subprocess.run(
            ["make", "-n", "demo"], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    assert "--editable '.[demo]'" in plan()
    assert "--no-compile " in plan(), "pip would compile for most of a minute what is never imported"
    wheel = tmp_path / "dist" / "gpukernel-0.0.1-py3-none-manylinux_2_28_x86_64.whl"
    wheel.parent.mkdir()
    wheel.touch()
    assert "--editable '.[demo]'" in plan(), "it is of another version"
    version = subprocess.run(
        [sys.executable, "-c", "import gpukernel; print(gpukernel.__version__)"],
        capture_output=True,
        text=True,
    ).stdout.strip()
    wheel.rename(wheel.with_name(wheel.name.replace("0.0.1", version)))
    assert f"'dist/gpukernel-{version}-py3-none-manylinux_2_28_x86_64.whl[demo]'" in plan()
    assert "--no-compiler" in plan()
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".test").touch()
    assert "whl[demo]" not in plan(), "who has built it keeps what was built"
