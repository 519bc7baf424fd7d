"""The server extension: ``/gpukernel/api/…``, which front ends ask and which asks the pool.

Requests are authenticated, authorised (resource ``gpukernel``) and protected against forgery as `jupyter_server` does for its own.

======== ===================================== ===========================================================================
``GET``  ``status``                            this person's kernels and leases with their use; answers within a second
``GET``  ``offers``                            what may be taken now, and the models for a size of one's own
``GET``  ``chance?share=0.07&model=V100``      what this person would get of any one size now
``GET``  ``hours``                             this person's GPU-hours since Monday, of those allowed, and the address of their page in the Hub
``POST`` ``sizes``                             ``{"share": 0.07, "model": "V100"}``: list that size; gives its kernel's name
``POST`` ``kernels/ID/release``                give the slice back; ``acquire``, ``cancel``, ``keep`` and ``resize`` likewise
``POST`` ``leases/ID/release``                 end a lease that another server of this person holds
======== ===================================== ===========================================================================

Changes of slices and of places in the queue are events of `SCHEMA` at ``/api/events/subscribe``, so nobody has to poll for them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from jupyter_core.paths import jupyter_data_dir
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.utils import url_path_join
from tornado import web

from gpukernel.common.account import own_name, own_names
from gpukernel.jupyter.course_files import hand_out, notebooks_of_course
from gpukernel.jupyter.errors import SliceUnavailable, problem_words
from gpukernel.jupyter.kernel_status import EVENT_FIELDS, KernelState, KernelStatus, ServerStatus, other_lease
from gpukernel.jupyter.kernelspecs import InvalidSpec
from gpukernel.jupyter.lease_manager import lease_manager
from gpukernel.jupyter.shutdown import end_starts
from gpukernel.jupyter.specs import GPUKernelSpecManager

if TYPE_CHECKING:
    from gpukernel.common.model import Lease

__all__ = ["SCHEMA", "event_schema"]

SCHEMA = "https://events.gpukernel.org/slice/v1"
LOOK_SECONDS = 0.8
FRESH_SECONDS = 2.0
HOURS_SECONDS = 10.0
CHANCE_SECONDS = 5.0
SIZE = "A size is a share of a device, for example 0.07, and a model."


def event_schema() -> dict[str, Any]:
    """Return the JSON schema of the events that tell a change of a kernel's slice."""
    properties: dict[str, Any] = {}
    for name in EVENT_FIELDS:
        kind = type(getattr(KernelStatus(state="none", kernel_id="", what=""), name))
        properties[name] = {"type": "string" if kind is str else "number"}
    return {
        "$id": SCHEMA,
        "version": "1",
        "title": "A kernel's slice",
        "description": "The slice of a kernel, or its place in the queue, has changed.",
        "personal-data": True,
        "type": "object",
        "required": ["kernel_id", "state"],
        "properties": {**properties, "state": {"enum": list(get_args(KernelState))}},
    }


@dataclass
class _OwnLeases:
    """The pool's latest answer about this person's leases, and the task that asks for the next."""

    address: str = ""
    people: tuple[str, ...] = ()
    leases: list[Lease] = field(default_factory=list)
    told_at: float = -float("inf")
    failure: str = ""
    asking: asyncio.Task[None] | None = None

    async def now(self) -> list[Lease]:
        """Return this person's leases after at most `LOOK_SECONDS`; an older answer where the pool takes longer."""
        if time.monotonic() - self.told_at > FRESH_SECONDS:
            if self.asking is None or self.asking.done():
                self.asking = asyncio.create_task(self._ask())
            await asyncio.wait({self.asking}, timeout=LOOK_SECONDS)
            if not self.asking.done() and not self.failure:
                self.failure = "The pool is slow to answer."
        return self.leases

    async def _ask(self) -> None:
        from gpukernel.common.errors import PoolError

        try:
            leases = await lease_manager().leases(self.address)
        except PoolError as error:
            self.failure = problem_words(error)
            return
        self.leases = [
            lease
            for lease in leases
            if lease.holder.person in self.people and lease.state in ("starting", "live")
        ]
        self.told_at, self.failure = time.monotonic(), ""


class _Handler(APIHandler):
    auth_resource = "gpukernel"

    @property
    def own(self) -> _OwnLeases:
        """The leases of this person, as the pool told them last."""
        return self.settings["gpukernel"]  # type: ignore[no-any-return]

    def refuse(self, status: int, sentence: str) -> None:
        """Answer with one sentence for people, as JSON."""
        self.set_status(status)
        self.finish(json.dumps({"message": sentence, "reason": None}))

    def body(self) -> dict[str, Any]:
        """Return the JSON object of the request; empty where there is none."""
        content = self.get_json_body()
        if content is not None and not isinstance(content, dict):
            raise web.HTTPError(400, "The body is no JSON object.")
        return content or {}


class StatusHandler(_Handler):
    """The answer that the status bar and the side panel show."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the kernels of this server, and this person's leases elsewhere."""
        kernels = await lease_manager().statuses(fresh=False, use=True)
        leases = await self.own.now()
        here = {one.lease_id for one in kernels}
        keys = {one.kernel_id for one in kernels}
        others = [other_lease(lease) for lease in leases if lease.id not in here and lease.key not in keys]
        self.finish(
            json.dumps(asdict(ServerStatus(tuple(kernels), tuple(others), self.own.failure, time.time())))
        )


class OffersHandler(_Handler):
    """The offers now."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the offers, and of each model the memory of one device."""
        manager: Any = self.kernel_spec_manager
        offers = await asyncio.to_thread(manager.book.read, LOOK_SECONDS)
        models = {one.model: round(one.memory_bytes / one.share) for one in offers.offers if one.memory_bytes}
        self.finish(
            json.dumps(
                {"offers": [asdict(one) for one in offers.offers], "models": models, "note": offers.note}
            )
        )


class ChanceHandler(_Handler):
    """The prospects of one size, whether it is offered or not."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with its memory, how many are free, how many wait before it, and why it cannot be had at once."""
        from gpukernel.common.course import Offered
        from gpukernel.common.errors import PoolError

        manager: Any = self.kernel_spec_manager
        model = self.get_query_argument("model", "")
        try:
            share = float(self.get_query_argument("share", ""))
        except ValueError:
            return self.refuse(400, SIZE)
        try:
            asked = lease_manager().chance(self.own.address, manager.course, Offered(share, model))
            found = await asyncio.wait_for(asked, CHANCE_SECONDS)
        except (PoolError, TimeoutError) as error:
            return self.refuse(502, problem_words(error))
        self.finish(json.dumps(asdict(found)))


class HoursHandler(_Handler):
    """The hours of this week."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with them; what the pool does not say is a sentence."""
        from gpukernel.common.errors import PoolError
        from gpukernel.jupyter.hours import own_week

        person = os.environ.get("JUPYTERHUB_USER") or own_name()
        course = os.environ.get("GPUKERNEL_COURSE", "")
        try:
            week = await asyncio.wait_for(own_week(self.own.address, person, course), HOURS_SECONDS)
        except (PoolError, TimeoutError) as error:
            return self.refuse(502, problem_words(error))
        self.finish(json.dumps(asdict(week)))


class SizesHandler(_Handler):
    """The sizes of one's own."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """List a size from now on, and answer with the name of its kernel."""
        manager: Any = self.kernel_spec_manager
        body = self.body()
        try:
            name = manager.add_size(float(body["share"]), str(body.get("model", "")))
        except InvalidSpec as error:
            return self.refuse(400, str(error))
        except (KeyError, TypeError, ValueError):
            return self.refuse(400, SIZE)
        self.set_status(201)
        self.finish(json.dumps({"name": name}))


class KernelHandler(_Handler):
    """The actions on the slice of one kernel of this server."""

    @web.authenticated
    @authorized
    async def post(self, kernel_id: str, what: str) -> None:
        """Release, acquire, cancel, keep or resize; leaving the queue interrupts the cell that waits in it."""
        kernels: Any = self.kernel_manager
        if what == "cancel" and kernel_id in kernels and await lease_manager().waits(kernel_id):
            # Its libraries learn from an interrupt, not from an error, which Numba would keep for good.
            await kernels.interrupt_kernel(kernel_id)
        try:
            await lease_manager().command(kernel_id, what, self.body())
        except SliceUnavailable as error:
            return self.refuse(409, str(error))
        self.set_status(204)
        self.finish()


class LeaseHandler(_Handler):
    """The action on a lease of another server of this person."""

    @web.authenticated
    @authorized
    async def post(self, lease_id: str) -> None:
        """End the lease, where it is this person's own."""
        from gpukernel.common.errors import PoolError

        if lease_id not in {lease.id for lease in await self.own.now()}:
            return self.refuse(404, "You hold no such lease.")
        try:
            await lease_manager().end_lease(self.own.address, lease_id, "released by its holder")
        except PoolError as error:
            return self.refuse(502, problem_words(error))
        self.own.told_at = -float("inf")
        self.set_status(204)
        self.finish()


def keeping_commands(shell: str, folder: str) -> list[str]:
    """Return the command of a terminal whose shell has `folder` in ``PATH`` after its login files; empty for a shell of another language.

    Without a terminal of its own a server starts login shells in terminals, and ``/etc/profile`` sets ``PATH`` anew on many systems.
    """
    if os.path.basename(shell) not in ("bash", "dash", "ksh", "sh", "zsh"):
        return []
    add = 'case ":$PATH:" in *":$1:"*) ;; *) export PATH="$PATH:$1" ;; esac; exec "$0" -i'
    return [shell, "-l", "-c", add, shell, folder]


class Extension(ExtensionApp):
    """The application that jupyter_server loads when it starts."""

    name = "gpukernel"

    def initialize(self, argv: list[str] | None = None) -> None:
        """List the offers, and answer below ``/gpukernel/api``; terminals of this server find this environment's commands."""
        from gpukernel.remoting.environment import with_commands

        os.environ["PATH"] = with_commands(os.environ).get("PATH", "")
        assert self.serverapp is not None
        settings = self.serverapp.terminado_settings
        if "shell_command" not in settings and not sys.stdout.isatty():
            shell = os.environ.get("SHELL") or "sh"
            if command := keeping_commands(shell, os.path.dirname(sys.executable)):
                self.serverapp.terminado_settings = {**settings, "shell_command": command}
        _serve(self.serverapp)

    async def stop_extension(self) -> None:
        """End what would keep the server from stopping, before it shuts its kernels down."""
        assert self.serverapp is not None
        await end_starts(self.serverapp.kernel_manager, lease_manager())


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    return [{"module": "gpukernel.jupyter.server", "app": Extension}]


def _list_offers(app: Any) -> GPUKernelSpecManager:
    """Return the server's KernelSpecManager, or one around it: an extension cannot choose the class before there is one."""
    manager = app.kernel_spec_manager
    if not isinstance(manager, GPUKernelSpecManager):
        manager = GPUKernelSpecManager(parent=app, ordinary=manager)
        app.kernel_spec_manager = manager
        app.kernel_manager.kernel_spec_manager = manager
        app.web_app.settings["kernel_spec_manager"] = manager
    return manager


def _serve(app: Any) -> None:
    from gpukernel.client.pool import resolve_address
    from gpukernel.common.errors import PoolError

    manager = _list_offers(app)
    memory = Path(jupyter_data_dir()) / "gpukernel" / "given.json"
    hand_out(*notebooks_of_course(), Path(app.root_dir), memory)
    names = {*own_names(), os.environ.get("JUPYTERHUB_USER") or own_name()}
    own = _OwnLeases(people=tuple(names))
    try:
        own.address = resolve_address(manager.pool or None)
    except PoolError as error:
        app.log.warning("gpukernel: %s", error)
        return
    web_app = app.web_app
    web_app.settings["gpukernel"] = own
    root = url_path_join(web_app.settings["base_url"], "gpukernel", "api")
    web_app.add_handlers(
        ".*$",
        [
            (url_path_join(root, "status"), StatusHandler),
            (url_path_join(root, "offers"), OffersHandler),
            (url_path_join(root, "chance"), ChanceHandler),
            (url_path_join(root, "hours"), HoursHandler),
            (url_path_join(root, "sizes"), SizesHandler),
            (
                url_path_join(root, r"kernels/([0-9A-Za-z-]+)/(release|acquire|cancel|keep|resize)"),
                KernelHandler,
            ),
            (url_path_join(root, r"leases/([0-9A-Za-z-]+)/release"), LeaseHandler),
        ],
    )
    app.event_logger.register_event_schema(event_schema())

    def tell(status: KernelStatus) -> None:
        app.io_loop.add_callback(lambda: app.event_logger.emit(schema_id=SCHEMA, data=status.event()))

    lease_manager().listen(tell)
