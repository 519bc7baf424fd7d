"""``python tests/wheels/minute.py dist/gpukernel-….whl``: from nothing to the demo's result, with each Python, on a machine without compiler and Node.

What the demo needs is downloaded first.  Then the clock starts: a new environment, the installation of the wheel with its ``demo`` extra from
the downloads, and ``gpukernel demo``, until it has printed its result.  ``PATH`` has all that it had but compilers, build tools and Node.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NOT_THERE = re.compile(
    r"(.*-)?(cc|c\+\+|gcc|g\+\+|clang|clang\+\+|cpp|tcc|zig|as|ld|cmake|ninja|make|nvcc|ptxas|node|nodejs|npm|npx)(-[\d.]+)?"
)
CHECK = Path(__file__).with_name("check.py")


def bare_path(folder: Path) -> Path:
    """Fill `folder` with links to the commands of ``PATH``, without compilers, build tools and Node; return it."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for command in Path(place).iterdir() if Path(place).is_dir() else ():
            if not NOT_THERE.fullmatch(command.name) and not (folder / command.name).is_symlink():
                (folder / command.name).symlink_to(command)
    return folder


def say(what: str) -> None:
    print(what, flush=True)


def tried(python: str, wheel: Path, downloads: Path, folder: Path) -> tuple[str, float, float, float]:
    """Return Python's version, and the seconds of environment and installation, of the demo, and of the check of a kernel and TLS.

    Raises
    ------
    subprocess.CalledProcessError
        A step failed.
    """
    environment = {
        "PATH": str(bare_path(folder / "commands")),
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "TMPDIR": str(folder),
    }

    def run(*words: str | Path, **others: str) -> str:
        command = [str(word) for word in words]
        done = subprocess.run(command, cwd=folder, env={**environment, **others}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
        if done.returncode:
            say(done.stdout[-3000:])
            raise subprocess.CalledProcessError(done.returncode, command)
        return done.stdout

    version = run(python, "--version").split()[1]
    wanted = f"{wheel}[demo]"
    run(python, "-m", "venv", folder / "fetching")
    network = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "http", "HTTP", "no_proxy", "NO_PROXY"))}  # fmt: skip
    pip = (folder / "fetching" / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "download", "--only-binary", ":all:", "--dest", downloads, wanted, **network)

    began = time.monotonic()
    here = folder / "environment"
    run(python, "-m", "venv", here)
    pip = (here / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "install", "--no-index", "--find-links", downloads, wanted, PIP_CONFIG_FILE=os.devnull)
    installed = time.monotonic()
    said = run(here / "bin" / "gpukernel", "demo", "--no-browser")
    shown = time.monotonic()
    assert "accuracy" in said, said
    run(here / "bin" / "python", CHECK)
    return version, installed - began, shown - installed, time.monotonic() - shown


def main() -> None:
    """Try the wheel, and print a table of the seconds; ends with 1 where a Python failed, and names those that are not here."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument(
        "--python", action="append", default=[], help="an interpreter; repeatable (default: this one)"
    )
    parser.add_argument("--downloads", type=Path, help="where downloads are kept for the next time")
    options = parser.parse_args()
    failed = False
    say(
        "| Python | environment and installation | demo | kernel and TLS | to the demo's result |\n| --- | ---: | ---: | ---: | ---: |"
    )
    for python in options.python or [sys.executable]:
        if shutil.which(python) is None:
            say(f"| {python} | SKIPPED: it is not here | | | |")
            continue
        with tempfile.TemporaryDirectory(prefix="wheel-") as folder:
            downloads = options.downloads or Path(folder, "downloads")
            try:
                version, install, demo, check = tried(
                    python, options.wheel.resolve(), downloads, Path(folder)
                )
            except (subprocess.CalledProcessError, AssertionError) as error:
                failed = True
                say(f"| {python} | FAILED: {error} | | | |")
            else:
                say(
                    f"| {version} | {install:.1f} s | {demo:.1f} s | {check:.1f} s | **{install + demo:.1f} s** |"
                )
    sys.exit(failed)


if __name__ == "__main__":
    main()
