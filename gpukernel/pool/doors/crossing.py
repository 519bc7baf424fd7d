"""Crossing: calls arrive in the I/O thread, and their handlers run in the deciding thread.

gRPC's event loop runs in a thread of its own, in which nothing else happens than receiving, checking and sending: no database call, no
decision.  So pings are answered, streams stay open and other calls are taken in whatever a decision costs.  Handlers, with the lease
manager and the database's one writing connection, run in the loop of the thread that started the pool, one step after the other, which
is what makes a decision one transaction that nobody interleaves.

Guarantees
----------
* A handler sees calls in the order in which they arrived, and the messages of a stream in theirs.
* A call that its client gives up is cancelled in the deciding thread; a handler's generator is closed there.
* What a stream buffers in either direction is bounded (`AHEAD`): who does not read is not written to, and who is not read from waits.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

__all__ = ["Aborted", "CallContext", "IoThread", "answer", "answers"]

T = TypeVar("T")

AHEAD = 64
REQUESTS_AHEAD = 4
"""Answers of a stream, and messages of its caller, that have crossed and are not yet taken."""


class Aborted(Exception):
    """The end of a call by its handler, on its way to gRPC."""

    def __init__(self, code: grpc.StatusCode, details: str, trailing: tuple[Any, ...]) -> None:
        super().__init__(details)
        self.code, self.details, self.trailing = code, details, trailing


class CallContext:
    """The context of a call as its handler sees it: what `grpc.aio.ServicerContext` knew when the call came.

    Attributes
    ----------
    on_caller
        Is told, in the deciding thread, whose call it is, once that is known: the name, whether they stand for many, whether their calls are
        counted, and whether they speak for others.
    on_begun
        Is told, in the deciding thread, that the handler has done what it does at once: whatever it awaits is another's turn.
    """

    def __init__(
        self,
        context: Any,
        on_caller: Callable[[str, bool, bool, bool], None],
        on_begun: Callable[[], None] = lambda: None,
    ) -> None:
        self._metadata = tuple(context.invocation_metadata() or ())
        self._peer = context.peer()
        self._auth = context.auth_context()
        self.on_caller, self.on_begun = on_caller, on_begun

    def invocation_metadata(self) -> tuple[Any, ...]:
        """See `grpc.aio.ServicerContext`."""
        return self._metadata

    def peer(self) -> str:
        """See `grpc.aio.ServicerContext`."""
        return str(self._peer)

    def auth_context(self) -> Any:
        """See `grpc.aio.ServicerContext`."""
        return self._auth

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """See `grpc.aio.ServicerContext`."""
        raise Aborted(code, details, tuple(trailing_metadata))


class IoThread:
    """A thread with an event loop; a context manager, entered in the deciding loop.

    Attributes
    ----------
    loop
        Its loop.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="gpukernel-io", daemon=True)

    @property
    def ident(self) -> int | None:
        """Return the thread's number, as `threading.get_ident` gives it there."""
        return self._thread.ident

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def __enter__(self) -> IoThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _end(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self.loop.shutdown_asyncgens()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, and return what it returns."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))


async def answer(
    deciding: asyncio.AbstractEventLoop,
    work: Callable[[], Awaitable[T]],
    on_begun: Callable[[], None] = lambda: None,
) -> T:
    """Await `work`, a handler's call, in the deciding loop; to be called in the I/O loop.

    A call that is given up before it has begun never begins: who sends hundreds and gives each up at once makes nobody wait.

    Parameters
    ----------
    on_begun
        Is called in the deciding loop when `work` first awaits something.
    """
    done: concurrent.futures.Future[T] = concurrent.futures.Future()

    def begin() -> None:
        if done.cancelled():
            return
        task = asyncio.ensure_future(work())
        done.add_done_callback(
            lambda _: deciding.call_soon_threadsafe(task.cancel) if done.cancelled() else None
        )
        task.add_done_callback(ended)
        deciding.call_soon(on_begun)  # after the task's first step

    def ended(task: asyncio.Future[T]) -> None:
        if done.cancelled() or not done.set_running_or_notify_cancel():
            task.cancelled() or task.exception()
        elif task.cancelled():
            done.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            done.set_exception(error)
        else:
            done.set_result(task.result())

    deciding.call_soon_threadsafe(begin)
    return await asyncio.wrap_future(done)


class _Conveyor:
    """A bounded queue from one loop to another: `put` there, iterate here."""

    def __init__(
        self, source: asyncio.AbstractEventLoop, target: asyncio.AbstractEventLoop, ahead: int = AHEAD
    ) -> None:
        self._source, self._target = source, target
        self._items: asyncio.Queue[tuple[Any, BaseException | None]] = asyncio.Queue()
        self._room = asyncio.Semaphore(ahead)

    async def put(self, item: Any) -> None:
        """Send one item; waits while `ahead` of them are not taken."""
        await self._room.acquire()
        self._target.call_soon_threadsafe(self._items.put_nowait, (item, None))

    def end(self, error: BaseException) -> None:
        """Send the last: `StopAsyncIteration`, or an error that is raised where the items are taken."""
        with contextlib.suppress(RuntimeError):  # that loop is closed
            self._target.call_soon_threadsafe(self._items.put_nowait, (None, error))

    async def __aiter__(self) -> AsyncIterator[Any]:
        while True:
            item, error = await self._items.get()
            if isinstance(error, StopAsyncIteration):
                return
            if error is not None:
                raise error
            with contextlib.suppress(RuntimeError):
                self._source.call_soon_threadsafe(self._room.release)
            yield item


async def answers(
    deciding: asyncio.AbstractEventLoop,
    work: Callable[[Any], AsyncIterator[Any]],
    on_begun: Callable[[], None],
    requests: AsyncIterator[Any] | None = None,
) -> AsyncIterator[Any]:
    """Iterate over `work`, a handler's call, which runs in the deciding loop; to be called in the I/O loop.

    As with `answer`, what is given up before it has begun never begins.

    Parameters
    ----------
    work
        Is given the requests as an iterator of the deciding loop, or None.
    on_begun
        Is called in the deciding loop when `work` first awaits something.
    """
    io = asyncio.get_running_loop()
    back = _Conveyor(deciding, io)
    there = _Conveyor(io, deciding, REQUESTS_AHEAD) if requests is not None else None
    running: list[asyncio.Task[None]] = []
    given_up = False

    async def handle() -> None:
        try:
            replies = work(aiter(there) if there is not None else None)
            async with contextlib.aclosing(replies):  # type: ignore[type-var]
                async for reply in replies:
                    await back.put(reply)
        except BaseException as error:
            back.end(error)
            raise
        back.end(StopAsyncIteration())

    def begin() -> None:
        if given_up:
            return
        task = asyncio.ensure_future(handle())
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        running.append(task)
        deciding.call_soon(on_begun)  # after the task's first step

    async def feed() -> None:
        assert requests is not None
        assert there is not None
        try:
            async for request in requests:
                await there.put(request)
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass
        except Exception as error:
            back.end(error)  # a message was refused: the call ends, whatever its handler does
        finally:
            there.end(StopAsyncIteration())

    deciding.call_soon_threadsafe(begin)
    feeding = asyncio.ensure_future(feed()) if there is not None else None
    try:
        async for reply in aiter(back):
            yield reply
    finally:
        given_up = True
        if feeding is not None:
            feeding.cancel()
        with contextlib.suppress(RuntimeError):
            deciding.call_soon_threadsafe(lambda: running[0].cancel() if running else None)
