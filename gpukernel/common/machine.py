"""The machine that this process runs on: its identity, and the limits that it sets a process."""

from __future__ import annotations

import hashlib
import resource
from pathlib import Path

__all__ = ["machine_identity", "raise_descriptor_limit", "stable_machine_identity"]


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


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files (``RLIMIT_NOFILE``) to the hard one, which whoever started it allows; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def stable_machine_identity() -> str:
    """Return a digest of the machine's id, the same after every start of it; empty where there is none."""
    try:
        machine = Path("/etc/machine-id").read_text().strip()
    except OSError:
        return ""
    return hashlib.sha256(f"gpukernel {machine}".encode()).hexdigest()[:32] if machine else ""
