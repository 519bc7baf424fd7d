"""Tokens: made, listed, renewed and revoked.  The pool keeps a hash of each, never the token.

Guarantees
----------
* A token ends, unless an administrator said that it has no end; the pool's setting says when where nobody does.
* Whoever renews their token, before it ends, has it for as long again as it was made for.  It stays the same text, so that a GPU server
  or a Hub that is killed meanwhile has one that counts.  Those of persons and of single-user servers are not renewed by their holders.
* What is revoked stays revoked, and makes no others meanwhile.  Those that were made with it before are revoked where whoever revokes it says so.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from gpukernel.common.errors import Refused
from gpukernel.common.model import ENGINES
from gpukernel.pool.store.policy import note
from gpukernel.pool.store.schema import tokens
from gpukernel.pool.store.store import Store

__all__ = [
    "OF_SERVERS",
    "SCOPES",
    "VALID_SECONDS",
    "Certify",
    "Token",
    "create_token",
    "list_tokens",
    "renew_token",
    "revoke_token",
    "show_token",
    "token_hash",
    "warn_of_ends",
    "write_token",
]

log = logging.getLogger(__name__)

DAY = 86400.0
VALID_SECONDS = 365 * DAY
"""Seconds for which a token is valid where neither its administrator nor the pool's says."""

WARN_SECONDS = 14 * DAY
"""The pool's log warns of tokens that end within this time, or within a tenth of the time for which they were made."""

SCOPES = ("person", "service", "agent", "admin", "supply", *ENGINES)
"""The scopes of tokens; an engine's is its name, and opens what that engine decides over."""

OF_SERVERS = tokens.c.server != sa.literal("", literal_execute=True)
"""Tokens of single-user servers; as it stands in the indices, so that they are used for it."""

Certify = Callable[[str, str, float, float], tuple[str, float]]
"""Makes the certificate of a token, from its id, what it is for, when it ends (0: never) and the time; gives PEM and the certificate's end."""


@dataclass(frozen=True)
class Token:
    """A token without its secret; times in seconds since the epoch, 0 where there is none."""

    id: str
    name: str
    person: str
    scope: str
    created: float
    expires: float = 0.0
    revoked: float = 0.0
    certificate_expires: float = 0.0
    renewed: float = 0.0
    course: str = ""
    server: str = ""
    made_with: str = ""

    @property
    def span(self) -> float:
        """The seconds for which it was made or renewed; 0 where it has no end."""
        return self.expires - max(self.created, self.renewed) if self.expires else 0.0


def token_hash(token: str) -> str:
    """Return the hash that the pool keeps of a token."""
    # 256 random bits need no slow hash.
    return hashlib.sha256(token.encode()).hexdigest()


def _token(row: sa.Row) -> Token:  # type: ignore[type-arg]
    return Token(
        row.id,
        row.name,
        row.person,
        row.scope,
        row.created,
        row.expires or 0,
        row.revoked or 0,
        row.certificate_expires or 0,
        row.renewed or 0,
        row.course,
        row.server,
        row.made_with,
    )


def create_token(
    store: Store,
    name: str,
    person: str,
    scope: str,
    valid_seconds: float,
    who: str,
    now: float,
    certify: Certify | None = None,
    made_with: str = "",
) -> tuple[Token, str, str]:
    """Create a token, by `who` and with the token `made_with`; return it, its text, and its certificate with the key, empty without `certify`.

    Neither text nor key is kept.

    Raises
    ------
    Refused
        With a sentence, where that makes no sense.
    """
    if scope not in SCOPES:
        raise Refused("invalid", f"There is no scope “{scope[:40]}”; it is one of {', '.join(SCOPES)}.")
    if (scope == "person") != bool(person):
        raise Refused("invalid", "A token of the scope person names one; others name none.")
    if not name or max(len(name), len(person)) > 256 or not (name + person).isprintable():
        raise Refused(
            "invalid", "A token has a name of 1 to 256 printable characters, that says what it is for."
        )
    if not 0 <= valid_seconds < 1e10:
        raise Refused("invalid", f"A token cannot be valid for {valid_seconds!r} s.")
    identifier = "gpk" + secrets.token_hex(5)
    text = f"{identifier}.{secrets.token_urlsafe(32)}"
    expires = now + valid_seconds if valid_seconds else None
    certificate, until = certify(identifier, name, expires or 0, now) if certify else ("", None)
    with store.deciding() as (db, _):
        values = {
            "id": identifier,
            "hash": token_hash(text),
            "name": name,
            "person": person,
            "scope": scope,
            "created": now,
            "expires": expires,
            "certificate_expires": until,
            "made_with": made_with,
        }
        write_token(db, values)
        note(db, now, who, "token", identifier, "", f"{scope} {person or name}")
    token = Token(identifier, name, person, scope, now, expires or 0, 0, until or 0, made_with=made_with)
    return token, text, certificate


def write_token(db: sa.Connection, values: Mapping[str, Any]) -> None:
    """Write a token down, in a transaction that decides.

    Raises
    ------
    Refused
        ``revoked``, where the one that it is made with was revoked meanwhile.
    """
    if with_ := values["made_with"]:
        counts = sa.select(tokens.c.id).where(tokens.c.id == with_, tokens.c.revoked.is_(None))
        if db.execute(counts).first() is None:
            raise Refused("revoked", f"Token {with_} was revoked; make a new one.")
    db.execute(tokens.insert().values(**values))


def list_tokens(store: Store) -> list[Token]:
    """Return all tokens that were ever made, the oldest first."""
    with store.reader.connect() as db:
        return [_token(row) for row in db.execute(sa.select(tokens).order_by(tokens.c.created))]


def revoke_token(
    store: Store, identifier: str, who: str, now: float, *, cascade: bool = False
) -> tuple[Token, int]:
    """Revoke a token: from now on nobody gets in with it; with `cascade` nor with those that were made with it, or with one of these.

    Returns the token, and how many others were revoked; without `cascade`, how many still count.

    Raises
    ------
    Refused
        ``no_such_token``.
    """
    with store.deciding() as (db, _):
        changed = db.execute(
            tokens.update().where(tokens.c.id == identifier, tokens.c.revoked.is_(None)).values(revoked=now)
        )
        row = db.execute(sa.select(tokens).where(tokens.c.id == identifier)).first()
        if row is None:
            raise Refused("no_such_token", f"There is no token {identifier[:40]}.")
        made = _counting_made_with(identifier, now)
        others: int = db.execute(sa.select(sa.func.count()).where(made)).scalar_one()
        if cascade:
            db.execute(tokens.update().where(made).values(revoked=now))
        if changed.rowcount or (cascade and others):
            after = f"revoked, with {others} made with it" if cascade and others else "revoked"
            note(db, now, who, "token", identifier, f"{row.scope} {row.person or row.name}", after)
    return _token(row), others


def _counting_made_with(identifier: str, now: float) -> sa.ColumnElement[bool]:
    """Return the condition for tokens that count and were made with this one, or with one that was."""
    made = sa.select(tokens.c.id).where(tokens.c.made_with == identifier).cte("made", recursive=True)
    made = made.union(sa.select(tokens.c.id).where(tokens.c.made_with == made.c.id))
    ends = sa.or_(tokens.c.expires.is_(None), tokens.c.expires > now)
    return sa.and_(tokens.c.id.in_(sa.select(made.c.id)), tokens.c.revoked.is_(None), ends)


def show_token(store: Store, identifier: str) -> Token | None:
    """Return a token; None where there is none of that id."""
    with store.reader.connect() as db:
        row = db.execute(sa.select(tokens).where(tokens.c.id == identifier)).first()
    return _token(row) if row is not None else None


def renew_token(
    store: Store, identifier: str, who: str, now: float, certify: Certify | None = None
) -> tuple[Token, str]:
    """Renew a token for as long again as it was made for; return it, and its new certificate, empty without `certify`.

    A token that has no end only gets its certificate.

    Raises
    ------
    Refused
        With a sentence: there is no such token, or it was revoked.
    """
    before = show_token(store, identifier)
    if before is None:
        raise Refused("no_such_token", f"There is no token {identifier[:40]}.")
    expires = now + before.span if before.expires else 0.0
    certificate, until = certify(identifier, before.name, expires, now) if certify else ("", None)
    values: dict[str, float | None] = {"renewed": now, "expires": expires or None}
    if until is not None:
        values["certificate_expires"] = until
    with store.deciding() as (db, _):
        changed = db.execute(
            tokens.update().where(tokens.c.id == identifier, tokens.c.revoked.is_(None)).values(**values)
        )
        if not changed.rowcount:
            raise Refused("revoked", f"Token {identifier} ({before.name}) was revoked; make a new one.")
        row = db.execute(sa.select(tokens).where(tokens.c.id == identifier)).first()
        note(db, now, who, "token", identifier, f"{before.scope} {before.person or before.name}", "renewed")
    assert row is not None
    return _token(row), certificate


def ends_soon(token: Token, now: float) -> bool:
    """Return whether somebody should renew the token: little is left of its time."""
    if token.revoked or not token.expires or token.server or token.expires <= now:
        return False
    return token.expires - now < min(WARN_SECONDS, max(token.span / 10, DAY))


def warn_of_ends(store: Store, now: float) -> list[str]:
    """Log the tokens that end soon, and return the sentences."""
    sentences = [
        f"Token {token.id} ({token.name}, scope {token.scope}) ends in {_days(token.expires - now)}; "
        f"renew it with “gpukernel token renew {token.id}”."
        for token in list_tokens(store)
        if ends_soon(token, now)
    ]
    for sentence in sentences:
        log.warning("%s", sentence)
    return sentences


def _days(seconds: float) -> str:
    return f"{seconds / DAY:.0f} days" if seconds >= 2 * DAY else f"{seconds / 3600:.0f} hours"
