"""The certificate that a pool shows over TCP, those that its clients show, and the pool's own authority that signs them.

``STATE/tls`` holds all of it, each file readable only by the pool's account::

    ca.pem     the authority's certificate: what clients and GPU servers are given to check the pool with
    ca.key     the authority's key: signs clients' certificates and the next pool.pem
    pool.pem   the pool's key and certificate in one file, so that a renewal replaces both at once

The directory appears whole or not at all, and nothing here overwrites an authority.

Only a pool with TLS imports this module: it needs the ``cryptography`` package.  That is a dependency of every installation all the same.
It has wheels for every Python and platform that JupyterHub runs on (which itself depends on it), and a pool must not
be in plain text because somebody forgot an extra.  Clients check certificates with gRPC's own TLS.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpukernel.pool.errors import PoolError

__all__ = [
    "Certificate",
    "Reloading",
    "client_certificate",
    "expiry",
    "init_authority",
    "own_certificate",
    "read_certificate",
    "renew_certificate",
]

AUTHORITY_DAYS = 20 * 365
CERTIFICATE_DAYS = 2 * 365
DAY = 86400.0
_CLOCKS_DIFFER = datetime.timedelta(days=1)
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")


@dataclass(frozen=True)
class Certificate:
    """What the pool shows.

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
        """Where others find a pool that shows this and listens at `listen` (``HOST:PORT``)."""
        name = next((n for n in self.names if "*" not in n), listen.rpartition(":")[0].strip("[]"))
        return f"tls://{f'[{name}]' if ':' in name else name}:{listen.rpartition(':')[2]}"


def own_certificate(state: Path) -> Path | None:
    """The ``pool.pem`` that `init_authority` made in the state directory, where it has."""
    path = state / "tls" / "pool.pem"
    return path if path.exists() else None


def init_authority(state: Path, names: Sequence[str], now: float) -> Certificate:
    """Make an authority of the pool's own, and a certificate for `names`, host names or addresses.

    Raises
    ------
    PoolError
        When there is an authority, or a name is none.
    """
    checked = _checked(names)
    place = state / "tls"
    exists = PoolError(
        f"{place} exists already and stays as it is; “gpukernel pool init --renew” makes a new certificate of the same authority."
    )
    if place.exists():
        raise exists
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gpukernel pool {checked[0]}"[:64])])
    authority = (
        _draft(subject, subject, key.public_key(), key.public_key(), now + AUTHORITY_DAYS * DAY, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    try:
        building = Path(tempfile.mkdtemp(prefix="tls.", dir=state))
        try:
            _write(building / "ca.key", _key_pem(key))
            _write(building / "ca.pem", authority.public_bytes(serialization.Encoding.PEM))
            _write(building / "pool.pem", _pools(authority, key, checked, now))
            _give_to_owner_of(state, building, *building.iterdir())
            building.rename(place)  # fails where somebody else was quicker: such a directory is not empty
        except BaseException:
            shutil.rmtree(building)
            raise
    except OSError as error:
        if place.exists():
            raise exists from None
        raise PoolError(f"{place} cannot be made: {error.strerror}.") from None
    return read_certificate(place / "pool.pem")


def renew_certificate(state: Path, names: Sequence[str], now: float) -> Certificate:
    """A new key and certificate of the same authority, for `names`, or for those of the present one where none are given.

    A running pool shows it from the next connection on.

    Raises
    ------
    PoolError
        When there is no authority, or it cannot be used.
    """
    place = state / "tls"
    if not place.is_dir():
        raise PoolError(
            f"There is no {place} to renew; make it with “gpukernel pool init --name pool.example.edu”."
        )
    checked = _checked(names) if names else read_certificate(place / "pool.pem").names
    authority, key = _read_authority(place, now)
    path = place / "pool.pem"
    new = path.with_name(f"pool.pem.{os.getpid()}")
    try:
        try:
            _write(new, _pools(authority, key, checked, now))
            _give_to_owner_of(place, new)
            new.rename(path)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        raise PoolError(f"{path} cannot be replaced: {error.strerror}.") from None
    return read_certificate(path)


def client_certificate(
    state: Path, identifier: str, name: str, expires: float, now: float
) -> tuple[str, float]:
    """A key and a certificate that belong to the token `identifier`, and when that ends: with the token, or after two years.

    The key is kept nowhere.

    Parameters
    ----------
    name
        What the token is for: so that people who look at the certificate know.
    expires
        When the token ends, in seconds since the epoch; 0 where it does not.

    Raises
    ------
    PoolError
        When the authority cannot be used.
    """
    authority, key = _read_authority(state / "tls", now)
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, identifier),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, name[:64]),
        ]
    )
    pem = _signed(authority, key, subject, ExtendedKeyUsageOID.CLIENT_AUTH, expires, now).decode()
    return pem, expiry(pem)


def expiry(pem: str) -> float:
    """When the first certificate in `pem` ends, in seconds since the epoch."""
    return x509.load_pem_x509_certificates(pem.encode())[0].not_valid_after_utc.timestamp()


def _read_authority(place: Path, now: float) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        authority = x509.load_pem_x509_certificate((place / "ca.pem").read_bytes())
        key = serialization.load_pem_private_key((place / "ca.key").read_bytes(), None)
    except OSError as error:
        raise PoolError(f"{error.filename} cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise PoolError(f"{place} holds no authority that can be used; its files are damaged.") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != authority.public_key():
        raise PoolError(f"{place}/ca.key is not the key of {place}/ca.pem.")
    if authority.not_valid_after_utc.timestamp() <= now:
        raise PoolError(
            f"The authority in {place} has expired; move that directory away and begin again with “gpukernel pool init”."
        )
    return authority, key


def read_certificate(path: Path, key: Path | None = None) -> Certificate:
    """The certificate in `path`, with its key from `key` or from the same file.

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


class Reloading:
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
        """The certificate, where it is another one than at the last look."""
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


def _checked(names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        raise PoolError(
            "Say by which name or address GPU servers and clients find the pool: --name pool.example.edu."
        )
    for name in names:
        if _address(name) is None and not _NAME.fullmatch(name.lower()):
            raise PoolError(f"“{name[:60]}” is no host name and no address.")
    return tuple(dict.fromkeys(name if _address(name) else name.lower() for name in names))


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    addresses = (str(address) for address in found.get_values_for_type(x509.IPAddress))
    return (*found.get_values_for_type(x509.DNSName), *addresses)


def _draft(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuers_key: ec.EllipticCurvePublicKey,
    expires: float,
    now: float,
) -> x509.CertificateBuilder:
    today = datetime.datetime.fromtimestamp(now, datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - _CLOCKS_DIFFER)
        .not_valid_after(datetime.datetime.fromtimestamp(expires, datetime.UTC))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuers_key),
            critical=False,
        )
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pools(
    authority: x509.Certificate, authoritys_key: ec.EllipticCurvePrivateKey, names: Sequence[str], now: float
) -> bytes:
    """What ``pool.pem`` holds."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    alternatives = x509.SubjectAlternativeName(
        [x509.IPAddress(address) if (address := _address(name)) else x509.DNSName(name) for name in names]
    )
    return _signed(authority, authoritys_key, subject, ExtendedKeyUsageOID.SERVER_AUTH, 0, now, alternatives)


def _signed(
    authority: x509.Certificate,
    authoritys_key: ec.EllipticCurvePrivateKey,
    subject: x509.Name,
    purpose: x509.ObjectIdentifier,
    expires: float,
    now: float,
    names: x509.SubjectAlternativeName | None = None,
) -> bytes:
    """A new key, then its certificate, for one of the two ends of a connection only."""
    key = ec.generate_private_key(ec.SECP256R1())
    # A certificate that outlives its authority is checked in vain.
    ends = min(now + CERTIFICATE_DAYS * DAY, authority.not_valid_after_utc.timestamp())
    draft = (
        _draft(
            subject,
            authority.subject,
            key.public_key(),
            authoritys_key.public_key(),
            min(expires or ends, ends),
            now,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    )
    if names is not None:
        draft = draft.add_extension(names, critical=False)
    certificate = draft.sign(authoritys_key, hashes.SHA256())
    return _key_pem(key) + certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _give_to_owner_of(directory: Path, *paths: Path) -> None:
    """Root may prepare what the pool's own account reads."""
    if os.geteuid() == 0:
        owner = directory.stat()
        for path in paths:
            os.chown(path, owner.st_uid, owner.st_gid)
