"""Single-user servers as processes on the Hub's own machine."""

from __future__ import annotations

from typing import Any

from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner

from hub_spawner.ports import free_port
from hub_spawner.spawner import GPUSpawnerMixin

__all__ = ["GPULocalProcessSpawner", "GPUSimpleLocalProcessSpawner"]


class _PortOfItsOwn(LocalProcessSpawner):  # type: ignore[misc]
    """A spawner that chooses the port where the configuration names none: one that no other starting server was promised."""

    async def start(self) -> Any:
        """Choose the port, then start the process."""
        if self.port == 0:  # type: ignore[has-type]
            self.port = free_port()
        return await super().start()


class GPULocalProcessSpawner(GPUSpawnerMixin, _PortOfItsOwn):  # type: ignore[misc]
    """A process for each server, which runs as the account of its person's name."""


class GPUSimpleLocalProcessSpawner(GPUSpawnerMixin, _PortOfItsOwn, SimpleLocalProcessSpawner):  # type: ignore[misc]
    """A process for each server, all as the Hub's own account: for trying, and never for people who do not trust each other."""
