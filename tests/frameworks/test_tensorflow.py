"""TensorFlow from PyPI on a simulated slice, without a flag or a variable of the user's."""

from __future__ import annotations

import json

import pytest

from tests.frameworks.conftest import Execute, Run, losses_in, notebook_of, said
from tests.frameworks.sources import TENSORFLOW

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

OPERATIONS = {
    "mathematics": 129,
    "reductions": 58,
    "movement": 65,
    "images": 25,
    "layers": 52,
    "random numbers": 16,
    "convolutions": 24,
    "linear algebra": 31,
    "recurrent layers": 4,
}
# TensorFlow has kernels for the CPU alone, whatever device is asked for.
ON_THE_CPU = {
    "pow of int32",
    "nth_element",
    "resize bicubic",
    "resize area",
    "resize lanczos3",
    "resize gaussian",
    "resize mitchellcubic",
    "stateless_binomial",
}


@pytest.mark.parametrize("group", OPERATIONS)
def test_operations_give_what_the_cpu_gives(group: str, on_tensorflow: Run) -> None:
    found = json.loads(on_tensorflow("tensorflow_operations", group, share="0.25").splitlines()[-1])
    assert found["devices"] == 1
    assert found["failed"] == {}
    assert found["passed"] == {group: OPERATIONS[group]}
    assert set(found["elsewhere"]) <= ON_THE_CPU


def test_what_people_do_beside_operations_works(on_tensorflow: Run) -> None:
    assert on_tensorflow("tensorflow_life", share="0.01").splitlines()[-1] == "a_profile_is_written"


def test_training_loses_as_on_the_cpu(on_tensorflow: Run) -> None:
    names = ("mlp", "fit", "mixed", "loop")
    wanted = json.loads(on_tensorflow("tensorflow_training", "cpu", *names, share="").splitlines()[-1])
    # oneDNN multiplies in half precision itself where the processor does, and is 2.6e-3 from TensorFlow's own kernels after 20 steps.
    own = on_tensorflow("tensorflow_training", "cpu", "mixed", share="", TF_ENABLE_ONEDNN_OPTS="0")
    wanted |= json.loads(own.splitlines()[-1])
    found = json.loads(on_tensorflow("tensorflow_training", "gpu", *names).splitlines()[-1])
    for name in names:
        assert found[name][0] == pytest.approx(wanted[name][0], abs=1e-3)
        if name != "fit":  # which gives the loss and the accuracy of each of three epochs
            assert found[name][0][19] < 0.8 * found[name][0][0]


def test_a_convolutional_network_loses_as_on_the_cpu_at_every_share_and_in_a_kernel(
    on_tensorflow: Run, execute: Execute
) -> None:
    program = "tensorflow_training"
    wanted = json.loads(on_tensorflow(program, "cpu", "resnet20", share="").splitlines()[-1])["resnet20"][0]
    for share in ("1", "0.1", "0.05", "0.02"):
        found = json.loads(on_tensorflow(program, "gpu", "resnet20", share=share).splitlines()[-1])
        assert found["resnet20"][0] == pytest.approx(wanted, abs=1e-3)
    text = said(execute(notebook_of(program, "gpu", "resnet20"), TENSORFLOW))
    found = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    assert found["resnet20"][0] == pytest.approx(wanted, abs=1e-3)


def test_the_slice_costs_a_program_little_memory(on_tensorflow: Run) -> None:
    without = json.loads(on_tensorflow("tensorflow_memory", share="").splitlines()[-1])
    found = json.loads(on_tensorflow("tensorflow_memory").splitlines()[-1])
    assert (without["devices"], found["devices"]) == (0, 1)
    assert found["all"] - without["all"] <= 150, (without, found)


def test_the_notebook_runs_in_a_kernel_with_a_slice(execute: Execute) -> None:
    text = said(execute("03-tensorflow", TENSORFLOW))
    assert "NVIDIA H100 80GB HBM3 (simulated)" in text
    losses = losses_in(text)
    assert losses[9] < 0.3 < losses[0]
    assert "ResourceExhaustedError" in text
    assert "but 256 MiB are there" in text
