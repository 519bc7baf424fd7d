"""A stranger opens a thousand connections and says nothing; the pool has no descriptor left for anybody else, and fills its log."""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpukernel.client.pool import PoolClient
from gpukernel.common.address import socket_path
from gpukernel.common.model import Device
from tests.ports import free_port

IDLE = 1200
DESCRIPTORS = 1024  # the soft limit of most machines, here the hard one too
MOST_LOG = 100_000


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[tuple[Path, str, Path]]:
    """The state, the TCP address and the log of a pool in a process of its own, with `DESCRIPTORS` descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3 * IDLE:
        pytest.skip(f"needs {3 * IDLE} descriptors; the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    state, log, address = tmp_path / "state", tmp_path / "log", f"127.0.0.1:{free_port()}"
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS})); "
    command = f"{limit}import runpy, sys; sys.argv[0] = 'gpukernel'; runpy.run_module('gpukernel.cli', run_name='__main__')"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", command, "pool", "--listen", address, "--state", str(state)],
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert "ready" in process.stdout.readline()
            yield state, address, log
        finally:
            process.terminate()
            process.wait(60)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_pool_takes_as_many_descriptors_as_it_may_have(tmp_path: Path) -> None:
    """Whoever starts it has a soft limit that a class passes; the hard one is the machine's."""
    soft, hard = 256, 1024
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard})); "
    command = f"{limit}import runpy, sys; sys.argv[0] = 'gpukernel'; runpy.run_module('gpukernel.cli', run_name='__main__')"
    words = [sys.executable, "-c", command, "pool", "--state", str(tmp_path / "state")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        found = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        process.terminate()
    assert found == (hard, hard)


def over_tcp(state: Path, address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def over_unix(state: Path, address: str) -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    end.settimeout(10)
    end.connect(str(socket_path(state)))
    return end


@pytest.mark.parametrize("connect", [over_tcp, over_unix])
def test_silent_connections_shut_nobody_out_and_write_no_log(
    pool: tuple[Path, str, Path], connect: Callable[[Path, str], socket.socket]
) -> None:
    state, address, log = pool

    async def devices(where: str, token: str = "") -> list[Device]:
        async with asyncio.timeout(60), PoolClient(where, token or None) as client:
            return await client.devices()

    async def both() -> None:
        assert await devices(f"unix:{socket_path(state)}") == []
        assert await devices(address, (state / "pool.token").read_text().strip()) == []

    asyncio.run(both())
    silent = []
    for _ in range(IDLE):
        try:
            silent.append(connect(state, address))
        except OSError:  # nobody accepts any more
            break
        silent[-1].settimeout(10)
    try:
        asyncio.run(both())
        time.sleep(2)  # in which a listener without descriptors would spin
        asyncio.run(both())
    finally:
        for end in silent:
            end.close()
    assert log.stat().st_size < MOST_LOG
