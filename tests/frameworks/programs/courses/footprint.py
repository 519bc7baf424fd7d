"""A framework's first operation on a slice or on the CPU: seconds until its value is there, and the program's memory in MiB.  Prints JSON.

``python footprint.py jax|pytorch cuda|cpu``
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

BEGIN = time.perf_counter()
FRAMEWORK, DEVICE = sys.argv[1:]

if FRAMEWORK == "jax":
    if DEVICE == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    import jax.numpy as jnp

    value = float((jnp.ones((100, 10)) * 2).sum())
    seconds = time.perf_counter() - BEGIN
    for _ in range(5):
        (jnp.ones((256, 256)) @ jnp.ones((256, 256))).block_until_ready()
else:
    import torch

    value = float((torch.ones(100, 10, device=DEVICE) * 2).sum())
    seconds = time.perf_counter() - BEGIN
    for _ in range(5):
        (torch.ones(256, 256, device=DEVICE) @ torch.ones(256, 256, device=DEVICE)).sum().item()
assert value == 2000
status = dict(
    line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if line.count(":") == 1
)
kinds = {"all": "VmRSS", "anonymous": "RssAnon"}
print(
    json.dumps(
        {"seconds": seconds} | {kind: int(status[name].split()[0]) / 1024 for kind, name in kinds.items()}
    )
)
