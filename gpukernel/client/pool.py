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
from typing import Self, TypeVar

from gpukernel.common.fork_safe_grpc import grpc  # before the messages import it

# isort: split
import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.pool_pb2_grpc as rpc
from gpukernel.client.keepalive import KeepaliveStream
from gpukernel.common import messages
from gpukernel.common.address import MADE_BY, ON_BEHALF, REFUSAL, RETRY_AFTER, TEACHES, resolve_address
from gpukernel.common.connection import Connection, connection_to, tls_trouble
from gpukernel.common.errors import (
    LeaseEnded,
    NotAllowed,
    PoolError,
    PoolUnreachable,
    Refused,
    UnknownToken,
)
from gpukernel.common.i18n import WORDS, say, words_behind
from gpukernel.common.model import Device, Holder, Lease, Queued, SliceRequest, Waiting

__all__ = ["PoolClient", "resolve_address"]

Request = TypeVar("Request")
Reply = TypeVar("Reply")

CALL_SECONDS = 10.0
_LOST = "Internal error from Core"  # what gRPC's client says of a call that was ended in the moment of a write, whatever the reason

RENEW_SECONDS = 20.0
"""A pool that is overrun hears a renewal late, but none that was given up meanwhile; leases would end for nothing."""


def pause_before_again(error: grpc.aio.AioRpcError) -> float | None:
    """Return the seconds to wait before a call is made again that came too soon; None where the pool did not say so.

    A crowd that is told to wait does not come back at one moment: everybody waits up to half as long again.
    """
    headers = error.trailing_metadata()
    said = headers.get(RETRY_AFTER) if headers is not None else None
    if (
        error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED
        or not isinstance(said, str)
        or not said.isdigit()
    ):
        return None
    return min(int(said), 60_000) / 1000 * random.uniform(1.0, 1.5)


class PoolClient:
    """A connection to a pool, as an asynchronous context manager; bound to the event loop that enters it.

    Parameters
    ----------
    address
        As `resolve_address` gives it; None looks where every command looks.
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
        How long a call may take, in seconds; acquiring has no end.
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
        self.address = self.connection.address
        self._metadata: tuple[tuple[str, str | bytes], ...] = self.connection.metadata
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
        self._channel = self.connection.channel()
        self._pool = rpc.PoolStub(self._channel)
        self.keepalive = KeepaliveStream(lambda: self._pool.Hold(metadata=self._metadata), self.explain)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.keepalive.close()
        await self._channel.close()

    def _translate(self, error: grpc.aio.AioRpcError) -> PoolError:
        code, headers = error.code(), error.trailing_metadata()
        said = words_behind(headers.get(WORDS) if headers is not None else None, error.details() or "")
        # CANCELLED does not come from the pool either: a connection broke down under load, for example.
        if code in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            grpc.StatusCode.CANCELLED,
        ) or (code is grpc.StatusCode.INTERNAL and error.details() == _LOST):
            return PoolUnreachable(
                say(
                    "No pool answers at %(address)s; start one with “gpukernel up”, or name another with --pool or GPUKERNEL_POOL.",
                    address=self.address,
                )
            )
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
        answered = error.code() is grpc.StatusCode.FAILED_PRECONDITION
        if isinstance(translated, PoolUnreachable) and not answered:
            trouble = await tls_trouble(self.connection)
            return PoolUnreachable(trouble) if trouble else translated
        return translated

    async def _call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Request, Reply],
        request: Request,
        patience: float | None = None,
    ) -> Reply:
        clock = asyncio.get_running_loop().time
        end = clock() + (patience or self.patience)
        while True:
            try:
                return await method(request, timeout=max(end - clock(), 0.0), metadata=self._metadata)
            except grpc.aio.AioRpcError as error:
                pause = pause_before_again(error)
                if pause is None or clock() + pause > end:
                    raise await self.explain(error) from None
            await asyncio.sleep(pause)

    async def acquire(
        self,
        key: str,
        slice: SliceRequest,
        holder: Holder,
        wait_seconds: float = -1,
        ttl_seconds: float = 0,
        longest_seconds: float = 0,
    ) -> AsyncGenerator[Queued | Lease]:
        """Ask for a slice; yield the place in the queue whenever it changes, then the lease, and end.

        Leaving the iteration early leaves the queue.

        Parameters
        ----------
        key
            One use of a slice; asking again with the key of a living lease gives that lease.
        wait_seconds
            How long to stay in the queue; 0 refuses at once where nothing is free, negative waits for ever.
        ttl_seconds
            The lease ends this long after the last renewal; 0 takes the pool's default.
        longest_seconds
            The lease ends after this time in any case: a promise by which it may pass those whom it cannot delay; 0 for none.

        Raises
        ------
        Refused
            With a stable code and the pool's sentence.
        PoolUnreachable
            When nobody answers, or the pool ended while this waited.
        """
        request = pb.AcquireRequest(
            key=key,
            slice=messages.request_to(slice),
            holder=messages.holder_to(holder),
            wait_seconds=wait_seconds,
            ttl_seconds=ttl_seconds,
            longest_seconds=longest_seconds,
        )
        while True:
            call = self._pool.Acquire(request, metadata=self._metadata)
            try:
                async for event in self._events(call):
                    yield event
                return
            except grpc.aio.AioRpcError as error:
                if (pause := pause_before_again(error)) is None:
                    raise await self.explain(error) from None
            finally:
                call.cancel()
            await asyncio.sleep(pause)

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
        reply = await self._call(self._pool.Resize, request)
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
        self, lease: Lease, ended: Callable[[str], None] | None = None
    ) -> AsyncIterator[asyncio.Task[None]]:
        """Keep `lease` alive for as long as the context lasts; the task ends when it is over, and `ended` is called with the
        reason.
        """
        gone = asyncio.Event()

        def over(reason: str) -> None:
            gone.set()
            if ended is not None:
                ended(reason)

        self.keepalive.keep(lease.id, lambda changed: None, over)
        task = asyncio.create_task(_until(gone))
        try:
            yield task
        finally:
            task.cancel()
            self.keepalive.let_go(lease.id)


async def _until(event: asyncio.Event) -> None:
    await event.wait()
