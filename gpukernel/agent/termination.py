"""Termination of processes: SIGTERM first, SIGKILL where that is not enough.

Guarantees
----------
* A signal reaches only the process that was meant: it is sent through a pidfd, after start time and user were compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Iterable

from gpukernel.agent.processes import ProcessIdentity, identity

__all__ = ["terminate"]

log = logging.getLogger(__name__)

TERM_SECONDS = 3.0
KILL_SECONDS = 10.0


async def terminate(processes: Iterable[ProcessIdentity]) -> None:
    """End `processes`; return when they are dead, or after `TERM_SECONDS` and `KILL_SECONDS`."""
    await asyncio.gather(*(_terminate_one(process) for process in processes))


async def _terminate_one(process: ProcessIdentity) -> None:
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return
    dead = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        now = identity(process.pid)
        if now is None or (now.start, now.user) != (process.start, process.user):
            return
        loop.add_reader(descriptor, dead.set)
        for number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            try:
                signal.pidfd_send_signal(descriptor, number)
            except PermissionError:
                log.error("process %d (%s) cannot be stopped by this agent", process.pid, process.command)
                return
            except ProcessLookupError:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await dead.wait()
                    return
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
