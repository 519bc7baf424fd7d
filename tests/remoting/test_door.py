"""Who knocks at a worker's port: only those who know the secret come in, and nobody breaks it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import socket
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.remoting.conftest import Worker, worker

MAGIC, VERSION = 0x4B555047, 1
WELCOME, WRONG_SECRET, WRONG_VERSION = 0, 1, 3


def knock(one: Worker) -> socket.socket:
    host, port = next(e for e in one.handle.endpoints if e.startswith("tcp:")).split(":")[1:]
    sock = socket.create_connection((host, int(port)), timeout=20)
    return sock


def read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := sock.recv(count - len(data))):
        data += piece
    return data


def shake_hands(sock: socket.socket, secret: str, version: int = VERSION) -> int:
    """The handshake as protocol.h specifies it, spoken independently of the shim."""
    challenge = read(sock, 40)
    assert struct.unpack("<II", challenge[:8]) == (MAGIC, VERSION)
    ours = os.urandom(32)
    proof = hmac.new(secret.encode(), b"shim" + challenge[8:] + ours, hashlib.sha256).digest()
    sock.sendall(struct.pack("<II", MAGIC, version) + ours + proof)
    welcome = read(sock, 40)
    magic, status = struct.unpack("<II", welcome[:8])
    assert magic == MAGIC
    if status == WELCOME:
        theirs = hmac.new(secret.encode(), b"worker" + ours + challenge[8:], hashlib.sha256).digest()
        assert welcome[8:] == theirs
    return int(status)


def enter(one: Worker, secret: str, version: int = VERSION) -> tuple[int, socket.socket]:
    sock = knock(one)
    return shake_hands(sock, secret, version), sock


async def still_serves(one: Worker) -> None:
    done = await one.run("begin(); a = ok(d.cuMemAlloc(1 << 20)); print('served')")
    assert done.stdout == "served\n", done.stderr


def test_the_handshake_is_as_specified() -> None:
    async def story() -> None:
        async with worker() as one:
            assert enter(one, one.secret)[0] == WELCOME
            assert enter(one, "0" * 64)[0] == WRONG_SECRET
            assert enter(one, "")[0] == WRONG_SECRET
            assert enter(one, one.secret, version=2)[0] == WRONG_VERSION

    asyncio.run(story())


@pytest.mark.parametrize("secret", ["0" * 64, ""])
def test_a_program_with_a_wrong_or_missing_secret_makes_no_cuda_call(secret: str) -> None:
    async def story() -> None:
        async with worker() as one:
            done = await one.run("print(d.cuInit(0)[0].name, d.cuInit(0)[0].name)", secret=secret)
            assert done.stdout == "CUDA_ERROR_NO_DEVICE CUDA_ERROR_NO_DEVICE\n"
            assert done.stderr.count("refused the lease's secret") == 1
            assert (await one.handle.status()).cuda_calls == 0

    asyncio.run(story())


def test_a_stranger_who_sends_a_byte_now_and_then_is_shown_out() -> None:
    async def story() -> None:
        async with worker() as one, asyncio.timeout(30):
            reader, writer = await asyncio.open_connection(sock=knock(one))
            await reader.readexactly(40)
            shown_out = asyncio.ensure_future(reader.read())
            while not shown_out.done():  # each byte comes well within the time that one read may take
                writer.write(b"x")
                await asyncio.wait([shown_out], timeout=0.5)
            writer.close()
            await still_serves(one)

    asyncio.run(story())


def test_a_recorded_handshake_is_worth_nothing_the_second_time() -> None:
    async def story() -> None:
        async with worker() as one:
            sock = knock(one)
            challenge, ours = read(sock, 40), os.urandom(32)
            mac = hmac.new(one.secret.encode(), b"shim" + challenge[8:] + ours, hashlib.sha256).digest()
            recorded = struct.pack("<II", MAGIC, VERSION) + ours + mac
            sock.sendall(recorded)
            assert struct.unpack("<I", read(sock, 40)[4:8]) == (WELCOME,)
            again = knock(one)
            read(again, 40)
            again.sendall(recorded)
            assert struct.unpack("<I", read(again, 40)[4:8]) == (WRONG_SECRET,)

    asyncio.run(story())


def test_random_bytes_never_break_a_worker() -> None:
    async def story() -> None:
        async with worker() as one:
            before = one.handle.pid

            @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
            @given(st.binary(max_size=400))
            def strangers(data: bytes) -> None:
                with knock(one) as sock:
                    sock.sendall(data)

            @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
            @given(
                st.lists(
                    st.tuples(
                        st.integers(0, 160), st.binary(max_size=120), st.none() | st.integers(0, 2**32 - 1)
                    ),
                    max_size=6,
                )
            )
            def guests(frames: list[tuple[int, bytes, int | None]]) -> None:
                status, sock = enter(one, one.secret)
                assert status == WELCOME
                with sock:
                    for (
                        call,
                        body,
                        lie,
                    ) in frames:  # well-formed frames of nonsense, and lies about their length
                        length = len(body) if lie is None else lie
                        try:
                            sock.sendall(struct.pack("<IHH", length, call, 0) + body)
                        except OSError:
                            break

            strangers()
            guests()
            assert not one.handle.ended
            assert (await one.handle.status()).pid == before
            await still_serves(one)

    asyncio.run(story())


def test_callers_who_say_nothing_do_not_keep_others_out() -> None:
    async def story() -> None:
        async with worker() as one:
            silent = [knock(one) for _ in range(60)]
            await still_serves(one)
            for sock in silent:
                sock.close()

    asyncio.run(story())


def test_a_program_that_dies_in_the_middle_of_a_frame_costs_nothing() -> None:
    async def story() -> None:
        async with worker() as one:
            _, sock = enter(one, one.secret)
            sock.sendall(struct.pack("<IHH", 500_000_000, 17, 0) + b"x" * 1000)  # half an image
            sock.close()
            await still_serves(one)
            assert (await one.handle.status()).memory_used_bytes == 0

    asyncio.run(story())
