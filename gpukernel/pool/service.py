"""The pool over gRPC: translates messages, holds the agents' streams, checks tokens."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

import gpukernel.pool.proto.pool_pb2 as pb
import gpukernel.pool.proto.pool_pb2_grpc as rpc
from gpukernel.pool import messages
from gpukernel.pool.broker import Broker
from gpukernel.pool.errors import Refused
from gpukernel.pool.model import Lease

__all__ = ["AgentsService", "PoolService", "TokenCheck"]

log = logging.getLogger(__name__)


class PoolService(rpc.PoolServicer):  # type: ignore[misc]
    """What holders ask."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def Acquire(self, request: Any, context: Any) -> AsyncIterator[Any]:
        places = self._broker.acquire(
            request.key,
            messages.request_from(request.slice),
            messages.holder_from(request.holder),
            request.wait_seconds,
            request.ttl_seconds,
        )
        try:
            async for event in places:
                if isinstance(event, Lease):
                    yield pb.AcquireEvent(granted=messages.lease_to(event, with_secret=True))
                else:
                    yield pb.AcquireEvent(
                        queued=pb.Queued(
                            position=event.position,
                            estimate_seconds=event.estimate_seconds,
                            reason=event.reason,
                        )
                    )
        except Refused as refusal:
            yield pb.AcquireEvent(refused=pb.Refused(code=refusal.code, sentence=str(refusal)))
        finally:
            await places.aclose()  # type: ignore[attr-defined]

    async def _known(self, lease: Lease | None, lease_id: str, context: Any) -> Any:
        if lease is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"The pool knows no lease {lease_id[:40]}.")
        assert lease is not None
        return messages.lease_to(lease)

    async def Renew(self, request: Any, context: Any) -> Any:
        lease = self._broker.renew(request.lease_id)
        return pb.RenewReply(lease=await self._known(lease, request.lease_id, context))

    async def Release(self, request: Any, context: Any) -> Any:
        lease = self._broker.end(request.lease_id, request.reason[:256] or "released by its holder")
        return pb.ReleaseReply(lease=await self._known(lease, request.lease_id, context))

    async def Interrupt(self, request: Any, context: Any) -> Any:
        lease = self._broker.interrupt(request.lease_id)
        return pb.InterruptReply(lease=await self._known(lease, request.lease_id, context))

    async def ListDevices(self, request: Any, context: Any) -> Any:
        return pb.ListDevicesReply(devices=[messages.device_to(d) for d in self._broker.devices()])

    async def ListLeases(self, request: Any, context: Any) -> Any:
        return pb.ListLeasesReply(
            leases=[messages.lease_to(lease) for lease in self._broker.leases(request.include_ended)],
            waiting=[messages.waiting_to(waiting) for waiting in self._broker.waiting()],
        )


class _Stream:
    """The pool's end of an agent's stream; implements `gpukernel.pool.broker.Agent`."""

    def __init__(self) -> None:
        self.outgoing: asyncio.Queue[Any] = asyncio.Queue()

    def start_worker(self, lease: Lease, device_index: int, memory_bytes: int, weight: float) -> None:
        message = pb.StartWorker(
            lease_id=lease.id,
            device_index=device_index,
            memory_bytes=memory_bytes,
            weight=weight,
            secret=lease.secret,
        )
        self.outgoing.put_nowait(pb.PoolMessage(start_worker=message))

    def start_direct(
        self, lease: Lease, device_index: int, memory_bytes: int, weight: float, user: int
    ) -> None:
        message = pb.StartWorker(
            lease_id=lease.id,
            device_index=device_index,
            memory_bytes=memory_bytes,
            weight=weight,
            direct=True,
            user=user,
        )
        self.outgoing.put_nowait(pb.PoolMessage(start_worker=message))

    def stop_worker(self, lease_id: str, device_index: int, reason: str) -> None:
        message = pb.StopWorker(lease_id=lease_id, device_index=device_index, reason=reason)
        self.outgoing.put_nowait(pb.PoolMessage(stop_worker=message))

    def interrupt_worker(self, lease_id: str, device_index: int) -> None:
        message = pb.InterruptWorker(lease_id=lease_id, device_index=device_index)
        self.outgoing.put_nowait(pb.PoolMessage(interrupt_worker=message))


class AgentsService(rpc.AgentsServicer):  # type: ignore[misc]
    """What agents say and hear."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.attached = asyncio.Event()

    async def Attach(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        first = await anext(requests, None)
        if first is None or first.WhichOneof("message") != "register" or not first.register.server:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "An agent begins by registering its server."
            )
            return
        register, stream = first.register, _Stream()
        server = register.server
        reading = asyncio.create_task(self._read(server, requests, stream))
        try:
            self._broker.attach(
                server,
                stream,
                [messages.device_from(device) for device in register.devices],
                {(w.lease_id, w.device_index): tuple(w.endpoints) for w in register.workers},
                register.direct_machine,
            )
            log.info("server %s attached with %d devices", server, len(register.devices))
            self.attached.set()
            while (message := await stream.outgoing.get()) is not None:
                yield message
        finally:
            reading.cancel()
            self._broker.detach(server, stream)

    async def _read(self, server: str, requests: AsyncIterator[Any], stream: _Stream) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for request in requests:
                kind = request.WhichOneof("message")
                if kind == "heartbeat":
                    workers = request.heartbeat.workers
                    usage = {(w.lease_id, w.device_index): messages.usage_from(w.usage) for w in workers}
                    self._broker.heartbeat(server, usage)
                elif kind == "worker_ready":
                    ready = request.worker_ready
                    self._broker.worker_ready(
                        server, ready.lease_id, ready.device_index, tuple(ready.endpoints)
                    )
                elif kind == "worker_ended":
                    ended = request.worker_ended
                    self._broker.worker_ended(server, ended.lease_id, ended.device_index, ended.reason)
                elif kind == "end_lease":
                    self._broker.end_for(server, request.end_lease.lease_id, request.end_lease.reason[:512])
        stream.outgoing.put_nowait(None)


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets a call over TCP through only with the token of its scope: agents' for `Agents`, people's for `Pool`."""

    def __init__(self, tokens: dict[str, str]) -> None:
        self._tokens = tokens
        self._refuse = grpc.unary_unary_rpc_method_handler(self._refusal)
        self._refuse_stream = grpc.unary_stream_rpc_method_handler(self._stream_refusal)

    @staticmethod
    async def _refusal(request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "A valid token is needed.")

    @staticmethod
    async def _stream_refusal(request: Any, context: Any) -> AsyncIterator[Any]:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "A valid token is needed.")
        yield

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        scope = details.method.split("/")[1].rsplit(".", 1)[-1]
        given = dict(details.invocation_metadata).get("authorization", "")
        wanted = self._tokens.get(scope)
        if wanted and hmac.compare_digest(given.encode(), f"Bearer {wanted}".encode()):
            return await continuation(details)
        return self._refuse_stream if details.method.endswith(("/Acquire", "/Attach")) else self._refuse
