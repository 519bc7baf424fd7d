"""A pool of a program's own: ``gpukernel up`` as a child process, for the demo, the benchmarks and the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

__all__ = ["EmbeddedPool", "PoolDidNotStart"]


_READY = "The pool is ready"


class PoolDidNotStart(RuntimeError):
    """An error: ``gpukernel up`` ended, or said nothing, before it was ready; the text says what it wrote."""


class EmbeddedPool:
    """A context manager around ``gpukernel up --simulate SIMULATE --state STATE OPTIONS``.

    Parameters
    ----------
    simulate
        Simulated devices, for example ``"v100:2"``; empty: this machine's GPUs.
    state
        State directory; a temporary one, removed afterwards, where None.
    tcp_host
        Workers listen on TCP at this address too.
    options
        More words for the command line, for example ``("--direct", "--watchdog", "60")``.
    ready_seconds
        How long to wait for the line that says that the pool is ready.

    Attributes
    ----------
    environment : dict
        This process's environment with ``GPUKERNEL_STATE`` pointing at the pool.
    """

    def __init__(
        self,
        simulate: str = "v100:1",
        state: Path | None = None,
        *,
        tcp_host: str = "",
        options: Sequence[str] = (),
        ready_seconds: float = 60,
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="gpukernel-") if state is None else None
        self.state = Path(self._temporary.name) if self._temporary else Path(str(state))
        self.simulate = simulate
        self.environment = {k: v for k, v in os.environ.items() if k != "GPUKERNEL_POOL"}
        self.environment["GPUKERNEL_STATE"] = str(self.state)
        self._tcp_host = tcp_host
        self._options = tuple(options)
        self._ready_seconds = ready_seconds
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the pool and return when it is ready; also used to start it again after it died."""
        # -P: what is installed, not a checkout that lies in the current folder and was never built.
        command = [
            sys.executable,
            "-P",
            "-m",
            "gpukernel.cli",
            "up",
            "--state",
            str(self.state),
            *self._options,
        ]
        if self.simulate:
            command += ["--simulate", self.simulate]
        if self._tcp_host:
            command += ["--tcp-host", self._tcp_host]
        self.process = subprocess.Popen(
            command,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        said: list[str] = []
        ready = threading.Event()

        def read(stream: object = self.process.stdout) -> None:
            for line in stream:  # type: ignore[attr-defined]
                said.append(line)
                if line.startswith(_READY):
                    ready.set()
            ready.set()

        threading.Thread(target=read, name="gpukernel up", daemon=True).start()
        if not ready.wait(self._ready_seconds) or not any(line.startswith(_READY) for line in said):
            self.stop()
            raise PoolDidNotStart("the embedded pool did not start: " + " ".join("".join(said).split()))

    def stop(self) -> None:
        """Stop the pool and its workers."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def kill(self) -> None:
        """End the pool's process without giving it a chance; its workers live on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> EmbeddedPool:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._temporary:
            self._temporary.cleanup()
