"""The hook of container runtimes and the words that it is given: what it does not understand is a sentence, and nothing is made."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from gpukernel import native

UNREADABLE = "gpukernel: the runtime's words about the container cannot be read\n"


def called(folder: Path, state: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(native.oci_hook()), *words],
        input=state,
        env={**os.environ, "GPUKERNEL_CONTAINERS": str(folder)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


CREATE = ("create", "first-use", "/bin/false", "V100", "0.02")
WORDS = json.dumps(
    {
        "annotations": {"a": '"pid": 1, }', "id": "inner", "deep": [[{"pid": 1}]]},
        "id": "outer",
        "pid": os.getpid(),
    }
)


@pytest.mark.parametrize(
    "state",
    [
        "",
        "[]",
        "{",
        '{"id": "a"',
        '{"id": "a", "pid": 1x}',
        '{"id": "a", "pid": -1}',
        '{"id": "../../etc/x", "pid": 1}',
        '{"id": ".log", "pid": 1}',
        '{"pid": 1}',
        '{"id": "a", "pid": 1, "x": [',
        '{"id": "a", "pid": 99999999999999999999}',
        *(WORDS[:length] for length in range(0, len(WORDS), 7)),
    ],
)
def test_what_is_no_state_is_told_and_makes_nothing(tmp_path: Path, state: str) -> None:
    done = called(tmp_path, state, *CREATE)
    assert (done.returncode, done.stderr) == (1, UNREADABLE)
    assert list(tmp_path.iterdir()) == []


def test_the_outermost_members_count(tmp_path: Path) -> None:
    """This process has no file system for a lease, which is only looked for where its number was found."""
    done = called(tmp_path, WORDS, *CREATE)
    assert done.stderr == "gpukernel: the runtime has not mounted /run/gpukernel in the container\n"
    (tmp_path / "outer").touch()
    assert called(tmp_path, WORDS, "remove").returncode == 0
    assert not (tmp_path / "outer").exists()


def test_other_words_are_refused(tmp_path: Path) -> None:
    for words in ((), ("create",), ("create", "later", "/bin/false", "V100", "1"), ("remove", "x")):
        done = called(tmp_path, WORDS, *words)
        assert (done.returncode, "a hook is called with" in done.stderr) == (2, True)
