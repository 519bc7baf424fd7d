"""``gpukernel agent --notice``: what a GPU server that is told to stop does for those who hold its slices; real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpukernel.common.address import socket_path
from tests.attacks.servers import Process
from tests.conftest import eventually

HOLD = "import sys; print('ready', flush=True); sys.stdin.read()"
CLI = (sys.executable, "-m", "gpukernel.cli")


class Site:
    """A pool, and agents of GPU server gpu1 one after the other, as the pods of one node are."""

    def __init__(self, home: Path) -> None:
        self.home, self.state = home, home / "pool"
        self.environment = {**os.environ, "GPUKERNEL_STATE": str(self.state)}
        self.processes: list[Process] = []
        self.agents = 0
        self.start("The pool is ready", "pool", "--state", str(self.state))

    def start(self, ready: str, *words: str) -> Process:
        process = Process((*CLI, *words), self.environment)
        self.processes.append(process)
        eventually(lambda: ready in process.said or process.process.poll() is not None)
        assert ready in process.said, process.said
        return process

    def agent(self, *options: str) -> Process:
        self.agents += 1  # a pod's state is gone with it
        where = (
            "--pool",
            f"unix:{socket_path(self.state)}",
            "--state",
            str(self.home / f"agent{self.agents}"),
        )
        return self.start(
            "The agent is ready", "agent", *where, "--name", "gpu1", "--simulate", "v100", *options
        )

    def hold(self) -> Process:
        return self.start("ready", "run", "-p", "0.25", "--", sys.executable, "-u", "-c", HOLD)

    def run(self) -> subprocess.CompletedProcess[str]:
        words = (*CLI, "run", "-p", "0.25", "--wait", "0", "--", "true")
        return subprocess.run(
            words, env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )

    def ask(self, *words: str) -> Any:
        done = subprocess.run(
            (*CLI, *words), env=self.environment, capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    def close(self) -> None:
        for process in reversed(self.processes):
            process.end()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def ended(process: Process, seconds: float) -> Callable[[], bool]:
    return lambda: process.process.poll() is not None or time.monotonic() > seconds


def test_holders_are_told_and_the_agent_ends_within_its_notice(site: Site) -> None:
    agent, holder = site.agent("--notice", "10s"), None
    holder = site.hold()
    agent.process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    notices = eventually(
        lambda: [lease["notice"] for lease in site.ask("leases", "--json") if lease["notice"]]
    )
    assert "its GPU server is being drained" in notices[0]
    assert agent.process.poll() is None  # holders have their time
    refused = site.run()
    assert refused.returncode == 5, refused.stdout  # nothing new there
    assert agent.process.wait(timeout=40) == 0, agent.said
    assert time.monotonic() - asked < 10 + 30  # the chart leaves 30 s beyond the notice
    reasons = {lease["end_reason"] for lease in site.ask("leases", "--all", "--json")}
    assert reasons == {"its GPU server gpu1 was drained"}
    holder.end()


def test_it_ends_at_once_where_nobody_holds_a_slice_or_it_is_told_again(site: Site) -> None:
    agent = site.agent("--notice", "1h")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(timeout=30) == 0, agent.said
    agent = site.agent("--notice", "1h")
    site.hold()
    agent.process.send_signal(signal.SIGTERM)
    eventually(lambda: "gets no new leases" in agent.said)
    assert agent.process.poll() is None
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(timeout=30) == 0, agent.said


def test_its_successor_takes_leases_again_unless_an_administrator_drained_the_server(site: Site) -> None:
    def next_one() -> None:
        agent = site.agent("--notice", "1h")
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(timeout=30) == 0, agent.said
        site.agent()

    next_one()
    assert site.run().returncode == 0
    site.processes[-1].end(signal.SIGTERM)
    subprocess.run((*CLI, "drain", "gpu1"), env=site.environment, check=True, capture_output=True)
    next_one()
    assert site.run().returncode == 5
    subprocess.run((*CLI, "undrain", "gpu1"), env=site.environment, check=True, capture_output=True)
    assert site.run().returncode == 0


@pytest.mark.parametrize(
    ("wrong", "said"), [("2d", "from 0 to 1d"), ("-1", "from 0 to 1d"), ("soon", "is no time")]
)
def test_a_notice_that_is_none_is_refused(wrong: str, said: str) -> None:
    words = (*CLI, "agent", "--pool", "127.0.0.1:1", "--simulate", "v100", f"--notice={wrong}")
    refused = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert refused.returncode == 2
    assert said in refused.stderr


def test_a_container_s_first_process_ends_while_it_waits_for_its_pool(tmp_path: Path) -> None:
    space = ("unshare", "--pid", "--fork", "--kill-child")
    if subprocess.run((*space, "true"), capture_output=True, check=False).returncode:
        pytest.skip("needs a namespace of processes")
    away = ("agent", "--pool", f"unix:{tmp_path}/pool.sock", "--state", str(tmp_path / "agent"))
    outer = Process((*space, *CLI, *away, "--simulate", "v100"), dict(os.environ))
    try:
        eventually(lambda: "is away" in outer.said or outer.process.poll() is not None)
        assert outer.process.poll() is None, outer.said
        (first,) = Path(f"/proc/{outer.process.pid}/task/{outer.process.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)
        assert outer.process.wait(timeout=30) == 128 + signal.SIGTERM, outer.said
    finally:
        outer.end()


def test_a_container_s_first_process_may_load_the_commands_in_a_thread() -> None:
    space = ("unshare", "--pid", "--fork", "--kill-child")
    if subprocess.run((*space, "true"), capture_output=True, check=False).returncode:
        pytest.skip("needs a namespace of processes")
    code = "import importlib, threading; load = threading.Thread(target=importlib.import_module, args=('gpukernel.cli',)); load.start(); load.join()"
    loaded = subprocess.run(
        (*space, sys.executable, "-c", code), capture_output=True, text=True, check=False, timeout=60
    )
    assert loaded.stderr == ""
