"""The pool over gRPC: translates messages, holds the agents' streams, and asks who is calling before anything else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import grpc.aio

import gpukernel.pool.proto.pool_pb2 as pb
import gpukernel.pool.proto.pool_pb2_grpc as rpc
from gpukernel.logs import fields
from gpukernel.pool import messages
from gpukernel.pool.address import MADE_BY, ON_BEHALF, TEACHES
from gpukernel.pool.broker import Broker
from gpukernel.pool.errors import Refused, in_details
from gpukernel.pool.hub_tokens import HubAway
from gpukernel.pool.identity import Caller, Identity
from gpukernel.pool.line import KEY_IN_USE
from gpukernel.pool.model import Lease
from gpukernel.pool.rules import Rules
from gpukernel.pool.sentences import say, sentence_of, words_beside

__all__ = ["AgentsService", "PoolService", "known_caller", "known_teacher", "or_refuse", "refuse"]

log = logging.getLogger(__name__)

CALLER_SECONDS = 5.0
"""So often a call that stays open is asked again who makes it."""


def _shown(context: Any) -> tuple[str, str, float, str]:
    """What a call brought, as `Identity` wants it."""
    header = dict(context.invocation_metadata() or ()).get("authorization", "")
    (certificate,) = context.auth_context().get("x509_common_name", (b"",))
    return context.peer(), header if isinstance(header, str) else "", time.time(), certificate.decode()


async def known_caller(identity: Identity, context: Any) -> Caller:
    """Who is asking; a stranger's call ends here."""
    received = context.invocation_metadata() or ()
    metadata = dict(received)
    try:
        shown = _shown(context)
        caller = identity.caller(*shown) or await identity.hub_caller(*shown)
    except Refused as refusal:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(refusal))
    except HubAway as away:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(away))
    if caller is None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "A valid token is needed.")
    assert caller is not None
    # Who may speak for others may say so of the course's instructors too, or put the person into a group of theirs; so a course that
    # they vouch for gives them nothing that they had not.  It is no more than for this call, and the audit table names who vouched.
    teaches = frozenset(
        value.decode(errors="replace")
        for key, value in received
        if key == TEACHES and isinstance(value, bytes)
    )
    if teaches and ON_BEHALF not in metadata:
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED, "Nobody says of themselves which courses they instruct."
        )
    if (person := metadata.get(ON_BEHALF)) is not None:
        name = person.decode(errors="replace") if isinstance(person, bytes) else ""
        behalf = caller.on_behalf(name, teaches) if name else None
        if behalf is None:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, f"{caller.name} may not ask on behalf of others."
            )
        return behalf  # type: ignore[return-value]
    if caller.administers and isinstance(by := metadata.get(MADE_BY), bytes):
        name = by.decode(errors="replace")[:256]
        return replace(caller, name=f"{name} through {caller.name}")
    return caller


async def still_known(identity: Identity, context: Any) -> bool:
    """Whether the token of a call that stays open counts still; a JupyterHub that is away says nothing against it."""
    with contextlib.suppress(Refused):
        shown = _shown(context)
        try:
            return (identity.caller(*shown) or await identity.hub_caller(*shown)) is not None
        except HubAway:
            return True
    return False


async def known_teacher(identity: Identity, context: Any, rules: Rules, course: str) -> Caller:
    """Who is asking, where they instruct `course` or administer the pool; others' calls end here."""
    caller = await known_caller(identity, context)
    if not (caller.administers or caller.instructs(course, rules)):
        await refuse(
            context,
            grpc.StatusCode.PERMISSION_DENIED,
            say(
                "Only an instructor of course %(course)s or the pool's administrator may do that, not %(person)s.",
                course=course[:60],
                person=caller.name,
            ),
        )
    return caller


async def or_refuse(context: Any, work: Callable[[], Any]) -> Any:
    """What `work` returns; a refusal ends the call with its sentence, as long as a call's status can be."""
    try:
        return work()
    except Refused as refusal:
        await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, sentence_of(refusal))


async def refuse(context: Any, code: Any, sentence: str) -> None:
    """End the call with a sentence, as long as a call's status can be, and with its words for other languages."""
    await context.abort(code, in_details(sentence), words_beside(sentence))


class PoolService(rpc.PoolServicer):  # type: ignore[misc]
    """What holders ask."""

    def __init__(self, broker: Broker, identity: Identity) -> None:
        self._broker = broker
        self._identity = identity

    async def _caller(self, context: Any) -> Caller:
        caller = await known_caller(self._identity, context)
        if not caller.asks:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "This token is for GPU servers.")
        return caller

    async def Acquire(self, request: Any, context: Any) -> AsyncIterator[Any]:
        caller = await self._caller(context)
        holder = caller.holder(messages.holder_from(request.holder))
        places = self._broker.acquire(
            request.key,
            caller.request(messages.request_from(request.slice)),
            holder,
            request.wait_seconds,
            request.ttl_seconds,
            request.longest_seconds,
            own_key=not caller.speaks_for_others,  # keys are a person's own: another's gives nothing of theirs
        )
        try:
            async for event in places:
                if isinstance(event, Lease):
                    if not caller.may_use(event):  # it was given to another in between, by another pool
                        raise Refused("invalid", KEY_IN_USE)
                    yield pb.AcquireEvent(granted=messages.lease_to(event, with_secret=True))
                else:
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
            yield pb.AcquireEvent(refused=messages.refused_to(refusal))
        finally:
            await places.aclose()  # type: ignore[attr-defined]

    async def _lease(
        self, lease_id: str, context: Any, allowed: Callable[[Caller, Lease], bool] = Caller.may_use
    ) -> tuple[Caller, Lease]:
        """Nobody learns of a lease that is not theirs."""
        caller = await self._caller(context)
        lease = self._broker.lease(lease_id)
        if lease is None or not allowed(caller, lease):
            await refuse(
                context,
                grpc.StatusCode.NOT_FOUND,
                say("The pool knows no lease %(lease)s of yours.", lease=lease_id[:40]),
            )
        assert lease is not None
        return caller, lease

    def _write_down(self, caller: Caller, lease: Lease, action: str, what: str) -> None:
        """Somebody did something to what another holds: that is kept with who did."""
        if caller.name != lease.holder.person and caller.scope != "service":
            who = caller.signature(lease.holder.course, self._broker.rules())
            course = f"course {lease.holder.course}" if lease.holder.course else "no course"
            self._broker.write_down(
                who, action, f"{course}: {lease.holder.person}", f"lease {lease.id}", what
            )

    async def Hold(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        caller, held = await self._caller(context), set[str]()
        # Requests, ids of leases that are different, and None at the end.
        events: asyncio.Queue[Any] = asyncio.Queue()
        reading = asyncio.create_task(_read_into(events, requests))
        try:
            while True:
                event = None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CALLER_SECONDS if held else None):
                        if (event := await events.get()) is None:
                            return
                if event is None and not await still_known(self._identity, context):
                    await self._caller(context)  # says so
                if isinstance(event, pb.HoldRequest):
                    caller = await self._caller(context)
                    for lease_id in held.intersection(event.let_go):
                        held.discard(lease_id)
                        self._broker.held.let_go(lease_id, events.put_nowait)
                    for lease_id in set(event.hold) - held:
                        if (lease := self._broker.lease(lease_id)) is not None and caller.may_use(lease):
                            held.add(lease_id)
                            self._broker.held.hold(lease, events.put_nowait, self._broker.now())
                        events.put_nowait(lease_id)
                elif event is not None:
                    lease = self._broker.lease(event) if event in held else None
                    if lease is None or lease.state in ("ending", "ended"):
                        held.discard(event)
                        self._broker.held.let_go(event, events.put_nowait)
                    yield pb.HoldReply(lease=messages.lease_to(lease) if lease else _unknown(event))
        finally:
            reading.cancel()
            for lease_id in held:
                self._broker.held.let_go(lease_id, events.put_nowait)

    async def Renew(self, request: Any, context: Any) -> Any:
        await self._lease(request.lease_id, context)
        return pb.RenewReply(lease=self._message(self._broker.renew(request.lease_id)))

    async def Release(self, request: Any, context: Any) -> Any:
        rules = self._broker.rules()
        caller, held = await self._lease(request.lease_id, context, lambda c, found: c.may_end(found, rules))
        if held.state in ("starting", "live"):
            self._write_down(caller, held, "end", request.reason[:256])
        lease = self._broker.end(request.lease_id, request.reason[:256] or "released by its holder")
        return pb.ReleaseReply(lease=self._message(lease))

    async def Interrupt(self, request: Any, context: Any) -> Any:
        await self._lease(request.lease_id, context)
        return pb.InterruptReply(lease=self._message(self._broker.interrupt(request.lease_id)))

    async def Resize(self, request: Any, context: Any) -> Any:
        rules = self._broker.rules()
        caller, held = await self._lease(request.lease_id, context, lambda c, found: c.may_end(found, rules))
        try:
            lease = await self._broker.resize(request.lease_id, messages.request_from(request.slice))
        except Refused as refusal:
            return pb.ResizeReply(refused=messages.refused_to(refusal))
        if lease is not None:
            self._write_down(
                caller, held, "resize", ", ".join(f"{s.memory_bytes // 2**20} MiB" for s in lease.slices)
            )
        return pb.ResizeReply(lease=self._message(lease))

    @staticmethod
    def _message(lease: Lease | None) -> Any:
        return messages.lease_to(lease) if lease is not None else None

    async def ListDevices(self, request: Any, context: Any) -> Any:
        await self._caller(context)
        return pb.ListDevicesReply(devices=[messages.device_to(d) for d in self._broker.devices()])

    async def ListLeases(self, request: Any, context: Any) -> Any:
        caller, rules = await self._caller(context), self._broker.rules()
        leases = [
            messages.lease_to(lease)
            for lease in self._broker.leases(request.include_ended)
            if caller.may_see(lease.holder, rules)
        ]
        waiting = [
            messages.waiting_to(waiting)
            for waiting in self._broker.waiting()
            if caller.may_see(waiting.holder, rules)
        ]
        return pb.ListLeasesReply(leases=leases, waiting=waiting)


async def _read_into(events: asyncio.Queue[Any], requests: AsyncIterator[Any]) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for request in requests:
            events.put_nowait(request)
    events.put_nowait(None)


def _unknown(lease_id: str) -> Any:
    """The answer for a lease that is not the caller's, or that nobody knows."""
    reason = f"The pool knows no lease {lease_id[:40]} of yours."
    return pb.Lease(id=lease_id[:256], state="ended", end_reason=reason)


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
            person=lease.holder.person,
            course=lease.holder.course,
        )
        self.outgoing.put_nowait(pb.PoolMessage(start_worker=message))

    def start_direct(self, lease: Lease, device_index: int, memory_bytes: int, weight: float) -> None:
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
        message = pb.StopWorker(lease_id=lease_id, device_index=device_index, reason=reason)
        self.outgoing.put_nowait(pb.PoolMessage(stop_worker=message))

    def interrupt_worker(self, lease_id: str, device_index: int) -> None:
        message = pb.InterruptWorker(lease_id=lease_id, device_index=device_index)
        self.outgoing.put_nowait(pb.PoolMessage(interrupt_worker=message))

    def limit_worker(self, lease_id: str, device_index: int, memory_bytes: int, weight: float) -> None:
        message = pb.LimitWorker(
            lease_id=lease_id, device_index=device_index, memory_bytes=memory_bytes, weight=weight
        )
        self.outgoing.put_nowait(pb.PoolMessage(limit_worker=message))


class AgentsService(rpc.AgentsServicer):  # type: ignore[misc]
    """What agents say and hear."""

    def __init__(self, broker: Broker, identity: Identity) -> None:
        self._broker = broker
        self._identity = identity
        self.attached = asyncio.Event()

    async def Attach(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        caller = await known_caller(self._identity, context)
        if not caller.offers_devices:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"{caller.name} may not offer devices.")
        first = await anext(requests, None)
        if first is None or first.WhichOneof("message") != "register" or not first.register.server:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "An agent begins by registering its server."
            )
            return
        register, stream = first.register, _Stream()
        server = register.server

        known = partial(still_known, self._identity, context)
        reading = asyncio.create_task(self._read(server, requests, stream, known))
        try:
            self._broker.attach(
                server,
                stream,
                [messages.device_from(device) for device in register.devices],
                {(w.lease_id, w.device_index): tuple(w.endpoints) for w in register.workers},
                register.direct_machine,
            )
            log.info("attached with %d devices", len(register.devices), extra=fields(server=server))
            self.attached.set()
            while (message := await stream.outgoing.get()) is not None:
                yield message
        finally:
            reading.cancel()
            self._broker.detach(server, stream)

    async def _read(
        self,
        server: str,
        requests: AsyncIterator[Any],
        stream: _Stream,
        known: Callable[[], Awaitable[bool]],
    ) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for request in requests:
                kind = request.WhichOneof("message")
                if kind == "heartbeat":
                    if not await known():
                        log.warning("its token counts no more", extra=fields(server=server))
                        break
                    workers = request.heartbeat.workers
                    usage = {(w.lease_id, w.device_index): messages.usage_from(w.usage) for w in workers}
                    self._broker.heartbeat(server, usage)
                    if request.heartbeat.devices_checked:
                        self._broker.faults(
                            server, {f.device_index: f.sentence for f in request.heartbeat.faults}
                        )
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
                elif kind == "worker_limited":
                    cap = request.worker_limited
                    self._broker.worker_limited(
                        server,
                        cap.lease_id,
                        cap.device_index,
                        cap.memory_bytes,
                        cap.done,
                        cap.allocated_bytes,
                    )
        stream.outgoing.put_nowait(None)
