"""The identity of this machine, by which a pool tells whether a program and a GPU are on the same one."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["machine_identity"]


def machine_identity() -> str:
    """Return a digest of the machine's id and of this start of it; empty where either is not told.

    A container with an ``/etc/machine-id`` of its own is another machine, which it is as far as files and devices go; one that is
    given the host's (and its GPUs, and the agent's state directory) counts as the host.
    """
    try:
        machine = Path("/etc/machine-id").read_text().strip()
        start = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    return hashlib.sha256(f"{machine} {start}".encode()).hexdigest()[:32] if machine and start else ""
