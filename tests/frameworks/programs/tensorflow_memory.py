"""Memory of a program that has trained a perceptron with TensorFlow for some steps.  Prints JSON: MiB of this process that are in memory."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import tensorflow as tf

keras = tf.keras


def resident() -> dict[str, float]:
    """Return what is in memory, and the part of it that no file has."""
    text = Path("/proc/self/smaps_rollup").read_text()
    found = {name: int(kib) / 1024 for name, kib in re.findall(r"^(Rss|Anonymous): +(\d+) kB", text, re.M)}
    return {"all": found["Rss"], "own": found["Anonymous"]}


def main() -> None:
    random = np.random.default_rng(0)
    x, y = random.random((1280, 64), np.float32), random.integers(0, 10, 1280)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, batch_size=64, epochs=2, verbose=0)
    print(json.dumps({"devices": len(tf.config.list_physical_devices("GPU")), **resident()}))


if __name__ == "__main__":
    main()
