"""Backup and restore by the commands of ``docs/ha.md``, taken out of the page, while leases are held.

Only the page's places are others: the directory of the pool, that of the copy, and the address of the database.  ``systemctl`` stops and
starts the processes of the test.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpukernel.client.pool import PoolClient
from gpukernel.common.errors import LeaseEnded
from gpukernel.common.model import Holder, Lease, SliceRequest
from tests.failover.cluster import Cluster, cluster, programs

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs" / "ha.md"


def commands(word: str) -> list[str]:
    """Return the commands of the page's block about backup in which `word` stands."""
    (section,) = re.findall(r"^## Backup and restore\n(.*?)^## ", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = (one for one in re.findall(r"```console\n(.*?)```", section, re.DOTALL) if word in one)
    return [line.removeprefix("$ ") for line in block.splitlines()]


class Shell:
    """A shell in which the page's commands are run."""

    def __init__(self, running: Cluster, places: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self._running, self._places = running, places
        self._environment = {**os.environ, **environment}
        self._folder = running.folder / "shell"
        self._folder.mkdir()

    def run(self, command: str) -> None:
        for ours, its in self._places.items():
            command = command.replace(ours, its)
        if command.startswith("systemctl stop gpukernel-pool"):
            for pool in self._running.pools:
                pool.end(signal.SIGTERM)
        elif command.startswith("systemctl start gpukernel-pool"):
            for pool in self._running.pools:
                times = pool.log.read_text().count(" is ready")
                pool.start()
                pool.wait_ready(times + 1)
        else:
            done = subprocess.run(
                ["bash", "-c", command],
                env=self._environment,
                cwd=self._folder,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{command}: {done.stderr}"


def backed_up(running: Cluster, shell: Shell, lines: list[str]) -> None:
    """Back up while one lease is held, restore while a second one is, and find the first one as it was."""
    backup, *restore = lines

    async def hold(key: str, person: str) -> Lease:
        async with PoolClient(str(running.holders)) as client:
            return await client.acquire_now(key, SliceRequest(share=0.1), Holder(person), ttl_seconds=600)

    async def look(kept: Lease, later: Lease) -> None:
        async with PoolClient(str(running.holders)) as client:
            found = await client.renew(kept.id)
            assert (found.state, found.holder) == ("live", kept.holder)
            # The same worker, which nobody has asked to end.
            assert [(one.device_id, one.memory_bytes, one.endpoints) for one in found.slices] == [
                (one.device_id, one.memory_bytes, one.endpoints) for one in kept.slices
            ]
            with pytest.raises(LeaseEnded):
                await client.renew(later.id)
            assert [lease.id for lease in (await client.leases())[0]] == [kept.id]
            # There is room for others, but not where it is.
            whole = await client.acquire_now("rest", SliceRequest(share=0.9), Holder("carl"), ttl_seconds=600)
            assert whole.state == "live"

    kept = asyncio.run(hold("kept", "anna"))
    shell.run(backup)
    later = asyncio.run(hold("later", "ben"))  # not in the copy: its worker is stopped
    for command in restore:
        shell.run(command)
    asyncio.run(look(kept, later))


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="sqlite3, the program, is not installed")
def test_sqlite_is_backed_up_and_restored_as_the_page_says() -> None:
    with cluster(1, ("v100:1",), database="") as running:
        (running.folder / "backup").mkdir()
        places = {"/var/lib/gpukernel": str(running.state(0)), "/backup": str(running.folder / "backup")}
        lines = commands("sqlite3")
        assert len(lines) == 4
        assert all(place in "\n".join(lines) for place in places)
        backed_up(running, Shell(running, places, {}), lines)


@pytest.mark.postgresql
@pytest.mark.skipif(programs() is None, reason="PostgreSQL is not installed")
def test_postgresql_is_backed_up_and_restored_as_the_page_says() -> None:
    with cluster(2, ("v100:1",), database="pool") as running:
        server = running.postgresql
        places = {"postgresql://pool@db/pool": server.address("pool")}
        path = f"{server.programs}:{os.environ['PATH']}"
        at = {"PGHOST": str(server.folder), "PGPORT": str(server.port), "PGUSER": "pool", "PATH": path}
        lines = commands("pg_dump")
        assert len(lines) == 4
        assert next(iter(places)) in lines[0]
        backed_up(running, Shell(running, places, at), lines)
