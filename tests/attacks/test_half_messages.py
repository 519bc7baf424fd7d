"""A stranger, or a student with a token, begins thousands of calls with messages of 4 MiB and ends none; the pool keeps them until it has no
memory.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpukernel.client.admin import AdminClient
from gpukernel.client.pool import PoolClient
from gpukernel.common.address import socket_path
from tests.attacks.half_messages import HalfMessages
from tests.ports import free_port

CALLS = 400
SIZE = 4 * 2**20
MOST_GROWTH = 500 * 2**20  # of the 3.2 GiB that are offered


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[tuple[Path, str, int]]:
    """The state and the address of a pool in a process of its own, and its process id."""
    state, address = tmp_path / "state", f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "gpukernel.cli", "pool", "--listen", address, "--state", str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert "ready" in process.stdout.readline()
            yield state, address, process.pid
        finally:
            process.terminate()


def memory(pid: int) -> int:
    """The bytes of memory that a process has."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


async def devices(address: str, token: str) -> None:
    async with asyncio.timeout(60), PoolClient(address, token) as client:
        assert await client.devices() == []


async def token_of_mallory(state: Path) -> str:
    async with AdminClient(f"unix:{socket_path(state)}") as admin:
        return (await admin.create_token("laptop", "mallory"))[1]


@pytest.mark.parametrize("who", ["a stranger", "a student"])
@pytest.mark.parametrize("method", ["/gpukernel.v1.Administration/ImportCourses", "/gpukernel.v1.Pool/Hold"])
def test_messages_that_never_end_take_little_of_the_pool_s_memory(
    pool: tuple[Path, str, int], who: str, method: str
) -> None:
    state, address, pid = pool
    service = (state / "pool.token").read_text().strip()
    student = asyncio.run(token_of_mallory(state))
    asyncio.run(devices(address, student))
    asyncio.run(devices(address, service))
    before = memory(pid)
    ends = [
        HalfMessages(address, method, student if who == "a student" else "no token", CALLS, SIZE)
        for _ in range(2)
    ]
    for end in ends:
        end.send_for(3)
    grown = memory(pid) - before
    asyncio.run(devices(address, service))
    for end in ends:
        end.close()
    assert grown < MOST_GROWTH, f"{grown / 2**20:.0f} MiB of {sum(end.sent for end in ends) / 2**20:.0f} MiB"
