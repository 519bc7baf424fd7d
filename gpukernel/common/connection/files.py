"""Connection files.

A connection file holds all at once::

    address: tls://pool.example.edu:7437
    token: gpk0123456789.…
    -----BEGIN CERTIFICATE-----       of the authority
    -----BEGIN PRIVATE KEY-----       one's own, for a pool that asks for client certificates
    -----BEGIN CERTIFICATE-----       that belongs to the key and to the token

A file with a token alone is one too.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from gpukernel.common.address import is_network_address
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
    found = {"address": "", "token": ""}
    lines = [(n, line.strip()) for n, line in enumerate(head.splitlines(), 1)]
    lines = [(n, line) for n, line in lines if line and not line.startswith("#")]
    for number, line in lines:
        name, colon, value = line.partition(":")
        if colon and name in found:
            found[name] = value.strip()
        elif len(lines) == 1 and not colon and " " not in line:
            found["token"] = line
        else:
            raise PoolError(
                f"Line {number} of {path} is neither “address: …” nor “token: …” nor a certificate; it is no connection file."
            )
    if not found["address"] and not found["token"]:
        raise PoolError(f"{path} holds neither an address nor a token.")
    if found["address"] and not is_network_address(found["address"]):
        raise PoolError(f"{path} names no pool's address; write “address: tls://HOST:PORT”.")
    if not (found["token"].isascii() and found["token"].isprintable()):
        raise PoolError(f"The token in {path} is none; get the file from the pool's administrator again.")
    return Connection(
        **found,
        authority=authorities_in(begin + certificates, str(path)) if begin else "",
        certificate=certificate_in(begin_key + own, str(path)) if begin_key else "",
    )


def write_connection(connection: Connection, remark: str) -> str:
    """Return the text of a connection file; without an address just the token, for ``GPUKERNEL_POOL_TOKEN_FILE``."""
    if not connection.address:
        return f"{connection.token}\n"
    secrets = f"{connection.authority}{connection.certificate}"
    return f"# {remark}\naddress: {connection.address}\ntoken: {connection.token}\n{secrets}"


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
