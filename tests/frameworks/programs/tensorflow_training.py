"""Twenty steps of a perceptron and of ResNet-20 by Keras, on the slice or on the CPU.  Prints JSON.

``python tensorflow_training.py gpu|cpu [mlp] [fit] [mixed] [loop] [resnet20]``: `mlp` trains on pictures of 8 × 8 of ten classes that
differ, `fit` the same by ``model.fit`` with its own settings, `mixed` in mixed precision, `loop` by a loop of the program's in a
``tf.function``; `resnet20` trains on pictures shaped as CIFAR-10's.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

keras = tf.keras
STEPS, BATCH = 20, 64


def pictures(shape: tuple[int, ...]) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    centres = random.standard_normal((10, *shape)).astype(np.float32)
    labels = random.integers(0, 10, STEPS * BATCH)
    noise = random.standard_normal((STEPS * BATCH, *shape)).astype(np.float32)
    return 0.5 * centres[labels] + noise, labels.astype(np.int32)


def perceptron(**settings: Any) -> Any:
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Dense(64, "relu"),
        keras.layers.Dense(32, "relu"),
        keras.layers.Dense(10, dtype="float32"),
    ]
    model = keras.Sequential([keras.Input((64,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, **settings)
    return model


def resnet20() -> Any:
    keras.utils.set_random_seed(0)
    layers = keras.layers

    def convolved(x: Any, filters: int, stride: int, size: int = 3) -> Any:
        x = layers.Conv2D(filters, size, stride, "same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    inputs = keras.Input((32, 32, 3))
    x = layers.ReLU()(convolved(inputs, 16, 1))
    for stage in range(3):
        for block in range(3):
            stride = 2 if stage and not block else 1
            y = layers.ReLU()(convolved(x, 16 << stage, stride))
            y = convolved(y, 16 << stage, 1)
            around = x if stride == 1 else convolved(x, 16 << stage, 2, 1)
            x = layers.ReLU()(layers.Add()([y, around]))
    outputs = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Small steps: larger ones carry the last digit of one loss into the second of another twenty steps on, on any device.
    model.compile(keras.optimizers.SGD(0.002), loss)
    return model


def in_batches(model: Any, x: Any, y: Any) -> tuple[list[float], float]:
    """Return the loss of each step, and steps a second after the first."""
    losses = []
    begin = time.perf_counter()
    for step in range(STEPS):
        if step == 1:
            begin = time.perf_counter()
        here = slice(step * BATCH, (step + 1) * BATCH)
        model.reset_metrics()
        losses.append(float(model.train_on_batch(x[here], y[here])))
    return losses, (STEPS - 1) / (time.perf_counter() - begin)


def mlp() -> tuple[list[float], float]:
    return in_batches(perceptron(), *pictures((64,)))


def fit() -> tuple[list[float], float]:
    model = perceptron(metrics=["accuracy"])
    x, y = pictures((64,))
    begin = time.perf_counter()
    history = model.fit(x, y, BATCH, epochs=3, shuffle=False, verbose=0).history
    return [*history["loss"], *history["accuracy"]], 3 * STEPS / (time.perf_counter() - begin)


def mixed() -> tuple[list[float], float]:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return in_batches(perceptron(), *pictures((64,)))
    finally:
        keras.mixed_precision.set_global_policy("float32")


def loop() -> tuple[list[float], float]:
    model = perceptron()
    optimizer, loss_of = (
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        slopes = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(slopes, model.trainable_variables, strict=True))
        return loss

    data = tf.data.Dataset.from_tensor_slices(pictures((64,))).batch(BATCH).prefetch(2)
    begin = time.perf_counter()
    losses = [float(step(x, y)) for x, y in data]
    return losses, STEPS / (time.perf_counter() - begin)


def resnet() -> tuple[list[float], float]:
    return in_batches(resnet20(), *pictures((32, 32, 3)))


TRAININGS: dict[str, Callable[[], tuple[list[float], float]]] = {
    "mlp": mlp,
    "fit": fit,
    "mixed": mixed,
    "loop": loop,
    "resnet20": resnet,
}


def main(device: str, *names: str) -> None:
    # What XLA compiles multiplies in TF32 on devices of this kind, whose losses differ from the CPU's in the third place.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    if device == "cpu":
        tf.config.set_visible_devices([], "GPU")
    elif not tf.config.list_physical_devices("GPU"):
        raise SystemExit("TensorFlow found no GPU")
    print(json.dumps({name: TRAININGS[name]() for name in names}))


if __name__ == "__main__":
    main(*sys.argv[1:])
