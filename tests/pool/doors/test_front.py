"""The front: what one connection leaves behind does not reach the next one, and a crowd that comes at once takes no more places than it has."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

from gpukernel.pool.doors.connections import Connections
from gpukernel.pool.doors.front import HTTP2, serve_front

DEAF = 4  # the first connections, which nobody reads from
BACKLOG = 8 * 2**20


def test_a_connection_that_goes_with_bytes_unsent_makes_no_other_one_deaf(tmp_path: Path) -> None:
    async def work() -> None:
        behind, front = tmp_path / "inner.sock", tmp_path / "front.sock"
        seen = 0

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal seen
            seen += 1
            if seen <= DEAF:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                await asyncio.sleep(60)
            while data := await reader.read(100):
                writer.write(data)
            writer.close()

        inner = await asyncio.start_unix_server(echo, behind, limit=1000)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(front))
        listener.listen(100)
        connections = Connections()
        async with serve_front(listener, behind, connections, lambda _, __: "account 0", lambda _: None):
            for number in range(DEAF):
                _, writer = await asyncio.open_unix_connection(front)
                writer.write(HTTP2 + bytes(BACKLOG))
                while len(connections) == 0 or seen <= number:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
                for one in list(connections):
                    one.close()  # as a stranger's that has been silent for too long
                writer.transport.abort()
                while len(connections):
                    await asyncio.sleep(0.01)
            answers = []
            for _ in range(2 * DEAF):
                reader, writer = await asyncio.open_unix_connection(front)
                writer.write(HTTP2)
                with contextlib.suppress(TimeoutError):
                    answers.append(await asyncio.wait_for(reader.readexactly(len(HTTP2)), 5))
            assert answers == [HTTP2] * (2 * DEAF)
        inner.close()

    asyncio.run(work())


PLACES = 10
CROWD = 400


def test_a_crowd_that_comes_at_once_takes_no_more_descriptors_than_its_places(tmp_path: Path) -> None:
    async def work() -> None:
        behind, front = tmp_path / "inner.sock", tmp_path / "front.sock"
        there, most = 0, 0

        async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal there, most
            there += 1
            most = max(most, there)
            with contextlib.suppress(ConnectionError):
                await reader.read()
            there -= 1
            writer.close()

        inner = await asyncio.start_unix_server(count, behind, backlog=CROWD)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(front))
        listener.listen(2 * CROWD)
        crowd = [socket.socket(socket.AF_UNIX) for _ in range(CROWD)]
        for one in crowd:
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(str(front))
                one.send(HTTP2)
        connections = Connections(PLACES, PLACES)
        async with serve_front(listener, behind, connections, lambda _, __: "account 0", lambda _: None):
            while connections.sent_away < CROWD - PLACES or not 0 < there <= PLACES:
                await asyncio.sleep(0.01)
            assert most <= 5 * PLACES
        for one in crowd:
            one.close()
        inner.close()

    asyncio.run(work())


def test_a_busy_loop_takes_in_many_of_those_who_wait_each_time_it_goes_round(tmp_path: Path) -> None:
    async def work() -> int:
        behind, front = tmp_path / "inner.sock", tmp_path / "front.sock"
        came: list[str] = []

        def note(peer: str, _: socket.socket) -> str:
            came.append(peer)
            return "account 0"

        inner = await asyncio.start_unix_server(lambda *_: None, behind, backlog=CROWD)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(front))
        listener.listen(CROWD)
        crowd = [socket.socket(socket.AF_UNIX) for _ in range(CROWD)]
        for one in crowd:
            one.connect(str(front))
        rounds = 0
        async with serve_front(listener, behind, Connections(CROWD, CROWD), note, lambda _: None):
            while len(came) < CROWD:
                await asyncio.sleep(0)
                rounds += 1
        for one in crowd:
            one.close()
        inner.close()
        return rounds

    assert asyncio.run(work()) < CROWD / 4


def test_grpc_hears_of_nobody_who_is_silent_or_sends_something_else(tmp_path: Path) -> None:
    async def work() -> None:
        behind, front = tmp_path / "inner.sock", tmp_path / "front.sock"
        heard: list[bytes] = []

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.read(1000))
            writer.close()

        inner = await asyncio.start_unix_server(listen, behind)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(front))
        listener.listen(100)
        connections = Connections()
        async with serve_front(listener, behind, connections, lambda _, __: "account 0", lambda _: None):
            _, silent = await asyncio.open_unix_connection(front)
            for rubbish in (b"GET / HTTP/1.1\r\n\r\n", bytes(100), HTTP2[:10] + b"?", b"\x15\x03\x01"):
                reader, writer = await asyncio.open_unix_connection(front)
                writer.write(rubbish)
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.wait_for(reader.read(1), 5) == b""  # it was closed
                writer.close()
            tls = b"\x16\x03\x01\x02\x00"
            for first in (HTTP2 + b"more", HTTP2[:3], tls):
                reader, writer = await asyncio.open_unix_connection(front)
                writer.write(first)
                assert await asyncio.wait_for(reader.read(1), 5) == b""  # `listen` has answered
                writer.close()
            assert heard == [HTTP2 + b"more", HTTP2[:3], tls]
            while len(connections) > 1:  # the silent one keeps its place here
                await asyncio.sleep(0.01)
            silent.close()
        inner.close()

    asyncio.run(work())
