"""The queue: who waits, in the database and in memory, and the decision about whom to serve.

A request that cannot be granted at once has a row in ``requests`` with a ticket, so that a pool that is started again, or
another pool on the same database, knows it.  The process that holds its call says every second that somebody still waits
for it; without that it keeps its place for `KEEP_PLACE` seconds, but gets nothing (nobody would take it).

`Line.decide` is the only place where leases are granted.  Its order and its rule about passing are those of
`gpukernel.pool.fairness`.  Its cost grows with what waits, but not with what is held: room is found in an index, quotas in running
totals, and only the `DEVICES_FOR_A_PROMISE` emptiest devices of a kind are looked at when a start has to be promised.
For direct mode only the devices of one machine are looked at.

Reservations (`gpukernel.pool.reservations`) come before that order: in its window, a course takes what is reserved for it whoever waits
further ahead, since nobody else could have it.  Everything else that it takes, it takes in the order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from gpukernel.pool import accounts
from gpukernel.pool.direct import Places, matching_in_mode
from gpukernel.pool.errors import Refused
from gpukernel.pool.fairness import Profile, fair_order, promise
from gpukernel.pool.model import Device, Holder, Lease, SliceRequest, Waiting
from gpukernel.pool.pins import Eviction, Pins, evictions
from gpukernel.pool.placement import MIB, DeviceClass, Placement, best_fit, slice_bytes
from gpukernel.pool.quota import Account, Claim, Standing, millionths, never, refusal
from gpukernel.pool.resizing import Queue
from gpukernel.pool.rules import Rules
from gpukernel.pool.schema import ledger, requests
from gpukernel.pool.sentences import say
from gpukernel.pool.statement import Statement
from gpukernel.pool.store import Store

__all__ = ["KEY_IN_USE", "Entry", "Granted", "Line", "reason_for_no_room"]

KEEP_PLACE = 60.0
ABSENT = 5.0
DEPTH = 200  # so many requests are looked at in one decision; those behind them wait for the next one
PROMISES = 16
DEVICES_FOR_A_PROMISE = 8
ENDS_FOR_A_PROMISE = 512
READ_AHEAD = 32
LOANS = 16
KEY_IN_USE = "This key is in use by somebody else."


_ALL = Statement(sa.select(requests).order_by(requests.c.ticket))
_ADD = Statement(requests.insert())
_REPLACE = Statement(
    requests.update()
    .where(requests.c.key == sa.bindparam("this"))
    .values({c.name: sa.bindparam(f"new_{c.name}") for c in requests.c})
)
_REMOVE = Statement(requests.delete().where(requests.c.key == sa.bindparam("this")))
_HERE = Statement(
    requests.update()
    .where(
        requests.c.pool == sa.bindparam("us"),
        requests.c.key.not_in(sa.bindparam("left", expanding=True)),
    )
    .values(seen=sa.bindparam("now"))
)
_LOST = Statement(sa.select(requests.c.key).where(requests.c.seen < sa.bindparam("before")))
_CHANGED = Statement(ledger.update().values(line_version=ledger.c.line_version + 1))
_TICKET = Statement(ledger.update().values(ticket=sa.bindparam("new")))


@dataclass(frozen=True)
class Entry:
    """One request that waits; `since` is when it came first, `seen` when somebody last waited for it."""

    key: str
    request: SliceRequest
    holder: Holder
    role: str
    ttl: float
    longest: float
    since: float
    pool: str
    seen: float
    size: int = 0  # devices' worth in millionths, on the largest device that it could get
    ticket: int = 0

    @property
    def course(self) -> str:
        return self.holder.course

    @property
    def accounts(self) -> tuple[Account, ...]:
        return accounts.accounts_of(self.holder.person, self.holder.course)


@dataclass
class _Walk:
    """What one decision has found so far: who must not be passed where."""

    now: float
    standings: dict[Account, Standing] = field(default_factory=dict)
    full: dict[Account, str] = field(default_factory=dict)  # quotas that somebody further ahead waits for
    closed: set[DeviceClass] = field(default_factory=set)  # kinds that somebody waits for without a promise
    profiles: dict[str, Profile] = field(default_factory=dict)  # devices on which something is promised
    # Read once until something is granted: the emptiest devices, and those on which nothing is promised.
    emptiest: dict[DeviceClass, list[Device]] = field(default_factory=dict)
    others: dict[str, Profile] = field(default_factory=dict)
    promises: int = 0
    places: Places = field(default_factory=Places)
    pins: Pins | None = None  # where something is reserved
    shut: dict[str, set[str]] = field(
        default_factory=dict
    )  # devices that a request of some course waits for alone
    # By which courses' requests, and for how long those would hold what they get.
    closed_by: dict[DeviceClass, set[tuple[str, float]]] = field(default_factory=dict)
    loans: int = 0  # tries of those behind to borrow what the others could not use
    reserved: str = ""  # why the first of those without a promise waits, where a reservation is the reason

    def room(self, kind: DeviceClass, device_id: str, size: int, length: float, course: str) -> str:
        """Why `size` more bytes of a device, for `length` seconds, are not to be had; empty where that disturbs nobody."""
        if self.own(kind, device_id, size, course):
            seen = self.seen(device_id, course, own=True)
        elif kind in self.closed:
            return say("Others wait for %(model)s", model=kind.name)
        else:
            seen = self.seen(device_id, course)
        if seen is None or seen.earliest(size, length, self.now) <= self.now:
            return ""
        reason = self.pins.reason([device_id], course, self.now + length) if self.pins else ""
        if reason:
            return say("The rest of %(device)s is %(reserved)s", device=device_id, reserved=reason)
        return say("Others wait for %(model)s", model=kind.name)

    def own(self, kind: DeviceClass, device_id: str, size: int, course: str) -> bool:
        """Whether `size` bytes of a device are kept for the course now, and none of its own requests further ahead waits for them."""
        if not self.pins or course in self.shut.get(device_id, ()):
            return False
        if any(whose == course for whose, _ in self.closed_by.get(kind, ())):
            return False
        self.load()
        pinned = self.pins.on(device_id)
        return pinned is not None and pinned.own(course, self.now) >= size

    def most_own(self, course: str) -> int:
        """The most bytes of one device that are kept for the course now."""
        self.load()
        pins = self.pins
        found = (pins.on(device_id) for device_id in pins.open_for(course, self.now)) if pins else ()
        return max((pinned.own(course, self.now) for pinned in found if pinned), default=0)

    def lent(self, kind: DeviceClass, device_id: str, size: int, length: float) -> bool:
        """Whether `size` bytes are of no use to any of those who closed a kind: they would have to leave for a window that a lease
        of `length` seconds does not reach.

        That is so where as much is left to them until its end as they could keep afterwards.
        """
        if device_id in self.shut or not self.closed_by.get(kind):
            return False
        end = self.now + length
        for course, theirs in self.closed_by[kind]:
            seen = self.seen(device_id, course)
            if seen is None or theirs <= length:
                return False
            if seen.room(self.now, end, self.now) - size < seen.room(end, self.now + theirs, self.now):
                return False
        return True

    def closes(self, kinds: list[DeviceClass]) -> bool:
        """Whether somebody waits for every kind without a promise."""
        return len(self.closed) >= len(kinds) and self.closed.issuperset(kinds)

    def load(self) -> None:
        """What lies on the pinned devices stands among the profiles from now on."""
        if self.pins:
            for device_id, profile in self.pins.profiles().items():
                self.profiles.setdefault(device_id, profile)

    def seen(
        self, device_id: str, course: str, *, lasting: bool = False, own: bool = False
    ) -> Profile | None:
        """A device as a request of the course has to see it: with what is promised and reserved there; None where that is nothing.

        Parameters
        ----------
        lasting
            With what reserving courses may still hold after their windows, as promises must count.
        own
            For what the course has reserved, nobody but itself can have shut the device.
        """
        pinned = self.pins.on(device_id) if self.pins else None
        if pinned is not None:
            self.load()
        profile = self.profiles.get(device_id)
        if profile is None:
            return None
        more = pinned.claims(self.now, course, lasting=lasting) if pinned else []
        if device_id in self.shut and not own:
            more = [*more, (self.now, math.inf, 2**62)]
        return Profile(device_id, profile.free, profile.ends, profile.taken + more) if more else profile

    def waited_for(self, whose: Iterable[Account]) -> str:
        """The sentence of somebody who waits for one of these quotas; empty where nobody does."""
        return next((self.full[account] for account in whose if account in self.full), "")

    def add(self, entry: Entry, claim: Claim) -> None:
        """What `entry` takes or is promised counts for those behind it."""
        for account in entry.accounts:
            old = self.standings[account]
            self.standings[account] = Standing(
                account,
                old.bounds,
                old.share + claim.share,
                old.memory + claim.memory,
                old.leases + 1,
                old.spent,
                old.role,
            )


@dataclass(frozen=True)
class Granted:
    """`fresh`: the lease was made now, so its workers have to be started."""

    key: str
    lease_id: str
    fresh: Lease | None = None


def claim_on(request: SliceRequest, kind: DeviceClass | Device, longest: float = 0.0) -> Claim:
    """What a request takes if all its slices lie on devices of one kind."""
    size = slice_bytes(request, kind)
    share = millionths(size / kind.memory_bytes)
    return Claim(share * request.devices, size * request.devices, share, longest)


class Line:
    """The queue as one pool process, `pool`, sees it."""

    def __init__(self, store: Store, pool: str) -> None:
        self._store = store
        self._pool = pool
        self._version = -1
        self._doubtful: set[str] = set()  # may have a lease that has not ended
        self._entries: dict[str, Entry] = {}
        self._order: list[str] = []
        self._places: dict[str, int] = {}
        self._starts: dict[str, float] = {}  # promised or, for a quota, the next period
        self._reasons: dict[str, str] = {}
        self._reserved: dict[str, str] = {}  # for whom the room is kept that a request could have

    # --- looking ---

    def order(self) -> list[Entry]:
        """Those who wait, in the order of the last decision."""
        return [self._entries[key] for key in self._order if key in self._entries]

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def place(self, key: str) -> int:
        """1 is next."""
        return self._places.get(key, len(self._entries))

    def start(self, key: str) -> float | None:
        """When a request starts at the latest, where promised ends of leases tell it."""
        return self._starts.get(key)

    def estimate(self, key: str, now: float) -> float:
        """Seconds until then, or -1."""
        start = self.start(key)
        return -1.0 if start is None else max(start - now, 0.0)

    def reason(self, key: str) -> str:
        """The quota that holds a request back; empty where it only waits for room."""
        return self._reasons.get(key, "")

    def reserved(self, key: str) -> str:
        """Whose reservation a request waits for, as the end of a sentence; empty where it does not."""
        return self._reserved.get(key, "")

    def waiting(self, now: float) -> list[Waiting]:
        return [
            Waiting(
                e.key,
                e.holder,
                e.request,
                place,
                e.since,
                self.estimate(e.key, now),
                self.reason(e.key) or self.reserved(e.key),
            )
            for place, e in enumerate(self.order(), 1)
        ]

    # --- the rows ---

    def _refresh(self, db: sa.Connection, version: int) -> None:
        if version != self._version or self._store.shared:  # others say for whom they wait
            self._entries = {row.key: _entry(row) for row in _ALL.rows(db)}
            self._doubtful |= set(self._entries)
            self._version = version

    def _changed(self, db: sa.Connection) -> None:
        _CHANGED.run(db)
        self._version += 1

    def _put(self, db: sa.Connection, entry: Entry, ticket: int) -> None:
        values = _values(entry)
        if entry.key in self._entries:
            _REPLACE.run(db, this=entry.key, **{f"new_{name}": value for name, value in values.items()})
        else:
            _ADD.run(db, **values)
            _TICKET.run(db, new=ticket)
        self._entries[entry.key] = entry
        self._changed(db)

    def _drop(self, db: sa.Connection, keys: Iterable[str]) -> None:
        gone = [key for key in keys if self._entries.pop(key, None) is not None]
        if gone:
            _REMOVE.each(db, [{"this": key} for key in gone])
            self._changed(db)

    def leave(self, key: str) -> None:
        """The request is given up; nothing where another process holds its call by now."""
        with self._store.deciding() as (db, row):
            self._refresh(db, row.line_version)
            if (entry := self._entries.get(key)) and entry.pool == self._pool:
                self._drop(db, [key])
        self._sort_again()

    def give_up(self, key: str) -> None:
        """The request goes, whichever process holds its call."""
        with self._store.deciding() as (db, row):
            self._refresh(db, row.line_version)
            self._drop(db, [key])
        self._sort_again()

    def still_here(self, keys: Iterable[str], now: float) -> None:
        """Somebody waits for these here; those for whom nobody has for long go."""
        here = set(keys)
        with self._store.deciding() as (db, row):
            self._refresh(db, row.line_version)
            left = [e.key for e in self._entries.values() if e.pool == self._pool and e.key not in here]
            _HERE.run(db, us=self._pool, left=left, now=now)
            self._drop(db, [lost.key for lost in _LOST.rows(db, before=now - KEEP_PLACE)])

    def known(self, shared: bool) -> bool:
        """Whether anybody may wait; with other pools on the database only a decision tells."""
        return shared or bool(self._entries) or self._version < 0

    def __len__(self) -> int:
        return len(self._entries)

    # --- deciding ---

    def decide(
        self,
        now: float,
        here: Iterable[str],
        newcomer: Entry | None = None,
        then: Callable[[sa.Connection, Rules, Queue], None] | None = None,
        *,
        own_key: bool = False,
    ) -> list[Granted]:
        """Grant everything that can be granted at `now`, in one transaction; `newcomer` waits if it gets nothing.

        Parameters
        ----------
        here
            Keys for which this process holds a call.
        own_key
            The newcomer gets no lease of its key's that is somebody else's.
        then
            Done in the same transaction for somebody who does not wait, with what those who wait leave; may raise `Refused`.

        Raises
        ------
        Refused
            Where the newcomer's course or quotas can never allow what it asks for, or its key is somebody else's; it does not
            wait then.
        Conflict
            When the database refused; nothing has changed then.
        """
        before = (self._version, dict(self._entries))
        try:
            with self._store.deciding() as (db, row):
                rules = self._store.rules(db, row.rules_version)
                kinds = self._store.classes(db, row.devices_version)
                places = self._store.places(db, row.devices_version)
                self._refresh(db, row.line_version)
                before = (self._version, dict(self._entries))
                if newcomer is not None:
                    old = self._entries.get(newcomer.key)  # perhaps of another pool's on this database
                    if own_key and old is not None and old.holder.person != newcomer.holder.person:
                        raise Refused("invalid", KEY_IN_USE)
                    self._doubtful.add(newcomer.key)
                    newcomer = self._admit(rules, kinds, places, newcomer, row.ticket + 1)
                walk = _Walk(now, places=places, pins=self._pins(db, rules, kinds, now))
                granted = self._serve(db, rules, kinds, walk, set(here), newcomer, own_key)
                if then is not None:
                    then(db, rules, walk)
                if newcomer is not None and newcomer.key not in {g.key for g in granted}:
                    self._put(db, newcomer, newcomer.ticket)
                self._drop(db, [g.key for g in granted])
        except BaseException:
            self._version, self._entries = before  # as in the database, which has gone back too
            raise
        self._places = {key: place for place, key in enumerate(self._order, 1)}
        return granted

    def _pins(self, db: sa.Connection, rules: Rules, kinds: list[DeviceClass], now: float) -> Pins | None:
        if not rules.reservations:
            return None
        pins = Pins(db, self._store, rules, now)
        pins.lay(kinds)
        return pins

    def make_room(self, now: float, within: float) -> tuple[list[Eviction], set[str]]:
        """As `gpukernel.pool.pins.evictions`, with pins that are up to date."""
        with self._store.deciding() as (db, row):
            rules = self._store.rules(db, row.rules_version)
            pins = self._pins(db, rules, self._store.classes(db, row.devices_version), now)
            return evictions(db, pins, now, within) if pins else ([], set())

    def _admit(
        self,
        rules: Rules,
        kinds: list[DeviceClass],
        places: Places,
        entry: Entry,
        ticket: int,
    ) -> Entry:
        fitting = matching_in_mode(entry.request, kinds, places)
        role = rules.role(entry.course, entry.holder.person)
        old = self._entries.get(entry.key)
        levels = [Standing(a, rules.bounds(a, role), role=role) for a in entry.accounts]
        hopeless = [never(claim_on(entry.request, kind, entry.longest), levels) for kind in fitting]
        if all(hopeless):
            assert hopeless[-1] is not None
            raise Refused("quota", hopeless[-1].sentence)
        return Entry(
            entry.key,
            entry.request,
            entry.holder,
            role,
            entry.ttl,
            entry.longest,
            old.since if old else entry.since,
            self._pool,
            entry.seen,
            _size(entry.request, fitting),
            old.ticket if old else ticket,
        )

    def _serve(
        self,
        db: sa.Connection,
        rules: Rules,
        kinds: list[DeviceClass],
        walk: _Walk,
        here: set[str],
        newcomer: Entry | None,
        own_key: bool,
    ) -> list[Granted]:
        entries = dict(self._entries)
        if newcomer is not None:
            entries[newcomer.key] = newcomer
            here.add(newcomer.key)
        self._starts, self._reasons, self._reserved = {}, {}, {}
        order = self._sorted(db, rules, entries)
        living = self._store.living(self._doubtful & set(entries), db) if self._doubtful else {}
        if own_key and newcomer is not None:
            person = newcomer.holder.person
            if living.get(newcomer.key, ("", "", person))[2] != person:
                raise Refused("invalid", KEY_IN_USE)
        granted = []
        ahead = 1
        looked_at = order[:DEPTH]
        if walk.pins:
            # What is reserved waits for nobody further ahead.
            own = (e for e in order[DEPTH:] if walk.pins.open_for(e.course, walk.now))
            looked_at += itertools.islice(own, DEPTH)
        for number, entry in enumerate(looked_at):
            if entry.key in living:
                lease_id, state, _ = living[entry.key]
                if state in ("starting", "live"):
                    granted.append(Granted(entry.key, lease_id))
                continue  # its old lease is ending: wait for that
            if entry.key not in here and entry.seen < walk.now - ABSENT:
                continue  # nobody would take it
            if walk.closes(kinds) and not self._may_yet(rules, entry, walk):
                self._reserved[entry.key] = walk.reserved
                continue  # only those with a lease or a reservation of their own can get anything now
            if any(account not in walk.standings for account in entry.accounts):
                self._read_standings(db, rules, looked_at[number : number + ahead], walk)
                ahead = min(2 * ahead, READ_AHEAD)  # most decisions end with the second one
            lease = self._try(db, rules, kinds, entry, walk)
            if lease is not None:
                granted.append(Granted(entry.key, lease.id, lease))
        self._doubtful = set(living)
        over = {g.key for g in granted}
        self._order = [e.key for e in order if e.key not in over]
        return granted

    @staticmethod
    def _may_yet(rules: Rules, entry: Entry, walk: _Walk) -> bool:
        """Whether something could be left for `entry` although others wait for every kind: its course's room, or what these cannot use."""
        if not walk.pins:
            return False
        if walk.pins.open_for(entry.course, walk.now) and walk.most_own(entry.course) > 0:
            return True
        return walk.loans < LOANS and rules.longest(entry.accounts, entry.role, entry.longest) is not None

    def _read_standings(self, db: sa.Connection, rules: Rules, entries: list[Entry], walk: _Walk) -> None:
        roles = {a: e.role for e in entries for a in e.accounts if a not in walk.standings}
        walk.standings |= accounts.standings(db, rules, list(roles), roles, walk.now)

    def _sorted(self, db: sa.Connection, rules: Rules, entries: dict[str, Entry]) -> list[Entry]:
        if len(entries) <= 1:
            return list(entries.values())
        names = {e.course for e in entries.values()}
        held = accounts.held_by_courses(db, list(names)) if len(names) > 1 else {}
        return fair_order(entries.values(), held, {name: rules.weight(name) for name in names})

    def _sort_again(self) -> None:
        self._order = [key for key in self._order if key in self._entries]
        self._places = {key: place for place, key in enumerate(self._order, 1)}

    def _try(
        self, db: sa.Connection, rules: Rules, kinds: list[DeviceClass], entry: Entry, walk: _Walk
    ) -> Lease | None:
        try:
            fitting = matching_in_mode(entry.request, kinds, walk.places)
        except Refused:
            return None  # its server is away for now
        allowed, refused = [], None
        for kind in fitting:
            claim = claim_on(entry.request, kind, entry.longest)
            levels = [walk.standings[account] for account in entry.accounts]
            why = refusal(claim, levels, walk.now, rules.term_begins, entry.request.model)
            if why is None:
                allowed.append(kind)
            else:
                refused = why
        waits_behind = next((a for a in entry.accounts if a in walk.full), None)
        if refused is not None and not allowed:
            self._reasons[entry.key] = refused.sentence
            if refused.until:
                self._starts[entry.key] = refused.until
            walk.full.setdefault(refused.account, refused.sentence)
            return None
        if waits_behind is not None:
            self._reasons[entry.key] = walk.full[waits_behind]
            return None
        span = rules.longest(entry.accounts, entry.role, entry.longest)
        length = math.inf if span is None else span
        placed, mode = self._own_room(db, entry, allowed, length, walk)
        if placed is None:
            placed, mode = self._room(db, entry, [k for k in allowed if k not in walk.closed], length, walk)
        if placed is None and walk.pins and walk.closed and math.isfinite(length) and walk.loans < LOANS:
            walk.loans += 1
            closed = [kind for kind in allowed if kind in walk.closed]
            placed, mode = self._room(db, entry, closed, length, walk, list(walk.pins.devices), "lent")
        if placed is None:
            if walk.pins and walk.closes(kinds):
                self._reserved[entry.key] = walk.reserved
            else:
                self._set_aside(db, entry, allowed, length, walk)
            return None
        claim = Claim(
            sum(millionths(p.memory_bytes / p.device.memory_bytes) for p in placed),
            sum(p.memory_bytes for p in placed),
            0,
        )
        lease = self._store.grant(
            db,
            rules,
            entry.key,
            entry.holder,
            entry.role,
            placed,
            entry.ttl,
            entry.longest,
            walk.now,
            mode,
            entry.request.user if mode == "direct" else 0,
        )
        walk.add(entry, claim)
        walk.emptiest, walk.others = {}, {}
        for piece in placed:
            if walk.pins:
                walk.pins.granted(entry.course, piece.device.id, piece.memory_bytes, walk.now + length)
            if profile := walk.profiles.get(piece.device.id):
                profile.free -= piece.memory_bytes
                if span is not None:
                    profile.ends.append((walk.now + span, piece.memory_bytes))
        return lease

    def _own_room(
        self, db: sa.Connection, entry: Entry, kinds: list[DeviceClass], length: float, walk: _Walk
    ) -> tuple[list[Placement] | None, str]:
        """The same, on what is reserved for the course of `entry`: if its window is open, whoever waits further ahead."""
        if not walk.pins or not (mine := walk.pins.open_for(entry.course, walk.now + length)):
            return None, ""
        least = min((slice_bytes(entry.request, kind) for kind in kinds), default=0)
        if walk.pins.open_for(entry.course, walk.now) and walk.most_own(entry.course) >= least:
            placed, mode = self._room(db, entry, kinds, length, walk, mine, "own")
            if placed is not None:
                return placed, mode
        # A lease that reaches into the window counts as what is reserved for it: so it lies there.
        kinds = [kind for kind in kinds if kind not in walk.closed]
        return self._room(db, entry, kinds, length, walk, mine) if kinds else (None, "")

    def _room(
        self,
        db: sa.Connection,
        entry: Entry,
        kinds: list[DeviceClass],
        length: float,
        walk: _Walk,
        among: list[str] | None = None,
        only: str = "",
    ) -> tuple[list[Placement] | None, str]:
        """Where, and in which mode, `entry` can start now without breaking a promise.

        `among`: on these devices only; `only`: and there only on what is its course's ``own``, or can be ``lent`` to it.
        """
        request = entry.request
        direct = replace(request, mode="direct")
        machine = walk.places.of(direct) if request.mode != "remote" else None

        def fitting(devices: Iterable[Device]) -> Iterable[Device]:
            found = (d for d in devices if among is None or d.id in among)
            return (d for d in found if self._undisturbed(entry, d, length, walk, only))

        if machine is not None:
            here = fitting(self._store.on_machine(db, machine, kinds))
            if placed := best_fit(request, here):
                return placed, "direct"
        if request.mode == "direct":
            return None, "direct"
        if request.server:
            servers = walk.places.named(request.server)
            return best_fit(request, fitting(self._store.on_machine(db, servers, kinds))), "remote"
        if among is not None:
            return best_fit(request, fitting(self._store.some(db, among, kinds))), "remote"
        found: list[Device] = []
        for kind in kinds:
            size = slice_bytes(request, kind)
            pinned = walk.pins.devices if walk.pins else ()
            most = request.devices + len(walk.profiles.keys() | pinned)
            # The fullest come first: of one kind the first that fit are the best, whatever else was looked at.
            found += itertools.islice(fitting(self._store.fullest(db, kind, size, most)), request.devices)
        return best_fit(request, found), "remote"

    @staticmethod
    def _undisturbed(entry: Entry, device: Device, length: float, walk: _Walk, only: str = "") -> bool:
        """Whether nothing is promised or reserved on a device that a slice of it would break."""
        size = slice_bytes(entry.request, device)
        kind = DeviceClass(device.name, device.memory_bytes)
        if only == "own" and not walk.own(kind, device.id, size, entry.course):
            return False
        if only == "lent" and not walk.lent(kind, device.id, size, length):
            return False
        pinned = walk.pins.on(device.id) if walk.pins else None
        if pinned is not None and device.id not in walk.profiles:
            free = device.memory_bytes - device.promised_bytes
            if free - size >= pinned.total(entry.course):
                return True  # without a look at what lies there
        seen = walk.seen(device.id, entry.course, own=only == "own")
        return seen is None or seen.earliest(size, length, walk.now) <= walk.now

    def _set_aside(
        self, db: sa.Connection, entry: Entry, kinds: list[DeviceClass], length: float, walk: _Walk
    ) -> None:
        """Promise a start where one is known; else close what `entry` waits for to those behind it."""
        open_kinds = [kind for kind in kinds if kind not in walk.closed]
        claims = [claim_on(entry.request, kind) for kind in kinds]
        # In its quotas it counts for the most that it may turn out to be.
        walk.add(entry, max(claims, key=lambda claim: claim.share))
        if walk.promises == PROMISES:
            self._close(entry, open_kinds, length, walk)
            return
        machine = walk.places.of(entry.request)
        if machine is not None:
            found = self._store.on_machine(db, machine, open_kinds)
        else:
            for kind in open_kinds:
                if kind not in walk.emptiest:
                    walk.emptiest[kind] = self._store.emptiest(db, kind, DEVICES_FOR_A_PROMISE)
            found = [device for kind in open_kinds for device in walk.emptiest[kind]]
        devices = {device.id: device for device in found}
        sizes = {device.id: slice_bytes(entry.request, device) for device in found}
        unknown = [i for i in devices if i not in walk.profiles and i not in walk.others]
        ends = self._store.ends(db, unknown, ENDS_FOR_A_PROMISE) if unknown else {}
        for device_id in unknown:
            walk.others[device_id] = Profile(
                device_id,
                devices[device_id].memory_bytes - devices[device_id].promised_bytes,
                # What is over its time already still has to be stopped.
                [(max(end, walk.now + 1), size) for end, size in ends.get(device_id, [])],
            )
        profiles = {i: walk.profiles.get(i) or walk.others[i] for i in devices}
        as_seen = [walk.seen(i, entry.course, lasting=True) or profiles[i] for i in devices]
        self._say_whose(entry, devices.values(), sizes, length, walk)
        when, chosen = promise(as_seen, sizes, entry.request.devices, length, walk.now)
        if math.isinf(when) and machine is None:
            self._close(entry, open_kinds, length, walk)
            return
        walk.promises += 1
        if math.isinf(when):
            # It waits for this place alone: nobody behind it gets anything there, but elsewhere.
            for device_id, profile in profiles.items():
                walk.profiles[device_id] = profile
                walk.shut.setdefault(device_id, set()).add(entry.course)
            return
        self._starts[entry.key] = when
        for one in chosen:
            profile = walk.profiles[one.device] = profiles[one.device]
            profile.taken.append((when, when + length, sizes[one.device]))

    def _close(self, entry: Entry, kinds: list[DeviceClass], length: float, walk: _Walk) -> None:
        walk.closed.update(kinds)
        for kind in kinds:
            walk.closed_by.setdefault(kind, set()).add((entry.course, length))
        walk.reserved = walk.reserved or self._reserved.get(entry.key, "")

    def _say_whose(
        self, entry: Entry, devices: Iterable[Device], sizes: dict[str, int], length: float, walk: _Walk
    ) -> None:
        """Note where only a reservation is in the way."""
        if not walk.pins:
            return
        free = [d for d in devices if d.memory_bytes - d.promised_bytes >= sizes[d.id]]
        reason = walk.pins.reason((d.id for d in free), entry.course, walk.now + length)
        if reason and len(free) >= entry.request.devices:
            self._reserved[entry.key] = reason


def _size(request: SliceRequest, kinds: list[DeviceClass]) -> int:
    largest = max(kinds, key=lambda kind: kind.memory_bytes)
    return claim_on(request, largest).share


def _values(entry: Entry) -> dict[str, Any]:
    request, holder = entry.request, entry.holder
    return {
        "key": entry.key,
        "ticket": entry.ticket,
        "person": holder.person,
        "server": holder.server,
        "course": holder.course,
        "role": entry.role,
        "description": holder.description,
        "share": request.share,
        "memory_bytes": request.memory_bytes,
        "devices": request.devices,
        "model": request.model,
        "mode": request.mode,
        "machine": request.machine,
        "on_server": request.server,
        "uid": request.user,
        "ttl_seconds": entry.ttl,
        "longest_seconds": entry.longest,
        "size": entry.size,
        "since": entry.since,
        "pool": entry.pool,
        "seen": entry.seen,
    }


def _entry(row: Any) -> Entry:
    return Entry(
        row.key,
        SliceRequest(
            row.share,
            row.memory_bytes,
            row.devices,
            row.model,
            row.mode,
            row.machine,
            row.uid,
            row.on_server,
        ),
        Holder(row.person, row.server, row.course, row.description),
        row.role,
        row.ttl_seconds,
        row.longest_seconds,
        row.since,
        row.pool,
        row.seen,
        row.size,
        row.ticket,
    )


def reason_for_no_room(request: SliceRequest, kinds: list[DeviceClass], free: int, kept: str = "") -> str:
    """The sentence for somebody who only waits for room.

    Parameters
    ----------
    free
        The most bytes that one device has.
    kept
        Whose reservation keeps them, as `Line.reserved` says it.
    """
    asked = f"{slice_bytes(request, kinds[0]) // MIB} MiB"
    figures: dict[str, object] = {
        "where": say("This machine") if request.mode == "direct" else say("The pool"),
        "size": say("%(n)s devices with %(size)s", n=request.devices, size=asked)
        if request.devices > 1
        else asked,
        "model": request.model or say("a device"),
    }
    if request.server:
        figures["where"] = say("A server named “%(name)s”", name=request.server)
    if kept:
        return say(
            "%(where)s has room for %(size)s of %(model)s, but it is %(reserved)s", reserved=kept, **figures
        )
    return say(
        "%(where)s has no room for %(size)s of %(model)s now (most free on one device: %(free)s MiB)",
        free=free // MIB,
        **figures,
    )
