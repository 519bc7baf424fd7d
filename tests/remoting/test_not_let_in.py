"""A program that is not let in by its worker is told why."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable

from gpukernel.remoting.wire import wire_protocol
from tests.remoting.conftest import worker


def serve(path: str, act: Callable[[socket.socket], None]) -> threading.Thread:
    """Listen in a worker's place, and have `act` speak to whoever comes first."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def run() -> None:
        with listener, listener.accept()[0] as peer:
            act(peer)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_another_version_of_the_protocol_is_named_with_its_own() -> None:
    async def work() -> None:
        async with worker() as one:
            path = one.handle.endpoints[0].removeprefix("unix:")
            os.unlink(path)
            serve(path, lambda peer: peer.sendall(struct.pack("<II", 0x4B555047, 99) + bytes(32)))
            refused = await one.run("begin()")
            ours = wire_protocol().version
            assert (
                f"its worker speaks version 99 of the protocol, and this program's libcuda version {ours}:"
                in refused.stderr
            )

    asyncio.run(work())


def test_a_worker_that_does_not_answer_is_not_taken_for_one_of_another_version() -> None:
    async def work() -> None:
        async with worker() as one:
            os.kill(one.handle.pid, signal.SIGSTOP)
            refused = await one.run("begin()")
            os.kill(one.handle.pid, signal.SIGCONT)
            assert (
                "its worker has not answered for 10 s to a connection that waits to be let in"
                in refused.stderr
            )
            assert "version" not in refused.stderr
            admitted = await one.run("begin()")
            assert (admitted.returncode, admitted.stderr) == (0, "")

    asyncio.run(work())
