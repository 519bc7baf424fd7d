"""TCP ports for servers that tests start a moment later; each process of one run has its own."""

from __future__ import annotations

import os

from hub_spawner.ports import Ports

__all__ = ["free_port"]

_MOST_PROCESSES = 64
_ports = Ports(
    int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _MOST_PROCESSES, _MOST_PROCESSES
)


def free_port() -> int:
    """A port of this machine that nobody listens at now, and that nothing takes before the test's server does."""
    return _ports.take()
