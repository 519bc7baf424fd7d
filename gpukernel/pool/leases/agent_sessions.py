"""Sessions of agents: what attached agents report of their workers and devices, and what follows from it."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping

from gpukernel.common.logs import fields, of_lease
from gpukernel.common.model import Device, Lease, Rung, Slice, Usage
from gpukernel.pool.domain.fencing import NOBODY, Registration
from gpukernel.pool.domain.placement import MIB
from gpukernel.pool.leases.agent_orders import AgentOrders, AgentStream
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.leases.resizes import Resizes
from gpukernel.pool.scheduling import resize
from gpukernel.pool.store.device_reports import GONE, by_agent
from gpukernel.pool.store.servers import Attachment
from gpukernel.pool.store.store import Store

__all__ = ["AgentSessions"]

log = logging.getLogger(__name__)

LEAST_NOTICE, MOST_NOTICE = 1.0, 86_400.0
"""Bounds on the seconds that an agent may say its server has left."""


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
        workers: Mapping[tuple[str, str], tuple[str, ...]],
        direct_machine: str = "",
        new: Registration = NOBODY,
    ) -> Attachment:
        """Attach the agent of `server`, and reconcile what the pool expects with what runs there.

        Leases whose workers or devices are gone end; workers whose leases are over or unknown are stopped, and the server gets no new
        leases before they are dead.  Of an agent that cannot know all workers (`Registration.place`), those that it does not list
        stay fenced.  Another agent that spoke for the server is displaced.

        Parameters
        ----------
        workers
            The endpoints of the workers that run there, by lease and the device's id, as `Attachment.device` makes it of what an agent says.
        direct_machine
            The identity of the agent's machine where it allows direct mode, else empty.
        new
            Who the agent is.

        Raises
        ------
        Refused
            ``bound`` or ``rival``; nothing has changed then.
        LateRegistration
            Where the agent has to register again; nothing has changed then.
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
        self._manager.usage_reports.forget(server)
        # So that `detach` marks the server away whatever fails below.
        if (rival := self._orders.attach(server, agent)) is not None:
            same = attachment.before is not None and attachment.before.instance == new.instance
            rival.close("" if same else f"another agent speaks for GPU server {server} now")
        # An agent of an older version names devices by their numbers, whatever the books know of them.
        numbers = {f"{server}/{number}": device_id for number, device_id in attachment.devices.items()}
        workers = {(lease, numbers.get(device, device)): where for (lease, device), where in workers.items()}
        self._reconcile(attachment, agent, workers, now)
        self._orders.send_caps()
        self._manager.schedule()
        self._manager.places_changed()
        return attachment

    def _reconcile(
        self,
        attachment: Attachment,
        agent: AgentStream,
        workers: Mapping[tuple[str, str], tuple[str, ...]],
        now: float,
    ) -> None:
        server, strays = attachment.server, set()
        lost = {device.id: device.reason(server) for device in attachment.gone}
        fenced = self._store.leases.fenced_on(server)
        expected = {
            (lease.id, piece.device_id): (lease, piece)
            for lease, piece in self._store.leases.on_server(server)
        }
        self._orders.forget(server, {(lease.id, piece.device_id) for lease, piece in expected.values()})
        self._store.leases.forget_caps(server)
        for (lease_id, device_id), endpoints in workers.items():
            lease, _ = expected.pop((lease_id, device_id), (None, None))
            if lease is None:
                strays.add((lease_id, device_id))
                agent.stop_worker(lease_id, device_id, "the pool knows nothing of this lease")
                continue
            if (lease_id, device_id) in fenced:  # its own agent is back
                self._store.leases.fence(lease_id, device_id, None)
            if lease.state in ("ending", "ended"):
                self._orders.stop_worker(server, lease_id, device_id, lease.end_reason)
            elif device_id in lost:
                self._manager.end(lease_id, lost[device_id])
            elif not endpoints:  # it starts
                self._store.leases.confirm(lease_id, device_id)
                self._orders.is_started(lease_id, device_id)
            else:
                self._store.leases.worker_ready(server, lease_id, device_id, endpoints, now)
                self._store.leases.renew([lease_id], now)
                self._manager.waiters.lease_changed(lease_id)  # it may have become ready meanwhile
        self._orders.strays[server] = strays
        if workers and not strays:
            self._store.servers.settling(server, False)
        for lease_id, device_id in [worker for worker in expected if worker not in fenced]:
            lease, piece = expected[lease_id, device_id]
            if attachment.missing_are_dead and self._never_ordered(lease, piece) and device_id not in lost:
                self._orders.start(
                    lease, [piece]
                )  # the pool that granted it died before, or could not reach the agent
            elif attachment.missing_are_dead:
                dead = "its worker ended while the pool or its server was away"
                self._manager.worker_died(lease_id, device_id, lost.get(device_id, dead))
            else:
                assert attachment.before is not None
                self._store.leases.fence(lease_id, device_id, attachment.before.fenced_until)
                rival = f"another agent speaks for its GPU server {server} now"
                self._manager.end(lease_id, lost.get(device_id, rival))
        for device in attachment.gone:
            log.error("gone: %s", GONE, extra=fields(server=server, device=device.label))

    def _never_ordered(self, lease: Lease, piece: Slice) -> bool:
        """Return whether the order to start a worker has reached no agent, by what agents confirm."""
        starts = lease.state == "starting" and not piece.endpoints
        return starts and piece.server in self._store.leases.unconfirmed([lease.id]).get(lease.id, ())

    def confined(self, server: str, rungs: Iterable[Rung]) -> None:
        """Record what confines the workers of a server."""
        self._store.servers.note_confinement(server, rungs)

    def detach(self, server: str, agent: AgentStream) -> None:
        """Mark the server of an agent away whose stream broke; its workers may well live on."""
        if self._orders.detach(server, agent):
            self._store.servers.mark_away(server, self._manager.id, self._manager.steady())
            log.warning("away: its agent does not speak to this pool any more", extra=fields(server=server))
            self._manager.places_changed()

    def worker_ready(self, server: str, lease_id: str, device_id: str, endpoints: tuple[str, ...]) -> None:
        """Record that a worker listens; stop it where its lease is over by now."""
        steady = self._manager.steady()
        lease = self._store.leases.worker_ready(server, lease_id, device_id, endpoints, steady)
        if lease is None or lease.state in ("ending", "ended"):
            reason = lease.end_reason if lease else "the lease is not known"
            self._orders.stop_worker(server, lease_id, device_id, reason)
        elif lease.state == "live":
            log.info("live", extra=of_lease(lease))
        self._manager.waiters.lease_changed(lease_id, lease)

    def worker_ended(self, server: str, lease_id: str, device_id: str, reason: str) -> None:
        """Free the memory of a dead worker, and serve the queue."""
        self._orders.is_over(lease_id, device_id)
        if (strays := self._orders.strays.get(server)) and (lease_id, device_id) in strays:
            strays.discard((lease_id, device_id))
            if not strays:
                self._store.servers.settling(server, False)
        if self._is_there(server, lease_id):
            self._manager.worker_died(lease_id, device_id, reason)
        self._manager.watch.hand_over()
        self._manager.schedule()
        self._manager.places_changed()

    def worker_limited(
        self, server: str, lease_id: str, device_id: str, memory_bytes: int, done: bool, allocated: int
    ) -> None:
        """Record that a worker's cap is `memory_bytes`, or could not be lowered to that because `allocated` bytes are in use."""
        if (piece := self._piece(server, lease_id, device_id)) is None:
            return
        self._orders.cap_answered(lease_id, device_id, memory_bytes)
        if done:
            resize.capped(self._store, lease_id, device_id, memory_bytes, self._manager.now())
        else:
            used = -(-allocated // MIB)
            resize.give_up(
                self._store,
                lease_id,
                f"{used} MiB are allocated on {piece.label}; the slice cannot shrink to {memory_bytes // MIB} MiB. "
                "Free memory first, or ask for at least that much.",
            )
        self._orders.send_caps()
        self._resizes.changed(lease_id)
        self._manager.schedule()
        self._manager.places_changed()

    def end_for(self, server: str, lease_id: str, reason: str) -> None:
        """End a lease with a slice on `server`, as its agent asks."""
        if self._is_there(server, lease_id):
            self._manager.end(lease_id, reason)

    def _is_there(self, server: str, lease_id: str) -> bool:
        """Return whether a lease has a slice on `server`: nothing that its agent says counts for any other one."""
        return self._store.leases.is_on_server(lease_id, server)

    def _piece(self, server: str, lease_id: str, device_id: str) -> Slice | None:
        """Return the slice of a lease on a device of `server`, where it has one."""
        lease = self._store.leases.get(lease_id)
        pieces = lease.slices if lease is not None else ()
        return next((p for p in pieces if (p.server, p.device_id) == (server, device_id)), None)

    def speaks(self, server: str, agent: AgentStream) -> bool:
        """Return whether `agent` still speaks for `server`; what another one says does not count."""
        return self._orders.speaks(server, agent)

    def worker_starting(self, lease_id: str, device_id: str) -> None:
        """Record that a server has the order to start a worker."""
        self._store.leases.confirm(lease_id, device_id)

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

    def of_server(self, server: str, usage: dict[tuple[str, str], Usage]) -> dict[tuple[str, str], Usage]:
        """Return those of the figures that are of workers on `server`."""
        here = self._store.leases.workers_on(server)
        self._manager.usage_reports.keep(server, here)
        return {worker: figures for worker, figures in usage.items() if worker in here}

    def heartbeat(self, server: str, usage: Mapping[tuple[str, str], Usage]) -> None:
        """Record what workers of `server` did, by lease and device; a connected program renews its lease."""
        self._manager.usage_reports.record(server, usage, self._manager.steady())

    def leaving(self, server: str, seconds: float, reason: str) -> None:
        """Drain `server`, which ends in some seconds as its agent says; those who hold leases there are told until when."""
        left = min(max(seconds, LEAST_NOTICE), MOST_NOTICE) if math.isfinite(seconds) else LEAST_NOTICE
        held = self._manager.drain(server, by_agent(server), left)
        log.info("it ends in %.0f s with %d leases: %s", left, held, reason, extra=fields(server=server))

    def faults(self, server: str, found: Mapping[str, str]) -> None:
        """Record which devices of `server` do not work now, by id: they get no leases, and those that they have end."""
        broken = self._store.servers.note_faults(server, found)
        for lease, piece in self._store.leases.on_server(server) if broken else ():
            if piece.device_id in broken:
                self._manager.end(lease.id, f"its device {piece.label} failed: {found[piece.device_id]}")
        for device_id in broken:
            log.error("failed: %s", found[device_id], extra=fields(server=server, device=broken[device_id]))
        if broken:
            self._manager.places_changed()
