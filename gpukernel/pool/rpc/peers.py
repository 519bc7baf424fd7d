"""Peer pools: pools on one PostgreSQL database notify each other with LISTEN and NOTIFY that there is something new in the change log.

A lost notification only costs time: every pool looks once a second anyhow.  A pool that changes much notifies once in `NOTIFY_SECONDS`, but
at once where somebody waits for a change in another pool: a call for its lease, or a GPU server for its orders.  Such a notification names them,
and only a pool that has one of them looks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.store.changes import LeaseChange
from gpukernel.pool.store.database import driver_options
from gpukernel.pool.store.store import Store

__all__ = ["follow_peers"]

log = logging.getLogger(__name__)

CHANNEL = "gpukernel"
RETRY_SECONDS = 2.0

NOTIFY_SECONDS = 0.1
"""Seconds between two notifications of all pools; the first after a time without any goes out at once."""

MOST_BYTES = 7_000  # PostgreSQL takes less than 8,000


async def follow_peers(store: Store, manager: LeaseManager) -> None:
    """Notify peers of what `manager` changes, and have it look when they notify, until cancelled."""
    if not store.shared:
        return
    import psycopg

    changed, pressed, called = asyncio.Event(), asyncio.Event(), asyncio.Event()
    awaited: set[str] = set()
    options = driver_options(store.engine)
    teller: psycopg.AsyncConnection[Any] | None = None

    def written(leases: Sequence[LeaseChange]) -> None:
        if elsewhere := manager.following.awaited_elsewhere(leases):
            awaited.update(elsewhere)
            pressed.set()
        changed.set()

    store.changes.on_written = written

    async def listen() -> None:
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(**options, autocommit=True) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    async for notice in connection.notifies():
                        pool, _, names = notice.payload.partition(" ")
                        if pool != manager.id and (not names or manager.following.awaits(json.loads(names))):
                            called.set()
            except psycopg.Error as error:
                log.warning("the database does not call: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def notify(payload: str) -> None:
        nonlocal teller
        try:
            if teller is None:
                teller = await psycopg.AsyncConnection.connect(**options, autocommit=True)
                await teller.execute("SET synchronous_commit = off")  # what is notified of is in the log
            await teller.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload))
        except psycopg.Error:  # then it costs time
            if teller is not None:
                await teller.close()
                teller = None

    async def tell() -> None:
        clock = asyncio.get_running_loop().time
        told = float("-inf")
        while True:
            await changed.wait()
            if not awaited and (rest := told + NOTIFY_SECONDS - clock()) > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(pressed.wait(), rest)
            payload = f"{manager.id} {json.dumps(sorted(awaited))}"
            if not awaited or clock() >= told + NOTIFY_SECONDS or len(payload) > MOST_BYTES:
                payload, told = manager.id, clock()
                changed.clear()
            awaited.clear()
            pressed.clear()
            await notify(payload)

    async def look() -> None:
        while True:
            await called.wait()
            called.clear()
            with contextlib.suppress(sa.exc.DBAPIError):
                manager.look()

    try:
        async with asyncio.TaskGroup() as tasks:
            for work in (listen, tell, look):
                tasks.create_task(work())
    finally:
        if teller is not None:
            await teller.close()
