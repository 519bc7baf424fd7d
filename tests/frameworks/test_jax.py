"""JAX from PyPI on a simulated slice, without a flag or a variable of the user's."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.frameworks.conftest import Execute, Run, losses_in, notebook_of, said
from tests.frameworks.sources import JAX

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_operations_and_a_training_give_what_the_cpu_gives(on_jax: Run) -> None:
    found = json.loads(on_jax("jax_operations", share="0.25").splitlines()[-1])
    assert found["device"] == "cuda:0"
    assert found["failed"] == {}
    assert found["losses"] == pytest.approx(found["wanted"], abs=1e-3)
    assert found["losses"][1] < 0.5 < found["losses"][0]


def test_linear_algebra_transforms_and_sparse_matrices_give_what_the_cpu_gives(on_jax: Run) -> None:
    found = json.loads(on_jax("jax_linear_algebra", share="0.25").splitlines()[-1])
    assert found["device"] == "cuda:0"
    assert found["failed"] == {}
    assert found["passed"] > 50


def test_convolutions_pooling_and_a_training_give_what_the_cpu_gives(on_jax: Run) -> None:
    found = json.loads(on_jax("jax_convolutions", share="0.25").splitlines()[-1])
    assert found["device"] == "cuda:0"
    assert found["failed"] == {}
    assert found["losses"] == pytest.approx(found["wanted"], rel=1e-3)
    assert found["losses"][-1] < found["losses"][0] - 0.2


def test_candidates_are_measured_without_a_kernel_that_waits_for_the_program(on_jax: Run) -> None:
    found = json.loads(
        on_jax("jax_convolutions", share="0.25", XLA_FLAGS="--xla_gpu_autotune_level=4").splitlines()[-1]
    )
    assert found["failed"] == {}


def test_a_transformer_loses_as_on_the_cpu(on_jax: Run) -> None:
    found = json.loads(on_jax("jax_transformer").splitlines()[-1])
    assert found["device"] == "cuda:0"
    assert found["losses"] == pytest.approx(found["wanted"], abs=1e-3)
    assert found["losses"][-1] < found["losses"][0] - 0.3


@pytest.mark.parametrize("program", ["jax_convolutions", "jax_transformer"])
def test_a_training_in_a_kernel_loses_as_on_the_cpu(program: str, execute: Execute) -> None:
    found = json.loads(said(execute(notebook_of(program), JAX)).splitlines()[-1])
    assert found["device"] == "cuda:0"
    assert found["losses"] == pytest.approx(found["wanted"], abs=1e-3)


def test_out_of_memory_is_jaxs_own_error_and_less_works(on_jax: Run) -> None:
    assert on_jax("jax_life", share="0.02").splitlines()[-1] == "out_of_memory_is_an_error_and_less_works"


def test_two_notebooks_have_slices_of_one_device_at_once(execute: Execute) -> None:
    with ThreadPoolExecutor() as threads:
        texts = [said(one) for one in threads.map(execute, ("04-jax",) * 2, (JAX,) * 2)]
    losses = [losses_in(text) for text in texts]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)
    assert losses[0][19] < 0.3


def test_the_notebook_runs_in_a_kernel_with_a_slice(execute: Execute) -> None:
    text = said(execute("04-jax", JAX))
    assert "NVIDIA H100 80GB HBM3 (simulated)" in text
    losses = losses_in(text)
    assert losses[19] < 0.3 < losses[0]
    assert "RESOURCE_EXHAUSTED" in text
    assert "but 256 MiB are there" in text


def test_attention_by_cudnn_gives_what_the_cpu_gives(on_jax: Run) -> None:
    found = json.loads(on_jax("jax_attention", share="0.25").splitlines()[-1])
    assert found["device"] == "cuda:0"
    assert found["failed"] == {}
    assert found["passed"] == 24


def test_a_table_of_operations_gives_what_the_cpu_gives(on_jax: Run) -> None:
    found = json.loads(on_jax("jax_table", share="0.25").splitlines()[-1])
    assert found["device"] == "cuda:0"
    assert found["failed"] == {}
    assert found["passed"] > 200


def test_two_devices_of_a_slice_copy_reduce_and_train_together(on_two_devices: Run) -> None:
    found = json.loads(on_two_devices("jax_devices").splitlines()[-1])
    assert found["devices"] == ["cuda:0", "cuda:1"]
    assert found["failed"] == []
    assert found["checked"] >= 8
    assert found["losses"] == pytest.approx(found["wanted"], abs=1e-4)
    assert found["losses"][-1] < found["losses"][0] / 2
