"""Workers that their pool cannot reach end by themselves before anybody else gets their memory, with real processes."""

from __future__ import annotations

import os
import signal
import socket
import threading

import pytest

from tests.attacks.servers import WHOLE, Site, site, until
from tests.ports import free_port

__all__ = ["site"]


class Proxy:
    """A port that forwards to another one, until it is cut: then nothing gets through, and nobody is told."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.cut = False
        self._listener = socket.create_server(("127.0.0.1", free_port()))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        host, _, port = self._target.rpartition(":")
        while True:
            try:
                here, _ = self._listener.accept()
                there = socket.create_connection((host, int(port)))
            except OSError:
                return
            self._ends += [here, there]
            for one, other in ((here, there), (there, here)):
                threading.Thread(target=self._forward, args=(one, other), daemon=True).start()

    def _forward(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                if not self.cut:
                    other.sendall(data)
        except OSError:
            pass

    def close(self) -> None:
        for end in (self._listener, *self._ends):
            end.close()


def test_workers_of_a_frozen_agent_end_by_themselves_and_then_their_memory_is_granted(site: Site) -> None:
    site.pool("--grace", "5s")
    first = site.agent("gpu1")
    program = site.program("-p", "1.0")
    until(lambda: "ready" in program.said)
    (worker,) = site.workers()
    first.freeze()
    clone = site.clone("gpu1", "clone")  # the same machine and token, a copy of the state directory
    other = site.program("-p", "1.0", "--wait", "120")
    most = 0

    def granted() -> bool:
        nonlocal most
        most = max(most, site.held())
        return "ready" in other.said or other.process.poll() is not None

    until(granted, 120)
    assert "ready" in other.said, other.said + clone.said
    assert most == WHOLE
    assert worker not in site.workers()
    first.thaw()
    until(lambda: "refused" in first.said)
    assert site.held() == WHOLE
    first.end(signal.SIGTERM)
    assert "asyncio" not in first.said + clone.said  # streams that were refused end without complaints


def test_workers_behind_a_connection_that_is_cut_end_by_themselves(site: Site) -> None:
    site.pool("--grace", "5s")
    proxy = Proxy(site.address)
    address, site.address = site.address, proxy.address
    try:
        site.agent("gpu1")
        site.address = address
        program = site.program("-p", "0.5", code="import time; time.sleep(1000)")
        until(lambda: "ready" in program.said)
        assert site.held()
        proxy.cut = True
        until(lambda: not site.held())
    finally:
        proxy.close()


def test_a_pool_that_is_back_within_the_grace_costs_no_lease(site: Site) -> None:
    pool = site.pool("--grace", "60s")
    site.agent("gpu1")
    program = site.program("-p", "0.5")
    until(lambda: "ready" in program.said)
    before = site.workers()
    pool.end(signal.SIGKILL)
    site.pool("--grace", "60s")
    until(lambda: any(device.available for device in site.ask(lambda admin: admin.devices())))
    assert site.workers().keys() == before.keys()
    assert [lease.state for lease in site.ask(lambda admin: admin.leases())[0]] == ["live"]
    assert program.process.poll() is None


@pytest.mark.parametrize("who", ["agent", "worker"])
def test_a_worker_whose_agent_is_dead_ends_with_its_validity(site: Site, who: str) -> None:
    site.pool("--grace", "5s")
    agent = site.agent("gpu1")
    program = site.program("-p", "0.5", code="import time; time.sleep(1000)")
    until(lambda: "ready" in program.said)
    (worker,) = site.workers()
    agent.end(signal.SIGKILL)
    if who == "worker":  # stopped past its end, it ends as soon as it goes on
        os.kill(worker, signal.SIGSTOP)
        os.kill(worker, signal.SIGCONT)
    until(lambda: not site.workers())
