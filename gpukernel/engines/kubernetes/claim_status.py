"""The status of a claim's devices: whether its workers are ready, and where; never a lease's secret."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

from lightkube.resources.resource_v1 import ResourceClaim

from gpukernel.common.model import Lease
from gpukernel.engines.kubernetes.allocations import Allocation, Result
from gpukernel.engines.kubernetes.names import DRIVER

__all__ = ["READY", "Readiness", "is_told", "readiness_of", "refused", "status_patch"]

READY = "Ready"
MESSAGE = 1024

Readiness = tuple[bool, str, str]
"""Readiness of workers; the reason, a word in CamelCase; a sentence."""


def readiness_of(lease: Lease) -> Readiness:
    """Return how a lease is."""
    if lease.state == "live":
        return True, "WorkerReady", "The worker is ready."
    return False, "WorkerStarting", "The worker starts."


def refused(code: str, sentence: str) -> Readiness:
    """Return what a refusal says: its code becomes the reason."""
    return False, "".join(word.capitalize() for word in re.split(r"[^a-z]+", code)) or "Refused", sentence


def _data(result: Result, lease: Lease | None, uuids: Mapping[str, str]) -> dict[str, str] | None:
    """Return what a program may know of its part of a device."""
    if lease is None:
        return None
    piece = next((one for one in lease.slices if one.uuid == uuids.get(result.device)), None)
    if piece is None:
        return None
    networked = [one for one in piece.endpoints if not one.startswith("unix:")]
    return {"lease": lease.id, "server": piece.server, "endpoint": networked[0] if networked else ""}


def _told(claim: ResourceClaim) -> dict[tuple[str, str, str], Any]:
    """Return the status of this driver's devices that a claim has already."""
    devices = claim.status.devices if claim.status is not None else None
    return {(one.pool, one.device, one.shareID or ""): one for one in devices or [] if one.driver == DRIVER}


def _condition(known: Any) -> Any:
    return next((one for one in (known.conditions if known else None) or [] if one.type == READY), None)


def is_told(
    claim: ResourceClaim,
    allocation: Allocation,
    ready: Readiness,
    lease: Lease | None,
    uuids: Mapping[str, str],
) -> bool:
    """Return whether the claim's status says this already."""
    told = _told(claim)
    if len(told) != len(allocation.results):
        return False
    for result in allocation.results:
        known = told.get((result.pool, result.device, result.share))
        condition = _condition(known)
        if condition is None or known is None or (known.data or None) != _data(result, lease, uuids):
            return False
        if (condition.status == "True", condition.reason, condition.message) != (
            *ready[:2],
            ready[2][:MESSAGE],
        ):
            return False
    return True


def status_patch(
    claim: ResourceClaim,
    allocation: Allocation,
    ready: Readiness,
    lease: Lease | None,
    uuids: Mapping[str, str],
    now: float,
) -> dict[str, Any]:
    """Return a server-side apply of the claim's status.

    It names the claim's uid, so that another claim of the same name is refused (409), and this driver's devices only, so that those of
    other drivers stay.
    """
    told = _told(claim)
    entries = []
    for result in allocation.results:
        before = _condition(told.get((result.pool, result.device, result.share)))
        state = "True" if ready[0] else "False"
        since = datetime.datetime.fromtimestamp(now, datetime.UTC).replace(microsecond=0)
        if before is not None and before.status == state and before.lastTransitionTime is not None:
            since = before.lastTransitionTime
        entry: dict[str, Any] = {
            "driver": DRIVER,
            "pool": result.pool,
            "device": result.device,
            "conditions": [
                {
                    "type": READY,
                    "status": state,
                    "reason": ready[1],
                    "message": ready[2][:MESSAGE],
                    "lastTransitionTime": since.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                }
            ],
        }
        if result.share:
            entry["shareID"] = result.share
        if (data := _data(result, lease, uuids)) is not None:
            entry["data"] = data
        entries.append(entry)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": allocation.name, "namespace": allocation.namespace, "uid": allocation.uid},
        "status": {"devices": entries},
    }
