"""Writes the corpora that the fuzzers begin with: ``seeds.py FUZZER FOLDER``.

Made from what the tree has anyway: the PTX of the tests of single instructions, and the files of ``seeds/`` and
``regressions/``.  Images, frames and answers are small and are built here.
"""

from __future__ import annotations

import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
ROWS_IN_ONE_KERNEL = 12


def ptx_seeds() -> Iterator[bytes]:
    """Kernels of a dozen instructions each."""
    sys.path.insert(0, str(REPOSITORY))
    from tests.native.simgpu_exec.test_instructions import CASES, ROWS

    frame = (CASES / "lane.ptx").read_text()
    kinds: dict[tuple[str, str], list[str]] = {}
    sizes = {"r": ("u32", 4), "f": ("f32", 4), "rd": ("u64", 8), "fd": ("f64", 8)}
    for text, register, *_ in ROWS:
        names = {letter: f"%{register}{n + 1}" for n, letter in enumerate("abcd")}
        kinds.setdefault((register, ""), []).append(text.format(**names))
    for (register, _), bodies in kinds.items():
        kind, size = sizes[register]
        for first in range(0, len(bodies), ROWS_IN_ONE_KERNEL):
            body = "\n".join(bodies[first : first + ROWS_IN_ONE_KERNEL])
            text = frame.replace("SIZE", str(size)).replace("TYPE", kind).replace("BODY", body)
            yield text.replace("%REG", f"%{register}").encode()


SEEDS = {"ptx": ptx_seeds}


def write(fuzzer: str, folder: Path) -> None:
    """Lay the beginnings of `fuzzer` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(SEEDS[fuzzer]()):
        (folder / f"seed-{number:03}").write_bytes(data)
    for kind in ("seeds", "regressions"):
        for path in sorted((HERE / kind / fuzzer).glob("*")):
            shutil.copyfile(path, folder / f"{kind}-{path.name}")


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
