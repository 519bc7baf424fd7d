"""Two notebooks, each in a kernel with a slice of its own, that train on one simulated device at the same time."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.frameworks.conftest import Execute, notebook_of, said
from tests.frameworks.sources import JAX, PYTORCH, TENSORFLOW

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

FRAMEWORKS = {"jax": JAX, "pytorch": PYTORCH, "tensorflow": TENSORFLOW}
SHARES = (0.02, 0.05)
H100_BYTES = 80 << 30
# JAX alone differs from itself by as much: the slopes of words are summed by atomics, in the order of the device's threads.
NEAR = {"jax": 1e-5, "pytorch": 0, "tensorflow": 0}


@contextmanager
def meetings(of: int) -> Iterator[int]:
    """Let programs meet that say so at the port yielded: each goes on once `of` have come, and hears nothing where one has ended."""
    together = threading.Barrier(of)
    server = socket.create_server(("127.0.0.1", 0))

    def follow(one: socket.socket) -> None:
        with one:
            try:
                while one.recv(1):
                    together.wait(900)
                    one.sendall(b"!")
            except (threading.BrokenBarrierError, OSError):
                together.abort()

    def welcome() -> None:
        for _ in range(of):
            threads.submit(follow, server.accept()[0])

    with ThreadPoolExecutor() as threads, server:
        threads.submit(welcome)
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_two_that_train_at_once_have_the_values_of_one_alone(name: str, execute: Execute) -> None:
    """Compare every loss, and what the driver and the framework say of the slice's memory."""

    def of(shares: tuple[float, ...]) -> list[dict[str, Any]]:
        with meetings(len(shares)) as port, ThreadPoolExecutor() as threads:
            books = [notebook_of("neighbours", name, str(port), share=share) for share in shares]
            done = threads.map(execute, books, [FRAMEWORKS[name]] * len(books))
            lines = [said(book).splitlines() for book in done]
        return [json.loads(next(one for one in each if one.startswith("{"))) for each in lines]

    (alone,) = of(SHARES[:1])
    both = of(SHARES)
    assert all(losses[19] < losses[0] - 0.2 for losses in alone["losses"])
    for one, share in zip(both, SHARES, strict=True):
        for found, wanted in zip(one["losses"], alone["losses"], strict=True):
            assert found == pytest.approx(wanted, rel=0, abs=NEAR[name])
        assert one["total"] == pytest.approx(share * H100_BYTES, rel=0.02)
        assert 0.5 * one["total"] <= one["limit"] <= one["total"]
    assert both[0]["total"] == alone["total"]
    # Each began before the other's end, both times.
    for first, second in zip(*(one["spans"] for one in both), strict=True):
        assert max(first[0], second[0]) < min(first[1], second[1])
