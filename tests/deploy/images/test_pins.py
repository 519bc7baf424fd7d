"""Pins of the images' lists: all that gpukernel asks for, in versions that fit, with hashes where strangers' tokens are kept."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.images import FOLDER, IMAGES, for_python

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pinned(name: str, python: str = "3.13") -> dict[str, str]:
    text = for_python((FOLDER / "requirements" / f"{IMAGES[name].pinned}.txt").read_text(), python)
    return dict(re.findall(r"^([a-z0-9-]+)(?:\[[^]]*\])?==(\S+)", text, re.MULTILINE))


def wanted(name: str) -> Iterator[Requirement]:
    own = FOLDER / "requirements" / f"{IMAGES[name].pinned}.in"
    lines = own.read_text().splitlines() if own.exists() else []
    extras = [line for extra in IMAGES[name].extras for line in PROJECT["optional-dependencies"][extra]]
    for line in (*PROJECT["dependencies"], *extras, *(one for one in lines if not one.startswith("#"))):
        yield Requirement(line)


@pytest.mark.parametrize("name", IMAGES)
def test_what_gpukernel_asks_for_is_pinned_in_a_version_that_fits(name: str) -> None:
    versions = pinned(name)
    for requirement in wanted(name):
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is not pinned: python -m tools.images --pin {name}"
        assert requirement.specifier.contains(version, prereleases=True), (str(requirement), version)


@pytest.mark.parametrize("name", [name for name, image in IMAGES.items() if image.hashes])
def test_services_take_only_files_whose_hashes_are_known(name: str) -> None:
    text = for_python((FOLDER / "requirements" / f"{IMAGES[name].pinned}.txt").read_text(), "3.13")
    for block in re.split(r"\n(?=\S)", text.strip()):
        assert " --hash=sha256:" in block, block


@pytest.mark.parametrize("python", ["3.11", "3.13"])
@pytest.mark.parametrize("name", ["singleuser-tensorflow", "singleuser-jax"])
def test_a_slice_brings_nvidia_s_libraries_and_the_image_none(name: str, python: str) -> None:
    found = {one for one in pinned(name, python) if one.startswith("nvidia-")}
    assert found == {"nvidia-cuda-nvcc-cu12", "nvidia-ml-py"}  # libdevice for XLA, and gpukernel's own


@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_pytorch_has_of_nvidia_s_libraries_those_that_a_slice_has_not(python: str) -> None:
    found = {one for one in pinned("singleuser-pytorch", python) if one.startswith(("nvidia-", "cuda-"))}
    loaded = {"nvidia-cuda-nvrtc", "nvidia-cufile", "nvidia-cusparselt-cu13", "nvidia-nvshmem-cu13"}
    assert found == {*loaded, "cuda-bindings", "cuda-pathfinder", "nvidia-ml-py"}


def test_a_list_is_read_for_the_image_s_python_and_not_for_ours() -> None:
    text = "a==1 ; python_full_version < '3.12' \\\n    --hash=sha256:0\na==2 ; python_full_version >= '3.12' \\\n    --hash=sha256:1\nb==1 ; sys_platform == 'win32'\nc==1\n"
    assert for_python(text, "3.11") == "a==1 \\\n    --hash=sha256:0\nc==1\n"
    assert for_python(text, "3.13") == "a==2 \\\n    --hash=sha256:1\nc==1\n"


def test_no_list_names_a_place_of_its_making() -> None:
    for file in (FOLDER / "requirements").iterdir():
        assert not re.search(r"(file|https?)://|index-url|find-links", file.read_text()), file
