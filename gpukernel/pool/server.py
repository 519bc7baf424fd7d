"""The pool's process: opens the doors, runs until it is told to stop."""

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

import gpukernel.pool.proto.admin_pb2_grpc as admin_rpc
import gpukernel.pool.proto.hub_pb2_grpc as hub_rpc
import gpukernel.pool.proto.pool_pb2_grpc as rpc
import gpukernel.pool.proto.reservations_pb2_grpc as reservations_rpc
import gpukernel.pool.proto.teaching_pb2_grpc as teaching_rpc
from gpukernel.pool.address import door_of, socket_path
from gpukernel.pool.administration import AdministrationService
from gpukernel.pool.beside import listen_to_others
from gpukernel.pool.broker import Broker
from gpukernel.pool.connection import Connection
from gpukernel.pool.door import open_door
from gpukernel.pool.errors import PoolError
from gpukernel.pool.forks import grpc
from gpukernel.pool.hub import HubService
from gpukernel.pool.hub_tokens import HubTokens
from gpukernel.pool.identity import Identity
from gpukernel.pool.metrics import serve_metrics
from gpukernel.pool.reserving import ReservationsService
from gpukernel.pool.service import AgentsService, PoolService
from gpukernel.pool.store import Store
from gpukernel.pool.teaching import TeachingService
from gpukernel.pool.tls import ServerTls, certifier, server_tls, warning

__all__ = ["RunningPool", "prepare_state", "serve", "write_token"]

log = logging.getLogger(__name__)

WRITE_BACK_SECONDS = 1.0

_OPTIONS = [
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.so_reuseport", 0),
]


class RunningPool:
    """A pool that answers: where, its parts, and what its administrator should know of its certificate, else empty."""

    def __init__(self, broker: Broker, agents: AgentsService, address: str, warning: str = "") -> None:
        self.broker = broker
        self.agents = agents
        self.address = address
        self.warning = warning


def prepare_state(state: Path) -> Path:
    """Make the state directory, which others may pass through (to workers' sockets) but not read."""
    state.mkdir(parents=True, exist_ok=True)
    state.chmod(0o711)
    return state


def write_token(path: Path) -> str:
    """The token in `path`, made where it does not exist; only its owner may read it."""
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
        What to show over TCP, where it is not what `gpukernel.pool.certificates.init_authority` made in `state`.  With either,
        TCP is TLS and nothing else.
    require_certificates
        Over TCP nobody gets in without a client certificate of the authority in `state`, and no token counts with another's.
    hub_api
        The REST API of a JupyterHub whose tokens count as their persons, as `gpukernel.pool.hub_tokens.HubTokens` wants it.

    Raises
    ------
    PoolError
        When another pool runs on `state`, an address cannot be listened on, or the database cannot be used.
    """
    hub = HubTokens(hub_api) if hub_api else None
    prepare_state(state)
    with _only_one(state):
        store = Store.in_directory(state)
        tokens = {}
        if listen:
            tokens = {
                "service": write_token(state / "pool.token"),
                "agent": write_token(state / "agent.token"),
            }
        tls = (
            server_tls(state, certificate, key, require_certificates=require_certificates) if listen else None
        )
        certify = certifier(state, tls, require_certificates=require_certificates)
        identity = Identity(store, tokens, require_certificates=require_certificates, hub=hub)
        broker = Broker(store)
        agents = AgentsService(broker, identity)

        def public() -> Connection:
            return tls.public(listen) if tls else Connection("")

        administration = AdministrationService(broker, store, identity, public, certify)
        services = (
            (rpc.add_PoolServicer_to_server, PoolService(broker, identity)),
            (rpc.add_AgentsServicer_to_server, agents),
            (admin_rpc.add_AdministrationServicer_to_server, administration),
            (hub_rpc.add_HubServicer_to_server, HubService(broker, store, identity, certify)),
            (
                reservations_rpc.add_ReservationsServicer_to_server,
                ReservationsService(broker, store, identity),
            ),
            (teaching_rpc.add_TeachingServicer_to_server, TeachingService(broker, store, identity)),
        )
        path, behind = socket_path(state), socket_path(state).with_name("inner.sock")
        behind.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            servers = [_server(services, f"unix:{behind}")]
        finally:
            os.umask(before)
        if listen:
            servers.append(_server(services, listen, tls))
        for server in servers:
            await server.start()
        behind.chmod(0o600)
        clock = asyncio.create_task(broker.run())
        writing = asyncio.create_task(_write_back(store))
        calls = asyncio.create_task(listen_to_others(store, broker))
        try:
            async with contextlib.AsyncExitStack() as doors:
                await doors.enter_async_context(open_door(path, behind, identity, everybody=everybody))
                for_containers = door_of(path.parent)
                for_containers.mkdir(mode=0o711, exist_ok=True)
                for_containers.chmod(0o711)
                await doors.enter_async_context(
                    open_door(for_containers / path.name, behind, identity, everybody=True, accounts=False)
                )
                if metrics:
                    await doors.enter_async_context(serve_metrics(metrics, store, broker))
                try:
                    yield RunningPool(
                        broker,
                        agents,
                        public().address or listen or f"unix:{path}",
                        warning(listen, tls),
                    )
                finally:
                    for server in servers:
                        await server.stop(0.5)
        finally:
            for task in (clock, calls, writing):
                task.cancel()
            await asyncio.gather(clock, calls, writing, return_exceptions=True)
            store.close()
            if hub is not None:
                hub.close()


async def _write_back(store: Store) -> None:
    while not store.shared:
        await asyncio.sleep(WRITE_BACK_SECONDS)
        try:
            await asyncio.to_thread(store.write_back)
        except Exception:  # the log grows until it can be done
            log.exception("the database's log was not written back")


def _server(
    services: Iterable[tuple[Callable[..., None], Any]], address: str, tls: ServerTls | None = None
) -> grpc.aio.Server:
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
