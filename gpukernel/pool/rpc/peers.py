"""Peer pools: pools on one PostgreSQL database notify each other with LISTEN and NOTIFY that there is something new in the change log.

A lost notification only costs time: every pool looks once a second anyhow.  A pool that changes much notifies once in `NOTIFY_SECONDS`, but
with the commit itself where somebody waits for a change in another pool: a call for its lease, or a GPU server for its orders.  Such a
notification names them, and only a pool that has one of them looks.
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
from gpukernel.pool.store.changes import CHANNEL, LeaseChange
from gpukernel.pool.store.database import driver_options
from gpukernel.pool.store.store import Store

__all__ = ["follow_peers"]

log = logging.getLogger(__name__)

RETRY_SECONDS = 2.0

NOTIFY_SECONDS = 0.1
"""Seconds between two notifications of all pools; the first after a time without any goes out at once."""

MOST_BYTES = 7_000  # PostgreSQL takes less than 8,000


async def follow_peers(store: Store, manager: LeaseManager) -> None:
    """Notify peers of what `manager` changes, have it look when they notify, and end transactions of frozen ones, until cancelled."""
    if not store.shared:
        return
    import psycopg

    changed, called = asyncio.Event(), asyncio.Event()
    clock = asyncio.get_running_loop().time
    told = float("-inf")
    options = driver_options(store.engine)
    teller: psycopg.AsyncConnection[Any] | None = None

    def writing(leases: Sequence[LeaseChange]) -> str:
        """Return what a commit notifies the others of: what they wait for, or, where that is too much, that all have to look."""
        if not (awaited := manager.following.awaited_elsewhere(leases)):
            return ""
        payload = f"{manager.id} {json.dumps(sorted(awaited))}"
        return payload if len(payload) <= MOST_BYTES else manager.id

    def written(payload: str) -> None:
        nonlocal told
        if payload and not changed.is_set():
            told = clock()  # those who do not wait for it have time, and leave the processors to those who do
        if payload != manager.id:
            changed.set()

    store.changes.on_writing, store.changes.on_written = writing, written

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

    async def notify() -> None:
        nonlocal teller
        try:
            if teller is None:
                teller = await psycopg.AsyncConnection.connect(**options, autocommit=True)
                await teller.execute("SET synchronous_commit = off")  # what is notified of is in the log
            await teller.execute("SELECT pg_notify(%s, %s)", (CHANNEL, manager.id))
        except psycopg.Error:  # then it costs time
            if teller is not None:
                await teller.close()
                teller = None

    async def tell() -> None:
        nonlocal told
        while True:
            await changed.wait()
            if (rest := told + NOTIFY_SECONDS - clock()) > 0:
                await asyncio.sleep(rest)
            else:
                told = clock()
                changed.clear()
                await notify()

    async def look() -> None:
        while True:
            await called.wait()
            called.clear()
            with contextlib.suppress(sa.exc.DBAPIError):
                manager.look()

    store.frozen_pools.watch()
    try:
        async with asyncio.TaskGroup() as tasks:
            for work in (listen, tell, look):
                tasks.create_task(work())
    finally:
        await asyncio.to_thread(store.frozen_pools.close)
        if teller is not None:
            await teller.close()
