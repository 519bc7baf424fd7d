"""Slurm, by batchspawner: the server runs on a node of the cluster, its slices are on the pool's GPU servers."""

from __future__ import annotations

from typing import Any

from batchspawner import SlurmSpawner

from hub_spawner.spawner import GPUSpawnerMixin

__all__ = ["GPUSlurmSpawner"]


class GPUSlurmSpawner(GPUSpawnerMixin, SlurmSpawner):  # type: ignore[misc]
    """A Slurm job for each server.

    The pool has to be reached over TCP from the nodes: set `pool_for_servers`.  Environment variables reach the job through the
    environment of ``sbatch``, never in its script or command line.
    """

    def get_req_subvars(self) -> dict[str, Any]:
        """Return batchspawner's variables, with ours kept: its own list is made once, before the course is known."""
        variables: dict[str, Any] = super().get_req_subvars()
        kept = [name for name in str(variables.get("keepvars", "")).split(",") if name]
        ours = [name for name in self.gpu_environment() if name not in kept]
        return {**variables, "keepvars": ",".join([*kept, *ours])}
