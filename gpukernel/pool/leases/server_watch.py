"""The watch over GPU servers that say nothing: they are away, their memory stays fenced, and starts that they do not confirm go elsewhere.

The rules are in `gpukernel.pool.domain.fencing`; this room applies them with the pool's clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpukernel.common.errors import Refused
from gpukernel.common.logs import fields
from gpukernel.pool.domain.direct_mode import is_named
from gpukernel.pool.domain.fencing import QUIET_SECONDS, SILENT_SECONDS, START_SECONDS
from gpukernel.pool.domain.placement import classes, matching
from gpukernel.pool.leases.agent_orders import AgentOrders

if TYPE_CHECKING:
    from gpukernel.common.model import SliceRequest
    from gpukernel.pool.scheduling.request_queue import RequestQueue
    from gpukernel.pool.store.store import Store

__all__ = ["ServerWatch"]

log = logging.getLogger(__name__)

STALL_SECONDS = 3.0
"""The time between two looks after which this process, and no server, was the one that slept."""

AVOID_SECONDS = 30.0
"""Seconds for which a request gets no slice of a server that did not confirm a start for it."""


class ServerWatch:
    """The watch of one pool process over the servers whose agents speak to it.

    Parameters
    ----------
    end
        Ends a lease, given its id and the reason.
    free
        Frees the memory of a worker, given lease, device and the reason.
    """

    def __init__(
        self,
        store: Store,
        orders: AgentOrders,
        queue: RequestQueue,
        pool: str,
        end: Callable[[str, str], object],
        free: Callable[[str, str, str], object],
    ) -> None:
        self._store, self._orders, self._queue, self._pool = store, orders, queue, pool
        self._end, self._free = end, free
        self._looked = store.clock.steady()
        self._patient_until = (
            self._looked + SILENT_SECONDS
        )  # agents that were attached come back within this time
        self._starts: dict[
            str, float
        ] = {}  # leases that start, and until when their servers have to confirm it
        self._avoided: dict[str, dict[str, float]] = {}  # by key and server, until when
        self._unconfirmed: dict[
            str, tuple[str, ...]
        ] = {}  # leases that were given up since these servers did not

    # --- servers ---

    def look(self, steady: float) -> bool:
        """Mark silent servers away, free what no worker can hold any more, give up starts; return whether anything changed."""
        slept = steady - self._looked
        self._looked = steady
        if slept > STALL_SECONDS:  # what servers said meanwhile has not been read yet
            self._patient_until = steady + SILENT_SECONDS
            self._starts = {lease_id: until + slept for lease_id, until in self._starts.items()}
        changed = False
        if steady >= self._patient_until:
            for server in self._store.servers.silent(self._pool, steady - SILENT_SECONDS):
                self._store.servers.mark_silent(server, self._pool, steady)
                log.warning(
                    "away: nothing was heard of it for %.0f s", SILENT_SECONDS, extra=fields(server=server)
                )
                changed = True
            self._store.servers.note_quiet(self._pool, steady - QUIET_SECONDS)
            self._queue.quiet = frozenset(self._store.servers.quiet(steady - QUIET_SECONDS))
        for lease_id, device_id, server in self._store.leases.fences_over(steady):
            log.warning("free: no worker can live there", extra=fields(lease=lease_id, device=device_id))
            self._free(lease_id, device_id, f"its GPU server {server} was lost")
            changed = True
        self._check_starts(steady)
        return self.hand_over() or changed

    def hand_over(self) -> bool:
        """Give devices that wait for that, and are free, to their next deciders; return whether there were any."""
        labels = self._store.deciders.hand_over("pool", self._store.clock.now())
        for label in labels:
            log.info("another decides over %s now", label)
        return bool(labels)

    # --- starts ---

    def started(self, lease_id: str) -> None:
        """Expect the servers of a lease that a call here waits for to confirm that they start its workers."""
        self._starts[lease_id] = self._store.clock.steady() + START_SECONDS

    def _check_starts(self, steady: float) -> None:
        due = [lease_id for lease_id, until in self._starts.items() if until <= steady]
        unconfirmed = self._store.leases.unconfirmed(due)
        for lease_id in due:  # one that the database did not answer about is looked at again
            self._starts.pop(lease_id, None)
            if servers := unconfirmed.get(lease_id):
                self._unconfirmed[lease_id] = tuple(servers)
                self._end(lease_id, not_confirmed(servers))

    def try_elsewhere(self, lease_id: str, key: str, request: SliceRequest) -> str | None:
        """Have the request of a lease that could not start get none of the servers that are to blame.

        Returns
        -------
        str or None
            None where it may ask again; the reason why it cannot, which is empty where no server is to blame.
        """
        servers = self._unconfirmed.pop(lease_id, ())
        if not servers:
            return ""
        steady = self._store.clock.steady()
        known = self._avoided.setdefault(key, {})
        known.update(dict.fromkeys(servers, steady + AVOID_SECONDS))
        avoided = frozenset(server for server, until in known.items() if until > steady)
        self._queue.avoided[key] = avoided
        others = [
            device
            for device in self._store.devices.all()
            if device.server not in avoided
            and request.server.lower() in device.server.lower()
            and (not request.device or is_named(request.device, device.label, device.uuid))
        ]
        try:
            if request.mode == "direct":
                return not_confirmed(sorted(avoided))
            matching(request, classes(others))
        except Refused:
            return not_confirmed(sorted(avoided))
        return None

    def forget_lease(self, lease_id: str) -> None:
        """Forget which servers did not confirm a start, since nobody asks elsewhere for it."""
        self._starts.pop(lease_id, None)
        self._unconfirmed.pop(lease_id, None)

    def forget_key(self, key: str) -> None:
        """Forget which servers a request avoids, since it is over."""
        self._avoided.pop(key, None)
        self._queue.avoided.pop(key, None)


def not_confirmed(servers: list[str]) -> str:
    """Return the reason of a start that these servers did not confirm."""
    names = servers[0] if len(servers) == 1 else f"{', '.join(servers[:-1])} and {servers[-1]}"
    which = "GPU server" if len(servers) == 1 else "GPU servers"
    return f"{which} {names} did not confirm the start within {START_SECONDS:.0f} s"
