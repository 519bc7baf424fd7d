"""A module image crosses the network once for each server; who cannot show that they have it does not get it."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.remoting.conftest import Worker, worker

# A kernel and 300 kB of comment that nobody can guess.
LOAD = """
import hashlib
begin()
LARGE = STORE_U32 + b"// " + b"".join(hashlib.sha256(b"%d" % i).hexdigest().encode() for i in range(5000))
store = load(LARGE, b"store")
place = ok(d.cuMemAlloc(4))
ok(d.cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, 0, ((place, 7), (None, ctypes.c_uint32)), 0))
there = bytearray(4); ok(d.cuMemcpyDtoH(there, place, 4)); assert there == b"\\7\\0\\0\\0", there
"""
LINK = """
state = ok(d.cuLinkCreate(0, [], []))
ok(d.cuLinkAddData(state, d.CUjitInputType.CU_JIT_INPUT_PTX, LARGE, len(LARGE), b"large", 0, [], []))
ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(ok(d.cuLinkComplete(state))[0])), b"store"))
"""
SIZE = 300_000


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir(mode=0o700)
    return folder


def kept_in(images: Path) -> list[Path]:
    return [path for path in images.iterdir() if path.name != "salt"]


class Counter:
    """A way to a worker that counts what a program sends."""

    sent = 0


@contextlib.asynccontextmanager
async def counted(endpoint: str) -> AsyncIterator[tuple[str, Counter]]:
    counter = Counter()
    host, port = endpoint.removeprefix("tcp:").split(":")

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: bool) -> None:
        while data := await reader.read(1 << 16):
            counter.sent += count * len(data)
            writer.write(data)
            await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        await asyncio.gather(carry(reader, back, True), carry(there, writer, False))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield f"tcp:127.0.0.1:{server.sockets[0].getsockname()[1]}", counter


async def bytes_sent(one: Worker, code: str) -> int:
    tcp = next(e for e in one.handle.endpoints if e.startswith("tcp:"))
    before = one.handle.endpoints
    async with counted(tcp) as (address, counter):
        one.handle.endpoints = (address,)
        try:
            done = await one.run(code, kind="tcp")
        finally:
            one.handle.endpoints = before
    assert done.returncode == 0, done.stderr
    return counter.sent


def test_an_image_is_sent_once_for_all_programs_and_workers_of_a_server(images: Path) -> None:
    async def story() -> None:
        async with worker(images=images) as one:
            assert await bytes_sent(one, LOAD) > SIZE
            assert await bytes_sent(one, LOAD) < SIZE / 10
            assert await bytes_sent(one, LOAD + LINK) > SIZE  # what is linked, and what came of it
        async with worker(images=images) as another:
            assert await bytes_sent(another, LOAD + LINK) < SIZE / 10
        async with worker() as elsewhere:
            assert await bytes_sent(elsewhere, LOAD) > SIZE
            assert await bytes_sent(elsewhere, LOAD) > SIZE

    asyncio.run(story())


def test_it_is_named_by_its_content_under_the_servers_salt(images: Path) -> None:
    async def story() -> None:
        async with worker(images=images) as one:
            assert (await one.run(LOAD)).returncode == 0
        salt = (images / "salt").read_bytes()
        assert len(salt) == 32
        (kept,) = kept_in(images)
        content = kept.read_bytes()
        assert content.endswith(b"\0")
        assert kept.name == hmac.digest(salt, content[:-1], "sha256").hex()
        assert {path.stat().st_mode & 0o777 for path in (kept, images / "salt")} == {0o640}

    asyncio.run(story())


@pytest.mark.parametrize("damage", ["cut", "changed", "emptied"])
def test_a_file_that_was_damaged_is_sent_again(images: Path, damage: str) -> None:
    async def story() -> None:
        async with worker(images=images) as one:
            assert (await one.run(LOAD)).returncode == 0
            (kept,) = kept_in(images)
            content = kept.read_bytes()
            damaged = {"cut": content[:-100], "changed": content.replace(b"7.0", b"6.9"), "emptied": b""}[
                damage
            ]
            kept.write_bytes(damaged)
            assert await bytes_sent(one, LOAD) > SIZE
            assert kept.read_bytes() == content

    asyncio.run(story())


@pytest.mark.parametrize("planted", ["a link", "a pipe", "a folder"])
def test_what_is_no_plain_file_is_never_read(images: Path, planted: str) -> None:
    async def story() -> None:
        async with worker(images=images) as one:
            assert (await one.run(LOAD)).returncode == 0
            (kept,) = kept_in(images)
            elsewhere = images.parent / "elsewhere"
            kept.rename(elsewhere)
            if planted == "a link":
                kept.symlink_to(elsewhere)
            elif planted == "a pipe":
                os.mkfifo(kept)
            else:
                kept.mkdir()
            assert await bytes_sent(one, LOAD) > SIZE

    asyncio.run(story())


# Texts that are no PTX, each with other letters: kept as images, and refused as modules.
FLOOD = """
import time
begin(); began = time.monotonic()
for n in range(20):
    image = (b"%08d" % n) * (1 << 20) + b"\\0"
    assert int(d.cuModuleLoadData(image)[0])
print(time.monotonic() - began)
"""


def test_a_program_does_not_fill_the_disk_with_images_before_the_agent_looks(images: Path) -> None:
    async def story() -> None:
        async with worker(images=images, host_memory=512 << 20) as one:
            done = await one.run(FLOOD)
            assert done.returncode == 0, done.stderr
            kept = sum(path.stat().st_size for path in kept_in(images))
            assert 0 < kept <= (64 << 20) + (2 << 20) * (float(done.stdout) + 1)  # of 160 MiB

    asyncio.run(story())
