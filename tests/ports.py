"""TCP ports for servers that tests start a moment later: others than a Hub's servers get, and each process of one run has its own."""

from __future__ import annotations

import os

from hub_spawner.ports import Ports

__all__ = ["free_port"]

_MOST_PROCESSES = 64
_process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _MOST_PROCESSES
_ports = Ports(range(12_000 + _process, 20_000, _MOST_PROCESSES))


def free_port() -> int:
    """A port of this machine that nobody listens at now, and that nothing takes before the test's server does."""
    return _ports.take()
