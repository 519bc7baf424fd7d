"""Reservation placement: the devices that have room for each reservation, and what others may use of them meanwhile.

Guarantees
----------
* What a course has reserved on a device and does not hold there is kept from all others in its windows, whatever they ask for.
* Placements on one device whose windows overlap never add up to more than the device has.
* Where nothing is reserved, nothing is placed, read or looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa

from gpukernel.common.bounds import Account
from gpukernel.common.i18n import say
from gpukernel.common.model import Device
from gpukernel.common.policy import Policy
from gpukernel.common.reservations import Reservation, moment, windows
from gpukernel.pool.domain.fairness import AvailabilityProfile
from gpukernel.pool.domain.placement import MIB, DeviceClass
from gpukernel.pool.scheduling.reserved_device import Claimed, Demand, ReservedDevice, outstanding
from gpukernel.pool.store import schema
from gpukernel.pool.store.devices import PlacedDevices
from gpukernel.pool.store.lease_queries import LEASE_ENDS, STOPS
from gpukernel.pool.store.store import Store

__all__ = ["ReservationPlacements"]

MORE_CANDIDATES = 8  # devices that are looked at beyond twice those that a reservation needs
MOST_CANDIDATES = 1024
ENDS = 4096
_ENOUGH = 1e-6


class ReservationPlacements:
    """The placements of all reservations for one scheduling cycle; made in its transaction, where `place` may write.

    Parameters
    ----------
    now
        The time of the decision.
    version
        The ledger's ``devices_version``, where nothing has changed placements in the transaction: what is known since then is not read again.
    """

    def __init__(
        self, db: sa.Connection, store: Store, policy: Policy, now: float, version: int | None = None
    ) -> None:
        self._db, self._store, self._policy, self._now = db, store, policy, now
        self._version = version
        self.ahead = store.clock.ahead()  # of wall time: leases end in steady time
        self._windows = {
            r.id: tuple(windows(r, now, policy.timezone))
            for r in policy.reservations
            if r.course in policy.courses
        }
        self._on: dict[str, ReservedDevice] = {}
        self._profiles: dict[str, AvailabilityProfile] | None = None
        # By course: the devices with a placement, and when the first window there begins.
        self._of: dict[str, dict[str, float]] | None = None

    # --- what a decision asks ---

    def __bool__(self) -> bool:
        return bool(self._on)

    @property
    def devices(self) -> set[str]:
        """Return the ids of the devices with a placement."""
        return set(self._on)

    def on(self, device_id: str) -> ReservedDevice | None:
        """Return what is reserved on a device; ask for `profiles` before anything but `ReservedDevice.total`."""
        return self._on.get(device_id)

    def open_for(self, course: str, until: float) -> list[str]:
        """Return the devices with a placement of a course whose window is open or opens until a time."""
        if self._of is None:
            self._of = {}
            for device_id, reserved in self._on.items():
                for demand in reserved.demands:
                    if demand.windows:
                        begins = self._of.setdefault(demand.course, {})
                        begin = demand.windows[0][0]
                        begins[device_id] = min(begin, begins.get(device_id, begin))
        return [device_id for device_id, begin in self._of.get(course, {}).items() if begin <= until]

    def profiles(self) -> dict[str, AvailabilityProfile]:
        """Return the devices with a placement and the ends of the leases there; read when first asked for."""
        if self._profiles is None:
            self._profiles = self._read(list(self._on), self._on)
        return self._profiles

    def granted(self, course: str, device_id: str, size: int, until: float) -> None:
        """Count a new lease of the course on a device."""
        if (reserved := self._on.get(device_id)) and any(d.course == course for d in reserved.demands):
            reserved.hold(course, until, size)

    def reason(self, device_ids: Iterable[str], besides: str, until: float) -> str:
        """Return who has reserved devices, for somebody who would hold slices there until a time: whose window is open, or the next."""
        found = [
            first
            for device_id in device_ids
            if (reserved := self._on.get(device_id)) and (first := reserved.first(besides, until))
        ]
        if not found:
            return ""
        demand, (begin, end) = min(found, key=lambda one: (one[1], one[0].course))
        zone = self._policy.timezone
        if begin <= self._now:
            return say(
                "reserved for course %(course)s until %(end)s",
                course=demand.course,
                end=moment(end, self._now, zone),
            )
        return say(
            "reserved for course %(course)s from %(begin)s to %(end)s; a slice that ends before that may start",
            course=demand.course,
            begin=moment(begin, self._now, zone),
            end=moment(end, begin, zone),
        )

    # --- laying ---

    def read(self) -> None:
        """Read the placements as they are, and change nothing."""
        if self._windows:
            self._found()

    def place(self, kinds: Sequence[DeviceClass]) -> None:
        """Read the placements, and lay those anew whose window is over, whose device is gone, or that are short."""
        if self._windows:
            anew, places = self._found()
            for reservation in anew:
                self._place(reservation, kinds, places.get(reservation.id, {}))

    def _found(self) -> tuple[list[Reservation], PlacedDevices]:
        places = self._store.devices.reserved(self._db, self._version)
        anew = []
        for reservation in self._policy.reservations:
            ahead = self._windows.get(reservation.id)
            if not ahead:
                continue
            found = places.get(reservation.id, {})
            worth = sum(size / d.memory_bytes for d, size, _ in found.values() if d.available)
            if worth + _ENOUGH < reservation.devices or any(
                until != ahead[0][1] for _, _, until in found.values()
            ):
                anew.append(reservation)
            self._note(reservation, {d.id: size for d, size, _ in found.values() if d.available})
        return anew, places

    def _note(self, reservation: Reservation, sizes: Mapping[str, int]) -> None:
        course = Account("course", reservation.course)
        span = self._policy.longest([Account("pool"), course], "")
        ahead = self._windows[reservation.id]
        for device_id, size in sizes.items():
            demand = Demand(reservation, size, ahead, math.inf if span is None else span)
            self._on.setdefault(device_id, ReservedDevice()).demand(demand)
        self._of = None

    def _place(
        self,
        reservation: Reservation,
        kinds: Sequence[DeviceClass],
        before: Mapping[str, tuple[Device, int, float]],
    ) -> None:
        for reserved in self._on.values():
            reserved.drop(reservation.id)
        candidates = {d.id: d for d, _, _ in before.values() if d.available}
        for kind in kinds:
            if reservation.model.lower() in kind.name.lower():
                most = 2 * math.ceil(reservation.devices) + MORE_CANDIDATES + len(self._on)
                most = min(most, MOST_CANDIDATES)
                candidates |= {d.id: d for d in self._store.devices.emptiest(self._db, kind, most)}
        on = {device_id: self._on.get(device_id) or ReservedDevice() for device_id in candidates}
        profiles = self._read(list(candidates), on, reservation.course)
        rooms = {
            device_id: self._room(reservation, device, on[device_id], profiles[device_id])
            for device_id, device in candidates.items()
        }
        chosen = _fill(reservation.devices, candidates, rooms, set(before))
        if reservation.preempt:  # who is there leaves
            missing = reservation.devices - sum(
                size / candidates[i].memory_bytes for i, size in chosen.items()
            )
            beside_others = {
                i: self._left_by_others(reservation, candidates[i], on[i]) - chosen.get(i, 0)
                for i in candidates
            }
            for device_id, size in _fill(missing, candidates, beside_others, set(before)).items():
                chosen[device_id] = chosen.get(device_id, 0) + size
        until = self._windows[reservation.id][0][1]
        if {(i, size, until) for i, size in chosen.items()} != {
            (i, size, end) for i, (_, size, end) in before.items()
        }:
            self._store.devices.reserve(self._db, reservation.id, chosen, until)
        self._profiles = None
        self._note(reservation, chosen)
        self._on = {i: reserved for i, reserved in self._on.items() if reserved.demands}

    def _room(
        self, reservation: Reservation, device: Device, reserved: ReservedDevice, profile: AvailabilityProfile
    ) -> int:
        """Return the bytes that nobody else has or may claim in the windows of a reservation, its course's own leases being part of it."""
        claims = [
            claim
            for other in {d.course for d in reserved.demands}
            for claim in outstanding(
                [c for d in reserved.demands if d.course == other for c in _always(d)],
                reserved.held.get(other, ()),
                self._now,
            )
        ]
        seen = AvailabilityProfile(profile.device, profile.free, profile.ends, claims)
        room = device.memory_bytes
        for begin, end in self._windows[reservation.id]:
            begin = max(begin, self._now)
            held = sum(size for until, size in reserved.held.get(reservation.course, ()) if until > begin)
            # What the course holds counts for its other reservations first.
            other = sum(
                d.bytes
                for d in reserved.demands
                if d.course == reservation.course and any(b < end and begin < e for b, e in d.windows)
            )
            room = min(room, seen.room(begin, end, self._now) + max(held - other, 0))
        return max(room, 0)

    @staticmethod
    def _left_by_others(reservation: Reservation, device: Device, reserved: ReservedDevice) -> int:
        """Bytes that no other reservation wants, whoever holds them now."""
        return device.memory_bytes - sum(d.bytes for d in reserved.demands)

    def _read(
        self, device_ids: Sequence[str], on: Mapping[str, ReservedDevice], course: str = ""
    ) -> dict[str, AvailabilityProfile]:
        """Return profiles of devices, without what is reserved; put into `on` what reserving courses hold."""
        profiles = {}
        query = sa.select(schema.devices).where(schema.devices.c.id.in_(device_ids))
        for row in self._db.execute(query):
            profiles[row.id] = AvailabilityProfile(row.id, row.memory_bytes - row.promised_bytes)
        for device_id, found in self._store.leases.ends_on(self._db, device_ids, ENDS).items():
            # What is over its time already still has to be stopped.
            profiles[device_id].ends = [(max(end, self._now + 1), size) for end, size in found]
        courses = {d.course for reserved in on.values() for d in reserved.demands} | (
            {course} if course else set()
        )
        for reserved in on.values():
            reserved.forget_held()
        wanted = {"devices": list(device_ids), "courses": sorted(courses), "since": self._now - STOPS}
        for row in self._db.execute(_HELD, wanted):
            until = math.inf if row.ends is None else max(row.ends + self.ahead, self._now + 1)
            on[row.device_id].hold(row.course, until, row.size)
        return profiles


_IN_USE = (
    schema.IN_USE,
    schema.slices.c.device_id.in_(sa.bindparam("devices", expanding=True)),
)

_HELD = (
    sa.select(
        schema.slices.c.device_id,
        schema.leases.c.course,
        LEASE_ENDS,
        schema.slices.c.memory_bytes.label("size"),
    )
    .join(schema.leases, schema.leases.c.id == schema.slices.c.lease_id)
    .where(*_IN_USE, schema.leases.c.course.in_(sa.bindparam("courses", expanding=True)))
)


def _always(demand: Demand) -> list[Claimed]:
    return [(b, e, demand.bytes) for b, e in demand.windows]


def _fill(
    devices: float, candidates: Mapping[str, Device], rooms: Mapping[str, int], kept: set[str]
) -> dict[str, int]:
    """Return how many bytes of which devices make up that many devices' worth, or as much of it as there is room for.

    Whole devices first, where there is most room; the rest where it fits with the least to spare.
    """
    left, chosen = devices, {}
    free = {i: room for i, room in rooms.items() if room >= MIB}
    while left > _ENOUGH and free:

        def part(device_id: str) -> float:
            return free[device_id] / candidates[device_id].memory_bytes

        fits = [i for i in free if part(i) + _ENOUGH >= left]
        if fits:
            best = min(fits, key=lambda i: (part(i), i not in kept, i))
        else:
            best = min(free, key=lambda i: (-part(i), i not in kept, i))
        whole = candidates[best].memory_bytes
        size = min(free.pop(best), math.ceil(left * whole / MIB - _ENOUGH) * MIB)
        chosen[best] = size
        left -= size / whole
    return chosen
