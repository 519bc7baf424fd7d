"""Memory that nobody has written shows a kernel nothing of its process's heap."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNEL = """.version 7.0
.target sm_70
.address_size 64
.visible .entry k(.param .u64 out)
{
    .reg .pred %p; .reg .b32 %n, %v, %s; .reg .b64 %o, %w, %l;
    .shared .align 16 .b8 tile[40960];
    .local .align 16 .b8 own[1024];
    ld.param.u64 %o, [out]; mov.u32 %n, 0; mov.u32 %s, 0; mov.u64 %w, tile; mov.u64 %l, own;
SHARED: ld.shared.u32 %v, [%w]; or.b32 %s, %s, %v; add.u64 %w, %w, 4; add.u32 %n, %n, 4; setp.lt.u32 %p, %n, 40960; @%p bra SHARED;
    mov.u32 %n, 0;
LOCAL: ld.local.u32 %v, [%l]; or.b32 %s, %s, %v; add.u64 %l, %l, 4; add.u32 %n, %n, 4; setp.lt.u32 %p, %n, 1024; @%p bra LOCAL;
    mov.u32 %n, %tid.x; mul.wide.u32 %w, %n, 4; add.u64 %o, %o, %w; st.global.u32 [%o], %s;
    ret;
}
"""  # fmt: skip
PROGRAM = """
import ctypes as c, os, sys
sys.path.insert(0, {root!r})
import numpy as np
from gpukernel.native import simgpu_library
from tests.native.simgpu_exec.conftest import Device
device, heap = Device(str(simgpu_library())), c.CDLL(None)
heap.malloc.restype, heap.malloc.argtypes, heap.free.argtypes = c.c_void_p, [c.c_size_t], [c.c_void_p]
blocks = [heap.malloc(100_000) for _ in range(400)]
for block in blocks:
    c.memset(block, 0xAB, 100_000)
for block in blocks[:-1]:  # the last one keeps the heap from shrinking
    heap.free(block)
out = np.zeros(32, np.uint32)
device.run({kernel!r}, "k", 1, 32, out)
print(hex(int(np.bitwise_or.reduce(out))), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("tier", ["interpreter", "compiled"])
def test_fresh_shared_and_local_memory_shows_no_old_bytes(tier: str) -> None:
    script = PROGRAM.format(root=str(Path(__file__).parents[3]), kernel=KERNEL)
    environment = {**os.environ, "GPUKERNEL_SIMGPU": "v100", "GPUKERNEL_SIMGPU_TIER": tier}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "0x0"
