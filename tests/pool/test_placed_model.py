"""Random steps of the pool and of two engines on the same devices, which go from one to the other.

The steps of `tests.pool.test_model` go on meanwhile: requests that wait, reservations, deaths, crashes, numbers that change.  What an
engine should get is computed from the devices beforehand, and compared with what it got.

Some hundred steps in the ordinary suite; ``make placed`` takes 10,000, ``GPUKERNEL_PLACED_STEPS`` says how many else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from gpukernel.common.errors import Refused
from gpukernel.common.model import DECIDERS, ENGINES, Device, Holder, Lease, PlacedOn, SliceRequest
from gpukernel.pool.leases.placed_leases import PlacedLeases
from tests.pool.books import rows
from tests.pool.test_model import HOLDERS, PoolMachine, _case, _on_postgresql, _server
from tests.pool.world import GIB

__all__ = ["_server"]  # the fixture

STEPS = int(os.environ.get("GPUKERNEL_PLACED_STEPS", "400"))
UUIDS = tuple(f"GPU-0000000{number}-0000-0000-0000-000000000000" for number in range(2))
SIZES = (GIB, 8 * GIB, 20 * GIB, 32 * GIB)
PLACED = st.dictionaries(st.sampled_from(UUIDS), st.sampled_from(SIZES), min_size=1, max_size=2)
KEYS = st.sampled_from(["job", "k2", "k3", "k5"])  # the pool's own are k1, k2 …


class PlacedMachine(PoolMachine):
    """Random placements, releases by key, and delegations beside the steps of the pool."""

    def __init__(self) -> None:
        super().__init__()
        self.placed: dict[str, tuple[str, str]] = {}  # live leases that nothing but a reason may end
        self.asked: dict[str, tuple[Mapping[str, int], Holder]] = {}  # by lease: as its engine placed it

    @property
    def engines(self) -> PlacedLeases:
        return PlacedLeases(self.world.manager)

    def forget(self, lease_id: str) -> None:
        super().forget(lease_id)
        self.placed.pop(lease_id, None)

    def device(self, uuid: str) -> Device | None:
        return next((d for d in self.world.manager.devices() if d.uuid == uuid), None)

    def used(self, device_id: str) -> int:
        """Return how many leases have a slice there whose worker may live."""
        (pieces,) = rows(self.world.store, "slices")
        return len({p.lease_id for p in pieces if p.device_id == device_id and p.worker != "gone"})

    def of_key(self, engine: str, key: str) -> Lease | None:
        wanted = ("starting", "live")
        found = [one for one in self.engines.all(engine, key) if one.state in wanted]
        assert len(found) <= 1
        return found[0] if found else None

    def by_engines(self) -> list[Device]:
        return [d for d in self.world.manager.devices() if d.decided_by != "pool"]

    # --- steps ---

    @initialize(deciders=st.tuples(*(st.sampled_from((*DECIDERS, *ENGINES)) for _ in UUIDS)))
    def begin(self, deciders: tuple[str, str]) -> None:
        for uuid, to in zip(UUIDS, deciders, strict=True):
            self.engines.delegate(uuid, to, "root")

    def answer(self, engine: str, key: str, wanted: Mapping[str, int], holder: Holder) -> Lease | Refused:
        asked = [PlacedOn(uuid, size) for uuid, size in wanted.items()]
        try:
            return self.loop.run_until_complete(self.engines.acquire(engine, key, asked, holder, 0))
        except Refused as refusal:
            return refusal

    def check_placing(self, engine: str, key: str, wanted: Mapping[str, int], holder: Holder) -> None:
        before = self.of_key(engine, key)
        devices = [(self.device(uuid), size) for uuid, size in wanted.items()]
        possible = all(
            d is not None
            and d.decided_by == engine
            and not d.next_decider
            and not d.trouble
            and size <= d.memory_bytes - d.promised_bytes
            for d, size in devices
        )
        answer = self.answer(engine, key, wanted, holder)
        event(answer.code if isinstance(answer, Refused) else "granted" if before is None else "again")
        if isinstance(answer, Refused):
            if before is not None:
                assert answer.code == "different", answer
                assert self.asked[before.id] != (wanted, holder)
            else:
                assert not possible, answer
                assert answer.code in ("no_such_device", "not_decided", "unavailable", "full"), answer
        else:
            if before is not None:
                assert answer.id == before.id
                assert self.asked[answer.id] == (wanted, holder)
            else:
                assert possible
                assert answer.id not in self.asked
                self.asked[answer.id] = (wanted, holder)
            assert {p.uuid: p.memory_bytes for p in answer.slices} == wanted
        self.settle()

    @rule(engine=st.sampled_from(ENGINES), key=KEYS, wanted=PLACED, holder=st.sampled_from(HOLDERS))
    def place(self, engine: str, key: str, wanted: dict[str, int], holder: Holder) -> None:
        self.check_placing(engine, key, wanted, holder)

    @precondition(lambda self: self.by_engines())
    @rule(data=st.data(), key=KEYS, size=st.sampled_from(SIZES), holder=st.sampled_from(HOLDERS))
    def place_on_its_own(self, data: st.DataObject, key: str, size: int, holder: Holder) -> None:
        device = data.draw(st.sampled_from(self.by_engines()))
        self.check_placing(device.decided_by, key, {device.uuid: size}, holder)

    @precondition(lambda self: any(lease.decided_by != "pool" for lease in self.living()))
    @rule(data=st.data())
    def place_again(self, data: st.DataObject) -> None:
        """The prolog was killed, and asks for the same."""
        lease = data.draw(st.sampled_from([one for one in self.living() if one.decided_by != "pool"]))
        self.check_placing(lease.decided_by, lease.key, *self.asked[lease.id])

    @precondition(lambda self: any(lease.decided_by != "pool" for lease in self.living()))
    @rule(data=st.data(), holder=st.sampled_from(HOLDERS))
    def ask_the_pool_with_a_job_s_key(self, data: st.DataObject, holder: Holder) -> None:
        lease = data.draw(st.sampled_from([one for one in self.living() if one.decided_by != "pool"]))
        if lease.key in self.tasks:
            return

        async def get() -> Lease:
            wanted = SliceRequest(share=0.25)
            async for news in self.world.manager.acquire(lease.key, wanted, holder, -1, 0):
                if isinstance(news, Lease):
                    assert news.decided_by == "pool"
                    return news
            raise AssertionError

        task = self.tasks[lease.key] = self.loop.create_task(get())
        self.settle()
        assert not (task.done() and isinstance(task.exception(), AssertionError)), "it got the job's lease"

    @rule(engine=st.sampled_from(ENGINES), key=KEYS)
    def release_by_key(self, engine: str, key: str) -> None:
        self.check_releasing(engine, key)

    def check_releasing(self, engine: str, key: str) -> None:
        before = self.of_key(engine, key)
        work = self.engines.release(engine, key, "the job is over", 0)
        ended = self.loop.run_until_complete(work)
        if before is not None:
            assert ended is not None
            assert (ended.id, ended.end_reason) == (before.id, "the job is over")
            self.forget(ended.id)
        assert self.of_key(engine, key) is None
        self.settle()

    @rule(uuid=st.sampled_from(UUIDS), to=st.sampled_from(DECIDERS), when_free=st.booleans())
    def delegate(self, uuid: str, to: str, when_free: bool) -> None:
        self.check_delegating(uuid, to, when_free)

    @precondition(lambda self: any(d.leases for d in self.world.manager.devices()))
    @rule(data=st.data(), to=st.sampled_from(DECIDERS))
    def delegate_when_free(self, data: st.DataObject, to: str) -> None:
        """Its leases are to end, by whatever step, before it is given away."""
        found = [d for d in self.world.manager.devices() if d.leases]
        self.check_delegating(data.draw(st.sampled_from(found)).uuid, to, True)

    @precondition(lambda self: any(lease.decided_by != "pool" for lease in self.living()))
    @rule(data=st.data())
    def release_one(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from([one for one in self.living() if one.decided_by != "pool"]))
        self.check_releasing(lease.decided_by, lease.key)

    def check_delegating(self, uuid: str, to: str, when_free: bool) -> None:
        before = self.device(uuid)
        if before is None:  # it was gone, and nobody's but the pool's
            with pytest.raises(Refused, match="has no device"):
                self.engines.delegate(uuid, to, "root", when_free=when_free)
            return
        used = self.used(before.id)
        waits = used > 0 and to != before.decided_by
        if waits and not when_free:
            with pytest.raises(Refused) as refusal:
                self.engines.delegate(uuid, to, "root")
            assert refusal.value.code == "in_use"
            expected = (before.decided_by, before.next_decider)
        else:
            self.engines.delegate(uuid, to, "root", when_free=when_free)
            expected = (before.decided_by, to) if waits else (to, "")
        event("waits to be given" if expected[1] else "kept" if to == before.decided_by else "delegated")
        after = self.device(uuid)
        assert after is not None
        assert (after.decided_by, after.next_decider) == expected
        self.settle()

    @rule(seconds=st.sampled_from([1.0, 10.0, 25.0, 300.0]))
    def pass_time(self, seconds: float) -> None:
        super().pass_time(seconds)
        if not self.attached:  # its server may have been away for too long
            self.placed.clear()
        for device in self.world.manager.devices():
            assert not device.next_decider or self.used(device.id), "it is free, and not given away"

    @rule(jump=st.sampled_from([-1000.0, 0.0, 5000.0]))
    def crash(self, jump: float) -> None:
        super().crash(jump)
        self.settle()

    def settle(self) -> None:
        super().settle()
        for lease in self.living():
            if lease.decided_by != "pool" and lease.state == "live":
                self.placed[lease.id] = (lease.decided_by, lease.key)

    # --- what must be true after each ---

    @invariant()
    def each_device_has_one_decider_and_only_its_leases_lie_there(self) -> None:
        devices, leases, pieces = rows(self.world.store, "devices", "leases", "slices")
        deciders = {row.id: row.decided_by for row in devices}
        placed_by = {row.id: row.decided_by for row in leases}
        for row in devices:
            assert row.decided_by in DECIDERS
            assert not row.available or (row.decided_by == "pool" and not row.next_decider)
        for piece in pieces:
            if piece.worker == "gone":
                assert piece.decided_by is None
            else:
                assert piece.decided_by == deciders[piece.device_id] == placed_by[piece.lease_id]
        # And no worker lives in the world that the decider of its device did not place.
        for lease_id, device_id in self.world.agent.alive:
            assert placed_by[lease_id] == deciders[device_id]

    @invariant()
    def what_an_engine_placed_is_as_it_placed_it(self) -> None:
        known = {lease.id: lease for lease in self.living()}
        for lease in known.values():
            if lease.decided_by != "pool":
                wanted, holder = self.asked[lease.id]
                assert {piece.uuid: piece.memory_bytes for piece in lease.slices} == wanted
                assert (lease.holder, lease.expires, lease.until) == (holder, 0, 0)
            else:
                assert lease.id not in self.asked
        for lease_id, (engine, key) in self.placed.items():
            found = known[lease_id]
            assert (found.state, found.decided_by, found.key) == ("live", engine, key)


class PostgresqlPlacedMachine(PlacedMachine):
    """The same on PostgreSQL."""

    databases: Any = staticmethod(_on_postgresql)


TestPlacedMachine = _case("PlacedMachine", PlacedMachine, STEPS)
TestPostgresqlPlacedMachine = pytest.mark.usefixtures("_server")(
    _case("PostgresqlPlacedMachine", PostgresqlPlacedMachine, STEPS if STEPS > 1000 else STEPS // 2)
)
