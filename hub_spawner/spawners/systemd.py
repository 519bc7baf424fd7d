"""Single-user servers as units of systemd on the Hub's own machine."""

from __future__ import annotations

from typing import Any

from systemdspawner import SystemdSpawner
from traitlets import validate

from hub_spawner.ports import free_port
from hub_spawner.spawner import GPUSpawnerMixin

__all__ = ["GPUSystemdSpawner"]


class GPUSystemdSpawner(GPUSpawnerMixin, SystemdSpawner):  # type: ignore[misc]
    """A transient unit for each server."""

    @validate("port")
    def _port_of_its_own(self, proposal: Any) -> int:
        # SystemdSpawner sets one that the system gives to connections, too, whatever the configuration says.
        return free_port()
