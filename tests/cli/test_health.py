"""``gpukernel health`` against a real pool."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpukernel.embedded import PoolDidNotStart
from tests.cli.held_slices import hold, over
from tests.conftest import Pool, eventually


def test_health_says_that_all_is_well_and_what_to_do_where_it_is_not(gpu1_pool: Pool) -> None:
    fine = gpu1_pool.gpukernel("health")
    assert fine.returncode == 0, fine.stdout
    assert "server gpu1: 2 of 2 devices in placement" in fine.stdout
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


def test_health_names_the_rungs_of_each_servers_confinement_and_why_others_are_missing(
    gpu1_pool: Pool,
) -> None:
    findings = json.loads(gpu1_pool.gpukernel("health", "--json").stdout)
    (one,) = [finding for finding in findings if finding["part"] == "confinement gpu1"]
    rungs = {rung["name"]: rung for rung in one["rungs"]}
    assert list(rungs) == [
        *("host-memory", "cgroup", "account", "no-new-privileges", "limits", "landlock", "system-calls"),
        *("no-network", "mps", "mig"),
    ]
    assert rungs["host-memory"]["detail"] == "1024 MiB for a slice"
    assert "; host memory: 1024 MiB for a slice" in one["seen"]
    assert rungs["no-new-privileges"]["used"]
    assert rungs["mps"] == {"name": "mps", "used": False, "detail": "simulated devices have no MPS"}
    assert all(rung["detail"] for rung in rungs.values() if not rung["used"])
    assert "Not in use: " in one["advice"]
    assert "confinement gpu1: workers are confined by " in gpu1_pool.gpukernel("health").stdout


def test_a_rung_that_is_asked_for_and_missing_ends_the_agents_start(tmp_path: Path) -> None:
    for setting, sentence in (
        ("moat", "“moat” is no rung of --confinement; write auto, off, or some of cgroup,"),
        ("cgroup,moat", "“moat” is no rung"),
    ):
        with pytest.raises(PoolDidNotStart, match=sentence):
            Pool("v100:1", tmp_path / "state", options=("--confinement", setting)).start()
    with pytest.raises(PoolDidNotStart, match="“7” is no range of accounts; write FIRST-LAST"):
        Pool("v100:1", tmp_path / "state", options=("--worker-accounts", "7")).start()


def test_workers_without_any_confinement_are_a_finding(tmp_path: Path) -> None:
    with Pool("v100:1", tmp_path / "state", options=("--confinement", "off", "--name", "gpu1")) as pool:
        answer = pool.gpukernel("health")
    assert answer.returncode == 1
    assert "confinement gpu1: workers are not confined" in answer.stdout
