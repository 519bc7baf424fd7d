"""The clock of a pool process: its lease manager's work of each second, through whatever the database does."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import sqlalchemy as sa

from gpukernel.pool.store.database import is_away, sentence_of_database

if TYPE_CHECKING:
    from gpukernel.pool.leases.manager import LeaseManager

__all__ = ["run_clock"]

log = logging.getLogger(__name__)

TURNS_OF_A_CALL = 12

REST_SECONDS = 0.01
"""Seconds between two parts of a second's work, in which a call may come to its end: it waits for one of them at most."""

RESTS_SECONDS = 0.5
"""Seconds of one second's work that may go by between its parts: where a turn of the loop takes long, the rest is done at once."""


async def run_clock(manager: LeaseManager, every: float = 1.0) -> None:
    """Have `manager` tick until cancelled; a database that is away comes back, and the clock goes on until then."""
    while True:
        manager.standstill.awake()
        await asyncio.sleep(every)
        manager.standstill.awake()
        try:
            if manager.store.leases.expired(manager.steady()):
                await _receive_pending()
            loop = asyncio.get_running_loop()
            rests_until = loop.time() + RESTS_SECONDS
            for _ in manager.parts_of_tick():
                if loop.time() < rests_until:  # or other pools would miss this one's signs of life
                    await asyncio.sleep(REST_SECONDS)
            manager.outages.answered()
        except sa.exc.DBAPIError as error:
            if is_away(error):
                manager.store.counters.add("database_errors")
                log.error("the database does not answer: %s", sentence_of_database(error))
            else:
                log.exception("the clock's work was not done")
        except Exception:
            log.exception("the clock's work was not done")


async def _receive_pending() -> None:
    """Let calls that have arrived come to their end: a renewal that waits in this process counts.

    A call takes some turns of the loop, and where a class starts its kernels on the pool's own machine a turn may take a second.
    """
    for _ in range(TURNS_OF_A_CALL):
        await asyncio.sleep(0.01)
