"""The controller against an API server: claims become leases of a real pool, and go as they come, whatever breaks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

import pytest
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

from gpukernel.engines.kubernetes.controller import Controller
from gpukernel.engines.kubernetes.names import COURSE, DRIVER
from tests.conftest import Pool, eventually
from tests.engines.kubernetes.cluster import Cluster
from tests.engines.kubernetes.conftest import lent

MIB = 2**20


def test_a_claim_becomes_a_lease_on_its_device_and_goes_with_it(cluster: Cluster, pool: Pool) -> None:
    with cluster.running(pool, "controller", "--every", "0.3"):
        eventually(cluster.slices)
        cluster.claim("one", "655Mi")
        assert cluster.allocate("one")
        eventually(lambda: cluster.is_ready("one"))
        (lease,) = pool.live()
        claim = cluster.get("one")
        result = claim.status.allocation.devices.results[0]
        assert lease.key == f"{claim.metadata.uid}.{result.shareID}"
        assert [one.memory_bytes for one in lease.slices] == [655 * MIB]
        assert lease.slices[0].uuid.lower() == result.device
        assert lease.holder.person == f"namespace:{cluster.namespace}"
        (told,) = claim.status.devices
        assert told.data["lease"] == lease.id
        assert told.data["endpoint"].startswith(("tcp:", "tls:"))
        assert told.shareID == result.shareID
        cluster.delete("one")
        eventually(lambda: not pool.promised(), seconds=5)
        assert {one.spec.driver for one in cluster.slices()} == {DRIVER}


def test_leases_are_on_the_devices_that_were_chosen_whatever_the_pool_would_choose(
    cluster: Cluster,
) -> None:
    with Pool("v100:2", tcp_host="127.0.0.1") as pool:
        lent(pool, 2)
        with cluster.running(pool, "controller", "--every", "0.3"):
            first, second = eventually(lambda: cluster.devices() if len(cluster.devices()) == 2 else None)
            # Mostly the fuller one, and never as a pool that fills or spreads would have it.
            for number, avoided in enumerate((second, second, first, second, first)):
                cluster.claim(f"claim-{number}", "655Mi")
                assert cluster.allocate(f"claim-{number}", frozenset({avoided}))
            claims = [f"claim-{number}" for number in range(5)]
            eventually(lambda: all(map(cluster.is_ready, claims)), seconds=60)
            by_uid = {lease.key.partition(".")[0]: lease.slices for lease in pool.live()}
            found = []
            for name in claims:
                claim = cluster.get(name)
                (result,) = claim.status.allocation.devices.results
                (part,) = by_uid.pop(str(claim.metadata.uid))
                assert part.uuid.lower() == result.device
                found.append(result.device)
            assert found == [first, first, second, first, second]
            assert not by_uid
            for name in claims:
                cluster.delete(name)
            eventually(lambda: not pool.promised(), seconds=60)


def test_a_claim_that_the_pool_refuses_says_why_and_is_tried_again(cluster: Cluster, pool: Pool) -> None:
    with cluster.running(pool, "controller", "--every", "0.3"):
        eventually(cluster.slices)
        cluster.claim("one", "655Mi")
        assert cluster.allocate("one")
        eventually(lambda: cluster.is_ready("one"))
        (lease,) = pool.live()
        cluster.claim("large", "30Gi")
        held = pool.gpukernel(
            "lease", "acquire", "--engine", "kubernetes", "--key", "other/x", "--for", "anna", "--placed-on",
            f"{lease.slices[0].uuid}=4GiB",
        )  # fmt: skip
        assert held.returncode == 0, held.stderr
        assert cluster.allocate("large")  # the scheduler cannot know of it
        eventually(lambda: cluster.condition("large")[1] == "Full")
        status, _, sentence = cluster.condition("large")
        assert status == "False"
        assert "free, not the 30720 MiB that are asked for" in sentence
        gone = pool.gpukernel("lease", "release", "--engine", "kubernetes", "--key", "other/x")
        assert gone.returncode == 0, gone.stderr
        eventually(lambda: cluster.is_ready("large"), seconds=60)


def test_leases_of_other_clusters_on_the_same_pool_are_left_alone(cluster: Cluster, pool: Pool) -> None:
    (uuid,) = (one.uuid for one in pool.devices() if one.decided_by == "kubernetes")
    for key in ("7a1c1f4e-0000-0000-0000-000000000000.x", "other/7a1c1f4e-0000-0000-0000-000000000000.x"):
        words = ("--engine", "kubernetes", "--key", key)
        held = pool.gpukernel("lease", "acquire", *words, "--for", "anna", "--placed-on", f"{uuid}=64MiB")
        assert held.returncode == 0, held.stderr
    with cluster.running(pool, "controller", "--every", "0.3"):
        eventually(
            lambda: [one.key for one in pool.live()] == ["other/7a1c1f4e-0000-0000-0000-000000000000.x"]
        )
    with cluster.running(pool, "controller", "--every", "0.3", "--cluster", "other"):
        eventually(lambda: not pool.promised())


def test_namespaces_say_for_whom_leases_are_and_claims_only_where_they_may(
    cluster: Cluster, pool: Pool
) -> None:
    with cluster.running(pool, "controller", "--every", "0.3"):
        eventually(cluster.slices)
        named = {"gpukernel.io/person": "eve"}
        cluster.claim("spoofed", "64Mi", **named)
        assert cluster.allocate("spoofed")
        eventually(lambda: cluster.is_ready("spoofed"))
        assert [one.holder.person for one in pool.live()] == [f"namespace:{cluster.namespace}"]
        cluster.delete("spoofed")
        eventually(lambda: not pool.promised())
        cluster.label(persons="by-claim", course="ml101")
        cluster.claim("named", "64Mi", **named)

        def is_eves() -> bool:  # the label may be heard of after the claim
            assert cluster.allocate("named")
            eventually(lambda: cluster.is_ready("named"))
            (lease,) = pool.live()
            return (lease.holder.person, lease.holder.course) == ("eve", "ml101") or again()

        def again() -> bool:
            cluster.deallocate("named")
            eventually(lambda: not pool.promised())
            return False

        eventually(is_eves)


def test_as_many_claims_as_a_device_has_room_for_are_live_and_the_next_one_waits(
    cluster: Cluster, pool: Pool
) -> None:
    count = int(os.environ.get("GPUKERNEL_SLICES", "10"))
    size = f"{32768 // count}Mi"
    with cluster.running(pool, "controller", "--every", "0.3"):
        eventually(cluster.slices)
        for number in range(count):
            cluster.claim(f"claim-{number}", size)
            assert cluster.allocate(f"claim-{number}")
        cluster.claim("one-more", size)
        assert not cluster.allocate("one-more")
        eventually(lambda: all(cluster.is_ready(f"claim-{number}") for number in range(count)), seconds=120)
        assert len(pool.live()) == count
        cluster.delete("claim-0")
        eventually(lambda: cluster.allocate("one-more"))
        eventually(lambda: cluster.is_ready("one-more"), seconds=10)
        assert len(pool.live()) == count
        for claim in cluster.claims():
            cluster.delete(claim.metadata.name)
        eventually(lambda: not pool.promised(), seconds=20)


def test_a_namespace_as_young_as_its_claim_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Young:
        """Namespaces of which the cache has none before a new list."""

        objects: Mapping[str, Namespace] = {}

        async def relist(self) -> None:
            self.objects = {"1": Namespace(metadata=ObjectMeta(name="ml101", labels={COURSE: "ml101"}))}

    controller = Controller(None, None)  # type: ignore[arg-type]
    monkeypatch.setattr(controller, "_namespaces", Young())
    assert asyncio.run(controller._labels("ml101")) == {COURSE: "ml101"}
