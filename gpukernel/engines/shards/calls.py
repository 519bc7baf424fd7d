"""The socket on which programs of a node's jobs ask for their slice; the shim speaks here as with a Jupyter server.

A line ``acquire JOB`` is answered by lines: ``waiting SENTENCE``, whenever what it waits for changes, then ``live`` or ``refused SENTENCE``.

Everybody on the node may connect; the kernel says which account calls, and only a job's own account gets an answer about it, and root.  A line has a bound, silence ends the call, and one account makes few calls at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

__all__ = ["Calls"]

log = logging.getLogger(__name__)

LONGEST_LINE = 256
MOST_OF_AN_ACCOUNT = 512
SILENT_SECONDS = 5.0
FULL_SECONDS = 0.5

Answers = Callable[[str, int], AsyncIterator[tuple[str, str]]]
"""A function of a job and the calling account that gives pairs of a word and a sentence."""


class Calls:
    """The server's side."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._now = Counter[int]()

    async def serve(self, path: Path) -> None:
        """Answer until this is cancelled."""
        draft = path.with_name(f".{path.name}")
        draft.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with listening:
            listening.bind(str(draft))
            draft.chmod(0o666)
            listening.listen(128)
            draft.rename(path)  # there is a socket at every moment, of the daemon before or of this one
            async with asyncio.TaskGroup() as calls:
                while True:
                    try:
                        link, _ = await asyncio.get_running_loop().sock_accept(listening)
                    except OSError as error:  # of open files there may be no more: one that is open may end
                        log.warning("nobody is let in: %s", error.strerror)
                        await asyncio.sleep(FULL_SECONDS)
                        continue
                    user = _caller(link)
                    if self._now[user] >= MOST_OF_AN_ACCOUNT:
                        link.close()
                        continue
                    self._now[user] += 1
                    calls.create_task(self._call(link, user))

    async def _call(self, link: socket.socket, user: int) -> None:
        writer = None
        try:
            reader, writer = await asyncio.open_unix_connection(sock=link, limit=LONGEST_LINE)
            line = await asyncio.wait_for(reader.readline(), SILENT_SECONDS)
            answer = asyncio.create_task(self._answer(line.decode().split(), user, writer))
            gone = asyncio.create_task(reader.read(1))  # nothing more comes: this ends with the connection
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            answer.cancel()
            await asyncio.wait({answer, gone})
        except (OSError, ValueError, TimeoutError):
            pass  # gone, or no line
        finally:
            self._now[user] -= 1
            if writer is not None:
                writer.close()

    async def _answer(self, words: list[str], user: int, writer: asyncio.StreamWriter) -> None:
        async def say(word: str, sentence: str) -> None:
            writer.write(f"{word} {' '.join(sentence.split())}".strip().encode() + b"\n")
            await writer.drain()

        with contextlib.suppress(OSError):  # the program is gone
            if len(words) != 2 or words[0] != "acquire":
                await say(
                    "refused", "A job's slice is asked for with “acquire”, and has the size of its shards."
                )
                return
            async with contextlib.aclosing(self._answers(words[1], user)) as lines:  # type: ignore[type-var]
                async for word, sentence in lines:
                    await say(word, sentence)


def _caller(link: socket.socket) -> int:
    """Return the number of the account at the other end (``unix(7)``, ``SO_PEERCRED``)."""
    _, user, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(user)
