"""ResNet-20 on random images of CIFAR-10's shape, with Keras; prints images a second as JSON.

``python -m benchmarks.subjects.keras_resnet [--steps N] [--batch N]``.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from tests.frameworks.programs.tensorflow_training import resnet20


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--steps", type=int, default=40)
    words.add_argument("--batch", type=int, default=128)
    options = words.parse_args()
    random = np.random.default_rng(0)
    images = random.standard_normal((options.batch * options.steps, 32, 32, 3)).astype(np.float32)
    classes = random.integers(0, 10, len(images))
    network = resnet20()
    network.fit(images[: options.batch * 5], classes[: options.batch * 5], options.batch, verbose=0)
    start = time.perf_counter()
    network.fit(images, classes, options.batch, verbose=0)
    print(json.dumps({"images_per_second": len(images) / (time.perf_counter() - start)}))


if __name__ == "__main__":
    main()
