"""TCP ports for servers that start on this machine, none of which is promised twice."""

from __future__ import annotations

import itertools
import random
import socket
from pathlib import Path

__all__ = ["Ports", "free_port"]

_SYSTEMS_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _ENOUGH = 12_000, 4_000


class Ports:
    """Free ports below those that the system gives to connections, one after the other.

    A server listens some seconds after its port was chosen.  One of the system's own range may be a connection's by then, or may have
    been chosen for another server that starts, too: a Hub that asks there whether its server is up hears the other one, and sends a
    person to somebody else's.

    Parameters
    ----------
    part, parts
        Of `parts` processes each has ports of its own, those of the `part`-th, counted from 0.
    """

    def __init__(self, part: int = 0, parts: int = 1) -> None:
        ports = range(_LOWEST + part, _end(), parts)
        first = random.randrange(len(ports))
        self._next = itertools.chain(ports[first:], itertools.cycle(ports))

    def take(self) -> int:
        """One that nobody listens at, and that no call gives again until all others have been given.

        Raises
        ------
        OSError
            1000 in a row are taken.
        """
        for port in itertools.islice(self._next, 1000):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("", port))
                except OSError:
                    continue
                return port
        raise OSError("no free port below those that the system gives to connections")


def _end() -> int:
    try:
        end = int(_SYSTEMS_RANGE.read_text().split()[0])
    except OSError:  # no Linux
        end = 32768
    return (
        end if end >= _LOWEST + _ENOUGH else 61_000
    )  # nothing is left below it: at least none is given twice


_ports = Ports()


def free_port() -> int:
    """`Ports.take`, of those of this process."""
    return _ports.take()
