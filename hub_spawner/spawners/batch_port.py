"""The call by which a server that is a job tells the Hub its port.

batchspawner's own handler sets whatever attribute of the spawner the caller names, and the caller is a student with the token of their server:
``batch_cancel_cmd`` among them, which the Hub's account runs in a shell.  This one takes a port and nothing else.
"""

from __future__ import annotations

from typing import Any

from batchspawner.api import BatchSpawnerAPIHandler
from jupyterhub.apihandlers import default_handlers
from tornado import web

__all__ = ["PortHandler", "take_ports_only"]


class PortHandler(BatchSpawnerAPIHandler):  # type: ignore[misc]
    """The handler of ``POST /hub/api/batchspawner``."""

    @web.authenticated
    def post(self) -> Any:
        """Note the port of the server whose token the call has."""
        data = self.get_json_body()
        port = data.get("port") if isinstance(data, dict) and set(data) == {"port"} else None
        if type(port) is not int or not 0 < port < 65536:
            raise web.HTTPError(400, "A server tells its port, from 1 to 65535, and nothing else.")
        return super().post()


def take_ports_only() -> None:
    """Put `PortHandler` in the place of batchspawner's handler, for the Hub that is about to start."""
    default_handlers[:] = [
        (entry[0], PortHandler, *entry[2:]) if entry[1] is BatchSpawnerAPIHandler else entry
        for entry in default_handlers
    ]
