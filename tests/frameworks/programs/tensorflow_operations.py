"""Operations of TensorFlow on the slice and on the CPU, compared.  Prints JSON; words name the groups to run, else all are."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_arithmetic import mathematics, movement, reductions
from tensorflow_arrays import Operations
from tensorflow_layers import algebra, convolutions, draws, images, layers, recurrent

GROUPS: dict[str, Callable[[], Operations]] = {
    "mathematics": mathematics,
    "reductions": reductions,
    "movement": movement,
    "images": images,
    "layers": layers,
    "random numbers": draws,
    "convolutions": convolutions,
    "linear algebra": algebra,
    "recurrent layers": recurrent,
}


def values(operation: Callable[[], Any], device: str) -> tuple[list[Any], bool]:
    """Return the arrays of an operation's results, and whether one of them was on a GPU."""
    tf.random.set_seed(3)
    with tf.device(device):
        results = tf.nest.flatten(operation())
    return [np.asarray(one) for one in results], any(
        "GPU" in str(getattr(one, "device", "")) for one in results
    )


def compare(name: str, operation: Callable[[], Any]) -> bool:
    """Compare the results on both devices, and return whether the slice computed one; raise where they differ."""
    wanted, _ = values(operation, "/CPU:0")
    got, on_slice = values(operation, "/GPU:0")
    if len(got) != len(wanted):
        raise AssertionError(f"{len(got)} results, and {len(wanted)} on the CPU")
    for one, other in zip(got, wanted, strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            raise AssertionError(f"{one.dtype} {one.shape}, and {other.dtype} {other.shape} on the CPU")
        loose = 2e-2 if any(kind in name for kind in ("half", "bfloat16", "TF32")) else 2e-4
        scale = (
            float(np.max(np.abs(other), initial=0))
            if other.dtype.kind in "fc" and np.isfinite(other).all()
            else 1
        )
        np.testing.assert_allclose(one, other, rtol=loose, atol=loose * max(scale, 1e-3) / 10)
    return on_slice


def main() -> None:
    wanted = sys.argv[1:] or list(GROUPS)
    devices = tf.config.list_physical_devices("GPU")
    passed: dict[str, int] = {}
    failed: dict[str, str] = {}
    elsewhere: list[str] = []  # TensorFlow has a kernel for the CPU alone, or keeps such results on the host
    seconds: dict[str, float] = {}
    for group in wanted:
        operations = GROUPS[group]()
        for name, operation in operations.items():
            begin = time.perf_counter()
            try:
                if not compare(name, operation):
                    elsewhere.append(name)
                passed[group] = passed.get(group, 0) + 1
            except Exception as error:
                failed[name] = " ".join(str(error).split())[:300]
            seconds[name] = time.perf_counter() - begin
    slowest = sorted(seconds, key=lambda name: -seconds[name])[:8]
    print(
        json.dumps(
            {
                "devices": len(devices),
                "passed": passed,
                "failed": failed,
                "elsewhere": elsewhere,
                "seconds": sum(seconds.values()),
                "slowest": {name: round(seconds[name], 2) for name in slowest},
            }
        )
    )


if __name__ == "__main__":
    main()
