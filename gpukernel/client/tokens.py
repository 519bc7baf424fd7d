"""The calls about the caller's own token, and its renewal by programs that run for long."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import gpukernel.common.proto.admin_pb2 as pb
import gpukernel.common.proto.admin_pb2_grpc as rpc
from gpukernel.client.pool import PoolClient
from gpukernel.common.connection import Connection, read_connection_file, write_connection
from gpukernel.common.errors import PoolError

__all__ = ["RevokedToken", "TokenLine", "TokenRenewal", "TokensClient", "token_line", "write_renewed"]

log = logging.getLogger(__name__)

DAY = 86400.0
LOOK_SECONDS = 3600.0
RENEW_AT = 0.5
"""A token is renewed when less than this part of its time is left."""

SOON_SECONDS = 14 * DAY


@dataclass(frozen=True)
class TokenLine:
    """A token without its secret; times in seconds since the epoch, 0 where there is none."""

    id: str
    name: str
    person: str
    scope: str
    created: float
    expires: float
    revoked: float
    certificate_expires: float
    renewed: float = 0.0
    course: str = ""
    server: str = ""
    made_with: str = ""

    @property
    def span(self) -> float:
        """The seconds for which it was made or renewed; 0 where it has no end."""
        return self.expires - max(self.created, self.renewed) if self.expires else 0.0

    def ends_soon(self, now: float) -> bool:
        """Return whether it is time to renew it by hand: nobody has, and little is left."""
        return 0 < self.expires < now + min(SOON_SECONDS, max(self.span / 10, DAY)) and not self.revoked


class RevokedToken(NamedTuple):
    """A token that was revoked; `made_with_it` others were, too, or without ``cascade`` still count."""

    token: TokenLine
    made_with_it: int


def token_line(message: Any) -> TokenLine:
    """Return a token as the pool's answers have it."""
    return TokenLine(**{name: getattr(message, name) for name in TokenLine.__dataclass_fields__})


class TokensClient(PoolClient):
    """A `PoolClient` with the calls of those who have a token."""

    @property
    def _tokens(self) -> rpc.TokensStub:
        return rpc.TokensStub(self._channel)

    async def own_token(self) -> TokenLine | None:
        """Return the token of this client; None where it has none, or one of the pool's own files."""
        reply = await self._call(self._tokens.ShowToken, pb.ShowTokenRequest())
        return token_line(reply.token) if reply.token.id else None

    async def renew_token(
        self, identifier: str = "", *, with_certificate: bool = False
    ) -> tuple[TokenLine, str]:
        """Renew a token, this client's own where none is named; return it, and its new certificate where one was asked for and made."""
        request = pb.RenewTokenRequest(id=identifier, with_certificate=with_certificate)
        reply = await self._call(self._tokens.RenewToken, request)
        return token_line(reply.token), reply.certificate


def write_renewed(path: Path, certificate: str) -> Connection:
    """Put a new certificate into a connection file, whole or not at all; return the connection that it now describes.

    Raises
    ------
    PoolError
        With a sentence, where the file cannot be read or replaced.
    """
    connection = read_connection_file(path).each(lambda way: replace(way, certificate=certificate))
    before = path.read_text()
    remark = (
        before.partition("\n")[0].removeprefix("# ") if before.startswith("# ") else "The way into the pool."
    )
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w") as file:  # of mode 0600
                file.write(write_connection(connection, remark))
                file.flush()
                os.fsync(file.fileno())
            owner = path.stat()
            if (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
                os.chown(name, owner.st_uid, owner.st_gid)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise PoolError(f"The new certificate cannot be written to {path}: {error.strerror}.") from None
    return connection


class TokenRenewal:
    """The renewal of the token with which a program that runs for long speaks to the pool.

    The token is renewed when half of its time is left, and stays the same text.  A client certificate is renewed with it and put into the
    connection file.  What cannot be renewed stands in the log, from two weeks before the end.

    Parameters
    ----------
    client
        Makes a client with the connection as it is now.
    file
        The connection file, where there is one.
    changed
        Called with the connection that has a new certificate.
    """

    def __init__(
        self,
        client: Callable[[], TokensClient],
        file: Path | None = None,
        changed: Callable[[Connection], None] = lambda connection: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._file, self._changed, self._clock = client, file, changed, clock

    async def run(self) -> None:
        """Look every hour, until cancelled."""
        while True:
            try:
                await self.look()
            except PoolError as error:
                log.debug("the token was not looked up: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> TokenLine | None:
        """Renew the token where it is time; return it as it is then, None where there is nothing to renew."""
        async with self._client() as client:
            token = await client.own_token()  # an older pool knows no such call
            if token is None or not token.expires:
                return token
            left = token.expires - self._clock()
            if left > RENEW_AT * token.span:
                return token
            certified = bool(client.connection.certificate)
            try:
                if certified and (self._file is None or not os.access(self._file.parent, os.W_OK)):
                    raise PoolError(f"its new certificate cannot be written to {self._file or 'a file'}")
                token, certificate = await client.renew_token(with_certificate=certified)
                if certificate and self._file is not None:
                    self._changed(write_renewed(self._file, certificate))
            except PoolError as error:
                level = logging.WARNING if left < SOON_SECONDS else logging.INFO
                log.log(
                    level,
                    "the pool's token %s ends in %.0f days and was not renewed: %s",
                    token.id,
                    left / DAY,
                    error,
                )
            else:
                log.info("the pool's token %s was renewed", token.id)
            return token
