"""Installs what is in a context's ``wheels/`` into an environment, the same bytes each time; runs inside the image that is built."""

import compileall
import os
import py_compile
import shutil
import subprocess
import sys
import venv
from pathlib import Path

context, target = Path(sys.argv[1]), Path(sys.argv[2])
wheels = context / "wheels"
venv.EnvBuilder(symlinks=True).create(target)
python = target / "bin" / "python3"
(pip,) = wheels.glob("pip-*.whl")
environment = {**os.environ, "PYTHONPATH": str(pip), "PYTHONHASHSEED": "0"}
install = [
    python,
    "-m",
    "pip",
    "install",
    "--no-index",
    "--no-cache-dir",
    "--no-compile",
    "--no-deps",
    "--find-links",
    wheels,
]
pinned = context / "requirements.txt"
subprocess.run([*install, "-r", pinned], env=environment, check=True)
(own,) = wheels.glob("gpukernel-*.whl")
subprocess.run([*install, own], env=environment, check=True)
# A file system that is read-only has no other time for this; by content, since times are not the same on each build.
for folder in (target / "lib").glob("python3*/site-packages"):
    for file in folder.rglob("direct_url.json"):
        file.unlink()  # names the place of the build
    compileall.compile_dir(
        folder, quiet=2, workers=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
for leftover in (target / "include", Path("/root/.cache")):
    shutil.rmtree(leftover, ignore_errors=True)
