"""A connection as data, and its gRPC channel."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpukernel.common.connection.tls import BEGIN, trusted_by_this_machine
from gpukernel.common.fork_safe_grpc import grpc

__all__ = ["Connection"]

_OPTIONS = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
]


@dataclass(frozen=True)
class Connection:
    """The address of a pool, and all that it asks of who connects.

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
        """True where the connection is over TLS."""
        return self.address.startswith("tls://")

    @property
    def target(self) -> str:
        """The address in gRPC's form."""
        return self.address.removeprefix("tls://")

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The headers of every call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def channel(self) -> grpc.aio.Channel:
        """Return a gRPC channel, which connects when it is first used, and again by itself."""
        if not self.encrypted:
            return grpc.aio.insecure_channel(self.target, options=_OPTIONS)
        roots = self.authority or trusted_by_this_machine()
        key, begin, chain = self.certificate.partition(BEGIN)
        credentials = grpc.ssl_channel_credentials(
            roots.encode() or None, key.encode() or None, (begin + chain).encode() or None
        )
        return grpc.aio.secure_channel(self.target, credentials, options=_OPTIONS)
