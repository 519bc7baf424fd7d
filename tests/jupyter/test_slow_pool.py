"""Jupyter on a pool that takes seconds for every answer: people wait for what needs the pool, and for nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.conftest import Pool, eventually
from tests.jupyter.server import Server, pool_environment
from tests.jupyter.slow_connection import SlowConnection
from tests.jupyter.test_kernel_lease import LOOK
from tests.jupyter.test_server import Events, kernel_of, status
from tests.jupyter.test_specs import listed

T = TypeVar("T")
SLOW = 8.0
SILENT = 50.0
"""Seconds; whoever waits for these is told from whoever does not, on a busy machine too."""


@pytest.fixture
def connection(own_pool: Pool) -> Iterator[SlowConnection]:
    with SlowConnection(own_pool.address, SLOW) as slow:
        yield slow


@pytest.fixture
def server(own_pool: Pool, connection: SlowConnection, tmp_path: Path) -> Iterator[Server]:
    environment = {**pool_environment(own_pool.state), "GPUKERNEL_POOL": connection.address}
    # As long as a start waits for its slice where nobody says otherwise.
    with Server(tmp_path, environment, "--GPUKernelSpecManager.slice_config={'wait_seconds': 5}") as running:
        yield running


def timed(ask: Callable[[], T]) -> tuple[float, T]:
    begin = time.monotonic()
    answer = ask()
    return time.monotonic() - begin, answer


def started_after_one_wait(server: Server, name: str) -> dict[str, Any]:
    """Start a kernel that waits once for the pool's answer, and not twice, beside what a kernel without a slice takes."""
    plain, other = timed(lambda: server.session("python3", "plain.ipynb"))
    server.ask("DELETE", f"/api/sessions/{other['id']}")
    took, session = timed(lambda: server.session("gpu-v100-0.02", name))
    assert took < 2 * SLOW + 2 * plain
    return session


def test_listing_and_status_do_not_wait_for_the_pool_and_say_so(
    server: Server, connection: SlowConnection
) -> None:
    connection.seconds = SILENT
    took, kernels = timed(lambda: listed(server))
    assert took < SILENT / 2
    assert kernels["gpu-v100-0.02"] == "V100 × 0.02 — the pool is slow to answer"
    took, shown = timed(lambda: status(server))
    assert took < SILENT / 2
    assert shown["problem"] == "The pool is slow to answer."


def test_a_kernel_starts_after_one_wait_and_computes_at_its_own_speed(server: Server, own_pool: Pool) -> None:
    listed(server)
    session = started_after_one_wait(server, "a.ipynb")
    (lease,) = eventually(own_pool.live)
    assert lease.key == session["kernel"]["id"]
    eventually(lambda: kernel_of(server, session)["state"] == "live")
    with server.kernel(session["kernel"]["id"]) as kernel:
        took, said = timed(lambda: kernel.run(LOOK))
        assert "CUDA_SUCCESS 655" in said
        assert took < SLOW  # CUDA calls have a connection of their own
    # The first query was lost to the time that the connection itself took; one of the next brings the figures.
    eventually(lambda: listed(server)["gpu-v100-0.02"] == "V100 × 0.02 — 655 MiB, 49 free", 60)
    eventually(lambda: not status(server)["problem"], 60)
    took, _ = timed(lambda: server.ask("DELETE", f"/api/sessions/{session['id']}"))
    assert took < 2 * SLOW
    eventually(lambda: own_pool.leases()[0] == [])


@pytest.mark.thorough
def test_a_line_that_becomes_slow_while_a_kernel_waits_keeps_its_place_and_brings_its_slice(
    server: Server, connection: SlowConnection, own_pool: Pool
) -> None:
    connection.seconds = 0
    events = Events(server)
    whole = server.session("gpu-v100-1.0")
    eventually(lambda: kernel_of(server, whole)["state"] == "live", 90)
    connection.seconds = SLOW
    waits = started_after_one_wait(server, "b.ipynb")
    kernel_id = waits["kernel"]["id"]
    eventually(lambda: any(e["kernel_id"] == kernel_id and e["position"] == 1 for e in events.seen), 90)
    with server.kernel(kernel_id) as kernel:
        cell = kernel.outputs(kernel.send(LOOK))
        assert "position 1 in the queue" in next(cell)[1]
        assert server.ask("DELETE", f"/api/sessions/{whole['id']}")[0] == 204
        assert "CUDA_SUCCESS 655" in "".join(text for _, text in cell)
