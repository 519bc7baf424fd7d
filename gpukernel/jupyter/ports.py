"""TCP ports for a kernel that nobody else can get before the kernel listens.

Jupyter asks the system for free ports, closes them and tells the kernel their numbers.  Until the kernel listens, seconds
later on a busy machine, any connection that anybody opens may be given one of them, and the kernel dies with “Address already in use”.
A bound socket that never listens keeps a port out of everyone's reach except for those who bind it by number and with ``SO_REUSEADDR``, as
ZeroMQ does.
"""

from __future__ import annotations

import socket
from typing import Any

__all__ = ["PORTS", "ReservedPorts"]

PORTS = ("shell_port", "iopub_port", "stdin_port", "hb_port", "control_port")


class ReservedPorts:
    """The ports of one kernel, kept until `close`, so that a restart finds them free, too."""

    def __init__(self) -> None:
        self._reserved: list[socket.socket] = []

    def assign(self, manager: Any) -> bool:
        """Give `manager`, a `KernelManager`, ports that it does not have yet; return False where it brings its own.

        Raises
        ------
        OSError
            The manager's address is none of this machine's, or it has no ports left.
        """
        if manager.transport != "tcp" or any(getattr(manager, name) for name in PORTS):
            return False
        self.close()
        family = socket.AF_INET6 if ":" in manager.ip else socket.AF_INET
        for name in PORTS:
            reserved = socket.socket(family, socket.SOCK_STREAM)
            self._reserved.append(reserved)
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind((manager.ip, 0))
            setattr(manager, name, reserved.getsockname()[1])
        return True

    def close(self) -> None:
        """Let everyone have the ports again."""
        while self._reserved:
            self._reserved.pop().close()
