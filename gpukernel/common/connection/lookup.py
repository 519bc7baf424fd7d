"""The connection to use: from arguments, the environment and connection files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpukernel.common.address import are_network_addresses, network_addresses, resolve_address
from gpukernel.common.connection.connection import Connection
from gpukernel.common.connection.files import (
    authorities_in,
    certificate_in,
    read_connection_file,
    why_unreadable,
)
from gpukernel.common.errors import PoolError

__all__ = ["connection_to"]


def _sendable(token: str) -> str:
    """Return `token`, or raise `PoolError` where it has what no header may have, and so no token has."""
    if not (token.isascii() and token.isprintable()):
        raise PoolError(
            "The token has characters that no token has, such as a line's end or a letter with an accent; copy it again, or name the file "
            "that holds it in GPUKERNEL_POOL_TOKEN_FILE."
        )
    return token


def connection_to(address: str | None = None, token: str | Connection | None = None) -> Connection:
    """Return the connection to the pool at `address`, which is as `gpukernel.common.address.resolve_address` gives it.

    Parameters
    ----------
    token
        A token, or what a connection file says, of which authority and certificate count too.  Else ``GPUKERNEL_POOL_TOKEN``, else the
        token of the connection file that is the address, else from the file that ``GPUKERNEL_POOL_TOKEN_FILE`` names.

    Raises
    ------
    PoolError
        With a sentence, where a file cannot be read or holds something else.
    """
    address = address or resolve_address()
    # Set by a JupyterHub for its servers; it counts on a unix socket too, where else the account says who one is.
    named = token if isinstance(token, Connection) else Connection("", token or "")
    if not named.token:
        named = replace(named, token=os.environ.get("GPUKERNEL_POOL_TOKEN", "").strip())
    if address.startswith("unix:"):
        return Connection(address, _sendable(named.token))
    if are_network_addresses(address):
        found = Connection("").at(network_addresses(address, f"“{address[:200]}”"))
    else:
        found = read_connection_file(Path(address))
    if not found.address:
        raise PoolError(f"{address} holds a token but no “address: tls://HOST:PORT”, so it leads to no pool.")
    if not (named.token or found.token) and (path := os.environ.get("GPUKERNEL_POOL_TOKEN_FILE")):
        named = read_connection_file(Path(path))
    tokens = {way.target: way.token for way in named.ways}
    for_any = named.token if len(set(tokens.values())) == 1 else ""
    authority = found.authority or named.authority or _named_pem("GPUKERNEL_POOL_CA", authorities_in)
    certificate = (
        named.certificate or _named_pem("GPUKERNEL_POOL_CERTIFICATE", certificate_in) or found.certificate
    )

    def completed(way: Connection) -> Connection:
        token = tokens.get(way.target, for_any) or way.token
        if not token and named.others:
            raise PoolError(
                f"The pool at {way.address} has no token among those of {named.names}, which are theirs alone."
            )
        token = _sendable(token)
        # Naming an authority asks for TLS.
        plain = authority and not way.encrypted
        return Connection(f"tls://{way.address}" if plain else way.address, token, authority, certificate)

    found = found.each(completed)
    if len({way.encrypted for way in found.ways}) > 1:
        raise PoolError(
            f"Of {found.names} some begin with tls:// and others do not; write it before all of them, "
            "since what goes to the others could be read by anybody on the way."
        )
    return found


def _named_pem(variable: str, check: Callable[[str, str], str]) -> str:
    """Return the content that the variable names: a file, or the content itself, as containers are given it."""
    named = os.environ.get(variable, "")
    if not named or named.lstrip().startswith("-----BEGIN"):
        return check(named, variable) if named else ""
    try:
        return check(Path(named).read_text(), named)
    except (OSError, UnicodeDecodeError) as error:
        what = "authority" if variable == "GPUKERNEL_POOL_CA" else "client certificate"
        raise PoolError(f"The pool's {what} cannot be read from {named}: {why_unreadable(error)}.") from None
