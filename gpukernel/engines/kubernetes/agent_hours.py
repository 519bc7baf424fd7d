"""The hours of agents' pods: DaemonSets and Deployments that lend GPUs to the pool in the hours of their annotation, and give them back at night.

Guarantees
----------
* A pod is told to stop so long before its hours end as its grace period says: its holders have that time, and the GPUs are free at the end.
* Nothing is kept here but what stands in the objects: killed at any moment and started again, the next look does what is missing.
* Only what was written here is taken back: an administrator's own node selector, or 0 replicas of a Deployment, stay.
* A schedule or a time zone that is not understood changes nothing, and is said once in a sentence.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zoneinfo
from collections.abc import Callable
from typing import Any

from lightkube import AsyncClient
from lightkube.resources.apps_v1 import DaemonSet, Deployment
from lightkube.types import PatchType

from gpukernel.engines.kubernetes.names import DRIVER
from gpukernel.engines.kubernetes.reflector import API_ERRORS, problem_of
from gpukernel.engines.schedule import Schedule, parse_schedule

__all__ = ["CLOSED", "HOURS", "REPLICAS", "ZONE", "AgentHours"]

log = logging.getLogger(__name__)

HOURS = f"{DRIVER}/schedule"
"""Annotation: the hours, ``Mo-Fr 8-18``; without it an object is left alone."""
ZONE = f"{DRIVER}/schedule-zone"
"""Annotation: their time zone, ``Europe/Berlin``; else the zone of this process."""
CLOSED = f"{DRIVER}/closed-until-its-hours"
"""Label that no node has: a DaemonSet whose pods select it has none."""
REPLICAS = f"{DRIVER}/replicas-in-its-hours"
"""Annotation of a Deployment without pods: how many it has in its hours."""

USUAL_GRACE = 30
"""Seconds that Kubernetes gives a pod that names no grace period."""


class AgentHours:
    """The hours of one namespace's agents.

    Parameters
    ----------
    clock
        Seconds since the epoch.
    """

    def __init__(self, api: AsyncClient, namespace: str, clock: Callable[[], float] = time.time) -> None:
        self._api, self._namespace, self._clock = api, namespace, clock
        self._wrong: dict[str, str] = {}

    async def run(self, every: float = 15.0) -> None:
        """Look every so many seconds, until this is cancelled."""
        while True:
            try:
                await self.look()
            except API_ERRORS as error:
                log.warning("the agents' hours cannot be kept: %s", problem_of(error))
            await asyncio.sleep(every)

    async def look(self) -> None:
        """Open and close what has to be; raises what `lightkube` raises."""
        kinds: tuple[Any, ...] = (DaemonSet, Deployment)
        for kind in kinds:
            async for one in self._api.list(kind, namespace=self._namespace):
                if HOURS in (one.metadata.annotations or {}):
                    await self._keep(kind, one)

    async def _keep(self, kind: Any, one: Any) -> None:
        name, now = f"{kind.__name__} {one.metadata.name}", self._clock()
        schedule = self._schedule(name, one.metadata.annotations)
        if schedule is None:
            return
        grace = one.spec.template.spec.terminationGracePeriodSeconds
        why = schedule.why_closed(now, USUAL_GRACE if grace is None else grace)
        patch = _of_daemon_set(one, bool(why)) if kind is DaemonSet else _of_deployment(one, bool(why))
        if not patch:
            return
        # Refused where somebody has changed it since, and looked at again.
        patch.setdefault("metadata", {})["resourceVersion"] = one.metadata.resourceVersion
        await self._api.patch(
            kind, one.metadata.name, patch, namespace=self._namespace, patch_type=PatchType.MERGE
        )
        if why:
            log.info("%s gives its GPUs back: %s%s", name, why, schedule.opens_again(now))
        else:
            log.info("%s lends its GPUs: the schedule %s is open", name, schedule.text)

    def _schedule(self, name: str, annotations: dict[str, str]) -> Schedule | None:
        try:
            zone = annotations.get(ZONE, "")
            found = parse_schedule(annotations[HOURS], _zone(zone) if zone else None)
        except ValueError as error:
            if self._wrong.get(name) != str(error):
                self._wrong[name] = str(error)
                log.error("%s is left as it is: %s", name, error)
            return None
        self._wrong.pop(name, None)
        return found


def _zone(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"“{name[:40]}” is no time zone here; write one such as Europe/Berlin.") from None


def _of_daemon_set(one: DaemonSet, closed: bool) -> dict[str, Any]:
    """Return the change; empty where it is as it should be.  Pods of nodes that are not selected any more are told to stop."""
    assert one.spec is not None
    assert one.spec.template.spec is not None
    is_closed = CLOSED in (one.spec.template.spec.nodeSelector or {})
    if is_closed == closed:
        return {}
    selector = {CLOSED: "true" if closed else None}
    return {"spec": {"template": {"spec": {"nodeSelector": selector}}}}


def _of_deployment(one: Deployment, closed: bool) -> dict[str, Any]:
    """Return the change; empty where it is as it should be."""
    assert one.spec is not None
    assert one.metadata is not None
    replicas = 1 if one.spec.replicas is None else one.spec.replicas
    kept = (one.metadata.annotations or {}).get(REPLICAS, "")
    if closed and replicas:
        return {"metadata": {"annotations": {REPLICAS: str(replicas)}}, "spec": {"replicas": 0}}
    if not closed and kept:
        # Where somebody gave it pods meanwhile, that counts.
        again = {} if replicas or not kept.isdigit() else {"spec": {"replicas": int(kept)}}
        return {"metadata": {"annotations": {REPLICAS: None}}, **again}
    return {}
