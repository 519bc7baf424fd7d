"""Leases inside of ceilings: who has the secret of a placed lease that is a ceiling leases its memory in parts.

Kubernetes gives a pod a claim; the claim's lease is the ceiling, and kernels in the pod lease inside of it.

Guarantees
----------
* All leases inside of a ceiling together have at most its memory on each of its devices, in the database's own books; each has a worker of
  its own that keeps it to its part.
* Nothing waits: the ceiling is one pod's, so who could give room back is the one who asks.
* A ceiling that ends takes the leases inside with it, in one transaction.
* Quotas and GPU-hours count the ceiling, which was admitted by its engine, and nothing of the leases inside.  A course in whose name
  somebody asks is one of theirs all the same.
"""

from __future__ import annotations

import hmac
import logging

from gpukernel.common.errors import Refused
from gpukernel.common.logs import of_lease
from gpukernel.common.model import Device, Holder, Lease, Slice, SliceRequest
from gpukernel.common.slice_request import check_request
from gpukernel.pool.domain.direct_mode import is_named
from gpukernel.pool.domain.placement import MIB, Placement, slice_bytes
from gpukernel.pool.leases.manager import DEFAULT_TTL, LONGEST_TTL, LeaseManager
from gpukernel.pool.leases.placed_leases import wait_for
from gpukernel.pool.store.database import Conflict

__all__ = ["LeasesInside"]

log = logging.getLogger(__name__)

START_SECONDS = 60.0
_NO_CEILING = "The pool has no live claim with this secret: the pod's claim is over, or no slice for kernels."


class LeasesInside:
    """The leases inside of ceilings, of one pool process whose other leases `manager` has."""

    def __init__(self, manager: LeaseManager) -> None:
        self._manager = manager
        self._store = manager.store

    async def acquire(
        self,
        ceiling: str,
        secret: str,
        key: str,
        request: SliceRequest,
        holder: Holder,
        ttl: float = 0.0,
        longest: float = 0.0,
    ) -> Lease:
        """Return a lease inside of a ceiling with its secret, once it is live; asking again with a key gives its living lease.

        Raises
        ------
        Refused
            ``no_ceiling`` where the secret is not that of a live one; ``no_such_course`` or ``not_a_member``; ``no_such_model``, ``too_large``, ``full`` or ``no_direct``;
            ``different`` where the key has a lease of another size or person; ``failed`` where it did not start.
        """
        _check(key, request, holder, ttl, longest)
        try:
            lease, fresh = self._granted(ceiling, secret, key, request, holder, ttl or DEFAULT_TTL, longest)
        except Conflict as conflict:  # a fault of this program: the database knew better
            log.error("the database refused a lease inside of %s: %s", ceiling, conflict)
            raise Refused("failed", "The pool's books do not agree; tell its administrator.") from None
        if fresh:
            log.info("granted inside of %s", ceiling, extra=of_lease(lease))
            self._manager.orders.start(lease, lease.slices)
            self._manager.watch.started(lease.id)
            self._manager.places_changed()
        lease = (
            await wait_for(self._manager, lease.id, START_SECONDS, lambda one: one.state != "starting")
            or lease
        )
        if lease.state != "live":
            self._manager.watch.forget_lease(lease.id)
            self._manager.end(lease.id, "its workers did not start in time")
            raise Refused("failed", f"No slice could be started: {lease.end_reason or 'it took too long'}.")
        return self._manager.shown(lease)

    def _granted(
        self,
        ceiling: str,
        secret: str,
        key: str,
        request: SliceRequest,
        holder: Holder,
        ttl: float,
        longest: float,
    ) -> tuple[Lease, bool]:
        """Return the lease of a key, and whether it was made now."""
        store, manager = self._store, self._manager
        with store.deciding() as (db, row):
            over = store.leases.get(ceiling)
            if not (
                over is not None
                and over.ceiling
                and over.state == "live"
                and hmac.compare_digest(over.secret.encode(), secret.encode())
            ):
                raise Refused("no_ceiling", _NO_CEILING)
            # Engines' keys have no spaces, so nobody takes the key of a claim, or of a kernel in another pod.
            own = f"inside {over.id} {key}"
            wanted = _parts(request, over)
            known = store.leases.get(store.deciders.living(db, over.decided_by, own))
            if known is not None:
                has = sorted(piece.memory_bytes for piece in known.slices)
                if known.holder.person != holder.person or has != sorted(size for _, size in wanted):
                    raise Refused("different", "This key has another lease; release it first.")
                return known, False
            placed = _placed(over, wanted)
            policy = store.policy.current(db, row.policy_version)
            role = policy.role(holder.course, holder.person)
            lease = store.leases.grant(
                db,
                policy,
                own,
                holder,
                role,
                placed,
                ttl,
                longest,
                manager.now(),
                manager.steady(),
                decided_by=over.decided_by,
                priority="",
                within=over.id,
            )
            return lease, True


def _check(key: str, request: SliceRequest, holder: Holder, ttl: float, longest: float) -> None:
    texts = (
        key,
        holder.person,
        holder.server,
        holder.course,
        holder.description,
        request.machine,
        request.server,
        request.device,
    )
    check_request(request, texts)
    if not key or not holder.person:
        raise Refused("invalid", "A request needs a key and a person.")
    if request.mode == "direct":
        raise Refused("no_direct", "Slices inside of a pod's claim are not in direct mode.")
    if not 0 <= ttl <= LONGEST_TTL:
        raise Refused(
            "invalid", f"A time to live of {ttl!r} s is not possible; it is at most {LONGEST_TTL:.0f} s."
        )
    if not (longest == 0 or 1 <= longest < 1e9):
        raise Refused("invalid", f"A longest time of {longest!r} s is not possible; it is at least 1 s.")


def _device(piece: Slice) -> Device:
    """Return the device of a ceiling's slice, as far as a placement needs it."""
    return Device(
        piece.device_id,
        piece.server,
        piece.device_index,
        piece.device_name,
        piece.device_memory_bytes,
        uuid=piece.uuid,
    )


def _parts(request: SliceRequest, over: Lease) -> list[tuple[Slice, int]]:
    """Return the slices of a ceiling that a request means, those with the most room first, and what it wants of each."""
    meant = [
        piece
        for piece in over.slices
        if request.model.lower() in piece.device_name.lower()
        and request.server.lower() in piece.server.lower()
        and (not request.device or is_named(request.device, piece.label, piece.uuid))
    ]
    if len(meant) < request.devices:
        models = ", ".join(sorted({piece.device_name for piece in over.slices}))
        raise Refused(
            "no_such_model",
            f"This pod's claim has {len(meant)} such devices, and {request.devices} are asked for; it has {models}.",
        )
    meant.sort(key=lambda piece: piece.lent_bytes - piece.reserve_bytes)
    return [(piece, slice_bytes(request, _device(piece))) for piece in meant[: request.devices]]


def _placed(over: Lease, wanted: list[tuple[Slice, int]]) -> list[Placement]:
    for piece, size in wanted:
        if size > piece.reserve_bytes:
            raise Refused(
                "too_large",
                f"{size // MIB} MiB are more than the {piece.reserve_bytes // MIB} MiB that this pod's claim has for kernels on {piece.label}.",
            )
        free = piece.reserve_bytes - piece.lent_bytes
        if size > free:
            raise Refused(
                "full",
                f"This pod's claim has {free // MIB} of {piece.reserve_bytes // MIB} MiB free on {piece.label}, not the {size // MIB} MiB "
                "that are asked for; end another kernel of this server first.",
            )
    return [Placement(_device(piece), size) for piece, size in wanted]
