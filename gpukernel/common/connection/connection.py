"""A connection as data, and its gRPC channel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from gpukernel.common.connection.tls import BEGIN, trusted_by_this_machine
from gpukernel.common.fork_safe_grpc import grpc

__all__ = ["Connection", "keepalive"]


def keepalive(seconds: int, patience: int) -> list[tuple[str, int]]:
    """Return gRPC's options for a ping after `seconds` of silence, and the end of a connection whose other side has not answered it after `patience` seconds."""
    return [
        ("grpc.keepalive_time_ms", 1_000 * seconds),
        ("grpc.keepalive_timeout_ms", 1_000 * patience),
        # Which gRPC from 1.60 on goes by alone, and which is a minute where nothing is said (grpc/grpc#39239).
        ("grpc.http2.ping_timeout_ms", 1_000 * patience),
        # These pings measure the bandwidth of a long answer, and wait behind it: on a slow line it would end for them.
        ("grpc.http2.bdp_probe", 0),
    ]


_OPTIONS = [
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
]
_OPTIONS_OF_ONE = [*_OPTIONS, *keepalive(10, 20)]
# A pool whose machine is gone is given up after eight seconds.  Pools take a ping in five seconds, and not more.
_OPTIONS_OF_SEVERAL = [*_OPTIONS, *keepalive(5, 3)]


@dataclass(frozen=True)
class Connection:
    """The address of a pool, and all that it asks of who connects; with `others`, the ways to several pools on one database.

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
    others
        The ways to the other pools, in the order in which they are tried; each has its own address and token.
    """

    address: str
    token: str = field(default="", repr=False)
    authority: str = ""
    certificate: str = field(default="", repr=False)
    others: tuple[Connection, ...] = ()

    @property
    def ways(self) -> tuple[Connection, ...]:
        """The connections to each of the pools, the first one first."""
        return (replace(self, others=()), *self.others)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of all pools."""
        return (self.address, *(way.address for way in self.others))

    @property
    def names(self) -> str:
        """The addresses as a sentence has them."""
        *most, last = self.addresses
        return f"{', '.join(most)} or {last}" if most else last

    def each(self, change: Callable[[Connection], Connection]) -> Connection:
        """Return the connection whose ways are what `change` makes of each."""
        first, *others = map(change, self.ways)
        return replace(first, others=tuple(others))

    def at(self, addresses: Iterable[str]) -> Connection:
        """Return the same connection to pools at these addresses."""
        first, *others = (replace(self, address=address, others=()) for address in addresses)
        return replace(first, others=tuple(others))

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

    def channel(self, *, one_of_several: bool = False) -> grpc.aio.Channel:
        """Return a gRPC channel to `address`, which connects when it is first used, and again by itself.

        `one_of_several`: there are other pools, so it is not to wait long for one that says nothing.
        """
        options = _OPTIONS_OF_SEVERAL if one_of_several else _OPTIONS_OF_ONE
        if not self.encrypted:
            return grpc.aio.insecure_channel(self.target, options=options)
        roots = self.authority or trusted_by_this_machine()
        key, begin, chain = self.certificate.partition(BEGIN)
        credentials = grpc.ssl_channel_credentials(
            roots.encode() or None, key.encode() or None, (begin + chain).encode() or None
        )
        return grpc.aio.secure_channel(self.target, credentials, options=options)
