"""The server extension: ``/gpukernel/api/…``, what stands between the front ends and the pool.

Requests are authenticated, authorised (resource ``gpukernel``) and protected against forgery as `jupyter_server` does for its own.

======== ===================================== ===========================================================================
``GET``  ``status``                            this person's kernels and leases with their use; answers within a second
``GET``  ``offers``                            what may be taken now, and the models for a size of one's own
``POST`` ``sizes``                             ``{"share": 0.07, "model": "V100"}``: list that size; gives its kernel's name
``POST`` ``kernels/ID/release``                give the slice back; ``acquire``, ``cancel`` and ``resize`` likewise
``POST`` ``leases/ID/release``                 end a lease that another server of this person holds
======== ===================================== ===========================================================================

Changes of slices and of places in the queue are events of `SCHEMA` at ``/api/events/subscribe``, so nobody has to poll for them.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_data_dir
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.utils import url_path_join
from tornado import web

from gpukernel.jupyter.handout import hand_out, notebooks_of_course
from gpukernel.jupyter.holding import SliceUnavailable
from gpukernel.jupyter.keeper import keeper
from gpukernel.jupyter.kernelspecs import InvalidSpec
from gpukernel.jupyter.specs import GPUKernelSpecManager
from gpukernel.jupyter.stopping import end_starts
from gpukernel.remoting.questions import WorkerSilent, usage_of

__all__ = ["SCHEMA"]

SCHEMA = "https://events.gpukernel.org/slice/v1"
LOOK_SECONDS = 0.8
FRESH_SECONDS = 2.0
_TEXT, _NUMBER = {"type": "string"}, {"type": "number"}
_SCHEMA = {
    "$id": SCHEMA,
    "version": "1",
    "title": "A kernel's slice",
    "description": "The slice of a kernel, or its place in the queue, has changed.",
    "personal-data": True,
    "type": "object",
    "required": ["kernel_id", "state"],
    "properties": {
        "kernel_id": _TEXT,
        "state": {"enum": ["none", "waiting", "live", "ended"]},
        "what": _TEXT,
        "words": _TEXT,
        "sentence": _TEXT,
        "notice": _TEXT,
        "position": _NUMBER,
        "estimate_seconds": _NUMBER,
    },
}


@dataclass
class _Known:
    """What the pool said last of this person's leases, with the person and a lock so that it is asked once at a time."""

    address: str = ""
    people: tuple[str, ...] = ()
    leases: list[dict[str, Any]] = field(default_factory=list)
    told_at: float = -float("inf")
    failure: str = ""
    asking: asyncio.Task[None] | None = None

    async def leases_now(self) -> list[dict[str, Any]]:
        """Own leases, at most `LOOK_SECONDS` later; older ones where the pool takes longer."""
        if time.monotonic() - self.told_at > FRESH_SECONDS:
            if self.asking is None or self.asking.done():
                self.asking = asyncio.create_task(self._ask())
            await asyncio.wait({self.asking}, timeout=LOOK_SECONDS)
            if not self.asking.done() and not self.failure:
                self.failure = "The pool is slow to answer."
        return self.leases

    async def _ask(self) -> None:
        from gpukernel.jupyter.holding import as_json
        from gpukernel.pool.errors import PoolError

        try:
            look = await keeper().look(self.address)
        except PoolError as error:
            self.failure = str(error)
            return
        self.leases = [
            as_json(lease)
            for lease in look.leases
            if lease.holder.person in self.people and lease.state in ("starting", "live")
        ]
        self.told_at, self.failure = time.monotonic(), ""


class _Handler(APIHandler):
    auth_resource = "gpukernel"

    @property
    def known(self) -> _Known:
        return self.settings["gpukernel"]  # type: ignore[no-any-return]

    def refuse(self, status: int, sentence: str) -> None:
        """One sentence for people, as JSON."""
        self.set_status(status)
        self.finish(json.dumps({"message": sentence, "reason": None}))

    def body(self) -> dict[str, Any]:
        content = self.get_json_body()
        if content is not None and not isinstance(content, dict):
            raise web.HTTPError(400, "The body is no JSON object.")
        return content or {}


class Status(_Handler):
    """Everything that the status bar and the side panel show, in one small answer."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """The kernels of this server, and this person's leases elsewhere."""
        shown = await keeper().show(fresh=False)
        leases = await self.known.leases_now()
        kernels = await asyncio.gather(*(asyncio.to_thread(_kernel, one) for one in shown))
        here = {one["lease_id"] for one in kernels}
        others = [
            _other(lease) for lease in leases if lease["id"] not in here and lease["key"] not in _keys(shown)
        ]
        self.finish(
            json.dumps(
                {"kernels": kernels, "others": others, "problem": self.known.failure, "time": time.time()}
            )
        )


def _keys(shown: list[dict[str, Any]]) -> set[str]:
    return {one["key"] for one in shown}


def _slices(lease: dict[str, Any] | None) -> dict[str, Any]:
    pieces = lease["slices"] if lease else []
    return {
        "lease_id": lease["id"] if lease else "",
        "created": lease["created"] if lease else 0.0,
        "until": (lease.get("until") or 0.0) if lease else 0.0,
        "notice": lease.get("notice", "") if lease else "",
        "device": ", ".join(piece["device_id"] for piece in pieces),
        "device_name": pieces[0]["device_name"] if pieces else "",
        "device_memory_bytes": sum(piece["device_memory_bytes"] for piece in pieces),
        "memory_bytes": sum(piece["memory_bytes"] for piece in pieces),
        "used_bytes": sum(piece["usage"]["memory_used_bytes"] for piece in pieces),
        "gpu_seconds": sum(piece["usage"]["gpu_seconds"] for piece in pieces),
        "gpu_share": None,
    }


def _kernel(shown: dict[str, Any]) -> dict[str, Any]:
    """One kernel of this server; its use asked of its workers, which takes some 100 µs."""
    kernel = {
        "kernel_id": shown["key"],
        **{
            name: shown[name] for name in ("state", "what", "words", "sentence", "position", "share", "model")
        },
        "estimate_seconds": shown["estimate_seconds"],
        **_slices(shown["lease"]),
    }
    if shown["secret"]:
        try:
            uses = [
                usage_of(piece["endpoints"], shown["secret"], patience=LOOK_SECONDS)
                for piece in shown["lease"]["slices"]
            ]
        except WorkerSilent:
            return kernel
        kernel["used_bytes"] = sum(one.used_bytes for one in uses)
        kernel["memory_bytes"] = sum(one.limit_bytes for one in uses)
        kernel["gpu_seconds"] = sum(one.gpu_seconds for one in uses)
        kernel["gpu_share"] = max((one.gpu_share for one in uses), default=None)
    return kernel


def _other(lease: dict[str, Any]) -> dict[str, Any]:
    holder = lease["holder"]
    return {
        **_slices(lease),
        "state": lease["state"],
        "description": holder["description"],
        "server": holder["server"],
    }


class OffersNow(_Handler):
    """What may be taken now."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """The offers, and of each model the memory of one device."""
        manager: Any = self.kernel_spec_manager
        offers = await asyncio.to_thread(manager.book.read, LOOK_SECONDS)
        models = {one.model: round(one.memory_bytes / one.share) for one in offers.offers if one.memory_bytes}
        self.finish(
            json.dumps(
                {"offers": [asdict(one) for one in offers.offers], "models": models, "note": offers.note}
            )
        )


class Sizes(_Handler):
    """Sizes of one's own."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """List a size from now on; gives the name of its kernel."""
        manager: Any = self.kernel_spec_manager
        body = self.body()
        try:
            name = manager.add_size(float(body["share"]), str(body.get("model", "")))
        except InvalidSpec as error:
            return self.refuse(400, str(error))
        except (KeyError, TypeError, ValueError):
            return self.refuse(400, "A size is a share of a device, for example 0.07, and a model.")
        self.set_status(201)
        self.finish(json.dumps({"name": name}))


class OfKernel(_Handler):
    """What a person may do with the slice of one kernel of this server."""

    @web.authenticated
    @authorized
    async def post(self, kernel_id: str, what: str) -> None:
        """Release, acquire, cancel or resize."""
        try:
            await keeper().do(kernel_id, what, self.body())
        except SliceUnavailable as error:
            return self.refuse(409, str(error))
        self.set_status(204)
        self.finish()


class OfLease(_Handler):
    """A lease of another server of this person."""

    @web.authenticated
    @authorized
    async def post(self, lease_id: str) -> None:
        """End it; only this person's own."""
        from gpukernel.pool.errors import PoolError

        if lease_id not in {lease["id"] for lease in await self.known.leases_now()}:
            return self.refuse(404, "You hold no such lease.")
        try:
            await keeper().end_lease(self.known.address, lease_id, "released by its holder")
        except PoolError as error:
            return self.refuse(502, str(error))
        self.known.told_at = -float("inf")
        self.set_status(204)
        self.finish()


class Extension(ExtensionApp):
    """What jupyter_server loads when it starts, and tells when it stops."""

    name = "gpukernel"

    def initialize(self, argv: list[str] | None = None) -> None:
        """List the offers, and answer below ``/gpukernel/api``."""
        _serve(self.serverapp)

    async def stop_extension(self) -> None:
        """Called before the server shuts its kernels down."""
        assert self.serverapp is not None
        await end_starts(self.serverapp.kernel_manager, keeper())


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    return [{"module": "gpukernel.jupyter.server", "app": Extension}]


def _list_offers(app: Any) -> GPUKernelSpecManager:
    """The server's KernelSpecManager, or one around it: an extension cannot choose the class before there is one."""
    manager = app.kernel_spec_manager
    if not isinstance(manager, GPUKernelSpecManager):
        manager = GPUKernelSpecManager(parent=app, ordinary=manager)
        app.kernel_spec_manager = manager
        app.kernel_manager.kernel_spec_manager = manager
        app.web_app.settings["kernel_spec_manager"] = manager
    return manager


def _serve(app: Any) -> None:
    from gpukernel.pool.client import resolve_address
    from gpukernel.pool.errors import PoolError

    manager = _list_offers(app)
    memory = Path(jupyter_data_dir()) / "gpukernel" / "given.json"
    hand_out(*notebooks_of_course(), Path(app.root_dir), memory)
    known = _Known(people=tuple({getpass.getuser(), os.environ.get("JUPYTERHUB_USER") or getpass.getuser()}))
    try:
        known.address = resolve_address(manager.pool or None)
    except PoolError as error:
        app.log.warning("gpukernel: %s", error)
        return
    web_app = app.web_app
    web_app.settings["gpukernel"] = known
    root = url_path_join(web_app.settings["base_url"], "gpukernel", "api")
    web_app.add_handlers(
        ".*$",
        [
            (url_path_join(root, "status"), Status),
            (url_path_join(root, "offers"), OffersNow),
            (url_path_join(root, "sizes"), Sizes),
            (url_path_join(root, r"kernels/([0-9A-Za-z-]+)/(release|acquire|cancel|resize)"), OfKernel),
            (url_path_join(root, r"leases/([0-9A-Za-z-]+)/release"), OfLease),
        ],
    )
    app.event_logger.register_event_schema(_SCHEMA)

    def tell(event: dict[str, Any]) -> None:
        app.io_loop.add_callback(lambda: app.event_logger.emit(schema_id=SCHEMA, data=event))

    keeper().listen(tell)
