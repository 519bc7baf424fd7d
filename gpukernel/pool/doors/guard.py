"""The guard before every service: bounds, rates and the crossing to the deciding thread, the same for each RPC.

It runs in the I/O thread.  A call goes through these steps, and a handler sees none that fails one of them:

1. Its caller's rate, where the credential was used before; a credential that was not is tried one call at a time for each connection.
2. The message, which is not read before: so many at a time for each identity (`gpukernel.pool.doors.call_rates`), each within `READ_SECONDS`.
3. The size of the message, then its fields (`gpukernel.pool.doors.field_bounds`).
4. Its turn: of each person one call at a time is on its way to the deciding thread, so that who makes hundreds waits for them alone.
   Then the handler, in the deciding thread, which authenticates and answers.
5. Each answer waits until what was decided before it is on the database's disk (`gpukernel.pool.store.connection.commits`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn, Protocol

import grpc
import grpc.aio
from google.protobuf import descriptor_pool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gpukernel.common.address import AWAY_MS, ON_BEHALF, RETRY_AFTER
from gpukernel.common.errors import DatabaseLost, in_details
from gpukernel.common.i18n import sentence_of, words_beside
from gpukernel.pool.doors.call_rates import (
    IDS_PER_CALL,
    CallRates,
    Identified,
    TooMany,
    cost_of,
)
from gpukernel.pool.doors.connections import Connections
from gpukernel.pool.doors.crossing import Aborted, CallContext, answer, answers
from gpukernel.pool.doors.field_bounds import Unfit, decode

__all__ = ["Guard"]

READ_SECONDS = 30.0
"""The time within which the one message of a call arrives, once it is read."""

UNPROVEN_CALLS = 32
"""Calls with credentials that nobody knows yet, which may wait on a connection that a person was admitted with."""


class Lasting(Protocol):
    """The part of `gpukernel.pool.store.connection.commits.Commits` that answers wait for."""

    def announce(self) -> int:
        """Return the number of the newest commit, which an answer waits for in a moment."""
        ...

    async def lasting(self, number: int) -> None:
        """Return once commit `number` is on disk."""
        ...


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """The interceptor of every call to one server.

    Parameters
    ----------
    deciding
        The loop in which handlers run.
    rates
        How often somebody may call.
    connections
        Where a connection comes from, by what gRPC calls its other end.
    commits
        The commits that answers wait for.
    """

    def __init__(
        self,
        deciding: asyncio.AbstractEventLoop,
        rates: CallRates,
        connections: Connections,
        commits: Lasting,
    ) -> None:
        self._commits = commits
        self._deciding = deciding
        self._rates = rates
        self._connections = connections
        self._guarded: dict[str, Any] = {}

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        if (known := self._guarded.get(details.method)) is not None:
            return known
        handler = await continuation(details)
        if handler is None:
            return None
        kind = _input_type(details.method)
        # Without a deserializer they get the bytes, so that their size is looked at first.  All are streams here, since gRPC reads the
        # message of any other call before anybody is asked, and a part of one for as long as its sender likes.
        bare = handler._replace(request_deserializer=None, request_streaming=True)
        method: Any
        if handler.request_streaming:
            method = functools.partial(self._streams, details.method, kind, handler.stream_stream)
            guarded = bare._replace(stream_stream=_generator(method))
        elif handler.response_streaming:
            method = functools.partial(self._replies, details.method, kind, handler.unary_stream)
            guarded = bare._replace(unary_stream=None, stream_stream=_generator(method))
        else:
            method = functools.partial(self._unary, details.method, kind, handler.unary_unary)
            guarded = bare._replace(unary_unary=None, stream_unary=_coroutine(method))
        self._guarded[details.method] = guarded
        return guarded

    async def _unary(
        self, name: str, kind: type[Message], handler: Any, requests: AsyncIterator[bytes], context: Any
    ) -> Any:
        async with self._call(name, kind, requests, context) as (message, crossing):
            reply, number = await answer(
                self._deciding, lambda: self._numbered(handler(message, crossing)), crossing.on_begun
            )
            await self._commits.lasting(number)
            return reply

    async def _replies(
        self, name: str, kind: type[Message], handler: Any, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[Any]:
        async with (
            self._call(name, kind, requests, context) as (message, crossing),
            contextlib.aclosing(  # type: ignore[type-var]
                answers(
                    self._deciding,
                    lambda _: self._all_numbered(handler(message, crossing)),
                    crossing.on_begun,
                )
            ) as replies,
        ):
            async for reply, number in replies:
                await self._commits.lasting(number)
                yield reply

    async def _streams(
        self, name: str, kind: type[Message], handler: Any, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[Any]:
        async with self._call(name, kind, None, context) as (_, crossing):
            messages = self._paced(kind, requests, context)
            replies = answers(
                self._deciding,
                lambda there: self._all_numbered(handler(there, crossing)),
                crossing.on_begun,
                messages,
            )
            async with contextlib.aclosing(replies):  # type: ignore[type-var]
                async for reply, number in replies:
                    await self._commits.lasting(number)
                    yield reply

    # Both run in the deciding thread: a reply follows from what was committed before it was made.

    async def _numbered(self, work: Any) -> tuple[Any, int]:
        reply = await work
        return reply, self._commits.announce()

    async def _all_numbered(self, work: Any) -> AsyncIterator[tuple[Any, int]]:
        async with contextlib.aclosing(work) as replies:
            async for reply in replies:
                yield reply, self._commits.announce()

    async def _paced(
        self, kind: type[Message], requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[Message]:
        """Yield the messages of a stream, no faster than its caller may call: who sends more is not read from."""
        key = self._credential(context)
        peer = context.peer()
        async for data in requests:
            message = decode(kind, data)
            entries = _entries(message)
            who = self._rates.identified(key)
            if who is not None and who.trusted and not who.speaks:
                # Many GPU servers may share a token: what one of them reports is counted on its own connection.
                while delay := self._rates.reported(peer, entries):
                    await asyncio.sleep(delay)
                entries = 0
            if who is not None:
                while delay := self._rates.delay(who, "", 1 + entries / IDS_PER_CALL):
                    await asyncio.sleep(delay)
            yield message

    @contextlib.asynccontextmanager
    async def _call(
        self, name: str, kind: type[Message], requests: AsyncIterator[bytes] | None, context: Any
    ) -> AsyncIterator[tuple[Any, Any]]:
        """Check a call, and see it to its end; yields its one message, where it is not a stream, and the context for its handler."""
        connection = self._connections.of(context.peer())
        key = self._credential(context)
        io = asyncio.get_running_loop()
        held = False
        end: Callable[[], None] | None = None
        end_turn: Callable[[], None] | None = None

        def release() -> None:
            nonlocal held
            if held:
                held = False
                connection.proving.release()

        def found(name: str, trusted: bool, counted: bool, speaks: bool) -> None:
            io.call_soon_threadsafe(identified, Identified(name, trusted, counted, speaks))

        def begun() -> None:
            assert end_turn is not None
            with contextlib.suppress(RuntimeError):  # the pool ends: that loop is closed
                io.call_soon_threadsafe(end_turn)

        def identified(who: Identified) -> None:
            self._rates.identify(key, who)
            self._connections.admit(connection, who.name, trusted=who.trusted or not who.counted)
            release()

        try:
            who = self._rates.identified(key)
            if who is None:
                # One at a time: who guesses waits for each answer.
                with connection.waiting_to_prove(UNPROVEN_CALLS):
                    await connection.proving.acquire()
                held = True
                who = self._rates.identified(key)
            message = None
            if who is not None:
                release()
                if not who.speaks:
                    self._rates.take(who, "", cost_of(name))
                    end = self._rates.begin(who, "", stream=requests is None)
            if requests is not None:
                async with self._rates.reading(who):
                    message = await _one(kind, requests)
            person = ""
            if who is not None and who.speaks:
                person = _person(context, message)
                self._rates.take(who, person, cost_of(name))
                end = self._rates.begin(who, person)
            end_turn = await self._rates.turn(who, person)
            yield message, CallContext(context, found, begun)
        except Aborted as aborted:
            if aborted.code is grpc.StatusCode.UNAUTHENTICATED:
                self._rates.forget(key)  # it may have been good, and is tried as a stranger's from now on
                await self._rates.stranger(connection.address)
            await context.abort(aborted.code, aborted.details, aborted.trailing)
        except DatabaseLost as lost:
            await _refuse(context, grpc.StatusCode.UNAVAILABLE, lost, ((RETRY_AFTER, str(AWAY_MS)),))
        except Unfit as unfit:
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, unfit)
        except TooMany as many:
            if not await self._rates.hold_back(connection.admitted or connection.address):
                connection.close()
            after = ((RETRY_AFTER, f"{max(1, round(many.seconds * 1000))}"),) if many.seconds else ()
            await _refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, many, after)
        finally:
            release()
            for over in filter(None, (end_turn, end)):
                over()

    def _credential(self, context: Any) -> bytes:
        """Return a digest of what a call brings to say who it is: its token, or the account at the other end of its connection."""
        header = dict(context.invocation_metadata() or ()).get("authorization", "")
        text = header if isinstance(header, str) and header else self._connections.of(context.peer()).address
        return hashlib.sha256(text.encode(errors="replace")).digest()


async def _refuse(
    context: Any, code: grpc.StatusCode, refusal: Exception, trailing: tuple[tuple[str, str], ...] = ()
) -> NoReturn:
    sentence = sentence_of(refusal)
    await context.abort(code, in_details(sentence), (*trailing, *words_beside(sentence)))
    raise AssertionError  # abort has raised


async def _one(kind: type[Message], requests: AsyncIterator[bytes]) -> Message:
    """Read the one message of a call."""
    try:
        async with asyncio.timeout(READ_SECONDS):
            data = await anext(requests)
    except TimeoutError:
        raise Unfit(
            f"The message {kind.DESCRIPTOR.name} did not arrive within {READ_SECONDS:.0f} s; send it whole."
        ) from None
    except StopAsyncIteration:
        raise Unfit(f"The call ended before its message {kind.DESCRIPTOR.name} had arrived.") from None
    return decode(kind, data)


def _entries(message: Message) -> int:
    """Return how many entries the lists of a message have, those of the message within it included."""
    entries = 0
    for field, value in message.ListFields():
        if field.is_repeated:
            entries += len(value)
        elif field.message_type is not None:
            entries += sum(len(inner) for one, inner in value.ListFields() if one.is_repeated)
    return entries


def _coroutine(method: Any) -> Any:
    async def call(data: Any, context: Any) -> Any:
        return await method(data, context)

    return call


def _generator(method: Any) -> Any:
    async def call(data: Any, context: Any) -> AsyncIterator[Any]:
        async with contextlib.aclosing(method(data, context)) as replies:
            async for reply in replies:
                yield reply

    return call


def _input_type(method: str) -> type[Message]:
    """Return the message that an RPC, ``/gpukernel.v1.Pool/Acquire``, takes."""
    found = descriptor_pool.Default().FindMethodByName(method.removeprefix("/").replace("/", "."))  # type: ignore[no-untyped-call]
    return GetMessageClass(found.input_type)


def _person(context: Any, message: Message | None) -> str:
    """Return the person for whom a call says that it is made; it counts only for who may speak for others."""
    said = dict(context.invocation_metadata() or ()).get(ON_BEHALF)
    if isinstance(said, bytes):
        return said.decode(errors="replace")
    names = message.DESCRIPTOR.fields_by_name if message is not None else {}
    if "person" in names:
        return str(getattr(message, "person"))  # noqa: B009
    return str(message.holder.person) if "holder" in names else ""  # type: ignore[union-attr]
