"""Authentication, permissions and refusal of calls: the part that all services share.

Every method of a service is made with `unary` or `stream`, which find out who is calling, look into the table of
`gpukernel.pool.auth.permissions`, and only then begin; so a method never runs for a caller whom the table does not admit.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
import grpc.aio
import sqlalchemy as sa

from gpukernel.common.address import AWAY_MS, MADE_BY, ON_BEHALF, REFUSAL, RETRY_AFTER, TEACHES
from gpukernel.common.errors import Refused, in_details
from gpukernel.common.i18n import say, sentence_of, words_beside
from gpukernel.common.model import Holder
from gpukernel.common.policy import Policy
from gpukernel.pool.auth.hub_tokens import HubAway
from gpukernel.pool.auth.identity import Caller, Identity
from gpukernel.pool.auth.permissions import PERMISSIONS, Permission
from gpukernel.pool.doors.crossing import CallContext
from gpukernel.pool.store.database import is_away, sentence_of_database
from gpukernel.pool.store.store import Store

__all__ = [
    "Access",
    "Context",
    "check_services",
    "or_refuse",
    "or_refuse_reading",
    "refuse",
    "stream",
    "teacher",
    "unary",
]

log = logging.getLogger(__name__)

T = TypeVar("T")
Service = TypeVar("Service", bound="_Authenticating")
Request = TypeVar("Request")
Reply = TypeVar("Reply")

Context = grpc.aio.ServicerContext[Any, Any]
"""The context of a call, whatever its messages are."""


class _Authenticating(Protocol):
    identity: Identity


@dataclass(frozen=True)
class Access:
    """An admitted call: its caller, and what the caller reaches with it."""

    caller: Caller
    permission: Permission
    context: Context

    def covers(self, holder: Holder, policy: Policy | Callable[[], Policy]) -> bool:
        """Return whether the call reaches what belongs to `holder`."""
        return self.permission.covers(self.caller, holder, policy)


def unary(
    method: Callable[[Service, Request, Access], Awaitable[Reply]],
) -> Callable[[Service, Request, Context], Awaitable[Reply]]:
    """Make a method of a service that admits its callers by the table, and answers once."""

    @functools.wraps(method)
    async def call(self: Service, request: Request, context: Context) -> Reply:
        async with _database_answers(context):
            return await method(self, request, await _admitted(self.identity, context, _permission(method)))
        raise AssertionError("the call was ended")

    return _marked(call)


def stream(
    method: Callable[[Service, Request, Access], AsyncIterator[Reply]],
) -> Callable[[Service, Request, Context], AsyncIterator[Reply]]:
    """Make a method that admits its callers by the table and streams its answers; it ends when the credentials of a call that stays
    open count no more.
    """

    @functools.wraps(method)
    async def call(self: Service, request: Request, context: Context) -> AsyncIterator[Reply]:
        async with _database_answers(context):
            access = await _admitted(self.identity, context, _permission(method))
            with self.identity.open_calls.opened(access.caller) as opened:
                try:
                    async with contextlib.aclosing(method(self, request, access)) as replies:  # type: ignore[type-var]
                        async for reply in replies:
                            yield reply
                except asyncio.CancelledError:
                    if not opened.ended:
                        raise
                    opened.task.uncancel()
                    await context.abort(
                        grpc.StatusCode.UNAUTHENTICATED, "The token of this call counts no more."
                    )

    return _marked(call)


@contextlib.asynccontextmanager
async def _database_answers(context: Context) -> AsyncIterator[None]:
    """End a call whose database does not answer so that its caller asks again: nothing that was committed is lost."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        if not is_away(error):
            raise
        log.debug("a call ends, since the database does not answer: %s", sentence_of_database(error))
        await context.abort(
            grpc.StatusCode.UNAVAILABLE,
            "The pool's database does not answer; leases that there are live on.",
            ((RETRY_AFTER, str(AWAY_MS)),),
        )


def _marked(call: T) -> T:
    call.admits = True  # type: ignore[attr-defined]  # for check_services
    return call


def _permission(method: Callable[..., Any]) -> Permission:
    service, _, name = method.__qualname__.partition(".")
    return PERMISSIONS[f"{service.removesuffix('Service')}/{name}"]


def check_services(*services: object) -> None:
    """Check that each method of these services admits its callers, by an entry of the table; a programming error else."""
    for service in services:
        kind = type(service)
        (abstract,) = kind.__bases__
        for name in (name for name in vars(abstract) if name[0].isupper()):
            called = f"{kind.__name__.removesuffix('Service')}/{name}"
            if called not in PERMISSIONS or not getattr(getattr(kind, name), "admits", False):
                raise TypeError(
                    f"{called} has no permission in gpukernel.pool.auth.permissions, or does not ask for it"
                )


async def _admitted(identity: Identity, context: Context, permission: Permission) -> Access:
    caller = await _known_caller(identity, context)
    if not permission.admits(caller):
        await refuse(context, grpc.StatusCode.PERMISSION_DENIED, permission.refusal(caller))
    return Access(caller, permission, context)


def _shown(context: Context) -> tuple[str, str, float, str]:
    """Return the credentials of a call, as `Identity` takes them."""
    header = dict(context.invocation_metadata() or ()).get("authorization", "")
    (certificate,) = context.auth_context().get("x509_common_name", (b"",))
    return context.peer(), header if isinstance(header, str) else "", time.time(), certificate.decode()


async def _known_caller(identity: Identity, context: Context) -> Caller:
    """Authenticate a call; end it where nobody is known by its credentials."""
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
    if isinstance(context, CallContext):
        for_many = caller.speaks_for_others or caller.role in ("agent", "engine", "supply")
        context.on_caller(caller.name, for_many, not caller.administers, caller.speaks_for_others)
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


async def teacher(access: Access, policy: Policy, course: str) -> Caller:
    """Return the caller where the call reaches `course`; end it where not."""
    caller = access.caller
    if not access.covers(Holder("", course=course), policy):
        await refuse(
            access.context,
            grpc.StatusCode.PERMISSION_DENIED,
            say(
                "Only an instructor of course %(course)s or the pool's administrator may do that, not %(person)s.",
                course=course[:60],
                person=caller.name,
            ),
        )
    return caller


async def or_refuse(context: Context, work: Callable[[], T]) -> T:
    """Return what `work` returns; end the call with the sentence of a refusal, as long as a call's status can be."""
    try:
        return work()
    except Refused as refusal:
        await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, sentence_of(refusal), refusal.code)


async def or_refuse_reading(context: Context, store: Store, work: Callable[[sa.Connection], T]) -> T:
    """Return what `work` returns, as `or_refuse` does; it reads the database in a thread, so that a long answer holds no decision up."""
    try:
        return await store.read(work)
    except Refused as refusal:
        await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, sentence_of(refusal), refusal.code)


async def refuse(context: Context, code: grpc.StatusCode, sentence: str, kind: str = "") -> NoReturn:
    """End the call with a sentence, as long as a call's status can be, with its words for other languages, and a refusal's code."""
    beside: tuple[tuple[str, str | bytes], ...]
    beside = (*words_beside(sentence), *([(REFUSAL, kind)] if kind else []))
    await context.abort(code, in_details(sentence), beside)
