"""The controller against an API server: claims become leases of a real pool, and go as they come, whatever breaks."""

from __future__ import annotations

from gpukernel.engines.kubernetes.names import DRIVER
from tests.conftest import Pool, eventually
from tests.engines.kubernetes.cluster import Cluster

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
