"""The pool's process: opens the doors, runs until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio

import gpukernel.pool.proto.pool_pb2_grpc as rpc
from gpukernel.pool.address import socket_path
from gpukernel.pool.broker import Broker
from gpukernel.pool.errors import PoolError
from gpukernel.pool.service import AgentsService, PoolService, TokenCheck
from gpukernel.pool.store import Store

__all__ = ["RunningPool", "prepare_state", "serve", "write_token"]

_OPTIONS = [
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.so_reuseport", 0),
]


class RunningPool:
    """A pool that answers: where, and its parts."""

    def __init__(self, broker: Broker, agents: AgentsService, address: str) -> None:
        self.broker = broker
        self.agents = agents
        self.address = address


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
async def serve(state: Path, listen: str = "") -> AsyncIterator[RunningPool]:
    """Run a pool on the state directory `state`, on its unix socket and, where `listen` is ``HOST:PORT``, on TCP.

    Raises
    ------
    PoolError
        When another pool runs on `state`, or an address cannot be listened on.
    """
    prepare_state(state)
    with _only_one(state):
        store = Store.in_directory(state)
        broker = Broker(store)
        agents = AgentsService(broker)
        path = socket_path(state)
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            servers = [_server(broker, agents, f"unix:{path}")]
        finally:
            os.umask(before)
        address = f"unix:{path}"
        if listen:
            tokens = {"Pool": write_token(state / "pool.token"), "Agents": write_token(state / "agent.token")}
            servers.append(_server(broker, agents, listen, TokenCheck(tokens)))
            address = listen
        for server in servers:
            await server.start()
        path.chmod(0o600)
        clock = asyncio.create_task(broker.run())
        try:
            yield RunningPool(broker, agents, address)
        finally:
            clock.cancel()
            for server in servers:
                await server.stop(0.5)
            store.close()


def _server(broker: Broker, agents: AgentsService, address: str, *checks: TokenCheck) -> grpc.aio.Server:
    server = grpc.aio.server(interceptors=checks, options=_OPTIONS)
    rpc.add_PoolServicer_to_server(PoolService(broker), server)  # type: ignore[no-untyped-call]
    rpc.add_AgentsServicer_to_server(agents, server)  # type: ignore[no-untyped-call]
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if not port:
        raise PoolError(f"The pool cannot listen on {address}; the address is taken or not this machine's.")
    return server
