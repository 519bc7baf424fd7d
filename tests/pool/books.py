"""The invariants of the pool's books at any moment, whoever died; computed from the tables row by row, without the pool's code."""

from __future__ import annotations

import functools
import json
from collections import defaultdict, namedtuple
from collections.abc import Container, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from gpukernel.common.bounds import Bounds
from gpukernel.common.policy import Policy
from gpukernel.common.reservations import windows
from gpukernel.pool.store import ceilings, quota_usage
from gpukernel.pool.store.store import Store

__all__ = [
    "check_books",
    "check_giving_way",
    "check_heals_nothing",
    "check_held_back",
    "check_placements",
    "naive_order",
    "rows",
]


@functools.cache
def _kind(table: str, columns: tuple[str, ...]) -> Any:
    return namedtuple(table, columns)


def rows(store: Store, *tables: str) -> list[list[Any]]:
    """All rows of some tables at one moment, straight from the driver: what is looked at after every step may not take long."""
    found = []
    with store.reader.connect() as db:
        cursor = db.connection.cursor()
        for table in tables:
            cursor.execute(f"SELECT * FROM {table}")
            kind = _kind(table, tuple(column[0] for column in cursor.description))
            found.append([kind._make(row) for row in cursor.fetchall()])
        cursor.close()
    return found


def check_books(store: Store, caps: Mapping[tuple[str, str], int], policy: Policy | None = None) -> None:
    """Fail where memory is promised twice, a figure is not the sum of its parts, or a lease is lost or doubled.

    Parameters
    ----------
    caps
        What each living worker may allocate, by lease and device id: the truth outside of the pool.
    rules
        Quotas that nothing may exceed, where they were never lowered.
    """
    device_rows, lease_rows, pieces, books, spans = rows(
        store, "devices", "leases", "slices", "quota_usage", "usage_log"
    )
    devices = {row.id: row for row in device_rows}
    leases = {row.id: row for row in lease_rows}
    promised: dict[str, int] = defaultdict(int)
    sizes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    held: dict[tuple[str, str], int] = {}
    for piece in pieces:
        whole = devices[piece.device_id].memory_bytes
        sizes[piece.lease_id].append((piece.memory_bytes, round(piece.memory_bytes / whole * 1_000_000)))
        if piece.worker != "gone":
            promised[piece.device_id] += piece.memory_bytes
            held[piece.lease_id, piece.device_id] = piece.memory_bytes
    for device in devices.values():
        assert device.promised_bytes == promised[device.id] <= device.memory_bytes, device.id
    for worker, cap in caps.items():
        assert cap <= held.get(worker, 0), f"worker {worker} may allocate what is not promised to it"
    totals: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    placed: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])  # by engines
    open_of: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for span in spans:
        if span.ends is None:
            open_of[span.lease_id].append((span.share, span.memory_bytes))
    holding = {lease_id for lease_id, _ in held}
    keys = []
    for lease in leases.values():
        assert lease.memory_bytes == sum(memory for memory, _ in sizes[lease.id])
        assert lease.share == sum(share for _, share in sizes[lease.id])
        if lease.state == "ended":
            assert not open_of[lease.id]
            assert lease.id not in holding
            continue
        if lease.state == "ending":  # its workers may live; its holder is charged for nothing more
            assert not open_of[lease.id]
            continue
        keys.append((lease.decided_by, lease.key))
        assert open_of[lease.id] == [(lease.share, lease.memory_bytes)]
        for account in (
            ("pool", "", ""),
            ("course", lease.course, ""),
            *([("member", lease.course, lease.person)] if lease.course else []),
            ("person", "", lease.person),
        ):
            for place, amount in enumerate((lease.share, lease.memory_bytes, 1)):
                totals[account][place] += amount
                if lease.decided_by != "pool":
                    placed[account][place] += amount
    assert len(keys) == len(set(keys)), "two living leases for one use"
    for book in books:
        expected = totals.pop((book.kind, book.course, book.person), [0, 0, 0])
        assert [book.share_held, book.memory_held, book.leases_held] == expected, book
    assert not totals, "something is held that no account knows"
    for subject, bounds in policy.quotas.items() if policy else ():
        for book in books:
            kind, person = subject.kind, subject.person
            if kind in ("student", "instructor"):
                members = policy.courses[subject.course].members if policy else {}
                if members.get(book.person, members.get("*")) != kind:
                    continue
                kind, person = "member", book.person
            if (book.kind, book.course, book.person) != (kind, subject.course, person):
                continue
            # What engines have placed counts, and is refused by no quota.
            by_engines = placed[book.kind, book.course, book.person]
            if bounds.devices is not None:
                assert book.share_held - by_engines[0] <= round(bounds.devices * 1_000_000), book
            if bounds.leases is not None:
                assert book.leases_held - by_engines[2] <= bounds.leases, book


def check_heals_nothing(store: Store) -> None:
    """Fail where a pool that starts would find something wrong."""
    with store.reader.connect() as db:
        assert not quota_usage.wrong_totals(db, store.policy.current(db))
        assert not ceilings.wrong_bytes(db)


def check_placements(store: Store, now: float) -> None:
    """Fail where others hold, or will hold when a window opens, what a reservation that does not preempt has its room on."""
    policy = store.policy.current()
    reservations = {one.id: one for one in policy.reservations if not one.preempt}
    ahead = {i: windows(one, now, policy.timezone) for i, one in reservations.items()}
    (placement_rows,) = rows(store, "reservation_placements") if reservations else ([],)
    placements = [
        row
        for row in placement_rows
        # A window that is over is noticed with the next decision.
        if ahead.get(row.reservation) and ahead[row.reservation][0][1] == row.until
    ]
    if not placements:
        return
    device_rows, lease_rows, slice_rows = rows(store, "devices", "leases", "slices")
    offset = store.clock.ahead()  # leases end in steady time
    sizes = {row.id: row.memory_bytes for row in device_rows if row.available or row.decided_by == "pool"}
    leases = {row.id: row for row in lease_rows}
    pieces = [row for row in slice_rows if row.worker != "gone"]
    # What was chosen on a device that is gone, or an engine's now, is chosen anew with the next decision.
    for device in {placement.device for placement in placements} & sizes.keys():
        here = [placement for placement in placements if placement.device == device]
        for opens in {begin for placement in here for begin, _ in ahead[placement.reservation]}:
            moment = max(opens, now)
            wanted: dict[str, int] = defaultdict(int)
            held: dict[str, int] = defaultdict(int)
            for placement in here:
                if any(begin <= moment < end for begin, end in ahead[placement.reservation]):
                    wanted[reservations[placement.reservation].course] += placement.bytes
            for piece in pieces:
                lease = leases[piece.lease_id]
                # Its worker was told in time to stop.
                ends = lease.state == "ending" and lease.ended + 1 < opens
                lasts = lease.until is None or lease.until + offset > moment
                if piece.device_id == device and lasts and not ends:
                    held[lease.course] += piece.memory_bytes
            most = sum(max(wanted[course], held[course]) for course in {*wanted, *held})
            assert most <= sizes[device], f"{device} at {moment - now:+.0f} s: {dict(wanted)}, {dict(held)}"


def check_giving_way(store: Store, steady: float) -> None:
    """Fail where somebody gives way to nobody, to an equal or later class, twice for one request, or ended before its time."""
    device_rows, lease_rows, slice_rows, request_rows = rows(store, "devices", "leases", "slices", "requests")
    memory = {row.id: row.memory_bytes for row in device_rows}
    requests = {row.key: row for row in request_rows}
    claims = {row.key: json.loads(row.claims) for row in request_rows if row.claims}
    for key, devices in claims.items():
        assert requests[key].priority == "interactive", key
        assert len(set(devices)) == len(devices) == requests[key].devices, key
    for device, size in memory.items():
        # Where one request may start, no other one does: both fit, or one of them has claimed something else.
        kept = sum(
            requests[key].memory_bytes or max(2**20, int(requests[key].share * size) // 2**20 * 2**20)
            for key, devices in claims.items()
            if device in devices
        )
        assert kept <= size, f"{device} is claimed twice"
    for lease in lease_rows:
        if lease.state == "live" and lease.gives_way is not None:
            assert lease.priority in ("batch", "scavenger"), lease.id
            assert (lease.decided_by, bool(lease.ceiling), lease.within) == ("pool", False, ""), lease.id
            assert lease.gives_way_to in claims, f"{lease.id} gives way to nobody"
            assert lease.gives_way >= requests[lease.gives_way_to].claims_from, lease.id
            pieces = {row.device_id for row in slice_rows if row.lease_id == lease.id}
            assert pieces & set(claims[lease.gives_way_to]), f"{lease.id} gives way in vain"
        if lease.end_reason.startswith("it gave way"):
            assert lease.gives_way is not None, lease.id
            assert lease.gives_way <= steady, f"{lease.id} left before its time"


def naive_order(
    waiting: Iterable[tuple[int, str, int]],
    held: Mapping[str, int],
    weights: Mapping[str, float],
    passed: Container[int] = (),
    ranks: Mapping[int, int] = MappingProxyType({}),
) -> list[int]:
    """The tickets of (ticket, course, size) in the order of the definition, looked for anew at every step; `passed` count for nothing.

    `ranks`: of their classes, by ticket; 0 for those that are missing.
    """
    left, now, order = sorted(waiting), dict(held), []
    while left:
        first: dict[str, tuple[int, str, int]] = {}
        least = min(ranks.get(one[0], 0) for one in left)
        for one in left:
            if ranks.get(one[0], 0) == least:
                first.setdefault(one[1], one)
        course = min(first, key=lambda c: (now.get(c, 0) / weights.get(c, 1.0), first[c][0]))
        ticket, _, size = first[course]
        order.append(ticket)
        left.remove(first[course])
        if ticket not in passed:
            now[course] = now.get(course, 0) + size
    return order


_UNCHECKED = ("memory_mib", "interactive", "hours_day", "hours_week", "hours_term")


def check_held_back(
    waiting: Iterable[Any], held_back: Container[str], books: Iterable[Any], policy: Policy
) -> None:
    """Fail where one of the rows `waiting`, in their order, is held back by a quota of devices or leases that has room for it and for all ahead of it.

    A quota of something else is taken to have none.
    """
    held = {(book.kind, book.course, book.person): (book.share_held, book.leases_held) for book in books}
    waited_for = set[tuple[str, str, str]]()
    for one in waiting:
        own = [("course", one.course, ""), ("member", one.course, one.person), ("person", "", one.person)]
        bounded = {account: bounds for account in own if (bounds := _bounds(policy, *account))}
        if one.key in held_back:
            assert waited_for & bounded.keys() or any(
                (
                    most.devices is not None
                    and held.get(account, (0, 0))[0] + one.size > most.devices * 1_000_000
                )
                or (most.leases is not None and held.get(account, (0, 0))[1] + 1 > most.leases)
                or any(getattr(most, name) is not None for name in _UNCHECKED)
                for account, bounds in bounded.items()
                for most in bounds
            ), f"{one.key} is held back by no quota"
            waited_for |= bounded.keys()
            continue
        for account in own:
            share, leases = held.get(account, (0, 0))
            held[account] = share + one.size, leases + 1


def _bounds(policy: Policy, kind: str, course: str, person: str) -> list[Bounds]:
    """Return what the policy's quotas say of an account of ``quota_usage``."""
    found = []
    if kind == "person" and not any((s.kind, s.person) == (kind, person) for s in policy.quotas):
        person = "*"  # they have the bounds of everybody
    for subject, bounds in policy.quotas.items():
        if kind == "member" and subject.kind in ("student", "instructor") and subject.course == course:
            members = policy.courses[course].members
            if members.get(person, members.get("*")) == subject.kind:
                found.append(bounds)
        elif (subject.kind, subject.course, subject.person) == (kind, course, person):
            found.append(bounds)
    return found
