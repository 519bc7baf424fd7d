"""Claims prepared on a node, and given up again.

Guarantees
----------
* Preparing a claim, as often as the kubelet likes and whoever was killed in between, makes no lease: the controller's is taken, asked for
  again by its key, which is how its secret gets here.
* Only the lease of the claim's present allocation is given out, on the devices and with the memory that the allocation names.
* A call that fails or is broken off leaves files of a claim that was prepared before, or none.
* Giving up removes the files and never fails for a claim that was not prepared; the lease ends with the allocation, by the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from weakref import WeakValueDictionary

from lightkube import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.resources.resource_v1 import ResourceClaim

from gpukernel.client.engines import EngineClient
from gpukernel.common.errors import PoolError
from gpukernel.common.model import Device, Holder, Lease, PlacedOn
from gpukernel.engines.containers.bundle import BundleError
from gpukernel.engines.kubernetes.allocations import Allocation, AllocationError, allocation_of, placed_on
from gpukernel.engines.kubernetes.claim_files import ClaimFiles, Prepared
from gpukernel.engines.kubernetes.names import device_name, is_uid
from gpukernel.engines.kubernetes.reflector import API_ERRORS, problem_of
from gpukernel.engines.named_devices import devices_by

__all__ = ["NotPrepared", "Preparing"]

log = logging.getLogger(__name__)

AGAIN_SECONDS = 0.2
ENDED = "the slice ended; it is asked for again"


class NotPrepared(Exception):
    """An error: a claim could not be prepared, or given up; the text is a sentence, which the pod's events show."""


class Preparing:
    """The claims of this node.

    Parameters
    ----------
    api, pool
        Clients of the cluster and of the pool, this one with the token of the engine ``kubernetes``.
    cluster
        As the controller has it.
    wait_seconds
        How long a call waits for the controller's lease and its workers; the kubelet asks again after it failed.
    """

    def __init__(
        self,
        api: AsyncClient,
        pool: EngineClient,
        files: ClaimFiles,
        cluster: str = "",
        wait_seconds: float = 30.0,
    ) -> None:
        self._api, self._pool, self._files = api, pool, files
        self._cluster, self._wait = cluster, wait_seconds
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def _lock(self, uid: str) -> asyncio.Lock:
        """Return the lock of a claim, which is there for as long as somebody has it."""
        lock = self._locks.get(uid)
        if lock is None:
            self._locks[uid] = lock = asyncio.Lock()
        return lock

    async def prepare(self, namespace: str, name: str, uid: str) -> tuple[Allocation, dict[str, str]]:
        """Write a claim's files; return its allocation and the CDI name of each of its requests.

        Raises
        ------
        NotPrepared
            Not now; the sentence says why.
        """
        if not is_uid(uid):
            raise NotPrepared(f"“{uid[:60]}” is no uid of a claim.")
        async with self._lock(uid):
            try:
                allocation = await self._allocation(namespace, name, uid)
                lease, devices = await self._lease(allocation)
                prepared = _prepared(allocation, lease, devices)
                self._files.write(prepared, lease)
            except (AllocationError, PoolError, BundleError) as error:
                raise NotPrepared(str(error)) from None
            except API_ERRORS as error:
                raise NotPrepared(f"The claim cannot be prepared: {problem_of(error)}.") from None
            log.info("claim %s/%s is prepared, lease %s", namespace, name, lease.id)
            return allocation, self._files.devices(prepared)

    async def give_up(self, uid: str) -> None:
        """Remove a claim's files; does nothing where there are none.

        Raises
        ------
        NotPrepared
            They cannot be removed.
        """
        if not is_uid(uid):
            raise NotPrepared(f"“{uid[:60]}” is no uid of a claim.")
        async with self._lock(uid):
            try:
                self._files.remove(uid)
            except OSError as error:
                raise NotPrepared(f"The files of claim {uid} cannot be removed: {error.strerror}.") from None

    async def _allocation(self, namespace: str, name: str, uid: str) -> Allocation:
        try:
            claim = await self._api.get(ResourceClaim, name, namespace=namespace)
        except ApiError as error:
            if error.status.code == 404:
                raise NotPrepared(f"There is no claim {namespace}/{name}.") from None
            raise
        if claim.metadata is None or claim.metadata.uid != uid:
            raise NotPrepared(f"Claim {namespace}/{name} is another one now, not {uid}.")
        allocation = allocation_of(claim, self._cluster)
        if allocation is None:
            raise NotPrepared(f"Claim {namespace}/{name} has no device of this driver.")
        return allocation

    async def _lease(self, allocation: Allocation) -> tuple[Lease, dict[str, Device]]:
        """Return the live lease of an allocation with its secret, and the devices by their names."""
        end = time.monotonic() + self._wait
        while True:
            found = [one for one in await self._pool.placed(allocation.key) if one.state == "live"]
            if found:
                break
            if time.monotonic() > end:
                raise NotPrepared(
                    f"Claim {allocation.namespace}/{allocation.name} has no slice yet: see its status, "
                    "and whether “gpukernel kubernetes controller” runs."
                )
            await asyncio.sleep(AGAIN_SECONDS)
        known = found[0]
        devices = devices_by(device_name, await self._pool.devices(), "kubernetes")
        sizes = {name: (one.uuid, one.memory_bytes) for name, one in devices.items()}
        asked = placed_on(allocation, sizes)
        has = has_of(known)
        if sorted(asked, key=str) != sorted(has, key=str):
            raise NotPrepared(
                f"The lease {known.id} of claim {allocation.namespace}/{allocation.name} is not what was allocated."
            )
        lease = await self._pool.acquire_placed(
            asked, allocation.key, known.holder, self._wait, ceiling=known.ceiling
        )
        return lease, devices

    async def refresh(self) -> None:
        """Bring the lease files of prepared claims to what the pool says: a lease that is over, and another one in its place.

        Raises
        ------
        PoolError
            The pool does not answer; nothing is changed then.
        """
        prepared = self._files.all()
        if not prepared:
            return
        leases = {lease.key: lease for lease in await self._pool.placed()}
        for one in prepared:
            lease = leases.get(one.key)
            if lease is not None and lease.id == one.lease:
                continue
            async with self._lock(one.uid):
                if one not in self._files.all():
                    continue  # given up, or prepared anew meanwhile
                if lease is not None and lease.state == "live":
                    fresh = await self._pool.acquire_placed(
                        has_of(lease), one.key, lease.holder, ceiling=lease.ceiling
                    )
                    with contextlib.suppress(BundleError):
                        self._files.write(replace(one, lease=fresh.id), fresh)
                        log.info("claim %s/%s has another lease, %s", one.namespace, one.name, fresh.id)
                elif lease is None:
                    self._files.write_over(one, _over(one))

    async def run(self, every: float = 5.0) -> None:
        """Refresh every so many seconds, until this is cancelled."""
        while True:
            try:
                await self.refresh()
            except PoolError as error:
                log.warning("%s", error)
            except OSError as error:
                log.warning("lease files cannot be written: %s", error)
            await asyncio.sleep(every)


def has_of(lease: Lease) -> list[PlacedOn]:
    """Return what a placed lease has of each device, with what a ceiling keeps for leases inside."""
    return [PlacedOn(one.uuid, one.memory_bytes + one.reserve_bytes) for one in lease.slices]


def _prepared(allocation: Allocation, lease: Lease, devices: dict[str, Device]) -> Prepared:
    requests = {
        request: [devices[result.device].uuid for result in results]
        for request, results in allocation.requests.items()
    }
    return Prepared(allocation.namespace, allocation.name, allocation.uid, allocation.key, lease.id, requests)


def _over(one: Prepared) -> Lease:
    """Return a lease that is over, for a lease file."""
    return Lease(one.lease, one.key, Holder(""), (), "ended", 0, 0, 0, 0, end_reason=ENDED)
