"""A pool and the agents of several GPU servers, each a process of its own, and what the workers really hold."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from gpukernel.client.admin import AdminClient
from gpukernel.common.address import resolve_address
from tests.conftest import eventually
from tests.ports import free_port

T = TypeVar("T")

WHOLE = 32 * 2**30  # of a simulated V100


class Process:
    """A command in the foreground whose output, both streams, is collected."""

    def __init__(self, words: Sequence[str], environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,  # it stays open: a program that reads waits
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    @property
    def said(self) -> str:
        return "".join(self.lines)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self, number: int = signal.SIGKILL) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.thaw()
        self.process.wait(60)
        self._reader.join(5)


class Site:
    """A pool that listens on TCP, on a state directory below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        self.environment = {**os.environ, "GPUKERNEL_STATE": str(folder / "pool")}
        self.started: list[Process] = []

    def command(self, *words: str, before: Sequence[str] = (), **variables: str) -> Process:
        words = (*before, sys.executable, "-m", "gpukernel.cli", *words)
        self.started.append(Process(words, {**self.environment, **variables}))
        return self.started[-1]

    def pool(self, *options: str, **variables: str) -> Process:
        place = ("--listen", self.address, "--state", str(self.folder / "pool"))
        started = self.command("pool", *place, *options, **variables)
        until(lambda: "The pool is ready" in started.said or started.process.poll() is not None)
        assert "The pool is ready" in started.said, started.said
        return started

    def agent(
        self, name: str, state: str = "", *options: str, token: Path | None = None, before: Sequence[str] = ()
    ) -> Process:
        """Start an agent and return when it is attached, was refused or has ended."""
        place = ("--name", name, "--state", str(self.folder / (state or name)), "--simulate", "v100")
        file = token or self.folder / "pool" / "agent.token"
        one = self.command(
            *("agent", "--pool", self.address, "--token-file", str(file), *place, *options), before=before
        )
        words = ("The agent is ready", "refuses", "is refused")
        until(lambda: any(word in one.said for word in words) or one.process.poll() is not None)
        return one

    def clone(self, name: str, state: str) -> Process:
        """Start an agent of a server that runs already, on a copy of what it keeps and with the same token."""
        kept = self.folder / state / "agent.json"
        kept.parent.mkdir()
        shutil.copy(self.folder / name / "agent.json", kept)
        return self.agent(name, state)

    def program(self, *options: str, code: str = "input()") -> Process:
        """Start a program on a slice; it says “ready” when it has one."""
        text = f"print('re' 'ady', flush=True)\n{code}"
        return self.command("run", *options, "--", sys.executable, "-u", "-c", text)

    def ask(self, what: Callable[[AdminClient], Awaitable[T]]) -> T:
        async def call() -> T:
            async with AdminClient(resolve_address(None, self.folder / "pool")) as client:
                return await what(client)

        return asyncio.run(call())

    def held(self) -> int:
        """The bytes of device memory that living workers may allocate, by their command lines: the truth outside of the pool."""
        return sum(int(words[words.index("--memory") + 1]) for words in self.workers().values())

    def workers(self) -> dict[int, list[str]]:
        """The command lines of the living workers by their process ids."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            ours = any(word.startswith(str(self.folder)) for word in words)
            if words[0].endswith("gpukernel-worker") and "--memory" in words and ours and state not in "ZX":
                found[int(entry.name)] = words
        return found

    def end(self) -> None:
        for one in self.started:
            one.end()
        for pid in self.workers():
            os.kill(pid, signal.SIGKILL)


def until(what: Callable[[], T], seconds: float = 60) -> T:
    """Ask until the answer is true, and return the last one."""
    return eventually(what, seconds)


@pytest.fixture
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="gk-", ignore_cleanup_errors=True) as folder:
        one = Site(Path(folder))
        yield one
        one.end()
