"""A course's lessons in each framework: on a slice they give the numbers that they give on the CPU."""

from __future__ import annotations

import json

import pytest

from tests.frameworks.conftest import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


NARROW = {"autocast_and_a_scaled_gradient"}
"""Lessons in bfloat16, whose sums differ by their order."""


def compare(run: Run, program: str, device: str, count: int) -> None:
    """Run a program's lessons on both, each in one process, and compare every number."""
    wanted = json.loads(run(program, "cpu", share="").splitlines()[-1])
    found = json.loads(run(program, device, share="0.1").splitlines()[-1])
    assert len(wanted) == len(found) == count
    assert {name: error for name, error in {**wanted, **found}.items() if isinstance(error, str)} == {}
    different = {}
    for name, numbers in wanted.items():
        near = 3e-2 if name in NARROW else 2e-3
        if found[name] != pytest.approx(numbers, rel=near, abs=near):
            different[name] = (found[name], numbers)
    assert different == {}


@pytest.mark.parametrize("framework", ["jax", "pytorch"])
def test_the_first_operation_costs_little_time_and_memory(
    framework: str, request: pytest.FixtureRequest
) -> None:
    """Compare with the CPU, which has no libraries of a device in memory: 150 MiB of the program's own more at most.

    Ten seconds are for a quiet machine, and from the second program on, which finds decoded images; on a busy one both take longer.
    """
    run: Run = request.getfixturevalue(f"on_{framework}")
    without = json.loads(run("courses/footprint", framework, "cpu", share="").splitlines()[-1])
    found = json.loads(run("courses/footprint", framework, "cuda").splitlines()[-1])
    assert found["anonymous"] - without["anonymous"] <= 150, (without, found)
    again = json.loads(run("courses/footprint", framework, "cuda").splitlines()[-1])
    assert again["seconds"] <= max(10, 3 * without["seconds"]), (without, again)


def test_pytorch(on_pytorch: Run) -> None:
    compare(on_pytorch, "courses/pytorch_course", "cuda", 18)


def test_jax(on_jax: Run) -> None:
    compare(on_jax, "courses/jax_course", "cuda", 16)


def test_tensorflow(on_tensorflow: Run) -> None:
    compare(on_tensorflow, "courses/tensorflow_course", "cuda", 16)
