"""Takes 256 MiB of its slice by JAX, PyTorch or TensorFlow, the only word, says so, and waits to be killed."""

from __future__ import annotations

import sys
import time

ELEMENTS = 1 << 26  # of four bytes


def by_jax() -> tuple[object, float]:
    import jax.numpy as jnp

    block = jnp.ones(ELEMENTS, jnp.float32)
    return block, float(block[-1])


def by_pytorch() -> tuple[object, float]:
    import torch

    block = torch.ones(ELEMENTS, device="cuda")
    return block, float(block[-1])


def by_tensorflow() -> tuple[object, float]:
    import tensorflow as tf

    with tf.device("/GPU:0"):
        block = tf.ones([ELEMENTS])
    return block, float(block[-1])


if __name__ == "__main__":
    held, last = {"jax": by_jax, "pytorch": by_pytorch, "tensorflow": by_tensorflow}[sys.argv[1]]()
    print("holds", last, flush=True)
    time.sleep(600)
