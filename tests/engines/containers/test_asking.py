"""The socket in a container on which programs ask for their slice, where the machine has no open file left."""

from __future__ import annotations

import asyncio
import errno
import socket
from pathlib import Path

import pytest

from gpukernel.engines.containers.asking import Asking


def test_calls_are_answered_again_when_there_are_open_files_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> bytes:
        loop, failures = asyncio.get_running_loop(), [errno.EMFILE, errno.ECONNABORTED]
        accept = loop.sock_accept

        async def sock_accept(listening: socket.socket) -> tuple[socket.socket, object]:
            if failures:
                raise OSError(failures.pop(), "no open file is left")
            return await accept(listening)

        monkeypatch.setattr(loop, "sock_accept", sock_accept)

        async def acquire(_: object) -> None:
            return

        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(tmp_path / "ask"))
            listening.listen()
            serving = asyncio.create_task(Asking(acquire).serve(listening.dup()))
            reader, writer = await asyncio.open_unix_connection(tmp_path / "ask")
            writer.write(b"acquire key\n")
            answer = await asyncio.wait_for(reader.readline(), 10)
            writer.close()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            return answer

    assert asyncio.run(story()) == b"live\n"
