"""The lease of a shard job against a real pool: its course, where its Slurm account is none, and its end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from gpukernel.client.admin import AdminClient
from gpukernel.client.engines import EngineClient
from gpukernel.common.model import Lease, PlacedOn
from gpukernel.engines.shards.allocation import JobShards
from gpukernel.engines.shards.folder import JobNote, JobsFolder
from gpukernel.engines.shards.holding import JobLease
from tests.pool.rpc.test_engines import GIB, UUIDS, run, token


class Node:
    """A node whose one job has two shards of the account ``physics``."""

    name = "n1"

    def __init__(self, folder: Path, client: EngineClient) -> None:
        self.folder, self._client = JobsFolder(folder, "n1"), client
        (self.folder.jobs / "7").mkdir(parents=True, exist_ok=True)

    async def client(self) -> EngineClient:
        return self._client

    async def allocation(self, job: str) -> JobShards:
        return JobShards(2, 1, "physics")

    async def placement(self, allocation: JobShards) -> PlacedOn:
        return PlacedOn(UUIDS[1], GIB)

    def without_shards(self, job: str) -> None:
        raise AssertionError(job)


def test_a_daemon_that_is_started_again_keeps_the_slice_of_an_account_that_is_no_course(
    tmp_path: Path,
) -> None:
    async def work(admin: AdminClient, address: str) -> None:
        await admin.import_courses("courses: {ml101: {}}")
        note = JobNote("7", os.geteuid(), os.getegid(), "c", 0)
        async with EngineClient(address, await token(admin, "slurm")) as client:
            node = Node(tmp_path, client)
            found = []
            for _ in range(3):
                job = JobLease(node, note)
                for _ in range(2):  # a program that asks although it has its slice
                    assert [word async for word, _ in job.answers()][-1] == "live"
                    await asyncio.sleep(1.2)
                (lease,) = await client.placed()
                found.append(lease.id)
                assert lease.holder.course == ""
                await job.leave()
            assert len(set(found)) == 1

    run(tmp_path, work)


class Counting(EngineClient):
    """A client that counts its releases."""

    releases = 0

    async def release_placed(self, *arguments: Any, **more: Any) -> Lease | None:
        self.releases += 1
        return await super().release_placed(*arguments, **more)


def test_a_slice_that_lives_is_released_with_one_call(tmp_path: Path) -> None:
    async def work(admin: AdminClient, address: str) -> None:
        note = JobNote("7", os.geteuid(), os.getegid(), "c", 0)
        async with Counting(address, await token(admin, "slurm")) as client:
            job = JobLease(Node(tmp_path, client), note)
            assert [word async for word, _ in job.answers()][-1] == "live"
            assert await job.end("its job is over")
            assert (await client.placed(), client.releases) == ([], 1)
            assert not (tmp_path / "n1" / "jobs" / "7").exists()

    run(tmp_path, work)
