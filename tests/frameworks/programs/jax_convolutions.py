"""Convolutions and pooling of JAX on the slice and on the CPU, compared, and the training of a convolutional network.  Prints JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

CPU = jax.devices("cpu")[0]
RANDOM = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    """Return numbers that are the same on every device."""
    return RANDOM.standard_normal(shape).astype(np.float32)


Operation = tuple[Callable[..., Any], list[Any]]
"""A function and its arguments: XLA computes on the CPU what it knows when it compiles."""


def convolution(x: Any, w: Any, **options: Any) -> Operation:
    """Return a convolution with its gradients to data and filter."""
    given = {"window_strides": (1,) * (x.ndim - 2), "padding": "SAME", **options}

    def forward(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, **given)

    def loss(x: Any, w: Any) -> Any:
        return jnp.sum(forward(x, w).astype(jnp.float32) ** 2)

    return lambda x, w: [forward(x, w), *jax.grad(loss, (0, 1))(x, w)], [x, w]


def activated(x: Any, w: Any, bias: Any, side: Any) -> Any:
    """Return a convolution with everything that XLA fuses into one."""
    y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=LAST)
    return jax.nn.relu(y + bias), jax.nn.relu(y + side + bias), jax.nn.elu(y + bias), jax.nn.relu6(y + bias)


X, W = numbers(4, 8, 14, 15), numbers(16, 8, 3, 3)
LAST = ("NHWC", "HWIO", "NHWC")
XL, WL = X.transpose(0, 2, 3, 1), W.transpose(2, 3, 1, 0)


def pooled(x: Any) -> Any:
    largest = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), "SAME")
    return largest, jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID") / 4


OPERATIONS: dict[str, Operation] = {
    "channels first": convolution(X, W),
    "channels last": convolution(XL, WL, dimension_numbers=LAST),
    "strides": convolution(X, W, window_strides=(2, 3)),
    "paddings": convolution(X, W, padding=((0, 2), (1, 0))),
    "dilated filter": convolution(X, W, rhs_dilation=(2, 1)),
    "transposed": convolution(X, W, lhs_dilation=(2, 2), padding=((1, 1), (1, 1))),
    "groups": convolution(numbers(2, 12, 9, 9), numbers(6, 4, 3, 3), feature_group_count=3),
    "depthwise": convolution(numbers(2, 12, 9, 9), numbers(12, 1, 3, 3), feature_group_count=12),
    "one dimension": convolution(numbers(3, 6, 40), numbers(8, 6, 5)),
    "three dimensions": convolution(numbers(2, 3, 6, 7, 8), numbers(4, 3, 2, 3, 3)),
    "one by one": convolution(X, numbers(5, 8, 1, 1)),
    "bfloat16": convolution(X.astype(jnp.bfloat16), W.astype(jnp.bfloat16)),
    "half": convolution(X.astype(np.float16), W.astype(np.float16)),
    "activations": (activated, [XL, WL, numbers(16), numbers(4, 14, 15, 16)]),
    "activations of half": (
        activated,
        [a.astype(np.float16) for a in (XL, WL, numbers(16), numbers(4, 14, 15, 16))],
    ),
    "pooling": (pooled, [X]),
    "gradient of pooling": (jax.grad(lambda x: sum(jnp.sum(p * p) for p in pooled(x))), [X]),
}


def trained() -> list[float]:
    """Return the losses of 20 steps of a network with two convolutions, batch normalisation and pooling."""
    random = np.random.default_rng(1)
    x = random.standard_normal((32, 16, 16, 3)).astype(np.float32)
    y = random.integers(0, 10, 32)
    x += y[:, None, None, None] / 5
    parameters = [
        0.2 * random.standard_normal((3, 3, 3, 16)).astype(np.float32),
        np.ones(16, np.float32),
        0.1 * random.standard_normal((3, 3, 16, 32)).astype(np.float32),
        0.1 * random.standard_normal((32, 10)).astype(np.float32),
    ]

    def loss(p: Any, x: Any, y: Any) -> Any:
        def layer(x: Any, w: Any, stride: int) -> Any:
            return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=LAST)

        x = layer(x, p[0], 1)
        x = (x - x.mean((0, 1, 2))) / jnp.sqrt(x.var((0, 1, 2)) + 1e-5) * p[1]
        x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = jax.nn.relu(layer(x, p[2], 2)).mean((1, 2))
        return -jnp.mean(jax.nn.log_softmax(x @ p[3])[jnp.arange(len(y)), y])

    @jax.jit
    def step(p: Any, x: Any, y: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(p, x, y)
        return value, [one - 0.1 * slope for one, slope in zip(p, slopes, strict=True)]

    losses = []
    for _ in range(20):
        value, parameters = step(parameters, x, y)
        losses.append(float(value))
    return losses


def main() -> None:
    failed = {}
    for name, (operation, given) in OPERATIONS.items():
        try:
            with jax.default_device(CPU):
                wanted = jax.tree.map(np.asarray, jax.jit(operation)(*given))
            got = jax.tree.map(np.asarray, jax.jit(operation)(*given))
            loose = 2e-2 if "half" in name or name == "bfloat16" else 1e-4
            for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
                one, other = one.astype(np.float32), other.astype(np.float32)
                np.testing.assert_allclose(one, other, rtol=loose, atol=loose * np.abs(other).max())
        except Exception as error:
            failed[name] = " ".join(str(error).split())[:400]
    begin = time.perf_counter()
    losses = trained()
    seconds = time.perf_counter() - begin
    with jax.default_device(CPU):
        wanted_losses = trained()
    print(
        json.dumps(
            {
                "device": str(jax.devices()[0]),
                "passed": len(OPERATIONS) - len(failed),
                "failed": failed,
                "losses": losses,
                "wanted": wanted_losses,
                "seconds": seconds,
            }
        )
    )


if __name__ == "__main__":
    main()
