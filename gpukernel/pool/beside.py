"""Pools side by side on one PostgreSQL database call each other when something has changed.

A call that is lost costs nothing but time: every pool looks once a second anyhow.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import sqlalchemy as sa

from gpukernel.pool.broker import Broker
from gpukernel.pool.store import Conflict, Store

__all__ = ["listen_to_others"]

log = logging.getLogger(__name__)

CHANNEL = "gpukernel"
RETRY_SECONDS = 2.0


async def listen_to_others(store: Store, broker: Broker) -> None:
    """Until cancelled: tell the others what `broker` changes, and have it look when they call."""
    if not store.shared:
        return
    import psycopg

    changed, called = asyncio.Event(), asyncio.Event()
    broker.on_change = changed.set
    address = store.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)

    async def listen() -> None:
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    async for notice in connection.notifies():
                        if notice.payload != broker.id:
                            called.set()
            except psycopg.Error as error:
                log.warning("the database does not call: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def tell() -> None:
        while True:
            await changed.wait()
            changed.clear()
            with contextlib.suppress(sa.exc.DBAPIError), store.engine.begin() as db:
                db.execute(sa.select(sa.func.pg_notify(CHANNEL, broker.id)))

    async def look() -> None:
        while True:
            await called.wait()
            called.clear()
            with contextlib.suppress(Conflict, sa.exc.DBAPIError):
                broker.look()
                broker.pump()

    async with asyncio.TaskGroup() as tasks:
        for work in (listen, tell, look):
            tasks.create_task(work())
