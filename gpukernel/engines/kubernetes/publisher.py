"""The publisher: keeps this driver's ResourceSlices as the pool's devices are.

Guarantees
----------
* The slices of a pool have one generation and say how many they are; the scheduler waits while they do not agree.  Where the number of
  slices stays, only those that changed are written, in one step each, and the generation stays.  Where it changes, all of them get the next
  generation, the newest found plus one, whoever was killed on the way.
* A slice is written with the version that was read: two publishers refuse each other's old views (409) and look again.
* What an API without a feature gate leaves out is said once, and not written again and again.
* While the pool does not answer, the slices stay as they are; devices whose servers are away get taints once the pool says so.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

from lightkube import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.resources.resource_v1 import ResourceSlice

from gpukernel.client.pool import PoolClient
from gpukernel.common.errors import PoolError
from gpukernel.engines.kubernetes.names import DRIVER
from gpukernel.engines.kubernetes.reflector import API_ERRORS, problem_of
from gpukernel.engines.kubernetes.slices import (
    SliceSettings,
    arranged,
    slice_manifest,
    slice_name,
    spec_of,
)

__all__ = ["Publisher"]

log = logging.getLogger(__name__)


class Publisher:
    """The ResourceSlices of one cluster, of the devices of `pool` that Kubernetes decides over."""

    def __init__(self, api: AsyncClient, pool: PoolClient, settings: SliceSettings) -> None:
        self._api, self._pool, self._settings = api, pool, settings
        self._cut: dict[str, tuple[str, dict[str, Any]]] = {}

    async def run(self, every: float = 5.0) -> None:
        """Publish every so many seconds, until this is cancelled."""
        while True:
            try:
                await self.publish()
            except PoolError as error:
                log.warning("%s", error)
            except API_ERRORS as error:
                log.warning("the ResourceSlices cannot be written: %s", problem_of(error))
            await asyncio.sleep(every)

    async def publish(self) -> None:
        """Bring the slices to what the pool's devices are; writes nothing where they are so.

        Raises
        ------
        PoolError
            The pool does not answer.
        httpx2.HTTPError
            The API does not, or refuses.
        """
        devices = await self._pool.devices()
        found = {
            str(one.metadata.name): one
            async for one in self._api.list(ResourceSlice, fields={"spec.driver": DRIVER})
            if one.metadata is not None and one.spec.driver == DRIVER
        }
        in_order: list[ResourceSlice] = []
        while (one := found.pop(slice_name(len(in_order)), None)) is not None:
            in_order.append(one)
        before = [[device.name for device in one.spec.devices or []] for one in in_order]
        wanted = arranged(devices, self._settings, before)
        generations = {one.spec.pool.generation for one in [*in_order, *found.values()]}
        counts = {one.spec.pool.resourceSliceCount for one in in_order}
        whole = not found and len(generations) == 1 and counts == {len(in_order)} == {len(wanted)}
        generation = max(generations, default=0) + (0 if whole else 1)
        for number, shown in enumerate(wanted):
            spec = spec_of(shown, generation, len(wanted))
            if number >= len(in_order):
                manifest = slice_manifest(number, spec)
                self._note(spec, await self._api.create(_resource(manifest)))
            elif not _says(in_order[number], spec) and not self._is_cut(in_order[number], spec):
                manifest = slice_manifest(number, spec, _version(in_order[number]))
                self._note(spec, await self._api.replace(_resource(manifest)))
        for name in [slice_name(number) for number in range(len(wanted), len(in_order))] + list(found):
            try:
                await self._api.delete(ResourceSlice, name)
            except ApiError as error:
                if error.status.code != 404:
                    raise
        if not whole and (wanted or in_order or found):
            log.info("%d ResourceSlices of generation %d are written", len(wanted), generation)

    def _note(self, spec: dict[str, Any], written: ResourceSlice) -> None:
        """Say so where the API has left out what it does not know; the same is not written again and again then."""
        if _says(written, spec):
            return
        assert written.metadata is not None
        self._cut[str(written.metadata.name)] = (_version(written), spec)
        log.error(
            "the API has left out a part of ResourceSlice %s: parts of devices need its feature gate DRAConsumableCapacity, "
            "taints DRADeviceTaints",
            written.metadata.name,
        )

    def _is_cut(self, known: ResourceSlice, spec: dict[str, Any]) -> bool:
        assert known.metadata is not None
        return self._cut.get(str(known.metadata.name)) == (_version(known), spec)


def _version(known: ResourceSlice) -> str:
    assert known.metadata is not None
    return str(known.metadata.resourceVersion)


def _resource(manifest: dict[str, Any]) -> ResourceSlice:
    return cast(ResourceSlice, ResourceSlice.from_dict(manifest))


def _says(known: ResourceSlice, spec: dict[str, Any]) -> bool:
    """Return whether a slice says this already; times that the API adds to taints do not count."""
    said = known.spec.to_dict()
    for device in said.get("devices", []):
        for taint in device.get("taints", []):
            taint.pop("timeAdded", None)
    return bool(said == spec)
