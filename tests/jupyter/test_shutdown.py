"""A Jupyter server that is told to stop ends, whatever its kernels are doing, and leaves nothing in the pool."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpukernel.jupyter import kernelspecs
from tests.conftest import Pool, eventually
from tests.jupyter.server import Server, pool_environment

ENDS_WITHIN = 15.0
"""Seconds; a kernel of its own gets five of them to shut down, and the machine may be busy."""


@pytest.fixture
def server(own_pool: Pool, tmp_path: Path) -> Iterator[Server]:
    for share, model in ((0.02, "V100"), (1.0, "V100"), (0.02, "H100")):
        spec = kernelspecs.SliceSpec(share, model=model, wait_seconds=50)
        kernelspecs.write(spec, tmp_path / "data" / "kernels")
    with Server(tmp_path, pool_environment(own_pool.state)) as running:
        yield running


class Start(threading.Thread):
    """Somebody starts a kernel; `answer` is what the server says in the end."""

    def __init__(self, server: Server, kernel: str) -> None:
        super().__init__(daemon=True)
        self._server, self._kernel = server, kernel
        self.answer: tuple[int, Any] | None = None
        self.start()

    def run(self) -> None:
        body = {
            "path": "b.ipynb",
            "name": "b.ipynb",
            "type": "notebook",
            "kernel": {"name": self._kernel},
        }
        self.answer = self._server.ask("POST", "/api/sessions", body)


def stop(server: Server) -> float:
    begin = time.monotonic()
    server.stop()
    return time.monotonic() - begin


def test_one_that_stops_while_a_kernel_waits_to_start_ends_and_gives_the_place_up(
    server: Server, own_pool: Pool
) -> None:
    server.session("gpu-v100-1.0")
    waits = Start(server, "gpu-v100-0.02")
    eventually(lambda: own_pool.leases()[1])
    assert stop(server) < ENDS_WITHIN
    waits.join(5)
    assert waits.answer is not None
    assert waits.answer[0] == 500
    assert waits.answer[1]["message"] == "This Jupyter server is stopping."
    assert eventually(lambda: own_pool.leases() == ([], []), 5)


def test_one_that_stops_while_a_slice_comes_gives_it_back(server: Server, own_pool: Pool) -> None:
    starts = Start(server, "gpu-v100-0.02")
    eventually(lambda: own_pool.leases()[0])
    assert stop(server) < ENDS_WITHIN
    starts.join(5)
    assert eventually(lambda: own_pool.leases() == ([], []), 5)


def test_one_with_a_kernel_and_another_that_was_refused_a_slice_ends_too(
    server: Server, own_pool: Pool
) -> None:
    server.session("gpu-v100-0.02")
    refused = Start(server, "gpu-h100-0.02")
    refused.join(60)
    assert refused.answer is not None
    assert "The pool has no H100" in refused.answer[1]["message"]
    assert stop(server) < ENDS_WITHIN
    assert eventually(lambda: own_pool.leases() == ([], []), 5)


def test_one_that_stops_while_a_restart_waits_for_its_slice_ends_and_gives_the_place_up(
    server: Server, own_pool: Pool
) -> None:
    kernel = server.session("gpu-v100-0.02")["kernel"]["id"]
    assert server.ask("POST", f"/gpukernel/api/kernels/{kernel}/release", {})[0] == 204
    server.session("gpu-v100-1.0", "b.ipynb")
    restart = threading.Thread(
        target=server.ask, args=("POST", f"/api/kernels/{kernel}/restart"), daemon=True
    )
    restart.start()
    eventually(lambda: own_pool.leases()[1])
    assert stop(server) < ENDS_WITHIN
    restart.join(5)
    assert eventually(lambda: own_pool.leases() == ([], []), 5)


def test_one_that_does_not_answer_in_time_is_ended_and_not_left_behind(tmp_path: Path) -> None:
    late = Server(tmp_path, pool_environment(tmp_path / "state"))

    def running() -> list[str]:
        option = f"--ServerApp.port={late.port}".encode()
        found = []
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if option in place.read_bytes().split(b"\0"):
                    found.append(place.parent.name)
        return found

    with pytest.raises(RuntimeError):
        late.start(seconds=0)
    try:
        assert running() == []
    finally:
        for number in running():
            os.kill(int(number), signal.SIGKILL)
