"""Copier of the newest public CUDA headers: what a ``libcuda.so.1`` exports is read from them.

``newest_headers.py WHEEL UNPACKED OUTPUT VERSION`` copies them from the wheel that this Python has installed, or unpacks
`WHEEL` in the folder `UNPACKED` first.  It ends with a sentence where they cannot be had, or are not of CUDA `VERSION`.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

HEADERS = [f"{name}{kind}.h" for name in ("cudaGL", "cudaEGL", "cudaVDPAU") for kind in ("", "Typedefs")]
HEADERS += ["cuda.h", "cudaTypedefs.h", "cudaProfilerTypedefs.h"]


def installed() -> Path | None:
    """Return the include folder of the wheel that this Python has."""
    try:
        spec = importlib.util.find_spec("nvidia.cu13")
    except ModuleNotFoundError:
        return None
    places = spec.submodule_search_locations if spec else None
    return Path(next(iter(places)), "include") if places else None


def complete(include: Path | None, version: str) -> bool:
    """Return whether `include` has every header, of CUDA `version`."""
    if include is None or not all((include / header).exists() for header in HEADERS):
        return False
    return re.search(rf"#define CUDA_VERSION {version}\b", (include / "cuda.h").read_text()) is not None


def main() -> None:
    """Copy what has changed."""
    wheel, unpacked, output, version = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    include = installed()
    if not complete(include, version):
        include = unpacked / "nvidia" / "cu13" / "include"
    if not complete(include, version):
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps"]
        done = subprocess.run([*pip, "--target", str(unpacked), wheel], capture_output=True, text=True)
        if done.returncode or not complete(include, version):
            raise SystemExit(
                f"The headers of CUDA {version} were not found: install the PyPI wheel {wheel}. {done.stderr.strip()}"
            )
    assert include is not None
    output.mkdir(parents=True, exist_ok=True)
    for header in HEADERS:
        text = (include / header).read_bytes()
        to = output / header
        if not to.exists() or to.read_bytes() != text:
            to.write_bytes(text)


if __name__ == "__main__":
    main()
