"""Python's TLS with the trust that gRPC's has: contexts, PEM texts, and the end of a certificate."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

__all__ = ["BEGIN", "BEGIN_KEY", "expiry", "show_certificate", "tls_context", "trusted_by_this_machine"]

BEGIN = "-----BEGIN CERTIFICATE-----"
BEGIN_KEY = "-----BEGIN PRIVATE KEY-----"


def tls_context(authority: str) -> ssl.SSLContext:
    """Return a client's context that believes the PEM text `authority`, or where that is empty what this machine trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authority:
        context.load_verify_locations(cadata=authority)
    else:
        context.load_default_certs()
    return context


def show_certificate(context: ssl.SSLContext, certificate: str) -> None:
    """Show the PEM text `certificate`, a key and its certificate, in `context`.

    Python's TLS takes a key from a file only, so this gives it one in memory, which nobody else can open.
    """
    with os.fdopen(os.memfd_create("certificate"), "w") as file:
        file.write(certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


def trusted_by_this_machine() -> str:
    """Return the system's own file of authorities, which unlike gRPC's holds those of the university; empty where there is none."""
    path = ssl.get_default_verify_paths().cafile
    try:
        return Path(path).read_text() if path else ""
    except (OSError, UnicodeDecodeError):
        return ""


def expiry(pem: str) -> float:
    """Return the end of the first certificate in `pem`, in seconds since the epoch."""
    from cryptography import x509  # loaded late: few clients ask

    return x509.load_pem_x509_certificates(pem.encode())[0].not_valid_after_utc.timestamp()
