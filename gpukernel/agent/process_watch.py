"""The watch over the processes that use this server's devices, while direct mode is allowed.

Guarantees
----------
* A process that has been on a device for `STRANGER_SECONDS` and is neither a worker nor in a slice's table is stopped; the lease
  that it was started under ends with a sentence that says so.  Root's processes are only named in the log.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection

from gpukernel.agent.direct_slices import DirectSlices
from gpukernel.agent.inventory import Inventory
from gpukernel.agent.keys import LogFields, lease_only
from gpukernel.agent.processes import Processes, ProcessIdentity, identity
from gpukernel.agent.termination import terminate

__all__ = ["ProcessWatch"]

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
STRANGER_SECONDS = 2.0


class ProcessWatch:
    """A comparison of the processes that use the devices with those that may.

    Parameters
    ----------
    processes
        The devices' own account; None where direct mode is not allowed, and there is nothing to watch.
    slices
        The slices in direct mode, whose programs may be there.
    workers
        Gives the process ids of the workers now.
    clock
        Seconds, for `STRANGER_SECONDS`.
    about
        Gives what a log line about a slice carries.
    """

    def __init__(
        self,
        inventory: Inventory,
        processes: Processes | None,
        slices: DirectSlices,
        workers: Callable[[], Collection[int]],
        clock: Callable[[], float] = time.monotonic,
        about: LogFields = lease_only,
    ) -> None:
        self._inventory = inventory
        self._processes = processes
        self._slices = slices
        self._workers = workers
        self._clock = clock
        self._about = about
        self._strangers: dict[tuple[int, int, int], float] = {}  # first seen, by device, pid and start
        self._ending: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Look every `LOOK_SECONDS` until cancelled."""
        while self._processes is not None:
            try:
                self.look(self._processes)
            except Exception:  # a device's list that failed once must not end the watch
                log.exception("the devices' processes could not be looked at")
            await asyncio.sleep(LOOK_SECONDS)

    def look(self, processes: Processes) -> None:
        """Measure every slice's programs, and find the processes that belong to none."""
        workers = set(self._workers())
        seen: set[tuple[int, int, int]] = set()
        for device in self._inventory.devices:
            uses = {use.pid: use for use in processes.on(device.index)}
            claimed = self._slices.check(device.index, uses)
            for use in uses.values():
                if use.pid in workers or use.pid in claimed:
                    continue
                process = identity(use.pid)
                if process is not None:
                    seen.add((device.index, process.pid, process.start))
                    self._stranger(device.index, process)
        for gone in self._strangers.keys() - seen:
            del self._strangers[gone]

    def _stranger(self, index: int, process: ProcessIdentity) -> None:
        """Stop a process that has used the device without a slice for long enough."""
        known = (index, process.pid, process.start)
        since = self._strangers.setdefault(known, self._clock())
        if self._clock() - since < STRANGER_SECONDS:
            return
        lease_id = self._slices.lease_of(process)
        if process.user == 0 and os.getuid() == 0 and not lease_id:
            if self._clock() - since < STRANGER_SECONDS + LOOK_SECONDS:
                log.warning("root's process %d (%s) uses device %d", process.pid, process.command, index)
            return
        sentence = (
            f"{process.command} (process {process.pid}) used the device past its slice: it loaded the driver's "
            "library itself; leave LD_LIBRARY_PATH as the slice has it"
        )
        log.warning("stopped: %s", sentence, extra=self._about((lease_id, index)))
        if not self._slices.end((lease_id, index), sentence):
            task = asyncio.create_task(terminate([process]))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
