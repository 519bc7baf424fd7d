"""Identity: the callers that the pool knows, and their permissions.

A token identifies the caller.  A call over the unix socket without a token is identified by the account at the other end, which
the kernel tells (``SO_PEERCRED``).  The pool believes no caller's own statement of who they are, except from callers who may
speak for others: the pool's own account, root, and tokens with the scope ``service`` or ``admin``.  They may also ask on behalf
of a person, and then have that person's permissions.

At an address where client certificates are required, a token counts only on a connection that has shown the certificate made for it.
A pool that knows a JupyterHub takes the Hub's own tokens too: each for its person, a server's for the course for which that was opened, and nothing more.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from gpukernel.common.account import account_name
from gpukernel.common.errors import Refused
from gpukernel.common.model import ENGINES, Holder, SliceRequest
from gpukernel.common.policy import Policy
from gpukernel.pool.auth.hub_tokens import HubTokens
from gpukernel.pool.auth.open_calls import OpenCalls
from gpukernel.pool.auth.tokens import OF_SERVERS, token_hash
from gpukernel.pool.store.connection.compiled_sql import CompiledSql
from gpukernel.pool.store.schema import tokens
from gpukernel.pool.store.store import Store

__all__ = [
    "CERTIFIED",
    "NOBODY",
    "REMOTE",
    "Caller",
    "Identity",
]

NOBODY = -1
"""The account of those who came by a socket that asks for none; they need a token."""

REMOTE = -2
"""The account of those who came over TCP: none that this machine knows; they need a token, and a certificate where the pool asks for it."""

CERTIFIED = -3
"""The same, at an address that asks for client certificates."""

_TOKEN = CompiledSql(sa.select(tokens).where(tokens.c.id == sa.bindparam("id")))  # with every call over TCP

_NAMED_SECONDS = 300.0
_AT_ONCE = 500  # of SQLite's bound values


@dataclass(frozen=True)
class Caller:
    """An authenticated caller.

    Attributes
    ----------
    name
        The person, or what a token is for.
    scope
        ``person``: their own leases, and those of courses they instruct.  ``service``: leases of anybody (a JupyterHub).
        ``agent``: a GPU server.  ``supply``: who starts GPU servers.  ``admin``: everything.  The name of an engine (`gpukernel.common.model.ENGINES`): what it has placed.
    uid
        The account of this machine at the other end; None where the call came over TCP.
    course, server
        What the token is bound to: the leases that are asked for with it are for this course and this server of the person.
    teaches, through
        Courses that the person instructs because somebody says so who may speak for others, for this one call; and who that is.
    tokens, hub_token
        The credentials that admitted the caller, for calls that stay open: ids of the pool's tokens, and the Hub's token itself.
    inside
        The token leases inside of ceilings only.
    credential
        What a GPU server enrols with: ``account UID``, ``token ID``, or the name of the file with one of the pool's own tokens.
    """

    name: str
    scope: str
    uid: int | None = None
    course: str = ""
    server: str = ""
    teaches: frozenset[str] = frozenset()
    through: str = ""
    tokens: frozenset[str] = frozenset()
    hub_token: str = field(default="", repr=False)
    credential: str = ""
    inside: bool = False

    @property
    def token(self) -> str:
        """The id of the pool's token that admitted the caller; empty for an account, and for the pool's own files."""
        return min(self.tokens, default="")

    @property
    def role(self) -> str:
        """The role by which `gpukernel.pool.auth.permissions` decides: ``person``, ``server``, ``service``, ``agent``, ``engine``,
        ``supply`` or ``administrator``.
        """
        if self.scope == "admin":
            return "administrator"
        if self.engine:
            return "engine"
        return "server" if self.scope == "person" and self.server else self.scope

    @property
    def engine(self) -> str:
        """Return the engine that the caller is; empty for all others."""
        return self.scope if self.scope in ENGINES else ""

    @property
    def is_person(self) -> bool:
        """Return whether the caller is a person, or a server of theirs: the name of others is only what a token is for."""
        return self.scope == "person"

    @property
    def administers(self) -> bool:
        """Return whether the caller administers the pool."""
        return self.scope == "admin"

    @property
    def speaks_for_others(self) -> bool:
        """Return whether the caller may ask on behalf of others."""
        return self.scope in ("service", "admin")

    def is_bound_to(self, course: str) -> bool:
        """Return whether the caller may reach a course's leases at all: a server's token knows those of its own course only."""
        return self.course in ("", course)

    def holder(self, claimed: Holder) -> Holder:
        """Return the holder of what this caller asks for."""
        if self.speaks_for_others:
            return claimed
        return replace(
            claimed,
            person=self.name,
            course=self.course or claimed.course,
            server=self.server or claimed.server,
        )

    def on_behalf(self, person: str, teaches: frozenset[str] = frozenset()) -> Caller | None:
        """Return this person as a caller, as far as the caller may speak for them; else None."""
        if not self.speaks_for_others:
            return None
        return Caller(person, "person", teaches=teaches, through=self.name, tokens=self.tokens)

    def role_in(self, course: str, policy: Policy) -> str:
        """Return the role in a course, as `Policy.role_in` does, with what others vouch for; empty for those who are no person."""
        if not (self.is_person and self.is_bound_to(course)):
            return ""
        if course in self.teaches and course in policy.courses:
            return "instructor"
        return policy.role_in(course, self.name)

    def instructs(self, course: str, policy: Policy) -> bool:
        """Return whether the caller instructs a course."""
        return self.role_in(course, policy) == "instructor"

    def signature(self, course: str, policy: Policy) -> str:
        """Return the caller's name for the audit table, with who vouched for them where nothing else makes them an instructor."""
        vouched = course in self.teaches and not policy.instructs(self.name, course)
        return f"{self.name} (instructor by {self.through})" if vouched else self.name

    def request(self, claimed: SliceRequest) -> SliceRequest:
        """Return what this caller asks for: programs in direct mode run as the account that asks, where that is known."""
        return claimed if self.uid is None else replace(claimed, user=self.uid)


class Identity:
    """The authentication of callers by what their calls bring.

    Parameters
    ----------
    files
        The pool's own tokens, which lie in files of its state directory, by scope.
    require_certificates
        Who comes over TCP shows the certificate of the token that they use, at one address at least (`CERTIFIED`).
    hub
        The JupyterHub whose tokens count too.
    """

    def __init__(
        self,
        store: Store,
        files: Mapping[str, str] | None = None,
        *,
        require_certificates: bool = False,
        hub: HubTokens | None = None,
    ) -> None:
        self._store = store
        self._hub = hub
        self._files = dict(files or {})
        self._require_certificates = require_certificates
        self._accounts: dict[str, int] = {}  # what gRPC calls the peer → account
        self._names: dict[
            int, tuple[str, float]
        ] = {}  # and since when: a directory service may answer slowly
        self.open_calls = OpenCalls(self._those_living, self._person_of_hub)

    def connected(self, peer: str, uid: int) -> None:
        """Record the account at the other end of a connection."""
        self._accounts[peer] = uid

    def disconnected(self, peer: str) -> None:
        """Forget a connection."""
        self._accounts.pop(peer, None)

    def caller(self, peer: str, authorization: str, now: float, certificate: str = "") -> Caller | None:
        """Return who is at the other end; None for a stranger.

        Parameters
        ----------
        peer
            What gRPC calls the other end.
        authorization
            The header of that name, empty where there was none.
        certificate
            The common name in the certificate that the connection showed, which was checked; empty where it showed none.

        Raises
        ------
        Refused
            With a sentence, where the token is good, but this connection may not use it.
        """
        uid = self._accounts.get(peer)
        if peer.startswith("unix") and uid is None:
            return None
        here = uid not in (
            None,
            REMOTE,
            CERTIFIED,
        )  # on the pool's machine, where no certificate can be shown
        unasked = uid == REMOTE  # at an address where none is asked for
        uid = None if uid in (NOBODY, REMOTE, CERTIFIED) else uid
        if not authorization:
            if uid is None:
                return None
            name = self._name_of(uid, now)
            scope = "admin" if uid in (0, os.geteuid()) else "person"
            return Caller(name, scope, uid, credential=f"account {uid}")
        kind, _, token = authorization.partition(" ")
        if kind != "Bearer" or not token:
            return None
        for scope, known in self._files.items():
            if hmac.compare_digest(token.encode(), known.encode()):
                self._check_certificate(here or unasked, certificate)
                return Caller(f"{scope} token", scope, credential=f"{scope}.token")
        row = self._known_token(token, now)
        if row is None:
            return None
        # A server there cannot show what it has; others could, and do so over TCP.
        spared = here and (bool(row.server) or row.certificate_expires is None)
        self._check_certificate(spared or unasked, certificate, row.id)
        return Caller(
            row.person or row.name,
            row.scope,
            uid,
            row.course,
            row.server,
            tokens=frozenset({row.id}),
            credential=f"token {row.id}",
            inside=bool(row.inside),
        )

    def _name_of(self, uid: int, now: float) -> str:
        """Return the name of an account, which is asked again after some minutes: its number may be somebody else's then."""
        name, since = self._names.get(uid, ("", 0.0))
        if not name or abs(now - since) > _NAMED_SECONDS:
            name = account_name(uid)
            self._names[uid] = name, now
        return name

    async def hub_caller(
        self, peer: str, authorization: str, now: float, certificate: str = ""
    ) -> Caller | None:
        """Return the caller as `caller` does, where the token may be JupyterHub's.

        Raises
        ------
        HubAway
            With a sentence, where the Hub does not say whose it is.
        """
        kind, _, token = authorization.partition(" ")
        uid = self._accounts.get(peer)
        if self._hub is None or kind != "Bearer" or (peer.startswith("unix") and uid is None):
            return None
        owner = await self._hub.owner(token)
        if not (person := owner.person):
            return None
        shown: frozenset[str] = frozenset()
        if self._require_certificates and uid in (None, CERTIFIED):
            row = self._living(certificate, now)
            if row is None or row.person != person:
                raise Refused(
                    "certificate",
                    f"The certificate that this connection shows is not one of {person}'s, whose JupyterHub token this is.",
                )
            shown = frozenset({certificate})
        account = None if uid in (NOBODY, REMOTE, CERTIFIED) else uid
        caller = Caller(person, "person", account, tokens=shown, hub_token=token)
        return caller if owner.server is None else self._as_server(caller, owner.server)

    def _as_server(self, caller: Caller, name: str) -> Caller:
        """Return the caller as the server of that name at the Hub, with the course for which it was opened here.

        Raises
        ------
        Refused
            ``closed``, with a sentence, where it was opened, and is closed or an administrator has revoked its token.
        """
        opened = self._opened(caller.name, name, tokens.c.revoked.is_(None))
        if opened is not None:
            course, inside = opened.course, bool(opened.inside)
            admitted = caller.tokens | {opened.id}
            return replace(caller, course=course, server=opened.server, inside=inside, tokens=admitted)
        if self._opened(caller.name, name, tokens.c.revoked.is_not(None)) is not None:
            raise Refused(
                "closed",
                f"The {f'server “{name}”' if name else 'default server'} of {caller.name} is closed in this pool, or its token was revoked, "
                "and JupyterHub's token of it counts no more; start the server again, for a course.",
            )
        return caller

    def _opened(self, person: str, name: str, condition: sa.ColumnElement[bool]) -> Any:
        """Return the newest token of a person's server of that name at the Hub; None where there is none."""
        query = (
            sa.select(tokens.c.id, tokens.c.course, tokens.c.server, tokens.c.inside)
            .where(tokens.c.person == person, OF_SERVERS, condition)
            .order_by(tokens.c.created.desc())
        )
        with self._store.reader.connect() as db:
            return next((row for row in db.execute(query) if row.server.partition("/")[2] == name), None)

    def _check_certificate(self, spared: bool, shown: str, needed: str = "") -> None:
        if self._require_certificates and not spared and (not needed or shown != needed):
            raise Refused(
                "certificate",
                "The certificate that this connection shows was not made for this token; use the connection file that holds both."
                if needed
                else "This token has no certificate, and the pool asks for one; make a connection file with “gpukernel token create --file”.",
            )

    def _known_token(self, token: str, now: float) -> Any:
        identifier, _, _ = token.partition(".")
        if not identifier or len(token) > 200 or "\0" in token:
            return None
        row = self._living(identifier, now)
        return row if row is not None and hmac.compare_digest(row.hash, token_hash(token)) else None

    def _those_living(self, identifiers: Collection[str], now: float) -> set[str]:
        """Return those of the tokens that count at `now`."""
        found: set[str] = set()
        wanted = sorted(identifiers)
        with self._store.reader.connect() as db:
            for first in range(0, len(wanted), _AT_ONCE):
                query = sa.select(tokens.c.id).where(
                    tokens.c.id.in_(wanted[first : first + _AT_ONCE]),
                    tokens.c.revoked.is_(None),
                    sa.or_(tokens.c.expires.is_(None), tokens.c.expires > now),
                )
                found.update(db.execute(query).scalars())
        return found

    async def _person_of_hub(self, token: str) -> str:
        return await self._hub.person(token) if self._hub is not None else ""

    def _living(self, identifier: str, now: float) -> Any:
        with self._store.transaction() as db:
            row = _TOKEN.first(db, id=identifier)
        if row is None or row.revoked is not None or (row.expires is not None and row.expires <= now):
            return None
        return row
