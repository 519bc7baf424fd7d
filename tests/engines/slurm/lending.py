"""A pool with TLS, a real Slurm with two nodes of two GPUs, and supplies that lend from one to the other."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpukernel.client.admin import AdminClient
from gpukernel.common.model import Device, GpuServer, Lease
from tests.conftest import eventually
from tests.ports import free_port
from tests.slurm import Cluster


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gpukernel.cli", *arguments]


def output_of(environment: dict[str, str], *arguments: str) -> str:
    """Run a command of gpukernel, which has to work, and return what it prints."""
    done = subprocess.run(
        command(*arguments), env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Lending:
    """The pool, the cluster, and the supply called ``gpu``.

    Attributes
    ----------
    admin
        The connection file of an administrator.
    way
        The supply's.
    """

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self.cluster, self.home = cluster, home
        self.state, self.folder = home / "pool", home / "supply"
        self.environment = {**os.environ, **cluster.environment}
        self.admin, self.way = home / "admin.pool", home / "supply.pool"
        self._supply: subprocess.Popen[str] | None = None
        self._log = home / "supply.log"
        self.others: frozenset[str] = frozenset()
        self.others = frozenset(self.jobs())
        self._run("pool", "init", "--state", str(self.state), "--name", "127.0.0.1")
        self._port = free_port()
        self.start_pool()
        for scope, file in (("admin", self.admin), ("supply", self.way)):
            create = ["token", "create", scope, "--scope", scope, "--file", str(file)]
            self._run(*create, "--state", str(self.state))

    def kill_pool(self) -> None:
        self._pool.kill()
        self._pool.wait()

    def start_pool(self) -> None:
        listen = ["--listen", f"127.0.0.1:{self._port}", "--state", str(self.state), "--log-level", "warning"]
        self._pool = subprocess.Popen(
            command("pool", *listen), env=self.environment, stdout=subprocess.PIPE, text=True
        )
        assert self._pool.stdout is not None
        assert "The pool is ready" in self._pool.stdout.readline()

    def _run(self, *arguments: str) -> str:
        return output_of(self.environment, *arguments)

    # --- the supply ---

    def words(self, *options: str) -> list[str]:
        return command(
            "slurm", "supply", "--partition", "gpu", "--gpus", "2", "--hours", "2", "--simulate", "v100",
            "--tcp-host", "127.0.0.1", "--every", "1s", "--folder", str(self.folder), "--pool", str(self.way), *options,
        )  # fmt: skip

    def stop_words(self) -> list[str]:
        return command("slurm", "stop", "gpu", "--folder", str(self.folder))

    def start(self, *options: str) -> None:
        with self._log.open("a") as log:
            self._supply = subprocess.Popen(
                self.words(*options), env=self.environment, stdout=log, stderr=log, text=True
            )

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self._supply is not None:
            self._supply.send_signal(number)
            self._supply.wait(60)
            self._supply = None

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def status(self) -> dict[str, Any]:
        said = self._run("slurm", "status", "gpu", "--folder", str(self.folder), "--json")
        return dict(json.loads(said)[0])

    def let_it_look(self, seconds: float) -> None:
        """Wait until the supply has looked again after so many seconds; a look is published after what it says."""
        state = self.folder / "state.json"
        eventually(state.exists, 60)

        def looked() -> float:
            return float(json.loads(state.read_text())["at"])

        first = looked()
        eventually(lambda: looked() > first + seconds, seconds + 120)

    def jobs(self) -> dict[str, tuple[str, str, int]]:
        """State, node and restarts of jobs that are not over, by id, without those of tests before."""
        form = "JobID:12|,State:20|,NodeList:20|,RestartCnt:8|"
        said = self.cluster.ask("squeue", "--noheader", f"--Format={form}")
        lines = ([field.strip() for field in line.split("|")] for line in said.splitlines())
        found = {line[0]: (line[1], line[2], int(line[3])) for line in lines}
        return {job: what for job, what in found.items() if job not in self.others}

    # --- the pool ---

    def ask(self) -> tuple[list[Device], list[GpuServer], list[Lease]]:
        async def work() -> tuple[list[Device], list[GpuServer], list[Lease]]:
            async with AdminClient(str(self.admin)) as client:
                leases, _ = await client.leases(include_ended=True)
                return await client.devices(), await client.gpu_servers(), leases

        return asyncio.run(work())

    def offered(self) -> dict[str, int]:
        """Return the number of devices of each server that may be promised."""
        found: dict[str, int] = {}
        for device in self.ask()[0]:
            if device.available:
                found[device.server] = found.get(device.server, 0) + 1
        return found

    def hold(self, *options: str) -> subprocess.Popen[str]:
        """Start a program that holds a slice until its standard input is closed; it says where it is first."""
        code = (
            "import sys; from cuda.bindings import driver as d; d.cuInit(0); "
            "print(d.cuDeviceGetCount()[1], flush=True); sys.stdin.read()"
        )
        program = subprocess.Popen(
            [*command("run", "--pool", str(self.admin), *options), "--", sys.executable, "-c", code],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert program.stdout is not None
        if not program.stdout.readline():
            raise AssertionError(program.communicate()[1])
        return program

    def close(self) -> None:
        self.kill(signal.SIGTERM)
        end = time.monotonic() + 60
        self.cluster.ask("scancel", "--user=root")
        self.cluster.ask("scancel", "--full", "--signal=KILL", "--user=root")
        while self.jobs() and time.monotonic() < end:
            time.sleep(0.2)
        self._pool.terminate()
        self._pool.communicate(timeout=60)


@contextlib.contextmanager
def lending(cluster: Cluster, home: Path) -> Iterator[Lending]:
    """A `Lending` that leaves no job behind."""
    world = Lending(cluster, home)
    try:
        yield world
    finally:
        # Which a test that fails shows.
        print(
            world.log(),
            cluster.ask("squeue"),
            cluster.ask("sinfo", "--Node", "--long"),
            cluster.log(),
            sep="\n",
        )
        world.close()
