"""A stranger who reaches the address of the figures asks for them and for the probes without end, so that the pool works for nobody else."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gpukernel.pool.rpc import metrics
from tests.pool.world import World, story

REQUESTS, AT_ONCE = 240, 12


async def fetch(address: tuple[str, int], path: str) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        return await reader.readline()
    finally:
        writer.close()


@pytest.mark.parametrize("path", ["/metrics", "/livez", "/readyz"])
def test_a_flood_of_questions_is_answered_at_the_cost_of_a_few(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = ("127.0.0.1", server.getsockname()[1])
    crossings = 0
    crossed = metrics.answer

    async def counted(*words: object) -> object:
        nonlocal crossings
        crossings += 1
        return await crossed(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(metrics, "answer", counted)

    async def tell(world: World) -> None:
        began = time.monotonic()
        running = asyncio.get_running_loop()
        async with metrics.serve_metrics(f"{address[0]}:{address[1]}", world.store, world.manager, running):
            for _ in range(REQUESTS // AT_ONCE):
                lines = await asyncio.gather(*(fetch(address, path) for _ in range(AT_ONCE)))
                assert set(lines) == {b"HTTP/1.1 200 OK\r\n"}
        assert 1 <= crossings <= 1 + (time.monotonic() - began) / metrics.FRESH_SECONDS

    story(tmp_path, tell)


def test_a_database_that_hangs_keeps_one_thread_however_often_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(metrics, "FRESH_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = ("127.0.0.1", server.getsockname()[1])
    answers, asked = threading.Event(), [0]

    class Store:
        class reader:
            @staticmethod
            def connect() -> None:
                asked[0] += 1
                answers.wait()
                raise sa.exc.OperationalError("", {}, Exception("the connection is lost"))

    async def tell(world: World) -> None:
        store: Any = Store()
        running = asyncio.get_running_loop()
        async with metrics.serve_metrics(f"{address[0]}:{address[1]}", store, world.manager, running):
            try:
                for _ in range(3):
                    lines = await asyncio.gather(*(fetch(address, "/readyz") for _ in range(8)))
                    assert set(lines) == {b""}  # no answer in time
                assert asked == [1]
            finally:
                answers.set()
            while await fetch(address, "/readyz") != b"HTTP/1.1 503 Service Unavailable\r\n":
                await asyncio.sleep(0)
            await fetch(address, "/readyz")
            assert asked[0] >= 2  # it is asked anew

    story(tmp_path, tell)
