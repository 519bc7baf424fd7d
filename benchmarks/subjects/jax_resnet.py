"""ResNet-18 on random images of 224 × 224, with JAX alone; prints images a second as JSON.

``python -m benchmarks.subjects.jax_resnet [--steps N] [--batch N] [--side N]``.  The network is that of He, Zhang, Ren and Sun (2015), table 1,
with the statistics of each batch.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

CLASSES = 1000
SHAPES = (
    (64, 64, 1),
    (64, 64, 1),
    (64, 128, 2),
    (128, 128, 1),
    (128, 256, 2),
    (256, 256, 1),
    (256, 512, 2),
    (512, 512, 1),
)
"""Of each block: channels before and after, and stride."""
LAYOUT = ("NHWC", "HWIO", "NHWC")


def weights(key: Any, size: int, before: int, after: int) -> Any:
    """Return a filter of shape (size, size, before, after)."""
    return jax.random.normal(key, (size, size, before, after)) * (2 / (size * size * before)) ** 0.5


def parameters(key: Any) -> dict[str, Any]:
    """Return the network's filters and its last layer."""
    keys = iter(jax.random.split(key, 3 * len(SHAPES) + 2))
    blocks = []
    for before, after, _ in SHAPES:
        block = {
            "first": weights(next(keys), 3, before, after),
            "second": weights(next(keys), 3, after, after),
        }
        if before != after:
            block["around"] = weights(next(keys), 1, before, after)
        blocks.append(block)
    last = jax.random.normal(next(keys), (512, CLASSES)) * 0.01
    return {"stem": weights(next(keys), 7, 3, 64), "blocks": blocks, "last": last}


def convolved(x: Any, w: Any, stride: int) -> Any:
    """Return a convolution, normalized over the batch."""
    y = jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=LAYOUT)
    mean, variance = y.mean((0, 1, 2)), y.var((0, 1, 2))
    return (y - mean) * jax.lax.rsqrt(variance + 1e-5)


def loss(params: dict[str, Any], images: Any, classes: Any) -> Any:
    """Return the mean cross entropy of images (n, side, side, 3) and classes (n,)."""
    x = jax.nn.relu(convolved(images, params["stem"], 2))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for block, (_, _, stride) in zip(params["blocks"], SHAPES, strict=True):
        y = jax.nn.relu(convolved(x, block["first"], stride))
        around = convolved(x, block["around"], stride) if "around" in block else x
        x = jax.nn.relu(convolved(y, block["second"], 1) + around)
    scores = jax.nn.log_softmax(x.mean((1, 2)) @ params["last"])
    return -scores[jnp.arange(len(classes)), classes].mean()


@partial(jax.jit, donate_argnums=0)
def step(params: dict[str, Any], images: Any, classes: Any) -> Any:
    slopes = jax.grad(loss)(params, images, classes)
    return jax.tree.map(lambda value, slope: value - 0.01 * slope, params, slopes)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--steps", type=int, default=40)
    words.add_argument("--batch", type=int, default=64)
    words.add_argument("--side", type=int, default=224)
    options = words.parse_args()
    key = jax.random.key(0)
    images = jax.random.normal(key, (options.batch, options.side, options.side, 3))
    classes = jax.random.randint(key, (options.batch,), 0, CLASSES)
    params = parameters(key)
    for _ in range(min(options.steps, 5)):
        params = step(params, images, classes)
    jax.block_until_ready(params)
    start = time.perf_counter()
    for _ in range(options.steps):
        params = step(params, images, classes)
    jax.block_until_ready(params)
    print(json.dumps({"images_per_second": options.batch * options.steps / (time.perf_counter() - start)}))


if __name__ == "__main__":
    main()
