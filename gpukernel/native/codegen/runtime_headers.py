"""Copier of the public headers of one major version of the CUDA runtime, from NVIDIA's wheel.

``runtime_headers.py MAJOR UNPACKED OUTPUT`` copies them, and the runtime library, which knows its errors' sentences, from the
wheel that this Python has installed, or unpacks the wheel in the folder `UNPACKED` first.  The wheels of CUDA 11 and 12 share a
folder, so that one of the two is always unpacked.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

WHEELS = {
    11: ("nvidia-cuda-runtime-cu11==11.8.*", "nvidia/cuda_runtime", 11080),
    12: ("nvidia-cuda-runtime-cu12==12.9.*", "nvidia/cuda_runtime", 12090),
    13: ("nvidia-cuda-runtime==13.5.*", "nvidia/cu13", 13050),  # pyproject.toml names these two as well
}
"""By major version: the wheel, its folder, and ``CUDART_VERSION`` of its headers."""

HEADERS = [f"{name}_types.h" for name in ("builtin", "device", "driver", "surface", "texture", "vector")]
HEADERS += ["cuda_runtime_api.h", "cuda_device_runtime_api.h"]


def installed(folder: str) -> Path | None:
    """Return the `folder` of the wheel that this Python has."""
    try:
        spec = importlib.util.find_spec(folder.replace("/", "."))
    except ModuleNotFoundError:
        return None
    places = spec.submodule_search_locations if spec else None
    return Path(next(iter(places))) if places else None


def complete(wheel: Path | None, version: int) -> bool:
    """Return whether `wheel` has every header, of the runtime's `version`."""
    if wheel is None or not all((wheel / "include" / header).exists() for header in HEADERS):
        return False
    text = (wheel / "include" / "cuda_runtime_api.h").read_text()
    return re.search(rf"#define CUDART_VERSION +{version}\b", text) is not None


def main() -> None:
    """Copy what has changed."""
    major, unpacked, output = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    name, folder, version = WHEELS[major]
    wheel = installed(folder)
    if not complete(wheel, version):
        wheel = unpacked / folder
    if not complete(wheel, version):
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps"]
        # pip builds in an environment without pip, which PYTHONPATH leads to.
        outside = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(
            [*pip, "--target", str(unpacked), name], capture_output=True, text=True, env=outside
        )
        if done.returncode or not complete(wheel, version):
            raise SystemExit(
                f"The headers of the CUDA runtime {version} were not found: install the PyPI wheel {name}. {done.stderr.strip()}"
            )
    assert wheel is not None
    output.mkdir(parents=True, exist_ok=True)
    libraries = [path for path in (wheel / "lib").glob("libcudart.so.*") if path.suffix != ".a"]
    for path in [*(wheel / "include" / header for header in HEADERS), *libraries]:
        to = output / path.name
        if not to.exists() or to.read_bytes() != path.read_bytes():
            shutil.copyfile(path, to)


if __name__ == "__main__":
    main()
