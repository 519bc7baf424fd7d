"""Training steps of a small perceptron, to have their round trips counted: ``steps.py FRAMEWORK STEPS queue|read``.

After ten steps more, at its beginning, it prints a line and waits for one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

RANDOM = np.random.default_rng(0)
X = RANDOM.random((64, 784), np.float32)
Y = RANDOM.integers(0, 10, 64)
WEIGHTS = [RANDOM.normal(0, 0.05, shape).astype(np.float32) for shape in ((784, 32), (32, 10))]


def by_jax() -> Callable[[], Any]:
    """Return a step that gives its loss, as an array on the device."""
    import jax
    import jax.numpy as jnp

    def loss(p: Any, x: Any, y: Any) -> Any:
        scores = jax.nn.relu(x @ p[0]) @ p[1]
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], 1).mean()

    @jax.jit
    def step(p: Any, x: Any, y: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(p, x, y)
        return [one - 0.05 * slope for one, slope in zip(p, slopes, strict=True)], value

    kept = [[jnp.asarray(one) for one in WEIGHTS]]

    def run() -> Any:
        kept[0], value = step(kept[0], X, Y)
        return value

    return run


def by_pytorch() -> Callable[[], Any]:
    """Return a step that gives its loss, as an array on the device."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = torch.tensor(X), torch.tensor(Y)

    def run() -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return run


def keras_model() -> Any:
    """Return a model that is compiled and has not seen a batch."""
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential([tf.keras.layers.Dense(32, activation="relu"), tf.keras.layers.Dense(10)])
    model.compile(
        tf.keras.optimizers.SGD(0.05), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def by_keras() -> Callable[[], Any]:
    """Return what `fit` does for a batch, which gives the mean loss so far, as an array on the device."""
    import tensorflow as tf

    model = keras_model()
    batches = iter(tf.data.Dataset.from_tensors((X, Y)).repeat())
    model.make_train_function()
    return lambda: model.train_function(batches)["loss"]


def by_keras_batches() -> Callable[[], Any]:
    """Return `train_on_batch`, which gives the loss as a number."""
    model = keras_model()
    return lambda: model.train_on_batch(X, Y)


def by_tape() -> Callable[[], Any]:
    """Return a `tf.function` with a `GradientTape`, which gives its loss as an array on the device."""
    import tensorflow as tf

    model = keras_model()
    model.build((None, 784))
    optimizer, loss_of = tf.keras.optimizers.SGD(0.05), model.loss

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        slopes = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(slopes, model.trainable_variables, strict=True))
        return loss

    return lambda: step(tf.constant(X), tf.constant(Y))


FRAMEWORKS = {
    "jax": by_jax,
    "keras": by_keras,
    "keras train_on_batch": by_keras_batches,
    "tensorflow GradientTape": by_tape,
    "pytorch": by_pytorch,
}


def main(framework: str, steps: int, mode: str) -> None:
    run = FRAMEWORKS[framework]()

    def train(steps: int) -> list[Any]:
        return [float(run()) if mode == "read" else run() for _ in range(steps)]

    first = [float(value) for value in train(10)]
    print("warm", flush=True)
    sys.stdin.readline()
    print(first[0], float(train(steps)[-1]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
