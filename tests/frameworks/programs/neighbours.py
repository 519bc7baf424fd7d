"""A training beside others' on one device: ``python neighbours.py jax|pytorch|tensorflow PORT``.  Prints JSON.

It trains twice.  Before, between and after it meets the others: it says so to `PORT` of this machine, and goes on when all are there.
"""

from __future__ import annotations

import ctypes
import json
import socket
import sys
import time
from typing import Any


def by_jax() -> tuple[Any, int]:
    import jax
    from jax_transformer import trained

    return trained, int(jax.devices()[0].memory_stats()["bytes_limit"])


def by_pytorch() -> tuple[Any, int]:
    import pytorch_training
    import torch

    def trained() -> list[float]:
        torch.manual_seed(1)
        model = pytorch_training.Reverser().to("cuda")
        words = [torch.randint(0, 16, (64, 12)) for _ in range(20)]
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        return pytorch_training.train(model, optimizer, [(x, x.flip(1)) for x in words], "cuda")[0]

    return trained, int(torch.cuda.mem_get_info()[1])


def by_tensorflow() -> tuple[Any, int]:
    from tensorflow.python.client import device_lib
    from tensorflow_training import fit, loop, mlp

    (device,) = (one for one in device_lib.list_local_devices() if one.device_type == "GPU")
    return lambda: [*mlp()[0], *fit()[0], *loop()[0]], int(device.memory_limit)


def driver_total() -> int:
    """Return the bytes that the driver says the device has."""
    cuda, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
    return total.value


def main(framework: str, port: str) -> None:
    with socket.create_connection(("127.0.0.1", int(port))) as others:

        def meet() -> float:
            others.sendall(b"?")
            assert others.recv(1) == b"!", "another one has ended"
            return time.time()

        trained, limit = {"jax": by_jax, "pytorch": by_pytorch, "tensorflow": by_tensorflow}[framework]()
        spans, losses = [], []
        for _ in range(2):
            begin = meet()
            losses.append(trained())
            spans.append((begin, time.time()))
        meet()
    print(json.dumps({"losses": losses, "spans": spans, "limit": limit, "total": driver_total()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
