"""`GPUSpawnerMixin`, a spawner whose servers start for a course and hold slices of the pool's GPUs.

What it keeps, whatever the Hub does
------------------------------------
* A server has one token, bound to its person, its name and its course; the pool takes it back when the server stops, is culled, or
  is found dead, and ends with it everything that the server held.
* Everything is keyed by person and server name and may be repeated: a Hub that is killed at any moment loses and doubles nothing.
* What was chosen is checked at every start, against what the pool says then.
* Where the spawner knows why a server ended by itself, its person reads it on the Hub's page until they start another one.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from typing import Any

from jupyterhub.spawner import Spawner
from jupyterhub.utils import maybe_future
from tornado import web
from traitlets import Bool, Dict, Float, Unicode, default

from gpukernel.client.hub import HubClient
from gpukernel.common.address import resolve_address
from gpukernel.common.connection import Connection, connection_to
from gpukernel.common.errors import PoolError, PoolUnreachable
from gpukernel.common.i18n import say, sentence_of
from hub_spawner.choices import Card, ChoiceRefused, Chosen, cards_of, choose
from hub_spawner.form import render_choice
from hub_spawner.i18n import Texts, choose_language, later
from hub_spawner.pool import hub_client, server_name, while_it_is_away

__all__ = ["GPUSpawnerMixin", "with_gpus"]


AWAY = later("The GPU pool does not answer at the moment; try again in a minute.")

_LANGUAGE = "gpukernel_language"
"""An attribute of the Hub's object for a person: spawners come and go, also between a form and the page around it."""


class GPUSpawnerMixin(Spawner):  # type: ignore[misc]
    """A mixin that stands before a spawner: ``class Mine(GPUSpawnerMixin, SomeSpawner)``, or `with_gpus`."""

    pool = Unicode(
        "",
        help="Address of the pool for the Hub, or a connection file; empty: GPUKERNEL_POOL, else the socket in the state directory.",
    ).tag(config=True)
    pool_for_servers = Unicode(
        "", help="Address of the pool for single-user servers, where it is not the Hub's."
    ).tag(config=True)
    pool_token_file = Unicode(
        "",
        help="File with a token of scope service; a pool over the unix socket of the Hub's account needs none.",
    ).tag(config=True)
    environments = Dict(
        per_key_traits={},
        help="""Environments that courses may offer, by name: what each changes of the spawner.

        A value is a dict of the spawner's settings, for example ``{"image": "…"}`` for containers, or
        ``{"prefix": "/opt/envs/pytorch"}``, whose ``bin/jupyterhub-singleuser`` is started then.""",
    ).tag(config=True)
    without_course = Bool(
        False, help="People who are in no course, or choose none, may start a server too; it has no GPUs."
    ).tag(config=True)
    hub_name = Unicode(
        "jupyterhub",
        help="What this Hub's servers are called in the pool: another name for each Hub that shares it.",
    ).tag(config=True)
    pool_patience = Float(
        20.0, help="How long a start waits for a pool that does not answer, in seconds."
    ).tag(config=True)

    _credentials = Connection("")
    _course = ""
    _notebooks: tuple[str, ...] = ()
    _open = True  # as far as this process knows: closing twice does no harm
    gpu_ending = ""
    """A sentence for its person: why their last server ended, where nobody asked for that."""

    @property
    def gpu_texts(self) -> Texts:
        """The words for the Hub's pages about this server, in the language in which its person last saw the choice."""
        return Texts(getattr(self.user, _LANGUAGE, "en"))

    # --- who and where ---

    @property
    def gpu_server(self) -> str:
        """The name of this server in the pool, unique for its person."""
        return server_name(self.hub_name, self.name)

    async def _pool_client(self) -> HubClient:
        return await hub_client(self.pool, self.pool_token_file)

    async def _cards(self) -> list[Card]:
        """Return the person's courses, after telling the pool in which groups they are."""
        client = await self._pool_client()
        person = self.user.name
        await client.set_groups(person, [group.name for group in self.user.groups])
        return await cards_of(client.on_behalf_of(person), person, self.environments)

    # --- the choice ---

    @default("options_form")
    def _the_choice_page(self) -> Any:
        return self._choice_form

    @default("options_from_form")
    def _the_choice_read(self) -> Any:
        return self._choice_from_form

    @staticmethod
    async def _choice_form(spawner: GPUSpawnerMixin) -> str:
        """Return the choice page; empty, so that the server starts at once, where there is nothing to choose."""
        asking = getattr(spawner, "handler", None)  # the request for the page; none where a script asks
        # Without one, a form that was refused is shown again, in the language that it had.
        if asking is not None:
            accepted = asking.request.headers.get("Accept-Language", "")
            setattr(spawner.user, _LANGUAGE, choose_language(None, accepted))
        texts = spawner.gpu_texts
        try:
            cards = await spawner._cards()
        except PoolUnreachable:
            raise web.HTTPError(503, texts.gettext(AWAY)) from None
        except PoolError as error:
            refusal = say("The GPU pool refuses the Hub: %(why)s", why=sentence_of(error))
            raise web.HTTPError(500, texts.of(refusal)) from None
        if not cards and not spawner.without_course:
            sentence = later("You are in no course that uses GPUs; ask your instructor to add you.")
            raise web.HTTPError(403, texts.gettext(sentence))
        options = (len(card.environments) or 1 for card in cards)
        if sum(options) + spawner.without_course <= 1:
            return ""
        last = Chosen.of(spawner.user_options or {})
        console = spawner.hub.base_url.removesuffix("hub/") + "services/gpukernel/"
        return render_choice(
            cards,
            last,
            without_course=spawner.without_course,
            console=console,
            language=texts.language,
        )

    @staticmethod
    def _choice_from_form(form: dict[str, list[str]]) -> dict[str, str]:
        """Read the form, whose fields are ``course`` and, for each course, ``environment-COURSE``."""
        course = (form.get("course") or [""])[0]
        environment = (form.get(f"environment-{course}") or form.get("environment") or [""])[0]
        return Chosen(course, environment).plain()

    # --- the life of a server ---

    async def start(self) -> Any:
        """Open the server in the pool, then start it as the spawner does."""
        try:
            cards = await while_it_is_away(self._cards, self.pool_patience)
            chosen, card = choose(cards, self._asked(), without_course=self._may_go_without())
            self._apply_choice(chosen, card)
            if chosen.course and self.leases_from_pool():
                client = await self._pool_client()
                self._credentials = await client.open_connection(
                    self.user.name, self.gpu_server, chosen.course, inside=self.leases_inside_claim()
                )
        except ChoiceRefused as error:
            self._forget_choice()
            raise refused(403, "choice", sentence_of(error)) from None
        except PoolUnreachable:
            raise refused(503, "pool_away", AWAY) from None
        except PoolError as error:
            raise refused(403, "pool_refused", sentence_of(error)) from None
        self._open = True
        try:
            started = await maybe_future(super().start())
            self.gpu_ending = ""
            return started
        except BaseException:
            await self._close("its server could not be started")
            raise

    def _forget_choice(self) -> None:
        """Forget the last choice, with which the Hub would start the server again after its person has left that course."""
        self.user_options = dict[str, Any]()
        if self.orm_spawner is not None:
            self.orm_spawner.user_options = {}

    def _may_go_without(self) -> bool:
        return bool(self.without_course)

    def leases_from_pool(self) -> bool:
        """Return whether the server's kernels ask the pool for slices, as the environment that was chosen has it."""
        return True

    def leases_inside_claim(self) -> bool:
        """Return whether its kernels lease inside of a claim of its pod, and nothing beside that."""
        return False

    def _asked(self) -> Chosen:
        return Chosen.of(self.user_options or {})

    def _apply_choice(self, chosen: Chosen, card: Card | None) -> None:
        self.user_options = self._options_kept(chosen)
        self._course, self._credentials = chosen.course, Connection("")
        self._notebooks = card.course.profile.notebooks if card else ()
        self._use_environment(chosen.environment)

    def _options_kept(self, chosen: Chosen) -> dict[str, Any]:
        # Only what was checked: some spawners put these into scripts.
        return chosen.plain()

    def _use_environment(self, name: str) -> None:
        """Set what the environment changes, and undo the changes of another one."""
        for trait, value in self.__dict__.pop("_before_environment", {}).items():
            setattr(self, trait, value)
        changes = dict(self.environments.get(name, {}))
        if prefix := changes.pop("prefix", None):
            changes["cmd"] = [os.path.join(prefix, "bin", "jupyterhub-singleuser")]
        unknown = [trait for trait in changes if not self.has_trait(trait)]
        if unknown:
            raise ChoiceRefused(
                say(
                    "Environment %(name)s sets %(setting)s, which %(spawner)s does not know; tell the administrator.",
                    name=name,
                    setting=unknown[0],
                    spawner=type(self).__name__,
                )
            )
        self._before_environment = {trait: getattr(self, trait) for trait in changes}
        for trait, value in changes.items():
            setattr(self, trait, value)

    def get_env(self) -> dict[str, str]:
        """Return the spawner's environment with the pool's address, the server's token, and the course."""
        environment: dict[str, str] = super().get_env()
        environment |= self.gpu_environment()
        return environment

    def connection_of_servers(self) -> Connection:
        """Return the connection by which servers reach the pool: with their own token and certificate, never with the Hub's."""
        where = connection_to(resolve_address(self.pool_for_servers or self.pool or None), "none")
        own = self._credentials
        return where.each(
            lambda way: replace(way, token=own.token, certificate=own.certificate if way.encrypted else "")
        )

    def gpu_environment(self) -> dict[str, str]:
        """Return the variables that the single-user server asks for slices with; token and certificate are in its
        environment only.
        """
        environment = {"GPUKERNEL_COURSE": self._course} if self._course else {}
        if self._notebooks:
            environment["GPUKERNEL_NOTEBOOKS"] = os.pathsep.join(self._notebooks)
        if not self._credentials.token:
            return environment
        pool = self.connection_of_servers()
        environment |= {
            "GPUKERNEL_POOL": ",".join(pool.addresses),
            "GPUKERNEL_POOL_TOKEN": pool.token,
        }
        if pool.authority:
            environment["GPUKERNEL_POOL_CA"] = pool.authority
        if pool.certificate:
            environment["GPUKERNEL_POOL_CERTIFICATE"] = pool.certificate
        return environment

    async def stop(self, now: bool = False) -> Any:
        """Stop the server, and end what it held."""
        try:
            return await maybe_future(super().stop(now=now))
        finally:
            await self._close("its server was stopped")

    async def poll(self) -> Any:
        """Poll the spawner; a server that is found dead holds nothing any more."""
        status = await maybe_future(super().poll())
        if status is not None and self._open:
            self.gpu_ending = await self.why_ended()
            await self._close(f"its server ended{f': {self.gpu_ending}' if self.gpu_ending else ''}")
        return status

    async def why_ended(self) -> str:
        """Return why a server that was found dead has ended, without a full stop; empty where that is not known, or not worth a word."""
        return ""

    def get_state(self) -> dict[str, Any]:
        """Return the spawner's state, with the sentence about the last server, which outlives that."""
        state: dict[str, Any] = super().get_state()
        return state | ({"gpu_ending": self.gpu_ending} if self.gpu_ending else {})

    def load_state(self, state: dict[str, Any]) -> None:
        """Load what `get_state` returned."""
        super().load_state(state)
        self.gpu_ending = str(state.get("gpu_ending", ""))

    async def _close(self, reason: str) -> None:
        """Close the server in the pool.  Where that cannot be reached, the reconciler finds it later, or the leases expire."""
        self._credentials = Connection("")
        try:
            client = await self._pool_client()
            await client.close_server(self.user.name, self.gpu_server, reason)
            self._open = False
        except PoolError as error:
            self.log.warning("%s: the pool was not told that %s: %s", self._log_name, reason, error)


def refused(status: int, reason: str, sentence: str) -> Exception:
    """Return the error that the Hub shows as this sentence, on its pages and in its API; `reason` is for its metrics."""
    try:
        from jupyterhub.spawner import SpawnException

        error: Exception = SpawnException(sentence, reason=reason, status_code=status)
    except ImportError:  # before JupyterHub 6
        error = web.HTTPError(status, sentence)
    error.jupyterhub_message = sentence  # type: ignore[attr-defined]  # what the page after a failed start shows, in all versions
    return error


READY = {
    ("batchspawner", "SlurmSpawner"): "hub_spawner.spawners.batch",
    ("dockerspawner", "DockerSpawner"): "hub_spawner.spawners.docker",
    ("kubespawner", "KubeSpawner"): "hub_spawner.spawners.kube",
    ("jupyterhub", "SimpleLocalProcessSpawner"): "hub_spawner.spawners.local",
    ("jupyterhub", "LocalProcessSpawner"): "hub_spawner.spawners.local",
    ("systemdspawner", "SystemdSpawner"): "hub_spawner.spawners.systemd",
}
"""The classes of spawners that need more than the mixin, by package and name; each is imported only with its package."""


def with_gpus(spawner: type[Spawner]) -> type[GPUSpawnerMixin]:
    """Return a class that adds the mixin to `spawner`; for the usual spawners, and classes made of them, the one in
    `hub_spawner.spawners`.
    """
    if issubclass(spawner, GPUSpawnerMixin):
        return spawner
    for base in spawner.__mro__:
        if base.__module__.partition(".")[0] == "batchspawner":
            import_module("hub_spawner.spawners.batch_port").take_ports_only()
        module = READY.get((base.__module__.partition(".")[0], base.__name__))
        if module is not None:
            ready: type[GPUSpawnerMixin] = getattr(import_module(module), f"GPU{base.__name__}")
            if spawner is base:
                return ready
            return type(f"GPU{spawner.__name__}", (ready, spawner), {"__doc__": spawner.__doc__})
    return type(f"GPU{spawner.__name__}", (GPUSpawnerMixin, spawner), {"__doc__": spawner.__doc__})
