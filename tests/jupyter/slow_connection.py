"""A slow connection to a pool: a proxy that hands everything on, but later."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType

__all__ = ["SlowConnection"]


class SlowConnection:
    """Context manager; who connects to `address` speaks with the pool at `pool` (a unix socket).

    Attributes
    ----------
    seconds
        How long whatever the pool says is under way from now on; its order stays.
    """

    def __init__(self, pool: str, seconds: float) -> None:
        self.seconds = seconds
        self._path = pool.removeprefix("unix:")
        self._loop = asyncio.new_event_loop()
        self._connections: set[asyncio.Task[None]] = set()
        self.address = ""

    def __enter__(self) -> SlowConnection:
        threading.Thread(target=self._loop.run_forever, name="slow connection", daemon=True).start()
        self.address = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _open(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return "127.0.0.1:{1}".format(*self._server.sockets[0].getsockname())

    async def _close(self) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._hand_on(near, back)
        finally:
            self._connections.discard(task)
            back.close()

    async def _hand_on(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            far, there = await asyncio.open_unix_connection(self._path)
        except OSError:
            return
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def ask() -> None:
            while data := await near.read(65536):
                there.write(data)
            there.close()

        async def hear() -> None:
            while True:
                data = await far.read(65536)
                late.put_nowait((self._loop.time() + self.seconds, data))
                if not data:
                    return

        async def answer() -> None:
            while True:
                due, data = await late.get()
                await asyncio.sleep(due - self._loop.time())
                if not data:
                    return
                back.write(data)

        with contextlib.suppress(OSError):
            await asyncio.gather(ask(), hear(), answer())
        there.close()
