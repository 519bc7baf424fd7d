"""Whoever can read and change packets between a program and its worker read the program's data and gave it other values; with TLS
they see nothing of it, and what they change ends the connection."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpukernel.remoting.worker import start_worker
from tests.attacks.wiretap import Alter, Wiretap
from tests.remoting.conftest import Worker, worker

TLS = {"tls": True} if "tls" in inspect.signature(start_worker).parameters else {}
"""Nothing on the code before, where data travels as it is."""

KEPT, PUT_IN_ITS_PLACE = b"grade of student01 " * 20, b"grade of student02 " * 20
COPY = f"""
begin()
said = {KEPT!r}; there = ok(d.cuMemAlloc(len(said))); back = bytearray(len(said))
ok(d.cuMemcpyHtoD(there, said, len(said))); ok(d.cuMemcpyDtoH(back, there, len(said)))
print(bytes(back).decode())
"""
MAGIC = 0x4B555047


@asynccontextmanager
async def tapped(one: Worker, alter: Alter | None = None) -> AsyncIterator[Wiretap]:
    """Put a wiretap between the worker and the programs that are started meanwhile."""
    before = one.handle.endpoints
    kind, host, port = next(e for e in before if not e.startswith("unix:")).split(":")
    with Wiretap(host, int(port), *([alter] if alter else [])) as tap:
        one.handle.endpoints = (f"{kind}:127.0.0.1:{tap.port}",)
        try:
            yield tap
        finally:
            one.handle.endpoints = before


def test_a_wiretap_does_not_read_what_a_program_copies() -> None:
    async def story() -> None:
        async with worker(**TLS) as one, tapped(one) as tap:
            done = await one.run(COPY, kind="t")
            assert done.stdout.encode() == KEPT + b"\n", done.stderr
            for way, data in tap.recorded.items():
                assert len(data) > 1000, way
                assert KEPT not in data, f"the program's data was read on its way {way}"

    asyncio.run(story())


def test_a_wiretap_does_not_put_another_value_in_a_copys_place() -> None:
    def alter(direction: str, at: int, data: bytes) -> bytes:
        return data.replace(KEPT, PUT_IN_ITS_PLACE) if direction == "down" else data

    async def story() -> None:
        async with worker(**TLS) as one, tapped(one, alter):
            done = await one.run(COPY, kind="t")
            assert done.stdout.encode() == KEPT + b"\n", done.stderr

    asyncio.run(story())


HANDSHAKE = 2000
"""Bytes in each direction that the handshake does not reach."""
MUCH = """
begin()
said = os.urandom(1 << 20); there = ok(d.cuMemAlloc(len(said))); back = bytearray(len(said))
code = int(d.cuMemcpyHtoD(there, said, len(said))[0]) or int(d.cuMemcpyDtoH(back, there, len(said))[0])
print("as sent" if bytes(back) == said else f"error {code}" if code else "another value")
"""


def flip(way: str, position: int) -> Alter:
    """Return what alters one bit of one byte, at that position of that direction."""

    def alter(direction: str, at: int, data: bytes) -> bytes:
        if direction != way or not at <= position < at + len(data):
            return data
        changed = bytearray(data)
        changed[position - at] ^= 1
        return bytes(changed)

    return alter


@pytest.mark.parametrize("way", ["up", "down"])
def test_one_altered_bit_ends_the_connection_and_says_why(way: str) -> None:
    async def story() -> None:
        async with worker(**TLS) as one:
            async with tapped(one, flip(way, HANDSHAKE + 100_000)):
                done = await one.run(MUCH, kind="t")
            assert re.fullmatch(r"error \d+\n", done.stdout), (done.stdout, done.stderr)
            assert "altered on the way" in done.stderr
            done = await one.run(MUCH, kind="t")
            assert done.stdout == "as sent\n", done.stderr  # the worker serves on

    asyncio.run(story())


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("position", [3, 40, 120, 200, 230])
def test_an_altered_handshake_lets_nobody_in(way: str, position: int) -> None:
    async def story() -> None:
        async with worker(**TLS) as one, tapped(one, flip(way, position)):
            done = await one.run("print(d.cuInit(0)[0].name)", kind="t")
            assert done.stdout == "CUDA_ERROR_NO_DEVICE\n"
            assert done.stderr.count("the slice cannot be reached: ") == 1, done.stderr
            assert (await one.handle.status()).cuda_calls == 0

    asyncio.run(story())


def test_what_was_recorded_is_worth_nothing_when_it_is_sent_again() -> None:
    async def story() -> None:
        async with worker(**TLS) as one:
            async with tapped(one) as tap:
                done = await one.run(COPY, kind="t")
                assert done.returncode == 0, done.stderr
            before = (await one.handle.status()).cuda_calls
            _, host, port = next(e for e in one.handle.endpoints if not e.startswith("unix:")).split(":")
            with socket.create_connection((host, int(port)), timeout=20) as sock:
                sock.sendall(bytes(tap.connections[0]["up"]))
                answer = await asyncio.to_thread(_all_of, sock)
            assert len(answer) < len(tap.connections[0]["down"])
            assert (await one.handle.status()).cuda_calls == before

    asyncio.run(story())


def _all_of(sock: socket.socket) -> bytes:
    data = b""
    try:
        while piece := sock.recv(1 << 16):
            data += piece
    except ConnectionResetError:
        pass
    return data


def test_a_program_that_was_promised_tls_says_nothing_to_who_speaks_plain_text() -> None:
    """The attacker answers in the worker's place, as a worker without TLS does."""

    async def story() -> None:
        async with worker(**TLS) as one:
            heard: list[bytes] = []
            with socket.create_server(("127.0.0.1", 0)) as listener:

                def pretend() -> None:
                    sock, _ = listener.accept()
                    with sock:
                        sock.sendall(struct.pack("<II", MAGIC, 4) + os.urandom(32))
                        heard.append(_all_of(sock))

                pretending = asyncio.create_task(asyncio.to_thread(pretend))
                before = one.handle.endpoints
                one.handle.endpoints = (f"tls:127.0.0.1:{listener.getsockname()[1]}",)
                done = await one.run("print(d.cuInit(0)[0].name)", kind="tls")
                one.handle.endpoints = before
                await pretending
            assert done.stdout == "CUDA_ERROR_NO_DEVICE\n"
            assert "does not speak TLS" in done.stderr
            assert struct.pack("<I", MAGIC) not in heard[0]
            assert one.secret.encode() not in heard[0]

    asyncio.run(story())


def test_plain_text_is_not_let_in_by_the_door_for_tls_even_with_the_secret() -> None:
    async def story() -> None:
        async with worker(**TLS) as one:
            _, host, port = next(e for e in one.handle.endpoints if not e.startswith("unix:")).split(":")
            with socket.create_connection((host, int(port)), timeout=20) as sock:
                sock.sendall(struct.pack("<II", MAGIC, 4) + bytes(64))
                assert await asyncio.to_thread(_all_of, sock) == b""

    asyncio.run(story())


def test_a_wrong_secret_is_refused_before_openssl_sees_it() -> None:
    async def story() -> None:
        async with worker(**TLS) as one:
            done = await one.run("print(d.cuInit(0)[0].name)", kind="t", secret="0" * 64)
            assert done.stdout == "CUDA_ERROR_NO_DEVICE\n"
            assert "does not know the secret" in done.stderr
            assert (await one.handle.status()).cuda_calls == 0

    asyncio.run(story())
