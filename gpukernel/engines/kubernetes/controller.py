"""The controller: one lease of the pool for each allocated claim, and none without.

Guarantees
----------
* Nothing is kept here: killed at any moment and started again, it finds the claims in the API and the leases in the pool, by their keys.
* A lease is released when a look at the API that is later than the lease shows no allocation of its key.  An old cache releases nothing
  that it cannot know of: keys are known from claims in the cache, or from a list of the pool that is older than the cache.
* The pool is asked with the claim's key, so asking twice, or two controllers, make one lease.
* While the API or the pool is away, leases go on, and nothing is released.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict

from lightkube import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Namespace
from lightkube.resources.resource_v1 import ResourceClaim, ResourceClaimStatus
from lightkube.types import PatchType

from gpukernel.client.engines import EngineClient
from gpukernel.common.errors import PoolError, PoolUnreachable, Refused
from gpukernel.common.model import Device, Holder, Lease
from gpukernel.engines.kubernetes.allocations import Allocation, AllocationError, allocation_of, placed_on
from gpukernel.engines.kubernetes.claim_status import (
    Readiness,
    is_told,
    readiness_of,
    refused,
    status_patch,
)
from gpukernel.engines.kubernetes.names import (
    COURSE,
    DRIVER,
    PERSON,
    PERSONS_BY_CLAIM,
    device_name,
    uid_of,
)
from gpukernel.engines.kubernetes.reflector import API_ERRORS, Reflector, problem_of
from gpukernel.engines.kubernetes.work_queue import WorkQueue
from gpukernel.engines.named_devices import devices_by

__all__ = ["Controller", "holder_of"]

log = logging.getLogger(__name__)

START_SECONDS = 30.0
STOP_SECONDS = 5.0
LOOKS_PER_LIST = 6
"""Looks at the pool between two whole lists of the API."""


class Controller:
    """The leases of one cluster's claims.

    Parameters
    ----------
    api
        A client of the cluster.
    pool
        A client of the pool with the token of the engine ``kubernetes``.
    cluster
        The cluster's name where several share one pool; it is part of the keys.
    """

    def __init__(self, api: AsyncClient, pool: EngineClient, cluster: str = "") -> None:
        self._api, self._pool, self._cluster = api, pool, cluster
        self._keys: dict[str, set[str]] = defaultdict(set)
        self._devices: dict[str, Device] = {}
        self._queue = WorkQueue(self._look)
        self._claims: Reflector[ResourceClaim] = Reflector(api, ResourceClaim, self._queue.add)
        self._namespaces: Reflector[Namespace] = Reflector(api, Namespace, namespaced=False)

    async def run(self, every: float = 5.0) -> None:
        """Keep leases and claims together, until this is cancelled.

        Parameters
        ----------
        every
            Seconds between two looks at the pool's leases.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._claims.run())
            group.create_task(self._namespaces.run())
            await self._namespaces.relist()  # whom a lease is for is said there
            group.create_task(self._queue.run())
            group.create_task(self._compare(every))

    async def _compare(self, every: float) -> None:
        """Compare the pool's leases with the claims, again and again."""
        looks = 0
        while True:
            try:
                await self._compare_once(whole=looks % LOOKS_PER_LIST == 0)
                looks += 1
            except PoolError as error:
                log.warning("%s", error)
            await asyncio.sleep(every)

    async def _compare_once(self, *, whole: bool) -> None:
        self._devices = devices_by(device_name, await self._pool.devices(), "kubernetes")
        leases = {lease.key: lease for lease in await self._pool.placed()}
        if whole:  # after the pool's list: a lease of then without a claim now has none any more
            await self._claims.relist()
            for key in leases:
                if uid := uid_of(key, self._cluster):
                    self._keys[uid].add(key)
                    if uid not in self._claims.objects:
                        self._queue.add(uid)
        for uid, claim in list(self._claims.objects.items()):
            try:
                wanted = allocation_of(claim, self._cluster)
            except AllocationError:
                continue
            known = self._keys.get(uid, set())
            if (wanted is None and known) or (
                wanted is not None and (wanted.key not in leases or known - {wanted.key})
            ):
                self._queue.add(uid)

    async def _look(self, uid: str) -> bool:
        """Bring a claim's leases to what its allocation says; return whether nothing is left to do."""
        claim = self._claims.objects.get(uid)
        try:
            wanted = allocation_of(claim, self._cluster) if claim is not None else None
        except AllocationError as error:
            log.error("claim %s: %s", uid, error)
            return True
        try:
            done = await self._release(uid, "" if wanted is None else wanted.key)
            if wanted is None or claim is None:
                return done
            return await self._acquire(claim, wanted) and done
        except PoolUnreachable as error:
            log.warning("claim %s: %s", uid, error)
        except API_ERRORS as error:
            if not (isinstance(error, ApiError) and error.status and error.status.code == 404):
                log.warning("claim %s: its status cannot be written: %s", uid, problem_of(error))
        return False

    async def _release(self, uid: str, but: str) -> bool:
        """End the leases of a claim's earlier allocations; return whether all are over."""
        for key in [key for key in self._keys.get(uid, ()) if key != but]:
            lease = await self._pool.release_placed(key, "the claim was deallocated", STOP_SECONDS)
            if lease is not None and lease.state != "ended":
                return False
            self._keys[uid].discard(key)
        if not self._keys.get(uid):
            self._keys.pop(uid, None)
        return True

    async def _acquire(self, claim: ResourceClaim, wanted: Allocation) -> bool:
        """Hold the lease of an allocation and say in the claim how it is; return whether its workers are ready."""
        self._keys[wanted.uid].add(wanted.key)
        lease: Lease | None = None
        try:
            lease = await self._lease(claim, wanted)
            ready = readiness_of(lease)
        except AllocationError as error:
            ready = refused("no_such_device", str(error))
        except Refused as error:
            ready = refused(error.code, str(error))
        if not ready[0]:
            log.warning("claim %s/%s: %s", wanted.namespace, wanted.name, ready[2])
        await self._tell(claim, wanted, ready, lease)
        return ready[0]

    async def _lease(self, claim: ResourceClaim, wanted: Allocation) -> Lease:
        for known in await self._pool.placed(wanted.key):
            if known.state == "live":  # whatever its namespace says today
                return known
        if any(result.device not in self._devices for result in wanted.results):
            self._devices = devices_by(device_name, await self._pool.devices(), "kubernetes")
        devices = {name: (one.uuid, one.memory_bytes) for name, one in self._devices.items()}
        holder = holder_of(claim, await self._labels(wanted.namespace))
        return await self._pool.acquire_placed(
            placed_on(wanted, devices), wanted.key, holder, START_SECONDS, ceiling=wanted.ceiling
        )

    async def _labels(self, namespace: str) -> dict[str, str]:
        for new in (False, True):  # the cache may not have a namespace that is as young as its claim
            if new:
                await self._namespaces.relist()
            for one in self._namespaces.objects.values():
                if one.metadata is not None and one.metadata.name == namespace:
                    return dict(one.metadata.labels or {})
        return {}

    async def _tell(
        self, claim: ResourceClaim, wanted: Allocation, ready: Readiness, lease: Lease | None
    ) -> None:
        uuids = {name: one.uuid for name, one in self._devices.items()}
        if is_told(claim, wanted, ready, lease, uuids):
            return
        await self._api.patch(
            ResourceClaimStatus,
            wanted.name,
            status_patch(claim, wanted, ready, lease, uuids, time.time()),
            namespace=wanted.namespace,
            patch_type=PatchType.APPLY,
            field_manager=DRIVER,
            force=True,
        )


def holder_of(claim: ResourceClaim, labels: dict[str, str]) -> Holder:
    """Return for whom a claim's lease is, by the labels of its namespace, which its users cannot change.

    Without any it is for the namespace as a person, ``namespace:NAME``.
    """
    metadata = claim.metadata
    assert metadata is not None
    person = labels.get(PERSON, "")
    if labels.get(PERSONS_BY_CLAIM) == "by-claim":
        person = (metadata.annotations or {}).get(PERSON, "") or person
    return Holder(
        person or f"namespace:{metadata.namespace}",
        "",
        labels.get(COURSE, ""),
        f"claim {metadata.namespace}/{metadata.name}"[:200],
    )
