"""The Hub's connection to the pool: one for each address and event loop, which comes back by itself when the pool does."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from gpukernel.pool.address import resolve_address
from gpukernel.pool.connection import Connection, read_connection_file
from gpukernel.pool.errors import PoolUnreachable
from gpukernel.pool.hub_client import HubClient

__all__ = ["hub_client", "read_credentials", "server_name", "while_it_is_away"]

T = TypeVar("T")

CALL_SECONDS = 30.0
"""How long a call may take; most of it may pass in a Hub at which a whole class signs in, while the pool has answered long ago."""

_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], HubClient]] = (
    weakref.WeakKeyDictionary()
)


async def hub_client(address: str, token_file: str = "") -> HubClient:
    """The client of the pool at `address`; empty where every command looks for one.

    Raises
    ------
    PoolError
        The address has no form that addresses have, or the token cannot be read.
    """
    known = _clients.setdefault(asyncio.get_running_loop(), {})
    if (address, token_file) not in known:
        client = HubClient(resolve_address(address or None), read_credentials(token_file))
        client.patience = CALL_SECONDS
        known[address, token_file] = await client.__aenter__()
    return known[address, token_file]


def server_name(hub: str, name: str) -> str:
    """What the pool calls a person's server of this Hub."""
    return f"{hub}/{name}" if name else hub


def read_credentials(path: str) -> Connection | None:
    """What a file with a token, or a connection file, says, where one is named; raises `PoolError` where there is none."""
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
