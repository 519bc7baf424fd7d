"""Authentication and refusal of calls: the part that all services share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from gpukernel.common.address import MADE_BY, ON_BEHALF, TEACHES
from gpukernel.common.errors import Refused, in_details
from gpukernel.common.i18n import say, sentence_of, words_beside
from gpukernel.common.policy import Policy
from gpukernel.pool.auth.hub_tokens import HubAway
from gpukernel.pool.auth.identity import Caller, Identity

__all__ = ["Context", "known_caller", "known_teacher", "or_refuse", "refuse", "still_known"]

T = TypeVar("T")

Context = grpc.aio.ServicerContext[Any, Any]
"""The context of a call, whatever its messages are."""


def _shown(context: Context) -> tuple[str, str, float, str]:
    """Return the credentials of a call, as `Identity` takes them."""
    header = dict(context.invocation_metadata() or ()).get("authorization", "")
    (certificate,) = context.auth_context().get("x509_common_name", (b"",))
    return context.peer(), header if isinstance(header, str) else "", time.time(), certificate.decode()


async def known_caller(identity: Identity, context: Context) -> Caller:
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


async def still_known(identity: Identity, context: Context) -> bool:
    """Return whether the token of a call that stays open is still valid; a JupyterHub that is away says nothing against it."""
    with contextlib.suppress(Refused):
        shown = _shown(context)
        try:
            return (identity.caller(*shown) or await identity.hub_caller(*shown)) is not None
        except HubAway:
            return True
    return False


async def known_teacher(identity: Identity, context: Context, policy: Policy, course: str) -> Caller:
    """Authenticate a call of somebody who instructs `course` or administers the pool; end all others'."""
    caller = await known_caller(identity, context)
    if not (caller.administers or caller.instructs(course, policy)):
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


async def or_refuse(context: Context, work: Callable[[], T]) -> T:
    """Return what `work` returns; end the call with the sentence of a refusal, as long as a call's status can be."""
    try:
        return work()
    except Refused as refusal:
        await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, sentence_of(refusal))


async def refuse(context: Context, code: grpc.StatusCode, sentence: str) -> NoReturn:
    """End the call with a sentence, as long as a call's status can be, and with its words for other languages."""
    await context.abort(code, in_details(sentence), words_beside(sentence))
