"""The service ``Agents``: the streams on which agents report and receive orders (``pool.proto``)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import sqlalchemy as sa

import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.pool_pb2_grpc as rpc
from gpukernel.common import messages
from gpukernel.common.errors import Refused, in_details
from gpukernel.common.logs import fields
from gpukernel.common.model import Lease
from gpukernel.common.telemetry.tracing import rpc_attributes, traced
from gpukernel.pool.auth.identity import Identity
from gpukernel.pool.domain.fencing import LateRegistration, Registration, enrolled_with
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
from gpukernel.pool.store.database import sentence_of_database
from gpukernel.pool.store.servers import Attachment

__all__ = ["AgentsService"]

log = logging.getLogger(__name__)

MOST_REFUSALS = 100
"""So many refusals are remembered, so that each is logged once."""

ATTACHMENTS_PER_SECOND = 0.5
ATTACHMENTS_AT_ONCE = 10.0
"""Attachments of one server: each is one decision about all its devices and workers."""

STATUSES = {
    "bound": grpc.StatusCode.PERMISSION_DENIED,
    "epoch": grpc.StatusCode.INVALID_ARGUMENT,
}
"""Statuses of the refusals that are for good; all others are for now."""

FAULTS_SECONDS = 1.0
"""Seconds for which nothing more is read of an agent that has said other faults than before, or that its server ends: each is written down."""

MOST_UNREAD = 32_768
"""Orders and answers that wait for an agent to read them: what is more than it can have workers ends its stream."""

PAGE = 512
"""Workers of one report that are written down in one turn of the loop."""


def _counted_as(credential: str, server: str) -> str:
    """Return the name under which attachments are counted: a token speaks for one server, whichever it names; the pool's own accounts for many."""
    return credential if credential.startswith("token ") else f"{credential} {server}"


class _Stream:
    """The pool's end of an agent's stream; implements `gpukernel.pool.leases.agent_orders.AgentStream`.

    Orders are sent with the epoch of the agent's attachment once it is known; what is given before waits for it.
    """

    def __init__(self) -> None:
        self.outgoing: asyncio.Queue[tuple[pb.PoolMessage, str] | None] = asyncio.Queue()

    def _order(self, device_id: str = "", **order: Any) -> None:
        self.outgoing.put_nowait((pb.PoolMessage(**order), device_id))

    def start_worker(self, lease: Lease, device_id: str, memory_bytes: int, weight: float) -> None:
        """See `AgentStream`."""
        message = pb.StartWorker(
            lease_id=lease.id,
            memory_bytes=memory_bytes,
            weight=weight,
            secret=lease.secret,
            person=lease.holder.person,
            course=lease.holder.course,
        )
        self._start(lease, device_id, message)

    def _start(self, lease: Lease, device_id: str, message: pb.StartWorker) -> None:
        about = rpc_attributes("gpukernel.v1.Agents", "Attach") | {"gpukernel.lease.id": lease.id}
        with traced("gpukernel.order.start_worker", "producer", about, lease.traceparent) as call:
            message.traceparent = call.traceparent if lease.traceparent else ""
            self._order(device_id, start_worker=message)

    def start_direct(self, lease: Lease, device_id: str, memory_bytes: int, weight: float) -> None:
        """See `AgentStream`."""
        message = pb.StartWorker(
            lease_id=lease.id,
            memory_bytes=memory_bytes,
            weight=weight,
            direct=True,
            user=lease.user,
            person=lease.holder.person,
            course=lease.holder.course,
        )
        self._start(lease, device_id, message)

    def stop_worker(self, lease_id: str, device_id: str, reason: str) -> None:
        """See `AgentStream`."""
        self._order(device_id, stop_worker=pb.StopWorker(lease_id=lease_id, reason=reason))

    def interrupt_worker(self, lease_id: str, device_id: str) -> None:
        """See `AgentStream`."""
        self._order(device_id, interrupt_worker=pb.InterruptWorker(lease_id=lease_id))

    def limit_worker(self, lease_id: str, device_id: str, memory_bytes: int, weight: float) -> None:
        """See `AgentStream`."""
        message = pb.LimitWorker(lease_id=lease_id, memory_bytes=memory_bytes, weight=weight)
        self._order(device_id, limit_worker=message)

    def close(self, displaced: str = "") -> None:
        """See `AgentStream`."""
        if displaced:
            self._order(displaced=pb.Displaced(reason=displaced))
        self.outgoing.put_nowait(None)

    def abandon(self) -> None:
        """End the stream of an agent that does not read; what it was to be told is lost, and it attaches anew."""
        while not self.outgoing.empty():
            self.outgoing.get_nowait()
        self.outgoing.put_nowait(None)

    def valid(self, number: int, seconds: float) -> None:
        """Answer heartbeat `number`."""
        self._order(valid=pb.Valid(number=number, seconds=seconds))


class _DeviceNames:
    """The names of one attached agent's devices: ids in the pool's books, UUIDs and numbers on the wire."""

    def __init__(self, register: pb.Register) -> None:
        self._server = register.server
        named = [(d.uuid, d.index) for d in register.devices]
        # Workers may live on a device that is there no more.
        named += [(w.device, w.device_index) for w in register.workers]
        self._numbers = {self.of(*one): one[1] for one in named}

    def of(self, uuid: str, number: int) -> str:
        """Return the id of a device as its agent names it, before it is known how the books name it."""
        return Attachment.named(self._server, uuid) if uuid else f"{self._server}/{number}"

    def attached(self, attachment: Attachment) -> None:
        """Take over the names in the books."""
        self._numbers |= {device_id: number for number, device_id in attachment.devices.items()}

    def finish(self, message: pb.PoolMessage, device_id: str, epoch: int) -> pb.PoolMessage:
        """Return an order with its device and its epoch."""
        message.epoch = epoch
        if device_id and (kind := message.WhichOneof("message")) is not None:
            order, uuid = getattr(message, kind), device_id.removeprefix(f"{self._server}/")
            order.device_index = self._numbers.get(device_id, int(uuid) if uuid.isdigit() else 0)
            order.device = "" if uuid.isdigit() else uuid
        return message


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
        counted = _counted_as(access.caller.credential, server)
        if wait := self._attachments.seconds_until(counted, 1.0, ATTACHMENTS_PER_SECOND, ATTACHMENTS_AT_ONCE):
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
            enrolled_with(access.caller.credential, register.proof),
            register.machine,
            register.place,
            register.instance,
            register.epoch,
        )
        reading: asyncio.Task[None] | None = None
        try:
            names = _DeviceNames(register)
            attachment = self._sessions.attach(
                server,
                orders,
                devices,
                {
                    (w.lease_id, names.of(w.device, w.device_index)): tuple(w.endpoints)
                    for w in register.workers
                },
                register.direct_machine,
                new,
            )
            names.attached(attachment)
            self._sessions.confined(server, map(messages.rung_from, register.rungs))
            reading = asyncio.create_task(self._read(attachment, requests, orders))
            if new.instance:
                valid = pb.PoolMessage(valid=pb.Valid(seconds=self._sessions.valid_seconds))
                yield names.finish(valid, "", attachment.epoch)
            log.info("attached with %d devices", len(register.devices), extra=fields(server=server))
            self.attached.set()
            while (order := await orders.outgoing.get()) is not None:
                yield names.finish(*order, attachment.epoch)
        except LateRegistration as late:
            log.info("told to register again: %s", late, extra=fields(server=server))
            yield pb.PoolMessage(register_again=pb.RegisterAgain(), epoch=late.epoch)
        except Refused as refusal:
            self._log_refusal(server, refusal)
            # An agent that is refused for good ends; one that has to wait for another's end asks again.
            code = STATUSES.get(refusal.code, grpc.StatusCode.ALREADY_EXISTS)
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
        """Take what an agent says.  What cannot be taken ends its stream: it attaches again, and reports everything."""
        try:
            await self._take(attachment, requests, orders)
        except sa.exc.DBAPIError as error:
            said = sentence_of_database(error)
            log.warning("an agent's report is lost: %s", said, extra=fields(server=attachment.server))
        except Exception:
            log.exception("an agent's report is lost", extra=fields(server=attachment.server))
        finally:
            orders.outgoing.put_nowait(None)

    async def _take(
        self,
        attachment: Attachment,
        requests: AsyncIterator[pb.AgentMessage],
        orders: _Stream,
    ) -> None:
        server, faults, device = attachment.server, dict[str, str](), attachment.device
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for request in requests:
                if not self._sessions.speaks(server, orders):
                    break  # another agent does
                if orders.outgoing.qsize() >= MOST_UNREAD:
                    log.warning("it reads nothing of what the pool says", extra=fields(server=server))
                    orders.abandon()
                    break
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
                    reported = reported_usage(request.heartbeat.workers, device)
                    usage = list(self._sessions.of_server(server, reported).items())
                    for first in range(0, len(usage) or 1, PAGE):
                        self._sessions.heartbeat(server, dict(usage[first : first + PAGE]))
                        await asyncio.sleep(0)  # the decisions of others come between
                    if request.heartbeat.devices_checked:
                        found = {
                            device(f.device, f.device_index): reported_reason(f.sentence)
                            for f in request.heartbeat.faults
                        }
                        self._sessions.faults(server, found)
                        if found != faults:
                            faults = found
                            await asyncio.sleep(FAULTS_SECONDS)
                elif kind == "worker_starting":
                    starting = request.worker_starting
                    self._sessions.worker_starting(
                        starting.lease_id, device(starting.device, starting.device_index)
                    )
                elif kind == "worker_ready":
                    ready = request.worker_ready
                    self._sessions.worker_ready(
                        server,
                        ready.lease_id,
                        device(ready.device, ready.device_index),
                        tuple(ready.endpoints),
                    )
                elif kind == "worker_ended":
                    ended = request.worker_ended
                    reason = reported_reason(ended.reason)
                    self._sessions.worker_ended(
                        server, ended.lease_id, device(ended.device, ended.device_index), reason
                    )
                elif kind == "end_lease":
                    over = request.end_lease
                    self._sessions.end_for(server, over.lease_id, reported_reason(over.reason))
                elif kind == "leaving":
                    leaving = request.leaving
                    self._sessions.leaving(server, leaving.seconds, reported_reason(leaving.reason))
                    await asyncio.sleep(FAULTS_SECONDS)  # each is written down
                elif kind == "worker_limited":
                    cap = request.worker_limited
                    self._sessions.worker_limited(
                        server,
                        cap.lease_id,
                        device(cap.device, cap.device_index),
                        cap.memory_bytes,
                        cap.done,
                        cap.allocated_bytes,
                    )
