"""Sessions of agents: what attached agents report of their workers and devices, and what follows from it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from gpukernel.common.logs import fields, of_lease
from gpukernel.common.model import Device, Rung, Usage
from gpukernel.pool.domain.fencing import NOBODY, Registration
from gpukernel.pool.domain.placement import MIB
from gpukernel.pool.leases.agent_orders import AgentOrders, AgentStream
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.leases.resizes import Resizes
from gpukernel.pool.scheduling import resize
from gpukernel.pool.store.servers import Attachment
from gpukernel.pool.store.store import Store

__all__ = ["AgentSessions"]

log = logging.getLogger(__name__)


class AgentSessions:
    """The agents that speak to one pool process, as its `LeaseManager` hears them."""

    def __init__(self, manager: LeaseManager) -> None:
        self._manager = manager

    @property
    def valid_seconds(self) -> float:
        """Return for how long workers may live without a word from the pool."""
        return self._manager.valid_seconds

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
        new: Registration = NOBODY,
    ) -> Attachment:
        """Attach the agent of `server`, and reconcile what the pool expects with what runs there.

        Leases whose workers are gone end; workers whose leases are over or unknown are stopped, and the server gets no new leases
        before they are dead.  Of an agent that cannot know all workers (`Registration.place`), those that it does not list
        stay fenced.  Another agent that spoke for the server is displaced.

        Parameters
        ----------
        workers
            The endpoints of the workers that run there, by lease and device index.
        direct_machine
            The identity of the agent's machine where it allows direct mode, else empty.
        new
            Who the agent is.

        Raises
        ------
        Refused
            ``bound`` or ``rival``; nothing has changed then.
        """
        now = self._manager.steady()
        attachment = self._store.servers.register(
            server,
            devices,
            self._manager.id,
            now,
            direct_machine,
            new,
            self._manager.valid_seconds,
            settling=bool(workers),  # until it is known whose they are
        )
        # So that `detach` marks the server away whatever fails below.
        if (rival := self._orders.attach(server, agent)) is not None:
            same = attachment.before is not None and attachment.before.instance == new.instance
            rival.close("" if same else f"another agent speaks for GPU server {server} now")
        self._reconcile(attachment, agent, workers, now)
        self._orders.send_caps()
        self._manager.schedule()
        self._manager.places_changed()
        return attachment

    def _reconcile(
        self,
        attachment: Attachment,
        agent: AgentStream,
        workers: Mapping[tuple[str, int], tuple[str, ...]],
        now: float,
    ) -> None:
        server, strays = attachment.server, set()
        fenced = self._store.leases.fenced_on(server)
        expected = {
            (lease.id, piece.device_index): (lease, piece)
            for lease, piece in self._store.leases.on_server(server)
        }
        self._orders.forget(server, {(lease.id, piece.device_id) for lease, piece in expected.values()})
        self._store.leases.forget_caps(server)
        for (lease_id, index), endpoints in workers.items():
            lease, piece = expected.pop((lease_id, index), (None, None))
            if lease is None or piece is None:
                strays.add((lease_id, index))
                agent.stop_worker(lease_id, index, "the pool knows nothing of this lease")
                continue
            if (lease_id, piece.device_id) in fenced:  # its own agent is back
                self._store.leases.fence(lease_id, piece.device_id, None)
            if lease.state in ("ending", "ended"):
                agent.stop_worker(lease_id, index, lease.end_reason)
            elif not endpoints:  # it starts
                self._store.leases.confirm(lease_id, piece.device_id)
                self._orders.is_started(lease_id, piece.device_id)
            else:
                self._store.leases.worker_ready(lease_id, piece.device_id, endpoints, now)
                self._store.leases.renew([lease_id], now)
        self._orders.strays[server] = strays
        if workers and not strays:
            self._store.servers.settling(server, False)
        for (lease_id, _), (_, piece) in expected.items():
            if attachment.missing_are_dead and (lease_id, piece.device_id) not in fenced:
                self._manager.worker_died(
                    lease_id, piece.device_id, "its worker ended while the pool or its server was away"
                )
            elif (lease_id, piece.device_id) not in fenced:
                assert attachment.before is not None
                self._store.leases.fence(lease_id, piece.device_id, attachment.before.fenced_until)
                self._manager.end(lease_id, f"another agent speaks for its GPU server {server} now")

    def confined(self, server: str, rungs: Iterable[Rung]) -> None:
        """Record what confines the workers of a server."""
        self._store.servers.note_confinement(server, rungs)

    def detach(self, server: str, agent: AgentStream) -> None:
        """Mark the server of an agent away whose stream broke; its workers may well live on."""
        if self._orders.detach(server, agent):
            self._store.servers.mark_away(server, self._manager.id, self._manager.steady())
            log.warning("away: its agent does not speak to this pool any more", extra=fields(server=server))
            self._manager.places_changed()

    def worker_ready(self, server: str, lease_id: str, index: int, endpoints: tuple[str, ...]) -> None:
        """Record that a worker listens; stop it where its lease is over by now."""
        lease = None
        if self._is_there(server, lease_id):
            lease = self._store.leases.worker_ready(
                lease_id, f"{server}/{index}", endpoints, self._manager.steady()
            )
        if lease is None or lease.state in ("ending", "ended"):
            reason = lease.end_reason if lease else "the lease is not known"
            self._orders.stop_worker(server, lease_id, index, reason)
        elif lease.state == "live":
            log.info("live", extra=of_lease(lease))
        self._manager.waiters.lease_changed(lease_id, lease)
        self._manager.on_change()

    def worker_ended(self, server: str, lease_id: str, index: int, reason: str) -> None:
        """Free the memory of a dead worker, and serve the queue."""
        if (strays := self._orders.strays.get(server)) and (lease_id, index) in strays:
            strays.discard((lease_id, index))
            if not strays:
                self._store.servers.settling(server, False)
        if self._is_there(server, lease_id):
            self._manager.worker_died(lease_id, f"{server}/{index}", reason)
        self._manager.schedule()
        self._manager.changed()

    def worker_limited(
        self, server: str, lease_id: str, index: int, memory_bytes: int, done: bool, allocated: int
    ) -> None:
        """Record that a worker's cap is `memory_bytes`, or could not be lowered to that because `allocated` bytes are in use."""
        if not self._is_there(server, lease_id):
            return
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
        if self._is_there(server, lease_id):
            self._manager.end(lease_id, reason)

    def _is_there(self, server: str, lease_id: str) -> bool:
        """Return whether a lease has a slice on `server`: nothing that its agent says counts for any other one."""
        lease = self._store.leases.get(lease_id)
        return lease is not None and any(piece.server == server for piece in lease.slices)

    def speaks(self, server: str, agent: AgentStream) -> bool:
        """Return whether `agent` still speaks for `server`; what another one says does not count."""
        return self._orders.speaks(server, agent)

    def worker_starting(self, server: str, lease_id: str, index: int) -> None:
        """Record that a server has the order to start a worker."""
        self._store.leases.confirm(lease_id, f"{server}/{index}")

    def heard(self, attachment: Attachment) -> float:
        """Record a sign of life; return for how long workers may live since it was sent, 0 where another agent speaks for the server."""
        manager = self._manager
        known = self._store.servers.heard(attachment, manager.id, manager.steady(), manager.valid_seconds)
        return manager.valid_seconds if known else 0.0

    def why_unheard(self, attachment: Attachment) -> str:
        """Return why signs of life of an agent do not count: another one speaks for its server; empty where it only has to attach again."""
        if not self._store.servers.displaced(attachment):
            return ""
        return f"another agent speaks for GPU server {attachment.server} now, or it was given up"

    def of_server(self, server: str, usage: dict[tuple[str, int], Usage]) -> dict[tuple[str, int], Usage]:
        """Return those of the figures that are of leases with a worker on `server`."""
        here = self._store.leases.ids_on(server)
        return {worker: figures for worker, figures in usage.items() if worker[0] in here}

    def heartbeat(self, server: str, usage: dict[tuple[str, int], Usage]) -> None:
        """Record what the workers of `server` did; a connected program renews its lease."""
        self._store.leases.record_usage(server, usage)
        connected = [lease_id for (lease_id, _), figures in usage.items() if figures.connections]
        if connected:
            self._store.leases.renew(connected, self._manager.steady())

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
