"""The pool's client: it acquires, keeps alive, resizes, releases and lists leases.

Errors are `gpukernel.common.errors.PoolError`; their text is a sentence for people.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from gpukernel.common.fork_safe_grpc import grpc  # before the messages import it

# isort: split
import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.pool_pb2_grpc as rpc
from gpukernel.client.failover import FailoverChannel
from gpukernel.client.keepalive import KeepaliveStream
from gpukernel.common import messages
from gpukernel.common.address import MADE_BY, ON_BEHALF, REFUSAL, RETRY_AFTER, TEACHES, resolve_address
from gpukernel.common.connection import Connection, connection_to, tls_trouble
from gpukernel.common.errors import (
    LeaseEnded,
    NoPoolAnswers,
    NotAllowed,
    PoolError,
    PoolUnreachable,
    Refused,
    UnknownToken,
)
from gpukernel.common.i18n import WORDS, say, words_behind
from gpukernel.common.model import Device, Holder, Lease, Queued, SliceRequest, Waiting
from gpukernel.common.telemetry.tracing import TRACEPARENT, rpc_attributes, traced

if TYPE_CHECKING:
    from gpukernel.client.keepalive import HoldCall

__all__ = ["PoolClient", "resolve_address"]

Request = TypeVar("Request")
Reply = TypeVar("Reply")

CALL_SECONDS = 10.0
_LOST = "Internal error from Core"  # what gRPC's client says of a call that was ended in the moment of a write, whatever the reason

RENEW_SECONDS = 20.0
"""A pool that is overrun hears a renewal late, but none that was given up meanwhile; leases would end for nothing."""


ATTEMPT_SECONDS = 5.0
"""Seconds that one of several pools may take for an answer before another one is asked the same."""

RETURN_SECONDS = 60.0
"""Seconds for which a request that waits looks for another pool; so long its place in the queue is kept."""

AGAIN_SECONDS = 0.2


def pause_before_again(error: grpc.aio.AioRpcError) -> float | None:
    """Return the seconds to wait before a call is made again that came too soon, or while the pool's database was away; None where the
    pool did not say so.

    A crowd that is told to wait does not come back at one moment: everybody waits up to half as long again.
    """
    headers = error.trailing_metadata()
    said = headers.get(RETRY_AFTER) if headers is not None else None
    if (
        error.code() not in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
        or not isinstance(said, str)
        or not said.isdigit()
    ):
        return None
    return min(int(said), 60_000) / 1000 * random.uniform(1.0, 1.5)


def _is_lost(error: Any) -> bool:
    """Return whether a call ended without an answer: its connection, its pool or the pool's database is gone."""
    # CANCELLED does not come from the pool either: a connection broke down under load, for example.
    return error.code() in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
    ) or (error.code() is grpc.StatusCode.INTERNAL and error.details() == _LOST)


class PoolClient:
    """A connection to a pool, as an asynchronous context manager; bound to the event loop that enters it.

    Parameters
    ----------
    address
        As `resolve_address` gives it; None looks where every command looks.  Of several addresses the first that answers is used, and
        another one where it answers no more.
    token
        Bearer token, or what a connection file says; None looks where `gpukernel.common.connection.connection_to` does.
    on_behalf
        The person for whom the calls are made, by somebody who may speak for others: they may do what that person may.
    teaches
        Courses that this person instructs as far as the caller knows, which the pool believes those who may speak for others; a few dozen
        at most, since they travel with every call.
    made_by
        The person who told an administrator's program to make the calls, for the audit table; it changes no rights.

    Attributes
    ----------
    patience
        Seconds that a call may take; acquiring has no end.
    keepalive
        The leases that live for as long as this client does.
    """

    def __init__(
        self,
        address: str | None = None,
        token: str | Connection | None = None,
        *,
        on_behalf: str | None = None,
        teaches: Iterable[str] = (),
        made_by: str | None = None,
    ) -> None:
        self.patience = CALL_SECONDS
        self.connection = connection_to(address, token)
        self.address = self.connection.names
        self._metadata: tuple[tuple[str, str | bytes], ...] = ()
        self._held_over = 0
        self._hold_refused: set[int] = set()
        if on_behalf is not None:
            self._metadata += ((ON_BEHALF, on_behalf.encode()),)
        self._metadata += tuple((TEACHES, course.encode()) for course in teaches)
        if made_by is not None:
            self._metadata += ((MADE_BY, made_by.encode()),)

    def on_behalf_of(self, person: str) -> Self:
        """Return this client for another person, over the same connection; it needs no entering and ends with this one."""
        other = copy.copy(self)
        others = tuple((name, value) for name, value in self._metadata if name not in (ON_BEHALF, TEACHES))
        other._metadata = (*others, (ON_BEHALF, person.encode()))
        return other

    async def __aenter__(self) -> Self:
        self._ways = FailoverChannel(self.connection)
        self._channel = cast("grpc.aio.Channel", self._ways)
        self._pool = rpc.PoolStub(self._channel)
        self.keepalive = KeepaliveStream(self._hold, self._hold_failed)
        return self

    async def _hold(self) -> HoldCall:
        await self._ways.connect()
        self._held_over = self._ways.current
        return self._pool.Hold(metadata=self._metadata)

    async def _hold_failed(self, error: grpc.aio.AioRpcError) -> PoolError:
        explained = await self.explain(error)
        if self._passes_on(error, self._held_over, self._hold_refused):
            return PoolUnreachable(str(explained))  # the leases may be another pool's to keep
        return explained

    def _passes_on(self, error: grpc.aio.AioRpcError, way: int, refused: set[int]) -> bool:
        """Return whether another pool may answer what the one at `way` did not, and begin with it then.

        A pool that does not know the token says nothing for the others: it may be on another database.  `refused` are those that said so
        in a row.
        """
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            refused.add(way)
            passes = len(refused) < len(self._ways.ways)
        else:
            refused.clear()
            passes = _is_lost(error)
        if passes:
            self._ways.lost(way)
        return passes

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.keepalive.close()
        await self._channel.close()

    def _translate(self, error: grpc.aio.AioRpcError) -> PoolError:
        code, headers = error.code(), error.trailing_metadata()
        said = words_behind(headers.get(WORDS) if headers is not None else None, error.details() or "")
        if _is_lost(error):
            return self._unreachable() if pause_before_again(error) is None else PoolUnreachable(said)
        if code is grpc.StatusCode.FAILED_PRECONDITION:
            # Somebody that the pool asks, a JupyterHub, does not answer; the same call may succeed later.
            return PoolUnreachable(said or f"The pool at {self.address} cannot do that now.")
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return UnknownToken(
                f"The pool at {self.address} does not know this token; name the file that holds it in GPUKERNEL_POOL_TOKEN_FILE."
            )
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Refused("too_often", said or "The pool is asked too often; try again in a moment.")
        if code is grpc.StatusCode.PERMISSION_DENIED:
            return NotAllowed(said or "The pool does not allow you that.")
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            kind = headers.get(REFUSAL) if headers is not None else None
            return Refused(
                kind if isinstance(kind, str) else "invalid", said or "The pool cannot make sense of that."
            )
        if code is grpc.StatusCode.NOT_FOUND:
            return LeaseEnded(said or "the lease is over")
        return PoolError(said or f"The pool at {self.address} failed ({code.name}).")

    async def explain(self, error: grpc.aio.AioRpcError) -> PoolError:
        """Return the `PoolError` of a failed call; where the connection failed, look whether TLS is the reason."""
        translated = self._translate(error)
        answered = (
            error.code() is grpc.StatusCode.FAILED_PRECONDITION or pause_before_again(error) is not None
        )
        if isinstance(translated, PoolUnreachable) and not answered:
            return await self._explained(translated)
        return translated

    async def _explained(self, unreachable: PoolUnreachable) -> PoolUnreachable:
        """Return what is wrong with TLS on one of the ways, or else the error itself."""
        troubles = await asyncio.gather(*map(tls_trouble, self.connection.ways))
        trouble = next(filter(None, troubles), "")
        return PoolUnreachable(trouble) if trouble else unreachable

    def _unreachable(self) -> NoPoolAnswers:
        return NoPoolAnswers(
            say(
                "No pool answers at %(address)s; start one with “gpukernel up”, or name another with --pool or GPUKERNEL_POOL.",
                address=self.address,
            )
        )

    async def _call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Request, Reply],
        request: Request,
        patience: float | None = None,
        *,
        repeatable: bool = True,
        quick: bool = True,
    ) -> Reply:
        """Make a call, again where the pool asks for that, and at another pool where one is lost.

        Parameters
        ----------
        repeatable
            Making it twice does no more than making it once.  Else it is made again only where it cannot have been done.
        quick
            A pool answers at once: where it does not, another one is asked.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + (patience or self.patience)
        tried, refused = 0, set[int]()
        while True:
            if not await self._ways.connect(max(end - clock(), 0.0)):
                raise await self._explained(self._unreachable())
            way, left = self._ways.current, max(end - clock(), 0.0)
            attempt = min(left, ATTEMPT_SECONDS) if self._ways.several and repeatable and quick else left
            try:
                return await method(request, timeout=attempt, metadata=self._metadata)
            except grpc.aio.AioRpcError as error:
                pause = pause_before_again(error)
                if self._passes_on(error, way, refused):
                    if not repeatable and not refused:
                        raise await self._unknown_outcome(error) from None
                    tried += 1
                    if pause is None and tried < 2 * len(self._ways.ways) and self._ways.several:
                        pause = AGAIN_SECONDS
                if pause is None or clock() + pause > end:
                    raise await self.explain(error) from None
            await asyncio.sleep(pause)

    async def _unknown_outcome(self, error: grpc.aio.AioRpcError) -> PoolError:
        """Return the error of a call that may have been done, and that would be done a second time if it were made again."""
        explained = await self.explain(error)
        if not self._ways.several and pause_before_again(error) is None:
            return explained
        return PoolUnreachable(
            f"{explained} What was asked for may have been done; look before you ask again."
        )

    async def acquire(
        self,
        key: str,
        slice: SliceRequest,
        holder: Holder,
        wait_seconds: float = -1,
        ttl_seconds: float = 0,
        longest_seconds: float = 0,
        *,
        within: tuple[str, str] = ("", ""),
    ) -> AsyncGenerator[Queued | Lease]:
        """Ask for a slice; yield the place in the queue whenever it changes, then the lease, and end.

        Leaving the iteration early leaves the queue.

        Parameters
        ----------
        key
            One use of a slice; asking again with the key of a living lease gives that lease.
        wait_seconds
            Seconds to stay in the queue; 0 refuses at once where nothing is free, negative waits for ever.
        ttl_seconds
            The lease ends this long after the last renewal; 0 takes the pool's default.
        longest_seconds
            The lease ends after this time in any case: a promise by which it may pass those whom it cannot delay; 0 for none.
        within
            Id and secret of a placed lease that is a ceiling: the slice is a part of its memory, at once, or is refused.

        Raises
        ------
        Refused
            With a stable code and the pool's sentence.
        PoolUnreachable
            When nobody answers, or the pool ended while this waited; with several addresses, when none of them has for a minute.  Where the
            pool's database is away, `patience` seconds after `wait_seconds`.
        """
        request = pb.AcquireRequest(
            key=key,
            slice=messages.request_to(slice),
            holder=messages.holder_to(holder),
            wait_seconds=wait_seconds,
            ttl_seconds=ttl_seconds,
            longest_seconds=longest_seconds,
            within=within[0],
            within_secret=within[1],
        )
        about = rpc_attributes("gpukernel.v1.Pool", "Acquire") | {"gpukernel.course": holder.course}
        with traced("gpukernel.v1.Pool/Acquire", "client", about) as call:
            async with contextlib.aclosing(self._acquired(request, call.traceparent)) as events:
                async for event in events:
                    if isinstance(event, Lease):
                        call.attribute("gpukernel.lease.id", event.id)
                    yield event

    async def _acquired(self, request: pb.AcquireRequest, traceparent: str) -> AsyncGenerator[Queued | Lease]:
        """Yield what the pool says of a request, or the next pool where one is lost."""
        wait_seconds = request.wait_seconds
        metadata = (*self._metadata, (TRACEPARENT, traceparent)) if traceparent else self._metadata
        clock = asyncio.get_running_loop().time
        end = clock() + wait_seconds
        alone_since: float | None = None  # without a pool
        refused: set[int] = set()
        while True:
            await self._ways.connect()
            way = self._ways.current
            call = self._pool.Acquire(request, metadata=metadata)
            try:
                async for event in self._events(call):
                    alone_since = None
                    yield event
                return
            except grpc.aio.AioRpcError as error:
                pause = pause_before_again(error)
                if pause is not None and wait_seconds >= 0 and clock() + pause > end + self.patience:
                    pause = None  # who waits for a time does not wait for ever for the pool or its database
                if self._passes_on(error, way, refused) and self._ways.several:
                    alone_since = clock() if alone_since is None else alone_since
                    if clock() - alone_since < RETURN_SECONDS:
                        pause = pause or AGAIN_SECONDS
                if pause is None:
                    raise await self.explain(error) from None
            finally:
                call.cancel()
            await asyncio.sleep(pause)
            if wait_seconds > 0:
                request.wait_seconds = max(end - clock(), 0.0)

    @staticmethod
    async def _events(
        call: grpc.aio.UnaryStreamCall[pb.AcquireRequest, pb.AcquireEvent],
    ) -> AsyncGenerator[Queued | Lease]:
        """Yield the places in the queue, then the lease."""
        async for event in call:
            kind = event.WhichOneof("event")
            if kind == "refused":
                raise messages.refused_from(event.refused)
            if kind == "granted":
                yield messages.lease_from(event.granted)
                return
            queued = event.queued
            yield Queued(queued.position, queued.estimate_seconds, queued.reason, queued.quota)

    async def acquire_now(
        self, key: str, slice: SliceRequest, holder: Holder, wait_seconds: float = -1, ttl_seconds: float = 0
    ) -> Lease:
        """Ask for a slice as `acquire` does, and return the lease alone."""
        async with contextlib.aclosing(self.acquire(key, slice, holder, wait_seconds, ttl_seconds)) as events:
            async for event in events:
                if isinstance(event, Lease):
                    return event
        raise PoolError(f"The pool at {self.address} ended the call without an answer.")

    async def renew(self, lease_id: str) -> Lease:
        """Renew a lease, and return it as it is now; raises `LeaseEnded`, with the reason, where it is over."""
        reply = await self._call(self._pool.Renew, pb.RenewRequest(lease_id=lease_id), patience=RENEW_SECONDS)
        lease = messages.lease_from(reply.lease)
        if lease.state in ("ending", "ended"):
            raise LeaseEnded(lease.end_reason)
        return lease

    async def release(self, lease_id: str, reason: str = "") -> Lease:
        """Give the lease back; ending it again changes nothing."""
        reply = await self._call(self._pool.Release, pb.ReleaseRequest(lease_id=lease_id, reason=reason))
        return messages.lease_from(reply.lease)

    async def interrupt(self, lease_id: str) -> None:
        """End the lease's GPU work where it does not end by itself within a second; the lease stays."""
        await self._call(self._pool.Interrupt, pb.InterruptRequest(lease_id=lease_id))

    async def resize(self, lease_id: str, slice: SliceRequest) -> Lease:
        """Make the slices of a live lease as large as `slice` says, each, while its programs run.

        Raises
        ------
        Refused
            With the pool's sentence and its figures; the lease keeps its size.
        """
        request = pb.ResizeRequest(lease_id=lease_id, slice=messages.request_to(slice))
        reply = await self._call(self._pool.Resize, request, quick=False)
        if reply.WhichOneof("result") == "refused":
            raise messages.refused_from(reply.refused)
        lease = messages.lease_from(reply.lease)
        if lease.state != "live":
            raise LeaseEnded(lease.end_reason)
        return lease

    async def devices(self) -> list[Device]:
        """Return every device that the pool knows."""
        reply = await self._call(self._pool.ListDevices, pb.ListDevicesRequest())
        return [messages.device_from(device) for device in reply.devices]

    async def leases(
        self, include_ended: bool = False, *, key: str = "", decided_by: str = ""
    ) -> tuple[list[Lease], list[Waiting]]:
        """Return the leases, oldest first, and the queue in its order; of one key, or of one decider, where these are named."""
        request = pb.ListLeasesRequest(include_ended=include_ended, key=key, decided_by=decided_by)
        reply = await self._call(self._pool.ListLeases, request)
        return (
            [messages.lease_from(lease) for lease in reply.leases],
            [messages.waiting_from(waiting) for waiting in reply.waiting],
        )

    @contextlib.asynccontextmanager
    async def keep_alive(
        self,
        lease: Lease,
        ended: Callable[[str], None] | None = None,
        notified: Callable[[str], None] | None = None,
    ) -> AsyncIterator[asyncio.Task[None]]:
        """Keep `lease` alive for as long as the context lasts; the task ends when it is over.

        Parameters
        ----------
        ended
            Called with the reason when it is over.
        notified
            Called with each new notice for its holder.
        """
        gone = asyncio.Event()
        notice = lease.notice

        def changed(now: Lease) -> None:
            nonlocal notice
            notice, before = now.notice, notice
            if notified is not None and notice and notice != before:
                notified(notice)

        def over(reason: str) -> None:
            gone.set()
            if ended is not None:
                ended(reason)

        self.keepalive.keep(lease.id, changed, over)
        task = asyncio.create_task(_until(gone))
        try:
            yield task
        finally:
            task.cancel()
            self.keepalive.let_go(lease.id)


async def _until(event: asyncio.Event) -> None:
    await event.wait()
