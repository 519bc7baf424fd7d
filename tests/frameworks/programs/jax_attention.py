"""Attention by cuDNN's fused graphs on the slice, compared with XLA's own on the CPU, with the gradients.  Prints JSON."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

CPU = jax.devices("cpu")[0]
RANDOM = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    """Return numbers that are the same on every device."""
    return RANDOM.standard_normal(shape).astype(np.float32)


def shapes(
    queries: int, keys: int, heads: int = 4, groups: int = 4, batch: int = 2, width: int = 64
) -> list[Any]:
    """Return q, k and v of these extents."""
    of_keys = (batch, keys, groups, width)
    return [numbers(batch, queries, heads, width), numbers(*of_keys), numbers(*of_keys)]


CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "plain": (shapes(128, 128), {}),
    "more keys than queries": (shapes(64, 192), {}),
    "causal": (shapes(128, 128), {"is_causal": True}),
    "scale": (shapes(128, 128), {"scale": 0.3}),
    "bias": (shapes(128, 128), {"bias": numbers(1, 4, 128, 128)}),
    "mask": (shapes(128, 128), {"mask": RANDOM.random((2, 4, 128, 128)) < 0.7}),
    "bias and causal": (shapes(128, 128), {"bias": numbers(2, 4, 128, 128), "is_causal": True}),
    "grouped queries": (shapes(128, 128, heads=8, groups=2), {}),
    "lengths": (
        shapes(128, 128),
        {
            "query_seq_lengths": np.array([100, 128], np.int32),
            "key_value_seq_lengths": np.array([64, 128], np.int32),
        },
    ),
    "window": (shapes(128, 128), {"local_window_size": (16, 0), "is_causal": True}),
}


def attention(implementation: str, options: dict[str, Any], kind: Any) -> Any:
    """Return the function of q, k and v, rounded to `kind`, that gives the result and the gradients of its squares' sum."""
    computes = kind if implementation == "cudnn" else jnp.float32

    def forward(q: Any, k: Any, v: Any) -> Any:
        given = {
            name: jnp.asarray(value, computes) if name == "bias" else value for name, value in options.items()
        }
        return jax.nn.dot_product_attention(q, k, v, implementation=implementation, **given)  # type: ignore[arg-type]

    def loss(q: Any, k: Any, v: Any) -> Any:
        return jnp.sum(forward(q, k, v).astype(jnp.float32) ** 2)

    def both(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (one.astype(kind).astype(computes) for one in (q, k, v))
        return [one.astype(jnp.float32) for one in (forward(q, k, v), *jax.grad(loss, (0, 1, 2))(q, k, v))]

    return jax.jit(both)


failed = {}
passed = 0
for name, (arguments, options) in CASES.items():
    for kind in (jnp.bfloat16, jnp.float16):
        try:
            got = attention("cudnn", options, kind)(*arguments)
            with jax.default_device(CPU):
                wanted = attention("xla", options, kind)(*arguments)
            for one, other in zip(got, wanted, strict=True):
                np.testing.assert_allclose(one, other, rtol=0.05, atol=0.1 if kind == jnp.bfloat16 else 0.02)
            passed += 1
        except Exception as error:
            failed[f"{name}, {kind.__name__}"] = str(error)[:2000]
print(json.dumps({"device": str(jax.devices()[0]), "passed": passed, "failed": failed}))
