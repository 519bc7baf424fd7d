"""The reconciler of Hub and pool: servers that are gone hold nothing, the pool knows the administrator's courses, even
after a Hub was killed, and the Hub's token is renewed before it ends.

It runs in the console's process, or by itself: ``python -m hub_spawner.reconciler``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

from gpukernel.client.admin import AdminClient
from gpukernel.client.hub import HubClient
from gpukernel.client.tokens import TokenRenewal
from gpukernel.common.address import resolve_address
from gpukernel.common.errors import NotAllowed, PoolError
from hub_spawner.pool import connection_file, read_credentials, server_name

__all__ = ["Reconciler", "running_servers"]

log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
STARTING_SECONDS = 180.0
"""A server that was opened in the pool so recently may be starting still."""


async def running_servers(api: str, token: str) -> tuple[set[tuple[str, str]], dict[str, frozenset[str]]]:
    """Return every (person, server's name) that the Hub at the URL `api` runs or is starting, and the groups of these
    people.

    Raises `OSError` or `HTTPClientError`.
    """
    found: set[tuple[str, str]] = set()
    groups: dict[str, frozenset[str]] = {}
    offset, size = 0, 200
    while True:
        query = urllib.parse.urlencode({"state": "active", "offset": offset, "limit": size})
        headers = {"Authorization": f"token {token}", "Accept": "application/jupyterhub-pagination+json"}
        answer = await AsyncHTTPClient().fetch(HTTPRequest(f"{api}/users?{query}", headers=headers))
        page = json.loads(answer.body)
        for user in page["items"]:
            found |= {(user["name"], name) for name in user.get("servers") or {}}
            if "groups" in user:
                groups[user["name"]] = frozenset(user["groups"])
        if not page["_pagination"]["next"]:
            return found, groups
        offset += size


@dataclass
class Reconciler:
    """A loop that compares Hub and pool every half minute; an error is logged once and tried again."""

    pool: str
    token_file: str
    courses: str
    hub: str
    api: str
    api_token: str
    suspects: set[tuple[str, str]] = field(default_factory=set)
    told: dict[str, frozenset[str]] = field(default_factory=dict)
    _said: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Reconciler:
        """Return the reconciler that the variables of `hub_spawner.configure` and JupyterHub describe."""
        return cls(
            environment.get("GPUKERNEL_POOL", ""),
            environment.get("GPUKERNEL_POOL_TOKEN_FILE", ""),
            environment.get("GPUKERNEL_COURSES", ""),
            environment.get("GPUKERNEL_HUB", "jupyterhub"),
            environment["JUPYTERHUB_API_URL"],
            environment["JUPYTERHUB_API_TOKEN"],
        )

    async def run(self) -> None:
        """Reconcile, and renew the token of the Hub before it ends, until cancelled."""
        file = connection_file(resolve_address(self.pool or None), self.token_file)
        renewing = asyncio.create_task(TokenRenewal(self._client, file).run())
        try:
            await self._reconcile()
        finally:
            renewing.cancel()

    def _client(self) -> AdminClient:
        return AdminClient(self.pool or None, read_credentials(self.token_file))

    async def _reconcile(self) -> None:
        imported = not self.courses
        while True:
            patience = LOOK_SECONDS
            try:
                async with self._client() as client:
                    if not imported:
                        await self.import_courses(client)
                        imported = True
                    await self.look(client)
                self._said = ""
            except (PoolError, HTTPClientError, OSError) as error:
                if str(error) != self._said:
                    self._said = str(error)
                    log.warning("%s", error)
                patience = 1.0 if not imported else LOOK_SECONDS
            await asyncio.sleep(patience)

    async def import_courses(self, client: AdminClient) -> None:
        """Import the administrator's file, unless it is the one that was imported last: instructors may have changed
        something since.
        """
        text = await asyncio.to_thread(Path(self.courses).read_text)
        try:
            for line in await client.import_courses(text, once=True):
                log.info("courses: %s", line)
        except NotAllowed:
            log.error(
                "%s is not imported, since the Hub's token is not one of scope admin; "
                "an administrator of the pool does it: gpukernel quota import %s",
                self.courses,
                Path(self.courses).name,
            )
        except PoolError as error:
            if "line " not in str(error):
                raise
            log.error("%s is not imported:\n%s", self.courses, error)

    async def look(self, client: HubClient) -> list[tuple[str, str]]:
        """Close in the pool what the Hub has not run for two looks in a row, and return what was closed.

        And say which groups those who run something are in: whoever lost one while their server runs loses with it what it gave them.
        """
        opened = await client.servers()
        prefix = f"{self.hub}/"
        ours = [one for one in opened if one.server == self.hub or one.server.startswith(prefix)]
        if not ours:
            self.suspects, self.told = set(), {}
            return []
        found, groups = await running_servers(self.api, self.api_token)
        running = {(person, server_name(self.hub, name)) for person, name in found}
        for person in sorted({one.person for one in ours} & set(groups)):
            if self.told.get(person) != groups[person]:
                await client.set_groups(person, groups[person])
        self.told = groups
        settled = time.time() - STARTING_SECONDS
        gone = {
            (one.person, one.server)
            for one in ours
            if (one.person, one.server) not in running and one.since < settled
        }
        closed = []
        for person, server in sorted(gone & self.suspects):
            leases = await client.close_server(person, server, "its server is gone")
            log.warning("%s's server %s was gone; it held %d leases", person, server, leases)
            closed.append((person, server))
        self.suspects = gone - set(closed)
        return closed


async def _main() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await Reconciler.of(os.environ).run()


def main(_: Any = None) -> None:
    """Run the reconciler by itself."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main())


if __name__ == "__main__":
    main()
