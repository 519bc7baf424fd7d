"""The calls of engines (Kubernetes, Slurm), which choose devices by themselves; `gpukernel.client.pool` describes errors.

Every call may be repeated: a prolog that was killed, or a claim that is prepared again, asks with the same key and gets the same lease.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

import gpukernel.common.proto.engines_pb2 as pb
import gpukernel.common.proto.engines_pb2_grpc as rpc
from gpukernel.client.pool import PoolClient
from gpukernel.common import messages
from gpukernel.common.model import Holder, Lease, PlacedOn

__all__ = ["EngineClient"]

START_SECONDS = 60.0
STOP_SECONDS = 60.0


class EngineClient(PoolClient):
    """A `PoolClient` with the calls of an engine.

    Attributes
    ----------
    engine
        For whom an administrator asks, ``kubernetes`` or ``slurm``; an engine's own token says it already.
    """

    engine = ""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._engines = rpc.EnginesStub(self._channel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)

    async def acquire_placed(
        self,
        placed_on: Iterable[PlacedOn],
        key: str,
        holder: Holder,
        wait_seconds: float = START_SECONDS,
        longest_seconds: float = 0,
        *,
        ceiling: bool = False,
        began: float = 0,
    ) -> Lease:
        """Return a lease on exactly these devices, with its secret; ``starting`` where its workers take longer than `wait_seconds`.

        Parameters
        ----------
        key
            One use: the uid of a claim, the number of a job.  Asking again with the key of a living lease gives that lease.
        wait_seconds
            For its workers, not for room; at most 600.
        longest_seconds
            The lease ends after this time in any case; 0: only when it is released.
        ceiling
            Its memory is for leases inside of it, as `PoolClient.acquire` asks for with its secret.
        began
            When the engine gave the devices to this use, in seconds since the epoch: the hours of a new lease count from then, as far as the
            pool's bounds allow (``engines.proto``).  0: from now.

        Raises
        ------
        Refused
            With a stable code and the pool's sentence: ``full``, ``not_decided``, ``different`` …
        """
        request = pb.AcquirePlacedRequest(
            engine=self.engine,
            key=key,
            placed_on=[pb.PlacedOn(uuid=one.uuid, memory_bytes=one.memory_bytes) for one in placed_on],
            holder=messages.holder_to(holder),
            longest_seconds=longest_seconds,
            wait_seconds=wait_seconds,
            ceiling=ceiling,
            began=began,
        )
        patience = self.patience + wait_seconds
        reply = await self._call(self._engines.AcquirePlaced, request, patience, quick=False)
        if reply.WhichOneof("result") == "refused":
            raise messages.refused_from(reply.refused)
        return messages.lease_from(reply.lease)

    async def release_placed(
        self, key: str, reason: str = "", wait_seconds: float = STOP_SECONDS
    ) -> Lease | None:
        """End the lease of a key and return it: ``ended``, or ``ending`` where its workers take longer than `wait_seconds` to stop.

        None where the key has no lease that lives or ends: repeating it changes nothing.
        """
        request = pb.ReleasePlacedRequest(
            engine=self.engine, key=key, reason=reason, wait_seconds=wait_seconds
        )
        patience = self.patience + wait_seconds
        reply = await self._call(self._engines.ReleasePlaced, request, patience, quick=False)
        return messages.lease_from(reply.lease) if reply.HasField("lease") else None

    async def placed(self, key: str = "") -> list[Lease]:
        """Return what the engine has placed and is not over, oldest first; of one key, or all."""
        request = pb.ListPlacedRequest(engine=self.engine, key=key)
        reply = await self._call(self._engines.ListPlaced, request)
        return [messages.lease_from(lease) for lease in reply.leases]
