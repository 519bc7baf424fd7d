"""Estimates of what somebody would get now, told before they choose.  They promise nothing: a moment later others may have it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa

from gpukernel.common.bounds import millionths
from gpukernel.common.errors import Refused
from gpukernel.common.i18n import say, sentence_of
from gpukernel.common.model import Chance, SliceRequest, Waiting
from gpukernel.common.policy import Policy
from gpukernel.common.slice_request import class_rank
from gpukernel.pool.domain.fairness import AvailabilityProfile, promise
from gpukernel.pool.domain.placement import MIB, DeviceClass, check_request, matching, slice_bytes
from gpukernel.pool.domain.quota import Claim, Standing, claim_on, never, refusal
from gpukernel.pool.scheduling.backfill_state import ENDS_FOR_A_PROMISE
from gpukernel.pool.scheduling.reservation_placement import ReservationPlacements
from gpukernel.pool.scheduling.scheduling_cycle import DEVICES_FOR_A_PROMISE
from gpukernel.pool.store import quota_usage, schema
from gpukernel.pool.store.store import Store

__all__ = ["chances"]


def chances(
    db: sa.Connection,
    store: Store,
    kinds: list[DeviceClass],
    policy: Policy,
    person: str,
    course: str,
    requests: Sequence[SliceRequest],
    queue: Iterable[Waiting],
    now: float,
) -> list[Chance]:
    """Return one estimate for each of `requests` that `person` would make for `course`, in their order, on devices of `kinds`.

    Raises
    ------
    Refused
        There is no such course, or the person is not in it.
    """
    role = policy.role(course, person)
    levels = quota_usage.accounts_of(person, course)
    waiting = [one for one in queue if not one.reason]  # others wait for quotas, not for devices
    standings = quota_usage.standings(db, policy, levels, dict.fromkeys(levels, role), now)
    held = [standings[account] for account in levels]
    span = policy.longest(levels, role)
    length = math.inf if span is None else span
    placements = ReservationPlacements(db, store, policy, now)
    placements.read()
    result = []
    for request in requests:
        try:
            check_request(request)
            fitting, brought = _fitting(store, db, request, kinds)
        except Refused as no:
            result.append(Chance("refused", sentence=sentence_of(no)))
            continue
        size = min(slice_bytes(request, kind) for kind in fitting)
        kept, whose = _kept(placements, course, now, length)
        free = sum(_room(db, request, kind, kept) for kind in fitting)
        rank = class_rank(request.priority, 0.0)
        ahead = [
            one
            for one in waiting
            if _same(one.slice, fitting) and class_rank(one.slice.priority, now - one.since) <= rank
        ]
        claims = [claim_on(request, kind) for kind in fitting]
        hopeless = [never(claim, held) for claim in claims]
        free = min(free, max(_within(claim, held) for claim in claims))
        full = [refusal(claim, held, now, policy.term_begins, request.model) for claim in claims]
        found = Chance("free", size, free, len(ahead))
        if all(hopeless) and (why := hopeless[-1]) is not None:
            found = Chance("refused", size, free, len(ahead), sentence=why.sentence)
        elif all(full) and (why := full[-1]) is not None:
            seconds = why.until - now if why.until else -1.0
            found = Chance("wait", size, free, len(ahead), seconds, why.sentence)
        elif ahead:
            told = max(one.estimate_seconds for one in ahead)
            found = Chance("wait", size, free, len(ahead), told, _before(len(ahead)))
        elif not free:
            when = _first_end(store, db, request, fitting, length, now)
            sentence = say("All devices are in use now.")
            if request.model:
                sentence = say("All %(models)s are in use now.", models=request.model)
            if brought:
                sentence = say("There is none now; one comes for those who wait.")
            if whose and sum(_room(db, request, kind, {}) for kind in fitting):
                when, sentence = math.inf, say("What is free is %(reserved)s.", reserved=whose)
            found = Chance("wait", size, 0, 0, when - now if math.isfinite(when) else -1.0, sentence)
        result.append(found)
    return result


def _fitting(
    store: Store, db: sa.Connection, request: SliceRequest, kinds: list[DeviceClass]
) -> tuple[list[DeviceClass], bool]:
    """Return the kinds that a request could have, and whether they are none of `kinds` but announced by a supply; raises as `matching`."""
    try:
        return matching(request, kinds), False
    except Refused:
        if announced := store.devices.announced(db, store.clock.steady()):
            return matching(request, announced), True
        raise


def _within(claim: Claim, held: Iterable[Standing]) -> int:
    """Return how often `claim` fits into what the pool and the course may still hold together."""
    room = [sys.maxsize]
    for standing in held:
        if standing.account.kind in ("pool", "course"):
            bounds = standing.bounds
            if bounds.devices is not None and claim.share:
                room.append((millionths(bounds.devices) - standing.share) // claim.share)
            if bounds.interactive is not None and claim.interactive and claim.share:
                room.append((millionths(bounds.interactive) - standing.interactive) // claim.share)
            if bounds.memory_mib is not None and claim.memory:
                room.append((bounds.memory_mib * MIB - standing.memory) // claim.memory)
            if bounds.leases is not None:
                room.append(bounds.leases - standing.leases)
    return max(min(room), 0)


def _before(count: int) -> str:
    if count == 1:
        return say("One request waits before you.")
    return say("%(n)s requests wait before you.", n=count)


def _same(request: SliceRequest, kinds: Iterable[DeviceClass]) -> bool:
    return any(request.model.lower() in kind.name.lower() for kind in kinds)


def _kept(
    placements: ReservationPlacements, course: str, now: float, length: float
) -> tuple[dict[str, int], str]:
    """Return the bytes that others may have of devices with a reservation, and whose reservations those are."""
    free: dict[str, int] = {}
    for device_id, profile in (placements.profiles() if placements else {}).items():
        reserved = placements.on(device_id)
        claims = reserved.claims(now, course) if reserved else []
        seen = AvailabilityProfile(device_id, profile.free, profile.ends, claims)
        free[device_id] = max(seen.room(now, now + length, now), 0)
    return free, placements.reason(free, course, now + length)


def _room(db: sa.Connection, request: SliceRequest, kind: DeviceClass, kept: Mapping[str, int]) -> int:
    """Return how many slices fit on the devices of a kind now, of which some have less room than is free."""
    table = schema.devices
    size = slice_bytes(request, kind)
    left = table.c.memory_bytes - table.c.promised_bytes
    query = sa.select(table.c.id, left.label("free")).where(
        table.c.name == kind.name,
        table.c.memory_bytes == kind.memory_bytes,
        table.c.available,
        table.c.promised_bytes <= kind.memory_bytes - size,
    )
    return sum(min(int(row.free), kept.get(row.id, row.free)) // size for row in db.execute(query))


def _first_end(
    store: Store,
    db: sa.Connection,
    request: SliceRequest,
    kinds: Iterable[DeviceClass],
    length: float,
    now: float,
) -> float:
    """Return when leases that end by themselves leave room; infinity where none does."""
    devices = [d for kind in kinds for d in store.devices.emptiest(db, kind, DEVICES_FOR_A_PROMISE)]
    ends = store.leases.ends_on(db, [d.id for d in devices], ENDS_FOR_A_PROMISE)
    profiles = [
        AvailabilityProfile(d.id, d.memory_bytes - d.promised_bytes, list(ends.get(d.id, [])))
        for d in devices
    ]
    sizes = {d.id: slice_bytes(request, d) for d in devices}
    return promise(profiles, sizes, request.devices, length, now)[0]
