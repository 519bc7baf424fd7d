"""Somebody who took a worker over answers its agent for it, so that the agent ends another process, links another file for containers, breaks its stream or misses its heartbeats."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpukernel.agent import inventory
from gpukernel.agent.workers import Workers
from tests.conftest import eventually

# Stands where the worker was, at its control socket: one answer for every line.
LIAR = """
import socket, sys, threading
path, answer = sys.argv[1:]
listener = socket.socket(socket.AF_UNIX)
listener.bind(path); listener.listen()
print("ready", flush=True)
def serve(client):
    with client, client.makefile("rwb", buffering=0) as lines:
        for line in lines:
            if answer != "silence":
                client.sendall(answer.encode() + b"\\n")
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
STATUS = {
    "pid": 1,
    "lease": "abc",
    "device": 0,
    "memory_limit_bytes": 1,
    "memory_used_bytes": 1,
    "memory_peak_bytes": 1,
    "cuda_calls": 1,
    "launches": 1,
    "gpu_seconds": 0.0,
    "turn_seconds": 0.0,
    "connections": 0,
    "idle_seconds": 0.0,
    "endpoints": [],
}
KEY = ("abc", 0)


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process that a worker has nothing to do with."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def start_liar(folder: Path, answer: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", LIAR, str(folder / "control.sock"), answer]
    liar = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert liar.stdout is not None
    liar.stdout.readline()
    return liar


@asynccontextmanager
async def agent_of(state: Path, answer: str) -> AsyncIterator[Workers]:
    """Run an agent's workers, with a liar among those that it adopts."""
    folder = state / "workers" / "abc-0"
    folder.mkdir(parents=True)
    liar = start_liar(folder, answer)
    workers = Workers(state, inventory.simulated("v100:1"), "", lambda key, reason: None)
    try:
        await workers.adopt()
        yield workers
    finally:
        liar.kill()
        liar.communicate()
        await workers.stop_all("over")


@pytest.fixture
def state() -> Iterator[Path]:
    """A directory whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="gpukernel-test-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_the_agent_ends_no_process_that_the_worker_only_names(
    state: Path, victim: subprocess.Popen[bytes]
) -> None:
    async def story() -> None:
        async with agent_of(state, json.dumps(STATUS | {"pid": victim.pid})) as workers:
            assert workers.pids() != [victim.pid]
            await workers.stop(KEY, "stopped")
        assert victim.poll() is None

    asyncio.run(story())


def test_the_agent_gives_containers_no_file_that_the_worker_names(state: Path) -> None:
    secret = state / "agent.token"
    secret.write_text("a secret")

    async def story() -> None:
        async with agent_of(state, json.dumps(STATUS | {"endpoints": [f"unix:{secret}"]})) as workers:
            assert workers.endpoints() == {KEY: ()}
            assert secret.stat().st_nlink == 1

    asyncio.run(story())


@pytest.mark.parametrize(
    "nonsense",
    [
        "x" * 100_000,
        "[]",
        "7",
        json.dumps(STATUS | {"memory_used_bytes": -1}),
        json.dumps(STATUS | {"launches": 2**70}),
        json.dumps(STATUS | {"gpu_seconds": "much"}),
        '{"pid": NaN}',
        "silence",
    ],
)
def test_nonsense_and_silence_cost_the_heartbeat_nothing_but_that_worker(state: Path, nonsense: str) -> None:
    async def story() -> None:
        async with agent_of(state, json.dumps(STATUS)) as workers:
            assert set(await workers.statuses()) == {KEY}
            handle = workers._handles[KEY]
            other = state / "other"
            other.mkdir()
            liar = start_liar(other, nonsense)
            try:
                handle.directory = other  # from now on it answers like this
                handle._close()
                assert await workers.statuses() == {}
                if nonsense == "silence":  # nobody waited for the end of the question's patience
                    assert not workers._asked[KEY].done()
            finally:
                liar.kill()
                liar.communicate()

    asyncio.run(story())


def test_an_honest_worker_is_adopted_by_the_number_that_the_system_gives(state: Path) -> None:
    async def story() -> None:
        workers = Workers(state, inventory.simulated("v100:1"), "", lambda key, reason: None)
        await workers.start(KEY, 64 << 20, 0.5, "0" * 64)
        (pid,) = workers.pids()
        again = Workers(state, inventory.simulated("v100:1"), "", lambda key, reason: None)
        await again.adopt()
        assert again.pids() == [pid]
        assert set(await again.statuses()) == {KEY}
        await again.stop(KEY, "over")
        eventually(
            lambda: not Path(f"/proc/{pid}/status").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()
        )

    asyncio.run(story())
