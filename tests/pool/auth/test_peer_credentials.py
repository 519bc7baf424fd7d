"""The listener with peer credentials: all that is said gets through, at the pace of whoever listens, and every connection is noted and forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpukernel.pool.auth.identity import Identity
from gpukernel.pool.auth.peer_credentials import network_of, serve_with_peer_credentials
from gpukernel.pool.doors.front import HTTP2
from gpukernel.pool.store.store import Store

MIB = 2**20


@pytest.mark.parametrize(
    ("address", "whose"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2::7", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff:1::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_the_addresses_of_one_host_count_as_one(address: str, whose: str) -> None:
    assert network_of(address) == whose


class Noted(Identity):
    """A count of those who came and left, besides."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, {})
        self.there: dict[str, int] = {}

    def connected(self, peer: str, uid: int) -> None:
        super().connected(peer, uid)
        self.there[peer] = uid

    def disconnected(self, peer: str) -> None:
        super().disconnected(peer)
        del self.there[peer]


@pytest.fixture
def identity(tmp_path: Path) -> Noted:
    return Noted(Store(f"sqlite:///{tmp_path}/pool.db"))


@contextlib.asynccontextmanager
async def an_echo(path: Path) -> AsyncIterator[list[asyncio.Transport]]:
    """Says back what it hears; gives its connections."""
    there: list[asyncio.Transport] = []

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            there.append(transport)
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(data)

        def pause_writing(self) -> None:
            self.transport.pause_reading()

        def resume_writing(self) -> None:
            self.transport.resume_reading()

    server = await asyncio.get_running_loop().create_unix_server(Echo, str(path))
    try:
        yield there
    finally:
        server.close()
        for one in there:
            one.abort()


def test_much_that_is_said_waits_for_a_slow_listener_and_arrives_whole(
    tmp_path: Path, identity: Noted
) -> None:
    said = HTTP2 + secrets.token_bytes(16 * MIB - len(HTTP2))

    async def work() -> None:
        socket_path, behind = tmp_path / "pool.sock", tmp_path / "behind"
        async with (
            an_echo(behind),
            serve_with_peer_credentials(socket_path, behind, identity, everybody=False),
        ):
            reader, writer = await asyncio.open_unix_connection(str(socket_path))
            sent = 0

            async def say() -> None:
                nonlocal sent
                while sent < len(said):
                    writer.write(said[sent : sent + MIB // 16])
                    await writer.drain()
                    sent += MIB // 16

            saying = asyncio.create_task(say())
            before = -1
            while sent != before:  # until nobody takes any more
                before = sent
                await asyncio.sleep(0.2)
            assert 0 < sent < 4 * MIB  # what buffers hold, and not all that there is
            heard = await reader.readexactly(len(said))
            await saying
            assert heard == said
            writer.close()

    asyncio.run(work())


def test_what_is_said_before_the_pool_listens_arrives_in_order(
    tmp_path: Path, identity: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        connect, listens = loop.sock_connect, asyncio.Event()
        socket_path, behind = tmp_path / "pool.sock", tmp_path / "behind"

        async def connect_late(end: socket.socket, address: str) -> None:
            if address == str(behind):
                await listens.wait()
            await connect(end, address)

        monkeypatch.setattr(loop, "sock_connect", connect_late)
        async with (
            an_echo(behind),
            serve_with_peer_credentials(socket_path, behind, identity, everybody=False),
        ):
            reader, writer = await asyncio.open_unix_connection(str(socket_path))
            for word in (HTTP2, b"second "):
                writer.write(word)
                await asyncio.sleep(0.1)
            listens.set()
            writer.write(b"third")
            said = HTTP2 + b"second third"
            assert await asyncio.wait_for(reader.readexactly(len(said)), 30) == said
            writer.close()

    asyncio.run(work())


def test_each_connection_is_noted_with_its_account_until_either_side_ends_it(
    tmp_path: Path, identity: Noted
) -> None:
    async def work() -> None:
        socket_path, behind = tmp_path / "pool.sock", tmp_path / "behind"

        async def until(count: int) -> None:
            async with asyncio.timeout(30):
                while len(identity.there) != count:
                    await asyncio.sleep(0.01)

        async with (
            an_echo(behind) as there,
            serve_with_peer_credentials(socket_path, behind, identity, everybody=False),
        ):
            people = [await asyncio.open_unix_connection(str(socket_path)) for _ in range(3)]
            for reader, writer in people:
                writer.write(HTTP2)
                assert await asyncio.wait_for(reader.readexactly(len(HTTP2)), 30) == HTTP2
            await until(3)
            assert set(identity.there.values()) == {os.getuid()}
            assert all(peer.startswith("unix-abstract:gpukernel-") for peer in identity.there)
            people[0][1].close()
            await until(2)
            async with asyncio.timeout(30):
                while not any(one.is_closing() for one in there):
                    await asyncio.sleep(0.01)
            ends = [one for one in there if not one.is_closing()]
            ends[0].write(b"last words")
            ends[0].close()
            await until(1)
        # Whoever is still there when the listener closes is told so.
        assert not identity.there
        words = [await asyncio.wait_for(reader.read(), 30) for reader, _ in people[1:]]
        assert sorted(words) == [b"", b"last words"]

    asyncio.run(work())


def test_nobody_waits_at_a_socket_behind_which_nobody_is(tmp_path: Path, identity: Noted) -> None:
    async def work() -> None:
        async with serve_with_peer_credentials(
            tmp_path / "pool.sock", tmp_path / "nothing", identity, everybody=False
        ):
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "pool.sock"))
            writer.write(HTTP2)
            assert await asyncio.wait_for(reader.read(), 30) == b""
            assert not identity.there

    asyncio.run(work())


def test_who_may_open_the_socket_stands_in_its_mode(tmp_path: Path, identity: Noted) -> None:
    async def work() -> None:
        for everybody, mode in ((False, 0o600), (True, 0o666)):
            async with serve_with_peer_credentials(
                tmp_path / "pool.sock", tmp_path / "behind", identity, everybody=everybody
            ):
                assert (tmp_path / "pool.sock").stat().st_mode & 0o777 == mode

    asyncio.run(work())


def test_a_container_s_socket_believes_no_account(tmp_path: Path, identity: Noted) -> None:
    async def work() -> None:
        socket_path, behind = tmp_path / "pool.sock", tmp_path / "behind"
        async with (
            an_echo(behind),
            serve_with_peer_credentials(socket_path, behind, identity, everybody=True, accounts=False),
        ):
            with socket.socket(socket.AF_UNIX) as one:
                one.connect(str(socket_path))
                async with asyncio.timeout(30):
                    while not identity.there:
                        await asyncio.sleep(0.01)
                assert os.getuid() not in identity.there.values()

    asyncio.run(work())
