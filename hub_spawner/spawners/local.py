"""Processes on the Hub's own machine."""

from __future__ import annotations

from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner

from hub_spawner.spawner import GPUSpawnerMixin

__all__ = ["GPULocalProcessSpawner", "GPUSimpleLocalProcessSpawner"]


class GPULocalProcessSpawner(GPUSpawnerMixin, LocalProcessSpawner):  # type: ignore[misc]
    """Each person's server runs as the account of that name."""


class GPUSimpleLocalProcessSpawner(GPUSpawnerMixin, SimpleLocalProcessSpawner):  # type: ignore[misc]
    """All servers run as the Hub's own account: for trying, and never for people who do not trust each other."""
