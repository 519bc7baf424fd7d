"""The service ``Pool``: what holders of leases ask for (``pool.proto``)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace

import grpc
import grpc.aio
import sqlalchemy as sa

import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.pool_pb2_grpc as rpc
from gpukernel.common import messages
from gpukernel.common.errors import Refused
from gpukernel.common.i18n import say
from gpukernel.common.logs import fields, one_line
from gpukernel.common.model import Holder, Lease
from gpukernel.common.telemetry.tracing import TracedCall, received_context, rpc_attributes, traced
from gpukernel.pool.auth.identity import Caller, Identity
from gpukernel.pool.leases.ceilings import LeasesInside
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.rpc.callers import Access, refuse, stream, unary
from gpukernel.pool.scheduling.request_queue import KEY_IN_USE

__all__ = ["PoolService"]

log = logging.getLogger(__name__)

PAGE = 16
"""Leases of one message that are looked up in one turn of the loop."""

REQUESTS_AHEAD = 4
"""Messages of a stream that wait for their turn."""


class PoolService(rpc.PoolServicer):
    """The service of holders: acquire, hold, renew, resize and release leases, and list what there is."""

    def __init__(self, manager: LeaseManager, identity: Identity) -> None:
        self._manager = manager
        self._inside = LeasesInside(manager)
        self.identity = identity

    @stream
    async def Acquire(self, request: pb.AcquireRequest, access: Access) -> AsyncIterator[pb.AcquireEvent]:
        """Stream the places in the queue, then the lease."""
        caller = access.caller
        holder = caller.holder(messages.holder_from(request.holder))
        holder = replace(holder, description=one_line(holder.description))
        if request.within or caller.inside:
            yield await self._acquire_inside(request, caller, holder)
            return
        # To a server's token its person's other courses are others: it neither takes a lease of theirs nor ends who waits there.
        known = self._manager.holder_of(request.key) if caller.course else None
        if known is not None and not access.covers(known, self._manager.policy):
            yield pb.AcquireEvent(refused=messages.refused_to(Refused("invalid", KEY_IN_USE)))
            return
        about = rpc_attributes("gpukernel.v1.Pool", "Acquire") | {"gpukernel.course": holder.course}
        parent = received_context(access.context.invocation_metadata())
        with traced("gpukernel.v1.Pool/Acquire", "server", about, parent) as call:
            async with contextlib.aclosing(self._places(request, access, holder, call)) as events:
                async for event in events:
                    yield event

    async def _places(
        self, request: pb.AcquireRequest, access: Access, holder: Holder, call: TracedCall
    ) -> AsyncGenerator[pb.AcquireEvent]:
        caller = access.caller
        places = self._manager.acquire(
            request.key,
            caller.request(messages.request_from(request.slice)),
            holder,
            request.wait_seconds,
            request.ttl_seconds,
            request.longest_seconds,
            own_key=not caller.speaks_for_others,  # keys are a person's own: another's gives nothing of theirs
            traceparent=call.traceparent,
        )
        try:
            async for event in places:
                if isinstance(event, Lease):
                    call.attribute("gpukernel.lease.id", event.id)
                    if not access.covers(event.holder, self._manager.policy):
                        # It was given to another in between, by another pool.
                        raise Refused("invalid", KEY_IN_USE)
                    yield pb.AcquireEvent(granted=messages.lease_to(event, with_secret=True))
                else:
                    call.event("gpukernel.queued")
                    yield pb.AcquireEvent(
                        queued=pb.Queued(
                            position=event.position,
                            estimate_seconds=event.estimate_seconds,
                            reason=event.reason,
                            quota=event.quota,
                        )
                    )
        except Refused as refusal:
            about = fields(person=holder.person, course=holder.course, code=refusal.code)
            log.info("refused: %s", refusal, extra=about)
            call.failed(refusal.code)
            yield pb.AcquireEvent(refused=messages.refused_to(refusal))
        finally:
            await places.aclose()  # type: ignore[attr-defined]

    async def _acquire_inside(
        self, request: pb.AcquireRequest, caller: Caller, holder: Holder
    ) -> pb.AcquireEvent:
        """Answer a request for a lease inside of a ceiling."""
        try:
            if not request.within:
                raise Refused(
                    "no_ceiling",
                    say("Slices of this server lie inside of its pod's claim, and this request names none."),
                )
            lease = await self._inside.acquire(
                request.within,
                request.within_secret,
                request.key,
                caller.request(messages.request_from(request.slice)),
                holder,
                request.ttl_seconds,
                request.longest_seconds,
            )
        except Refused as refusal:
            about = fields(person=holder.person, course=holder.course, code=refusal.code)
            log.info("refused: %s", refusal, extra=about)
            return pb.AcquireEvent(refused=messages.refused_to(refusal))
        return pb.AcquireEvent(granted=messages.lease_to(lease, with_secret=True))

    async def _lease(self, lease_id: str, access: Access) -> Lease:
        """Return a lease that the call reaches; end the call where the lease is not known or not the caller's."""
        lease = self._manager.lease(lease_id)
        if lease is None or not access.covers(lease.holder, self._manager.policy):
            await refuse(
                access.context,
                grpc.StatusCode.NOT_FOUND,
                say("The pool knows no lease %(lease)s of yours.", lease=lease_id[:40]),
            )
        assert lease is not None
        return lease

    def _write_down(self, caller: Caller, lease: Lease, action: str, what: str) -> None:
        """Write to the audit table that somebody did something to what another holds."""
        if caller.name != lease.holder.person and caller.scope != "service":
            who = caller.signature(lease.holder.course, self._manager.policy())
            course = f"course {lease.holder.course}" if lease.holder.course else "no course"
            self._manager.write_down(
                who, action, f"{course}: {lease.holder.person}", f"lease {lease.id}", what
            )

    @stream
    async def Hold(
        self, requests: AsyncIterator[pb.HoldRequest], access: Access
    ) -> AsyncIterator[pb.HoldReply]:
        """Keep leases alive for as long as the stream is open, and report their changes."""
        held = set[str]()
        # Requests, ids of leases that are different, and None at the end.
        events: asyncio.Queue[pb.HoldRequest | str | None] = asyncio.Queue()
        room = asyncio.Semaphore(REQUESTS_AHEAD)
        reading = asyncio.create_task(_read_into(events, requests, room))
        try:
            while (event := await events.get()) is not None:
                if isinstance(event, pb.HoldRequest):
                    for lease_id in held.intersection(event.let_go):
                        held.discard(lease_id)
                        self._manager.keepalive.let_go(lease_id, events.put_nowait)
                    room.release()
                    for number, lease_id in enumerate(set(event.hold) - held, 1):
                        if number % PAGE == 0:
                            await asyncio.sleep(0)  # the decisions of others come between
                        lease = self._manager.lease(lease_id)
                        if lease is not None and access.covers(lease.holder, self._manager.policy):
                            held.add(lease_id)
                            self._manager.keepalive.hold(lease, events.put_nowait, self._manager.steady())
                        events.put_nowait(lease_id)
                else:
                    lease = self._manager.lease(event) if event in held else None
                    if lease is None or lease.state in ("ending", "ended"):
                        held.discard(event)
                        self._manager.keepalive.let_go(event, events.put_nowait)
                    yield pb.HoldReply(lease=messages.lease_to(lease) if lease else _unknown(event))
        finally:
            reading.cancel()
            for lease_id in held:
                self._manager.keepalive.let_go(lease_id, events.put_nowait)

    @unary
    async def Renew(self, request: pb.RenewRequest, access: Access) -> pb.RenewReply:
        """Renew one lease."""
        await self._lease(request.lease_id, access)
        return pb.RenewReply(lease=self._message(self._manager.renew(request.lease_id)))

    @unary
    async def Release(self, request: pb.ReleaseRequest, access: Access) -> pb.ReleaseReply:
        """End a lease."""
        caller, held = access.caller, await self._lease(request.lease_id, access)
        if held.state in ("starting", "live"):
            self._write_down(caller, held, "end", one_line(request.reason[:256]))
        reason = one_line(request.reason[:256]) or "released by its holder"
        lease = self._manager.end(request.lease_id, reason)
        return pb.ReleaseReply(lease=self._message(lease))

    @unary
    async def Interrupt(self, request: pb.InterruptRequest, access: Access) -> pb.InterruptReply:
        """End GPU work of a lease that does not end by itself."""
        await self._lease(request.lease_id, access)
        return pb.InterruptReply(lease=self._message(self._manager.interrupt(request.lease_id)))

    @unary
    async def Resize(self, request: pb.ResizeRequest, access: Access) -> pb.ResizeReply:
        """Make the slices of a lease larger or smaller."""
        caller, held = access.caller, await self._lease(request.lease_id, access)
        try:
            lease = await self._manager.resize(request.lease_id, messages.request_from(request.slice))
        except Refused as refusal:
            return pb.ResizeReply(refused=messages.refused_to(refusal))
        if lease is not None:
            self._write_down(
                caller, held, "resize", ", ".join(f"{s.memory_bytes // 2**20} MiB" for s in lease.slices)
            )
        return pb.ResizeReply(lease=self._message(lease))

    @staticmethod
    def _message(lease: Lease | None) -> pb.Lease | None:
        return messages.lease_to(lease) if lease is not None else None

    @unary
    async def ListDevices(self, request: pb.ListDevicesRequest, access: Access) -> pb.ListDevicesReply:
        """Answer with every device."""
        return pb.ListDevicesReply(devices=[messages.device_to(d) for d in self._manager.devices()])

    @unary
    async def ListLeases(self, request: pb.ListLeasesRequest, access: Access) -> pb.ListLeasesReply:
        """Answer with the leases and waiting requests that the caller may see, of one key or one decider where that is asked for."""
        manager = self._manager
        policy, queued, store = manager.policy(), manager.waiting(), manager.store

        def work(db: sa.Connection) -> pb.ListLeasesReply:
            leases = store.leases.all(include_ended=request.include_ended, db=db)
            wanted = (
                one
                for one in leases
                if request.key in ("", one.key) and request.decided_by in ("", one.decided_by)
            )
            seen = (manager.shown(one) for one in wanted if access.covers(one.holder, policy))
            queue = queued if request.decided_by in ("", "pool") else []
            waits = (one for one in queue if request.key in ("", one.key))
            return pb.ListLeasesReply(
                leases=[messages.lease_to(one) for one in seen],
                waiting=[messages.waiting_to(one) for one in waits if access.covers(one.holder, policy)],
            )

        return await store.read(work)


async def _read_into(
    events: asyncio.Queue[pb.HoldRequest | str | None],
    requests: AsyncIterator[pb.HoldRequest],
    room: asyncio.Semaphore,
) -> None:
    """Pass requests on, no faster than they are done with."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for request in requests:
            await room.acquire()
            events.put_nowait(request)
    events.put_nowait(None)


def _unknown(lease_id: str) -> pb.Lease:
    """Return the answer for a lease that is not the caller's, or that nobody knows."""
    reason = f"The pool knows no lease {lease_id[:40]} of yours."
    return pb.Lease(id=lease_id[:256], state="ended", end_reason=reason)
