"""The one decider over each device, as the database keeps it: on SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from gpukernel.common.bounds import Account, Bounds, Subject
from gpukernel.common.errors import Refused
from gpukernel.common.model import Holder, PlacedOn
from gpukernel.common.policy import Policy
from gpukernel.pool.domain.engine_placement import place
from gpukernel.pool.domain.placement import Placement
from gpukernel.pool.store import quota_usage, schema
from gpukernel.pool.store.database import Conflict
from gpukernel.pool.store.policy import write_policy
from gpukernel.pool.store.store import Store
from gpukernel.pool.store.usage_log import held_between
from tests.pool.store.older_databases import make_old
from tests.pool.store.test_device_reports import GIB, WHO, A, B, C, device, report, written_down

NOW = 1000.0


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    found = Store(database)
    found.clock.start()
    report(found, [device(0, A), device(1, B)])
    yield found
    found.close()


def grant(
    store: Store, uuid: str, decider: str, key: str = "k", size: int = 16 * GIB, longest: float = 0
) -> str:
    """Write a lease of anna's down as this decider's, with no question asked."""
    (one,) = (d for d in store.devices.all() if d.uuid == uuid)
    with store.deciding() as (db, row):
        policy = store.policy.current(db, row.policy_version)
        placed = [Placement(one, size)]
        return store.leases.grant(
            db, policy, key, Holder("anna"), "", placed, 20, longest, NOW, NOW, decided_by=decider
        ).id


def gone(store: Store, lease: str, uuid: str) -> None:
    store.leases.end(lease, "done", NOW)
    store.leases.worker_gone(lease, f"s/{uuid}", "done", NOW)


def delegate(store: Store, name: str, to: str, *, when_free: bool = False) -> tuple[str, str]:
    given = store.deciders.delegate(name, to, "root", NOW, when_free=when_free)
    return given.decided_by, given.next_decider


def offered(store: Store) -> dict[str, tuple[bool, str]]:
    return {d.label: (d.available, d.condition) for d in store.devices.all()}


def change(store: Store, statement: Any) -> None:
    with store.transaction() as db:
        db.execute(statement)


def test_a_device_that_an_engine_decides_over_is_none_that_the_pool_offers(store: Store) -> None:
    assert [kind.count for kind in store.devices.classes()] == [2]
    assert delegate(store, "s/0", "slurm") == ("slurm", "")
    assert [kind.count for kind in store.devices.classes()] == [1]
    assert offered(store) == {"s/0": (False, "slurm decides over it"), "s/1": (True, "")}
    assert delegate(store, A[:8], "pool") == ("pool", "")
    assert [kind.count for kind in store.devices.classes()] == [2]
    assert written_down(store) == [
        ("root", "delegate", "s/0", f"pool {A}", "slurm"),
        ("root", "delegate", "s/0", f"slurm {A}", "pool"),
    ]


def test_giving_a_device_to_whom_it_belongs_changes_nothing(store: Store) -> None:
    delegate(store, "s/0", "slurm")
    assert delegate(store, "s/0", "slurm") == ("slurm", "")
    assert len(written_down(store)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"decided_by": "lsf"},
        {"decided_by": None},
        {"next_decider": "lsf"},
        {"decided_by": "slurm"},  # and still available
        {"next_decider": "slurm"},
    ],
)
def test_the_database_refuses_what_no_device_may_be(store: Store, wrong: dict[str, str | None]) -> None:
    with pytest.raises(IntegrityError):
        change(store, schema.devices.update().values(**wrong))


@pytest.mark.parametrize(("first", "second"), [("pool", "slurm"), ("slurm", "pool"), ("slurm", "kubernetes")])
def test_the_database_refuses_another_decider_while_a_worker_may_live(
    store: Store, first: str, second: str
) -> None:
    if first != "pool":
        delegate(store, "s/0", first)
    lease = grant(store, A, first)
    taken = schema.devices.update().where(schema.devices.c.uuid == A)
    with pytest.raises(IntegrityError):
        change(store, taken.values(decided_by=second, available=False))
    with pytest.raises(Conflict):
        grant(store, A, second, key="other", size=GIB)
    gone(store, lease, A)
    change(store, taken.values(decided_by=second, available=False))


def test_the_database_refuses_a_slice_in_use_that_nobody_decides_over(store: Store) -> None:
    grant(store, A, "pool")
    with pytest.raises(IntegrityError):
        change(store, schema.slices.update().values(decided_by=None))


def test_a_device_in_use_is_given_away_when_it_is_free(store: Store) -> None:
    lease = grant(store, A, "pool")
    with pytest.raises(
        Refused, match="1 lease that the pool placed is on s/0; end them, or say --when-free"
    ) as no:
        delegate(store, "s/0", "slurm")
    assert no.value.code == "in_use"
    assert delegate(store, "s/0", "slurm", when_free=True) == ("pool", "slurm")
    assert offered(store)["s/0"] == (False, "slurm decides over it once it is free")
    assert store.deciders.hand_over("pool", NOW) == []
    store.leases.end(lease, "done", NOW)
    assert store.deciders.hand_over("pool", NOW) == [], "its worker may live"
    store.leases.worker_gone(lease, f"s/{A}", "done", NOW)
    assert store.deciders.hand_over("pool", NOW) == ["s/0"]
    assert store.deciders.hand_over("pool", NOW) == []
    assert offered(store)["s/0"] == (False, "slurm decides over it")
    assert written_down(store) == [
        ("root", "delegate", "s/0", f"pool {A}", "pool, then slurm"),
        ("pool", "delegate", "s/0", f"pool, then slurm {A}", "slurm"),
    ]


def test_a_device_that_waits_to_be_given_away_can_be_kept(store: Store) -> None:
    lease = grant(store, A, "pool")
    delegate(store, "s/0", "slurm", when_free=True)
    assert delegate(store, "s/0", "pool") == ("pool", "")
    assert offered(store)["s/0"] == (True, "")
    gone(store, lease, A)
    assert store.deciders.hand_over("pool", NOW) == []


@pytest.mark.parametrize("first", ["pool", "slurm"])
def test_a_device_that_waits_gets_nothing_new_of_either(store: Store, first: str) -> None:
    if first == "slurm":
        delegate(store, "s/0", "slurm")
    grant(store, A, first)
    delegate(store, "s/0", "kubernetes", when_free=True)
    with store.deciding() as (db, _):
        known = store.deciders.of_uuids(db, [A])
        for engine in ("slurm", "kubernetes"):
            with pytest.raises(Refused, match=r"decided by|once it is free"):
                place(engine, [PlacedOn(A, GIB)], known)
    assert store.devices.classes()[0].count == 1


@pytest.mark.parametrize(
    ("name", "to", "code"),
    [
        ("s/7", "slurm", "no_such_device"),
        ("", "slurm", "no_such_device"),
        ("GPU-", "slurm", "ambiguous"),
        ("s/0", "lsf", "invalid"),
        ("t/0", "slurm", "invalid"),  # an agent that tells no UUIDs
    ],
)
def test_what_cannot_be_given_away_is_refused(store: Store, name: str, to: str, code: str) -> None:
    report(store, [device(0, server="t")], "t", WHO.__class__("account 0", "other", "p", "q"))
    with pytest.raises(Refused) as refusal:
        delegate(store, name, to)
    assert refusal.value.code == code


def test_an_engine_keeps_a_device_that_goes_and_comes(store: Store) -> None:
    delegate(store, "s/1", "slurm")
    report(store, [device(0, A)])
    assert {d.uuid: d.decided_by for d in store.devices.all()} == {A: "pool", B: "slurm"}
    report(store, [device(0, B), device(1, A), device(2, C)])
    assert {d.uuid: (d.decided_by, d.available) for d in store.devices.all()} == {
        A: ("pool", True),
        B: ("slurm", False),
        C: ("pool", True),
    }


def test_a_device_that_moves_to_another_server_of_its_machine_keeps_its_decider(store: Store) -> None:
    delegate(store, "s/0", "slurm")
    store.servers.mark_away("s", "pool", NOW)
    there = WHO.__class__(WHO.credential, WHO.machine, "another place", "another process")
    report(store, [device(0, A, server="t"), device(1, C, server="t")], "t", there)
    found = {d.id: (d.decided_by, d.available) for d in store.devices.all() if d.server == "t"}
    assert found == {f"t/{A}": ("slurm", False), f"t/{C}": ("pool", True)}
    elsewhere = WHO.__class__("account 1", "another machine", "p", "q")
    report(store, [device(0, A, server="u")], "u", elsewhere)
    assert {d.decided_by for d in store.devices.all() if d.server == "u"} == {"pool"}


def test_an_agent_that_names_devices_by_numbers_again_changes_no_decider(store: Store) -> None:
    delegate(store, "s/0", "slurm")
    lease = grant(store, A, "slurm")
    report(store, [device(0), device(1)])
    assert {d.uuid: d.decided_by for d in store.devices.all()} == {A: "slurm", B: "pool"}
    assert store.leases.get(lease) is not None


def test_keys_of_the_pool_and_of_each_engine_are_apart(store: Store) -> None:
    delegate(store, "s/0", "slurm")
    delegate(store, "s/1", "kubernetes")
    slurms = grant(store, A, "slurm", "k", GIB)
    kubernetes = grant(store, B, "kubernetes", "k", GIB)
    assert store.leases.living(["k"]) == {}
    with store.deciding() as (db, _):
        assert store.deciders.living(db, "slurm", "k") == slurms
        assert store.deciders.living(db, "kubernetes", "k") == kubernetes
    with pytest.raises(Conflict):
        grant(store, A, "slurm", "k", GIB)
    store.leases.end(slurms, "done", NOW)
    assert store.deciders.last("slurm", "k") == slurms
    again = grant(store, A, "slurm", "k", GIB)
    assert store.deciders.last("slurm", "k") == again
    assert [lease.id for lease in store.deciders.leases("slurm")] == [slurms, again]
    assert [lease.id for lease in store.deciders.leases("kubernetes", "k")] == [kubernetes]
    assert store.deciders.leases("kubernetes", "other") == []


def test_the_database_refuses_to_promise_a_byte_twice_whoever_placed_it(store: Store) -> None:
    delegate(store, "s/0", "slurm")
    grant(store, A, "slurm", "one", 20 * GIB)
    with pytest.raises(Conflict):
        grant(store, A, "slurm", "two", 13 * GIB)
    grant(store, A, "slurm", "three", 12 * GIB)


def test_what_an_engine_placed_counts_in_quotas_and_is_refused_by_none(store: Store) -> None:
    quota = {Subject("person", person="anna"): Bounds(devices=0.5, leases=1, memory_mib=20 * 1024)}
    with store.deciding() as (db, row):
        before = store.policy.current(db, row.policy_version)
        write_policy(db, before, Policy({}, quota), "admin", NOW)
    delegate(store, "s/0", "slurm")
    first = grant(store, A, "slurm", "one")
    second = grant(store, A, "slurm", "two")
    person = Account("person", person="anna")

    def held() -> tuple[int, int, int]:
        with store.deciding() as (db, row):
            policy = store.policy.current(db, row.policy_version)
            found = {s.account: s for s in quota_usage.all_standings(db, policy, NOW)}[person]
        return found.share, found.memory // GIB, found.leases

    assert held() == (1_000_000, 32, 2)
    with pytest.raises(Conflict):  # the pool itself grants nothing beside that
        grant(store, B, "pool", "three", GIB)
    gone(store, first, A)
    assert held() == (500_000, 16, 1)
    with pytest.raises(Conflict):
        grant(store, B, "pool", "three", GIB)
    gone(store, second, A)
    assert held() == (0, 0, 0)
    third = grant(store, B, "pool", "three")
    with pytest.raises(Conflict):  # the quota is what it was
        grant(store, B, "pool", "four", GIB)
    assert third


def test_the_times_of_a_placed_lease_are_its_engines(store: Store) -> None:
    quota = {Subject("pool"): Bounds(longest_seconds=60, idle_seconds=30)}
    with store.deciding() as (db, row):
        before = store.policy.current(db, row.policy_version)
        write_policy(db, before, Policy({}, quota), "admin", NOW)
    delegate(store, "s/0", "slurm")
    grant(store, A, "slurm", "without", GIB)
    grant(store, A, "slurm", "with", GIB, longest=600)
    with store.reader.connect() as db:
        rows = {row.key: (row.until, row.idle_limit) for row in db.execute(sa.select(schema.leases))}
    assert rows == {"without": (None, 0.0), "with": (NOW + 600, 0.0)}


def begin(store: Store, key: str, began: float, now: float) -> tuple[float, str]:
    """Grant a GiB of the first device `now` for a use that began before; return from when its hours count, and why not from then."""
    with store.deciding() as (db, row):
        policy = store.policy.current(db, row.policy_version)
        (one,) = (d for d in store.devices.all() if d.uuid == A)
        lease = store.leases.grant(
            db, policy, key, Holder("anna"), "", [Placement(one, GIB)], 20, 0, now, now, decided_by="slurm"
        )
        why = store.deciders.count_from(db, policy, lease, began, now)
        log = schema.usage_log
        since = db.execute(sa.select(log.c.begins).where(log.c.lease_id == lease.id)).scalar_one()
        return float(since), why


def test_hours_count_from_when_the_use_began(store: Store) -> None:
    delegate(store, "s/0", "slurm")
    day = 86_400.0 * 20_000
    assert begin(store, "one", day - 1, day) == (day - 1, "")
    assert begin(store, "two", 0, day) == (day, "")
    assert begin(store, "three", day + 9, day)[0] == day
    assert begin(store, "four", day - 7200, day)[0] == day - 120
    # They are the hours of reports and of quotas.
    with store.deciding() as (db, row):
        uses = {use.lease: use.hours * 3600 for use in held_between(db, day - 600, day + 10)}
        policy = store.policy.current(db, row.policy_version)
        person = Account("person", person="anna")
        standing = next(s for s in quota_usage.all_standings(db, policy, day + 10) if s.account == person)
        shown = db.execute(sa.select(schema.leases.c.created)).scalars()
        assert set(shown) == {day}  # nothing else goes by them
    assert sorted(uses.values()) == pytest.approx([10, 10, 11, 130])
    assert standing.spent[2] == pytest.approx(161 / 32, rel=1e-4)


def test_hours_of_a_key_do_not_count_twice(store: Store) -> None:
    delegate(store, "s/0", "slurm")
    first = grant(store, A, "slurm", "job", GIB)
    store.leases.end(first, "done", NOW + 200)
    # While its worker is stopped its memory is not free, but its hours are over.
    assert begin(store, "other", NOW + 190, NOW + 230) == (NOW + 190, "")
    assert begin(store, "job", NOW + 190, NOW + 230) == (
        NOW + 200,
        "before, the key had another lease, or the engine not all of the devices",
    )


def test_hours_do_not_count_from_before_the_device_was_the_engines(store: Store) -> None:
    store.deciders.delegate("s/1", "kubernetes", "root", NOW + 45)
    store.deciders.delegate("s/0", "slurm", "root", NOW + 40)
    assert begin(store, "early", NOW + 30, NOW + 50)[0] == NOW + 40
    assert begin(store, "late", NOW + 41, NOW + 50) == (NOW + 41, "")


def test_slices_of_before_are_the_pools_while_their_workers_may_live(database: str) -> None:
    make_old(database)
    store = Store(database)
    with store.reader.connect() as db:
        rows = db.execute(sa.select(schema.slices.c.lease_id, schema.slices.c.decided_by))
        assert {row.lease_id: row.decided_by for row in rows} == {"one": "pool", "old": None}
    with pytest.raises(IntegrityError):
        change(store, schema.devices.update().values(decided_by="slurm", available=False))
    store.close()


def test_every_grant_has_a_greater_number(store: Store, database: str) -> None:
    """Numbers grow in one transaction with others, beside one that is taken back, and after those of another pool."""
    other = Store(database)
    device_a = next(d for d in store.devices.all() if d.uuid == A)

    def grant_in(db: sa.Connection, policy: Policy, key: str) -> None:
        store.leases.grant(db, policy, key, Holder("anna"), "", [Placement(device_a, GIB)], 20, 0, NOW, NOW)

    grant(store, A, "pool", "k0", GIB)
    with store.deciding() as (db, row):
        policy = store.policy.current(db, row.policy_version)
        grant_in(db, policy, "k1")
        grant_in(db, policy, "k2")
        with contextlib.suppress(ZeroDivisionError), db.begin_nested():
            grant_in(db, policy, "never")
            raise ZeroDivisionError
        grant_in(db, policy, "k3")
        grant(store, A, "pool", "k4", GIB)
    grant(other, A, "pool", "k5", GIB)
    grant(store, A, "pool", "k6", GIB)
    other.close()
    with store.transaction() as db:
        epochs = list(db.execute(sa.select(schema.leases.c.epoch).order_by(schema.leases.c.key)).scalars())
    assert len(epochs) == 7
    assert epochs == sorted(set(epochs))
