"""A student in a pod tries to pass the ceiling of its claim: by asking the pool without it, by many kernels at once, by another pod's
ceiling, by keys of claims, and by ending the claim while workers live on.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path

import pytest

from gpukernel.client.hub import HubClient
from gpukernel.client.pool import PoolClient
from gpukernel.common.errors import PoolError, Refused
from gpukernel.common.model import Holder, Lease, PlacedOn, SliceRequest
from tests.attacks.test_placed_leases import SLURMS, Cluster, run

MIB, GIB = 2**20, 2**30
POD = Holder("namespace:ml", description="claim ml/anna")
CEILING = 1024 * MIB


async def opened(cluster: Cluster, person: str = "anna", server: str = "hub") -> PoolClient:
    """Open a client with the token that the Hub gives a server whose pod has a claim."""
    async with HubClient(cluster.address, await cluster.token("hub", scope="service")) as hub:
        token = (await hub.open_connection(person, server, "ml", inside=True)).token
    return PoolClient(cluster.address, token)


async def claimed(cluster: Cluster, key: str = "claim-1", size: int = CEILING) -> Lease:
    return await cluster.slurm.acquire_placed([PlacedOn(SLURMS, size)], key, POD, ceiling=True)


async def inside(client: PoolClient, pod: Lease, key: str, mib: int = 0, **more: str) -> Lease:
    request = SliceRequest(memory_bytes=mib * MIB, **more) if mib else SliceRequest(share=0.01, **more)  # type: ignore[arg-type]
    events = client.acquire(key, request, Holder("anna", course="ml"), within=(pod.id, pod.secret))
    (lease,) = [event async for event in events]
    assert isinstance(lease, Lease)
    return lease


def on_the_device(cluster: Cluster) -> int:
    """The bytes that living workers may have of the ceiling's device."""
    agent = cluster.agent
    return sum(agent.caps[worker] for worker in agent.alive if worker[1].endswith(SLURMS))


def test_kernels_have_the_ceiling_s_memory_in_parts_and_no_more(tmp_path: Path) -> None:
    async def work(cluster: Cluster) -> None:
        pod = await claimed(cluster)
        assert (pod.slices[0].memory_bytes, pod.slices[0].reserve_bytes) == (MIB, CEILING - MIB)
        async with await opened(cluster) as anna:
            share = await inside(anna, pod, "kernel-1")
            assert share.slices[0].memory_bytes == 327 * MIB  # 0.01 of 32 GiB
            assert (share.slices[0].uuid, share.decided_by, share.within) == (SLURMS, "slurm", pod.id)
            assert (share.holder.person, share.holder.course) == ("anna", "ml")
            assert share.secret
            assert (await inside(anna, pod, "kernel-1")).id == share.id  # asking again
            with pytest.raises(Refused, match="more than the 1023 MiB that this pod's claim has"):
                await inside(anna, pod, "kernel-2", 1024)
            with pytest.raises(Refused, match="has 696 of 1023 MiB free on s/0, not the 697 MiB") as full:
                await inside(anna, pod, "kernel-2", 697)
            assert full.value.code == "full"
            rest = await inside(anna, pod, "kernel-2", 696)
            with pytest.raises(Refused, match="has 0 of 1023 MiB free"):
                await inside(anna, pod, "kernel-3", 1)
            assert on_the_device(cluster) == CEILING
            with pytest.raises(Refused, match="says how large it is"):
                await anna.resize(share.id, SliceRequest(memory_bytes=328 * MIB))
            await anna.release(share.id)
            again = await inside(anna, pod, "kernel-3", 327)
            assert on_the_device(cluster) == CEILING
            assert {one.id for one in (await anna.leases())[0]} >= {rest.id, again.id}
        (device,) = [one for one in await cluster.admin.devices() if one.uuid == SLURMS]
        assert device.promised_bytes == CEILING  # what is inside is promised once
        assert [one.key for one in await cluster.slurm.placed()] == ["claim-1"]

    run(tmp_path, work)


def test_a_server_with_a_claim_gets_nothing_beside_it(tmp_path: Path) -> None:
    async def work(cluster: Cluster) -> None:
        pod, other = await claimed(cluster), await claimed(cluster, "claim-2", 4 * GIB)
        plain = await cluster.slurm.acquire_placed([PlacedOn(SLURMS, GIB)], "job-1", POD)
        async with await opened(cluster) as anna:
            with pytest.raises(Refused, match="lie inside of its pod's claim, and this request names none"):
                await anna.acquire_now("k", SliceRequest(share=0.01), Holder("anna", course="ml"))
            for lease, secret in (
                (other.id, pod.secret),  # another pod's, whose secret she does not have
                (other.id, ""),
                ("", other.secret),
                (pod.id, pod.secret[:-1]),
                (plain.id, plain.secret),  # no ceiling: a job's
                ("0" * 16, pod.secret),
            ):
                events = anna.acquire(
                    "k", SliceRequest(memory_bytes=MIB), Holder("anna"), within=(lease, secret)
                )
                with pytest.raises(Refused) as refused:
                    await anext(events)
                assert refused.value.code == "no_ceiling"
            for wrong, code in (
                ({"model": "H100"}, "no_such_model"),
                ({"server": "elsewhere"}, "no_such_model"),
                ({"device": "s/1"}, "no_such_model"),
                ({"mode": "direct"}, "no_direct"),
            ):
                with pytest.raises(Refused) as refused:
                    await inside(anna, pod, "k", 8, **wrong)
                assert refused.value.code == code
            for size in (-1, 0, 1, 2**63):
                request = SliceRequest(memory_bytes=size)
                with pytest.raises((PoolError, ValueError)):
                    await anext(anna.acquire("k", request, Holder("anna"), within=(pod.id, pod.secret)))
        assert on_the_device(cluster) == 2 * MIB + GIB

    run(tmp_path, work)


def test_kernels_of_a_pod_fill_no_quota_of_a_course(tmp_path: Path) -> None:
    """With her own token she asks in any course's name, and a claim has room for thousands of the smallest slices."""

    async def work(cluster: Cluster) -> None:
        await cluster.admin.import_courses(
            "courses: {ml: {students: [anna, ben], quota: {leases: 2}}, other: {students: [ben], quota: {leases: 2}}}"
        )
        pod = await claimed(cluster)
        async with PoolClient(cluster.address, await cluster.token("laptop", "anna")) as anna:
            for course, words in (("other", "anna is not in course other"), ("none", "no course none")):
                request, holder = SliceRequest(memory_bytes=MIB), Holder("anna", course=course)
                with pytest.raises(Refused, match=words):
                    await anext(anna.acquire("k", request, holder, within=(pod.id, pod.secret)))
            for number in range(3):
                await inside(anna, pod, f"kernel-{number}", 1)
        async with PoolClient(cluster.address, await cluster.token("laptop", "ben")) as ben:
            for course in ("ml", "other"):
                lease = await ben.acquire_now(
                    course, SliceRequest(share=0.1), Holder("ben", course=course), 0
                )
                assert lease.state == "live"

    run(tmp_path, work)


def test_a_kernel_takes_no_claim_s_key_and_no_kernel_s_in_another_pod(tmp_path: Path) -> None:
    async def work(cluster: Cluster) -> None:
        pod, other = await claimed(cluster), await claimed(cluster, "claim-2")
        async with await opened(cluster) as anna, await opened(cluster, "prof") as ben:
            mine = await inside(anna, pod, "claim-3", 8)
            theirs = await inside(ben, other, "claim-3", 8)
            assert mine.id != theirs.id
            third = await claimed(cluster, "claim-3")
            assert third.ceiling
            with pytest.raises(
                Refused
            ) as taken:  # who shares a pod shares its claim, and takes nobody's secret
                await inside(ben, pod, "claim-3", 8)
            assert taken.value.code == "different"
            # Neither reaches the other's, nor the claim's.
            for lease in (theirs.id, pod.id):
                with pytest.raises(PoolError, match="knows no lease"):
                    await anna.release(lease)
            await cluster.slurm.release_placed("claim-3")
            assert {one.id for one in (await anna.leases())[0]} == {mine.id}

    run(tmp_path, work)


def test_a_claim_that_ends_takes_its_kernels_along_and_their_memory_is_free_when_they_are_dead(
    tmp_path: Path,
) -> None:
    async def work(cluster: Cluster) -> None:
        pod = await claimed(cluster)
        async with await opened(cluster) as anna:
            kernel = await inside(anna, pod, "kernel-1", 500)
            worker = next(each for each in cluster.agent.alive if each[0] == kernel.id)
            cluster.agent.prompt = False
            await cluster.slurm.release_placed("claim-1", wait_seconds=0)
            assert {one.state for one in (await anna.leases())[0]} == {"ending"}
            with pytest.raises(Refused, match="no live claim with this secret"):
                await inside(anna, pod, "kernel-2", 1)

            async def promised() -> int:
                (device,) = [one for one in await cluster.admin.devices() if one.uuid == SLURMS]
                return device.promised_bytes

            assert await promised() == CEILING

            def dies(each: tuple[str, str]) -> None:
                cluster.agent.alive.discard(each)
                cluster.agent.sessions.worker_ended("s", *each, "stopped")

            assert set(cluster.agent.to_stop) == cluster.agent.alive
            for each in list(cluster.agent.to_stop):
                if each != worker:
                    dies(each)
            # The claim's own worker is dead; the kernel's lives, and nobody gets its memory.
            assert await promised() == 500 * MIB
            dies(worker)
            assert await promised() == 0

    run(tmp_path, work)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_kernels_do_living_workers_have_no_more_than_the_ceiling(tmp_path: Path, seed: int) -> None:
    async def work(cluster: Cluster) -> None:
        rng = random.Random(seed)
        pods = [await claimed(cluster, f"claim-{n}", 300 * MIB) for n in range(2)]
        ceilings = {pod.id: 300 * MIB for pod in pods}
        over = dict[str, str]()  # the ceiling of each lease
        async with await opened(cluster) as anna:

            async def ask(number: int) -> None:
                pod = rng.choice(pods)
                try:
                    lease = await inside(anna, pod, f"k{number % 12}-{pod.id}", rng.randint(1, 200))
                except Refused:
                    return
                over[lease.id] = pod.id
                if rng.random() < 0.7:
                    await anna.release(lease.id)

            for turn in range(12):
                await asyncio.gather(*(ask(turn * 10 + n) for n in range(10)))
                used: dict[str, int] = defaultdict(int)
                for worker in cluster.agent.alive:
                    used[over.get(worker[0], worker[0])] += cluster.agent.caps[worker]
                assert all(used[one] <= most for one, most in ceilings.items()), used
        for pod in pods:
            await cluster.slurm.release_placed(pod.key)
        assert not cluster.agent.alive
        (device,) = [one for one in await cluster.admin.devices() if one.uuid == SLURMS]
        assert device.promised_bytes == 0

    run(tmp_path, work)
