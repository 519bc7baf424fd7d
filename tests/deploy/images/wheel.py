"""A wheel of this checkout without a build: what its editable installation has beside the checkout's own Python."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path, PurePosixPath

import pytest

from tools.images import ROOT

__all__ = ["wheel_of_this_installation"]

_DATA = ("etc", "share")
_OF_THE_EDITABLE_ONE = {"INSTALLER", "RECORD", "REQUESTED", "direct_url.json"}
_MODES = {True: 0o755, False: 0o644}


def wheel_of_this_installation(folder: Path) -> Path:
    """Write a wheel into `folder`, with the files that the build would put there, and return it; skips where nothing is installed."""
    installed = distribution("gpukernel")
    info = f"gpukernel-{installed.version}.dist-info"
    members: dict[str, Path] = {}
    for entry in installed.files or ():
        parts = PurePosixPath(entry).parts
        inner = tuple(part for part in parts if part != "..")
        place = Path(str(installed.locate_file(entry)))
        if parts[0] == "gpukernel" and place.suffix != ".pyc":
            members[str(entry)] = place
        elif parts[0] == "..":
            if inner[0] in _DATA:
                members[f"gpukernel-{installed.version}.data/data/{'/'.join(inner)}"] = place
        elif parts[0] == info and inner[-1] not in _OF_THE_EDITABLE_ONE:
            members[str(entry)] = place
    if not any(name.startswith("gpukernel/native/bin/") for name in members):
        pytest.skip("gpukernel is not installed with its native part here")
    members |= {str(path): ROOT / path for path in _checked_out()}
    file = folder / f"gpukernel-{installed.version}-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
        record = ""
        for name, place in sorted(members.items()):
            content = place.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(content)}\n"
            wheel.writestr(_named(name, executable=bool(place.stat().st_mode & 0o100)), content)
        wheel.writestr(_named(f"{info}/RECORD"), f"{record}{info}/RECORD,,\n")
    return file


def _named(name: str, *, executable: bool = False) -> zipfile.ZipInfo:
    """Return the head of a member: the same at each time."""
    head = zipfile.ZipInfo(name)
    head.compress_type = zipfile.ZIP_DEFLATED
    head.external_attr = (0o100000 | _MODES[executable]) << 16
    return head


def _checked_out() -> list[Path]:
    """Return the files of the two packages that the build takes as they are, in the words of ``pyproject.toml``."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["wheel"]
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *build["packages"]]
    words += [f":(exclude,glob){pattern}" for pattern in build["exclude"]]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [Path(one) for one in listed if one and (ROOT / one).is_file()]
