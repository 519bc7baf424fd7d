"""A course's notebooks in the home directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpukernel.jupyter.course_files import hand_out


def test_files_and_folders_are_given_once_and_then_belong_to_the_person(tmp_path: Path) -> None:
    source, home, memory = tmp_path / "srv", tmp_path / "home", tmp_path / "data" / "given.json"
    (source / "week1").mkdir(parents=True)
    (source / "week1" / "intro.ipynb").write_text("first")
    (source / "hello.ipynb").write_text("hello")
    home.mkdir()
    given = [source / "week1", source / "hello.ipynb"]
    made = hand_out("ml101", given, home, memory)
    assert made == [home / "ml101" / "week1", home / "ml101" / "hello.ipynb"]
    assert (home / "ml101" / "week1" / "intro.ipynb").read_text() == "first"
    (home / "ml101" / "hello.ipynb").unlink()
    (home / "ml101" / "week1" / "intro.ipynb").write_text("mine")
    (source / "new.ipynb").write_text("new")
    assert hand_out("ml101", [*given, source / "new.ipynb"], home, memory) == [home / "ml101" / "new.ipynb"]
    assert not (home / "ml101" / "hello.ipynb").exists()
    assert (home / "ml101" / "week1" / "intro.ipynb").read_text() == "mine"


def test_what_somebody_has_already_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text("the course's")
    home = tmp_path / "home"
    (home / "ml").mkdir(parents=True)
    (home / "ml" / "a.ipynb").write_text("mine")
    assert hand_out("ml", [tmp_path / "a.ipynb"], home, tmp_path / "given.json") == []
    assert (home / "ml" / "a.ipynb").read_text() == "mine"


def test_a_file_that_is_missing_is_a_warning_and_is_given_when_it_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    late = tmp_path / "late.ipynb"
    assert hand_out("ml", [late], home, tmp_path / "given.json") == []
    assert "late.ipynb of course ml was not copied" in caplog.text
    late.write_text("here")
    assert hand_out("ml", [late], home, tmp_path / "given.json") == [home / "ml" / "late.ipynb"]
