"""The workers' sockets that containers may be given: second names in a directory of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from gpukernel.agent.keys import Key
from gpukernel.common.address import former_container_sockets

__all__ = ["ContainerSockets"]


class ContainerSockets:
    """A hard link ``LEASE-INDEX.sock`` in `directory` for each worker's unix socket.

    Where version 0.1 has left the folder's old name, a link by now, workers are named by that as well: containers that mounted the
    folder then, or mount it by that name now, know no other.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        former = former_container_sockets(directory.parent)
        self._names = [directory, former] if former.is_symlink() else [directory]

    def _path(self, key: Key) -> Path:
        return self._directory / f"{key[0]}-{key[1]}.sock"

    def add(self, key: Key, endpoints: Iterable[str]) -> None:
        """Link the worker's unix socket, where it has one."""
        for endpoint in endpoints:
            if endpoint.startswith("unix:"):
                with contextlib.suppress(OSError):  # it is there already, or containers do without
                    self._path(key).hardlink_to(endpoint.removeprefix("unix:"))

    def remove(self, name: str) -> None:
        """Remove the link of the worker whose directory is `name`, ``LEASE-INDEX``."""
        (self._directory / f"{name}.sock").unlink(missing_ok=True)

    def with_links(self, key: Key, endpoints: Iterable[str]) -> tuple[str, ...]:
        """Return the worker's endpoints, with the link's names behind the unix socket that it names."""
        found: list[str] = []
        for endpoint in endpoints:
            found.append(endpoint)
            if endpoint.startswith("unix:") and self._path(key).exists():
                found += [f"unix:{folder / self._path(key).name}" for folder in self._names]
        return tuple(found)
