"""Completion in the shells themselves: bash, zsh and fish complete commands, options, values and leases."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.terminal.terminals import Terminal

PROMPT = "ready> "

# How an interactive shell is started without anybody's settings, and told to complete; `source` is typer's own script.
STARTS = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        'eval "$(_GPUKERNEL_COMPLETE=source_bash gpukernel)"; PS1="rea""dy> "',
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        'autoload -U compinit; compinit -u -D; eval "$(_GPUKERNEL_COMPLETE=source_zsh gpukernel)"; PROMPT="rea""dy> "',
    ),
    "fish": (
        ["fish", "--no-config", "-i"],
        'function fish_prompt; echo -n "rea""dy> "; end; _GPUKERNEL_COMPLETE=source_fish gpukernel | source',
    ),
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A user with nothing but ``gpukernel`` on the path, and a lease that “gpukernel request” holds."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "gpukernel"
    command.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -c "import sys; sys.argv[0] = \'gpukernel\'; '
        'from gpukernel.cli import main; main()" "$@"\n'
    )
    command.chmod(0o755)
    held = tmp_path / "state" / "gpukernel-held"
    held.mkdir(parents=True)
    (held / "3f2a91b7c5d84e60.lease").touch()
    return {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "LC_ALL": "C.UTF-8",
    }


@pytest.mark.parametrize("shell", STARTS)
def test_an_interactive_shell_completes_what_was_begun(shell: str, environment: dict[str, str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    command, setting = STARTS[shell]
    with Terminal(command, environment, columns=120) as terminal:
        terminal.type(f"{setting}\n")
        terminal.wait_for(PROMPT)
        for begun, whole in (
            ("gpukernel list-g\t", "gpukernel list-gpus"),
            ("gpukernel leases --al\t", "gpukernel leases --all"),
            ("gpukernel ps -o ya\t", "gpukernel ps -o yaml"),
            ("gpukernel release 3f\t", "gpukernel release 3f2a91b7"),
            ("gpukernel pool in\t", "gpukernel pool init"),
            ("gpukernel server del\t", "gpukernel server delegate"),
            ("gpukernel server delegate gpu1/0 --to kub\t", "--to kubernetes"),
            ("gpukernel lease rel\t", "gpukernel lease release"),
            ("gpukernel lease list --engine sl\t", "--engine slurm"),
            ("gpukernel slurm sup\t", "gpukernel slurm supply"),
            ("gpukernel slurm status gpu -o ya\t", "-o yaml"),
            ("gpukernel kubernetes device-p\t", "gpukernel kubernetes device-plugin"),
        ):
            terminal.type(begun)
            terminal.wait_for(whole)
            terminal.type("\x15\n")  # the line is emptied
            terminal.wait_for(PROMPT)


def test_fish_shows_what_candidates_are_for(environment: dict[str, str]) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    script = "_GPUKERNEL_COMPLETE=source_fish gpukernel | source; complete -C 'gpukernel dr'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == ["drain"]
    assert "Take a GPU server out" in done.stdout


def test_nobody_waits_for_a_pool_that_is_away(environment: dict[str, str]) -> None:
    """Tab behind ``drain`` with no pool is silent and has no candidate."""
    done = subprocess.run(
        ["gpukernel"],
        env={
            **environment,
            "_GPUKERNEL_COMPLETE": "complete_bash",
            "COMP_WORDS": "gpukernel drain ",
            "COMP_CWORD": "2",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")
