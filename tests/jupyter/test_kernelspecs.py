"""Kernelspecs of slices: their content and logos."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gpukernel.jupyter import kernelspecs, logo

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("spec", kernelspecs.STANDARD, ids=lambda spec: spec.name)
def test_the_committed_set_is_what_the_code_makes(spec: kernelspecs.SliceSpec, tmp_path: Path) -> None:
    made = kernelspecs.write(spec, tmp_path, "python")
    for file in made.iterdir():
        assert file.read_bytes() == (ROOT / "kernelspecs" / spec.name / file.name).read_bytes()


@pytest.mark.parametrize("share", [0.001, 0.02, 0.3, 0.75, 1.0])
def test_logos_are_pictures_of_the_right_size(share: float) -> None:
    assert ElementTree.fromstring(logo.svg(share)).tag.endswith("svg")
    data = logo.png(share, 32)
    assert struct.unpack(">II", data[16:24]) == (32, 32)
    start = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[start - 4 : start])
    pixels = zlib.decompress(data[start + 4 : start + 4 + length])
    assert len(pixels) == 32 * (1 + 32 * 4)
