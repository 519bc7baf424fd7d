"""Connection files.

A connection file holds all at once::

    address: tls://pool.example.edu:7437
    token: gpk0123456789.…
    -----BEGIN CERTIFICATE-----       of the authority
    -----BEGIN PRIVATE KEY-----       one's own, for a pool that asks for client certificates
    -----BEGIN CERTIFICATE-----       that belongs to the key and to the token

A file with a token alone is one too.  Several pools on one database are named in one line, ``addresses: tls://a:7437, tls://b:7437``, or
in a line ``address: …`` for each; a token that only one of them knows stands below its address.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gpukernel.common.address import is_network_address, network_addresses
from gpukernel.common.connection.connection import Connection
from gpukernel.common.connection.tls import BEGIN, BEGIN_KEY, show_certificate, tls_context
from gpukernel.common.errors import PoolError

__all__ = ["authorities_in", "certificate_in", "read_connection_file", "why_unreadable", "write_connection"]

_LONGEST_FILE = 2**20


def read_connection_file(path: Path) -> Connection:
    """Return the connection of a connection file, or of a file with a token alone.

    Raises
    ------
    PoolError
        With a sentence that names the file and the line.
    """
    try:
        with path.open() as file:
            text = file.read(_LONGEST_FILE)
    except (OSError, UnicodeDecodeError) as error:
        raise PoolError(f"The pool's token cannot be read from {path}: {why_unreadable(error)}.") from None
    text, begin_key, own = text.partition(BEGIN_KEY)
    head, begin, certificates = text.partition(BEGIN)
    entries = list(_entries(head, path))
    addresses, tokens = _addresses(entries, path), [value for name, value in entries if name == "token"]
    if not any(addresses) and not any(tokens):
        raise PoolError(f"{path} holds neither an address nor a token.")
    if len(tokens) > 1 and [name for name, _ in entries] != ["address", "token"] * len(addresses):
        raise PoolError(
            f"{path} holds {len(tokens)} tokens; write one for all pools, or one below the line “address: …” of each."
        )
    if not all(token.isascii() and token.isprintable() for token in tokens):
        raise PoolError(f"The token in {path} is none; get the file from the pool's administrator again.")
    if begin_key and len(set(tokens)) > 1:
        raise PoolError(
            f"{path} holds a client certificate, which belongs to one token, and {len(tokens)} tokens; "
            "write one for all pools, or a file for each."
        )
    authority = authorities_in(begin + certificates, str(path)) if begin else ""
    certificate = certificate_in(begin_key + own, str(path)) if begin_key else ""
    if len(tokens) < len(addresses):
        tokens = (tokens or [""]) * len(addresses)
    first, *others = (
        Connection(address, token, authority, certificate)
        for address, token in zip(addresses, tokens, strict=True)
    )
    return replace(first, others=tuple(others))


def _entries(head: str, path: Path) -> Iterator[tuple[str, str]]:
    """Iterate over names and values of the lines before the certificates."""
    lines = [(n, line.strip()) for n, line in enumerate(head.splitlines(), 1)]
    lines = [(n, line) for n, line in lines if line and not line.startswith("#")]
    for number, line in lines:
        name, colon, value = line.partition(":")
        if colon and name in ("address", "addresses", "token"):
            yield name, value.strip()
        elif len(lines) == 1 and not colon and " " not in line:
            yield "token", line
        else:
            raise PoolError(
                f"Line {number} of {path} is neither “address: …” nor “addresses: …” nor “token: …” nor a certificate; "
                "it is no connection file."
            )


def _addresses(entries: list[tuple[str, str]], path: Path) -> tuple[str, ...]:
    """Return the addresses of a connection file; one that is empty where it says none."""
    lists = [value for name, value in entries if name == "addresses"]
    single = [value for name, value in entries if name == "address"]
    if len(lists) > 1 or (lists and single):
        raise PoolError(
            f"{path} names its pools twice; write one line “addresses: …” with commas, or a line “address: …” for each."
        )
    if lists:
        return network_addresses(lists[0], f"The line “addresses: …” of {path}")
    for address in single:
        if "," in address:
            raise PoolError(
                f"{path} lists several pools in a line “address: …”; write “addresses: {address[:200]}”."
            )
        if not is_network_address(address):
            raise PoolError(f"{path} names no pool's address; write “address: tls://HOST:PORT”.")
    return network_addresses(",".join(single), str(path)) if single else ("",)


def write_connection(connection: Connection, remark: str) -> str:
    """Return the text of a connection file; without an address just the token, for ``GPUKERNEL_POOL_TOKEN_FILE``."""
    if not connection.address:
        return f"{connection.token}\n"
    if len({way.token for way in connection.ways}) > 1:
        lines = [f"address: {way.address}\ntoken: {way.token}\n" for way in connection.ways]
    else:
        name = "addresses" if connection.others else "address"
        lines = [f"{name}: {', '.join(connection.addresses)}\ntoken: {connection.token}\n"]
    return f"# {remark}\n{''.join(lines)}{connection.authority}{connection.certificate}"


def authorities_in(text: str, where: str) -> str:
    """Return the PEM text `text` of authorities, or raise `PoolError` with its place `where`."""
    try:
        tls_context(text)
    except (ssl.SSLError, ValueError):
        raise PoolError(f"{where} holds no certificate in PEM form that could be used.") from None
    return text


def certificate_in(text: str, where: str) -> str:
    """Return key and certificate in the PEM text `text`, or raise `PoolError` with its place `where`."""
    _, begin, rest = text.partition(BEGIN_KEY)  # a connection file may be named too
    try:
        show_certificate(tls_context(""), begin + rest)
    except (ssl.SSLError, ValueError):
        raise PoolError(f"{where} holds no private key with its certificate in PEM form.") from None
    return begin + rest


def why_unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Return the reason why a file could not be read, as the end of a sentence."""
    return (error.strerror or "it cannot be read") if isinstance(error, OSError) else "it is no text"
