"""The pool's side of TLS; `gpukernel.common.connection` is the other side, `gpukernel.pool.auth.certificates` what is shown."""

from __future__ import annotations

import ipaddress
import logging
import time
from pathlib import Path

from gpukernel.common.connection import Connection
from gpukernel.common.errors import PoolError, Refused
from gpukernel.common.fork_safe_grpc import grpc
from gpukernel.pool.auth.tokens import Certify

__all__ = ["ServerTls", "certifier", "server_tls", "warning"]

log = logging.getLogger(__name__)

SOON_SECONDS = 30 * 86400.0


class ServerTls:
    """A server's TLS: it shows a certificate, and a renewed one from the next connection on.

    Parameters
    ----------
    authority
        What clients are given to check it with; None where they trust its authority anyway.
    clients
        Authority whose certificates clients must show; None: nobody is asked for one.
    """

    def __init__(
        self, certificate: Path, key: Path | None, authority: Path | None, clients: Path | None
    ) -> None:
        from gpukernel.pool.auth.certificates import ReloadingCertificate

        self.shown = ReloadingCertificate(certificate, key, lambda sentence: log.error("%s", sentence))
        self._authority = authority
        self._clients = clients.read_bytes() if clients else None

    def credentials(self) -> grpc.ServerCredentials:
        """Return gRPC's credentials of the server."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            self._look,  # type: ignore[arg-type]  # None, which the types forget, means: as before
            require_client_authentication=self._clients is not None,
        )

    def public(self, listen: str) -> Connection:
        """Return how clients connect to this pool, without a token."""
        authority = self._authority.read_text() if self._authority else ""
        return Connection(self.shown.current.address(listen), authority=authority)

    def _look(self) -> grpc.ServerCertificateConfiguration | None:
        return None if self.shown.look() is None else self._configuration()

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        current = self.shown.current
        return grpc.ssl_server_certificate_configuration([(current.key, current.chain)], self._clients)


def server_tls(
    state: Path, certificate: Path | None, key: Path | None, *, require_certificates: bool = False
) -> ServerTls | None:
    """Return TLS with the certificate named, else with what `gpukernel.pool.auth.certificate_authority.init_authority` made in `state`; else None.

    Raises
    ------
    PoolError
        When clients are to show certificates, and there is no authority to sign them.
    """
    authority = state / "tls" / "ca.pem"
    if require_certificates and not authority.exists():
        raise PoolError(
            "Client certificates are signed by the pool's own authority; make it first with “gpukernel pool init --name HOST”."
        )
    clients = authority if require_certificates else None
    if certificate is not None:
        return ServerTls(certificate, key, None, clients)
    if not (state / "tls").exists():
        return None
    # What is there but cannot be used is an error: a pool that fell back to plain text would give its tokens away.
    return ServerTls(state / "tls" / "pool.pem", None, authority, clients)


def certifier(state: Path, tls: ServerTls | None, *, require_certificates: bool) -> Certify | None:
    """Return the function that signs clients' certificates, also before they are required, so that everybody has one when they are.

    None where no certificate is of use, or where the authority's key lies elsewhere and nobody needs it now.
    """
    if tls is None or not (require_certificates or (state / "tls" / "ca.key").exists()):
        return None
    from gpukernel.pool.auth.certificate_authority import client_certificate

    def certify(identifier: str, name: str, expires: float, now: float) -> tuple[str, float]:
        try:
            return client_certificate(state, identifier, name, expires, now)
        except PoolError as error:
            raise Refused("certificate", f"No client certificate can be made: {error}") from None

    return certify


def warning(listen: str, tls: ServerTls | None) -> str:
    """Return what the administrator of a pool that listens there should know, as one sentence; empty where all is well."""
    if tls is not None:
        left = tls.shown.current.expires - time.time()
        if left <= 0:
            return "The pool's certificate has expired; “gpukernel pool init --renew” makes a new one, without a restart."
        if left < SOON_SECONDS:
            return (
                f"The pool's certificate expires in {left / 86400:.0f} days; “gpukernel pool init --renew” makes a new one, "
                "without a restart."
            )
    elif listen and not _loopback(listen):
        return (
            f"Tokens and all else that is said at {listen} pass the network in plain text; "
            "“gpukernel pool init --name HOST” makes the certificate for TLS."
        )
    return ""


def _loopback(listen: str) -> bool:
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
