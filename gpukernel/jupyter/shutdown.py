"""The shutdown of a Jupyter server while kernels of it are starting.

jupyter_client (8.10) counts a kernel whose start is under way, or has failed, among those to shut down; jupyter_server (2.21)
knows only kernels that have started, answers 404 to its own request, and then neither ends nor listens; where no other kernel
runs it ends, and leaves the one behind that was starting.  Starts that wait for a slice take long enough to meet that often, and
one that the pool refuses leaves its mark for as long as the server lives.  A restart that is under way makes the shutdown of all
kernels fail, since it asks a future that is not done for its exception.  So starts and restarts end first.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpukernel.jupyter.lease_manager import KernelLeaseManager

__all__ = ["end_starts"]

STARTING_SECONDS = 5.0
"""The time that a start which needs nothing more from the pool may take to come to its end."""


async def end_starts(kernels: Any, leases: KernelLeaseManager) -> None:
    """Give up what waits for a slice, let other starts and restarts of `kernels` come to their end, and have failed ones forgotten."""
    await leases.give_up("This Jupyter server is stopping.")
    pending: dict[str, asyncio.Future[None]] = getattr(kernels, "_pending_kernels", {})
    starts = {kernel: task for kernel, task in pending.items() if kernel not in kernels}
    if starts:
        await asyncio.wait(starts.values(), timeout=STARTING_SECONDS)
    for kernel, task in starts.items():
        if kernel not in kernels:
            task.cancel()
            pending.pop(kernel, None)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STARTING_SECONDS):
            while restarts := _under_way(kernels):
                await asyncio.wait(restarts)
    for restart in _under_way(kernels):
        restart.cancel()


def _under_way(kernels: Any) -> list[asyncio.Future[None]]:
    """Return the futures of kernels that are being started anew; each step of a restart has its own."""
    found = [kernels.get_kernel(kernel).ready for kernel in kernels.list_kernel_ids()]
    return [one for one in found if asyncio.isfuture(one) and not one.done()]
