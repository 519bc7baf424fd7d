"""After a fault, out of memory, or a queue that was left, the cell and ``%gpu`` say the next step, and it works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gpukernel.jupyter.lease_manager import lease_manager
from gpukernel.jupyter.trouble.cells import trouble_of
from tests.conftest import Pool, eventually
from tests.jupyter.conftest import Kernel, read_until

HOLD = "import numpy as np\nfrom numba import cuda\nheld = cuda.to_device(np.zeros(100 << 20, np.uint8))"
TOO_MUCH = "more = cuda.device_array(800 << 20, np.uint8)"
FAULT = """\
@cuda.jit
def astray(x):
    x[cuda.grid(1) + 10**12] = 1
astray[1, 1](held)
cuda.synchronize()"""
MEMORY = "from numba import cuda; print(cuda.current_context().get_memory_info()[1] >> 20)"
FULL = "Out of memory: this slice has 655 MiB. “%gpu resize 0.05” makes it larger."
LOST = "restart the kernel. Its slice is kept"


def test_out_of_memory_names_the_size_to_ask_for_until_there_is_room(start: Callable[..., Kernel]) -> None:
    kernel = start(wait=20)
    kernel.run(HOLD)
    assert FULL in kernel.run(TOO_MUCH)
    assert FULL in kernel.run("from gpukernel.jupyter import notebook as n\nprint(n.status())")
    assert FULL not in kernel.run("1 / 0")  # a failure that is none of the GPU's
    assert FULL in kernel.run(TOO_MUCH)
    kernel.run("small = cuda.device_array(1 << 20, np.uint8); small.copy_to_host()")
    assert FULL not in kernel.run("print(n.status())")  # the GPU has worked since
    assert FULL in kernel.run(TOO_MUCH)
    assert "1,638 MiB" in kernel.run("print(n.resize(0.05))")
    assert "Error" not in kernel.run(TOO_MUCH)
    assert "Out of memory" not in kernel.run("print(n.status())")


def test_a_fault_says_restart_and_the_restarted_kernel_works_on_the_same_slice(
    start: Callable[..., Kernel], own_pool: Pool
) -> None:
    kernel = start(wait=20)
    kernel.run(HOLD)
    (lease,) = own_pool.live()
    said = kernel.run(FAULT)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in said
    assert LOST in said
    assert LOST in kernel.run("from gpukernel.jupyter import notebook as n\nprint(n.status())")
    kernel.manager.restart_kernel(now=True)
    kernel.client.wait_for_ready(60)
    assert "Error" not in kernel.run(HOLD)
    assert LOST not in kernel.run("from gpukernel.jupyter import notebook as n\nprint(n.status())")
    assert [one.id for one in own_pool.live()] == [lease.id]


def test_numba_looks_again_after_it_was_told_that_there_is_no_gpu(start: Callable[..., Kernel]) -> None:
    first, second = start(1.0, wait=20), start()
    cell = second.cell(MEMORY)
    read_until(cell, "position 1")
    # Without the interrupt that front ends send with it, so Numba sees an error, which it keeps.
    asyncio.run(lease_manager().command(second.manager.kernel_id, "cancel", {}))
    assert "CudaSupportError" in "".join(cell)
    first.end()
    eventually(lambda: second.run(MEMORY).endswith("655\n"))


def test_a_restart_is_not_lost_with_the_place_in_the_queue(start: Callable[..., Kernel]) -> None:
    first, second = start(1.0, wait=20), start(wait=30)
    key = second.manager.kernel_id
    asyncio.run(lease_manager().command(key, "cancel", {}))

    import threading

    restart = threading.Thread(target=second.manager.restart_kernel, kwargs={"now": True})
    restart.start()
    eventually(
        lambda: any(one.state == "waiting" for one in asyncio.run(lease_manager().statuses(fresh=False)))
    )
    asyncio.run(lease_manager().command(key, "cancel", {}))
    restart.join(60)
    second.client.wait_for_ready(60)
    assert second.run("print(6 * 7)") == "42\n"
    first.end()
    assert second.run(MEMORY).endswith("655\n")


@pytest.mark.parametrize(
    ("words", "trouble"),
    [
        (
            "[CUresult.CUDA_ERROR_OUT_OF_MEMORY] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
            "memory",
        ),
        ("CUDA out of memory. Tried to allocate 800.00 MiB.", "memory"),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 838860800 bytes.", "memory"),
        ("OOM when allocating tensor with shape[209715200]", "memory"),
        ("cuMemAlloc failed: out of memory", "memory"),
        ("CUBLAS_STATUS_ALLOC_FAILED", "memory"),
        ("CUDA error: an illegal memory access was encountered", "fault"),
        ("CUDA error: device-side assert triggered", "fault"),
        ("INTERNAL: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure", "fault"),
        ("division by zero", ""),
        ("no memory of that", ""),
    ],
)
def test_frameworks_say_in_their_words_what_happened(words: str, trouble: str) -> None:
    error = RuntimeError(words)
    assert trouble_of(error) == trouble
    step = ValueError("the step failed")
    step.__cause__ = error
    assert trouble_of(step) == trouble
