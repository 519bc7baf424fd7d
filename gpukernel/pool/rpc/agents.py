"""The service ``Agents``: the streams on which agents report and receive orders (``pool.proto``)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import grpc
import grpc.aio

import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.pool_pb2_grpc as rpc
from gpukernel.common import messages
from gpukernel.common.logs import fields
from gpukernel.common.model import Lease
from gpukernel.pool.auth.identity import Identity
from gpukernel.pool.leases.agent_sessions import AgentSessions
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.rpc.callers import Access, stream

__all__ = ["AgentsService"]

log = logging.getLogger(__name__)


class _Stream:
    """The pool's end of an agent's stream; implements `gpukernel.pool.leases.agent_orders.AgentStream`."""

    def __init__(self) -> None:
        self.outgoing: asyncio.Queue[pb.PoolMessage | None] = asyncio.Queue()

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
        self.outgoing.put_nowait(pb.PoolMessage(start_worker=message))

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
        self.outgoing.put_nowait(pb.PoolMessage(start_worker=message))

    def stop_worker(self, lease_id: str, device_index: int, reason: str) -> None:
        """See `AgentStream`."""
        message = pb.StopWorker(lease_id=lease_id, device_index=device_index, reason=reason)
        self.outgoing.put_nowait(pb.PoolMessage(stop_worker=message))

    def interrupt_worker(self, lease_id: str, device_index: int) -> None:
        """See `AgentStream`."""
        message = pb.InterruptWorker(lease_id=lease_id, device_index=device_index)
        self.outgoing.put_nowait(pb.PoolMessage(interrupt_worker=message))

    def limit_worker(self, lease_id: str, device_index: int, memory_bytes: int, weight: float) -> None:
        """See `AgentStream`."""
        message = pb.LimitWorker(
            lease_id=lease_id, device_index=device_index, memory_bytes=memory_bytes, weight=weight
        )
        self.outgoing.put_nowait(pb.PoolMessage(limit_worker=message))


class AgentsService(rpc.AgentsServicer):
    """The service of agents: one stream for each attached agent."""

    def __init__(self, manager: LeaseManager, identity: Identity) -> None:
        self._sessions = AgentSessions(manager)
        self.identity = identity
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

        reading = asyncio.create_task(self._read(server, requests, orders))
        try:
            self._sessions.attach(
                server,
                orders,
                [messages.device_from(device) for device in register.devices],
                {(w.lease_id, w.device_index): tuple(w.endpoints) for w in register.workers},
                register.direct_machine,
            )
            log.info("attached with %d devices", len(register.devices), extra=fields(server=server))
            self.attached.set()
            while (message := await orders.outgoing.get()) is not None:
                yield message
        finally:
            reading.cancel()
            self._sessions.detach(server, orders)

    async def _read(self, server: str, requests: AsyncIterator[pb.AgentMessage], orders: _Stream) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for request in requests:
                kind = request.WhichOneof("message")
                if kind == "heartbeat":
                    workers = request.heartbeat.workers
                    usage = {(w.lease_id, w.device_index): messages.usage_from(w.usage) for w in workers}
                    self._sessions.heartbeat(server, usage)
                    if request.heartbeat.devices_checked:
                        self._sessions.faults(
                            server, {f.device_index: f.sentence for f in request.heartbeat.faults}
                        )
                elif kind == "worker_ready":
                    ready = request.worker_ready
                    self._sessions.worker_ready(
                        server, ready.lease_id, ready.device_index, tuple(ready.endpoints)
                    )
                elif kind == "worker_ended":
                    ended = request.worker_ended
                    self._sessions.worker_ended(server, ended.lease_id, ended.device_index, ended.reason)
                elif kind == "end_lease":
                    self._sessions.end_for(server, request.end_lease.lease_id, request.end_lease.reason[:512])
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
