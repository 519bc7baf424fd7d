"""Where reservations lie: the devices that each is pinned to, and what others may use of those; see `gpukernel.pool.reservations`.

Guarantees
----------
* What a course has reserved on a device and does not hold there is kept from all others in its windows, whatever they ask for.
* Pins on one device whose windows overlap never add up to more than the device has.
* Nothing is laid, read or looked at where nothing is reserved.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from gpukernel.pool import schema
from gpukernel.pool.fairness import Profile
from gpukernel.pool.model import Device
from gpukernel.pool.placement import MIB, DeviceClass
from gpukernel.pool.quota import Account
from gpukernel.pool.reservations import Reservation, Window, moment, windows
from gpukernel.pool.rules import Rules
from gpukernel.pool.sentences import say
from gpukernel.pool.store import Store

__all__ = ["Demand", "Pinned", "Pins", "evictions", "outstanding"]

MORE_CANDIDATES = 8  # devices that are looked at beyond twice those that a reservation needs
MOST_CANDIDATES = 1024
ENDS = 4096
_ENOUGH = 1e-6

Claimed = tuple[float, float, int]
"""From when, until when, how many bytes; as in `gpukernel.pool.fairness.Profile.taken`."""


@dataclass(frozen=True)
class Demand:
    """What one reservation wants of one device: `bytes` in each of `windows`.

    `span`: for how long leases of the course go on after a window at most; infinite where they have no end.
    """

    reservation: Reservation
    bytes: int
    windows: tuple[Window, ...]
    span: float = math.inf

    @property
    def course(self) -> str:
        return self.reservation.course

    def claims(self, now: float, *, lasting: bool) -> list[Claimed]:
        """When others must leave the bytes alone.

        Parameters
        ----------
        lasting
            Also for as long as the course's leases may go on after a window: for promises, which must be kept.
        """
        if not lasting:
            # What has to leave when the window opens may be lent until then.
            return [(b, e, self.bytes) for b, e in self.windows if b <= now or not self.reservation.preempt]
        merged: list[Claimed] = []
        for begin, end in self.windows:
            if merged and begin <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], end + self.span), self.bytes)
            else:
                merged.append((begin, end + self.span, self.bytes))
        return merged


def outstanding(claims: Iterable[Claimed], held: Iterable[tuple[float, int]], now: float) -> list[Claimed]:
    """What of `claims` is left, from `now` on, beside what is held until some time."""
    ahead = [(max(b, now), e, size) for b, e, size in claims if e > now and size]
    kept = [(until, size) for until, size in held if until > now]
    times = sorted({t for b, e, _ in ahead for t in (b, e)} | {until for until, _ in kept})
    left: list[Claimed] = []
    for begin, end in itertools.pairwise(times):
        size = sum(s for b, e, s in ahead if b <= begin < e) - sum(s for until, s in kept if until > begin)
        if size > 0:
            left.append((begin, end, size))
    return left


@dataclass
class Pinned:
    """One device on which something is reserved; `held`: what those courses hold there, and until when."""

    demands: list[Demand] = field(default_factory=list)
    held: dict[str, list[tuple[float, int]]] = field(default_factory=dict)

    def claims(self, now: float, besides: str, *, lasting: bool = False) -> list[Claimed]:
        """What all courses but one may still claim."""
        by: dict[str, list[Claimed]] = {}
        for demand in self.demands:
            if demand.course != besides:
                by.setdefault(demand.course, []).extend(demand.claims(now, lasting=lasting))
        return [
            left
            for course, claims in by.items()
            for left in outstanding(claims, self.held.get(course, ()), now)
        ]

    def own(self, course: str, at: float) -> int:
        """Bytes that are kept for the course at a time and that it does not hold."""
        wanted = sum(
            d.bytes for d in self.demands if d.course == course and any(b <= at < e for b, e in d.windows)
        )
        return max(wanted - sum(size for until, size in self.held.get(course, ()) if until > at), 0)

    def total(self, besides: str) -> int:
        """The most that all courses but one can claim at any time."""
        return sum(d.bytes for d in self.demands if d.course != besides)

    def first(self, besides: str, until: float) -> tuple[Demand, Window] | None:
        """Whose window is or comes next before `until`."""
        ahead = [(w, d) for d in self.demands if d.course != besides for w in d.windows[:1] if w[0] < until]
        return min(((d, w) for w, d in ahead), key=lambda one: (one[1], one[0].course), default=None)


class Pins:
    """What is reserved, for one decision; made in its transaction, where `lay` may write.

    Parameters
    ----------
    now
        The time of the decision.
    """

    def __init__(self, db: sa.Connection, store: Store, rules: Rules, now: float) -> None:
        self._db, self._store, self._rules, self._now = db, store, rules, now
        self._windows = {
            r.id: tuple(windows(r, now, rules.timezone))
            for r in rules.reservations
            if r.course in rules.courses
        }
        self._on: dict[str, Pinned] = {}
        self._profiles: dict[str, Profile] | None = None

    # --- what a decision asks ---

    def __bool__(self) -> bool:
        return bool(self._on)

    @property
    def devices(self) -> set[str]:
        """The ids of those that something is pinned to."""
        return set(self._on)

    def on(self, device_id: str) -> Pinned | None:
        """What is reserved there; `profiles` must have been asked for before anything but `Pinned.total`."""
        return self._on.get(device_id)

    def open_for(self, course: str, until: float) -> list[str]:
        """Devices with a pin of a course whose window is open or opens until a time."""
        return [
            device_id
            for device_id, pinned in self._on.items()
            if any(d.course == course and d.windows and d.windows[0][0] <= until for d in pinned.demands)
        ]

    def profiles(self) -> dict[str, Profile]:
        """The pinned devices with the ends of what lies there now; read when first asked for."""
        if self._profiles is None:
            self._profiles = self._read(list(self._on), self._on)
        return self._profiles

    def granted(self, course: str, device_id: str, size: int, until: float) -> None:
        """The course has more of a device."""
        if (pinned := self._on.get(device_id)) and any(d.course == course for d in pinned.demands):
            pinned.held.setdefault(course, []).append((until, size))

    def reason(self, device_ids: Iterable[str], besides: str, until: float) -> str:
        """Who has reserved what of devices, for somebody who would hold slices there until a time: whose window is open, or the next."""
        found = [
            first
            for device_id in device_ids
            if (pinned := self._on.get(device_id)) and (first := pinned.first(besides, until))
        ]
        if not found:
            return ""
        demand, (begin, end) = min(found, key=lambda one: (one[1], one[0].course))
        zone = self._rules.timezone
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

    def look(self) -> None:
        """Read the pins as they are, and change nothing."""
        if self._windows:
            self._found()

    def lay(self, kinds: Sequence[DeviceClass]) -> None:
        """Read the pins, and lay those anew whose window is over, whose device is gone, or that are short."""
        if self._windows:
            anew, places = self._found()
            for reservation in anew:
                self._lay(reservation, kinds, places.get(reservation.id, {}))

    def _found(self) -> tuple[list[Reservation], dict[str, dict[str, tuple[Device, int, float]]]]:
        places: dict[str, dict[str, tuple[Device, int, float]]] = {}
        for row in self._db.execute(_PLACES):
            if row.reservation in self._windows:
                device = Device(
                    row.id,
                    row.server,
                    0,
                    row.name,
                    row.whole,
                    promised_bytes=row.promised_bytes,
                    available=row.available,
                )
                places.setdefault(row.reservation, {})[row.id] = (device, row.bytes, row.until)
        anew = []
        for reservation in self._rules.reservations:
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
        span = self._rules.longest([Account("pool"), course], "")
        ahead = self._windows[reservation.id]
        for device_id, size in sizes.items():
            demand = Demand(reservation, size, ahead, math.inf if span is None else span)
            self._on.setdefault(device_id, Pinned()).demands.append(demand)

    def _lay(
        self,
        reservation: Reservation,
        kinds: Sequence[DeviceClass],
        before: Mapping[str, tuple[Device, int, float]],
    ) -> None:
        for pinned in self._on.values():
            pinned.demands = [d for d in pinned.demands if d.reservation.id != reservation.id]
        candidates = {d.id: d for d, _, _ in before.values() if d.available}
        for kind in kinds:
            if reservation.model.lower() in kind.name.lower():
                most = 2 * math.ceil(reservation.devices) + MORE_CANDIDATES + len(self._on)
                most = min(most, MOST_CANDIDATES)
                candidates |= {d.id: d for d in self._store.emptiest(self._db, kind, most)}
        on = {device_id: self._on.get(device_id) or Pinned() for device_id in candidates}
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
            beside = {
                i: self._beside(reservation, candidates[i], on[i]) - chosen.get(i, 0) for i in candidates
            }
            for device_id, size in _fill(missing, candidates, beside, set(before)).items():
                chosen[device_id] = chosen.get(device_id, 0) + size
        until = self._windows[reservation.id][0][1]
        if {(i, size, until) for i, size in chosen.items()} != {
            (i, size, end) for i, (_, size, end) in before.items()
        }:
            self._db.execute(schema.pins.delete().where(schema.pins.c.reservation == reservation.id))
            rows = [
                {"reservation": reservation.id, "device": i, "bytes": size, "until": until}
                for i, size in chosen.items()
            ]
            if rows:
                self._db.execute(schema.pins.insert(), rows)
        self._profiles = None
        self._note(reservation, chosen)
        self._on = {i: pinned for i, pinned in self._on.items() if pinned.demands}

    def _room(self, reservation: Reservation, device: Device, pinned: Pinned, profile: Profile) -> int:
        """Bytes that nobody else has or may claim in the windows of a reservation, its course's own leases being part of it."""
        claims = [
            claim
            for other in {d.course for d in pinned.demands}
            for claim in outstanding(
                [c for d in pinned.demands if d.course == other for c in _always(d)],
                pinned.held.get(other, ()),
                self._now,
            )
        ]
        seen = Profile(profile.device, profile.free, profile.ends, claims)
        room = device.memory_bytes
        for begin, end in self._windows[reservation.id]:
            begin = max(begin, self._now)
            held = sum(size for until, size in pinned.held.get(reservation.course, ()) if until > begin)
            # What the course holds counts for its other reservations first.
            other = sum(
                d.bytes
                for d in pinned.demands
                if d.course == reservation.course and any(b < end and begin < e for b, e in d.windows)
            )
            room = min(room, seen.room(begin, end, self._now) + max(held - other, 0))
        return max(room, 0)

    @staticmethod
    def _beside(reservation: Reservation, device: Device, pinned: Pinned) -> int:
        """Bytes that no other reservation wants, whoever holds them now."""
        return device.memory_bytes - sum(d.bytes for d in pinned.demands)

    def _read(
        self, device_ids: Sequence[str], on: Mapping[str, Pinned], course: str = ""
    ) -> dict[str, Profile]:
        """Profiles of devices, without what is reserved; and into `on` what reserving courses hold."""
        profiles = {}
        query = sa.select(schema.devices).where(schema.devices.c.id.in_(device_ids))
        for row in self._db.execute(query):
            profiles[row.id] = Profile(row.id, row.memory_bytes - row.promised_bytes)
        for device_id, found in self._store.ends(self._db, device_ids, ENDS).items():
            # What is over its time already still has to be stopped.
            profiles[device_id].ends = [(max(end, self._now + 1), size) for end, size in found]
        courses = {d.course for pinned in on.values() for d in pinned.demands} | (
            {course} if course else set()
        )
        for pinned in on.values():
            pinned.held = {}
        wanted = {"devices": list(device_ids), "courses": sorted(courses)}
        for row in self._db.execute(_HELD, wanted):
            until = math.inf if row.until is None else max(row.until, self._now + 1)
            on[row.device_id].held.setdefault(row.course, []).append((until, row.size))
        return profiles


_PLACES = sa.select(
    schema.pins.c.reservation,
    schema.pins.c.bytes,
    schema.pins.c.until,
    schema.devices.c.id,
    schema.devices.c.server,
    schema.devices.c.name,
    schema.devices.c.memory_bytes.label("whole"),
    schema.devices.c.promised_bytes,
    schema.devices.c.available,
).join(schema.devices, schema.devices.c.id == schema.pins.c.device)

_IN_USE = (
    schema.IN_USE,
    schema.slices.c.device_id.in_(sa.bindparam("devices", expanding=True)),
)

_HELD = (
    sa.select(
        schema.slices.c.device_id,
        schema.leases.c.course,
        schema.leases.c.until,
        sa.func.sum(schema.slices.c.memory_bytes).label("size"),
    )
    .join(schema.leases, schema.leases.c.id == schema.slices.c.lease_id)
    .where(*_IN_USE, schema.leases.c.course.in_(sa.bindparam("courses", expanding=True)))
    .group_by(schema.slices.c.device_id, schema.leases.c.course, schema.leases.c.until)
)

_LEASES_THERE = (
    sa.select(
        schema.leases.c.id,
        schema.leases.c.course,
        schema.leases.c.until,
        schema.leases.c.notice,
        schema.slices.c.device_id,
        schema.slices.c.memory_bytes,
    )
    .join(schema.leases, schema.leases.c.id == schema.slices.c.lease_id)
    .where(*_IN_USE, schema.LIVING)
    .order_by(schema.leases.c.epoch.desc())
)


def _always(demand: Demand) -> list[Claimed]:
    return [(b, e, demand.bytes) for b, e in demand.windows]


def _fill(
    devices: float, candidates: Mapping[str, Device], rooms: Mapping[str, int], kept: set[str]
) -> dict[str, int]:
    """How many bytes of which devices make up that many devices' worth, or as much of it as there is room for.

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


@dataclass(frozen=True)
class Eviction:
    """A lease that is in the way of a reservation that preempts: at `when` it has to be gone."""

    lease_id: str
    course: str
    when: float


def evictions(db: sa.Connection, pins: Pins, now: float, within: float) -> tuple[list[Eviction], set[str]]:
    """The leases that have to leave for windows that are open or open `within` seconds, the newest first; and, of all that lie on
    those devices, which do not have to."""
    there: dict[str, float] = {}
    for device_id in pins.devices:
        pinned = pins.on(device_id)
        assert pinned is not None
        opens = [
            d.windows[0][0]
            for d in pinned.demands
            if d.reservation.preempt and d.windows and d.windows[0][0] <= now + within
        ]
        if opens:
            there[device_id] = max(now, min(opens))
    if not there:
        return [], set()
    profiles = pins.profiles()
    leave: dict[str, Eviction] = {}
    stay: set[str] = set()
    missing: dict[str, int] = {}
    whose: dict[str, str] = {}
    for device_id, at in there.items():
        pinned = pins.on(device_id)
        assert pinned is not None
        entitled = {d.course for d in pinned.demands if any(b <= at < e for b, e in d.windows)}
        freed = sum(size for end, size in profiles[device_id].ends if end <= at)
        missing[device_id] = (
            sum(pinned.own(course, at) for course in entitled) - profiles[device_id].free - freed
        )
        whose[device_id] = min(
            d.course
            for d in pinned.demands
            if d.reservation.preempt and any(b <= at < e for b, e in d.windows)
        )
    for row in db.execute(_LEASES_THERE, {"devices": list(there)}):
        pinned, at = pins.on(row.device_id), there[row.device_id]
        assert pinned is not None
        entitled = {d.course for d in pinned.demands if any(b <= at < e for b, e in d.windows)}
        if row.id in leave:
            missing[row.device_id] -= row.memory_bytes
        elif (
            row.course in entitled
            or missing[row.device_id] <= 0
            or (row.until is not None and row.until <= at)
        ):
            stay.add(row.id)
        else:
            missing[row.device_id] -= row.memory_bytes
            leave[row.id] = Eviction(row.id, whose[row.device_id], at)
    return list(leave.values()), stay - set(leave)
