"""Inputs of the comparison of TensorFlow's operations: arrays, and slopes, variables and functions of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

Operations = dict[str, Callable[[], Any]]

RANDOM = np.random.default_rng(7)
A = RANDOM.standard_normal((64, 48)).astype(np.float32)
A2 = RANDOM.standard_normal((64, 48)).astype(np.float32)
P = np.abs(A) + np.float32(0.1)  # positive
U = RANDOM.uniform(-0.9, 0.9, (64, 48)).astype(np.float32)  # between -1 and 1
D = A.astype(np.float64)
H = A.astype(np.float16)
I1 = RANDOM.integers(1, 100, (64, 48), dtype=np.int32)
I2 = RANDOM.integers(1, 9, (64, 48), dtype=np.int32)
L1, L2 = I1.astype(np.int64), I2.astype(np.int64)
Q1, Q2 = A > 0, A2 > 0  # true or false
C = (A + 1j * A2).astype(np.complex64)
B = RANDOM.standard_normal((4, 48, 32)).astype(np.float32)
S = RANDOM.standard_normal((6, 12, 12)).astype(np.float32)
SPD = (S @ S.transpose(0, 2, 1) + 12 * np.eye(12)).astype(np.float32)  # symmetric, positive definite
IMAGES = RANDOM.uniform(0, 1, (2, 16, 16, 3)).astype(np.float32)
SEGMENTS = np.sort(RANDOM.integers(0, 9, 64)).astype(np.int32)
SHUFFLED = RANDOM.integers(0, 9, 64).astype(np.int32)
ROWS = np.array([3, 1, 60, 3], np.int32)
LABELS = RANDOM.integers(0, 48, 64).astype(np.int32)
FILTERS = RANDOM.standard_normal((3, 3, 3, 8)).astype(np.float32)
VOLUME = RANDOM.standard_normal((1, 6, 6, 6, 2)).astype(np.float32)
SEED = (1, 2)

t = tf.constant


def moments(draw: Callable[[], Any], mean: float, deviation: float) -> Any:
    """Return whether numbers have about that mean and deviation: those of a generator with a state are each device's own."""
    drawn = tf.cast(draw(), tf.float64)
    near = tf.abs(tf.reduce_mean(drawn) - mean) < 0.1, tf.abs(tf.math.reduce_std(drawn) - deviation) < 0.1
    return tf.reduce_all(near)


def slope(function: Callable[[Any], Any], at: Any) -> Any:
    x = t(at)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


def assigned(change: Callable[[Any], Any], at: Any = A) -> Any:
    variable = tf.Variable(at)
    change(variable)
    return variable.read_value()


def compiled(function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    return tf.function(function, **settings)(*map(t, arguments))
