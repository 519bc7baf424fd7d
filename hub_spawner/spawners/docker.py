"""Docker containers: the image has gpukernel (docs/jupyterhub.md), and the pool is mounted where it is a socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dockerspawner import DockerSpawner
from traitlets import default

from hub_spawner.spawner import GPUSpawnerMixin

__all__ = ["GPUDockerSpawner"]


class GPUDockerSpawner(GPUSpawnerMixin, DockerSpawner):  # type: ignore[misc]
    """A container for each server; an environment is its image: ``{"PyTorch": {"image": "…"}}``."""

    @default("options_form")
    def _the_choice_page(self) -> Any:
        # DockerSpawner's own form, of `allowed_images`, is what an administrator without environments may have set up.
        return self._choice_form

    @property
    def volume_binds(self) -> dict[str, dict[str, str]]:
        """As DockerSpawner's, and the folder of the pool's and its workers' sockets."""
        binds: dict[str, dict[str, str]] = dict(super().volume_binds)
        address = self.connection_of_servers().address
        if address.startswith("unix:"):
            folder = str(Path(address.removeprefix("unix:")).parent)
            binds.setdefault(folder, {"bind": folder, "mode": "rw"})
        return binds
