"""``python tests/wheels/minute.py dist/gpukernel-….whl``: from nothing to the demo's result, with each Python, on a machine without compiler and Node.

What the demo needs is downloaded first.  Then the clock starts: a new environment, the installation of the wheel with its ``demo`` extra from
the downloads, by each of `INSTALLERS`, and ``gpukernel demo``, until it has printed its result.  ``PATH`` has all that it had but compilers, build tools and Node.
Behind the seconds of each step stand, in parentheses, those of the processors, which say more on a machine that does other work, too.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

NOT_THERE = re.compile(
    r"(.*-)?(cc|c\+\+|gcc|g\+\+|clang|clang\+\+|cpp|tcc|zig|as|ld|cmake|ninja|make|nvcc|ptxas|node|nodejs|npm|npx)(-[\d.]+)?"
)
INSTALLERS = ("pip --no-compile", "uv", "pip")
"""What ``make demo`` does, what is quickest, and what compiles every file of every package before the first is used."""
CHECK = Path(__file__).with_name("check.py")


def interpreter(name: str) -> str | None:
    """Return the path of the Python called ``python3.14``, or at that path: of ``PATH``, else of pyenv; None where this machine has none.

    What stands in ``PATH`` may be a shim of pyenv for a version that is not switched on: only what runs counts.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    version = name.removeprefix("python")
    own = sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))
    for place in filter(None, (shutil.which(name), *own)):
        if subprocess.run([place, "-c", "import venv"], capture_output=True).returncode == 0:
            return str(place)
    return None


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


def clock() -> tuple[float, float]:
    """Return the seconds of the monotonic clock, and those of processors that ended children have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic(), used.ru_utime + used.ru_stime


def fetch(run: Callable[..., str], python: str, wanted: str, downloads: Path, folder: Path) -> None:
    """Download `wanted` and all that it depends on, with the network settings of this process."""
    kinds = ("PIP_", "SSL_", "http", "HTTP", "no_proxy", "NO_PROXY")
    network = {name: value for name, value in os.environ.items() if name.startswith(kinds)}
    run(python, "-m", "venv", folder / "fetching")
    pip = (folder / "fetching" / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "download", "--only-binary", ":all:", "--dest", downloads, wanted, "uv", **network)


def new_environment(
    run: Callable[..., str], python: str, installer: str, wanted: str, downloads: Path, here: Path
) -> None:
    """Make the environment `here`, with `wanted` from `downloads` in it, by `installer`, one of `INSTALLERS`."""
    where = ("--quiet", "--no-index", "--find-links", downloads, wanted)
    name, *options = installer.split()
    if name == "pip":
        run(python, "-m", "venv", here)
        pip = (here / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
        run(*pip, "install", *options, *where, PIP_CONFIG_FILE=os.devnull)
    else:
        uv = here.with_name("fetching") / "bin" / "uv"
        run(uv, "venv", "--quiet", "--no-config", "--python", python, here)
        run(uv, "pip", "install", "--no-config", "--no-cache", *where, VIRTUAL_ENV=str(here))


def tried(
    python: str, installer: str, wheel: Path, downloads: Path, folder: Path
) -> tuple[str, list[tuple[float, float]]]:
    """Return Python's version, and `clock` before the environment, after the installation, after the demo, and after a kernel and TLS.

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
    if not downloads.is_dir():
        fetch(run, python, wanted, downloads, folder)
    here = folder / "environment"
    if installer == "uv":
        run(python, "-m", "venv", folder / "fetching")
        run(folder / "fetching" / "bin" / "python", "-m", "pip", "--quiet", "install", "--no-index", "--find-links", downloads, "uv")  # fmt: skip

    times = [clock()]
    new_environment(run, python, installer, wanted, downloads, here)
    times.append(clock())
    said = run(here / "bin" / "gpukernel", "demo", "--no-browser")
    times.append(clock())
    assert "accuracy" in said, said
    run(here / "bin" / "python", CHECK)
    return version, [*times, clock()]


def main() -> None:
    """Try the wheel, and print a table of the seconds; ends with 1 where a Python failed, and names those that are not here."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument(
        "--python", action="append", default=[], help="an interpreter; repeatable (default: this one)"
    )
    parser.add_argument(
        "--downloads",
        type=Path,
        help="a folder with the downloads, uv among them; filled where it is not there yet",
    )
    options = parser.parse_args()
    failed = False
    say("| Python | environment and installation | demo | kernel and TLS | to the demo's result |")
    say("| --- | ---: | ---: | ---: | ---: |")
    for name in options.python or [sys.executable]:
        if (python := interpreter(name)) is None:
            say(f"| {name} | SKIPPED: it is not here | | | |")
            continue
        with tempfile.TemporaryDirectory(prefix="wheel-") as root:
            downloads = options.downloads or Path(root, "downloads")
            for installer in INSTALLERS:
                folder = Path(root, installer.replace(" ", ""))
                folder.mkdir()
                try:
                    version, times = tried(python, installer, options.wheel.resolve(), downloads, folder)
                except (subprocess.CalledProcessError, AssertionError) as error:
                    failed = True
                    say(f"| {python}, {installer} | FAILED: {error} | | | |")
                    continue
                steps = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(times)]
                steps.append((times[2][0] - times[0][0], times[2][1] - times[0][1]))
                cells = " | ".join(f"{wall:.1f} s ({used:.1f})" for wall, used in steps)
                say(f"| {version}, {installer} | {cells} |")
    sys.exit(failed)


if __name__ == "__main__":
    main()
