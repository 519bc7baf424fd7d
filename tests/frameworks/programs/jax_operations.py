"""Operations of JAX on the slice and on the CPU, compared, and the training of a small network.  Prints JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

CPU = jax.devices("cpu")[0]
KEY = jax.random.PRNGKey(0)
A = np.asarray(jax.random.normal(KEY, (64, 48)))
B = np.asarray(jax.random.normal(KEY, (4, 48, 32)))

OPERATIONS: dict[str, Callable[[], Any]] = {
    "sum": lambda: jnp.sum(A, 0),
    "prod": lambda: jnp.prod(A[:4], 1),
    "max": lambda: jnp.max(A, 1),
    "argmax": lambda: jnp.argmax(A, 1),
    "mean": lambda: jnp.mean(A),
    "std": lambda: jnp.std(A, 0),
    "softmax": lambda: jax.nn.softmax(A),
    "gelu": lambda: jax.nn.gelu(A),
    "exp": lambda: jnp.exp(A),
    "log1p": lambda: jnp.log1p(jnp.abs(A)),
    "tanh": lambda: jnp.tanh(A),
    "erf": lambda: jax.scipy.special.erf(A),
    "power": lambda: jnp.abs(A) ** 1.7,
    "sort": lambda: jnp.sort(A, 0),
    "argsort": lambda: jnp.argsort(A, 1),
    "top_k": lambda: jax.lax.top_k(A, 5)[0],
    "cumsum": lambda: jnp.cumsum(A, 1),
    "where": lambda: jnp.where(A > 0, A, -A),
    "gather": lambda: jnp.asarray(A)[jnp.array([3, 1, 60]), 5:9],
    "scatter": lambda: jnp.zeros(8).at[jnp.array([1, 1, 3])].add(2.0),
    "transpose": lambda: jnp.asarray(A).T + 1,
    "concatenate": lambda: jnp.concatenate([A, A * 2], 1),
    "matmul": lambda: jnp.asarray(A) @ jnp.asarray(A).T,
    "batched matmul": lambda: jnp.asarray(B) @ jnp.swapaxes(B, 1, 2),
    "einsum": lambda: jnp.einsum("bij,kj->bik", B, jnp.asarray(B)[0]),
    "bfloat16 matmul": lambda: (A.astype(jnp.bfloat16) @ A.T.astype(jnp.bfloat16)).astype(jnp.float32) / 16,
    "random": lambda: jax.random.normal(KEY, (100,)),
    "while": lambda: jax.lax.fori_loop(0, 10, lambda i, x: x * 1.1 + i, jnp.ones(7)),
    "scan": lambda: jax.lax.scan(lambda c, x: (c + x, c * x), jnp.zeros(48), jnp.asarray(A))[1],
    "vmap": lambda: jax.vmap(jnp.dot)(jnp.asarray(A), jnp.asarray(A)),
    "grad": lambda: jax.grad(lambda x: jnp.sum(jnp.sin(x) * x))(jnp.asarray(A)),
    "layer norm": lambda: (A - A.mean(1, keepdims=True)) / jnp.sqrt(jnp.var(A, 1, keepdims=True) + 1e-5),
}


def trained() -> list[float]:
    """Return the loss of a two-layer network before and after 50 steps."""
    random = np.random.default_rng(0)
    x = random.standard_normal((256, 16)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int32)
    parameters = [
        jax.random.normal(KEY, (16, 32)) * 0.3,
        jnp.zeros(32),
        jax.random.normal(KEY, (32, 2)) * 0.3,
        jnp.zeros(2),
    ]

    def loss(p: Any, x: Any, y: Any) -> Any:
        scores = jax.nn.relu(x @ p[0] + p[1]) @ p[2] + p[3]
        return -jnp.mean(jax.nn.log_softmax(scores)[jnp.arange(len(y)), y])

    @jax.jit
    def step(p: Any, x: Any, y: Any) -> Any:
        return [one - 0.5 * slope for one, slope in zip(p, jax.grad(loss)(p, x, y), strict=True)]

    losses = [float(loss(parameters, x, y))]
    for _ in range(50):
        parameters = step(parameters, x, y)
    return [*losses, float(loss(parameters, x, y))]


def main() -> None:
    failed = {}
    for name, operation in OPERATIONS.items():
        try:
            with jax.default_device(CPU):
                wanted = np.asarray(jax.jit(operation)())
            got = np.asarray(jax.jit(operation)())
            loose = "bfloat16" in name
            np.testing.assert_allclose(
                got, wanted, rtol=1e-2 if loose else 1e-4, atol=1e-2 if loose else 1e-4
            )
        except Exception as error:
            failed[name] = " ".join(str(error).split())[:300]
    begin = time.perf_counter()
    losses = trained()
    seconds = time.perf_counter() - begin
    with jax.default_device(CPU):
        wanted_losses = trained()
    device = str(jax.devices()[0])
    print(
        json.dumps(
            {
                "device": device,
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
