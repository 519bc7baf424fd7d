"""Mistakes on the command line: each kind has one sentence and one exit status, and they are what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from gpukernel.cli import app
from gpukernel.cli.terminal.output import STATUSES, hours, status_of
from gpukernel.cli.terminal.usage import PANELS
from gpukernel.common.errors import LeaseEnded, NotAllowed, PoolError, PoolUnreachable, Refused, UnknownToken
from tests.conftest import Pool

DOCS = Path(__file__).parents[3] / "docs" / "cli.md"


def gpukernel(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpukernel.cli", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("leese", "There is no command “gpukernel leese”; did you mean “lease” or “leases”?"),
        ("pool iniit", "There is no command “gpukernel pool iniit”; did you mean “init”?"),
        ("slurm suply", "There is no command “gpukernel slurm suply”; did you mean “supply”?"),
        ("kubernetes nod", "There is no command “gpukernel kubernetes nod”; did you mean “node”?"),
        ("server delegat", "There is no command “gpukernel server delegat”; did you mean “delegate”?"),
        ("lease aquire", "There is no command “gpukernel lease aquire”; did you mean “acquire”?"),
        ("server delegate gpu1/0 --too slurm", "has no option --too; did you mean “--to” or “--pool”?"),
        ("slurm supply --partion gpu", "has no option --partion; did you mean “--partition”?"),
        ("server delegate", "Missing argument 'DEVICE'. See “gpukernel server delegate --help”."),
        ("server delegate gpu1/0", "Missing option '--to'"),
        ("lease list -o xml", "'xml' is not one of 'table', 'wide', 'json', 'yaml', 'name'"),
        ("xyzzy", "There is no command “gpukernel xyzzy”."),
        ("leases --jsn", "“gpukernel leases” has no option --jsn; did you mean “--json”?"),
        ("run --modle V100 -- true", "“gpukernel run” has no option --modle; did you mean “--model”?"),
        ("--pool x leases", "The option --pool stands behind the command"),
        ("run -p abc -- true", "-p wants a number, not “abc”. See “gpukernel run --help”."),
        ("run -m A100 -- true", "-m wants a whole number, not “A100”."),
        ("run -p", "'-p' requires an argument"),
        ("drain", "Missing argument 'SERVER'. See “gpukernel drain --help”."),
        (
            "ps -o xml",
            "gpukernel: -o / --output: 'xml' is not one of 'table', 'wide', 'json', 'yaml', 'name'",
        ),
        ("resize 3f2a 0.05", "“gpukernel resize” does not know what “0.05” is for."),
        ("leases mine today", "“gpukernel leases” does not know what “mine today” is for."),
        ("ps -o yaml --json", "--json is -o json; leave one of --json and -o yaml out."),
        ("ps -w 0", "the shortest is 0.1 s"),
        ("report --csv -o name", "Choose one of --csv and -o name."),
        ("run -- true", "Say how large the slice is"),
        ("run -p 0.1 --filter gpu=1 -- true", "“gpu=1” is no filter"),
        ("run -p 0.1 --filter device=gpu1 -- true", "name the device as “gpukernel list-gpus” does"),
        ("up --simulate v1000", "names no simulated GPUs"),
        ("up --simulate v100 --worker-accounts 7", "“7” is no range of accounts"),
        ("kernelspec install --share 7", "A share lies between"),
        ("kernelspec remove", "Name the kernels to remove, or give --all."),
        ("ps --pool 127.0.0.1:abc", "“127.0.0.1:abc” is no pool's address and no connection file"),
        ("ps --pool a:1,b", "lists “b”, which is no pool's address"),
        ("man --install --directory x", "Give one of COMMAND, --install and --directory."),
    ],
)
def test_what_is_not_understood_is_named_with_status_2(words: str, sentence: str, tmp_path: Path) -> None:
    done = gpukernel(*words.split(), GPUKERNEL_STATE=str(tmp_path))
    assert sentence in done.stderr
    assert done.stderr.startswith("gpukernel: ")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    "words",
    [
        *("leases", "list-gpus", "top --times 1", "smi", "quota show", "token list", "server list", "report"),
        *("lease list --engine slurm", "server delegate gpu1/0 --to slurm", "server forget gpu1 --yes"),
        *("reserve list", "run -p 0.1 -- true", "request -p 0.1", "resize abc -p 0.1", "drain gpu1"),
    ],
)
def test_without_a_pool_every_command_ends_with_status_3(words: str, tmp_path: Path) -> None:
    done = gpukernel(*words.split(), GPUKERNEL_STATE=str(tmp_path), XDG_STATE_HOME=str(tmp_path))
    assert "No pool answers at" in done.stderr
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)


def test_what_is_not_there_is_status_5_and_what_is_full_6(own_pool: Pool, tmp_path: Path) -> None:
    own_pool.environment["XDG_STATE_HOME"] = str(tmp_path / "home")
    for words in (
        "drain gpu7",
        "server forget gpu7 --yes",
        "resize abc -p 0.1",
        "release",
        "release abc",
        "token revoke gpk0000000000",
        "run -p 0.1 --model H100 -- true",
        "run -p 0.1 --filter device=gpu7/0 -- true",
        f"quota import {tmp_path}/none.yaml",
        "kernelspec remove none",
        "man none",
    ):
        done = own_pool.gpukernel(*words.split())
        assert (done.returncode, done.stderr.count("\n")) == (5, 1), (words, done.stderr)
    assert own_pool.gpukernel("request", "-p", "1").returncode == 0
    full = own_pool.gpukernel("run", "-p", "0.1", "--wait", "0", "--", "true")
    assert full.returncode == 6, full.stderr
    bounded = own_pool.gpukernel("quota", "set", "pool", "devices=0.5")
    assert bounded.returncode == 0, bounded.stderr
    assert own_pool.gpukernel("run", "-p", "0.1", "--wait", "0", "--", "true").returncode == 6
    assert own_pool.gpukernel("quota", "set", "pool", "devices=many").returncode == 2


def test_each_kind_of_error_has_its_status() -> None:
    kinds = {
        PoolUnreachable("x"): 3,
        NotAllowed("x"): 4,
        UnknownToken("x"): 4,
        LeaseEnded("x"): 5,
        Refused("no_such_server", "x"): 5,
        Refused("invalid", "x"): 2,
        Refused("full", "x"): 6,
        Refused("quota", "x"): 6,
        Refused("rival", "x"): 1,
        PoolError("x"): 1,
    }
    assert {error: status_of(error) for error in kinds} == kinds


def test_the_page_says_what_each_status_means() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", DOCS.read_text(), flags=re.MULTILINE))
    assert {int(status): meaning for status, meaning in rows.items()} == {
        status: re.sub(r"“([a-z-]+)”", r"`\1`", meaning) for status, meaning in STATUSES.items()
    }


def test_commands_write_ascii_in_the_c_locale_and_nobodys_name_ends_them() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpukernel.cli", "leäse"],
        env={**{k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}, "LC_ALL": "C"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.decode("ascii").startswith('gpukernel: There is no command "gpukernel le\\xe4se"')


def test_the_help_names_every_command_once_by_what_it_is_for() -> None:
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert sorted(name for names in PANELS.values() for name in names) == sorted(known)
    shown = gpukernel("--help", COLUMNS="80").stdout
    places = [shown.index(f"─ {panel} ─") for panel in PANELS]
    assert places == sorted(places)
    begin = shown[places[0] : places[1]]
    assert all(f"│ {name} " in begin for name in PANELS["Begin"])
    assert max(map(len, shown.splitlines())) <= 80


def test_hours_that_would_round_to_nothing_have_more_digits() -> None:
    assert [hours(h) for h in (2.5, 0.1, 0.07, 0.003, 0.0001, 0.0)] == [
        "2.50",
        "0.10",
        "0.070",
        "0.003",
        "< 0.001",
        "0",
    ]


@pytest.mark.parametrize("token", ["🦄", "gpk0.sécret", "gpk0.se\ncret"])
def test_a_token_that_can_be_none_is_said_before_anything_is_sent(token: str) -> None:
    done = gpukernel("ps", "--pool", "127.0.0.1:1", GPUKERNEL_POOL_TOKEN=token)
    assert done.stderr.startswith("gpukernel: The token has characters that no token has")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    done = gpukernel("ps", "--pool", "127.0.0.1:1", GPUKERNEL_POOL_TOKEN="gpk0.secret\r\n")
    assert "No pool answers at 127.0.0.1:1" in done.stderr


def test_the_page_brackets_an_argument_that_may_be_left_out_once() -> None:
    usages = [
        line for line in DOCS.read_text().splitlines() if line.startswith("$ gpukernel resize [OPTIONS")
    ]
    assert usages == ["$ gpukernel resize [OPTIONS] [LEASE]"]
    assert "[[" not in DOCS.read_text()
