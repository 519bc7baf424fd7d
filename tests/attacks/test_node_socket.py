"""Accounts on a node of Slurm crowd the socket where shard jobs ask for their slice: each has so many calls open, and nobody is locked out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpukernel.engines.shards import calls
from gpukernel.engines.shards.calls import Calls

ANNA, BEN, EVE = 5, 1, 2  # games, daemon and bin; Eve has no job
CROWD = "import socket, sys, time\nheld = []\n"
CROWD += "for _ in range(int(sys.argv[2])):\n    one = socket.socket(socket.AF_UNIX)\n"
CROWD += "    with __import__('contextlib').suppress(OSError): one.connect(sys.argv[1]); held.append(one)\n"
CROWD += "print(len(held), flush=True)\nsys.stdin.read()\n"
ASK = (
    "import socket, sys\none = socket.socket(socket.AF_UNIX)\none.connect(sys.argv[1])\none.settimeout(20)\n"
)
ASK += "one.sendall(sys.argv[2].encode() + b'\\n')\nprint(one.makefile().read())\n"


async def program(user: int, code: str, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        "/usr/bin/python3", "-c", code, *words, user=user, group=user, extra_groups=[], env={}, cwd="/",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


async def answers(job: str, user: int) -> AsyncIterator[tuple[str, str]]:
    yield ("live", "") if (job, user) == ("12", ANNA) else ("refused", f"not the job of {user}")


async def asked(user: int, path: Path, line: str) -> str:
    said, _ = await (await program(user, ASK, str(path), line)).communicate()
    return said.decode().strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is several accounts")
def test_a_crowd_at_the_nodes_socket_locks_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SILENT_SECONDS", 60.0)
    monkeypatch.setattr(calls, "MOST_OF_AN_ACCOUNT", 50)

    async def work(path: Path) -> None:
        serving = asyncio.create_task(Calls(answers).serve(path))
        while await asked(ANNA, path, "acquire 12") != "live":
            await asyncio.sleep(0.01)
        crowds = [await program(BEN, CROWD, str(path), "200"), await program(EVE, CROWD, str(path), "200")]
        for crowd in crowds:
            assert crowd.stdout is not None
            await crowd.stdout.readline()
        assert await asked(ANNA, path, "acquire 12") == "live"
        for account in (EVE, BEN):
            assert await asked(account, path, "acquire 12") == ""  # all of its calls are open
        for crowd in crowds:
            await crowd.communicate(b"")
        # Once his calls are over he is heard again, and has nothing of hers.
        async with asyncio.timeout(20):
            while (said := await asked(BEN, path, "acquire 12")) == "":
                pass
        assert said == f"refused not the job of {BEN}"
        for line in ("acquire", "resize 12", "acquire 12 {}", "%" * 100):
            assert (await asked(ANNA, path, line)).startswith("refused A job's slice is asked for")
        assert await asked(ANNA, path, "x" * 5000) == ""
        assert await asked(ANNA, path, "acquire 12") == "live"
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    with tempfile.TemporaryDirectory(prefix="gpukernel-node-") as folder:
        Path(folder).chmod(0o755)
        asyncio.run(work(Path(folder, "socket")))
