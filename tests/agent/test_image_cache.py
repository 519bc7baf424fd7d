"""The bounds of the folder of module images, to which workers write that nobody trusts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpukernel.agent.image_cache import ImageCache

MIB = 2**20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "salt").write_bytes(bytes(32))
    return tmp_path


def image(folder: Path, letter: str, mib: int, used: int) -> Path:
    path = folder / (letter * 64)
    with path.open("wb") as file:
        file.truncate(mib * MIB)  # sparse
    os.utime(path, (used, used))
    return path


def left(folder: Path) -> set[str]:
    return {path.name[0] for path in folder.iterdir() if path.name != "salt"}


def test_the_least_recently_used_go_when_there_is_no_room(folder: Path) -> None:
    for used, letter in enumerate("cbadef"):
        image(folder, letter, 200, 1000 + used)
    ImageCache(folder).prune()
    assert left(folder) == {"b", "a", "d", "e", "f"}
    assert (folder / "salt").exists()


def test_files_without_end_are_bounded(folder: Path) -> None:
    for number in range(30):
        path = folder / f"{number:064x}"
        path.write_bytes(b"x")
        os.utime(path, (number, number))
    ImageCache(folder, most_files=10).prune()
    assert {int(path.name, 16) for path in folder.iterdir() if path.name != "salt"} == set(range(20, 30))


def test_what_is_no_image_goes(folder: Path) -> None:
    image(folder, "a", 1, 5)
    image(folder, "b", 300, 6)  # more than a quarter of everything
    (folder / "note").write_text("mine")
    (folder / ("c" * 64)).symlink_to("/etc/passwd")
    (folder / ("d" * 64)).mkdir()
    os.mkfifo(folder / ("e" * 64))
    ImageCache(folder).prune()
    assert left(folder) == {"a"}


def test_a_folder_where_nothing_was_added_is_not_listed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image(folder, "a", 1, 5)
    cache = ImageCache(folder)
    cache.prune()
    monkeypatch.setattr(Path, "iterdir", lambda _: pytest.fail("it was listed"))
    cache.prune()
