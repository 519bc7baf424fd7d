"""A single-user server without Jupyter, so light that two cores carry two hundred: what a Hub checks, and kernels that are only leases.

It is started by a spawner as any single-user server is, asks the pool through gpukernel's own lease manager with the token of its
environment, and lets in whom the Hub lets in.

======== ================ =====================================================================================
``POST`` ``api/kernels``  ``{"name": "gpu-v100-0.02", "hold_seconds": 30}``: asks for the slice as a kernel's start does, answers when it
                          has it, or after 5 s with its place kept; the slice goes back so long after it came
``GET``  ``api/kernels``  each with its ``state`` and ``sentence``
======== ================ =====================================================================================
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import tempfile
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tornado import web
from tornado.httpclient import AsyncHTTPClient, HTTPClientError

from gpukernel.client.pool import resolve_address
from gpukernel.common.model import Holder, SliceRequest
from gpukernel.jupyter.errors import SliceUnavailable
from gpukernel.jupyter.lease_manager import lease_manager

__all__: list[str] = []

START_SECONDS = 5.0
PERSON = os.environ["JUPYTERHUB_USER"]
_known_tokens: set[str] = set()
_tasks: set[asyncio.Task[None]] = set()


async def may_enter(authorization: str) -> bool:
    """Tell whether the Hub knows this token, and it opens this person's server."""
    if authorization not in _known_tokens:
        try:
            answer = await AsyncHTTPClient().fetch(
                os.environ["JUPYTERHUB_API_URL"] + "/user",
                headers={"Authorization": authorization},
                request_timeout=120,
            )
        except HTTPClientError:
            return False
        scopes = json.loads(answer.body)["scopes"]
        if not {"access:servers", f"access:servers!user={PERSON}"}.intersection(scopes):
            return False
        _known_tokens.add(authorization)
    return True


class Kernels(web.RequestHandler):
    """The kernels of this server."""

    async def prepare(self) -> None:
        if not await may_enter(self.request.headers.get("Authorization", "")):
            raise web.HTTPError(403)

    async def get(self) -> None:
        self.finish(json.dumps([status.as_json() for status in await lease_manager().statuses()]))

    async def post(self) -> None:
        body: dict[str, Any] = json.loads(self.request.body)
        name = re.fullmatch(r"gpu-(\w+)-([\d.]+)", body["name"])
        if name is None:
            raise web.HTTPError(404)
        key = str(uuid.uuid4())
        request = SliceRequest(share=float(name[2]), model=name[1].upper())
        holder = Holder(
            PERSON,
            os.environ.get("JUPYTERHUB_SERVER_NAME", ""),
            os.environ["GPUKERNEL_COURSE"],
            f"kernel {key[:8]}",
        )
        lease_file = Path(tempfile.gettempdir()) / f"gpukernel-{key}.lease"
        await lease_manager().register(key, resolve_address(), request, holder, lease_file)
        try:
            await lease_manager().acquire(key, START_SECONDS)
        except SliceUnavailable as error:
            await lease_manager().close_key(key, "no slice could be had")
            self.set_status(500)
            self.finish(json.dumps({"message": str(error)}))
            return
        await lease_manager().watch(key, os.getpid())
        task = asyncio.create_task(hold(key, float(body.get("hold_seconds", 0))))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)
        self.set_status(201)
        self.finish(json.dumps({"id": key, "name": body["name"]}))


async def hold(key: str, seconds: float) -> None:
    """Wait for the slice, and give it back `seconds` after it came; 0: never."""
    while [one.state for one in await lease_manager().statuses(fresh=False) if one.kernel_id == key] == [
        "waiting"
    ]:
        await asyncio.sleep(0.5)
    if seconds:
        await asyncio.sleep(seconds)
        await lease_manager().close_key(key, "the kernel was shut down")


class Anything(web.RequestHandler):
    """Answer the Hub, which looks here to see that the server is up."""

    def get(self) -> None:
        self.finish("{}")


async def main() -> None:
    """Serve until told to stop."""
    url = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    prefix = os.environ["JUPYTERHUB_SERVICE_PREFIX"]
    pages = web.Application([(re.escape(prefix) + "api/kernels", Kernels), (r"/.*", Anything)])
    pages.settings["log_function"] = lambda handler: None
    pages.listen(url.port or 0, "127.0.0.1")
    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    await told.wait()


if __name__ == "__main__":
    asyncio.run(main())
