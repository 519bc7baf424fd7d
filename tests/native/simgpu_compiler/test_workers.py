"""The tier that an agent's environment names reaches its workers, and nothing that is not theirs does."""

from __future__ import annotations

import pytest

from gpukernel.agent.inventory import simulated


def test_an_agent_s_tier_is_its_workers_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUKERNEL_SIMGPU_TIER", "compiled")
    monkeypatch.setenv("GPUKERNEL_SIMGPU_TIER_LOG", "1")
    monkeypatch.setenv("GPUKERNEL_POOL_TOKEN", "secret")
    environment = simulated("v100").worker_environment(0)
    assert environment["GPUKERNEL_SIMGPU_TIER"] == "compiled"
    assert environment["GPUKERNEL_SIMGPU_TIER_LOG"] == "1"
    assert "GPUKERNEL_POOL_TOKEN" not in environment
