"""``drain`` and ``undrain``: GPU servers taken out and put back."""

from __future__ import annotations

import time
from pathlib import Path

from gpukernel.cli.output import seconds
from gpukernel.cli.quota import ask_admin
from gpukernel.cli.tables import ask_pool

__all__ = ["drain", "undrain"]

LOOK_SECONDS = 1.0


def drain(server: str, deadline: str, wait: bool, pool: str | None, state: Path | None) -> None:
    """Let a server have no new leases; with `wait` return when none is left."""
    span = seconds(deadline)
    left = ask_admin(pool, state, lambda c: c.drain(server, span))
    end = f", for {deadline} at most" if span and left else ""
    print(f"{server} gets no new leases; {left} are left{end}.")
    while wait and left:
        time.sleep(LOOK_SECONDS)
        devices = ask_pool(pool, state, lambda client: client.devices())
        left = sum(device.leases for device in devices if device.server == server)
    if wait:
        print(f"{server} is empty.")


def undrain(server: str, pool: str | None, state: Path | None) -> None:
    """Let a server have leases again."""
    ask_admin(pool, state, lambda c: c.undrain(server))
    print(f"{server} gets leases again.")
