"""The pool's own authority: it signs the certificate of the pool and those that clients show.

``STATE/tls`` holds all of it, each file readable only by the pool's account::

    ca.pem     the authority's certificate: what clients and GPU servers are given to check the pool with
    ca.key     the authority's key: signs clients' certificates and the next pool.pem
    pool.pem   the pool's key and certificate in one file, so that a renewal replaces both at once

Guarantees
----------
* The directory appears whole or not at all, and nothing here overwrites an authority.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpukernel.common.connection import expiry
from gpukernel.common.errors import PoolError
from gpukernel.pool.auth.certificates import Certificate, read_certificate

__all__ = ["client_certificate", "init_authority", "renew_certificate"]

AUTHORITY_DAYS = 20 * 365
CERTIFICATE_DAYS = 2 * 365
DAY = 86400.0
_CLOCKS_DIFFER = datetime.timedelta(days=1)
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")


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
    """Make a new key and certificate of the same authority, for `names`, or for those of the present one where none are given.

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
    """Return a key with a certificate that belongs to the token `identifier`, and its end: the token's, or in two years.

    The key is kept nowhere.

    Parameters
    ----------
    name
        The name of the token, for people who look at the certificate.
    expires
        The token's end in seconds since the epoch; 0 where it has none.

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
    """Return the content of ``pool.pem``."""
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
    """Return a new key, then its certificate, for one of the two ends of a connection only."""
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
    """Let the pool's own account read what root prepares."""
    if os.geteuid() == 0:
        owner = directory.stat()
        for path in paths:
            os.chown(path, owner.st_uid, owner.st_gid)
