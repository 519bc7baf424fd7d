"""JAX over two devices of one slice: copies between them, collectives by `pmap` and `shard_map`, and a training whose batch both share.

Prints one line of JSON: the devices, the checks that failed, and the losses of the training on one device and on two.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_default_matmul_precision", "highest")
DEVICES = jax.devices()[:2]
MESH = Mesh(np.array(DEVICES), ("i",))
SPREAD, WHOLE = PartitionSpec("i"), PartitionSpec()
ROWS = np.random.default_rng(0).standard_normal((2, 6, 4)).astype(np.float32)
checks: dict[str, Callable[[], bool]] = {}


def check(function: Callable[[], bool]) -> Callable[[], bool]:
    checks[function.__name__] = function
    return function


def mapped(function: Callable[..., jax.Array], to: PartitionSpec = SPREAD) -> np.ndarray:
    """Return what `function` makes of a row on each device."""
    whole = jax.jit(jax.shard_map(function, mesh=MESH, in_specs=SPREAD, out_specs=to, check_vma=False))
    return np.asarray(whole(jax.device_put(ROWS, NamedSharding(MESH, SPREAD))))


@check
def copies_between_devices() -> bool:
    here = jax.device_put(ROWS[0], DEVICES[0])
    for step in range(10):
        there = jax.device_put(here * step + 1, DEVICES[1])
        back = jax.device_put(there * 3, DEVICES[0])
        if not np.allclose(back, (ROWS[0] * step + 1) * 3, rtol=1e-6):
            return False
    return True


@check
def pmap_sums() -> bool:
    total = jax.pmap(lambda row: jax.lax.psum(row, "i"), axis_name="i", devices=DEVICES)(ROWS)
    return np.allclose(total, np.stack([ROWS.sum(0)] * 2), rtol=1e-6)


@check
def pmap_means_and_extremes() -> bool:
    def of(row: jax.Array) -> tuple[jax.Array, ...]:
        return jax.lax.pmean(row, "i"), jax.lax.pmax(row, "i"), jax.lax.pmin(row, "i")

    mean, most, least = jax.pmap(of, axis_name="i", devices=DEVICES)(ROWS)
    return (
        np.allclose(mean[1], ROWS.mean(0), rtol=1e-6, atol=1e-7)
        and np.array_equal(most[0], ROWS.max(0))
        and np.array_equal(least[1], ROWS.min(0))
    )


@check
def all_gather() -> bool:
    return np.array_equal(mapped(lambda row: jax.lax.all_gather(row[0], "i"), WHOLE), ROWS)


@check
def reduce_scatter() -> bool:
    found = mapped(lambda row: jax.lax.psum_scatter(row[0], "i", scatter_dimension=0, tiled=True))
    return np.allclose(found, ROWS.sum(0), rtol=1e-6)


@check
def permuted() -> bool:
    return np.array_equal(mapped(lambda row: jax.lax.ppermute(row, "i", [(0, 1), (1, 0)])), ROWS[::-1])


@check
def all_to_all() -> bool:
    found = mapped(lambda row: jax.lax.all_to_all(row[0], "i", split_axis=0, concat_axis=0, tiled=True)[None])
    return np.array_equal(found, np.stack([ROWS[:, :3].reshape(6, 4), ROWS[:, 3:].reshape(6, 4)]))


@check
def a_product_of_spread_matrices() -> bool:
    left, right = ROWS.reshape(4, 12), ROWS.reshape(12, 4)
    found = jax.jit(jnp.matmul)(
        jax.device_put(left, NamedSharding(MESH, PartitionSpec(None, "i"))),
        jax.device_put(right, NamedSharding(MESH, PartitionSpec("i", None))),
    )
    return np.allclose(found, left @ right, rtol=1e-5, atol=1e-5)


def training(spread: bool) -> list[float]:
    """Return the losses of a perceptron's 20 steps, on one device, or with half of the batch on each."""
    rng = np.random.default_rng(1)
    batch = rng.standard_normal((64, 16)).astype(np.float32)
    wanted = np.sin(batch.sum(1, keepdims=True))
    weights = [rng.standard_normal(shape).astype(np.float32) * 0.3 for shape in ((16, 32), (32, 1))]

    def loss(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ weights[0]) @ weights[1] - y) ** 2)

    @jax.jit
    def step(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        value, slopes = jax.value_and_grad(loss)(weights, x, y)
        return [w - 0.1 * slope for w, slope in zip(weights, slopes, strict=True)], value

    def put(value: np.ndarray, spec: PartitionSpec) -> jax.Array:
        return jax.device_put(value, NamedSharding(MESH, spec) if spread else DEVICES[0])

    held, x, y = [put(w, WHOLE) for w in weights], put(batch, SPREAD), put(wanted, SPREAD)
    losses = []
    for _ in range(20):
        held, value = step(held, x, y)
        losses.append(float(value))
    return losses


failed = [name for name, function in checks.items() if not function()]
print(
    json.dumps(
        {
            "devices": [str(device) for device in DEVICES],
            "checked": len(checks),
            "failed": failed,
            "losses": training(spread=True),
            "wanted": training(spread=False),
        }
    )
)
