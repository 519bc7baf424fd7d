"""TensorFlow from PyPI in a container of a plain Debian, with neither gpukernel nor NVIDIA's libraries in it, on a slice by ``--device``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Pool
from tests.deploy.images.builder import PYTHON, debian
from tests.engines.containers.conftest import cdi_file
from tests.engines.containers.podman import Podman, running_podman
from tests.frameworks.conftest import site_of
from tests.frameworks.sources import TENSORFLOW_ALONE

Looked = Callable[..., dict[str, Any]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# What a program of anybody's does; a V100 has what XLA compiles and the math libraries, an H100 TensorFlow's own kernels as well.
LOOK = """
import ctypes, importlib.util, json, sys
import numpy as np
import tensorflow as tf

found = {}
gpu, = tf.config.list_physical_devices("GPU")
found["name"] = tf.config.experimental.get_device_details(gpu)["device_name"]
size = ctypes.c_size_t()
ctypes.CDLL("libcuda.so.1").cuDeviceTotalMem_v2(ctypes.byref(size), 0)
found["MiB"] = size.value >> 20
found["beside"] = [one for one in ("gpukernel", "nvidia.cublas", "nvidia.cuda_runtime", "nvidia.cudnn") if importlib.util.find_spec(one)]

numbers = np.random.default_rng(7).normal(size=(2, 64, 64)).astype("float32")
with tf.device("/GPU:0"):
    a, b = (tf.constant(one) for one in numbers)
    product = tf.linalg.matmul(a, b)
    compiled = tf.function(lambda a, b: tf.tanh(a @ b) + tf.reduce_sum(a * b), jit_compile=True)(a, b)
found["where"] = [one.device[-5:] for one in (product, compiled)]
exact = numbers[0].astype("float64") @ numbers[1]
near = {"rtol": 1e-3, "atol": 1e-2}
found["right"] = [
    np.allclose(product.numpy(), exact, **near),
    np.allclose(compiled.numpy(), np.tanh(exact) + (numbers[0] * numbers[1]).sum(), **near),
]
if "own" in sys.argv:
    with tf.device("/GPU:0"):
        own = tf.reduce_sum(tf.nn.softmax(tf.sort(a) * 2.0))
    found["own"] = [own.device[-5:], abs(float(own) - 64) < 1e-3]
    model = tf.keras.Sequential([tf.keras.layers.Dense(32, activation="relu"), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
    losses = model.fit(numbers[0], numbers[0].sum(1), epochs=3, verbose=0).history["loss"]
    found["learns"] = losses[2] < losses[0]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def site() -> Path:
    return site_of(TENSORFLOW_ALONE)


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    yield from running_podman()


@pytest.fixture(scope="module")
def _pool() -> Iterator[None]:
    """A pool with a simulated V100 and H100, and the CDI file of its slices."""
    with Pool("v100:1,h100:1") as pool, cdi_file(pool):
        yield


@pytest.fixture
def looked(podman: Podman, site: Path, _pool: None) -> Looked:
    """Run `LOOK` in a container on a slice, and return what it found."""

    def look(device: str, *words: str) -> dict[str, Any]:
        packages = f"{site}:/usr/local/lib/python{PYTHON}/dist-packages:ro"  # where Debian's pip puts them
        done = podman(
            *("run", "--rm", "--network", "none", "-v", packages, "--device", f"gpukernel.io/slice={device}"),
            *("--env", "HOME=/tmp", "--rootfs", f"{debian()}:O", "python3", "-c", LOOK, *words),
            timeout=900,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return look


def test_a_fiftieth_of_a_v100_is_seen_and_computes_what_libraries_and_xla_compute(looked: Looked) -> None:
    found = looked("v100-0.02")
    assert found == {
        "name": "Tesla V100-SXM2-32GB (simulated)",
        "MiB": 655,
        "beside": [],
        "where": ["GPU:0", "GPU:0"],
        "right": [True, True],
    }


def test_on_an_h100_its_own_kernels_run_and_keras_trains(looked: Looked) -> None:
    found = looked("h100-0.02", "own")
    assert (found["where"], found["right"]) == (["GPU:0", "GPU:0"], [True, True])
    assert (found["own"], found["learns"]) == (["GPU:0", True], True)
