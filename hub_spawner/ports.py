"""TCP ports for servers that start on this machine, none of which is promised twice."""

from __future__ import annotations

import itertools
import random
import socket
from pathlib import Path

__all__ = ["Ports", "below_the_systems", "free_port", "is_free"]

_LOWEST, _ENOUGH = 20_000, 4_000


class Ports:
    """The free ports among `candidates`, one after the other.

    A server listens some seconds after its port was chosen.  One of the range from which the system gives ports to connections may be a
    connection's by then, or may have been chosen for another server that starts, too: a Hub that asks there whether its server is up
    hears the other one, and sends a person to somebody else's.
    """

    def __init__(self, candidates: range) -> None:
        first = random.randrange(len(candidates))
        self._next = itertools.chain(candidates[first:], itertools.cycle(candidates))

    def take(self) -> int:
        """Return a port that nobody listens at; no call returns it again until all others have been returned.

        Raises
        ------
        OSError
            1000 in a row are taken.
        """
        for port in itertools.islice(self._next, 1000):
            if is_free(port):
                return port
        raise OSError("no free port among a thousand")


def is_free(port: int) -> bool:
    """Return whether nobody listens at `port` of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def below_the_systems() -> range:
    """Return the ports below those that the system gives to connections, or where it gives nearly all, a range of those."""
    try:
        end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:  # no Linux
        end = 32_768
    return range(_LOWEST, end if end >= _LOWEST + _ENOUGH else 61_000)


_ports = Ports(below_the_systems())


def free_port() -> int:
    """Return the next of this process's `Ports`."""
    return _ports.take()
