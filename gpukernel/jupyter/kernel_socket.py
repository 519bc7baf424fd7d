"""The unix socket on which a kernel's programs ask for its slice; the process that started the kernel listens.

The shim asks here when CUDA is first used, ``%gpu`` for everything else.  The lease file names the socket and the kernel's key.
A connection carries one request, a line ``COMMAND KEY [JSON]``; the answer is lines again:

=========== ==========================================================================================
``acquire`` ``waiting SENTENCE`` whenever the place changes, then ``live``, ``left SENTENCE`` or ``refused SENTENCE``; JSON names
            another size.  Closing the connection leaves the place where it is: only an interrupt gives it up.
``show``    ``ok JSON``, the kernel's `gpukernel.jupyter.kernel_status.KernelStatus`
``watch``   the same again whenever something changes, without end
``release`` ``ok JSON`` or ``refused SENTENCE``
``resize``  ``ok JSON`` or ``refused SENTENCE``; JSON names the size
``cancel``  ``ok JSON``: leaves the queue
``report``  ``ok JSON``; JSON is ``{"trouble": …}``, what became of the latest cell (`gpukernel.jupyter.trouble.next_step.Trouble`)
=========== ==========================================================================================

Only this user is heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast, get_args

from gpukernel.jupyter.errors import SliceUnavailable
from gpukernel.jupyter.kernel_lease import KernelLease
from gpukernel.jupyter.slice_size import request_from, request_words
from gpukernel.jupyter.trouble.next_step import Trouble

__all__ = ["KernelSocket"]

log = logging.getLogger(__name__)

LONGEST_LINE = 4096
TELL_SECONDS = 10.0
QUIET_SECONDS = 0.3
"""Most slices come within this time: no line is drawn for those."""

Say = Callable[..., Awaitable[None]]


def _socket_path() -> str:
    from jupyter_core.paths import jupyter_runtime_dir

    from gpukernel.common.address import short_directory

    runtime = Path(jupyter_runtime_dir()).absolute()
    runtime.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = short_directory(runtime) / f"gpukernel-{os.getpid()}.sock"
    path.unlink(missing_ok=True)
    return str(path)


def _trouble(data: Any) -> Trouble:
    trouble: Any = data.get("trouble") if isinstance(data, dict) else None
    if trouble not in get_args(Trouble):
        raise SliceUnavailable("A trouble is “fault”, “memory”, or empty.")
    return cast(Trouble, trouble)


class KernelSocket:
    """The server of the socket.

    Parameters
    ----------
    find
        Gives the lease of a kernel's key, or None.

    Attributes
    ----------
    path
        The socket's path; empty before `open`.
    """

    def __init__(self, find: Callable[[str], KernelLease | None]) -> None:
        self._find = find
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()
        self.path = ""

    async def open(self) -> None:
        """Listen, in the user's runtime directory; changes nothing where it listens already."""
        async with self._opening:
            if self._server is not None:
                return
            path = _socket_path()
            self._server = await asyncio.start_unix_server(self._serve, path, limit=LONGEST_LINE)
            os.chmod(path, 0o600)
            self.path = path

    async def close(self) -> None:
        """Listen no longer."""
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("socket")
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        try:
            if struct.unpack("3i", credentials)[1] != os.getuid():
                return
            words = (await reader.readline()).decode(errors="replace").split(maxsplit=2)
            if len(words) < 2:
                return
            answer = asyncio.create_task(self._answer(words, writer))
            gone = asyncio.create_task(
                reader.read()
            )  # the client sends nothing more: this ends with the connection
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            for task in (answer, gone):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await answer
        except (OSError, ValueError, asyncio.LimitOverrunError):
            pass  # the kernel is gone, or its request is malformed
        finally:
            writer.close()

    async def _answer(self, words: list[str], writer: asyncio.StreamWriter) -> None:
        async def say(kind: str, rest: object = "") -> None:
            text = rest if isinstance(rest, str) else json.dumps(rest)
            writer.write(f"{kind} {' '.join(text.split())}".strip().encode() + b"\n")
            await writer.drain()

        command, key, *rest = words
        lease = self._find(key)
        if lease is None:
            return await say("refused", "This Jupyter server did not start this kernel, or has ended it.")
        try:
            data = json.loads(rest[0]) if rest and rest[0].strip() else {}
            if command == "acquire":
                await self._acquire(lease, data, say)
            elif command == "watch":
                while True:
                    change = lease.change()
                    await say("ok", lease.status().as_json())
                    await change.wait()
            elif command == "report":
                await lease.report(_trouble(data))
                await say("ok", lease.status().as_json())
            elif command in ("show", "release", "resize", "cancel"):
                if command != "show":
                    await lease.command(command, data)
                await lease.check()
                await say("ok", lease.status().as_json())
            else:
                await say("refused", f"Nobody knows what “{command[:40]}” is.")
        except SliceUnavailable as error:
            await say("refused", str(error))
        except ValueError:
            await say("refused", "That was no JSON.")
        except OSError:
            raise  # the kernel is gone
        except Exception:
            log.exception("kernel %s: “%s” failed", key, command[:40])
            await say("refused", "That failed in the kernel's Jupyter server, whose log says why.")

    async def _acquire(self, lease: KernelLease, data: dict[str, Any], say: Say) -> None:
        if data and lease.state in ("waiting", "live") and request_from(data, lease.request) != lease.request:
            has = "holds" if lease.state == "live" else "waits for"
            raise SliceUnavailable(
                f"This kernel {has} {request_words(lease.request)} already; use “%gpu resize”, or “%gpu release” first."
            )
        await lease.command("acquire", data)
        lease.askers += 1
        try:
            if not await lease.settled(QUIET_SECONDS):
                while lease.state == "waiting" and not lease.dismissed:
                    change = lease.change()
                    await say("waiting", lease.place_words())
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(change.wait(), TELL_SECONDS)
        finally:
            lease.askers -= 1
        if lease.state == "live":
            await say("live")
        elif lease.state == "waiting":
            await say("left", "the kernel is about to end")
        elif lease.state == "none":
            await say("left", lease.sentence)
        else:
            await say("refused", lease.sentence)
