"""The command ``gpukernel`` as people and programs use it, against a real pool."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpukernel.cli.app import app
from tests.conftest import Pool, eventually
from tests.ports import free_port


def test_run_passes_the_exit_status_on_and_releases(shared_pool: Pool) -> None:
    assert shared_pool.gpukernel("run", "-p", "0.02", "--", "sh", "-c", "exit 7").returncode == 7
    assert shared_pool.gpukernel("run", "-m", "100", "--", "sh", "-c", "kill -9 $$").returncode == 128 + 9
    ended = shared_pool.leases(ended=True)[0]
    assert {lease.end_reason for lease in ended if lease.holder.description.startswith("sh ")} == {
        "the program ended"
    }


def test_run_says_what_cannot_be_run(shared_pool: Pool, tmp_path: Path) -> None:
    missing = shared_pool.gpukernel("run", "-p", "0.02", "--", "no-such-program")
    assert (missing.returncode, missing.stderr) == (
        127,
        "gpukernel: the program “no-such-program” was not found.\n",
    )
    # Nothing was asked of the pool: in a full one it would be said after the wait.
    named = {lease.holder.description for lease in shared_pool.leases(ended=True)[0]}
    assert "no-such-program" not in named
    (tmp_path / "plain").write_text("")
    denied = shared_pool.gpukernel("run", "-p", "0.02", "--", str(tmp_path / "plain"))
    assert denied.returncode == 126
    assert "Permission denied" in denied.stderr


def test_run_says_that_the_slice_ended_though_the_program_has_not_looked(shared_pool: Pool) -> None:
    program = shared_pool.start_on_slice("print('on', flush=True)\ninput()", "-p", "0.02", "--at-most", "1s")
    assert program.stdout is not None
    assert program.stdout.readline() == "on\n"
    eventually(lambda: not [lease for lease in shared_pool.leases()[0] if lease.state == "live"])
    said = program.communicate("\n", timeout=20)[1]
    assert program.returncode == 0
    assert "gpukernel: the slice was taken back: " in said


def test_run_passes_signals_on(shared_pool: Pool) -> None:
    code = "import signal, sys, time\nsignal.signal(signal.SIGUSR1, lambda *a: sys.exit(33))\nprint('on', flush=True)\ninput()"
    program = shared_pool.start_on_slice(code)
    assert program.stdout is not None
    assert program.stdout.readline() == "on\n"
    program.send_signal(signal.SIGUSR1)
    program.wait(20)
    assert program.returncode == 33


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "Say how large the slice is"),
        (["-p", "0"], "above 0 and up to 1"),
        (["-p", "-1"], "above 0 and up to 1"),
        (["-p", "nan"], "above 0 and up to 1"),
        (["-p", "1.0000001"], "above 0 and up to 1"),
        (["-m", "0"], "at least 1 MiB"),
        (["-m", "1000000000"], "1000000000 MiB fit on no device; the largest has 32768 MiB"),
        (["-n", "0", "-p", "0.1"], "at least 1"),
        (["-n", "3", "-p", "0.1"], "the pool has 2 that fit"),
        (["-p", "0.1", "--model", "H100"], "no H100; it has Tesla V100"),
        (["-p", "0.1", "--model", "x" * 300], "at most 256"),
        (["-p", "0.1", "--model", "x" * 65536], "at most 65536 bytes"),
    ],
)
def test_bad_sizes_get_one_sentence(shared_pool: Pool, options: list[str], words: str) -> None:
    done = shared_pool.gpukernel("run", *options, "--", "true")
    assert done.returncode != 0
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unreachable_pool_is_one_sentence_that_says_what_to_start(tmp_path: Path) -> None:
    for arguments in (["list-gpus"], ["leases"], ["run", "-p", "0.1", "--", "true"]):
        done = subprocess.run(
            [sys.executable, "-m", "gpukernel.cli", *arguments],
            env={**os.environ, "GPUKERNEL_STATE": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 3
        assert "start one with “gpukernel up”" in done.stderr
        assert done.stderr.count("\n") == 1


def test_tables_and_json_show_devices_and_leases(shared_pool: Pool) -> None:
    program = shared_pool.start_on_slice("print('on', flush=True); input()", "-p", "0.5")
    assert program.stdout is not None
    program.stdout.readline()
    devices = json.loads(shared_pool.gpukernel("list-gpus", "--json").stdout)
    assert sum(d["promised_bytes"] for d in devices) >= 16 * 2**30
    leases = json.loads(shared_pool.gpukernel("leases", "--json").stdout)
    (mine,) = [lease for lease in leases if lease["slices"][0]["memory_bytes"] == 16 * 2**30]
    assert mine["state"] == "live"
    assert "secret" not in mine
    table = shared_pool.gpukernel("leases").stdout
    assert "16.0 GiB" in table
    assert mine["id"][:8] in table
    assert "Tesla V100-SXM2-32GB (simulated)" in shared_pool.gpukernel("list-gpus").stdout
    program.communicate("\n")


def test_help_of_every_command_has_an_example(shared_pool: Pool) -> None:
    for command in ("up", "pool", "agent", "run", "list-gpus", "leases", "smi", "demo"):
        assert f"gpukernel {command}" in shared_pool.gpukernel(command, "--help").stdout


def test_a_second_pool_on_the_same_state_is_refused(shared_pool: Pool) -> None:
    done = shared_pool.gpukernel("up", "--simulate", "v100", "--state", str(shared_pool.state))
    assert done.returncode == 1
    assert "A pool runs already on" in done.stderr


def test_simulated_models_that_do_not_exist_are_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpukernel.cli", "up", "--simulate", "v1000:2", "--state", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "“v1000:2” names no simulated GPUs; write MODEL:COUNT" in done.stderr


class Service:
    """``gpukernel pool`` or ``gpukernel agent`` in the foreground, and the line that says it is ready."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpukernel.cli", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=30)


def test_pool_and_agents_apart_over_tcp_with_tokens(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    services = [Service("pool", "--listen", address, "--state", str(tmp_path / "pool"))]
    try:
        assert "The pool is ready" in services[0].line
        tokens = {name: tmp_path / "pool" / f"{name}.token" for name in ("pool", "agent")}
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in tokens.values())
        for name in ("gpu1", "gpu2"):
            options = [
                "--pool",
                address,
                "--token-file",
                str(tokens["agent"]),
                "--simulate",
                "v100",
                "--name",
                name,
            ]
            services.append(
                Service("agent", *options, "--tcp-host", "127.0.0.1", "--state", str(tmp_path / name))
            )
            assert "The agent is ready" in services[-1].line

        def ask(*arguments: str, token: Path | None) -> subprocess.CompletedProcess[str]:
            environment = {**os.environ, "GPUKERNEL_POOL": address}
            if token:
                environment["GPUKERNEL_POOL_TOKEN_FILE"] = str(token)
            command = [sys.executable, "-m", "gpukernel.cli", *arguments]
            return subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, timeout=60
            )

        devices = json.loads(ask("list-gpus", "--json", token=tokens["pool"]).stdout)
        assert [d["id"] for d in devices] == ["gpu1/0", "gpu2/0"]
        look = "from cuda.bindings import driver as d; d.cuInit(0); print(d.cuDeviceGetCount()[1])"
        run = ask("run", "-n", "2", "-p", "0.5", "--", sys.executable, "-c", look, token=tokens["pool"])
        assert run.stdout == "2\n", run.stderr
        for wrong, words in ((None, "does not know this token"), (tokens["agent"], "which may not do that")):
            refused = ask("list-gpus", token=wrong)
            assert refused.returncode == 4
            assert words in refused.stderr
        stranger = Service(
            "agent",
            "--pool",
            address,
            "--token-file",
            str(tokens["pool"]),
            "--simulate",
            "v100",
            "--state",
            str(tmp_path / "x"),
        )
        _, said = stranger.process.communicate(timeout=30)
        assert stranger.process.returncode == 1
        assert "Only a GPU server's agent may do that" in said

        services[1].stop()  # a server goes: its device is away at once
        eventually(
            lambda: (
                [d["available"] for d in json.loads(ask("list-gpus", "--json", token=tokens["pool"]).stdout)]
                == [False, True]
            )
        )
    finally:
        for service in reversed(services):
            service.stop()


@pytest.mark.parametrize("command", ["up", "agent"])
def test_direct_mode_on_a_machine_without_an_identity_is_refused(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpukernel.cli.services.machine_identity", lambda: "")
    said = CliRunner().invoke(app, [command, "--direct", "--simulate", "v100"]).exception
    assert str(said) == (
        "--direct needs this machine's identity, and /etc/machine-id is missing or empty; "
        "systemd-machine-id-setup writes one."
    )
