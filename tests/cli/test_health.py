"""``gpukernel health`` against a real pool."""

from __future__ import annotations

import json

from tests.cli.held_slices import hold, over
from tests.conftest import Pool, eventually


def test_health_says_that_all_is_well_and_what_to_do_where_it_is_not(gpu1_pool: Pool) -> None:
    fine = gpu1_pool.gpukernel("health")
    assert fine.returncode == 0, fine.stdout
    assert "server gpu1: 2 of 2 devices in use" in fine.stdout
    faults = gpu1_pool.state / "faults"
    faults.mkdir()
    program = hold(gpu1_pool)
    (lease,) = gpu1_pool.live()
    (piece,) = lease.slices
    (faults / str(piece.device_index)).write_text("the fan rattles")
    eventually(lambda: not gpu1_pool.live())
    sick = gpu1_pool.gpukernel("health", "--json")
    assert sick.returncode == 1
    wrong = [finding for finding in json.loads(sick.stdout) if not finding["fine"]]
    assert [(one["part"], one["seen"]) for one in wrong] == [(f"device {piece.device_id}", "the fan rattles")]
    assert "Look at the device on gpu1" in wrong[0]["advice"]
    assert "the fan rattles" in gpu1_pool.gpukernel("leases", "--all").stdout
    assert "the fan rattles" in gpu1_pool.gpukernel("list-gpus").stdout
    (faults / str(piece.device_index)).unlink()
    eventually(lambda: gpu1_pool.gpukernel("health").returncode == 0)
    over(program)


def test_health_without_a_pool_says_how_to_start_one(gpu1_pool: Pool) -> None:
    answer = gpu1_pool.gpukernel("health", "--state", "/nowhere/at/all")
    assert answer.returncode == 1
    assert "gpukernel up" in answer.stdout
