"""Open calls: those that last (`Acquire`, `Hold`, `Attach`) end when the credentials that admitted them count no more.

Guarantees
----------
* A token that was revoked, by this pool or another one on the same database, and one that has expired ends its calls within
  `WATCH_SECONDS` and the time of one query.  So does the certificate beside a Hub's token.
* A Hub's token is asked about as often as `gpukernel.pool.auth.hub_tokens` does; a Hub that is away says nothing against it.
* The query is one for all calls together, and is made outside of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Protocol

import sqlalchemy as sa

from gpukernel.pool.auth.hub_tokens import HubAway

__all__ = ["OpenCall", "OpenCalls"]

log = logging.getLogger(__name__)

WATCH_SECONDS = 1.0


class Credentials(Protocol):
    """The part of a caller that says by what it was admitted; see `gpukernel.pool.auth.identity.Caller`."""

    @property
    def name(self) -> str:
        """Return the person."""

    @property
    def tokens(self) -> frozenset[str]:
        """Return the ids of the pool's tokens."""

    @property
    def hub_token(self) -> str:
        """Return the Hub's token, empty where there is none."""


class OpenCall:
    """One call that is open, with the task that serves it; `ended` once its credentials count no more."""

    def __init__(self, caller: Credentials, task: asyncio.Task[object]) -> None:
        self.caller, self.task = caller, task
        self.ended = False

    def end(self) -> None:
        """End the call."""
        if not self.ended:
            self.ended = True
            self.task.cancel()


class OpenCalls:
    """The calls that are open now.

    Parameters
    ----------
    living
        Returns those of some tokens' ids that are valid at a time; called in a thread.
    hubs_person
        Returns whose a Hub's token is, empty for nobody's; raises where the Hub does not say.
    """

    def __init__(
        self,
        living: Callable[[Collection[str], float], set[str]],
        hubs_person: Callable[[str], Awaitable[str]],
    ) -> None:
        self._living = living
        self._hubs_person = hubs_person
        self._calls: set[OpenCall] = set()

    @contextlib.contextmanager
    def opened(self, caller: Credentials) -> Iterator[OpenCall]:
        """Watch the call that the current task serves for as long as the context lasts."""
        task = asyncio.current_task()
        assert task is not None
        call = OpenCall(caller, task)
        self._calls.add(call)
        try:
            yield call
        finally:
            self._calls.discard(call)

    async def watch(self) -> None:
        """End calls whose credentials count no more, until cancelled."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                await self.look(time.time())
            except sa.exc.SQLAlchemyError as error:  # a database that is away revokes nothing
                log.warning("tokens of open calls could not be looked up: %s", error)

    async def look(self, now: float) -> None:
        """End the calls whose credentials do not count at `now`."""
        calls = set(self._calls)
        if ids := {identifier for call in calls for identifier in call.caller.tokens}:
            living = await asyncio.to_thread(self._living, ids, now)
            for call in calls:
                if not living.issuperset(call.caller.tokens):
                    call.end()
        for token, person in await self._asked({call.caller.hub_token for call in calls} - {""}):
            for call in calls:
                if call.caller.hub_token == token and person != call.caller.name:
                    call.end()

    async def _asked(self, tokens: Collection[str]) -> list[tuple[str, str]]:
        async def ask(token: str) -> tuple[str, str] | None:
            with contextlib.suppress(HubAway):
                return token, await self._hubs_person(token)
            return None

        return [found for found in await asyncio.gather(*map(ask, tokens)) if found is not None]
