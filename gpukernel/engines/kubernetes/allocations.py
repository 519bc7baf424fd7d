"""Allocations of this driver: what the scheduler has written into a ResourceClaim, as the pool is asked for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lightkube.resources.resource_v1 import ResourceClaim

from gpukernel.common.model import PlacedOn
from gpukernel.engines.kubernetes.names import CEILING, DRIVER, INSIDE, lease_key
from gpukernel.engines.kubernetes.quantities import bytes_of

__all__ = ["Allocation", "AllocationError", "Result", "allocation_of", "placed_on"]

MEMORY = "memory"
"""The capacity that a claim consumes of a device."""


class AllocationError(Exception):
    """An error: an allocation cannot be carried out; the text is a sentence."""


@dataclass(frozen=True)
class Result:
    """A part of one device for one request of a claim.

    Attributes
    ----------
    request
        Its name, without that of an alternative (``firstAvailable``).
    share
        The allocation's ``shareID``; empty where the whole device was allocated.
    memory_bytes
        0: nothing is said, so it is the whole device.
    """

    request: str
    pool: str
    device: str
    share: str
    memory_bytes: int


@dataclass(frozen=True)
class Allocation:
    """The devices of this driver that a claim has; `key` is that of its lease, and a `ceiling` is for kernels that lease inside of it."""

    namespace: str
    name: str
    uid: str
    key: str
    results: tuple[Result, ...]
    ceiling: bool = False

    @property
    def requests(self) -> dict[str, list[Result]]:
        """Return the results of each request."""
        found: dict[str, list[Result]] = {}
        for result in self.results:
            found.setdefault(result.request, []).append(result)
        return found


def allocation_of(claim: ResourceClaim, cluster: str = "") -> Allocation | None:
    """Return what a claim has of this driver; None where it is not allocated, or has nothing of it.

    Administrators' access (``adminAccess``) consumes nothing and gets no lease.

    Raises
    ------
    AllocationError
        A capacity cannot be read, or the claim has parameters for this driver, which knows none.
    """
    metadata, status = claim.metadata, claim.status
    if metadata is None or status is None or status.allocation is None or status.allocation.devices is None:
        return None
    results = []
    for one in status.allocation.devices.results or []:
        if one.driver != DRIVER or one.adminAccess:
            continue
        try:
            size = bytes_of(str((one.consumedCapacity or {}).get(MEMORY, "0")))
        except ValueError as error:
            raise AllocationError(f"The memory of device {one.device} cannot be read: {error}") from None
        results.append(Result(one.request.partition("/")[0], one.pool, one.device, one.shareID or "", size))
    if not results:
        return None
    for config in status.allocation.devices.config or []:
        if config.opaque is not None and config.opaque.driver == DRIVER:
            raise AllocationError(
                f"The claim, or its class, has parameters for {DRIVER}, which knows none; a size is asked for with “capacity”."
            )
    uid = str(metadata.uid)
    key = lease_key(uid, min(result.share for result in results), cluster)
    ceiling = (metadata.annotations or {}).get(CEILING) == INSIDE
    return Allocation(str(metadata.namespace), str(metadata.name), uid, key, tuple(results), ceiling)


def placed_on(allocation: Allocation, devices: Mapping[str, tuple[str, int]]) -> list[PlacedOn]:
    """Return what the pool is asked for: each device once, with all that the claim has of it.

    Parameters
    ----------
    devices
        The UUID and the memory in bytes of each device, by its name in ResourceSlices.

    Raises
    ------
    AllocationError
        A device is not there.
    """
    found: dict[str, int] = {}
    for result in allocation.results:
        if result.device not in devices:
            raise AllocationError(
                f"The pool has no device {result.device} any more; delete the pod, and it is placed on another."
            )
        uuid, memory = devices[result.device]
        found[uuid] = found.get(uuid, 0) + (result.memory_bytes or memory)
    return [PlacedOn(uuid, size) for uuid, size in found.items()]
