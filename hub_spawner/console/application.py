"""The service's process: the addresses of its pages, and the server that listens for them."""

from __future__ import annotations

import asyncio
import datetime
import functools
import logging
import os
import secrets
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jupyterhub.services.auth import HubOAuth, HubOAuthCallbackHandler
from tornado.httpserver import HTTPServer
from tornado.web import Application, HTTPError, RequestHandler, StaticFileHandler

from gpukernel.common.address import resolve_address
from hub_spawner.console.admin import admin_handlers
from hub_spawner.console.api import api_handlers
from hub_spawner.console.base import BELIEVED_SECONDS, Page, environments
from hub_spawner.console.courses import CoursePage, Courses, Language, LivePart, Move
from hub_spawner.console.history import UseCsv, UsePart
from hub_spawner.console.leases import LeasePage
from hub_spawner.console.own import MyGpu
from hub_spawner.console.quotas import OffersForm, QuotaForm
from hub_spawner.console.reservations import NewReservation, RemoveReservation, ReservationsPart
from hub_spawner.i18n import Texts, later
from hub_spawner.reconciler import Reconciler

__all__ = ["main", "make_application", "make_server"]

log = logging.getLogger(__name__)

LEFT_BEHIND_SECONDS = 10.0
LARGEST_BODY = 5 * 2**20  # a courses.yaml
BODY_SECONDS = 30.0  # in which a form arrives, or its connection goes


class Nothing(Page):
    """The page of every other address."""

    async def prepare(self) -> None:
        """Answer that there is no such page."""
        await super().prepare()
        if not self._finished:
            raise HTTPError(404, later("There is no such page."))


class Ready(Page):
    """The page for monitoring: it says that the service runs, and nothing else."""

    async def prepare(self) -> None:
        """Ask nobody who they are."""

    def get(self) -> None:
        """Answer."""
        self.finish("ready\n")


def _log_request(handler: RequestHandler) -> None:
    """Log the path without its query: sign-in codes stand there."""
    request = handler.request
    level = (
        logging.WARNING
        if handler.get_status() >= 500
        else logging.DEBUG
        if request.path.endswith("/live")
        else logging.INFO
    )
    log.log(
        level,
        "%d %s %s %.0f ms",
        handler.get_status(),
        request.method,
        request.path,
        1000 * request.request_time(),
    )


def _utc(when: float) -> str:
    return datetime.datetime.fromtimestamp(when, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _hours(texts: Texts, value: float) -> str:
    """Return hours as tables show them, in minutes or seconds where they would round to nothing."""
    if value >= 0.1:
        return f"{value:.2f}"
    if value >= 1 / 60:
        return texts.gettext(later("%(n)s min")) % {"n": f"{value * 60:.1f}"}
    if value * 3600 >= 0.5:
        return texts.gettext(later("%(n)s s")) % {"n": f"{value * 3600:.0f}"}
    return "0"


def make_application(prefix: str, pool: str, token_file: str = "") -> Application:
    """Return the pages below `prefix` (with a slash at its end) for the pool at an address; the file holds this
    service's token there.
    """
    course, lease = rf"{prefix}course/([^/]+)", r"([0-9a-f]{1,64})"
    templates = environments()
    for language, environment in templates.items():
        environment.filters |= {"utc": _utc, "hours": functools.partial(_hours, Texts(language))}
    handlers: list[Any] = [
        (prefix, Courses),
        (rf"{prefix}my", MyGpu),
        (rf"{prefix}ready", Ready),
        (rf"{prefix}language", Language),
        (course, CoursePage),
        (rf"{course}/live", LivePart),
        (rf"{course}/lease/{lease}/(end|resize|message)", LeasePage),
        (rf"{course}/queue", Move),
        (rf"{course}/quota", QuotaForm),
        (rf"{course}/offers", OffersForm),
        (rf"{course}/reservations", ReservationsPart),
        (rf"{course}/reservation", NewReservation),
        (rf"{course}/reservation/([^/]+)/remove", RemoveReservation),
        (rf"{course}/use", UsePart),
        (rf"{course}/use\.csv", UseCsv),
        *admin_handlers(prefix),
        *api_handlers(prefix),
        (rf"{prefix}oauth_callback", HubOAuthCallbackHandler),
        (rf"{prefix}static/(.*)", StaticFileHandler, {"path": str(Path(__file__).parent / "static")}),
    ]
    return Application(
        handlers,
        default_handler_class=Nothing,
        prefix=prefix,
        pool=pool,
        token_file=token_file,
        templates=templates,
        told_groups={},
        # Signs the cookies of this process; another one has people sign in again, which the Hub does by itself.
        cookie_secret=secrets.token_bytes(32),
        compress_response=True,
        log_function=_log_request,
    )


def make_server(application: Application) -> HTTPServer:
    """Return the server of the pages, with bounds of what is read before it is known who asks."""
    return HTTPServer(
        application,
        xheaders=True,
        max_body_size=LARGEST_BODY,
        max_buffer_size=LARGEST_BODY,
        body_timeout=BODY_SECONDS,
    )


async def _listen(server: HTTPServer, port: int, address: str) -> None:
    """Listen.  The port may still be taken for a moment, by the console of a Hub that was killed."""
    end = asyncio.get_running_loop().time() + LEFT_BEHIND_SECONDS
    while True:
        try:
            return server.listen(port, address)
        except OSError:
            if asyncio.get_running_loop().time() > end:
                raise
            await asyncio.sleep(0.2)


async def _end_with_the_hub(stop: asyncio.Event) -> None:
    """Stop when the Hub is gone: one that is killed tells its services nothing, and the next one starts its own."""
    hub = os.getppid()
    while os.getppid() == hub:
        await asyncio.sleep(0.5)
    stop.set()


async def serve() -> None:
    """Listen where the Hub says, until told to stop."""
    prefix = os.environ["JUPYTERHUB_SERVICE_PREFIX"]
    where = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    HubOAuth.instance(cache_max_age=BELIEVED_SECONDS)
    application = make_application(prefix, resolve_address(), os.environ.get("GPUKERNEL_POOL_TOKEN_FILE", ""))
    server = make_server(application)
    address = os.environ.get("GPUKERNEL_CONSOLE_IP") or where.hostname or "127.0.0.1"
    await _listen(server, where.port or 80, address)
    log.info("the console listens on %s", where.geturl())
    reconciler = asyncio.create_task(Reconciler.of(os.environ).run())
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    orphaned = asyncio.create_task(_end_with_the_hub(stop))
    await stop.wait()
    orphaned.cancel()
    server.stop()
    reconciler.cancel()


def main() -> None:
    """Run the service, as the Hub starts it."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    if "JUPYTERHUB_SERVICE_PREFIX" not in os.environ or "JUPYTERHUB_SERVICE_URL" not in os.environ:
        raise SystemExit(
            "JupyterHub starts this program as a service; see docs/console.md. "
            "JUPYTERHUB_SERVICE_PREFIX and JUPYTERHUB_SERVICE_URL are not set."
        )
    asyncio.run(serve())
