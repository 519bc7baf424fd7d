"""Resize: the slices of a live lease become larger or smaller while its programs run.

The order of the steps keeps one promise: what a worker may allocate is never more than what is promised to it.

* **Growing** promises the memory first, in one transaction with the quotas, and raises the workers' caps then.
* **Shrinking** lowers the caps first.  A worker refuses where its programs have allocated more; then nothing changes.  Only when every
  worker of the lease has the lower cap is the memory free for others, in one transaction with the quotas.

What is wanted and what cap each worker has stand in the database.  A pool that dies in between, or an agent that is away, leaves
workers whose cap is not what it should be (`wrong_caps`); they are told again when the agent attaches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from gpukernel.common.bounds import Account, millionths
from gpukernel.common.errors import Refused
from gpukernel.common.i18n import say
from gpukernel.common.model import SliceRequest
from gpukernel.common.policy import Policy
from gpukernel.pool.domain.placement import MIB, DeviceClass, slice_bytes
from gpukernel.pool.domain.quota import Claim, Standing, never, refusal
from gpukernel.pool.store import quota_usage
from gpukernel.pool.store.connection.compiled_sql import send_queued
from gpukernel.pool.store.schema import devices, leases, servers, slices
from gpukernel.pool.store.store import Store
from gpukernel.pool.store.usage_log import open_span

__all__ = ["Cap", "Queue", "begin", "capped", "give_up", "grows", "outcome", "wrong_caps"]


@dataclass(frozen=True)
class Cap:
    """The cap that the worker of one slice should have."""

    lease_id: str
    server: str
    device_id: str
    memory_bytes: int
    weight: float


class Queue(Protocol):
    """The queue as a lease that would grow sees it: what those who wait leave to it."""

    def room(
        self, kind: DeviceClass, device_id: str, size: int, length: float, course: str, label: str
    ) -> str:
        """Return why `size` more bytes of a device cannot be the course's for `length` seconds; empty where that delays nobody.

        `label` is the device's name for people.
        """
        ...

    def waited_for(self, whose: Sequence[Account], priority: str) -> str:
        """Return the sentence of somebody who waits for one of these quotas; empty where nobody does."""
        ...


def _pieces(db: sa.Connection, lease_id: str) -> list[Any]:
    query = (
        sa.select(
            slices,
            devices.c.name,
            devices.c.server,
            devices.c.index.label("number"),
            devices.c.memory_bytes.label("whole"),
            devices.c.promised_bytes,
            devices.c.available,
            servers.c.away_since,
        )
        .join(devices, devices.c.id == slices.c.device_id)
        .join(servers, servers.c.name == devices.c.server)
        .where(slices.c.lease_id == lease_id)
        .order_by(slices.c.ordinal)
    )
    return list(db.execute(query))


def begin(
    store: Store,
    db: sa.Connection,
    policy: Policy,
    queue: Queue,
    lease_id: str,
    request: SliceRequest,
    now: float,
    steady: float,
) -> None:
    """Begin a resize; what is needed in addition is promised and charged at once.

    To be called in a `gpukernel.pool.store.store.Store.deciding` transaction, after those who wait have been served.

    Raises
    ------
    Refused
        ``not_live``, ``busy``, ``away``, ``invalid``, ``too_large``, ``quota`` or ``full``, with the figures; the
        transaction must be given up then.
    """
    row = db.execute(sa.select(leases).where(leases.c.id == lease_id)).first()
    if row is None or row.state != "live":
        raise Refused("not_live", say("Only a slice that is live can be resized."))
    if row.decided_by != "pool":
        raise Refused(
            "placed",
            say(
                "%(engine)s has placed this slice and says how large it is; the pool does not resize it.",
                engine=row.decided_by.capitalize(),
            ),
        )
    pieces = _pieces(db, lease_id)
    if any(piece.wanted_bytes is not None for piece in pieces):
        raise Refused("busy", say("This slice is being resized already; ask again in a moment."))
    for piece in pieces:
        if piece.away_since is not None:
            raise Refused(
                "away",
                say(
                    "GPU server %(server)s does not answer now; ask again when it does.", server=piece.server
                ),
            )
    sizes = {p.device_id: slice_bytes(request, DeviceClass(p.name, p.whole)) for p in pieces}
    for piece in pieces:
        if sizes[piece.device_id] > piece.whole:
            raise Refused(
                "too_large",
                say(
                    "%(size)s MiB do not fit on %(device)s, which has %(whole)s MiB.",
                    size=sizes[piece.device_id] // MIB,
                    device=f"{piece.server}/{piece.number}",
                    whole=piece.whole // MIB,
                ),
            )
    more = {p.device_id: sizes[p.device_id] - p.memory_bytes for p in pieces}
    db.execute(leases.update().where(leases.c.id == lease_id).values(resize_refusal=""))
    if not any(more.values()):
        return  # it has that size
    if any(grown > 0 for grown in more.values()):
        if any(grown < 0 for grown in more.values()):
            raise Refused(
                "invalid",
                "That would be more on one device and less on another; give a size in MiB that is the same for all.",
            )
        _promise_more(db, policy, queue, row, pieces, more, now, steady)
    for piece in pieces:
        size = sizes[piece.device_id]
        this = slices.c.lease_id == lease_id, slices.c.device_id == piece.device_id
        changed = {"memory_bytes": size, "weight": size / piece.whole} if more[piece.device_id] > 0 else {}
        db.execute(slices.update().where(*this).values(wanted_bytes=size, **changed))
    store.changes.lease("resized", lease_id)


def _promise_more(
    db: sa.Connection,
    policy: Policy,
    queue: Queue,
    row: Any,
    pieces: Iterable[Any],
    more: dict[str, int],
    now: float,
    steady: float,
) -> None:
    length = float("inf") if row.until is None else max(row.until - steady, 0.0)
    new_share = largest = 0
    for piece in pieces:
        share = millionths((piece.memory_bytes + more[piece.device_id]) / piece.whole)
        new_share, largest = new_share + share, max(largest, share)
    claim = Claim(
        new_share - row.share, sum(more.values()), largest, interactive=row.priority == "interactive"
    )
    whose = quota_usage.accounts_of(row.person, row.course)
    # As the database does, which would refuse what the role of the grant may have and the one of now may not.
    roles = dict.fromkeys(whose, policy.role_in(row.course, row.person) or row.role)
    # The lease is held already: only its size is new.
    levels = [
        replace(standing, leases=max(standing.leases - 1, 0))
        for standing in quota_usage.standings(db, policy, whose, roles, now).values()
    ]
    empty = [Standing(level.account, level.bounds, role=level.role) for level in levels]
    hopeless = never(
        Claim(new_share, row.memory_bytes + claim.memory, largest, interactive=claim.interactive), empty
    )
    if why := hopeless or refusal(claim, levels, now, policy.term_begins):
        raise Refused("quota", why.sentence)
    if sentence := queue.waited_for(whose, row.priority):
        raise Refused("quota", say("Others wait already: %(why)s", why=sentence))
    for piece in pieces:
        grown, free = more[piece.device_id], piece.whole - piece.promised_bytes
        label = f"{piece.server}/{piece.number}"
        if grown > free:
            raise Refused(
                "full",
                say(
                    "%(device)s has %(free)s MiB free; your slice of %(size)s MiB cannot grow by %(more)s MiB there.",
                    device=label,
                    free=free // MIB,
                    size=piece.memory_bytes // MIB,
                    more=grown // MIB,
                ),
            )
        kind = DeviceClass(piece.name, piece.whole)
        if held_back := queue.room(kind, piece.device_id, grown, length, row.course, label):
            raise Refused(
                "full",
                say(
                    "%(why)s; your slice stays at %(size)s MiB for now.",
                    why=held_back,
                    size=piece.memory_bytes // MIB,
                ),
            )
    try:
        for device_id, grown in more.items():
            db.execute(
                devices.update()
                .where(devices.c.id == device_id)
                .values(promised_bytes=devices.c.promised_bytes + grown)
            )
        quota_usage.charge(db, policy, whose, claim.share, claim.memory, now, leases=0, priority=row.priority)
        send_queued(db)
    except IntegrityError as error:
        raise Refused("failed", f"The pool's books do not agree: {error.orig}.") from None
    _write_size(db, row.id, new_share, row.memory_bytes + claim.memory, now)


def _write_size(db: sa.Connection, lease_id: str, share: int, memory: int, now: float) -> None:
    db.execute(leases.update().where(leases.c.id == lease_id).values(share=share, memory_bytes=memory))
    open_span(db, lease_id, share, memory, now)


def capped(store: Store, lease_id: str, device_id: str, memory_bytes: int, now: float) -> None:
    """Record a worker's new cap; the last one completes a resize and frees what is not needed any more."""
    with store.deciding() as (db, _):
        this = slices.c.lease_id == lease_id, slices.c.device_id == device_id
        db.execute(slices.update().where(*this).values(limit_bytes=memory_bytes))
        store.changes.lease("resized", lease_id)
        pieces = _pieces(db, lease_id)
        if not pieces or any(p.wanted_bytes is None or p.wanted_bytes != p.limit_bytes for p in pieces):
            return
        row = db.execute(sa.select(leases).where(leases.c.id == lease_id)).one()
        if row.state not in ("starting", "live"):
            return  # it frees everything anyway
        less = {p.device_id: p.memory_bytes - p.wanted_bytes for p in pieces}
        for piece in pieces:
            this = slices.c.lease_id == lease_id, slices.c.device_id == piece.device_id
            size = piece.wanted_bytes
            db.execute(
                slices.update()
                .where(*this)
                .values(memory_bytes=size, weight=size / piece.whole, wanted_bytes=None)
            )
            db.execute(
                devices.update()
                .where(devices.c.id == piece.device_id)
                .values(promised_bytes=devices.c.promised_bytes - less[piece.device_id])
            )
        if any(less.values()):
            share = sum(millionths(p.wanted_bytes / p.whole) for p in pieces)
            freed = sum(less.values())
            whose = quota_usage.accounts_of(row.person, row.course)
            quota_usage.refund(
                db,
                store.policy.current(db),
                whose,
                row.share - share,
                freed,
                now,
                leases=0,
                priority=row.priority,
            )
            _write_size(db, lease_id, share, row.memory_bytes - freed, now)


def give_up(store: Store, lease_id: str, sentence: str) -> None:
    """Give a resize up: the lease keeps the size that it has, and `sentence` says why."""
    with store.deciding() as (db, _):
        wanting = slices.c.lease_id == lease_id, slices.c.wanted_bytes.is_not(None)
        if db.execute(slices.update().where(*wanting).values(wanted_bytes=None)).rowcount:
            db.execute(leases.update().where(leases.c.id == lease_id).values(resize_refusal=sentence))
            store.changes.lease("resized", lease_id)


def grows(store: Store, lease_id: str) -> bool:
    """Return whether a resize is under way whose memory is promised already."""
    query = sa.select(slices.c.lease_id).where(
        slices.c.lease_id == lease_id, slices.c.wanted_bytes == slices.c.memory_bytes
    )
    with store.reader.connect() as db:
        return db.execute(query).first() is not None


def outcome(store: Store, lease_id: str) -> tuple[bool, str]:
    """Return whether a resize is still under way, and why the last one was refused, if it was."""
    wanting = sa.exists().where(slices.c.lease_id == lease_id, slices.c.wanted_bytes.is_not(None))
    query = sa.select(leases.c.state, leases.c.resize_refusal, wanting).where(leases.c.id == lease_id)
    with store.reader.connect() as db:
        row = db.execute(query).one()
    return row[0] == "live" and bool(row[2]), row[1]


def wrong_caps(store: Store, servers_here: Iterable[str], among: Iterable[str] | None = None) -> list[Cap]:
    """Return the workers on these servers, of these leases or of all, whose cap is not what it should be."""
    target = sa.func.coalesce(slices.c.wanted_bytes, slices.c.memory_bytes)
    query = (
        sa.select(
            slices.c.lease_id,
            devices.c.server,
            slices.c.device_id,
            target.label("size"),
            devices.c.memory_bytes.label("whole"),
        )
        .join(devices, devices.c.id == slices.c.device_id)
        .where(
            slices.c.worker == "ready",
            slices.c.limit_bytes != target,
            devices.c.server.in_(list(servers_here)),
        )
        .order_by(slices.c.lease_id, slices.c.ordinal)
    )
    if among is not None:
        query = query.where(slices.c.lease_id.in_(list(among)))
    with store.reader.connect() as db:
        return [
            Cap(row.lease_id, row.server, row.device_id, row.size, row.size / row.whole)
            for row in db.execute(query)
        ]
