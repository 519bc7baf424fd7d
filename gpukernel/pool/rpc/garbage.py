"""The garbage collection of a service that answers: between its answers, and not in the middle of one.

Python looks for unreachable cycles when many objects were made, and so while it makes them; where hundreds of thousands live, that takes
tens of milliseconds of a decision.  Here the oldest are looked at by the clock, and those that lived then are left out the next times.
"""

from __future__ import annotations

import asyncio
import gc

__all__ = ["collect_by_the_clock"]

NEW_SECONDS = 30.0
"""Seconds between two looks at what was made since the last one."""

ALL_LOOKS = 20
"""Looks after which everything is looked at: what became a cycle after it was looked at is garbage for so long."""

NEVER = 1 << 30


async def collect_by_the_clock() -> None:
    """Collect garbage until cancelled; then Python does so by itself again."""
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], NEVER)
    looks = 0
    try:
        while True:
            if looks % ALL_LOOKS == 0:
                gc.unfreeze()
            gc.collect()
            gc.freeze()
            looks += 1
            await asyncio.sleep(NEW_SECONDS)
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
