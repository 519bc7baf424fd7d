"""The service ``Agents``: the streams on which agents report and receive orders (``pool.proto``)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.pool_pb2_grpc as rpc
from gpukernel.common import messages
from gpukernel.common.errors import Refused, in_details
from gpukernel.common.logs import fields
from gpukernel.common.model import Lease
from gpukernel.pool.auth.identity import Identity
from gpukernel.pool.domain.fencing import Registration
from gpukernel.pool.doors.call_rates import CallRates
from gpukernel.pool.leases.agent_sessions import AgentSessions
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.rpc.agent_reports import (
    check_register,
    reported_devices,
    reported_reason,
    reported_usage,
)
from gpukernel.pool.rpc.callers import Access, stream
from gpukernel.pool.store.servers import Attachment

__all__ = ["AgentsService"]

log = logging.getLogger(__name__)

MOST_REFUSALS = 100
"""So many refusals are remembered, so that each is logged once."""

ATTACHMENTS_PER_SECOND = 0.5
ATTACHMENTS_AT_ONCE = 10.0
"""Attachments of one server: each is one decision about all its devices and workers."""


FAULTS_SECONDS = 1.0
"""Seconds for which nothing more is read of an agent that has said other faults than before: each is written down."""

PAGE = 512
"""Workers of one report that are written down in one turn of the loop."""


class _Stream:
    """The pool's end of an agent's stream; implements `gpukernel.pool.leases.agent_orders.AgentStream`.

    Orders are sent with the epoch of the agent's attachment once it is known; what is given before waits for it.
    """

    def __init__(self) -> None:
        self.outgoing: asyncio.Queue[pb.PoolMessage | None] = asyncio.Queue()

    def _order(self, **order: Any) -> None:
        self.outgoing.put_nowait(pb.PoolMessage(**order))

    def start_worker(self, lease: Lease, device_index: int, memory_bytes: int, weight: float) -> None:
        """See `AgentStream`."""
        message = pb.StartWorker(
            lease_id=lease.id,
            device_index=device_index,
            memory_bytes=memory_bytes,
            weight=weight,
            secret=lease.secret,
            person=lease.holder.person,
            course=lease.holder.course,
        )
        self._order(start_worker=message)

    def start_direct(self, lease: Lease, device_index: int, memory_bytes: int, weight: float) -> None:
        """See `AgentStream`."""
        message = pb.StartWorker(
            lease_id=lease.id,
            device_index=device_index,
            memory_bytes=memory_bytes,
            weight=weight,
            direct=True,
            user=lease.user,
            person=lease.holder.person,
            course=lease.holder.course,
        )
        self._order(start_worker=message)

    def stop_worker(self, lease_id: str, device_index: int, reason: str) -> None:
        """See `AgentStream`."""
        self._order(stop_worker=pb.StopWorker(lease_id=lease_id, device_index=device_index, reason=reason))

    def interrupt_worker(self, lease_id: str, device_index: int) -> None:
        """See `AgentStream`."""
        self._order(interrupt_worker=pb.InterruptWorker(lease_id=lease_id, device_index=device_index))

    def limit_worker(self, lease_id: str, device_index: int, memory_bytes: int, weight: float) -> None:
        """See `AgentStream`."""
        message = pb.LimitWorker(
            lease_id=lease_id, device_index=device_index, memory_bytes=memory_bytes, weight=weight
        )
        self._order(limit_worker=message)

    def close(self, displaced: str = "") -> None:
        """See `AgentStream`."""
        if displaced:
            self._order(displaced=pb.Displaced(reason=displaced))
        self.outgoing.put_nowait(None)

    def valid(self, number: int, seconds: float) -> None:
        """Answer heartbeat `number`."""
        self._order(valid=pb.Valid(number=number, seconds=seconds))


class AgentsService(rpc.AgentsServicer):
    """The service of agents: one stream for each attached agent."""

    def __init__(self, manager: LeaseManager, identity: Identity) -> None:
        self._sessions = AgentSessions(manager)
        self.identity = identity
        self._refused: set[tuple[str, str]] = set()
        self._attachments = CallRates()
        self.attached = asyncio.Event()

    @stream
    async def Attach(
        self, requests: AsyncIterator[pb.AgentMessage], access: Access
    ) -> AsyncIterator[pb.PoolMessage]:
        """Attach an agent for as long as its stream is open: it reports, the pool orders."""
        first = await anext(requests, None)
        if first is None or first.WhichOneof("message") != "register" or not first.register.server:
            await access.context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "An agent begins by registering its server."
            )
            return
        register, orders = first.register, _Stream()
        server = register.server
        if wait := self._attachments.seconds_until(server, 1.0, ATTACHMENTS_PER_SECOND, ATTACHMENTS_AT_ONCE):
            await access.context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"GPU server {server[:100]} attaches too often; try again in {wait:.1f} s.",
            )
        try:
            check_register(register)
            devices = reported_devices(server, register.devices)
        except Refused as refusal:
            self._log_refusal(server, refusal)
            await access.context.abort(grpc.StatusCode.INVALID_ARGUMENT, in_details(str(refusal)))
        new = Registration(
            access.caller.credential,
            register.machine,
            register.place,
            register.instance,
            register.epoch,
        )
        reading: asyncio.Task[None] | None = None
        try:
            attachment = self._sessions.attach(
                server,
                orders,
                devices,
                {(w.lease_id, w.device_index): tuple(w.endpoints) for w in register.workers},
                register.direct_machine,
                new,
            )
            self._sessions.confined(server, map(messages.rung_from, register.rungs))
            reading = asyncio.create_task(self._read(attachment, requests, orders))
            if new.instance:
                yield _with_epoch(
                    pb.PoolMessage(valid=pb.Valid(seconds=self._sessions.valid_seconds)), attachment.epoch
                )
            log.info("attached with %d devices", len(register.devices), extra=fields(server=server))
            self.attached.set()
            while (message := await orders.outgoing.get()) is not None:
                yield _with_epoch(message, attachment.epoch)
        except Refused as refusal:
            self._log_refusal(server, refusal)
            # An agent that is refused for good ends; one that has to wait for another's end asks again.
            bound = refusal.code == "bound"
            code = grpc.StatusCode.PERMISSION_DENIED if bound else grpc.StatusCode.ALREADY_EXISTS
            await access.context.abort(code, in_details(str(refusal)))
        finally:
            if reading is not None:
                reading.cancel()
            self._sessions.detach(server, orders)

    def _log_refusal(self, server: str, refusal: Refused) -> None:
        """Log a refusal once: an agent that has to wait asks every second."""
        what = refusal.code, server
        if what not in self._refused:
            if len(self._refused) >= MOST_REFUSALS:
                self._refused.clear()
            self._refused.add(what)
            log.warning("refused: %s", refusal, extra=fields(server=server[:100]))

    async def _read(
        self,
        attachment: Attachment,
        requests: AsyncIterator[pb.AgentMessage],
        orders: _Stream,
    ) -> None:
        server, faults = attachment.server, dict[int, str]()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for request in requests:
                if not self._sessions.speaks(server, orders):
                    break  # another agent does
                kind = request.WhichOneof("message")
                if kind == "heartbeat":
                    if request.heartbeat.number or not attachment.instance:
                        valid = self._sessions.heard(attachment)
                        if not valid:
                            orders.close(self._sessions.why_unheard(attachment))
                            break
                        if request.heartbeat.number:
                            orders.valid(request.heartbeat.number, valid)
                            continue
                    usage = list(
                        self._sessions.of_server(server, reported_usage(request.heartbeat.workers)).items()
                    )
                    for first in range(0, len(usage), PAGE):
                        self._sessions.heartbeat(server, dict(usage[first : first + PAGE]))
                        await asyncio.sleep(0)  # the decisions of others come between
                    if request.heartbeat.devices_checked:
                        found = {
                            f.device_index: reported_reason(f.sentence) for f in request.heartbeat.faults
                        }
                        self._sessions.faults(server, found)
                        if found != faults:
                            faults = found
                            await asyncio.sleep(FAULTS_SECONDS)
                elif kind == "worker_starting":
                    starting = request.worker_starting
                    self._sessions.worker_starting(server, starting.lease_id, starting.device_index)
                elif kind == "worker_ready":
                    ready = request.worker_ready
                    self._sessions.worker_ready(
                        server, ready.lease_id, ready.device_index, tuple(ready.endpoints)
                    )
                elif kind == "worker_ended":
                    ended = request.worker_ended
                    reason = reported_reason(ended.reason)
                    self._sessions.worker_ended(server, ended.lease_id, ended.device_index, reason)
                elif kind == "end_lease":
                    over = request.end_lease
                    self._sessions.end_for(server, over.lease_id, reported_reason(over.reason))
                elif kind == "worker_limited":
                    cap = request.worker_limited
                    self._sessions.worker_limited(
                        server,
                        cap.lease_id,
                        cap.device_index,
                        cap.memory_bytes,
                        cap.done,
                        cap.allocated_bytes,
                    )
        orders.outgoing.put_nowait(None)


def _with_epoch(message: pb.PoolMessage, epoch: int) -> pb.PoolMessage:
    message.epoch = epoch
    return message
