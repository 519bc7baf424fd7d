"""Units of systemd on the Hub's own machine."""

from __future__ import annotations

from systemdspawner import SystemdSpawner

from hub_spawner.spawner import GPUSpawnerMixin

__all__ = ["GPUSystemdSpawner"]


class GPUSystemdSpawner(GPUSpawnerMixin, SystemdSpawner):  # type: ignore[misc]
    """A transient unit for each server."""
