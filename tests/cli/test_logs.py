"""The log of the servers: one line an event, with the lease's names, without secrets, also when attacked."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gpukernel.agent.holders import Holders
from gpukernel.agent.worker_log import WorkerLog
from gpukernel.common import logs
from gpukernel.pool.store.database import open_database
from gpukernel.pool.store.schema import leases
from gpukernel.remoting.lease_file import LEASE_FILE_VARIABLE
from tests.conftest import eventually
from tests.ports import free_port

log = logging.getLogger("gpukernel.tests")
FORGED = 'ann\n2026-09-01 10:00:00.000 INFO pool: granted lease="x" \x1b[31m\u2028'


@pytest.fixture
def restored() -> Iterator[None]:
    """Restore logging as pytest has it, afterwards."""
    root, own = logging.getLogger(), logging.getLogger("gpukernel")
    before = root.handlers[:], root.level, own.level
    yield
    root.handlers[:], root.level, own.level = before


def written(form: logs.Form, level: logs.Level = logs.Level.INFO) -> str:
    stream = io.StringIO()
    logs.configure(level, form, stream)
    about = logs.fields(lease="5ffa", person=FORGED, course="", server="gpu1", device="gpu1/0")
    log.info("ends: %s", "because\nof this", extra=about)
    log.debug("unimportant")
    logging.getLogger("somebody.else").info("chatter")
    return stream.getvalue()


@pytest.mark.usefixtures("restored")
def test_a_line_for_people_has_its_fields_and_cannot_be_forged() -> None:
    (line,) = written(logs.Form.TEXT).splitlines()
    assert re.match(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} INFO tests: ends: because\\nof this lease=5ffa ", line
    )
    assert line.endswith(' course="" server=gpu1 device=gpu1/0')
    assert "\x1b" not in line


@pytest.mark.usefixtures("restored")
def test_a_json_line_is_an_object_with_the_same_fields() -> None:
    (line,) = written(logs.Form.JSON).splitlines()
    found = json.loads(line)
    assert [found[name] for name in ("level", "message", "lease", "device")] == [
        "info",
        "ends: because\\nof this",
        "5ffa",
        "gpu1/0",
    ]
    assert "\n" not in found["person"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found["time"])


@pytest.mark.usefixtures("restored")
def test_a_traceback_is_one_line_in_json() -> None:
    stream = io.StringIO()
    logs.configure(logs.Level.INFO, logs.Form.JSON, stream)
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: no" in json.loads(line)["exception"]


@pytest.mark.usefixtures("restored")
def test_levels_leave_lines_out() -> None:
    assert written(logs.Form.TEXT, logs.Level.ERROR) == ""
    assert "unimportant" in written(logs.Form.TEXT, logs.Level.DEBUG)
    assert "chatter" not in written(logs.Form.TEXT, logs.Level.DEBUG)


def test_an_error_of_the_database_does_not_show_what_was_written(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path}/pool.db")
    with engine.begin() as db, pytest.raises(sa.exc.StatementError) as error:
        db.execute(leases.insert().values(id="a", secret="hidden-secret"))
    assert "hidden-secret" not in str(error.value)
    engine.dispose()


def test_of_a_worker_that_writes_much_the_log_has_a_little_and_goes_on_after_a_restart(
    tmp_path: Path,
) -> None:
    file = tmp_path / "worker.log"
    file.write_text("one\ntwo\nhalf")
    assert WorkerLog(tmp_path).new_lines() == ["one", "two"]
    said = WorkerLog(tmp_path)  # of the next agent
    assert said.new_lines() == []
    with file.open("a") as more:
        more.write(" a line\n")
        more.writelines(f"line {number}\n" for number in range(100_000))
    lines = said.new_lines()
    assert lines[:2] == ["half a line", "line 0"]
    assert len(lines) == 51
    assert re.search(r"^\d+ lines and \d+ bytes more are left out\.$", lines[-1])
    assert said.new_lines() == []
    with file.open("a") as more:
        more.write("last words")
    assert said.new_lines(all_of_it=True) == ["last words"]


def test_an_agent_knows_after_a_restart_whom_its_workers_work_for(tmp_path: Path) -> None:
    first = Holders(tmp_path / "holders", "gpu1")
    first.begin(("a-1", 0), "anna", "ml101")
    first.begin(("b", 1), "ben", "")
    again = Holders(tmp_path / "holders", "gpu1")
    assert again.about(("a-1", 0)) == logs.fields(
        lease="a-1", person="anna", course="ml101", server="gpu1", device="gpu1/0"
    )
    again.keep([("b", 1)])
    assert [path.name for path in (tmp_path / "holders").iterdir()] == ["b-1.json"]


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
        assert ask("list-gpus", token=wrong).returncode == 1
        done = ask("run", "-p", "0.1", "--", sys.executable, "-c", BAD_PROGRAM, token=anna)
        assert done.returncode == 0, done.stderr
        assert ask("run", "-p", "0.1", "--model", "H100", "--", "true", token=anna).returncode == 1

        of_pool = eventually(lambda: (lines := pool.lines()) and story(lines)[-1:] == ["ends"] and lines)
        assert story(of_pool) == ["granted", "live", "ends"]
        eventually(
            lambda: agent and story(agent.lines()) == ["worker", *2 * ["its worker says"], "worker ended"]
        )
        said = [line["message"] for line in agent.lines() if "says" in line["message"]]
        assert said == [
            "its worker says: cuFoo is not supported",
            "its worker says: from \\x1b[31mthere",
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
