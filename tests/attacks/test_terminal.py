"""A student describes a slice in a way that an administrator's terminal obeys, or that ends the command with which they would see it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from gpukernel.client.admin import AdminClient
from gpukernel.common.address import socket_path
from gpukernel.common.errors import Refused
from gpukernel.common.model import Holder, SliceRequest
from gpukernel.pool.rpc.server import serve
from tests.pool.world import Agent

CLOSING = "end [/none] of [bold]it"
COMMANDS = "\x1b]0;mine\x07\x1b[2J\n2026-01-01 root"
HALF = SliceRequest(share=0.5)


def test_what_students_write_is_shown_as_it_is(tmp_path: Path) -> None:
    async def work() -> None:
        address = f"unix:{socket_path(tmp_path)}"
        async with serve(tmp_path) as running, AdminClient(address) as admin:
            Agent(running.manager, "gpu1").attach()
            lease = await admin.acquire_now("one", HALF, Holder("mallory", description=CLOSING))
            await admin.release(lease.id, COMMANDS + CLOSING)
            await admin.acquire_now("two", HALF, Holder("mallory", description=CLOSING + COMMANDS))
            for words in (["leases", "--all"], ["top", "--times", "1"]):
                shown = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "gpukernel.cli", *words, "--pool", address),
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                )
                out = (await shown.communicate())[0].decode()
                assert shown.returncode == 0, out
                assert not {c for c in out if not c.isprintable()} - {"\n"}
                assert "[/none]" in out

    asyncio.run(work())


@pytest.mark.parametrize(
    "holder", [Holder("a", "server\x1b[2J"), Holder("a", course="c\nd"), Holder("a\x9b2J")]
)
def test_names_have_no_control_characters(tmp_path: Path, holder: Holder) -> None:
    async def work() -> None:
        async with serve(tmp_path) as running, AdminClient(f"unix:{socket_path(tmp_path)}") as admin:
            Agent(running.manager, "gpu1").attach()
            with pytest.raises(Refused, match="must not contain control characters"):
                await admin.acquire_now("one", HALF, holder)

    asyncio.run(work())
