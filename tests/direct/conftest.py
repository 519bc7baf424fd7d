from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gpukernel.client.pool import PoolClient
from tests.conftest import Pool
from tests.remoting.conftest import PRELUDE

MIB = 2**20


class DirectPool(Pool):
    """A pool whose agent lets programs use its simulated GPUs themselves."""

    def run(self, code: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run `code` after the prelude under ``gpukernel run --direct``."""
        return self.gpukernel(
            "run", "--direct", *(options or ("-m", "64")), "--", sys.executable, "-c", PRELUDE + code
        )

    def out(self, code: str, *options: str) -> str:
        done = self.run(code, *options)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.strip()

    def begin(self, code: str, *options: str) -> subprocess.Popen[str]:
        return self.start_on_slice(PRELUDE + code, "--direct", *(options or ("-m", "64")))

    def release(self, lease_id: str, reason: str) -> None:
        async def ask() -> None:
            async with PoolClient(self.address) as client:
                await client.release(lease_id, reason)

        asyncio.run(ask())


@pytest.fixture(scope="session")
def direct_pool() -> Iterator[DirectPool]:
    with DirectPool("v100:2", options=("--direct",)) as pool:
        yield pool


@pytest.fixture
def own_direct_pool(tmp_path: Any) -> Iterator[DirectPool]:
    """One that a test may kill and start again."""
    with DirectPool("v100:1", tmp_path / "state", options=("--direct",)) as pool:
        yield pool


def says(program: subprocess.Popen[str]) -> str:
    """The next line of a program."""
    assert program.stdout is not None
    return program.stdout.readline().strip()


def tell(program: subprocess.Popen[str], line: str = "") -> None:
    assert program.stdin is not None
    program.stdin.write(line + "\n")
    program.stdin.flush()
