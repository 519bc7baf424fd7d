"""Sessions of agents: what attached agents report of their workers and devices, and what follows from it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gpukernel.common.logs import fields, of_lease
from gpukernel.common.model import Device, Usage
from gpukernel.pool.domain.placement import MIB
from gpukernel.pool.leases.agent_orders import AgentOrders, AgentStream
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.leases.resizes import Resizes
from gpukernel.pool.scheduling import resize
from gpukernel.pool.store.store import Store

__all__ = ["AgentSessions"]

log = logging.getLogger(__name__)


class AgentSessions:
    """The agents that speak to one pool process, as its `LeaseManager` hears them."""

    def __init__(self, manager: LeaseManager) -> None:
        self._manager = manager

    @property
    def _store(self) -> Store:
        return self._manager.store

    @property
    def _orders(self) -> AgentOrders:
        return self._manager.orders

    @property
    def _resizes(self) -> Resizes:
        return self._manager.resizes

    def attach(
        self,
        server: str,
        agent: AgentStream,
        devices: list[Device],
        workers: dict[tuple[str, int], tuple[str, ...]],
        direct_machine: str = "",
    ) -> None:
        """Attach the agent of `server`, and reconcile what the pool expects with what runs there.

        Leases whose workers are gone end; workers whose leases are over or unknown are stopped.

        Parameters
        ----------
        workers
            The endpoints of the workers that run there, by lease and device index.
        direct_machine
            The identity of the agent's machine where it allows direct mode, else empty.
        """
        # First, so that `detach` marks the server away whatever fails below.
        self._orders.attach(server, agent)
        now = self._manager.now()
        self._store.servers.register(server, devices, self._manager.id, now, direct_machine)
        expected = {
            (lease.id, piece.device_index): (lease, piece)
            for lease, piece in self._store.leases.on_server(server)
        }
        self._orders.forget(server, {(lease.id, piece.device_id) for lease, piece in expected.values()})
        self._store.leases.forget_caps(server)
        for (lease_id, index), endpoints in workers.items():
            lease, piece = expected.pop((lease_id, index), (None, None))
            if lease is None or piece is None:
                agent.stop_worker(lease_id, index, "the pool knows nothing of this lease")
            elif lease.state in ("ending", "ended"):
                agent.stop_worker(lease_id, index, lease.end_reason)
            else:
                self._store.leases.worker_ready(lease_id, piece.device_id, endpoints, now)
                self._store.leases.renew([lease_id], now)
        for (lease_id, _), (_, piece) in expected.items():
            self._manager.worker_died(
                lease_id, piece.device_id, "its worker ended while the pool or its server was away"
            )
        self._orders.send_caps()
        self._manager.schedule()
        self._manager.places_changed()

    def detach(self, server: str, agent: AgentStream) -> None:
        """Mark the server of an agent away whose stream broke; its workers may well live on."""
        if self._orders.detach(server, agent):
            self._store.servers.mark_away(server, self._manager.id, self._manager.now())
            log.warning("away: its agent does not speak to this pool any more", extra=fields(server=server))
            self._manager.places_changed()

    def worker_ready(self, server: str, lease_id: str, index: int, endpoints: tuple[str, ...]) -> None:
        """Record that a worker listens; stop it where its lease is over by now."""
        lease = self._store.leases.worker_ready(lease_id, f"{server}/{index}", endpoints, self._manager.now())
        if lease is None or lease.state in ("ending", "ended"):
            reason = lease.end_reason if lease else "the lease is not known"
            self._orders.stop_worker(server, lease_id, index, reason)
        elif lease.state == "live":
            log.info("live", extra=of_lease(lease))
        self._manager.waiters.lease_changed(lease_id, lease)
        self._manager.on_change()

    def worker_ended(self, server: str, lease_id: str, index: int, reason: str) -> None:
        """Free the memory of a dead worker, and serve the queue."""
        self._manager.worker_died(lease_id, f"{server}/{index}", reason)
        self._manager.schedule()
        self._manager.changed()

    def worker_limited(
        self, server: str, lease_id: str, index: int, memory_bytes: int, done: bool, allocated: int
    ) -> None:
        """Record that a worker's cap is `memory_bytes`, or could not be lowered to that because `allocated` bytes are in use."""
        device_id = f"{server}/{index}"
        self._orders.cap_answered(lease_id, device_id, memory_bytes)
        if done:
            resize.capped(self._store, lease_id, device_id, memory_bytes, self._manager.now())
        else:
            used = -(-allocated // MIB)
            resize.give_up(
                self._store,
                lease_id,
                f"{used} MiB are allocated on {device_id}; the slice cannot shrink to {memory_bytes // MIB} MiB. "
                "Free memory first, or ask for at least that much.",
            )
        self._orders.send_caps()
        self._resizes.changed(lease_id)
        self._manager.schedule()
        self._manager.changed()

    def end_for(self, server: str, lease_id: str, reason: str) -> None:
        """End a lease with a slice on `server`, as its agent asks."""
        lease = self._store.leases.get(lease_id)
        if lease is not None and any(piece.server == server for piece in lease.slices):
            self._manager.end(lease_id, reason)

    def heartbeat(self, server: str, usage: dict[tuple[str, int], Usage]) -> None:
        """Record what the workers of `server` did; a connected program renews its lease."""
        self._store.leases.record_usage(server, usage)
        connected = [lease_id for (lease_id, _), figures in usage.items() if figures.connections]
        if connected:
            self._store.leases.renew(connected, self._manager.now())

    def faults(self, server: str, found: Mapping[int, str]) -> None:
        """Record which devices of `server` do not work now: they get no leases, and those that they have end."""
        broken = self._store.servers.note_faults(server, found)
        for lease, piece in self._store.leases.on_server(server) if broken else ():
            if piece.device_id in broken:
                self._manager.end(
                    lease.id, f"its device {piece.device_id} failed: {found[piece.device_index]}"
                )
        for device_id in broken:
            sentence = found[int(device_id.rpartition("/")[2])]
            log.error("failed: %s", sentence, extra=fields(server=server, device=device_id))
        if broken:
            self._manager.places_changed()
