"""What a course does with JAX: transformations, loops, training by hand, saving, and what lies beside."""

from __future__ import annotations

import io
import os
import pickle
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

if sys.argv[1] == "cpu":
    os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback, shard_map
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from lessons import Lessons

lesson = Lessons()
PRECISE = partial(jnp.matmul, precision="highest")


def numbers(*shape: int, seed: int = 0) -> Any:
    """Return normal numbers that are the same on every device."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def labels(count: int, classes: int, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng(seed).integers(0, classes, count))


def norms(tree: Any) -> list[float]:
    """Return the length of each array of a tree."""
    return [float(jnp.linalg.norm(jnp.ravel(one))) for one in jax.tree.leaves(tree)]


def cross_entropy(scores: Any, y: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], 1).mean()


@lesson
def gradients_of_each_example() -> list[float]:
    weights = {"w": numbers(8, 3), "b": numbers(3, seed=1)}

    def loss(weights: Any, x: Any, y: Any) -> Any:
        return cross_entropy((PRECISE(x, weights["w"]) + weights["b"])[None], y[None])

    each = jax.jit(jax.vmap(jax.grad(loss), (None, 0, 0)))(weights, numbers(20, 8), labels(20, 3))
    return norms(each)


@lesson
def jacobians_and_a_hessian() -> list[float]:
    f = lambda x: jnp.tanh(PRECISE(numbers(5, 4), x)) * x[0]  # noqa: E731
    x = numbers(4)
    curved = jax.hessian(lambda v: jnp.sum(f(v) ** 2))(x)
    product = jax.jvp(jax.grad(lambda v: jnp.sum(f(v))), (x,), (x,))[1]
    return norms([jax.jacfwd(f)(x), jax.jacrev(f)(x), curved, product, jax.linearize(f, x)[1](x)])


@lesson
def an_lstm_by_scan_and_remat() -> list[float]:
    weights = {
        "x": numbers(6, 40) * 0.3,
        "h": numbers(10, 40, seed=1) * 0.3,
        "out": numbers(10, 2, seed=2) * 0.3,
    }

    def predict(weights: Any, xs: Any) -> Any:
        @jax.checkpoint
        def cell(carry: Any, x: Any) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(PRECISE(x, weights["x"]) + PRECISE(h, weights["h"]), 4, -1)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        start = jnp.zeros((2, xs.shape[1], 10))
        (h, _), _ = jax.lax.scan(cell, (start[0], start[1]), xs, unroll=2)
        return PRECISE(h, weights["out"])

    @partial(jax.jit, donate_argnums=0)
    def step(weights: Any, xs: Any, y: Any) -> Any:
        value, slopes = jax.value_and_grad(lambda w: cross_entropy(predict(w, xs), y))(weights)
        return jax.tree.map(lambda w, s: w - 0.1 * s, weights, slopes), value

    losses = []
    for i in range(6):
        weights, value = step(weights, numbers(12, 8, 6, seed=i), labels(8, 2, i))
        losses.append(float(value))
    return losses


@lesson
def one_device_as_many() -> list[float]:
    x = numbers(1, 8, 4)
    summed = jax.pmap(lambda x: jax.lax.psum(x * 2, "i"), axis_name="i")(x)
    mean = jax.pmap(lambda x: jax.lax.pmean(jax.lax.all_gather(x, "i"), "i"), axis_name="i")(x)
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    placed = jax.device_put(x[0], NamedSharding(mesh, P("data")))
    product = jax.jit(lambda x: PRECISE(x.T, x), out_shardings=NamedSharding(mesh, P()))(placed)
    mapped = jax.jit(
        shard_map.shard_map(
            lambda x: jax.lax.psum(jnp.sin(x), "data"), mesh=mesh, in_specs=P("data"), out_specs=P()
        )
        if not hasattr(jax, "shard_map")
        else jax.shard_map(
            lambda x: jax.lax.psum(jnp.sin(x), "data"), mesh=mesh, in_specs=P("data"), out_specs=P()
        )
    )(placed)
    return norms([summed, mean, product, mapped])


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return jnp.sum(x**3)


clipped.defvjp(lambda x: (clipped(x), x), lambda x, slope: (jnp.clip(3 * x**2 * slope, 0, 1),))


@jax.custom_jvp
def stable(x: Any) -> Any:
    return jnp.log1p(jnp.exp(x))


@stable.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return stable(x), jax.nn.sigmoid(x) * t


@lesson
def rules_of_ones_own() -> list[float]:
    x = numbers(9)
    return norms(
        [jax.grad(clipped)(x), jax.jit(jax.vmap(jax.grad(stable)))(x * 50), jax.vmap(clipped)(x[None])]
    )


def convolved(weights: Any, x: Any, state: Any, train: bool) -> Any:
    """Apply two layers of convolution and batch normalisation."""
    kept = []
    for i, (kernel, (mean, variance)) in enumerate(zip(weights["kernels"], state, strict=True)):
        x = jax.lax.conv_general_dilated(
            x, kernel, (1 + i, 1 + i), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), precision="highest"
        )
        if train:
            own = x.mean((0, 1, 2)), x.var((0, 1, 2))
            mean, variance = (0.9 * old + 0.1 * new for old, new in zip((mean, variance), own, strict=True))
        else:
            own = mean, variance
        kept.append((mean, variance))
        x = jax.nn.relu((x - own[0]) * jax.lax.rsqrt(own[1] + 1e-5))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return PRECISE(x.mean((1, 2)), weights["out"]), kept


@lesson
def a_network_with_state_adam_and_a_saved_tree() -> list[float]:
    key = jax.random.key(0)
    one, two, three = jax.random.split(key, 3)
    he = jax.nn.initializers.he_normal()
    weights = {"kernels": [he(one, (3, 3, 3, 8)), he(two, (3, 3, 8, 16))], "out": he(three, (16, 4))}
    state = [(jnp.zeros(n), jnp.ones(n)) for n in (8, 16)]
    moments = jax.tree.map(lambda w: (jnp.zeros_like(w), jnp.zeros_like(w)), weights)

    @jax.jit
    def step(weights: Any, state: Any, moments: Any, t: Any, x: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            scores, kept = convolved(weights, x, state, True)
            return cross_entropy(scores, y), kept

        (value, kept), slopes = jax.value_and_grad(loss, has_aux=True)(weights)
        is_pair = lambda one: isinstance(one, tuple)  # noqa: E731
        moments = jax.tree.map(
            lambda m, s: (0.9 * m[0] + 0.1 * s, 0.999 * m[1] + 0.001 * s**2), moments, slopes, is_leaf=is_pair
        )
        weights = jax.tree.map(
            lambda w, m: w - 1e-3 * (m[0] / (1 - 0.9**t)) / (jnp.sqrt(m[1] / (1 - 0.999**t)) + 1e-8),
            weights,
            moments,
        )
        return weights, kept, moments, value

    losses = []
    for t in range(6):
        x, y = numbers(16, 16, 16, 3, seed=t), labels(16, 4, t)
        weights, state, moments, value = step(weights, state, moments, t + 1.0, x, y)
        losses.append(float(value))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kept.npz")
        leaves, shape = jax.tree.flatten((weights, state))
        np.savez(path, *leaves)
        again = jax.tree.unflatten(shape, [jnp.asarray(one) for one in np.load(path).values()])
        Path(folder, "kept.pickle").write_bytes(pickle.dumps(weights))
        unpickled = pickle.loads(Path(folder, "kept.pickle").read_bytes())
    x = numbers(4, 16, 16, 3, seed=99)
    kept, wanted = convolved(again[0], x, again[1], False)[0], convolved(weights, x, state, False)[0]
    assert jnp.allclose(kept, wanted)
    assert jnp.array_equal(unpickled["out"], weights["out"])
    return [*losses, *norms([kept, state])]


@lesson
def branches_loops_and_prefixes() -> list[float]:
    x = numbers(16)
    found = [
        jax.jit(lambda x: jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x))(x),
        jax.jit(lambda i: jax.lax.switch(i, [jnp.sin, jnp.cos, jnp.tanh], x))(2),
        jax.lax.while_loop(lambda v: jnp.max(v) < 1e3, lambda v: v * 1.5, jnp.abs(x) + 1),
        jax.lax.fori_loop(0, 9, lambda i, v: v.at[i].add(v[i + 1]), x),
        jax.lax.associative_scan(jnp.multiply, x * 0.5 + 1),
        jax.lax.map(lambda v: jnp.outer(v, v), x.reshape(4, 4)),
        jax.lax.dynamic_slice(x, (jnp.argmax(x) % 8,), (4,)),
        jax.grad(lambda v: jax.lax.fori_loop(0, 5, lambda _, u: jnp.sin(u), v).sum())(x),
        jax.lax.reduce(x, 0.0, jax.lax.add, (0,)),
    ]
    return norms(found)


@lesson
def random_numbers() -> list[float]:
    """A key's numbers are the same on every device."""
    keys = jax.random.split(jax.random.key(7), 16)
    found = [
        jax.random.uniform(keys[0], (50,)), jax.random.normal(keys[1], (50,)), jax.random.bernoulli(keys[2], 0.3, (50,)),
        jax.random.permutation(keys[3], 50), jax.random.choice(keys[4], 50, (9,), replace=False),
        jax.random.categorical(keys[5], numbers(9, 4)), jax.random.gumbel(keys[6], (50,)),
        jax.random.truncated_normal(keys[7], -1, 1, (50,)), jax.random.gamma(keys[8], 2.0, (50,)),
        jax.random.beta(keys[9], 2.0, 3.0, (50,)), jax.random.poisson(keys[10], 4.0, (50,)),
        jax.random.randint(keys[11], (50,), 0, 1000), jax.random.dirichlet(keys[12], jnp.ones(5), (9,)),
        jax.random.multivariate_normal(keys[13], jnp.zeros(3), jnp.eye(3) * 2, (9,)), jax.random.laplace(keys[14], (50,)),
        jax.random.orthogonal(keys[15], 4),
    ]  # fmt: skip
    return norms([jnp.asarray(one, jnp.float32) for one in found])


@lesson
def equations_and_minima() -> list[float]:
    from jax.experimental.ode import odeint
    from jax.scipy.optimize import minimize

    fall = lambda y, t, a: jnp.stack([y[1], -a * jnp.sin(y[0])])  # noqa: E731
    times = jnp.linspace(0, 3, 12)
    path = lambda a: odeint(fall, jnp.array([1.0, 0.0]), times, a)  # noqa: E731
    rosen = lambda v: jnp.sum(100 * (v[1:] - v[:-1] ** 2) ** 2 + (1 - v[:-1]) ** 2)  # noqa: E731
    found = minimize(rosen, jnp.array([0.5, 0.5]), method="BFGS", tol=1e-4).x
    a = PRECISE(numbers(8, 8), numbers(8, 8).T) + 8 * jnp.eye(8)
    solved = jax.scipy.sparse.linalg.cg(lambda v: PRECISE(a, v), numbers(8), tol=1e-6)[0]
    return [
        *norms([path(9.8), jax.grad(lambda a: path(a).sum())(9.8), solved]),
        float(jnp.round(found.sum(), 2)),
    ]


@lesson
def calls_back_to_the_host() -> list[float]:
    seen: list[float] = []

    @jax.jit
    def f(x: Any) -> Any:
        jax.debug.callback(lambda v: seen.append(float(v)), x.sum())
        jax.debug.print("a sum: {}", x.sum())
        io_callback(lambda v: seen.append(float(v)), None, x.max(), ordered=True)
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda v: np.asarray(v) ** 2, shape, x, vmap_method="sequential") + 1

    out = f(numbers(12))
    jax.effects_barrier()
    return [*norms(out), *sorted(seen)]


@lesson
def numbers_of_64_bits() -> list[float]:
    jax.config.update("jax_enable_x64", True)
    try:
        a = jnp.asarray(np.random.default_rng(0).standard_normal((20, 20)))
        assert a.dtype == jnp.float64
        slope = jax.grad(lambda v: jnp.linalg.slogdet(v)[1])(a)
        found = [
            a @ a,
            jnp.linalg.inv(a),
            jnp.linalg.eigh(a + a.T)[0],
            jnp.fft.fft2(a).real,
            slope,
            jnp.sort(a, 0),
        ]
        return [float(jnp.linalg.norm(one)) for one in found]
    finally:
        jax.config.update("jax_enable_x64", False)


@lesson
def narrow_numbers() -> list[float]:
    weights = numbers(32, 8) * 0.2

    @jax.jit
    def step(weights: Any, x: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            scores = x.astype(jnp.bfloat16) @ weights.astype(jnp.bfloat16)
            return cross_entropy(scores.astype(jnp.float32), y)

        value, slopes = jax.value_and_grad(loss)(weights)
        return weights - 0.1 * slopes, value

    losses = []
    for i in range(5):
        weights, value = step(weights, numbers(64, 32, seed=i), labels(64, 8, i))
        losses.append(round(float(value), 2))  # as far as bfloat16 carries
    return losses


@lesson
def programs_ahead_of_time_and_exported() -> list[float]:
    f = jax.jit(lambda x, power: (x**power).sum(), static_argnums=1)
    x = numbers(16)
    compiled = f.lower(x, 3).compile()
    assert compiled.cost_analysis() is not None
    assert compiled.as_text()
    exported = jax.export.export(jax.jit(lambda x: jnp.sin(x) * 2))(jax.ShapeDtypeStruct((16,), jnp.float32))
    again = jax.export.deserialize(exported.serialize())
    assert "sin" in str(jax.make_jaxpr(jnp.sin)(x))
    return norms([compiled(x), again.call(x), jax.eval_shape(jnp.sin, x).shape[0]])


@lesson
def pictures_and_signals() -> list[float]:
    picture = jnp.abs(numbers(1, 12, 12, 3))
    found = [
        jax.image.resize(picture, (1, 20, 7, 3), "bilinear"), jax.image.resize(picture, (1, 6, 6, 3), "cubic"),
        jax.scipy.ndimage.map_coordinates(picture[0, :, :, 0], [jnp.linspace(0, 10, 9)] * 2, order=1),
        jax.scipy.signal.convolve(numbers(64), numbers(9, seed=1), "same"),
        jax.scipy.signal.convolve2d(picture[0, :, :, 0], numbers(3, 3), "valid"), jnp.fft.rfft(numbers(64)).real,
        jax.lax.conv_transpose(picture, numbers(3, 3, 3, 5), (2, 2), "SAME", precision="highest"),
        jax.lax.conv_general_dilated_patches(picture, (3, 3), (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")),
    ]  # fmt: skip
    return norms(found)


@lesson
def what_lies_beside() -> list[float]:
    device = jax.devices()[0]
    x = jax.device_put(numbers(32), device)
    assert x.devices() == {device}
    assert next(iter(x.devices())).platform == ("cpu" if sys.argv[1] == "cpu" else "gpu")
    if sys.argv[1] != "cpu":
        stats = device.memory_stats()
        assert stats is not None
        assert stats["bytes_in_use"] > 0
        assert stats["bytes_limit"] > 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder), jax.profiler.TraceAnnotation("lesson"):
            (x * 2).block_until_ready()
        assert list(Path(folder).rglob("*.xplane.pb"))
    jax.config.update("jax_debug_nans", True)
    said = ""
    try:
        jnp.log(-jnp.abs(x)).block_until_ready()
    except FloatingPointError as error:
        said = str(error)
    finally:
        jax.config.update("jax_debug_nans", False)
    assert "nan" in said
    file = io.BytesIO()
    jnp.save(file, x)
    file.seek(0)
    through = jax.dlpack.from_dlpack(x) if hasattr(jax.dlpack, "from_dlpack") else x
    return norms([jnp.load(file), through, jax.device_get(x), jnp.asarray(memoryview(np.asarray(x)))])


@lesson
def networks_by_flax_and_optax() -> list[float]:
    from flax import linen
    from optax import (
        adamw,
        apply_updates,
        chain,
        clip_by_global_norm,
        softmax_cross_entropy_with_integer_labels,
    )

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any, train: bool = True) -> Any:
            x = linen.Conv(8, (3, 3))(x)
            x = linen.relu(linen.BatchNorm(use_running_average=not train)(x))
            x = linen.avg_pool(x, (2, 2), (2, 2)).reshape(len(x), -1, 8)
            x = linen.LayerNorm()(x + linen.MultiHeadDotProductAttention(2)(x, x))
            return linen.Dense(4)(linen.Dropout(0.1, deterministic=not train)(x.mean(1)))

    model, x = Net(), numbers(8, 8, 8, 3)
    kept = model.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, x)
    weights, state = kept["params"], kept["batch_stats"]
    optimizer = chain(clip_by_global_norm(1.0), adamw(1e-3))
    moments = optimizer.init(weights)

    @jax.jit
    def step(weights: Any, state: Any, moments: Any, key: Any, x: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            given = {"params": weights, "batch_stats": state}
            scores, changed = model.apply(given, x, rngs={"dropout": key}, mutable=["batch_stats"])
            return softmax_cross_entropy_with_integer_labels(scores, y).mean(), changed["batch_stats"]

        (value, changed), slopes = jax.value_and_grad(loss, has_aux=True)(weights)
        updates, moments = optimizer.update(slopes, moments, weights)
        return apply_updates(weights, updates), changed, moments, value

    losses = []
    for i in range(5):
        key = jax.random.fold_in(jax.random.key(2), i)
        x, y = numbers(8, 8, 8, 3, seed=i), labels(8, 4, i)
        weights, state, moments, value = step(weights, state, moments, key, x, y)
        losses.append(float(value))
    return losses


if __name__ == "__main__":
    jax.config.update("jax_default_matmul_precision", "highest")
    lesson.run()
