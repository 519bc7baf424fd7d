"""The pool's process: its services on a unix socket and on TCP, from start to stop."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import gpukernel.common.proto.admin_pb2_grpc as admin_rpc
import gpukernel.common.proto.hub_pb2_grpc as hub_rpc
import gpukernel.common.proto.pool_pb2_grpc as rpc
import gpukernel.common.proto.reservations_pb2_grpc as reservations_rpc
import gpukernel.common.proto.teaching_pb2_grpc as teaching_rpc
from gpukernel.common.address import make_container_sockets, socket_path
from gpukernel.common.connection import Connection
from gpukernel.common.errors import PoolError
from gpukernel.common.fork_safe_grpc import grpc
from gpukernel.pool.auth.hub_tokens import HubTokens
from gpukernel.pool.auth.identity import Certify, Identity
from gpukernel.pool.auth.peer_credentials import serve_with_peer_credentials
from gpukernel.pool.auth.tls import ServerTls, certifier, server_tls, warning
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.rpc.administration import AdministrationService
from gpukernel.pool.rpc.agents import AgentsService
from gpukernel.pool.rpc.callers import check_services
from gpukernel.pool.rpc.hub import HubService
from gpukernel.pool.rpc.metrics import serve_metrics
from gpukernel.pool.rpc.peers import follow_peers
from gpukernel.pool.rpc.pool import PoolService
from gpukernel.pool.rpc.reservations import ReservationsService
from gpukernel.pool.rpc.teaching import TeachingService
from gpukernel.pool.store.store import Store

__all__ = ["RunningPool", "prepare_state", "serve", "write_token"]

log = logging.getLogger(__name__)

WRITE_BACK_SECONDS = 1.0

Service = tuple[Callable[..., None], Any]
"""A function that adds a service to a server, and the service."""

_OPTIONS = [
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.so_reuseport", 0),
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
        Over TCP nobody gets in without a client certificate of the authority in `state`, and no token counts with another's.
    hub_api
        The REST API of a JupyterHub whose tokens count as their persons, as `gpukernel.pool.auth.hub_tokens.HubTokens` wants it.

    Raises
    ------
    PoolError
        When another pool runs on `state`, an address cannot be listened on, or the database cannot be used.
    """
    hub = HubTokens(hub_api) if hub_api else None
    prepare_state(state)
    with _only_one(state):
        store = Store.in_directory(state)
        tls = (
            server_tls(state, certificate, key, require_certificates=require_certificates) if listen else None
        )
        identity = Identity(
            store, _tokens(state) if listen else {}, require_certificates=require_certificates, hub=hub
        )
        manager = LeaseManager(store)
        agents = AgentsService(manager, identity)

        def public() -> Connection:
            return tls.public(listen) if tls else Connection("")

        certify = certifier(state, tls, require_certificates=require_certificates)
        services = _services(manager, store, identity, agents, public, certify)
        check_services(*(service for _, service in services))
        path, behind = socket_path(state), socket_path(state).with_name("inner.sock")
        servers = [_private_server(services, behind)]
        if listen:
            servers.append(_server(services, listen, tls))
        for server in servers:
            await server.start()
        behind.chmod(0o600)
        work = [
            asyncio.create_task(manager.run()),
            asyncio.create_task(_write_back(store)),
            asyncio.create_task(follow_peers(store, manager)),
            asyncio.create_task(identity.open_calls.watch()),
        ]
        try:
            async with contextlib.AsyncExitStack() as listeners:
                await listeners.enter_async_context(
                    serve_with_peer_credentials(path, behind, identity, everybody=everybody)
                )
                containers = make_container_sockets(path.parent)
                containers.chmod(0o711)
                await listeners.enter_async_context(
                    serve_with_peer_credentials(
                        containers / path.name, behind, identity, everybody=True, accounts=False
                    )
                )
                if metrics:
                    await listeners.enter_async_context(serve_metrics(metrics, store, manager))
                address = public().address or listen or f"unix:{path}"
                try:
                    yield RunningPool(manager, agents, address, warning(listen, tls))
                finally:
                    for server in servers:
                        await server.stop(0.5)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            store.close()
            if hub is not None:
                hub.close()


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
) -> tuple[Service, ...]:
    """Return every service with the function that adds it to a server; `public` tells how clients connect over TCP."""
    return (
        (rpc.add_PoolServicer_to_server, PoolService(manager, identity)),
        (rpc.add_AgentsServicer_to_server, agents),
        (
            admin_rpc.add_AdministrationServicer_to_server,
            AdministrationService(manager, store, identity, public, certify),
        ),
        (hub_rpc.add_HubServicer_to_server, HubService(manager, store, identity, certify)),
        (reservations_rpc.add_ReservationsServicer_to_server, ReservationsService(manager, store, identity)),
        (teaching_rpc.add_TeachingServicer_to_server, TeachingService(manager, store, identity)),
    )


def _private_server(services: Iterable[Service], path: Path) -> grpc.aio.Server:
    """Make gRPC's own server, on a socket that only the pool's account may open from the beginning."""
    path.unlink(missing_ok=True)
    before = os.umask(0o177)
    try:
        return _server(services, f"unix:{path}")
    finally:
        os.umask(before)


async def _write_back(store: Store) -> None:
    while not store.shared:
        await asyncio.sleep(WRITE_BACK_SECONDS)
        try:
            await asyncio.to_thread(store.write_back)
        except Exception:  # the log grows until it can be done
            log.exception("the database's log was not written back")


def _server(services: Iterable[Service], address: str, tls: ServerTls | None = None) -> grpc.aio.Server:
    server = grpc.aio.server(options=_OPTIONS)
    for add, service in services:
        add(service, server)
    try:
        port = (
            server.add_secure_port(address, tls.credentials()) if tls else server.add_insecure_port(address)
        )
    except RuntimeError:
        port = 0
    if not port:
        raise PoolError(f"The pool cannot listen on {address}; the address is taken or not this machine's.")
    return server
