"""``gpukernel man``: pages that ``man`` shows without a complaint, of every command and every option."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from gpukernel.cli import app
from gpukernel.cli.terminal.man import pages
from tests.cli.terminal.terminals import Terminal, without_control


def commands(command: Any, name: str = "gpukernel") -> Iterator[tuple[str, Any]]:
    yield name, command
    for word, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{name}-{word}")


def test_every_command_has_a_page_with_every_option() -> None:
    found = dict(pages(typer.main.get_command(app)))
    known = dict(commands(typer.main.get_command(app)))
    assert set(found) == set(known)
    assert len(known) > 40
    for name, command in known.items():
        page = found[name].replace(r"\-", "-")
        assert page.isascii()
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                assert all(one in page for one in parameter.opts), (name, parameter.opts)


def test_man_shows_the_pages_without_a_warning(tmp_path: Path) -> None:
    if shutil.which("man") is None:
        pytest.skip("man is not installed")
    words = [sys.executable, "-m", "gpukernel.cli", "man", "--directory", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    written = sorted(tmp_path.glob("man1/gpukernel*.1"))
    assert done.stdout == f"{len(written)} pages are in {tmp_path}/man1.\n"
    # mandoc would say more; man-db runs groff with its warnings.
    for path in written[:: max(len(written) // 6, 1)]:
        shown = subprocess.run(
            ["man", "--warnings", "-l", str(path)],
            capture_output=True,
            text=True,
            check=True,
            env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin", "MANWIDTH": "80"},
        )
        assert shown.stderr == ""
        assert shown.stdout.splitlines()[0].startswith(path.stem.upper())
        assert "EXIT STATUS" in shown.stdout


def test_a_pipe_gets_roff_and_a_terminal_the_page(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "gpukernel.cli", "man", "pool", "init"]
    piped = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert piped.startswith('.TH "GPUKERNEL\\-POOL\\-INIT" 1')
    if shutil.which("man") is None:
        pytest.skip("man is not installed")
    with Terminal(words, {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANPAGER": "cat"}) as terminal:
        shown = without_control(terminal.rest())
    assert "gpukernel-pool-init - make a certificate authority" in " ".join(shown.split())
