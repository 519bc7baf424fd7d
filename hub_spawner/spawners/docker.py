"""Docker containers with GPUs; the image has gpukernel (docs/jupyterhub.md).  A pool behind a unix socket is reached by
the sockets for containers, which want a token.

The folder of the pool's own socket has its database and its workers' control sockets beside it, and an account in a container, root
above all, is taken for one of the machine's.  So containers get the folder ``containers`` in it, in which there are sockets for them alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from dockerspawner import DockerSpawner
from traitlets import default

from gpukernel.common.address import container_sockets, is_container_socket
from gpukernel.common.connection import Connection
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
        """Return DockerSpawner's binds and the folder of the sockets for containers."""
        binds: dict[str, dict[str, str]] = dict(super().volume_binds)
        address = self.connection_of_servers().address
        if address.startswith("unix:"):
            folder = str(Path(address.removeprefix("unix:")).parent)
            binds.setdefault(
                folder, {"bind": folder, "mode": "ro"}
            )  # connecting needs no right to change the folder
        return binds

    def connection_of_servers(self) -> Connection:
        """Return the mixin's connection, by the socket for containers."""
        found = super().connection_of_servers()
        if not found.address.startswith("unix:"):
            return found
        socket = Path(found.address.removeprefix("unix:"))
        if is_container_socket(socket):
            return found
        return replace(found, address=f"unix:{container_sockets(socket.parent) / socket.name}")
