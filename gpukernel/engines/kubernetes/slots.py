"""Slots of a node: the slices that a device plugin counts, in clusters before 1.34, whose kubelet knows nothing of claims.

The kubelet names slots when a container starts, and never says that one is free again.  So a slot's lease is released when the kubelet
names the slot for another container, or lists it for no container any more.

Guarantees
----------
* A slot has one lease at most, by the key ``slots/NODE/SLOT``, of a named cluster ``CLUSTER/slots/NODE/SLOT``; a container with several
  slots has one lease, by the first of them.
* A lease that the kubelet still counts to a container is never released.  One is released only when the kubelet's list, asked for after
  the pool's, has none of its slots, twice in a row: a container that is being started may not be in it yet.  The list of a kubelet that
  has just started counts only for slots that it has had: it knows no pod before it has heard of them from the API server.
* Nothing is kept but the lease files: their names say which slots belong together.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from gpukernel.client.engines import EngineClient
from gpukernel.common.errors import PoolError, Refused
from gpukernel.common.model import Device, Holder, Lease, PlacedOn
from gpukernel.engines.containers.bundle import BundleError
from gpukernel.engines.kubernetes.claim_files import ClaimFiles, Prepared
from gpukernel.engines.kubernetes.preparing import NotPrepared
from gpukernel.engines.kubernetes.quantities import MIB

__all__ = ["Slots"]

log = logging.getLogger(__name__)

REQUEST = "slots"
START_SECONDS = 30.0


class Slots:
    """The slots of one node.

    Parameters
    ----------
    node
        Its name, a part of the keys.
    model
        Devices whose name contains it.
    share
        Part of a device in each slot.
    count
        Number of slots.
    cluster
        The cluster's name where several share one pool.
    """

    def __init__(
        self,
        pool: EngineClient,
        files: ClaimFiles,
        node: str,
        model: str,
        share: float,
        count: int,
        cluster: str = "",
    ) -> None:
        self._pool, self._files = pool, files
        self._node, self._model, self._share = node, model.lower(), share
        self._prefix = f"{cluster}/" if cluster else ""
        # A node may have a plugin for each of several models: what is one's own is known by its name.
        word = re.sub(r"[^a-z0-9]+", "-", self._model).strip("-") or "any"
        self.names = [f"{word}-slot-{number}" for number in range(count)]
        self._unused: set[str] = set()
        self._listed: set[str] = set()
        self._one_at_a_time = asyncio.Lock()  # a slot is not swept while it is given out

    def _key(self, slot: str) -> str:
        return f"{self._prefix}slots/{self._node}/{slot}"

    async def _devices(self) -> list[Device]:
        """Return the devices that slots may be on, the emptiest first."""
        found = [
            one
            for one in await self._pool.devices()
            if one.decided_by == "kubernetes"
            and one.uuid
            and not (one.trouble or one.next_decider)
            and self._model in one.name.lower()
        ]
        return sorted(found, key=lambda one: one.promised_bytes / one.memory_bytes)

    async def works(self) -> bool:
        """Return whether the pool answers and has a device for slots."""
        try:
            return bool(await self._devices())
        except PoolError as error:
            log.warning("%s", error)
            return False

    async def start(self, slots: Sequence[str]) -> dict[str, Any]:
        """Hold a slice for the slots of a container that starts; return its variables and mounts, as CDI names them.

        Raises
        ------
        NotPrepared
            There is no room, or the pool does not answer.
        """
        if not slots or (wrong := set(slots) - set(self.names)):
            raise NotPrepared(f"This node has no slots “{', '.join(sorted(wrong))[:60] if slots else ''}”.")
        async with self._one_at_a_time:
            return await self._start(slots)

    async def _start(self, slots: Sequence[str]) -> dict[str, Any]:
        first = min(slots)
        try:
            await self._end([one for one in self._prepared() if set(one.requests[REQUEST]) & set(slots)])
            lease = await self._acquire(first, len(slots))
            prepared = Prepared("", self._node, first, self._key(first), lease.id, {REQUEST: sorted(slots)})
            uuids = {REQUEST: [one.uuid for one in lease.slices]}
            self._files.write(prepared, lease, uuids)
        except (PoolError, BundleError) as error:
            raise NotPrepared(str(error)) from None
        self._unused.discard(first)
        self._listed |= set(slots)  # it knows whose they are, or would not have named them
        return self._files.edits(prepared, lease, REQUEST)

    async def _acquire(self, first: str, count: int) -> Lease:
        """Return a lease of so many slots on one device; tries the next device where somebody was quicker."""
        refused: Refused | None = None
        await self._pool.release_placed(self._key(first), "its slot is used anew")
        for device in await self._devices():
            size = max(MIB, int(device.memory_bytes * self._share) // MIB * MIB) * count
            try:
                return await self._pool.acquire_placed(
                    [PlacedOn(device.uuid, size)],
                    self._key(first),
                    Holder(f"node:{self._node}", self._node, "", f"{count} slots from {first}"),
                    START_SECONDS,
                )
            except Refused as error:
                refused = error
        raise refused or NotPrepared("Kubernetes decides over no device of this model that works.")

    def _prepared(self) -> list[Prepared]:
        return [one for one in self._files.all() if REQUEST in one.requests]

    async def _end(self, prepared: Sequence[Prepared]) -> None:
        for one in prepared:
            await self._pool.release_placed(one.key, "its container ended")
            self._files.remove(one.uid)

    def begin_anew(self) -> None:
        """Forget what a kubelet before this one has listed."""
        self._unused, self._listed = set(), set()

    async def sweep(self, in_use: Callable[[], Awaitable[set[str]]], knows_all: bool = True) -> None:
        """Release the leases of slots that no container has any more.

        Parameters
        ----------
        in_use
            Asks the kubelet for the slots of all containers.
        knows_all
            The kubelet has had the time to hear of its pods; else only slots that it has listed before are released.

        Raises
        ------
        PoolError
            The pool does not answer.
        """
        async with self._one_at_a_time:
            await self._sweep(in_use, knows_all)

    async def _sweep(self, in_use: Callable[[], Awaitable[set[str]]], knows_all: bool) -> None:
        keys = {lease.key for lease in await self._pool.placed()}
        files = {one.key: one for one in self._prepared()}
        used = await in_use()
        self._listed |= used
        unused = set()
        for slot in self.names:
            key = self._key(slot)
            known = files.get(key)
            own = set(known.requests[REQUEST] if known else [slot])
            if (key in keys or known) and not used & own and (knows_all or self._listed & own):
                unused.add(slot)
        for slot in unused & self._unused:
            log.info("%s is free", slot)
            await self._pool.release_placed(self._key(slot), "its container ended")
            self._files.remove(slot)
        self._unused = unused - self._unused
