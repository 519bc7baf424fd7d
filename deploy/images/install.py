"""Installs what is in a context's ``wheels/`` into an environment, the same bytes each time; runs inside the image that is built.

With ``--for-people`` the environment has pip, and people's own packages come to their homes, since the environment itself is closed to them.
"""

import compileall
import os
import py_compile
import shutil
import subprocess
import sys
import venv
from pathlib import Path


def link_libraries(packages: Path) -> None:
    """Link gpukernel's libraries where those of PyTorch look for NVIDIA's, which it is linked with: it loads on a slice and off it."""
    native, wanted = packages / "gpukernel" / "native", packages / "nvidia" / "cu13" / "lib"
    newest: dict[str, tuple[list[int], Path]] = {}
    for file in (*native.glob("libraries/lib*.so.*"), *native.glob("cudart/libcudart.so.*")):
        name, _, numbers = file.name.partition(".so.")
        newest[name] = max(newest.get(name, ([], file)), ([*map(int, numbers.split("."))], file))
    wanted.mkdir(parents=True, exist_ok=True)
    for _, file in newest.values():
        (wanted / file.name).symlink_to(os.path.relpath(file, wanted))


context, target = Path(sys.argv[1]), Path(sys.argv[2])
for_people = "--for-people" in sys.argv[3:]
wheels = context / "wheels"
# Python looks into homes only where it looks into the system's packages, too.
venv.EnvBuilder(symlinks=True, system_site_packages=for_people).create(target)
python = target / "bin" / "python3"
(pip,) = wheels.glob("pip-*.whl")
# pip imports what it has just installed, attrs for one: the bytes of that would have the time in them.
environment = {**os.environ, "PYTHONPATH": str(pip), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
install = [
    python,
    "-m",
    "pip",
    "install",
    "--no-index",
    "--no-cache-dir",
    "--no-compile",
    "--no-deps",
    "--ignore-installed",  # what the base has is not of this image
    "--find-links",
    wheels,
]
pinned = context / "requirements.txt"
subprocess.run([*install, "-r", pinned], env=environment, check=True)
(own,) = wheels.glob("gpukernel-*.whl")
subprocess.run([*install, own, *([pip] if for_people else [])], env=environment, check=True)
# A file system that is read-only has no other time for this; by content, since times are not the same on each build.
for folder in (target / "lib").glob("python3*/site-packages"):
    if (folder / "torch").is_dir():
        link_libraries(folder)
    for file in folder.rglob("direct_url.json"):
        file.unlink()  # names the place of the build
    compileall.compile_dir(
        folder,
        quiet=2,
        force=True,
        workers=1,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
for leftover in (target / "include", Path("/root/.cache")):
    shutil.rmtree(leftover, ignore_errors=True)
