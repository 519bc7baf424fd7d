"""The Hub's connection to the pool: one for each address, state of the connection file and event loop; it connects again by itself when the pool is back."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from gpukernel.client.hub import HubClient
from gpukernel.common.address import are_network_addresses, resolve_address
from gpukernel.common.connection import Connection, read_connection_file
from gpukernel.common.errors import PoolUnreachable

__all__ = ["connection_file", "hub_client", "read_credentials", "server_name", "while_it_is_away"]

T = TypeVar("T")

CALL_SECONDS = 30.0
"""The longest time of a call; most of it may pass in a Hub at which a whole class signs in, while the pool has answered long ago."""

_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str, float], HubClient]] = (
    weakref.WeakKeyDictionary()
)


async def hub_client(address: str, token_file: str = "") -> HubClient:
    """Return the client of the pool at `address`; an empty one is looked up where every command looks.

    Raises
    ------
    PoolError
        The address has no form that addresses have, or the token cannot be read.
    """
    known = _clients.setdefault(asyncio.get_running_loop(), {})
    resolved = resolve_address(address or None)
    key = address, token_file, changed_at(connection_file(resolved, token_file))
    if key not in known:
        client = HubClient(resolved, read_credentials(token_file))
        client.patience = CALL_SECONDS
        known[key] = await client.__aenter__()
    return known[key]


def connection_file(resolved: str, token_file: str) -> Path | None:
    """Return the file with the credentials, where there is one: the address itself, or the token's file."""
    if not (resolved.startswith("unix:") or are_network_addresses(resolved)):
        return Path(resolved)
    return Path(token_file) if token_file else None


def changed_at(path: Path | None) -> float:
    """Return when a file was changed last: its certificate is renewed while the Hub runs; 0 where there is none."""
    try:
        return path.stat().st_mtime if path is not None else 0.0
    except OSError:
        return 0.0


def server_name(hub: str, name: str) -> str:
    """Return the pool's name for a person's server of this Hub."""
    return f"{hub}/{name}" if name else hub


def read_credentials(path: str) -> Connection | None:
    """Return the credentials in a token file or connection file, where one is named; raises `PoolError` where it
    cannot be read.
    """
    return read_connection_file(Path(path)) if path else None


async def while_it_is_away(ask: Callable[[], Awaitable[T]], patience: float) -> T:
    """Ask again, for `patience` seconds, where the pool does not answer: it may be starting again."""
    loop = asyncio.get_running_loop()
    end = loop.time() + patience
    while True:
        try:
            return await ask()
        except PoolUnreachable:
            if loop.time() > end:
                raise
            await asyncio.sleep(0.5)
