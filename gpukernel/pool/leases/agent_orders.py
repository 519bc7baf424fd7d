"""Orders to the agents that are attached to this pool process: start, stop, interrupt and cap workers, each given once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from gpukernel.common.model import Lease, Slice
from gpukernel.pool.scheduling import resize
from gpukernel.pool.store.store import Store

__all__ = ["AgentOrders", "AgentStream"]


class AgentStream(Protocol):
    """The pool's end of one attached agent."""

    def start_worker(self, lease: Lease, device_id: str, memory_bytes: int, weight: float) -> None:
        """Order a worker for a slice of `memory_bytes` with a compute weight."""
        ...

    def start_direct(self, lease: Lease, device_id: str, memory_bytes: int, weight: float) -> None:
        """Order the same for a slice in direct mode."""
        ...

    def stop_worker(self, lease_id: str, device_id: str, reason: str) -> None:
        """Order a worker to be stopped."""
        ...

    def interrupt_worker(self, lease_id: str, device_id: str) -> None:
        """Order a worker to end GPU work that does not end by itself."""
        ...

    def limit_worker(self, lease_id: str, device_id: str, memory_bytes: int, weight: float) -> None:
        """Order a new memory cap and weight for a worker."""
        ...

    def close(self, displaced: str = "") -> None:
        """End the stream; where another agent speaks for the server now, `displaced` says so, and the agent stops its workers."""
        ...


class AgentOrders:
    """The attached agents by the names of their servers, and what they have been told."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._agents: dict[str, AgentStream] = {}
        self._started: set[tuple[str, str]] = set()  # workers that an agent was told to start
        self._stopped: set[tuple[str, str]] = set()  # those that one was told to stop, and that it has
        self._capped: set[tuple[str, str, int]] = set()  # caps that an agent was told to set
        self.strays: dict[
            str, set[tuple[str, str]]
        ] = {}  # workers of a server, by lease and device, that the books do not have

    def servers(self) -> list[str]:
        """Return the names of the servers whose agents are attached here."""
        return list(self._agents)

    def attach(self, server: str, agent: AgentStream) -> AgentStream | None:
        """Send orders for `server` to `agent` from now on; return the agent to which they went until now."""
        before = self._agents.get(server)
        self._agents[server] = agent
        return None if before is agent else before

    def speaks(self, server: str, agent: AgentStream) -> bool:
        """Return whether orders for `server` go to `agent`."""
        return self._agents.get(server) is agent

    def forget(self, server: str, workers: Iterable[tuple[str, str]]) -> None:
        """Take the orders for `workers` (lease, device) of `server`, and those for its caps, for never given."""
        workers = set(workers)
        self._started -= workers
        self._stopped -= workers
        self._capped = {order for order in self._capped if not order[1].startswith(f"{server}/")}

    def drop(self, server: str, reason: str) -> None:
        """End the stream of a server whose agent is not listened to any more."""
        if (agent := self._agents.pop(server, None)) is not None:
            agent.close(reason)

    def attach_again(self) -> None:
        """End every stream, so that each agent attaches again and reports what it has."""
        for agent in self._agents.values():
            agent.close()

    def detach(self, server: str, agent: AgentStream) -> bool:
        """Send no more orders to `agent`; return False where another stream speaks for the server by now."""
        if self._agents.get(server) is not agent:
            return False
        del self._agents[server]
        return True

    def start(self, lease: Lease, pieces: Iterable[Slice]) -> None:
        """Have the workers of these slices started, where that was not ordered before."""
        for piece in pieces:
            agent = self._agents.get(piece.server)
            if agent is not None and (lease.id, piece.device_id) not in self._started:
                self._started.add((lease.id, piece.device_id))
                start = agent.start_direct if lease.mode == "direct" else agent.start_worker
                start(lease, piece.device_id, piece.memory_bytes, piece.weight)

    def is_started(self, lease_id: str, device_id: str) -> None:
        """Take the order to start a worker for given."""
        self._started.add((lease_id, device_id))

    def is_stopped(self, lease: Lease, piece: Slice) -> bool:
        """Return whether the agent of a slice's server was told here to stop its worker."""
        return (lease.id, piece.device_id) in self._stopped

    def is_over(self, lease_id: str, device_id: str) -> None:
        """Forget a worker, since its agent says that it has ended."""
        self._started.discard((lease_id, device_id))
        self._stopped.discard((lease_id, device_id))

    def stop(self, lease: Lease, reason: str) -> None:
        """Have all workers of a lease stopped."""
        for piece in lease.slices:
            self._started.discard((lease.id, piece.device_id))
            self.stop_worker(piece.server, lease.id, piece.device_id, reason)

    def stop_worker(self, server: str, lease_id: str, device_id: str, reason: str) -> None:
        """Have one worker stopped, where the agent of its server is attached here."""
        if agent := self._agents.get(server):
            self._stopped.add((lease_id, device_id))
            agent.stop_worker(lease_id, device_id, reason)

    def interrupt(self, lease: Lease) -> None:
        """Have the workers of a lease end GPU work that does not end by itself."""
        for piece in lease.slices:
            if agent := self._agents.get(piece.server):
                agent.interrupt_worker(lease.id, piece.device_id)

    def send_caps(self, leases: Iterable[str] | None = None) -> None:
        """Tell the agents which caps, of these leases or of all, are not what they should be."""
        for cap in resize.wrong_caps(self._store, self._agents, leases):
            order = (cap.lease_id, cap.device_id, cap.memory_bytes)
            if order not in self._capped:
                self._capped.add(order)
                agent = self._agents[cap.server]
                agent.limit_worker(cap.lease_id, cap.device_id, cap.memory_bytes, cap.weight)

    def cap_answered(self, lease_id: str, device_id: str, memory_bytes: int) -> None:
        """Forget the order of a cap, since the worker has answered."""
        self._capped.discard((lease_id, device_id, memory_bytes))
