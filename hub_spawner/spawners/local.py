"""Processes on the Hub's own machine."""

from __future__ import annotations

from typing import Any

from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner

from hub_spawner.ports import free_port
from hub_spawner.spawner import GPUSpawnerMixin

__all__ = ["GPULocalProcessSpawner", "GPUSimpleLocalProcessSpawner"]


class _PortOfItsOwn(LocalProcessSpawner):  # type: ignore[misc]
    """Where the configuration names no port: one that no other server which starts was promised."""

    async def start(self) -> Any:
        if self.port == 0:  # type: ignore[has-type]
            self.port = free_port()
        return await super().start()


class GPULocalProcessSpawner(GPUSpawnerMixin, _PortOfItsOwn):  # type: ignore[misc]
    """Each person's server runs as the account of that name."""


class GPUSimpleLocalProcessSpawner(GPUSpawnerMixin, _PortOfItsOwn, SimpleLocalProcessSpawner):  # type: ignore[misc]
    """All servers run as the Hub's own account: for trying, and never for people who do not trust each other."""
