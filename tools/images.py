"""``python -m tools.images pool agent``: builds container images from the wheel in ``dist/``, without a network, with what they contain.

Guarantees
----------
* What goes in is pinned: `deploy/images/requirements`, the wheel, and the base that ``--base`` names; by digest, it is one image.
* The same input gives the same image: all times are ``SOURCE_DATE_EPOCH``, else the last commit's.
* Beside each image lies its bill of materials, ``dist/images/NAME.cdx.json`` (`tools.bill_of_materials`).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker

from tools.bill_of_materials import bill_of_materials

__all__ = ["IMAGES", "Image", "build", "make_context"]

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy" / "images"
PIP = "pip==25.3"


@dataclass(frozen=True)
class Image:
    """An image: its Containerfile, its list of pinned packages, the extras of gpukernel that the list was made from, and what was left out of it."""

    containerfile: str
    pinned: str
    extras: tuple[str, ...] = ()
    hashes: bool = True
    without: tuple[str, ...] = ()


# What PyTorch's wheel asks for and a slice brings: `deploy/images/install.py` links the client's side of these in their place.
_OF_A_SLICE = (
    "cuda-toolkit",
    "nvidia-cublas",
    "nvidia-cuda-cccl",
    "nvidia-cuda-cupti",
    "nvidia-cuda-runtime",
    "nvidia-cudnn-cu13",
    "nvidia-cufft",
    "nvidia-curand",
    "nvidia-cusolver",
    "nvidia-cusparse",
    "nvidia-nccl-cu13",
    "nvidia-nvjitlink",
    "nvidia-nvtx",
)

IMAGES = {
    "pool": Image("service", "pool", ("postgres",)),
    "agent": Image("service", "agent", ("libraries",)),
    "agent-cu12": Image("service", "agent-cu12", ("server-cu12",)),
    "hub": Image("hub", "hub", ("hub", "postgres")),
    **{
        f"singleuser-{framework}": Image("singleuser", framework, hashes=False)
        for framework in ("numba", "tensorflow", "jax")
    },
    "singleuser-pytorch": Image("singleuser", "pytorch", hashes=False, without=_OF_A_SLICE),
}


def version() -> str:
    """Return the version of this tree."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def find_wheel(folder: Path) -> Path:
    """Return the wheel of this version in `folder`; the one for every Linux where there are several."""
    found = sorted(
        folder.glob(f"gpukernel-{version()}-py3-none-*.whl"), key=lambda one: "manylinux" not in one.name
    )
    if not found:
        sys.exit(
            f"There is no wheel of version {version()} in {folder}; make it with “make wheels”, or “make wheel” for this machine."
        )
    return found[0]


def pin(name: str) -> None:
    """Make the list of an image's pinned packages again, with the newest that fit."""
    image, lists = IMAGES[name], FOLDER / "requirements"
    own = lists / f"{image.pinned}.in"
    command = [
        "uv",
        "pip",
        "compile",
        "--quiet",
        "--upgrade",
        "--no-header",
        "--no-annotate",
        "--universal",
        "--python-version",
        "3.11",
    ]
    command += ["--generate-hashes"] if image.hashes else []
    command += [word for extra in image.extras for word in ("--extra", extra)]
    command += [word for package in image.without for word in ("--no-emit-package", package)]
    command += [str(ROOT / "pyproject.toml"), *([str(own)] if own.exists() else [])]
    subprocess.run([*command, "--output-file", str(lists / f"{image.pinned}.txt")], check=True)


def for_python(pinned: str, python: str) -> str:
    """Return those of the pinned packages that CPython `python` needs on Linux; pip itself asks which Python it runs on, not for which."""
    there = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
    }
    kept: list[str] = []
    wanted = True
    for line in pinned.splitlines():
        if not line.startswith(" "):
            name, _, rest = line.partition(" ; ")
            marker = rest.removesuffix("\\").strip()
            wanted = not marker or Marker(marker).evaluate(there)
            line = name + (" \\" if line.endswith("\\") and not name.endswith("\\") else "")
        if wanted:
            kept.append(line)
    return "\n".join(kept) + "\n"


def make_context(name: str, wheel: Path, context: Path, python: str, extra: Sequence[str] = ()) -> None:
    """Make the folder that an image is built from: the wheels of its list for CPython `python` (``3.13``), and gpukernel's.

    Parameters
    ----------
    extra
        More words for ``pip download``, such as ``--no-index``.
    """
    image = IMAGES[name]
    shutil.rmtree(context, ignore_errors=True)
    wheels = context / "wheels"
    wheels.mkdir(parents=True)
    pinned = FOLDER / "requirements" / f"{image.pinned}.txt"
    (context / "requirements.txt").write_text(for_python(pinned.read_text(), python))
    shutil.copy(FOLDER / "install.py", context)
    shutil.copy(FOLDER / f"{image.containerfile}.Containerfile", context / "Containerfile")
    shutil.copy(wheel, wheels)
    # Each by its name: pip takes none for an older one's, and TensorFlow's is 2.27.
    glibcs = [*(f"_2_{minor}" for minor in range(28, 16, -1)), "2014"]
    platforms = [word for glibc in glibcs for word in ("--platform", f"manylinux{glibc}_x86_64")]
    download = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--dest",
        str(wheels),
    ]
    download += ["--implementation", "cp", "--python-version", python, *platforms, *extra]
    subprocess.run([*download, "--requirement", str(context / "requirements.txt")], check=True)
    subprocess.run([*download, PIP], check=True)


def epoch() -> str:
    """Return the time of everything in the images, in seconds since 1970."""
    if told := os.environ.get("SOURCE_DATE_EPOCH"):
        return told
    last = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return last.stdout.strip()


def build(context: Path, tag: str, base: str, when: str, builder: Sequence[str] = ("buildah",)) -> str:
    """Build the image `tag` from a context on the image `base`, and return its id; `builder` is buildah with its own options."""
    identity = context.parent / f"{context.name}.id"
    words = [
        "build",
        "--isolation",
        "chroot",
        "--pull-never",
        "--no-cache",
        "--layers=false",
        "--timestamp",
        when,
    ]
    words += [
        "--build-arg",
        f"BASE={base}",
        "--build-arg",
        f"VERSION={version()}",
        "--iidfile",
        str(identity),
        "--tag",
        tag,
    ]
    subprocess.run([*builder, *words, str(context)], check=True, stdout=sys.stderr)
    return identity.read_text().strip()


def root_of(image: str, builder: Sequence[str]) -> tuple[str, Path]:
    """Mount an image; return the container that has it mounted, and where."""

    def ask(*words: str) -> str:
        return subprocess.run([*builder, *words], capture_output=True, text=True, check=True).stdout.strip()

    container = ask("from", "--pull-never", image)
    return container, Path(ask("mount", container))


def main(arguments: Sequence[str] | None = None) -> None:
    """Build the images that are named."""
    parser = argparse.ArgumentParser(prog="python -m tools.images", description=main.__doc__)
    parser.add_argument("image", nargs="*", metavar="IMAGE", help=", ".join(IMAGES))
    parser.add_argument(
        "--base",
        default="docker.io/library/python:3.13-slim-trixie",
        help="by digest for a release: NAME@sha256:…",
    )
    parser.add_argument("--python", default="3.13", metavar="X.Y", help="the base's Python")
    parser.add_argument(
        "--repository", default="localhost/gpukernel", help="images are REPOSITORY-IMAGE:VERSION"
    )
    parser.add_argument(
        "--pin",
        action="store_true",
        help="make the lists of pinned packages again, with uv, and build nothing",
    )
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.image if name not in IMAGES]:
        parser.error(f"there is no image {unknown[0]}; there are {', '.join(IMAGES)}")
    if not re.fullmatch(r"3\.\d+", given.python):
        parser.error(f"--python {given.python} is no version of Python such as 3.13")
    names = given.image or list(IMAGES)
    if given.pin:
        for name in names:
            pin(name)
        return
    wheel = find_wheel(ROOT / "dist")
    for name in names:
        context = ROOT / "dist" / "images" / name
        make_context(name, wheel, context, given.python)
        subprocess.run(["buildah", "pull", "--policy", "missing", given.base], check=True, stdout=sys.stderr)
        tag = f"{given.repository}-{name}:{version()}"
        image = build(context, tag, given.base, epoch())
        container, root = root_of(image, ("buildah",))
        try:
            bill = bill_of_materials(root, tag, version(), given.base, image)
        finally:
            subprocess.run(["buildah", "rm", container], check=True, capture_output=True)
        (context.parent / f"{name}.cdx.json").write_text(bill)
        print(f"{tag} is {image}; what it contains is in dist/images/{name}.cdx.json.")


if __name__ == "__main__":
    main()
