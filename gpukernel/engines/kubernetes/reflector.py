"""A cache of objects that follows the API: a list, then a watch from that list's version.

Guarantees
----------
* `objects` is what one moment of the API was, and never goes back to an earlier one.
* After `relist` it is a moment later than the call: the list is asked for without a version, which the API answers from its store.
* A watch that ends goes on from the last version; one that is too old (410 Gone) or broken starts with a new list; silence is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import httpx2
from lightkube import AsyncClient
from lightkube.core.exceptions import ApiError

__all__ = ["API_ERRORS", "Reflector", "problem_of"]

log = logging.getLogger(__name__)

T = TypeVar("T")

API_ERRORS = (httpx2.HTTPError, httpx2.StreamError, ValueError, OSError)
"""Exceptions of calls of the API: `ApiError` is one of them, and `ValueError` stands for an answer that is no JSON."""

WATCH_SECONDS = 300
SILENT_SECONDS = 330.0
"""A watch that neither ends nor says anything for so long is a connection that is gone."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 20.0
PAGE = 500


def problem_of(error: BaseException) -> str:
    """Return what the API said, or what became of the call, in one line."""
    if isinstance(error, ApiError) and error.status is not None:
        return f"{error.status.code} {error.status.message}"
    return f"{type(error).__name__}: {error}".rstrip(": ")


class Reflector(Generic[T]):
    """The objects of one kind, in all namespaces.

    Parameters
    ----------
    kind
        A resource of lightkube.
    changed
        Called with the uid of each object that is new, changed or gone, after `objects` has it.
    namespaced
        False for objects of the cluster.
    """

    def __init__(
        self,
        client: AsyncClient,
        kind: type[Any],
        changed: Callable[[str], None] = lambda uid: None,
        *,
        namespaced: bool = True,
    ) -> None:
        self._client, self._kind, self._changed = client, kind, changed
        self._where: dict[str, Any] = {"namespace": "*"} if namespaced else {}
        self._objects: dict[str, T] = {}
        self._lists, self._listed = 0, asyncio.Condition()
        self._listing = False
        self._again = asyncio.Event()

    @property
    def objects(self) -> Mapping[str, T]:
        """Return the objects by their uid."""
        return self._objects

    async def relist(self) -> None:
        """Return when `objects` is from after this call; waits for as long as the API does not answer."""
        async with self._listed:
            wanted = self._lists + (2 if self._listing else 1)  # a list under way may be of before
            self._again.set()
            await self._listed.wait_for(lambda: self._lists >= wanted)

    async def run(self) -> None:
        """Follow, until this is cancelled."""
        pause = FIRST_PAUSE
        while True:
            try:
                version = await self._list()
                pause = FIRST_PAUSE
                await self._follow(version)
            except API_ERRORS as error:
                if not (isinstance(error, ApiError) and error.status and error.status.code == 410):
                    # One broken connection is every day's; several in a row are not.
                    level = logging.INFO if pause == FIRST_PAUSE else logging.WARNING
                    log.log(level, "%s cannot be followed: %s", self._kind.__name__, problem_of(error))
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)

    async def _list(self) -> str:
        self._again.clear()
        self._listing = True
        try:
            listing = self._client.list(self._kind, chunk_size=PAGE, **self._where)
            found = {str(one.metadata.uid): one async for one in listing}
        finally:
            self._listing = False
        before, self._objects = self._objects, found
        for uid in before.keys() | found.keys():
            if uid not in before or uid not in found or _version(before[uid]) != _version(found[uid]):
                self._changed(uid)
        async with self._listed:
            self._lists += 1
            self._listed.notify_all()
        return listing.resourceVersion

    async def _follow(self, version: str) -> None:
        """Take events until a new list is asked for; raises what ends the watch."""
        watching = asyncio.create_task(self._watch(version))
        again = asyncio.create_task(self._again.wait())
        try:
            await asyncio.wait({watching, again}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            for task in (watching, again):
                task.cancel()
            await asyncio.wait({watching, again})
            if not watching.cancelled():
                watching.exception()

    async def _watch(self, version: str) -> None:
        events: Any = self._client.watch(
            self._kind, resource_version=version, server_timeout=WATCH_SECONDS, **self._where
        )
        async with contextlib.aclosing(events):
            while True:
                async with asyncio.timeout(SILENT_SECONDS):
                    event, one = await anext(events)
                uid = str(one.metadata.uid)
                if event == "DELETED":
                    self._objects.pop(uid, None)
                elif event in ("ADDED", "MODIFIED"):
                    self._objects[uid] = one
                else:  # a bookmark: only the version is new
                    continue
                self._changed(uid)


def _version(one: Any) -> str:
    return str(one.metadata.resourceVersion)
