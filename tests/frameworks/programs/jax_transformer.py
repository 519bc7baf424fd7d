"""Twenty steps of a two-layer transformer on the slice and on the CPU, with the flags that the environment has.  Prints JSON."""

from __future__ import annotations

import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

CPU = jax.devices("cpu")[0]
STEPS, BATCH, LENGTH, WORDS, WIDTH, HEADS = 20, 64, 12, 16, 32, 4


def initial() -> dict[str, Any]:
    """Return parameters that are the same on every device."""
    random = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    def layer() -> dict[str, Any]:
        ones, zeros = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
        return {
            "attention": weights(WIDTH, 3 * WIDTH),
            "joined": weights(WIDTH, WIDTH),
            "wide": weights(WIDTH, 4 * WIDTH),
            "narrow": weights(4 * WIDTH, WIDTH),
            "norms": [(ones, zeros), (ones, zeros)],
        }

    return {
        "words": weights(WORDS, WIDTH) * 4,
        "places": weights(LENGTH, WIDTH),
        "layers": [layer(), layer()],
        "last": weights(WIDTH, WORDS),
    }


def scores(p: dict[str, Any], x: Any) -> Any:
    """Return the scores of each place's words."""

    def norm(x: Any, scale: Any, shift: Any) -> Any:
        x = x - x.mean(-1, keepdims=True)
        return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale + shift

    def heads(x: Any) -> Any:
        return x.reshape(*x.shape[:2], HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)

    y = p["words"][x] + p["places"]
    for layer in p["layers"]:
        q, k, v = map(heads, jnp.split(norm(y, *layer["norms"][0]) @ layer["attention"], 3, -1))
        near = jax.nn.softmax(q @ k.swapaxes(2, 3) / jnp.sqrt(WIDTH / HEADS))
        y = y + (near @ v).transpose(0, 2, 1, 3).reshape(y.shape) @ layer["joined"]
        y = y + jax.nn.gelu(norm(y, *layer["norms"][1]) @ layer["wide"]) @ layer["narrow"]
    return y @ p["last"]


def trained() -> list[float]:
    """Return the losses of 20 steps of Adam on sequences to be named backwards."""
    random = np.random.default_rng(1)
    p = initial()
    moments = jax.tree.map(np.zeros_like, (p, p))

    def loss(p: Any, x: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(scores(p, x)), x[:, ::-1, None], 2).mean()

    @jax.jit
    def step(p: Any, moments: Any, x: Any, number: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(p, x)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], slopes)
        second = jax.tree.map(lambda m, g: 0.999 * m + 0.001 * g * g, moments[1], slopes)
        rate = 3e-3 * jnp.sqrt(1 - 0.999**number) / (1 - 0.9**number)
        p = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8), p, first, second)
        return value, p, (first, second)

    losses = []
    for number in range(1, STEPS + 1):
        x = random.integers(0, WORDS, (BATCH, LENGTH))
        value, p, moments = step(p, moments, x, float(number))
        losses.append(float(value))
    return losses


def main() -> None:
    begin = time.perf_counter()
    losses = trained()
    seconds = time.perf_counter() - begin
    with jax.default_device(CPU):
        wanted = trained()
    device = str(jax.devices()[0])
    print(json.dumps({"device": device, "losses": losses, "wanted": wanted, "seconds": seconds}))


if __name__ == "__main__":
    main()
