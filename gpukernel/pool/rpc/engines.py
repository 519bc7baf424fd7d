"""The service ``Engines``: what Kubernetes and Slurm say of the leases that they have placed (``engines.proto``)."""

from __future__ import annotations

import logging
from dataclasses import replace

import grpc

import gpukernel.common.proto.engines_pb2 as pb
import gpukernel.common.proto.engines_pb2_grpc as rpc
from gpukernel.common import messages
from gpukernel.common.errors import Refused
from gpukernel.common.logs import fields, one_line
from gpukernel.common.model import PlacedOn
from gpukernel.pool.auth.identity import Identity
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.leases.placed_leases import PlacedLeases
from gpukernel.pool.rpc.callers import Access, or_refuse, refuse, unary

__all__ = ["EnginesService"]

log = logging.getLogger(__name__)


class EnginesService(rpc.EnginesServicer):
    """The service of engines; each reaches its own devices and keys."""

    def __init__(self, manager: LeaseManager, identity: Identity) -> None:
        self._placed = PlacedLeases(manager)
        self.identity = identity

    @staticmethod
    async def _engine(named: str, access: Access) -> str:
        """Return the engine for which a call is made; end the call where that is not its caller."""
        own = access.caller.engine
        if own and named not in ("", own):
            await refuse(
                access.context,
                grpc.StatusCode.PERMISSION_DENIED,
                f"{access.caller.name} is {own}'s, and may not ask for {named[:20]}.",
            )
        return own or named

    @unary
    async def AcquirePlaced(self, request: pb.AcquirePlacedRequest, access: Access) -> pb.AcquirePlacedReply:
        """Grant a lease on exactly the devices that an engine has chosen."""
        engine = await self._engine(request.engine, access)
        holder = messages.holder_from(request.holder)
        holder = replace(holder, description=one_line(holder.description))
        placed_on = [PlacedOn(one.uuid, one.memory_bytes) for one in request.placed_on]
        try:
            lease = await self._placed.acquire(
                engine,
                request.key,
                placed_on,
                holder,
                request.wait_seconds,
                request.longest_seconds,
                ceiling=request.ceiling,
                began=request.began,
            )
        except Refused as refusal:
            about = fields(person=holder.person, course=holder.course, code=refusal.code)
            log.info("placement refused: %s", refusal, extra=about)
            return pb.AcquirePlacedReply(refused=messages.refused_to(refusal))
        return pb.AcquirePlacedReply(lease=messages.lease_to(lease, with_secret=True))

    @unary
    async def ReleasePlaced(self, request: pb.ReleasePlacedRequest, access: Access) -> pb.ReleasePlacedReply:
        """End the lease of an engine's key."""
        engine = await self._engine(request.engine, access)
        reason = one_line(request.reason[:256])
        try:
            lease = await self._placed.release(engine, request.key, reason, request.wait_seconds)
        except Refused as refusal:
            await refuse(access.context, grpc.StatusCode.INVALID_ARGUMENT, str(refusal), refusal.code)
        return pb.ReleasePlacedReply(lease=None if lease is None else messages.lease_to(lease))

    @unary
    async def ListPlaced(self, request: pb.ListPlacedRequest, access: Access) -> pb.ListPlacedReply:
        """Answer with what an engine has placed."""
        engine = await self._engine(request.engine, access)
        found = await or_refuse(access.context, lambda: self._placed.all(engine, request.key))
        return pb.ListPlacedReply(leases=map(messages.lease_to, found))
