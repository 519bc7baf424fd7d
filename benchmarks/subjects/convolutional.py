"""ResNet-20 on batches of 64 images of CIFAR-10's shape, in TensorFlow or PyTorch: seconds a step.

``python -m benchmarks.subjects.convolutional tensorflow|pytorch`` trains the networks of ``tests/frameworks/programs``; the loss is
read in each step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from benchmarks.interleaving import answer

BATCH, STEPS = 64, 10


def tensorflow_step() -> Callable[[], float]:
    """Return a step of Keras's, which gives its loss."""
    import tensorflow as tf

    from tests.frameworks.programs.tensorflow_training import pictures, resnet20

    if not tf.config.list_physical_devices("GPU"):
        raise SystemExit("TensorFlow found no GPU")
    model = resnet20()
    images, classes = (one[:BATCH] for one in pictures((32, 32, 3)))
    return lambda: float(np.asarray(model.train_on_batch(images, classes)).flat[0])


def pytorch_step() -> Callable[[], float]:
    """Return a step of PyTorch's, which gives its loss."""
    import torch
    from torch.nn import functional

    from tests.frameworks.programs.pytorch_training import resnet20

    random = np.random.default_rng(0)
    images = torch.from_numpy(random.standard_normal((BATCH, 3, 32, 32)).astype(np.float32))
    classes = torch.from_numpy(random.integers(0, 10, BATCH))
    torch.manual_seed(0)
    model = resnet20().to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002)

    def step() -> float:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images.to("cuda")), classes.to("cuda"))
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


FRAMEWORKS = {"tensorflow": tensorflow_step, "pytorch": pytorch_step}


def main(framework: str) -> None:
    """Answer with seconds a step."""
    step = FRAMEWORKS[framework]()
    first = step()

    def seconds() -> float:
        before = time.perf_counter()
        for _ in range(STEPS):
            step()
        return (time.perf_counter() - before) / STEPS

    seconds()
    if not step() < first:
        raise SystemExit(f"{framework} does not learn")
    answer({"step": seconds})


if __name__ == "__main__":
    main(sys.argv[1])
