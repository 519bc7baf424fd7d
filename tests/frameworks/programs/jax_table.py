"""A table of operations of `jax.numpy`, `jax.nn`, `jax.lax` and `jax.scipy`, on the slice and on the CPU, compared.  Prints JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn
from jax.scipy import special, stats

CPU = jax.devices("cpu")[0]
RANDOM = np.random.default_rng(0)
A = RANDOM.standard_normal((33, 20)).astype(np.float32)
B = RANDOM.standard_normal((33, 20)).astype(np.float32)
P = np.abs(A) + 0.1
U = RANDOM.uniform(-0.9, 0.9, (33, 20)).astype(np.float32)
K = RANDOM.integers(-40, 40, (33, 20)).astype(np.int32)
L = RANDOM.integers(1, 9, (33, 20)).astype(np.int32)
C = (A + 1j * B).astype(np.complex64)
T = A > 0
V = RANDOM.standard_normal(64).astype(np.float32)
N = RANDOM.integers(0, 9, 64).astype(np.int32)
X = np.where(RANDOM.random((33, 20)) < 0.1, np.nan, A).astype(np.float32)

Table = dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]


def of(module: Any, names: str, *arguments: Any) -> Table:
    """Return functions of a module, each with the same arguments."""
    return {f"{module.__name__}.{name}": (getattr(module, name), arguments) for name in names.split()}


ELEMENTS = (
    of(jnp, "abs sin cos tan sinh cosh tanh arctan arcsinh exp expm1 exp2 square sign floor ceil rint trunc negative cbrt "
       "degrees radians isfinite signbit sinc nan_to_num positive i0", A)
    | of(jnp, "sqrt log log2 log10 log1p reciprocal", P)
    | of(jnp, "arcsin arccos arctanh", U)
    | of(jnp, "add subtract multiply divide maximum minimum fmax fmin arctan2 hypot copysign nextafter logaddexp logaddexp2 "
         "greater less_equal not_equal heaviside isclose", A, B)
    | of(jnp, "floor_divide remainder fmod divmod gcd lcm left_shift right_shift bitwise_and bitwise_or bitwise_xor power", np.abs(K), L)
    | of(jnp, "invert bitwise_count", K)
    | of(jnp, "conj real imag angle exp abs sqrt sin log", C)
    | of(jnp, "logical_and logical_or logical_xor", T, B > 0)
    | of(special, "erf erfinv expit ndtr i0e i1 i1e", U)
    | of(special, "gammaln digamma entr log_ndtr", P)
    | of(special, "betaln gammainc gammaincc zeta", P + 1, P + 2)
    | of(stats.norm, "pdf cdf logpdf logcdf ppf", np.abs(U))
    | of(nn, "relu relu6 sigmoid softplus soft_sign silu log_sigmoid leaky_relu hard_sigmoid hard_silu hard_tanh elu celu selu gelu "
         "mish softmax log_softmax standardize squareplus sparse_plus", A)
    | of(lax, "rsqrt is_finite", P)
    | of(lax, "population_count clz", np.abs(K))
)  # fmt: skip

REDUCTIONS = (
    of(jnp, "sum prod mean std var max min argmax argmin ptp median any all cumsum cumprod count_nonzero", U)
    | of(jnp, "nansum nanmean nanstd nanmax nanargmin nancumsum nanmedian", X)
    | of(special, "logsumexp", A)
    | {
        "sum over an axis": (lambda a: jnp.sum(a, 0, keepdims=True), (A,)),
        "sum of integers": (lambda a: jnp.sum(a, 1), (K,)),
        "max of integers": (lambda a: jnp.max(a, 0), (K,)),
        "quantile": (lambda a: jnp.quantile(a, jnp.array([0.1, 0.5]), 1), (A,)),
        "percentile": (lambda a: jnp.percentile(a, 30), (A,)),
        "average": (lambda a, w: jnp.average(a, weights=w), (A, P)),
        "cummax": (lambda a: lax.cummax(a), (A,)),
        "cumlogsumexp": (lambda a: lax.cumlogsumexp(a, 1), (A,)),
        "histogram": (lambda a: jnp.histogram(a, 10)[0], (V,)),
        "histogram2d": (lambda a: jnp.histogram2d(a, a[::-1], 4)[0], (V,)),
        "bincount": (lambda n: jnp.bincount(n, length=9), (N,)),
        "corrcoef": (jnp.corrcoef, (A,)),
        "cov": (jnp.cov, (A,)),
        "trapezoid": (jnp.trapezoid, (A,)),
        "segment_sum": (lambda a, n: jax.ops.segment_sum(a, n, 9), (V, N)),
        "segment_max": (lambda a, n: jax.ops.segment_max(a, n, 9), (V, N)),
        "reduce_window": (lambda a: lax.reduce_window(a, 0.0, lax.add, (3, 3), (2, 2), "SAME"), (A,)),
        "reduce_precision": (lambda a: lax.reduce_precision(a, 5, 7), (A,)),
        "max's slope": (jax.grad(lambda a: jnp.max(a, 1).sum()), (A,)),
        "norm's slope": (jax.grad(lambda a: jnp.linalg.norm(a)), (A,)),
    }
)  # fmt: skip

MOVEMENT = of(
    jnp, "sort argsort flip fliplr flipud ravel transpose rot90 diagonal triu tril squeeze atleast_3d", A
) | {
    "sort by two": (lambda a, k: lax.sort((k, a), num_keys=2), (A, K)),
    "sort of complex numbers": (lambda c: jnp.sort_complex(c.ravel()), (C,)),
    "argsort stable": (lambda n: jnp.argsort(n, stable=True), (N,)),
    "top_k": (lambda a: lax.top_k(a, 4), (A,)),
    "partition": (lambda a: jnp.sort(jnp.partition(a, 5)[:, :5]), (A,)),
    "unique": (lambda n: jnp.unique(n, size=9, return_counts=True), (N,)),
    "searchsorted": (lambda v: jnp.searchsorted(jnp.sort(v), v), (V,)),
    "digitize": (lambda v: jnp.digitize(v, jnp.linspace(-1, 1, 5)), (V,)),
    "interp": (lambda v: jnp.interp(v, jnp.linspace(-1, 1, 9), jnp.arange(9.0)), (V,)),
    "where": (lambda a, b: jnp.where(a > b, a, 0), (A, B)),
    "select": (lambda a: jnp.select([a > 1, a < -1], [a, -a], 0), (A,)),
    "piecewise": (lambda a: jnp.piecewise(a, [a < 0], [jnp.sin, jnp.cos]), (A,)),
    "choose": (lambda n, v: jnp.choose(n % 3, [v, -v, v * 2], mode="clip"), (N, V)),
    "nonzero": (lambda v: jnp.nonzero(v > 0.5, size=40, fill_value=-1), (V,)),
    "argwhere": (lambda v: jnp.argwhere(v > 0.5, size=40, fill_value=-1), (V,)),
    "take": (lambda a, n: jnp.take(a, n, 0), (A, N)),
    "take_along_axis": (lambda a: jnp.take_along_axis(a, jnp.argsort(a, 1), 1), (A,)),
    "at set": (lambda a: a.at[3:9, ::2].set(7), (A,)),
    "at multiply": (lambda a: a.at[jnp.array([1, 1, 4])].multiply(2), (A,)),
    "at max": (lambda a: a.at[jnp.array([1, 1, 4])].max(0.5), (A,)),
    "at get out of bounds": (lambda v: v.at[jnp.array([3, 900])].get(mode="fill", fill_value=-5), (V,)),
    "scatter's slope": (jax.grad(lambda v: (v.at[jnp.array([1, 5])].add(v[:2]) ** 2).sum()), (V,)),
    "pad": (lambda a: jnp.pad(a, ((1, 2), (3, 0)), "reflect"), (A,)),
    "pad between": (lambda a: lax.pad(a, 9.0, ((1, 1, 2), (0, -3, 1))), (A,)),
    "roll": (lambda a: jnp.roll(a, (3, -2), (0, 1)), (A,)),
    "tile": (lambda a: jnp.tile(a, (2, 3)), (A,)),
    "repeat": (lambda a: jnp.repeat(a, 3, 1), (A,)),
    "split": (lambda a: jnp.array_split(a, 4, 1), (A,)),
    "stack": (lambda a, b: jnp.stack([a, b], 1), (A, B)),
    "concatenate": (lambda a, b: jnp.concatenate([a, b], 1), (A, B)),
    "meshgrid": (lambda v: jnp.meshgrid(v, v[:9]), (V,)),
    "broadcast_to": (lambda v: jnp.broadcast_to(v, (5, 64)) + 0, (V,)),
    "moveaxis": (lambda a: jnp.moveaxis(a.reshape(3, 11, 4, 5), (0, 2), (3, 0)) * 1, (A,)),
    "diff": (lambda a: jnp.diff(a, 2, 1), (A,)),
    "gradient": (lambda a: jnp.gradient(a), (A,)),
    "convolve": (lambda v: jnp.convolve(v, v[:5], "same"), (V,)),
    "correlate": (lambda v: jnp.correlate(v, v[:5]), (V,)),
    "polyval": (lambda v: jnp.polyval(jnp.arange(4.0), v), (V,)),
    "vander": (lambda v: jnp.vander(v[:5] * 0.5, 4), (V,)),
    "one_hot": (lambda n: nn.one_hot(n, 9), (N,)),
    "bitcast": (lambda a: lax.bitcast_convert_type(a, jnp.int32), (A,)),
    "to bfloat16": (lambda a: a.astype(jnp.bfloat16), (A,)),
    "to int8": (lambda k: k.astype(jnp.int8), (K,)),
    "to float8": (lambda a: a.astype(jnp.float8_e4m3fn), (A,)),
    "packbits": (lambda t: jnp.unpackbits(jnp.packbits(t, 1), 1), (T,)),
    "isin": (lambda n: jnp.isin(n, jnp.array([2, 5])), (N,)),
    "dynamic_update_slice": (lambda a: lax.dynamic_update_slice(a, jnp.ones((2, 2)), (31, 4)), (A,)),
    "reverse": (lambda a: lax.rev(a, (0, 1)), (A,)),
    "conv_general_dilated_local": (
        lambda a: lax.conv_general_dilated_local(
            a.reshape(1, 1, 33, 20), jnp.ones((31 * 18, 9, 1)).reshape(1, 9, 31, 18), (1, 1), "VALID", (3, 3)
        ),
        (A,),
    ),
}

PRODUCTS: Table = {
    "dot": (lambda a, b: jnp.dot(a, b.T, precision="highest"), (A, B)),
    "vdot": (lambda v: jnp.vdot(v, v, precision="highest"), (V,)),
    "inner": (lambda a, b: jnp.inner(a, b, precision="highest"), (A, B)),
    "outer": (lambda v: jnp.outer(v, v), (V,)),
    "kron": (lambda a, b: jnp.kron(a[:3, :3], b[:3, :3]), (A, B)),
    "cross": (lambda a, b: jnp.cross(a[:, :3], b[:, :3]), (A, B)),
    "tensordot": (lambda a, b: jnp.tensordot(a, b, ((0,), (0,)), precision="highest"), (A, B)),
    "matmul of integers": (lambda k: k @ k.T, (K,)),
    "matmul of complex numbers": (lambda c: jnp.matmul(c, c.T, precision="highest"), (C,)),
    "matmul's slopes": (
        jax.grad(lambda a, b: jnp.matmul(a, b.T, precision="highest").sum() ** 2, (0, 1)),
        (A, B),
    ),
    "int8 products": (
        lambda k: lax.dot(k.astype(jnp.int8), k.T.astype(jnp.int8), preferred_element_type=jnp.int32),
        (K,),
    ),
    "dot_general": (
        lambda a, b: lax.dot_general(
            a.reshape(3, 11, 20), b.reshape(3, 11, 20), (((2,), (2,)), ((0,), (0,))), "highest"
        ),
        (A, B),
    ),
    "multi_dot": (lambda a, b: jnp.linalg.multi_dot([a, b.T, a], precision="highest"), (A, B)),
    "matrix_power": (lambda a: jnp.linalg.matrix_power(a[:20] * 0.2, 3), (A,)),
    "attention": (
        lambda a: nn.dot_product_attention(*(a.reshape(1, 33, 2, 10) for _ in range(3)), is_causal=True),
        (A,),
    ),
    "expm": (lambda a: jax.scipy.linalg.expm(a[:8, :8] * 0.2), (A,)),
}

TABLE = ELEMENTS | REDUCTIONS | MOVEMENT | PRODUCTS


def compare(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Raise where the device's results differ from the CPU's."""
    with jax.default_device(CPU):
        wanted = jax.tree.leaves(jax.jit(function)(*arguments))
    got = jax.tree.leaves(jax.jit(function)(*arguments))
    assert len(got) == len(wanted)
    for one, other in zip(map(np.asarray, got), map(np.asarray, wanted), strict=True):
        if one.dtype.itemsize < 4 and one.dtype == other.dtype and jnp.issubdtype(one.dtype, jnp.floating):
            one, other = one.astype(np.float32), other.astype(np.float32)
        if one.shape != other.shape or one.dtype != other.dtype:
            raise AssertionError(f"{one.dtype} {one.shape}, and {other.dtype} {other.shape} on the CPU")
        scale = (
            float(np.nanmax(np.abs(other[np.isfinite(other)]), initial=0)) if other.dtype.kind in "fc" else 0
        )
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5 * max(scale, 1e-3))


def main() -> None:
    jax.config.update("jax_default_matmul_precision", "highest")
    failed = {}
    for name, (function, arguments) in TABLE.items():
        try:
            compare(function, arguments)
        except Exception as error:
            failed[name] = " ".join(str(error).split())[:300]
    print(json.dumps({"device": str(jax.devices()[0]), "passed": len(TABLE) - len(failed), "failed": failed}))


if __name__ == "__main__":
    main()
