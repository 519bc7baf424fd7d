"""The logs of a pool and an agent in the foreground: a lease can be followed through them, and no secret is in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from gpukernel.common import logs
from gpukernel.pool.store.schema import leases
from gpukernel.remoting.lease_file import LEASE_FILE_VARIABLE
from tests.conftest import eventually
from tests.ports import free_port


class Logged:
    """A server in the foreground with its log in a file."""

    def __init__(self, path: Path, *arguments: str) -> None:
        self.path = path
        options = ("--log-level", "debug", "--log-format", "json")
        with path.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gpukernel.cli", *arguments, *options],
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        assert self.process.stdout is not None
        assert "ready" in self.process.stdout.readline()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=30)


# What its worker's standard error is, the program writes into itself: workers say something only where a driver does.
BAD_PROGRAM = f"""
import os, re
from cuda.bindings import driver as d
d.cuInit(0)
d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
assert d.cuMemAlloc(1 << 40)[0].name == "CUDA_ERROR_OUT_OF_MEMORY"
worker = re.search(r"unix:(\\S+)/data.sock", open(os.environ["{LEASE_FILE_VARIABLE}"]).read())[1]
with open(worker + "/worker.log", "a") as log:
    log.write("cuFoo is not supported\\nfrom \\x1b[31mthere")
"""


def test_a_lease_can_be_followed_through_the_logs_of_pool_and_agent_and_no_secret_is_in_them(
    tmp_path: Path,
) -> None:
    address = f"127.0.0.1:{free_port()}"
    pool = Logged(tmp_path / "pool.log", "pool", "--listen", address, "--state", str(tmp_path / "pool"))
    agent = None
    try:
        options = ("--pool", address, "--token-file", str(tmp_path / "pool" / "agent.token"))
        place = ("--name", "gpu1", "--simulate", "v100", "--tcp-host", "127.0.0.1")
        agent = Logged(tmp_path / "agent.log", "agent", *options, *place, "--state", str(tmp_path / "agent"))
        environment = {**os.environ, "GPUKERNEL_POOL": address}

        def ask(*arguments: str, token: Path | None = None) -> subprocess.CompletedProcess[str]:
            named = {"GPUKERNEL_POOL_TOKEN_FILE": str(token)} if token else {}
            return subprocess.run(
                [sys.executable, "-m", "gpukernel.cli", *arguments],
                env={**environment, **named},
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )

        anna, wrong = tmp_path / "anna.token", tmp_path / "wrong.token"
        state = ("--state", str(tmp_path / "pool"))
        made = ask("token", "create", "anna", "--person", "anna", "--file", str(anna), *state)
        assert made.returncode == 0, made.stderr
        wrong.write_text("a-token-that-nobody-made")
        assert ask("list-gpus", token=wrong).returncode == 4
        done = ask("run", "-p", "0.1", "--", sys.executable, "-c", BAD_PROGRAM, token=anna)
        assert done.returncode == 0, done.stderr
        assert ask("run", "-p", "0.1", "--model", "H100", "--", "true", token=anna).returncode == 5

        of_pool = eventually(lambda: (lines := pool.lines()) and story(lines)[-1:] == ["ends"] and lines)
        assert story(of_pool) == ["granted", "live", "ends"]
        eventually(
            lambda: agent and story(agent.lines()) == ["worker", *2 * ["its worker says"], "worker ended"]
        )
        said = [line["message"] for line in agent.lines() if "says" in line["message"]]
        assert said == [
            "its worker says: cuFoo is not supported",
            "its worker says: from \N{REPLACEMENT CHARACTER}[31mthere",
        ]
        about_leases = [line for line in of_pool + agent.lines() if "lease" in line]
        assert {tuple(line[name] for name in logs.FIELDS[1:]) for line in about_leases} == {
            ("anna", "", "gpu1", "gpu1/0")
        }
        assert len({line["lease"] for line in about_leases}) == 1
        refused = [line for line in of_pool if line["message"].startswith("refused")]
        assert [line["person"] for line in refused] == ["anna"]

        logged = pool.path.read_text() + agent.path.read_text()
        secrets = {path.read_text().strip() for path in tmp_path.rglob("*.token")}
        assert len(secrets) == 4  # the pool's, the agents', anna's, and the wrong one
        engine = sa.create_engine(f"sqlite:///{tmp_path}/pool/pool.db")
        with engine.connect() as db:
            secrets |= set(db.execute(sa.select(leases.c.secret)).scalars())
        engine.dispose()
        assert len(secrets) == 5
        assert [secret for secret in secrets if secret in logged] == []
    finally:
        for service in (agent, pool):
            if service:
                service.stop()


def story(lines: list[dict[str, Any]]) -> list[str]:
    """Return the beginnings of what is said of leases."""
    words = ("granted", "live", "ends", "its worker says", "worker ended", "worker")
    said = [line["message"] for line in lines if "lease" in line]
    return [next(word for word in words if message.startswith(word)) for message in said]
