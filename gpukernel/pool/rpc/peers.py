"""Peer pools: pools on one PostgreSQL database notify each other with LISTEN and NOTIFY that there is something new in the change log.

A lost notification only costs time: every pool looks once a second anyhow.  A pool that changes much notifies once in `NOTIFY_SECONDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import sqlalchemy as sa

from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.store.database import driver_options
from gpukernel.pool.store.store import Store

__all__ = ["follow_peers"]

log = logging.getLogger(__name__)

CHANNEL = "gpukernel"
RETRY_SECONDS = 2.0

NOTIFY_SECONDS = 0.1
"""Seconds between two notifications; the first after a time without any goes out at once."""


async def follow_peers(store: Store, manager: LeaseManager) -> None:
    """Notify peers of what `manager` changes, and have it look when they notify, until cancelled."""
    if not store.shared:
        return
    import psycopg

    changed, called = asyncio.Event(), asyncio.Event()
    store.changes.on_written = changed.set
    options = driver_options(store.engine)

    async def listen() -> None:
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(**options, autocommit=True) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    async for notice in connection.notifies():
                        if notice.payload != manager.id:
                            called.set()
            except psycopg.Error as error:
                log.warning("the database does not call: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def tell() -> None:
        while True:
            await changed.wait()
            changed.clear()
            with contextlib.suppress(sa.exc.DBAPIError), store.engine.begin() as db:
                db.execute(sa.select(sa.func.pg_notify(CHANNEL, manager.id)))
            await asyncio.sleep(NOTIFY_SECONDS)

    async def look() -> None:
        while True:
            await called.wait()
            called.clear()
            with contextlib.suppress(sa.exc.DBAPIError):
                manager.look()

    async with asyncio.TaskGroup() as tasks:
        for work in (listen, tell, look):
            tasks.create_task(work())
