"""Uses of JAX beside its operations: each step checks itself and prints its name."""

from __future__ import annotations

import time

BEGIN = time.perf_counter()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402


def a_first_operation() -> None:
    assert float((jnp.ones((100, 10)) * 2).sum()) == 2000
    print(f"first operation after {time.perf_counter() - BEGIN:.1f} s")


def out_of_memory_is_an_error_and_less_works() -> None:
    limit = jax.devices()[0].memory_stats()["bytes_limit"]
    error = None
    try:
        jnp.zeros(limit + (1 << 20), jnp.uint8).block_until_ready()
    except jax.errors.JaxRuntimeError as found:
        error = found
    assert "RESOURCE_EXHAUSTED" in str(error), error
    block = jnp.ones(limit // 4, jnp.uint8)
    assert int(block[-1]) == 1
    assert abs(float(jnp.mean(jnp.arange(1000.0))) - 499.5) < 1e-3


STEPS = (a_first_operation, out_of_memory_is_an_error_and_less_works)


def main() -> None:
    for step in STEPS:
        step()
        print(step.__name__, flush=True)


if __name__ == "__main__":
    main()
