"""The pool's process: its services on a unix socket and on TCP, from start to stop."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gpukernel.common.proto.admin_pb2_grpc as admin_rpc
import gpukernel.common.proto.engines_pb2_grpc as engines_rpc
import gpukernel.common.proto.hub_pb2_grpc as hub_rpc
import gpukernel.common.proto.pool_pb2_grpc as rpc
import gpukernel.common.proto.reservations_pb2_grpc as reservations_rpc
import gpukernel.common.proto.teaching_pb2_grpc as teaching_rpc
from gpukernel.common.address import make_container_sockets, socket_path
from gpukernel.common.connection import Connection, keepalive
from gpukernel.common.errors import PoolError
from gpukernel.common.fork_safe_grpc import grpc
from gpukernel.common.machine import raise_descriptor_limit
from gpukernel.pool.auth.hub_tokens import HubTokens
from gpukernel.pool.auth.identity import Identity
from gpukernel.pool.auth.listeners import Listener
from gpukernel.pool.auth.peer_credentials import listen_on_tcp, serve_tcp, serve_with_peer_credentials
from gpukernel.pool.auth.tls import ServerTls, certifier, server_tls, warning
from gpukernel.pool.auth.tokens import VALID_SECONDS, Certify, warn_of_ends
from gpukernel.pool.domain import fencing
from gpukernel.pool.doors.call_rates import CALLS_AT_ONCE, CALLS_PER_SECOND, CallRates
from gpukernel.pool.doors.connections import Connections
from gpukernel.pool.doors.crossing import IoThread
from gpukernel.pool.doors.field_bounds import LARGEST_MESSAGE
from gpukernel.pool.doors.guard import Guard
from gpukernel.pool.leases.clockwork import run_clock
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.rpc.administration import AdministrationService
from gpukernel.pool.rpc.agents import AgentsService
from gpukernel.pool.rpc.callers import check_services
from gpukernel.pool.rpc.engines import EnginesService
from gpukernel.pool.rpc.hub import HubService
from gpukernel.pool.rpc.metrics import serve_metrics
from gpukernel.pool.rpc.peers import follow_peers
from gpukernel.pool.rpc.pool import PoolService
from gpukernel.pool.rpc.reservations import ReservationsService
from gpukernel.pool.rpc.teaching import TeachingService
from gpukernel.pool.rpc.tokens import TokensService
from gpukernel.pool.store.connection.commits import Commits
from gpukernel.pool.store.store import Store

__all__ = ["RunningPool", "prepare_state", "serve", "write_token"]

log = logging.getLogger(__name__)

WRITE_BACK_SECONDS = 1.0
WARN_EVERY_SECONDS = 86400.0

SWITCH_SECONDS = 0.001
"""For how long one thread may keep Python's lock while another wants it: the I/O thread waits no longer for a decision."""

Service = tuple[Callable[..., None], Any]
"""A function that adds a service to a server, and the service."""

_OPTIONS = [
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    *keepalive(10, 20),
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", LARGEST_MESSAGE + 65_536),  # so that the sentence is ours
    ("grpc.max_concurrent_streams", 2_000),
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.http2.max_ping_strikes", 5),
]


class RunningPool:
    """A pool that answers.

    Attributes
    ----------
    address
        Where it answers first of all.
    warning
        What its administrator should know of its certificate, else empty.
    """

    def __init__(self, manager: LeaseManager, agents: AgentsService, address: str, warning: str = "") -> None:
        self.manager = manager
        self.agents = agents
        self.address = address
        self.warning = warning


def prepare_state(state: Path) -> Path:
    """Make the state directory, which others may pass through (to workers' sockets) but not read; return it."""
    state.mkdir(parents=True, exist_ok=True)
    state.chmod(0o711)
    return state


def write_token(path: Path) -> str:
    """Return the token in `path`, made where it does not exist; only its owner may read it."""
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    return path.read_text().strip()


@contextlib.contextmanager
def _only_one(state: Path) -> Iterator[None]:
    descriptor = os.open(state / "pool.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise PoolError(
            f"A pool runs already on {state}; stop it, or choose another directory with --state."
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


@contextlib.asynccontextmanager
async def serve(
    state: Path,
    listen: str = "",
    *,
    everybody: bool = False,
    metrics: str = "",
    certificate: Path | None = None,
    key: Path | None = None,
    require_certificates: bool = False,
    hub_api: str = "",
    calls_per_second: float = CALLS_PER_SECOND,
    calls_at_once: float = CALLS_AT_ONCE,
    token_seconds: float = VALID_SECONDS,
    valid_seconds: float = fencing.VALID_SECONDS,
    also_listen: Sequence[Listener] = (),
) -> AsyncIterator[RunningPool]:
    """Run a pool on the state directory `state`, on its unix socket and, where `listen` is ``HOST:PORT``, on TCP.

    Parameters
    ----------
    everybody
        Every account of this machine may ask over the unix socket, not only the pool's own and root.
    metrics
        ``HOST:PORT`` at which Prometheus reads figures; empty: nowhere.
    certificate, key
        What to show over TCP, where it is not what `gpukernel.pool.auth.certificate_authority.init_authority` made in `state`.  With either,
        TCP is TLS and nothing else.
    require_certificates
        At `listen` nobody gets in without a client certificate of the authority in `state`, and no token counts with another's.
    hub_api
        The REST API of a JupyterHub whose tokens count as their persons, as `gpukernel.pool.auth.hub_tokens.HubTokens` wants it.
    calls_per_second, calls_at_once
        How often a person may call, as `gpukernel.pool.doors.call_rates.CallRates` counts it.
    token_seconds
        Seconds for which a token is valid where its administrator does not say; 0: it has no end.
    valid_seconds
        Seconds for which workers live on a GPU server that does not reach the pool: so long the pool may be away, and no lease is lost.
    also_listen
        More TCP addresses; each says for itself whether certificates are required there.

    Raises
    ------
    PoolError
        When another pool runs on `state`, an address cannot be listened on, or the database cannot be used.
    """
    descriptors = raise_descriptor_limit()
    sys.setswitchinterval(SWITCH_SECONDS)
    hub, loop = HubTokens(hub_api) if hub_api else None, asyncio.get_running_loop()
    prepare_state(state)
    with _only_one(state):
        store = Store.in_directory(state)
        listeners = [*([Listener(listen, require_certificates)] if listen else []), *also_listen]
        tls = [
            server_tls(state, certificate, key, require_certificates=one.require_certificates)
            for one in listeners
        ]
        certified = any(one.require_certificates for one in listeners)
        identity = Identity(
            store, _tokens(state) if listeners else {}, require_certificates=certified, hub=hub
        )

        def public() -> Connection:
            return tls[0].public(listeners[0].address) if tls and tls[0] else Connection("")

        manager = LeaseManager(store, valid_seconds=valid_seconds, address=public().address)
        agents = AgentsService(manager, identity)
        certify = certifier(state, tls[0] if tls else None, require_certificates=certified)
        services = _services(manager, store, identity, agents, public, certify, token_seconds)
        check_services(*(service for _, service in services))
        rates = CallRates(calls_per_second, calls_at_once)
        doors = _Doors(services, identity, rates, Connections.within(descriptors), store.commits)
        work = [
            asyncio.create_task(run_clock(manager)),
            asyncio.create_task(_write_back(store)),
            asyncio.create_task(follow_peers(store, manager)),
            asyncio.create_task(identity.open_calls.watch()),
            asyncio.create_task(_warn_of_ends(store)),
        ]
        try:
            with IoThread() as io:
                address = public().address or (
                    listeners[0].address if listeners else f"unix:{socket_path(state)}"
                )
                warnings = (warning(one.address, its) for one, its in zip(listeners, tls, strict=True))
                try:
                    await io.run(doors.open(state, listeners, tls, everybody=everybody))
                    if metrics:
                        await io.run(doors.enter(serve_metrics(metrics, store, manager, loop)))
                    yield RunningPool(manager, agents, address, next(filter(None, warnings), ""))
                finally:
                    manager.stops = True
                    await io.run(doors.close())
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            store.close()
            if hub is not None:
                hub.close()


class _Doors:
    """The servers and listeners of a pool; every method but the first runs in the I/O loop."""

    def __init__(
        self,
        services: Iterable[Service],
        identity: Identity,
        rates: CallRates,
        connections: Connections,
        commits: Commits,
    ) -> None:
        self._services = services
        self._commits = commits
        self._identity = identity
        self._rates = rates
        self._deciding = asyncio.get_running_loop()
        self._connections = connections
        self._servers: list[grpc.aio.Server] = []
        self._stack = contextlib.AsyncExitStack()

    async def open(
        self,
        state: Path,
        listeners: Sequence[Listener],
        tls: Sequence[ServerTls | None],
        *,
        everybody: bool,
    ) -> None:
        """Listen on the unix sockets of a state directory, and at these addresses on TCP, each with its TLS."""
        path, behind = socket_path(state), socket_path(state).with_name("inner.sock")
        sockets = []
        for one in listeners:
            sockets.append(_tcp_listener(one.address))
            self._stack.callback(sockets[-1].close)
        await self._serve(behind)
        accounts = serve_with_peer_credentials(
            path, behind, self._identity, everybody=everybody, connections=self._connections
        )
        await self.enter(accounts)
        containers = make_container_sockets(path.parent)
        containers.chmod(0o711)
        await self.enter(
            serve_with_peer_credentials(
                containers / path.name,
                behind,
                self._identity,
                everybody=True,
                accounts=False,
                connections=self._connections,
            )
        )
        for number, (one, its, listener) in enumerate(zip(listeners, tls, sockets, strict=True)):
            remote = path.with_name(f"inner-tcp{number or ''}.sock")
            await self._serve(remote, its)
            await self.enter(
                serve_tcp(
                    listener,
                    remote,
                    self._identity,
                    self._connections,
                    require_certificates=one.require_certificates,
                )
            )

    async def enter(self, context: contextlib.AbstractAsyncContextManager[Any]) -> None:
        """Enter a context, which `close` leaves."""
        await self._stack.enter_async_context(context)

    async def close(self) -> None:
        """Stop every server and listener."""
        for server in self._servers:
            await server.stop(0.5)
        await self._stack.aclose()

    async def _serve(self, path: Path, tls: ServerTls | None = None) -> None:
        """Start gRPC's own server, on a socket that only the pool's account may open from the beginning."""
        path.unlink(missing_ok=True)  # noqa: ASYNC240  # before anybody can call
        guard = Guard(self._deciding, self._rates, self._connections, self._commits)
        before = os.umask(0o177)
        try:
            server = _server(self._services, f"unix:{path}", tls, guard)
            await server.start()
        finally:
            os.umask(before)
        path.chmod(0o600)  # noqa: ASYNC240
        self._servers.append(server)


def _tokens(state: Path) -> dict[str, str]:
    """Return the pool's own tokens by scope, made where they do not exist."""
    return {"service": write_token(state / "pool.token"), "agent": write_token(state / "agent.token")}


def _services(
    manager: LeaseManager,
    store: Store,
    identity: Identity,
    agents: AgentsService,
    public: Callable[[], Connection],
    certify: Certify | None,
    token_seconds: float,
) -> tuple[Service, ...]:
    """Return every service with the function that adds it to a server; `public` tells how clients connect over TCP."""
    return (
        (rpc.add_PoolServicer_to_server, PoolService(manager, identity)),
        (rpc.add_AgentsServicer_to_server, agents),
        (
            admin_rpc.add_AdministrationServicer_to_server,
            AdministrationService(manager, store, identity, public, certify, token_seconds),
        ),
        (hub_rpc.add_HubServicer_to_server, HubService(manager, store, identity, certify, token_seconds)),
        (reservations_rpc.add_ReservationsServicer_to_server, ReservationsService(manager, store, identity)),
        (engines_rpc.add_EnginesServicer_to_server, EnginesService(manager, identity)),
        (teaching_rpc.add_TeachingServicer_to_server, TeachingService(manager, store, identity)),
        (admin_rpc.add_TokensServicer_to_server, TokensService(store, identity, certify)),
    )


async def _warn_of_ends(store: Store) -> None:
    while True:
        try:
            await asyncio.to_thread(warn_of_ends, store, time.time())
        except Exception:
            log.exception("tokens that end soon could not be looked up")
        await asyncio.sleep(WARN_EVERY_SECONDS)


async def _write_back(store: Store) -> None:
    while not store.shared:
        await asyncio.sleep(WRITE_BACK_SECONDS)
        try:
            await asyncio.to_thread(store.write_back)
        except Exception:  # the log grows until it can be done
            log.exception("the database's log was not written back")


def _server(
    services: Iterable[Service], address: str, tls: ServerTls | None, guard: Guard
) -> grpc.aio.Server:
    server = grpc.aio.server(options=_OPTIONS, interceptors=[guard])
    for add, service in services:
        add(service, server)
    try:
        port = (
            server.add_secure_port(address, tls.credentials()) if tls else server.add_insecure_port(address)
        )
    except RuntimeError:
        port = 0
    if not port:
        raise PoolError(f"The pool cannot listen on {address}; it cannot be made there.")
    return server


def _tcp_listener(listen: str) -> socket.socket:
    try:
        return listen_on_tcp(listen)
    except (OSError, ValueError):
        raise PoolError(
            f"The pool cannot listen on {listen}; the address is taken or not this machine's."
        ) from None
