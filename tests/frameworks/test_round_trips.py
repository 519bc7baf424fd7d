"""Round trips of a framework's training step, counted by a proxy."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gpukernel.remoting.environment import compilers_for
from tests.frameworks.conftest import PROGRAMS, site_of
from tests.frameworks.sources import JAX, PYTORCH, TENSORFLOW, Framework
from tests.remoting.conftest import worker
from tests.remoting.round_trips import counted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FRAMEWORKS = {
    "jax": JAX,
    "keras": TENSORFLOW,
    "keras train_on_batch": TENSORFLOW,
    "tensorflow GradientTape": TENSORFLOW,
    "pytorch": PYTORCH,
}
STEPS = 30
SIMULATED: Any = SimpleNamespace(
    slices=[SimpleNamespace(device_name="(simulated)", memory_bytes=1, device_memory_bytes=2)]
)  # of a lease


def conversations(name: str, mode: str) -> tuple[float, dict[str, float]]:
    """Return the round trips of one step, and its answers by name, without the first steps'."""
    framework: Framework = FRAMEWORKS[name]
    site = str(site_of(framework))

    async def story() -> tuple[float, dict[str, float]]:
        async with worker(memory_mib=2048) as one:
            environment = compilers_for(
                SIMULATED, one.environment(kind="tcp", shared_memory=False) | {"PYTHONPATH": site}
            )
            with counted(environment) as counter:
                program = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *(str(PROGRAMS / "steps.py"), name, str(STEPS), mode),
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
                assert program.stdout
                if (line := await program.stdout.readline()) == b"warm\n":
                    counter.answers.taken()
                trips = counter.trips
                out, errors = await program.communicate(b"\n")
                assert (line, program.returncode) == (b"warm\n", 0), errors.decode()[-4000:]
                first, last = map(float, out.split())
                assert last < first
                each = {call: count / STEPS for call, count in counter.answers.taken().items()}
                return (counter.trips - trips) / STEPS, each

    return asyncio.run(story())


@pytest.mark.parametrize(
    ("name", "mode", "most"),
    [("jax", "read", 6), ("jax", "queue", 7), ("pytorch", "read", 0.3), ("pytorch", "queue", 0.3)],
)
def test_the_round_trips_of_a_step_stay_few(name: str, mode: str, most: float) -> None:
    """Count every conversation: those of JAX's seven host functions, too, for which the program does not wait."""
    assert conversations(name, mode)[0] <= most


@pytest.mark.parametrize(("mode", "most"), [("read", 1.5), ("queue", 1)])
def test_a_step_of_keras_waits_once(mode: str, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread that asks for events hears of them; what it reads comes with that, where the worker is not busy with others' work."""
    monkeypatch.setenv("GPUKERNEL_SIMGPU", "h100")
    _, answers = conversations("keras", mode)
    answers.pop("next_host_function")
    assert sum(answers.values()) <= most, answers


@pytest.mark.parametrize("name", ["keras train_on_batch", "tensorflow GradientTape"])
def test_a_value_that_tensorflow_reads_by_itself_comes_with_its_wait(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the stream that computes and reads in another one: one round trip for both."""
    monkeypatch.setenv("GPUKERNEL_SIMGPU", "h100")
    trips, answers = conversations(name, "read")
    assert trips <= 1.3, answers
    assert answers["copy_to_host"] <= 1.1, answers
