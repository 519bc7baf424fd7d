"""The certificate that a pool shows over TCP, and its reading anew when its files have changed.

Only a pool with TLS imports this module and `gpukernel.pool.auth.certificate_authority`: they need the ``cryptography`` package.
That is a dependency of every installation all the same.  It has wheels for every Python and platform that JupyterHub runs on
(which itself depends on it), and a pool must not be in plain text because somebody forgot an extra.  Clients check certificates
with gRPC's own TLS.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from gpukernel.common.errors import PoolError

__all__ = ["Certificate", "ReloadingCertificate", "read_certificate"]


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as the pool shows them.

    Attributes
    ----------
    chain, key
        PEM; the chain begins with the pool's own certificate.
    names
        Host names and addresses that it is good for, in its order.
    expires
        Seconds since the epoch.
    """

    chain: bytes
    key: bytes
    names: tuple[str, ...]
    expires: float

    def address(self, listen: str) -> str:
        """Return the address of a pool that shows this certificate and listens at `listen` (``HOST:PORT``)."""
        name = next((n for n in self.names if "*" not in n), listen.rpartition(":")[0].strip("[]"))
        return f"tls://{f'[{name}]' if ':' in name else name}:{listen.rpartition(':')[2]}"


def read_certificate(path: Path, key: Path | None = None) -> Certificate:
    """Return the certificate in `path`, with its key from `key` or from the same file.

    Raises
    ------
    PoolError
        With a sentence that names the file.
    """
    try:
        chain, secret = path.read_bytes(), (key or path).read_bytes()
    except OSError as error:
        raise PoolError(
            f"The pool's certificate cannot be read from {error.filename}: {error.strerror}."
        ) from None
    try:
        first, *others = x509.load_pem_x509_certificates(chain)
    except ValueError:
        raise PoolError(f"{path} holds no certificate in PEM form.") from None
    try:
        private = serialization.load_pem_private_key(secret, None)
    except TypeError:
        raise PoolError(f"The key in {key or path} has a passphrase; the pool needs one without.") from None
    except (ValueError, UnsupportedAlgorithm):
        raise PoolError(f"{key or path} holds no private key in PEM form.") from None
    if private.public_key() != first.public_key():
        raise PoolError(f"The key in {key or path} is not that of the certificate in {path}.")
    pem = serialization.Encoding.PEM
    private_pem = private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Certificate(
        b"".join(part.public_bytes(pem) for part in (first, *others)),
        private_pem,
        _names(first),
        first.not_valid_after_utc.timestamp(),
    )


class ReloadingCertificate:
    """The pool's certificate, read again whenever its files have changed.

    Parameters
    ----------
    complain
        Called with a sentence when new files cannot be used; the pool goes on with what it has.

    Raises
    ------
    PoolError
        When they cannot be used from the beginning.
    """

    def __init__(self, path: Path, key: Path | None, complain: Callable[[str], None]) -> None:
        self._files = (path, key or path)
        self._complain = complain
        self._seen = self._stamp()
        self.current = read_certificate(*self._files)

    def look(self) -> Certificate | None:
        """Return the certificate, where it is another one than at the last look."""
        stamp = self._stamp()
        if stamp == self._seen:
            return None
        self._seen = stamp
        try:
            self.current = read_certificate(*self._files)
        except PoolError as error:
            self._complain(f"{error} The pool goes on showing the certificate that it has.")
            return None
        return self.current

    def _stamp(self) -> list[tuple[int, ...]]:
        stamps: list[tuple[int, ...]] = []
        for path in self._files:
            with contextlib.suppress(OSError):
                found = path.stat()
                stamps.append((found.st_ino, found.st_mtime_ns, found.st_size))
        return stamps


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    addresses = (str(address) for address in found.get_values_for_type(x509.IPAddress))
    return (*found.get_values_for_type(x509.DNSName), *addresses)
