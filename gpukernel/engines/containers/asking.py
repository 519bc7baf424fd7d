"""The socket in a container on which its programs ask for their slice when they first use CUDA.

The shim speaks here as with a Jupyter server (`gpukernel.jupyter.kernel_socket`): a line ``acquire KEY``, and lines as the answer,
``waiting SENTENCE`` whenever the place changes, then ``live`` or ``refused SENTENCE``.  A program that goes away leaves the queue.

Whoever is in the container may call, and is a stranger: few are heard at a time, a line has a bound, and silence ends the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable

from gpukernel.common.errors import PoolError
from gpukernel.common.model import Queued
from gpukernel.engines.containers.bundle import BundleError

__all__ = ["Asking"]

log = logging.getLogger(__name__)

LONGEST_LINE = 4096
MOST_CALLS = 32
SILENT_SECONDS = 5.0
FULL_SECONDS = 0.2


class Asking:
    """The server's side of calls.

    Parameters
    ----------
    acquire
        Has the slice held and the lease file written; it is given a function that is told each place in the queue.
    """

    def __init__(self, acquire: Callable[[Callable[[Queued], Awaitable[None]]], Awaitable[None]]) -> None:
        self._acquire = acquire

    async def serve(self, listening: socket.socket) -> None:
        """Answer calls, until this is cancelled; beyond `MOST_CALLS` they wait in the kernel's queue of connections."""
        listening.setblocking(False)
        places = asyncio.Semaphore(MOST_CALLS)
        try:
            async with asyncio.TaskGroup() as calls:
                while True:
                    await places.acquire()
                    try:
                        link, _ = await asyncio.get_running_loop().sock_accept(listening)
                    except OSError as error:  # of open files there may be no more: one that is open may end
                        places.release()
                        log.warning("nobody is let in: %s", error.strerror)
                        await asyncio.sleep(FULL_SECONDS)
                        continue
                    call = calls.create_task(self._call(link))
                    call.add_done_callback(lambda _: places.release())
        finally:
            listening.close()

    async def _call(self, link: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=link, limit=LONGEST_LINE)
        try:
            line = await asyncio.wait_for(reader.readline(), SILENT_SECONDS)
            answer = asyncio.create_task(self._answer(line.split()[:1], writer))
            gone = asyncio.create_task(reader.read(1))  # nothing more comes: this ends with the connection
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            answer.cancel()
            await asyncio.wait({answer, gone})
            if not answer.cancelled() and (error := answer.exception()):
                log.error("a container's program could not be answered", exc_info=error)
        except (OSError, ValueError, TimeoutError):
            pass  # gone, or no line
        finally:
            writer.close()

    async def _answer(self, words: list[bytes], writer: asyncio.StreamWriter) -> None:
        async def say(kind: str, sentence: str = "") -> None:
            writer.write(f"{kind} {' '.join(sentence.split())}".strip().encode() + b"\n")
            await writer.drain()

        async def waiting(place: Queued) -> None:
            about = f", about {place.estimate_seconds:.0f} s to go" if place.estimate_seconds >= 0 else ""
            await say("waiting", f"position {place.position} in the queue{about}: {place.reason}")

        with contextlib.suppress(OSError):  # the program is gone
            if words != [b"acquire"]:
                await say(
                    "refused", "A container's slice is asked for with “acquire”; resize it from outside."
                )
            else:
                try:
                    await self._acquire(waiting)
                except (PoolError, BundleError) as error:
                    await say("refused", str(error))
                else:
                    await say("live")
