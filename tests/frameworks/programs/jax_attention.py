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


def with_dropout(kind: Any, causal: bool) -> None:
    """Compare attention that drops weights with one that is given the mask, which an identity for V shows."""
    from jax._src.cudnn.fused_attention_stablehlo import MaskType
    from jax._src.cudnn.fused_attention_stablehlo import dot_product_attention as fused

    rate, width = 0.3, 64
    q, k, v = (jnp.asarray(one, kind) for one in shapes(width, width))
    options = {"scale": 0.125, "mask_type": MaskType.CAUSAL if causal else MaskType.NO_MASK}

    def dropped(q: Any, k: Any, v: Any, seed: int) -> Any:
        return fused(q, k, v, None, None, dropout_rate=rate, seed=seed, **options).astype(jnp.float32)

    def weights(q: Any, k: Any) -> Any:
        scores = jnp.einsum("bqhc,bkhc->bhqk", q, k, precision="highest") * 0.125
        return jax.nn.softmax(
            jnp.where(jnp.tril(jnp.ones((width, width), bool)), scores, -1e9) if causal else scores
        )

    seen = jnp.broadcast_to(jnp.eye(width, dtype=kind)[None, :, None], v.shape)

    @jax.jit  # of a program's graphs, each draws at offset 0 first
    def step(q: Any, k: Any, v: Any) -> Any:
        slopes = jax.grad(lambda *o: jnp.sum(dropped(*o, 1) ** 2), (0, 1, 2))(q, k, v)
        return dropped(q, k, seen, 1), dropped(q, k, seen, 2), [dropped(q, k, v, 1), *slopes]

    first, other, got = step(q, k, v)
    assert not np.array_equal(first, other), "another seed keeps the same"
    assert not np.array_equal(first, step(q, k, v)[0]), "the next step keeps the same"
    mask = jnp.moveaxis(first, 1, 2) != 0
    below = np.tril(np.ones((width, width), bool)) if causal else np.ones((width, width), bool)
    part = float(mask[..., below].mean())
    assert abs(part - (1 - rate)) < 0.02, f"{part} of the weights are kept"

    def given(q: Any, k: Any, v: Any) -> Any:
        kept = jnp.where(mask, weights(q, k) / (1 - rate), 0)
        return jnp.einsum("bhqk,bkhc->bqhc", kept, v, precision="highest")

    wide = [one.astype(jnp.float32) for one in (q, k, v)]
    wanted = [given(*wide), *jax.grad(lambda *o: jnp.sum(given(*o) ** 2), (0, 1, 2))(*wide)]
    for one, right in zip(got, wanted, strict=True):
        np.testing.assert_allclose(
            one.astype(jnp.float32), right, rtol=0.05, atol=0.2 if kind == jnp.bfloat16 else 0.03
        )


failed = {}
passed = 0
for causal in (False, True):
    for kind in (jnp.bfloat16, jnp.float16):
        try:
            with_dropout(kind, causal)
            passed += 1
        except Exception as error:
            failed[f"dropout, {'causal, ' if causal else ''}{kind.__name__}"] = str(error)[:2000]
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
