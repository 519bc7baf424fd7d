"""Pictures of what commands show: at terminals of 60, 80 and 120 columns and in a pipe, in a UTF-8 and in a C locale.

The pictures are files in `screens`; ``GPUKERNEL_WRITE_SCREENS=1`` writes them anew, to be looked at before they are committed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from rich.cells import cell_len

from tests.cli.terminal.terminals import Terminal, without_control

SCREENS = Path(__file__).parent / "screens"
COMMANDS = ("list-gpus", "leases", "top --times 1", "ps -o name")
SHOW = [sys.executable, "-m", "tests.cli.terminal.fixed_pool"]
LOCALES = {"utf-8": "C.UTF-8", "c": "C"}
COLOURED = re.compile(r"\x1b\[(?:\d+;)*(?:[34][0-8]|9[0-7]|10[0-7])[;m]")


def environment(locale: str, **others: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LC_", "LANG", "PYTHONUTF8"))
    }
    kept = {
        name: value for name, value in kept.items() if name not in ("PYTHONIOENCODING", "COLUMNS", "NO_COLOR")
    }
    return {**kept, "LC_ALL": LOCALES[locale], **others}


def screen(columns: int | None, locale: str, *commands: str) -> str:
    """Return what commands show one after the other, at a terminal or in a pipe."""
    words = " -- ".join(commands).split()
    if columns is None:
        done = subprocess.run([*SHOW, *words], env=environment(locale), capture_output=True, check=True)
        assert done.stderr == b""
        return done.stdout.decode()
    with Terminal([*SHOW, *words], environment(locale), columns) as terminal:
        return without_control(terminal.rest())


@pytest.mark.parametrize("locale", LOCALES)
@pytest.mark.parametrize("columns", [60, 80, 120, None])
def test_a_screen_is_as_wide_as_the_terminal_and_a_pipe_has_everything(
    columns: int | None, locale: str
) -> None:
    shown = screen(columns, locale, *COMMANDS)
    path = SCREENS / f"{columns or 'pipe'}-{locale}.txt"
    if os.environ.get("GPUKERNEL_WRITE_SCREENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown)
    tables = shown.partition("$ gpukernel ps -o name")[0]
    if columns is not None:
        assert max(map(cell_len, tables.splitlines())) <= columns
    if locale == "c":
        assert shown.isascii()
    assert "\x1b" not in shown  # not even the one in somebody's notebook's name
    assert shown == path.read_text()


def test_wide_has_every_column_at_any_terminal() -> None:
    narrow = screen(60, "utf-8", "leases -o wide")
    for text in ("Tesla V100-SXM2-32GB (simulated)", "1,840,233", "--epochs 10 --lr 0.1", "深度学习"):
        assert text in narrow


def test_programs_get_the_same_in_json_and_yaml_whatever_the_locale() -> None:
    for locale in LOCALES:
        shown = screen(None, locale, "leases -o json", "leases --json", "leases -o yaml")
        in_json, the_same, in_yaml = re.split(r"^\$ .*\n", shown, flags=re.MULTILINE)[1:]
        assert in_json == the_same
        leases = json.loads(in_json)
        assert yaml.safe_load(in_yaml) == leases
        assert leases[2]["holder"]["description"] == "作业三：矩阵乘法.ipynb"
        assert all("secret" not in lease for lease in leases)


def test_no_color_means_none() -> None:
    words = [sys.executable, "-m", "gpukernel.cli", "leases", "--help"]
    shown = {}
    for value in ("", "1"):
        with Terminal(words, environment("utf-8", NO_COLOR=value)) as terminal:
            shown[value] = terminal.rest()
    assert COLOURED.search(shown[""])
    assert not COLOURED.search(shown["1"])
    assert without_control(shown[""]) == without_control(shown["1"])


def test_watch_shows_a_listing_again_and_ends_at_ctrl_c() -> None:
    with Terminal([*SHOW, "ps", "-w", "0.1"], environment("utf-8")) as terminal:
        for _ in range(3):
            terminal.wait_for("3f2a91b7")
        terminal.type("\x03")
        terminal.rest()
        assert terminal.process.returncode == 0
    with Terminal([*SHOW, "list-gpus", "--watch", "-o", "wide"], environment("utf-8"), 140) as terminal:
        terminal.wait_for("Multiprocessors")  # without a time it is one that people can read


def test_watching_is_for_people() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpukernel.cli", "leases", "-w", "1", "-o", "yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "gpukernel: --watch shows a table; ask for -o yaml again and again instead.\n"
