"""Training steps of several frameworks: seconds a step, with and without a value read in each.

``python -m benchmarks.subjects.steps FRAMEWORK`` trains a two-layer network on 64 images of 784 numbers; each step copies its batch to
the device.  ``queued`` waits for the device after the last of its steps alone, ``read`` has the loss of every step.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.interleaving import answer
from tests.frameworks.programs import steps

BATCH, INPUTS, HIDDEN, CLASSES = 64, 784, 32, 10
RATE = 0.05
STEPS = 12

Step = Callable[[np.ndarray, np.ndarray], Any]
"""Queues one step on a batch and its classes, and returns the loss where the framework has it: not read yet."""


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return a batch of images, shape (64, 784), and their classes, shape (64,)."""
    random = np.random.default_rng(0)
    return random.random((BATCH, INPUTS), np.float32), random.integers(0, CLASSES, BATCH).astype(np.int32)


def numba_step() -> tuple[Step, Callable[[Any], float]]:
    """Return a step in five kernels of Numba's, and what reads its loss."""
    from numba import cuda

    @cuda.jit
    def layer(x, w, y, relu):  # type: ignore[no-untyped-def]
        i, j = cuda.grid(2)
        if i < y.shape[0] and j < y.shape[1]:
            total = np.float32(0)
            for k in range(x.shape[1]):
                total += x[i, k] * w[k, j]
            y[i, j] = max(total, np.float32(0)) if relu else total

    @cuda.jit
    def softmax(y, classes, slope, loss):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < y.shape[0]:
            most = y[i, 0]
            for j in range(1, y.shape[1]):
                most = max(most, y[i, j])
            total = np.float32(0)
            for j in range(y.shape[1]):
                total += math.exp(y[i, j] - most)
            for j in range(y.shape[1]):
                slope[i, j] = (math.exp(y[i, j] - most) / total - (classes[i] == j)) / y.shape[0]
            cuda.atomic.add(loss, 0, (math.log(total) + most - y[i, classes[i]]) / y.shape[0])

    @cuda.jit
    def back(slope, w, hidden, result):  # type: ignore[no-untyped-def]
        i, j = cuda.grid(2)
        if i < result.shape[0] and j < result.shape[1]:
            total = np.float32(0)
            for k in range(slope.shape[1]):
                total += slope[i, k] * w[j, k]
            result[i, j] = total if hidden[i, j] > 0 else np.float32(0)

    @cuda.jit
    def descend(x, slope, w, rate):  # type: ignore[no-untyped-def]
        i, j = cuda.grid(2)
        if i < w.shape[0] and j < w.shape[1]:
            total = np.float32(0)
            for k in range(x.shape[0]):
                total += x[k, i] * slope[k, j]
            w[i, j] -= rate * total

    random = np.random.default_rng(1)
    w1 = cuda.to_device(random.normal(0, 0.05, (INPUTS, HIDDEN)).astype(np.float32))
    w2 = cuda.to_device(random.normal(0, 0.2, (HIDDEN, CLASSES)).astype(np.float32))
    hidden, slope1 = (cuda.device_array((BATCH, HIDDEN), np.float32) for _ in range(2))
    scores, slope2 = (cuda.device_array((BATCH, CLASSES), np.float32) for _ in range(2))
    rate, zero = np.float32(RATE), np.zeros(1, np.float32)

    def grid(array: Any) -> tuple[tuple[int, int], tuple[int, int]]:
        return (-(-array.shape[0] // 8), -(-array.shape[1] // 16)), (8, 16)

    def step(images: np.ndarray, classes: np.ndarray) -> Any:
        x, answers, loss = cuda.to_device(images), cuda.to_device(classes), cuda.to_device(zero)
        layer[grid(hidden)](x, w1, hidden, True)
        layer[grid(scores)](hidden, w2, scores, False)
        softmax[1, BATCH](scores, answers, slope2, loss)
        back[grid(slope1)](slope2, w2, hidden, slope1)
        descend[grid(w2)](hidden, slope2, w2, rate)
        descend[grid(w1)](x, slope1, w1, rate)
        return loss

    return step, lambda loss: float(loss.copy_to_host()[0])


def tinygrad_step() -> tuple[Step, Callable[[Any], float]]:
    """Return a jitted step of tinygrad's, and what reads its loss."""
    from tinygrad import Tensor, TinyJit, nn
    from tinygrad.helpers import DEV

    DEV.value = "CUDA"
    first, second = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, CLASSES)
    optimizer = nn.optim.SGD(nn.state.get_parameters([first, second]), lr=RATE)

    @TinyJit
    def jitted(x: Any, y: Any) -> Any:
        with Tensor.train():
            optimizer.zero_grad()
            loss = second(first(x).relu()).sparse_categorical_crossentropy(y).backward()
            return loss.realize(*optimizer.schedule_step())

    def step(images: np.ndarray, classes: np.ndarray) -> Any:
        return jitted(Tensor(images).realize(), Tensor(classes).realize())

    return step, lambda loss: float(loss.item())


def of_a_program(name: str) -> tuple[Step, Callable[[Any], float]]:
    """Return the step of that name of the frameworks' tests, whose batch is its own, and what reads its loss."""
    step = steps.FRAMEWORKS[name]()
    return lambda _images, _classes: step(), float


FRAMEWORKS: dict[str, Callable[[], tuple[Step, Callable[[Any], float]]]] = {
    "numba": numba_step,
    "tinygrad": tinygrad_step,
    **{name: partial(of_a_program, name) for name in steps.FRAMEWORKS},
}


def main(framework: str) -> None:
    """Answer with seconds a step."""
    step, value = FRAMEWORKS[framework]()
    images, classes = data()
    losses = [value(step(images, classes)) for _ in range(8)]
    if not losses[-1] < losses[0]:
        raise SystemExit(f"{framework} does not learn: {losses}")

    def queued() -> float:
        value(step(images, classes))
        before = time.perf_counter()
        for _ in range(STEPS):
            loss = step(images, classes)
        value(loss)
        return (time.perf_counter() - before) / STEPS

    def read() -> float:
        value(step(images, classes))
        before = time.perf_counter()
        for _ in range(STEPS):
            value(step(images, classes))
        return (time.perf_counter() - before) / STEPS

    answer({"queued": queued, "read": read})


if __name__ == "__main__":
    main(sys.argv[1])
