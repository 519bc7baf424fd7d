"""Diagnosis of TLS: one sentence that names what keeps it from working.

gRPC's own words depend on its version, so after a failure this module looks once by itself, without a token, and says what it found.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from typing import Any

from gpukernel.common.connection.connection import Connection
from gpukernel.common.connection.tls import expiry, show_certificate, tls_context

__all__ = ["certificate_days_left", "days_left", "tls_trouble"]

LOOK_SECONDS = 3.0
_EXPIRED, _NOT_YET, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 62, 64  # X509_V_ERR_… of openssl/x509_vfy.h


class _ClosedAtOnce(ConnectionError):
    """The other end has closed the connection after TLS's handshake, before a word was said."""


async def tls_trouble(connection: Connection) -> str:
    """Return what is wrong with TLS between here and the pool, as a sentence; empty where nothing is, or nobody answers at all."""
    if connection.address.startswith("unix:"):
        return ""
    if not connection.encrypted:
        anybody = ssl.create_default_context()
        anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
        try:
            await _shake_hands(connection, anybody)
        except (OSError, TimeoutError):
            return ""
        return (
            f"The pool at {connection.address} speaks TLS only; use the connection file that its administrator gives you, "
            f"or tls://{connection.address} with its authority in GPUKERNEL_POOL_CA."
        )
    try:
        await _shake_hands(connection, _checking(connection))
    except ssl.SSLCertVerificationError as error:
        return await _why_not_believed(connection, error.verify_code, error.verify_message)
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            return _why_not_let_in(connection, error.reason)
        return (
            f"What answers at {connection.address} does not speak TLS, so nothing was sent to it; a pool does once "
            "“gpukernel pool init” has made its certificate and it was started again."
        )
    except _ClosedAtOnce:
        return _why_not_let_in(connection, "CERTIFICATE")
    except (OSError, TimeoutError):
        pass
    return ""


async def days_left(connection: Connection) -> float | None:
    """Return for how many days the pool's certificate is still good; None where it cannot be seen, or there is none."""
    if connection.encrypted:
        with contextlib.suppress(OSError, TimeoutError):
            shown = await _shake_hands(connection, _checking(connection))
            return (ssl.cert_time_to_seconds(str(shown["notAfter"])) - time.time()) / 86400
    return None


def certificate_days_left(connection: Connection) -> float | None:
    """Return for how many days the connection's own certificate is still good; None where there is none."""
    if not connection.certificate:
        return None
    return (expiry(connection.certificate) - time.time()) / 86400


def _why_not_let_in(connection: Connection, alert: str) -> str:
    """Return the sentence of a TLS alert (RFC 8446, section 6)."""
    remedy = "get a new connection file from its administrator (“gpukernel token create --file”)."
    if "CERTIFICATE" not in alert and "UNKNOWN_CA" not in alert:
        return f"TLS with the pool at {connection.address} failed: {alert}."
    if not connection.certificate:
        return f"The pool at {connection.address} lets nobody in without a client certificate, and this connection has none; {remedy}"
    if "EXPIRED" in alert or (certificate_days_left(connection) or 0) <= 0:
        return f"The client certificate for the pool at {connection.address} has expired; {remedy}"
    return f"The pool at {connection.address} does not accept this connection's client certificate; {remedy}"


async def _why_not_believed(connection: Connection, code: int, words: str) -> str:
    if code == _EXPIRED:
        return (
            f"The certificate of the pool at {connection.address} has expired; "
            "its administrator makes a new one with “gpukernel pool init --renew”."
        )
    if code == _NOT_YET:
        return f"The certificate of the pool at {connection.address} is not valid yet: the clock of this machine or of the pool's is wrong."
    if code in (_OTHER_NAME, _OTHER_ADDRESS):
        context = _checking(connection)
        context.check_hostname = False
        names: list[str] = []
        with contextlib.suppress(OSError, TimeoutError):
            names = [
                str(name) for _, name in (await _shake_hands(connection, context)).get("subjectAltName", ())
            ]
        return (
            f"The certificate of the pool at {connection.address} is for {', '.join(names) or 'another name'}; use that name, "
            "or have its administrator make one for this name with “gpukernel pool init --renew --name …”."
        )
    whom = (
        "the authority that this connection names"
        if connection.authority
        else "an authority that this machine trusts"
    )
    return (
        f"The certificate of the pool at {connection.address} was not signed by {whom} ({words}), so nothing was sent to it; "
        "get the connection file from the pool's administrator again."
    )


def _checking(connection: Connection) -> ssl.SSLContext:
    context = tls_context(connection.authority)
    # As in gRPC: a certificate that is named is trusted, also where another authority signed it.
    context.verify_flags = (
        ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags.VERIFY_X509_TRUSTED_FIRST
    )
    if connection.certificate:
        show_certificate(context, connection.certificate)
    return context


async def _shake_hands(connection: Connection, context: ssl.SSLContext) -> dict[str, Any]:
    """Do TLS with whoever is there, say nothing, and return the certificate where it was checked.

    A pool speaks first.  Where it does not accept a client's certificate, it closes instead: gRPC sends no alert then.
    """
    context.set_alpn_protocols(["h2"])
    host, _, port = connection.target.rpartition(":")
    async with asyncio.timeout(LOOK_SECONDS):
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
        try:
            shown: dict[str, Any] = writer.get_extra_info("peercert") or {}
            if not await reader.read(1):
                raise _ClosedAtOnce
            return shown
        finally:
            writer.transport.abort()
