"""Connections whose other side says nothing, or has much to say on a slow line."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from gpukernel.common.connection import Connection, keepalive

ANSWER = b"x" * 2_000_000
BYTES_A_SECOND = 300_000


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[int]:
    """Yield the port of a server with a long answer, whose options for pings are a pool's."""

    async def answer(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return ANSWER

    there = grpc.aio.server(options=keepalive(10, 20))
    handlers: dict[str, Any] = {"answer": grpc.unary_unary_rpc_method_handler(answer)}
    there.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    port = there.add_insecure_port("127.0.0.1:0")
    await there.start()
    try:
        yield port
    finally:
        await there.stop(None)


@contextlib.asynccontextmanager
async def line(port: int, *, until: asyncio.Event | None = None) -> AsyncIterator[int]:
    """Yield the port of a slow line to another one, which carries nothing more once `until` is set."""
    writers = set[asyncio.StreamWriter]()

    async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter, pause: float) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(16_384):
                if until is not None and until.is_set():
                    await asyncio.Event().wait()
                target.write(data)
                await target.drain()
                await asyncio.sleep(pause * len(data))
            target.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port, limit=65_536)
        writers.update((writer, back))
        await asyncio.gather(carry(reader, back, 0), carry(there, writer, 1 / BYTES_A_SECOND))

    relay = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield relay.sockets[0].getsockname()[1]
    finally:
        relay.close()
        for writer in writers:
            writer.close()


async def ask(port: int, *, several: bool, silent: asyncio.Event | None = None) -> bytes:
    """Ask at a port for the long answer, once its line is silent where it falls silent."""
    async with Connection(f"127.0.0.1:{port}").channel(one_of_several=several) as channel:
        await channel.channel_ready()
        if silent is not None:
            silent.set()
        call: Any = channel.unary_unary("/test/answer")
        return bytes(await call(b""))


@pytest.mark.parametrize("several", [True, False])
def test_a_long_answer_on_a_slow_line_is_not_taken_for_silence(*, several: bool) -> None:
    async def story() -> bytes:
        async with server() as port, line(port) as slow:
            return await ask(slow, several=several)

    assert asyncio.run(story()) == ANSWER


def test_one_of_several_pools_that_says_nothing_is_given_up() -> None:
    async def story() -> None:
        silent = asyncio.Event()
        # The time is a bound on being stuck: gRPC's own patience is a minute.
        async with server() as port, line(port, until=silent) as way, asyncio.timeout(50):
            await ask(way, several=True, silent=silent)

    with pytest.raises(grpc.aio.AioRpcError, match="ping timeout"):
        asyncio.run(story())
