"""TCP ports for servers that tests start a moment later."""

from __future__ import annotations

import itertools
import os
import random
import socket
from pathlib import Path

__all__ = ["free_port"]

_STRIDE = 64
"""More than pytest ever has processes here; each takes the ports of its own remainder."""


def _candidates() -> itertools.chain[int]:
    try:
        end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        end = 32768
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = range(min(12_000, end // 2) // _STRIDE * _STRIDE + worker % _STRIDE, end, _STRIDE)
    first = random.randrange(len(ports))
    return itertools.chain(ports[first:], itertools.cycle(ports))


_next = _candidates()


def free_port() -> int:
    """A port of this machine that nobody listens at now, and that nothing takes before the test's server does.

    The system gives connections ports from a range of its own, so that a port from there may be gone by the time that a server
    started with it listens; these lie below that range, and no other process of the same run is given the same.
    """
    for port in itertools.islice(_next, 1000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError("no free port below those that the system gives to connections")
