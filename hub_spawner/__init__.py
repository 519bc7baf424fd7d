"""GPU slices in JupyterHub: a course is chosen, and each kernel of the server may take slices for it.

Ten lines of configuration are `configure`; `GPUSpawnerMixin` makes any spawner one that hands a course's GPUs on, and for the usual
spawners that is done already (imported when they are asked for, since each needs its own package).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hub_spawner.setup import configure
    from hub_spawner.spawner import GPUSpawnerMixin, with_gpus
    from hub_spawner.spawners.batch import GPUSlurmSpawner
    from hub_spawner.spawners.docker import GPUDockerSpawner
    from hub_spawner.spawners.kube import GPUKubeSpawner
    from hub_spawner.spawners.local import GPULocalProcessSpawner, GPUSimpleLocalProcessSpawner
    from hub_spawner.spawners.systemd import GPUSystemdSpawner

__all__ = [
    "GPUDockerSpawner",
    "GPUKubeSpawner",
    "GPULocalProcessSpawner",
    "GPUSimpleLocalProcessSpawner",
    "GPUSlurmSpawner",
    "GPUSpawnerMixin",
    "GPUSystemdSpawner",
    "configure",
    "with_gpus",
]

_PLACES = {
    "GPUDockerSpawner": "hub_spawner.spawners.docker",
    "GPUKubeSpawner": "hub_spawner.spawners.kube",
    "GPULocalProcessSpawner": "hub_spawner.spawners.local",
    "GPUSimpleLocalProcessSpawner": "hub_spawner.spawners.local",
    "GPUSlurmSpawner": "hub_spawner.spawners.batch",
    "GPUSpawnerMixin": "hub_spawner.spawner",
    "GPUSystemdSpawner": "hub_spawner.spawners.systemd",
    "configure": "hub_spawner.setup",
    "with_gpus": "hub_spawner.spawner",
}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
