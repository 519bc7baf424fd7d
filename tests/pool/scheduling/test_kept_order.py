"""The order that is kept from decision to decision, against the one that is made anew; and cycles that end early, against those that do not.

``GPUKERNEL_MODEL_STEPS`` says how many random steps of a pool are taken, as in `tests.pool.test_model`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Set
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from gpukernel.common.bounds import Account, Bounds, Subject
from gpukernel.common.model import Holder, SliceRequest
from gpukernel.common.policy import Policy
from gpukernel.common.reservations import Reservation
from gpukernel.pool.domain.fairness import FairOrder
from gpukernel.pool.scheduling import cycle_end, making_way, own_quotas, scheduling_cycle
from gpukernel.pool.scheduling.backfill_state import BackfillState
from gpukernel.pool.scheduling.cycle_end import CycleEnd
from gpukernel.pool.scheduling.cycle_result import Granted
from gpukernel.pool.scheduling.own_quotas import OwnQuotas
from gpukernel.pool.scheduling.pending_request import PendingRequest
from gpukernel.pool.scheduling.pending_requests import PendingRequests
from gpukernel.pool.scheduling.queue_index import QueueIndex
from gpukernel.pool.scheduling.request_queue import RequestQueue
from gpukernel.pool.scheduling.scheduling_cycle import SchedulingCycle
from gpukernel.pool.scheduling.unseen_requests import UnseenRequests
from tests.pool.books import naive_order
from tests.pool.scheduling.test_refused_grants import refusing
from tests.pool.test_model import (
    CLASSES,
    COURSES,
    HOLDERS,
    QUOTAS,
    RESERVATIONS,
    SHARES,
    TIMES,
    PoolMachine,
    _on_postgresql,
    _server,
)

__all__ = ["_server"]

# Quotas of people's own, of each kind, that are soon reached, beside those of the model.
OWN: tuple[dict[str, Bounds], ...] = (
    {},
    {"person:*": Bounds(leases=1)},
    {"person:*": Bounds(devices=0.3), "student:phys": Bounds(memory_mib=8192)},
    {"person:*": Bounds(interactive=0.25), "student:ml": Bounds(leases=1)},
    {"person:*": Bounds(hours_day=0.02), "student:phys": Bounds(hours_week=0.05)},
    {"person:*": Bounds(hours_term=0.1), "student:ml": Bounds(hours_day=0.01, devices=0.6)},
)
MANY = [*HOLDERS, *(Holder(f"p{i}", course="phys") for i in range(4)), Holder("p0"), Holder("p1")]

STEPS = int(os.environ.get("GPUKERNEL_MODEL_STEPS", "200"))

# --- the index alone ---

HOUR = 3600.0
PEOPLE = ("anna", "ben", "carl")
PLACES = ("", "ml", "phys")
FULL = [
    Account("pool"),
    *(Account("course", course) for course in PLACES),
    *(Account("person", person=person) for person in PEOPLE),
    Account("member", "ml", "anna"),
]
_keys = st.integers(0, 11).map("k{}".format)
_puts = st.tuples(
    st.just("put"),
    _keys,
    st.sampled_from(PEOPLE),
    st.sampled_from(PLACES),
    st.integers(1, 300),
    CLASSES,
    st.integers(0, 30).map(lambda hours: hours * HOUR),
)
_looks = st.tuples(
    st.just("look"),
    st.integers(0, 12),
    st.dictionaries(st.sampled_from(PLACES), st.integers(0, 500)),
    st.dictionaries(st.sampled_from(PLACES), st.sampled_from([0.5, 2.0, 3.5])),
    st.lists(st.sampled_from(FULL), max_size=2),
    st.lists(st.sampled_from(FULL), max_size=2),
    st.sets(_keys, max_size=2),
)
_leaves = st.tuples(st.just("leave"), _keys)
_passes = st.tuples(st.just("pass"), st.sampled_from([-5 * HOUR, 0.5 * HOUR, HOUR, 4 * HOUR, 13 * HOUR]))


class Queue:
    """Requests, as the index keeps them and as a list that is sorted anew."""

    def __init__(self) -> None:
        self.index, self.all, self.now, self.tickets = QueueIndex(), dict[str, PendingRequest](), 1e6, 0

    def put(self, key: str, person: str, course: str, size: int, priority: str, waited: float) -> None:
        old = self.all.get(key)
        if old is None:
            self.tickets += 1
        request = PendingRequest(
            key,
            SliceRequest(share=1.0, priority=priority),
            Holder(person, course=course),
            "",
            60,
            0.0,
            self.now - waited,
            "pool",
            0.0,
            size,
            old.ticket if old else self.tickets,
        )
        self.all[key] = request
        self.index.put(request)

    def leave(self, key: str) -> None:
        self.all.pop(key, None)
        self.index.remove(key)

    def pass_(self, seconds: float) -> None:
        self.now += seconds

    def look(
        self,
        most: int,
        held: dict[str, int],
        weights: dict[str, float],
        full: list[Account],
        interactive: list[Account],
        absent: set[str],
    ) -> None:
        """Serve some in the order; compare what the rest is told with the definition."""
        self.index.age(self.now)
        state = BackfillState(self.now)
        state.full, state.full_interactive = dict.fromkeys(full, "full"), dict.fromkeys(interactive, "too")
        order, seen = FairOrder(self.index.lines, held, weights), list[PendingRequest]()
        for request in order if most else ():
            seen.append(request)
            if request.key in absent or state.waited_for(request.accounts, request.wanted.priority):
                order.pass_over()
            if len(seen) == most:
                break
        unseen = UnseenRequests(self.index, order.rest(), state, absent, "reserved", {"phys"})
        waits = {r.key: state.waited_for(r.accounts, r.wanted.priority) for r in self.all.values()}
        passed = {r.ticket for r in self.all.values() if r.key in absent or waits[r.key]}
        ranks = {r.ticket: r.rank(self.now) for r in self.all.values()}
        every = [(r.ticket, r.course, r.size) for r in self.all.values()]
        by_ticket = {r.ticket: r for r in self.all.values()}
        expected = [by_ticket[t] for t in naive_order(every, held, weights, passed, ranks)]
        assert seen + unseen.order() == expected
        for place, request in enumerate(expected, 1):
            assert (request in unseen) == (request not in seen)
            if request in unseen:
                assert len(seen) + unseen.place(request) == place
                assert unseen.reason(request) == ("" if request.key in absent else waits[request.key])
        for account in FULL:
            assert self.index.count(account) == sum(account in r.accounts for r in self.all.values())
        assert self.index.interactive == sum(r.wanted.priority == "interactive" for r in self.all.values())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(_puts, _puts, _puts, _leaves, _passes, _looks), min_size=10, max_size=40), _looks)
def test_what_is_kept_gives_the_order_that_is_made_anew(steps: list[Any], last: Any) -> None:
    queue = Queue()
    for step, *arguments in [*steps, last]:
        ways = {"put": queue.put, "leave": queue.leave, "pass": queue.pass_, "look": queue.look}
        ways[step](*arguments)


# --- decisions ---


class _Undone(Exception):
    """Ends a transaction whose decisions are not wanted."""


class _Seen:
    """What one cycle decided and told."""

    def __init__(self) -> None:
        self.cycle: SchedulingCycle | None = None
        self.granted: list[Granted] = []
        self.living: set[str] = set()

    def run(self, cycle: SchedulingCycle, living: Any, absent: Set[str]) -> Any:
        self.cycle, self.living = cycle, set(living)
        result = _RUN(cycle, living, absent)
        self.granted = result[0]
        return result

    def grants(self) -> list[Any]:
        """Who got what where; ids and secrets of leases are random."""
        return [
            (
                g.key,
                g.lease_id if g.fresh is None else [(s.device_id, s.memory_bytes) for s in g.fresh.slices],
            )
            for g in self.granted
        ]

    def told(self, queue: RequestQueue) -> dict[str, Any]:
        assert self.cycle is not None
        over = {one.key for one in self.granted}
        keys = [one.key for one in queue.order() if one.key not in over]
        sentences = {
            key: (queue.place(key), queue.reason(key), queue.reserved(key), queue.start(key)) for key in keys
        }
        return {"order": keys, "sentences": sentences, "claims": self.cycle.way.changed}


_RUN, _RUN_CYCLE = SchedulingCycle.run, RequestQueue.run_cycle


def _twice(tally: dict[str, int]) -> Callable[..., list[Granted]]:
    """Return a `RequestQueue.run_cycle` that first makes the index anew and looks at everybody, takes that back, and compares."""

    def run_cycle(
        self: RequestQueue, now: float, here: Set[str], newcomer: Any = None, then: Any = None, **more: Any
    ) -> list[Granted]:
        requests, anew, kept = self._requests, _Seen(), _Seen()
        told: dict[str, Any] = {}

        def undo(*_: object) -> None:
            told.update(anew.told(self))
            raise _Undone

        with self._store.deciding() as (db, row):  # as the cycle begins, so that both do from the same
            requests.refresh(db, row.queue_version)
        doubtful, index, own = set(requests.doubtful), requests.index, requests.own
        requests.index = QueueIndex()
        requests.own = OwnQuotas(requests.index)
        for request in sorted(requests.by_key.values(), key=lambda one: -one.ticket):
            requests.index.put(request)
        try:
            with (
                mock.patch.object(SchedulingCycle, "run", lambda *given: anew.run(*given)),
                mock.patch.object(CycleEnd, "nobody_may", return_value=False),
                mock.patch.object(CycleEnd, "all_wait_for_quotas", return_value=False),
            ):
                _RUN_CYCLE(self, now, here, newcomer, undo, **more)
        except _Undone:
            pass
        finally:
            requests.index, requests.own, requests.doubtful = index, own, doubtful
        with mock.patch.object(SchedulingCycle, "run", lambda *given: kept.run(*given)):
            after: dict[str, Any] = {}

            def note(db: sa.Connection, policy: Any, state: Any) -> None:
                after.update(kept.told(self))
                if then is not None:
                    then(db, policy, state)

            granted = _RUN_CYCLE(self, now, here, newcomer, note, **more)
        assert kept.grants() == anew.grants()
        assert after == told
        assert {*index.requests} == {*requests.by_key}
        tally["cycles"] += 1
        tally["early"] += bool(self._unseen and self._unseen.order())
        tally["held"] += len(index.held)
        return granted

    return run_cycle


class KeptOrderMachine(PoolMachine):
    """The steps of `PoolMachine`, with crowds, fair share that decays, bounds that are soon reached, and another pool's requests."""

    tally: dict[str, int]

    def __init__(self) -> None:
        self.patches = [mock.patch.object(RequestQueue, "run_cycle", _twice(self.tally))]
        self.patches[0].start()
        self.half_life = 0.0
        self.own: dict[str, Bounds] = {}
        self.reserved: set[Reservation] = set()
        super().__init__()

    @initialize(
        depth=st.sampled_from([2, 5, 200]),
        promises=st.sampled_from([0, 1, 16]),
        loans=st.sampled_from([1, 16]),
        looks=st.sampled_from([(1, 2), (16, 64)]),
        half_life=st.sampled_from([0.0, 60.0, 3600.0]),
    )
    def bounds(self, depth: int, promises: int, loans: int, looks: tuple[int, int], half_life: float) -> None:
        self.half_life = half_life
        self.patches += [
            mock.patch.object(cycle_end, "DEPTH", depth),
            mock.patch.object(cycle_end, "LOANS", loans),
            mock.patch.object(scheduling_cycle, "PROMISES", promises),
            mock.patch.object(making_way, "TRIES", looks[0]),
            mock.patch.object(making_way, "LOOKS", looks[1]),
            mock.patch.object(own_quotas, "IN_TURN", 0),  # what is not noticed must be seen here
        ]
        for patch in self.patches[1:]:
            patch.start()
        self.reserve(set())

    @rule(reserved=st.sets(st.sampled_from(RESERVATIONS)))
    def reserve(self, reserved: set[Reservation]) -> None:
        self.reserved = reserved
        self.govern()

    @rule(own=st.sampled_from(OWN))
    def limit_people(self, own: dict[str, Bounds]) -> None:
        self.own = own
        self.govern()

    def kept_policy(self) -> Policy:
        policy = super().kept_policy()
        lowered = {Subject.parse(text) for own in OWN for text in own}
        return replace(policy, quotas={s: b for s, b in policy.quotas.items() if s not in lowered})

    def govern(self) -> None:
        times = TIMES | {"half_life": self.half_life}
        quotas = QUOTAS | self.own
        self.world.rule(*COURSES, quotas=quotas, reservations=tuple(sorted(self.reserved)), **times)
        self.settle()

    @rule(shares=st.lists(st.tuples(SHARES, st.sampled_from(MANY), CLASSES), min_size=4, max_size=9))
    def crowd(self, shares: list[tuple[float, Holder, str]]) -> None:
        for share, holder, priority in shares:
            self.acquire(share, holder, 1, priority)

    @rule(
        holder=st.sampled_from(HOLDERS),
        share=SHARES,
        priority=CLASSES,
        waited=st.sampled_from([0.0, 1e4, 1e5]),
    )
    def another_pool_has_one_more(self, holder: Holder, share: float, priority: str, waited: float) -> None:
        manager = self.world.manager
        self.count += 1
        with self.world.store.deciding() as (db, row):
            other = PendingRequests(self.world.store, "other")
            other.refresh(db, row.queue_version)
            wanted = SliceRequest(share=share, priority=priority)
            role = self.world.store.policy.current(db, row.policy_version).role_in(
                holder.course, holder.person
            )
            request = PendingRequest(
                f"o{self.count}",
                wanted,
                holder,
                role,
                60,
                0.0,
                manager.now() - waited,
                "other",
                manager.steady(),
                round(share * 1e6),
                row.ticket + 1,
            )
            other.put(db, request)
        manager._queue._requests.forget()  # a pool on SQLite, which is alone, expects nobody else's
        manager.schedule()
        self.settle()

    @precondition(lambda self: any(one.pool == "other" for one in self.world.manager._queue.order()))
    @rule(data=st.data())
    def another_pool_has_one_less(self, data: st.DataObject) -> None:
        keys = [one.key for one in self.world.manager._queue.order() if one.pool == "other"]
        with self.world.store.deciding() as (db, row):
            other = PendingRequests(self.world.store, "other")
            other.refresh(db, row.queue_version)
            other.drop(db, {data.draw(st.sampled_from(keys))})
        self.world.manager.schedule()
        self.settle()

    @invariant()
    def the_queue_is_in_its_order_and_everybody_who_waits_is_in_it(self) -> None:
        if (
            not self.half_life
        ):  # else the definition counts what was held before, which is in no table as such
            super().the_queue_is_in_its_order_and_everybody_who_waits_is_in_it()

    def teardown(self) -> None:
        super().teardown()
        for patch in reversed(self.patches):
            patch.stop()


class PostgresqlKeptOrderMachine(KeptOrderMachine):
    """The same on PostgreSQL."""

    databases = staticmethod(_on_postgresql)


class RefusingMachine(KeptOrderMachine):
    """The same, while the database refuses the grants of some requests, each at its end."""

    def __init__(self) -> None:
        self.refuses: set[int] = {0}
        self.refusing = refusing(self.is_refused)
        self.refusing.__enter__()
        super().__init__()

    def is_refused(self, key: str) -> bool:
        refused = int(key[1:]) % 4 in self.refuses
        self.tally["refused"] += refused
        return refused

    @rule(refuses=st.sampled_from([set(), {0}, {1}, {0, 2}, {0, 1, 2, 3}]))
    def the_database_refuses(self, refuses: set[int]) -> None:
        self.refuses = refuses

    def teardown(self) -> None:
        super().teardown()
        self.refusing.__exit__(None, None, None)


class PostgresqlRefusingMachine(RefusingMachine):
    """The same on PostgreSQL."""

    databases = staticmethod(_on_postgresql)


def run_at_random(machine: type[KeptOrderMachine], steps: int, tally: dict[str, int]) -> None:
    """Take `steps` random steps, and more until everything that `tally` counts has happened."""
    machine.tally = tally
    for number in range(3, 23):  # from 3 on it soon has
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            seed(number)(machine),
            settings=settings(
                max_examples=steps // 50 + 1,  # the first one is hardly any step
                stateful_step_count=50,
                deadline=None,
                database=None,
                phases=(Phase.generate,),
                suppress_health_check=list(HealthCheck),
            ),
        )
        if all(tally.values()):
            return
    pytest.fail(f"this never happened: {[what for what, count in tally.items() if not count]}")


MACHINES = [KeptOrderMachine, PostgresqlKeptOrderMachine, RefusingMachine, PostgresqlRefusingMachine]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.usefixtures("_server")
def test_cycles_that_end_early_decide_and_tell_the_same(machine: type[KeptOrderMachine]) -> None:
    tally = {"cycles": 0, "early": 0, "held": 0}
    if issubclass(machine, RefusingMachine):
        tally["refused"] = 0
    run_at_random(machine, STEPS if machine in (KeptOrderMachine, RefusingMachine) else STEPS // 2, tally)
