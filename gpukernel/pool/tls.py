"""The pool's side of TLS; `gpukernel.pool.connection` is the other side, `gpukernel.pool.certificates` what is shown."""

from __future__ import annotations

import ipaddress
import logging
import time
from pathlib import Path
from typing import Any

from gpukernel.pool.connection import Connection
from gpukernel.pool.forks import grpc

__all__ = ["ServerTls", "server_tls", "warning"]

log = logging.getLogger(__name__)

SOON_SECONDS = 30 * 86400.0


class ServerTls:
    """Shows a certificate, and a renewed one from the next connection on."""

    def __init__(self, certificate: Path, key: Path | None, authority: Path | None) -> None:
        from gpukernel.pool.certificates import Reloading

        self.shown = Reloading(certificate, key, lambda sentence: log.error("%s", sentence))
        self._authority = authority

    def credentials(self) -> grpc.ServerCredentials:
        make: Any = grpc.dynamic_ssl_server_credentials
        return make(self._configuration(), self._look)

    def public(self, listen: str) -> Connection:
        """What others need to reach this pool, but for a token."""
        authority = self._authority.read_text() if self._authority else ""
        return Connection(self.shown.current.address(listen), authority=authority)

    def _look(self) -> Any:
        return None if self.shown.look() is None else self._configuration()

    def _configuration(self) -> Any:
        current = self.shown.current
        return grpc.ssl_server_certificate_configuration([(current.key, current.chain)])


def server_tls(state: Path, certificate: Path | None, key: Path | None) -> ServerTls | None:
    """TLS with the certificate named, else with what `gpukernel.pool.certificates.init_authority` made in `state`; else None."""
    if certificate is not None:
        return ServerTls(certificate, key, None)
    if not (state / "tls").exists():
        return None
    # What is there but cannot be used is an error: a pool that fell back to plain text would give its tokens away.
    return ServerTls(state / "tls" / "pool.pem", None, state / "tls" / "ca.pem")


def warning(listen: str, tls: ServerTls | None) -> str:
    """What the administrator of a pool that listens there should know, as one sentence; empty where all is well."""
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
