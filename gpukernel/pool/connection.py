"""How a client or an agent reaches a pool: which address, with which token and certificate, believing which authority.

Guarantees
----------
* Where an address begins with ``tls://``, or an authority is named, nothing is sent before the other end has shown a certificate
  for that address; there is no way back to plain text.
* A connection file says all at once::

      address: tls://pool.example.edu:7437
      token: gpk0123456789.…
      -----BEGIN CERTIFICATE-----       of the authority
      -----BEGIN PRIVATE KEY-----       one's own, for a pool that asks for client certificates
      -----BEGIN CERTIFICATE-----       that belongs to the key and to the token

  A file with a token alone is one too.
* What keeps TLS from working is one sentence that names it.  gRPC's own words depend on its version, so after a failure this
  module looks once by itself, without a token, and says what it found.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpukernel.pool.address import is_network_address, resolve_address
from gpukernel.pool.errors import PoolError
from gpukernel.pool.forks import grpc

__all__ = ["Connection", "connection_to", "read_connection_file", "write_connection"]

_OPTIONS = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
]
LOOK_SECONDS = 3.0
_LONGEST_FILE = 2**20
_BEGIN = "-----BEGIN CERTIFICATE-----"
_BEGIN_KEY = "-----BEGIN PRIVATE KEY-----"
_EXPIRED, _NOT_YET, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 62, 64  # X509_V_ERR_… of openssl/x509_vfy.h


class _ClosedAtOnce(ConnectionError):
    """Whoever answers has closed the connection after TLS's handshake, before a word was said."""


@dataclass(frozen=True)
class Connection:
    """Where a pool is and how to be let in.

    Attributes
    ----------
    address
        ``unix:/path/pool.sock``, ``HOST:PORT`` for plain text or ``tls://HOST:PORT``; empty where a file does not say.
    token
        Empty for a unix socket.
    authority
        PEM of the authorities whose word about the pool is believed; empty for those that this machine trusts anyway.
    certificate
        PEM of a private key and of the certificate to show with it; empty where there is none.
    """

    address: str
    token: str = field(default="", repr=False)
    authority: str = ""
    certificate: str = field(default="", repr=False)

    @property
    def encrypted(self) -> bool:
        return self.address.startswith("tls://")

    @property
    def target(self) -> str:
        """The address as gRPC writes it."""
        return self.address.removeprefix("tls://")

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call brings along."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def channel(self) -> Any:
        """A channel of gRPC, which connects when it is first used, and again by itself."""
        if not self.encrypted:
            return grpc.aio.insecure_channel(self.target, options=_OPTIONS)
        roots = self.authority or _trusted_by_this_machine()
        key, begin, chain = self.certificate.partition(_BEGIN)
        credentials = grpc.ssl_channel_credentials(
            roots.encode() or None, key.encode() or None, (begin + chain).encode() or None
        )
        return grpc.aio.secure_channel(self.target, credentials, options=_OPTIONS)

    async def trouble(self) -> str:
        """What is wrong with TLS between here and the pool, as a sentence; empty where nothing is, or nobody answers at all."""
        if self.address.startswith("unix:"):
            return ""
        if not self.encrypted:
            anybody = ssl.create_default_context()
            anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
            try:
                await self._shake_hands(anybody)
            except (OSError, TimeoutError):
                return ""
            return (
                f"The pool at {self.address} speaks TLS only; use the connection file that its administrator gives you, "
                f"or tls://{self.address} with its authority in GPUKERNEL_POOL_CA."
            )
        try:
            await self._shake_hands(self._checking())
        except ssl.SSLCertVerificationError as error:
            return await self._why_not_believed(error.verify_code, error.verify_message)
        except ssl.SSLError as error:
            if "ALERT" in (error.reason or ""):
                return self._why_not_let_in(error.reason)
            return (
                f"What answers at {self.address} does not speak TLS, so nothing was sent to it; a pool does once "
                "“gpukernel pool init” has made its certificate and it was started again."
            )
        except _ClosedAtOnce:
            return self._why_not_let_in("CERTIFICATE")
        except (OSError, TimeoutError):
            pass
        return ""

    async def days_left(self) -> float | None:
        """For how many days the pool's certificate is still good; None where it cannot be seen, or there is none."""
        if self.encrypted:
            with contextlib.suppress(OSError, TimeoutError):
                shown = await self._shake_hands(self._checking())
                return (ssl.cert_time_to_seconds(str(shown["notAfter"])) - time.time()) / 86400
        return None

    def certificate_days_left(self) -> float | None:
        """For how many days one's own certificate is still good; None where there is none."""
        if not self.certificate:
            return None
        from gpukernel.pool.certificates import expiry

        return (expiry(self.certificate) - time.time()) / 86400

    def _why_not_let_in(self, alert: str) -> str:
        """What TLS's alerts (RFC 8446, section 6) mean here."""
        remedy = "get a new connection file from its administrator (“gpukernel token create --file”)."
        if "CERTIFICATE" not in alert and "UNKNOWN_CA" not in alert:
            return f"TLS with the pool at {self.address} failed: {alert}."
        if not self.certificate:
            return f"The pool at {self.address} lets nobody in without a client certificate, and this connection has none; {remedy}"
        if "EXPIRED" in alert or (self.certificate_days_left() or 0) <= 0:
            return f"The client certificate for the pool at {self.address} has expired; {remedy}"
        return f"The pool at {self.address} does not accept this connection's client certificate; {remedy}"

    async def _why_not_believed(self, code: int, words: str) -> str:
        if code == _EXPIRED:
            return (
                f"The certificate of the pool at {self.address} has expired; "
                "its administrator makes a new one with “gpukernel pool init --renew”."
            )
        if code == _NOT_YET:
            return f"The certificate of the pool at {self.address} is not valid yet: the clock of this machine or of the pool's is wrong."
        if code in (_OTHER_NAME, _OTHER_ADDRESS):
            context = self._checking()
            context.check_hostname = False
            names: list[str] = []
            with contextlib.suppress(OSError, TimeoutError):
                names = [
                    str(name) for _, name in (await self._shake_hands(context)).get("subjectAltName", ())
                ]
            return (
                f"The certificate of the pool at {self.address} is for {', '.join(names) or 'another name'}; use that name, "
                "or have its administrator make one for this name with “gpukernel pool init --renew --name …”."
            )
        whom = (
            "the authority that this connection names"
            if self.authority
            else "an authority that this machine trusts"
        )
        return (
            f"The certificate of the pool at {self.address} was not signed by {whom} ({words}), so nothing was sent to it; "
            "get the connection file from the pool's administrator again."
        )

    def _checking(self) -> ssl.SSLContext:
        context = _context(self.authority)
        # As gRPC has it: whoever is named is believed, also where somebody else signed for them.
        context.verify_flags = (
            ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags.VERIFY_X509_TRUSTED_FIRST
        )
        if self.certificate:
            _show(context, self.certificate)
        return context

    async def _shake_hands(self, context: ssl.SSLContext) -> dict[str, Any]:
        """Do TLS with whoever is there, say nothing, and return the certificate where it was checked.

        A pool speaks first.  Where it does not accept a client's certificate, it closes instead: gRPC sends no alert then.
        """
        context.set_alpn_protocols(["h2"])
        host, _, port = self.target.rpartition(":")
        async with asyncio.timeout(LOOK_SECONDS):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
            try:
                shown: dict[str, Any] = writer.get_extra_info("peercert") or {}
                if not await reader.read(1):
                    raise _ClosedAtOnce
                return shown
            finally:
                writer.transport.abort()


def connection_to(address: str | None = None, token: str | Connection | None = None) -> Connection:
    """The way to the pool at `address`, which is as `gpukernel.pool.address.resolve_address` gives it.

    Parameters
    ----------
    token
        Or what a connection file says, of which authority and certificate count too.  Else ``GPUKERNEL_POOL_TOKEN``, else the
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
        named = replace(named, token=os.environ.get("GPUKERNEL_POOL_TOKEN", ""))
    if address.startswith("unix:"):
        return Connection(address, named.token)
    found = Connection(address) if is_network_address(address) else read_connection_file(Path(address))
    if not found.address:
        raise PoolError(f"{address} holds a token but no “address: tls://HOST:PORT”, so it leads to no pool.")
    if not (named.token or found.token) and (path := os.environ.get("GPUKERNEL_POOL_TOKEN_FILE")):
        named = read_connection_file(Path(path))
    found = Connection(
        found.address,
        named.token or found.token,
        found.authority or named.authority or _named_pem("GPUKERNEL_POOL_CA", _authorities),
        named.certificate or _named_pem("GPUKERNEL_POOL_CERTIFICATE", _own_certificate) or found.certificate,
    )
    if found.authority and not found.encrypted:
        # Whoever names an authority wants it asked.
        found = replace(found, address=f"tls://{found.address}")
    return found


def _named_pem(variable: str, check: Callable[[str, str], str]) -> str:
    """What the variable names: a file, or its content, as containers are given it."""
    named = os.environ.get(variable, "")
    if not named or named.lstrip().startswith("-----BEGIN"):
        return check(named, variable) if named else ""
    try:
        return check(Path(named).read_text(), named)
    except (OSError, UnicodeDecodeError) as error:
        what = "authority" if variable == "GPUKERNEL_POOL_CA" else "client certificate"
        raise PoolError(f"The pool's {what} cannot be read from {named}: {_why(error)}.") from None


def read_connection_file(path: Path) -> Connection:
    """What a connection file, or a file with a token alone, says.

    Raises
    ------
    PoolError
        With a sentence that names the file and the line.
    """
    try:
        with path.open() as file:
            text = file.read(_LONGEST_FILE)
    except (OSError, UnicodeDecodeError) as error:
        raise PoolError(f"The pool's token cannot be read from {path}: {_why(error)}.") from None
    text, begin_key, own = text.partition(_BEGIN_KEY)
    head, begin, certificates = text.partition(_BEGIN)
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
        authority=_authorities(begin + certificates, str(path)) if begin else "",
        certificate=_own_certificate(begin_key + own, str(path)) if begin_key else "",
    )


def write_connection(connection: Connection, remark: str) -> str:
    """The text of a connection file; without an address just the token, for ``GPUKERNEL_POOL_TOKEN_FILE``."""
    if not connection.address:
        return f"{connection.token}\n"
    secrets = f"{connection.authority}{connection.certificate}"
    return f"# {remark}\naddress: {connection.address}\ntoken: {connection.token}\n{secrets}"


def _authorities(text: str, where: str) -> str:
    try:
        _context(text)
    except (ssl.SSLError, ValueError):
        raise PoolError(f"{where} holds no certificate in PEM form that could be used.") from None
    return text


def _own_certificate(text: str, where: str) -> str:
    _, begin, rest = text.partition(_BEGIN_KEY)  # a connection file may be named too
    try:
        _show(_context(""), begin + rest)
    except (ssl.SSLError, ValueError):
        raise PoolError(f"{where} holds no private key with its certificate in PEM form.") from None
    return begin + rest


def _show(context: ssl.SSLContext, certificate: str) -> None:
    """Python's TLS takes a key from a file only: one in memory, which nobody else can open."""
    with os.fdopen(os.memfd_create("certificate"), "w") as file:
        file.write(certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


def _context(authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authority:
        context.load_verify_locations(cadata=authority)
    else:
        context.load_default_certs()
    return context


def _trusted_by_this_machine() -> str:
    """The system's own file of authorities, which unlike gRPC's holds those of the university; empty where there is none."""
    path = ssl.get_default_verify_paths().cafile
    try:
        return Path(path).read_text() if path else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _why(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or "it cannot be read") if isinstance(error, OSError) else "it is no text"
