"""Fixtures and helpers that the tests of several rooms share: pools of their own, and waiting for things instead of sleeping."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from gpukernel.client.pool import PoolClient, resolve_address
from gpukernel.common.model import Device, Lease, Waiting
from gpukernel.embedded import EmbeddedPool
from tests.real_gpu import REAL

# Whoever starts the tests in the background of a script has them ignore Ctrl-C, and so would every program that they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test is to find what another build has compiled, or to leave something in the home of whoever starts it.
os.environ.setdefault("GPUKERNEL_NVRTC_CACHE", "off")

T = TypeVar("T")
PROGRAMS = Path(__file__).parent / "e2e" / "programs"


# What a test needs, by the fixtures that it asks for and the names that its module imports.
NEEDS = {"browser": {"browser", "CHROMIUM"}, "postgresql": {"postgresql", "new_postgresql"}, "hub": {"Hub"}}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need a browser, PostgreSQL or a JupyterHub, so that ``-m "not browser"`` leaves them out."""
    for item in items:
        if isinstance(item, pytest.Function):
            uses = {*item.fixturenames, *vars(item.module)}
            parameters = getattr(item, "callspec", None)
            if parameters is not None and parameters.params.get("database") == "postgresql":
                uses.add("postgresql")
            for name in (name for name, signs in NEEDS.items() if uses & signs):
                item.add_marker(name)


class Pool(EmbeddedPool):
    """An embedded pool that tests ask, and run programs on."""

    @property
    def address(self) -> str:
        return resolve_address(None, self.state)

    def leases(self, *, ended: bool = False) -> tuple[list[Lease], list[Waiting]]:
        async def ask() -> tuple[list[Lease], list[Waiting]]:
            async with PoolClient(self.address) as client:
                return await client.leases(include_ended=ended)

        return asyncio.run(ask())

    def live(self) -> list[Lease]:
        return [lease for lease in self.leases()[0] if lease.state == "live"]

    def devices(self) -> list[Device]:
        async def ask() -> list[Device]:
            async with PoolClient(self.address) as client:
                return await client.devices()

        return asyncio.run(ask())

    def promised(self) -> int:
        return sum(device.promised_bytes for device in self.devices())

    def gpukernel(
        self, *arguments: str, timeout: float = 200, input: str | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of gpukernel's, and end what it has started where it takes too long or the test is ended."""
        command = [sys.executable, "-m", "gpukernel.cli", *arguments]
        with subprocess.Popen(
            command,
            env=self.environment,
            cwd=cwd,
            stdin=None if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, errors = process.communicate(input, timeout=timeout)
            except BaseException as error:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                for said in process.communicate():
                    error.add_note(said[-3000:])
                raise
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def program(self, name: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run one of the programs of ``tests/e2e/programs``, which know nothing of gpukernel, on a slice."""
        return self.gpukernel("run", *(options or ("-p", "0.02")), "--", sys.executable, str(PROGRAMS / name))

    def start_on_slice(self, code: str, *options: str) -> subprocess.Popen[str]:
        """Start Python `code` under ``gpukernel run``; its standard output is a pipe."""
        command = [sys.executable, "-m", "gpukernel.cli", "run", *(options or ("-p", "0.02"))]
        return subprocess.Popen(
            [*command, "--", sys.executable, "-u", "-c", code],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def eventually(what: Callable[[], T], seconds: float = 30) -> T:
    """Ask until the answer is true, and return it; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not (answer := what()):
        if time.monotonic() > end:
            pytest.fail(f"still {answer!r} after {seconds} s")
        time.sleep(0.05)
    return answer


@pytest.fixture(scope="session")
def shared_pool() -> Iterator[Pool]:
    """A pool for tests that take little and give it back."""
    with Pool("" if REAL else "v100:2", tcp_host="127.0.0.1") as pool:
        yield pool


@pytest.fixture
def own_pool(tmp_path: Path) -> Iterator[Pool]:
    """A pool with one V100 that a test may fill, kill and start again."""
    with Pool("" if REAL else "v100:1", tmp_path / "state", tcp_host="127.0.0.1") as pool:
        yield pool


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pool of the caller's, and no kernelspecs of the environment before the test's own."""
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    for name in [name for name in os.environ if name.startswith("GPUKERNEL_POOL")]:
        monkeypatch.delenv(name)
