"""The limit that an agent gives NVIDIA's MPS for a worker: the slice and its context, and never more than the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpukernel.agent.confinement import MPS_CONTEXT_MIB, mps_environment
from gpukernel.agent.inventory import Inventory, simulated

MIB = 2**20


@pytest.fixture
def real() -> Inventory:
    """The inventory of an agent with two real devices."""
    return Inventory(simulated("v100:2").devices, "libcuda.so.1")


@pytest.fixture
def mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of pipes such as a control daemon makes."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    (tmp_path / "control").touch()


def limit(inventory: Inventory, memory_bytes: int) -> str:
    return mps_environment(inventory, 1, memory_bytes)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]


def test_a_slice_has_room_for_its_context(real: Inventory, mps: None) -> None:
    assert limit(real, 100 * MIB + 1) == f"0={101 + MPS_CONTEXT_MIB}M"


def test_a_whole_device_has_no_more_than_there_is(real: Inventory, mps: None) -> None:
    whole = real.devices[1].memory_bytes
    assert limit(real, whole) == limit(real, whole - MIB) == f"0={whole // MIB}M"


def test_without_mps_nothing_is_said(
    real: Inventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "nowhere"))
    assert mps_environment(real, 0, MIB) == {}
