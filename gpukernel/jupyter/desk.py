"""Where a kernel asks for its slice: a unix socket of the process that started it.

The shim asks here when CUDA is first used, ``%gpu`` for everything else.  The lease file names the socket and the kernel's key.
A connection carries one request, a line ``COMMAND KEY [JSON]``; the answer is lines again:

=========== ==========================================================================================
``acquire`` ``waiting SENTENCE`` whenever the place changes, then ``live``, ``left SENTENCE`` or ``refused SENTENCE``; JSON names
            another size.  Closing the connection leaves the place where it is: only an interrupt gives it up.
``show``    ``ok JSON``, the holding as `gpukernel.jupyter.holding.Holding.show` describes it
``watch``   the same again whenever something changes, without end
``release`` ``ok JSON`` or ``refused SENTENCE``
``resize``  ``ok JSON`` or ``refused SENTENCE``; JSON names the size
``cancel``  ``ok JSON``: leaves the queue
=========== ==========================================================================================

Only this user is heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpukernel.jupyter.holding import Holding, SliceUnavailable

if TYPE_CHECKING:
    from gpukernel.pool.model import SliceRequest

__all__ = ["Desk", "request_from"]

LONGEST_LINE = 4096
TELL_SECONDS = 10.0


def request_from(data: Any, before: SliceRequest | None) -> SliceRequest:
    """The size that JSON names: ``share`` or ``memory_mib``, and perhaps ``model`` and ``devices``; the rest as before.

    Raises
    ------
    SliceUnavailable
        It names none that could be.
    """
    from gpukernel.pool.errors import Refused
    from gpukernel.pool.model import SliceRequest
    from gpukernel.pool.placement import check_request

    try:
        memory = int(data["memory_mib"]) * 2**20 if data.get("memory_mib") else None
        share = float(data["share"]) if memory is None and data.get("share") is not None else None
        if memory is None and share is None and before is not None:
            memory, share = before.memory_bytes, before.share
        request = SliceRequest(
            share=share,
            memory_bytes=memory,
            devices=int(data.get("devices") or (before.devices if before else 1)),
            model=str(data.get("model") or (before.model if before else "")),
            mode=before.mode if before else "remote",
            machine=before.machine if before else "",
            user=before.user if before else 0,
        )
        check_request(request)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        raise SliceUnavailable("A size is a share like 0.05, or a number of MiB.") from None
    except Refused as refusal:
        raise SliceUnavailable(str(refusal)) from None
    return request


def _place() -> str:
    from jupyter_core.paths import jupyter_runtime_dir

    from gpukernel.pool.address import short_directory

    runtime = Path(jupyter_runtime_dir()).absolute()
    runtime.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = short_directory(runtime) / f"gpukernel-{os.getpid()}.desk"
    path.unlink(missing_ok=True)
    return str(path)


class Desk:
    """Answers the kernels of one keeper; `holding` finds the one of a key."""

    def __init__(self, holding: Callable[[str], Holding | None]) -> None:
        self._holding = holding
        self._server: asyncio.Server | None = None
        self.path = ""

    async def open(self) -> None:
        """Listen, in the user's runtime directory."""
        path = _place()
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
            gone = asyncio.create_task(reader.read())  # nothing more is said: it ends with the connection
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            for task in (answer, gone):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await answer
        except (OSError, ValueError, asyncio.LimitOverrunError):
            pass  # the kernel is gone, or says what no kernel says
        finally:
            writer.close()

    async def _answer(self, words: list[str], writer: asyncio.StreamWriter) -> None:
        async def say(kind: str, rest: object = "") -> None:
            text = rest if isinstance(rest, str) else json.dumps(rest)
            writer.write(f"{kind} {' '.join(text.split())}".strip().encode() + b"\n")
            await writer.drain()

        command, key, *rest = words
        holding = self._holding(key)
        if holding is None:
            return await say("refused", "This Jupyter server did not start this kernel, or has ended it.")
        try:
            data = json.loads(rest[0]) if rest and rest[0].strip() else {}
            if command == "acquire":
                await self._acquire(holding, data, say)
            elif command == "watch":
                while True:
                    await say("ok", await holding.show(fresh=False))
                    await holding.change()
            elif command in ("show", "release", "resize", "cancel"):
                if command == "release":
                    holding.may_be_released()
                    await holding.release("released in its notebook")
                elif command == "cancel":
                    holding.leave("the request was cancelled; run the cell again to queue again")
                elif command == "resize":
                    await holding.resize(request_from(data, holding.request))
                await say("ok", await holding.show())
            else:
                await say("refused", f"Nobody knows what “{command[:40]}” is.")
        except SliceUnavailable as error:
            await say("refused", str(error))
        except ValueError:
            await say("refused", "That was no JSON.")

    async def _acquire(self, holding: Holding, data: dict[str, Any], say: Callable[..., Any]) -> None:
        if data and holding.state in ("none", "ended"):
            holding.request = request_from(data, holding.request)
        elif data and request_from(data, holding.request) != holding.request:
            has = "holds" if holding.state == "live" else "waits for"
            raise SliceUnavailable(
                f"This kernel {has} {holding.what()} already; use “%gpu resize”, or “%gpu release” first."
            )
        await holding.check()
        holding.begin()
        holding.askers += 1
        try:
            # Most slices come within the first moment: no line is drawn for those.
            if not await holding.settled(0.3):
                while holding.state == "waiting":
                    await say("waiting", holding.words())
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(holding.change(), TELL_SECONDS)
        finally:
            holding.askers -= 1
        if holding.state == "live":
            await say("live")
        elif holding.state == "none":
            await say("left", holding.sentence)
        else:
            await say("refused", holding.sentence)
