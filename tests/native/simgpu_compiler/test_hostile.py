"""Addresses that a student makes up: compiled code stays within what the interpreter lets a kernel reach."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.native.simgpu_compiler import hostile

COUNT = 250


def told(seed: int, tier: str, **environment: str) -> tuple[list[str], str]:
    """Return what became of each kernel of a seed in a tier, and what the library said of the tier."""
    done = subprocess.run(
        ["setarch", "-R", sys.executable, hostile.__file__, str(seed), str(COUNT)],
        env={
            **os.environ,
            "GPUKERNEL_SIMGPU": "h100",
            "GPUKERNEL_SIMGPU_TIER": tier,
            "GPUKERNEL_SIMGPU_TIER_LOG": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    return done.stdout.split("# ")[1:], done.stderr


@pytest.mark.parametrize(("seed", "memcheck"), [(1, ""), (2, "strict")])
def test_hostile_addresses_fault_alike_or_compute_alike_in_both_tiers(seed: int, memcheck: str) -> None:
    environment = {"GPUKERNEL_MEMCHECK": memcheck} if memcheck else {}
    interpreted, _ = told(seed, "interpreter", **environment)
    compiled, said = told(seed, "compiled", **environment)
    assert said.count("k: compiled: ") == COUNT, said[-2000:]
    assert len(interpreted) == len(compiled) == COUNT
    for number, (one, other) in enumerate(zip(interpreted, compiled, strict=True)):
        assert one == other, hostile.draw(seed, number)
    # Both kinds are there: kernels that come to their end, and faults in each space that a student can name.
    assert sum("\n0 " in each for each in compiled) > COUNT // 4
    for space in ("__shared__", "__local__", "__global__", "parameter"):
        assert any(f"Invalid {space}" in each for each in compiled), space
