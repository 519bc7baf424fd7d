"""JupyterHub's tokens: the Hub is asked whose a token is, with that very token.

Guarantees
----------
* A token that the Hub takes back counts for `YES_SECONDS` more at most; what the Hub does not know is asked again after `NO_SECONDS`.
* Tokens are in no log and are kept as hashes only.  They are sent nowhere but to the address that the administrator has named, not
  through proxies and not after redirections, and in plain text only within this machine.
* Tokens that the Hub knew lately have places and threads of their own: who brings made-up ones keeps nobody from being known again.
* “The Hub does not know it” and “the Hub is away” are two answers: the second one says nothing about the token.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import ipaddress
import json
import logging
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gpukernel.common.errors import PoolError

__all__ = ["HubAway", "HubTokens", "Owner"]

log = logging.getLogger(__name__)

YES_SECONDS = 60.0
NO_SECONDS = 5.0
ASK_SECONDS = 5.0
MOST_AT_ONCE = 100
_THREADS = 8
_MOST_KEPT = 20_000
_LONGEST_ANSWER = 2**20
_TOKEN = re.compile(r"[\x21-\x7e]{8,512}")
_OUR_OWN = re.compile(r"gpk[0-9a-f]{10}\.")


class HubAway(PoolError):
    """The Hub gives no answer that says anything about a token."""


@dataclass(frozen=True)
class Owner:
    """The user to whom a token of the Hub belongs; `person` is empty where it belongs to none.

    `server` is the name of the single-user server that has the token in its environment, empty for the default server; None where the
    token is no server's.
    """

    person: str = ""
    server: str | None = None


_NOBODY = Owner()


class _Lookups:
    """The questions that are under way at one time, and the threads that ask them."""

    def __init__(self) -> None:
        self.asking: dict[bytes, asyncio.Task[Owner]] = {}
        self.threads = ThreadPoolExecutor(_THREADS, "hub-tokens")


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow no redirection: a token goes to the Hub and nowhere else."""
        return None


class HubTokens:
    """A client of one JupyterHub that caches its answers for a short while; used by one event loop.

    Parameters
    ----------
    api
        The Hub's REST API, such as ``http://127.0.0.1:8081/hub/api``.
    clock
        Seconds that never jump.

    Raises
    ------
    PoolError
        When `api` is no such address, or tokens would pass a network in plain text.
    """

    def __init__(self, api: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.api = _checked(api)
        self._clock = clock
        self._known: dict[
            bytes, tuple[float, Owner]
        ] = {}  # hash → until when, and who; also those that have to be asked again
        self._unknown: dict[bytes, float] = {}
        self._admitted, self._strangers = _Lookups(), _Lookups()
        self._ask = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirection).open
        self._away = ""

    def close(self) -> None:
        """Stop asking; questions that are under way are not waited for."""
        for places in (self._admitted, self._strangers):
            places.threads.shutdown(wait=False, cancel_futures=True)

    async def person(self, token: str) -> str:
        """Return the name of the user to whom the Hub gave this token; see `owner`."""
        return (await self.owner(token)).person

    async def owner(self, token: str) -> Owner:
        """Return whose token this is; nobody's where the Hub knows none, or the token is a service's.

        Raises
        ------
        HubAway
            With a sentence, where the Hub does not say.
        """
        if not _TOKEN.fullmatch(token) or _OUR_OWN.match(token):
            return _NOBODY
        key, now = hashlib.sha256(token.encode()).digest(), self._clock()
        until, who = self._known.get(key, (now, _NOBODY))
        if now < until:
            return who
        if now < self._unknown.get(key, now):
            return _NOBODY
        places = self._admitted if key in self._known else self._strangers
        if key not in places.asking:
            if len(places.asking) >= MOST_AT_ONCE:
                raise HubAway("Too many tokens are being looked up at JupyterHub; try again in a minute.")
            task = places.asking[key] = asyncio.create_task(self._look_up(key, token, places.threads))
            task.add_done_callback(lambda _: places.asking.pop(key, None))
        # Who gives up does not end it for the others that ask the same.
        return await asyncio.shield(places.asking[key])

    async def _look_up(self, key: bytes, token: str, threads: ThreadPoolExecutor) -> Owner:
        asked = self._clock()
        try:
            work = asyncio.get_running_loop().run_in_executor(threads, self._question, token)
            async with asyncio.timeout(ASK_SECONDS):
                who = await work
        except (TimeoutError, HubAway) as error:
            why = str(error) or f"no answer within {ASK_SECONDS:g} s"
            if why != self._away:
                self._away = why
                log.warning("JupyterHub does not say whose tokens are: %s", why)
            raise HubAway(
                f"JupyterHub does not answer at {self.api} ({why}), so the pool cannot tell whose token this is; "
                "try again in a minute."
            ) from None
        self._away = ""
        self._known.pop(key, None)
        for kept in (self._known, self._unknown):
            if len(kept) >= _MOST_KEPT:
                kept.clear()
        if who.person:
            self._known[key] = (asked + YES_SECONDS, who)
        else:
            self._unknown[key] = asked + NO_SECONDS
        return who

    def _question(self, token: str) -> Owner:
        """Ask the Hub, in a thread, since it may take its time; return its answer."""
        request = urllib.request.Request(f"{self.api}/user", headers={"Authorization": f"token {token}"})
        try:
            with self._ask(request, timeout=ASK_SECONDS) as answer:
                found = json.loads(answer.read(_LONGEST_ANSWER))
            name, kind = found["name"], found["kind"]
            access = [scope for scope in found["scopes"] if scope.startswith("access:servers")]
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (401, 403):
                return _NOBODY
            raise HubAway(f"HTTP status {error.code}") from None
        except urllib.error.URLError as error:
            reason = error.reason
            raise HubAway((reason.strerror if isinstance(reason, OSError) else None) or str(reason)) from None
        except (OSError, http.client.HTTPException) as error:
            raise HubAway(str(error) or type(error).__name__) from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise HubAway("that is no JupyterHub's API") from None
        # A token that may not open its person's servers was given for less, to a service that they signed in to.
        if not access:
            return _NOBODY
        if kind != "user" or not isinstance(name, str) or not 1 <= len(name) <= 256 or not name.isprintable():
            return _NOBODY
        return Owner(name, _only_server(name, access))


def _only_server(person: str, access: Collection[str]) -> str | None:
    """Return the name of the one server of the person that these scopes open; None where they open others or more."""
    own = f"access:servers!server={person}/"
    (only, *others) = access
    return only.removeprefix(own) if not others and only.startswith(own) else None


def _checked(api: str) -> str:
    try:
        parts = urllib.parse.urlsplit(api.rstrip("/"))
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urllib.parse.urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.query or parts.fragment:
        raise PoolError(
            f"“{api[:200]}” is no address of a JupyterHub's API; write it as https://HOST/hub/api or http://127.0.0.1:8081/hub/api."
        )
    if parts.scheme == "http" and not _loopback(host):
        raise PoolError(
            f"Tokens would pass the network in plain text to {api[:200]}; use https://, or http:// on the Hub's own machine."
        )
    return parts.geturl()


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
