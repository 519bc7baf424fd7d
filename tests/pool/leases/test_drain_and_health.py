"""Servers that are drained and devices that fail get no leases, and holders are told what becomes of theirs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import sqlalchemy as sa

from gpukernel.common.errors import Refused
from gpukernel.common.model import Holder, Lease, Queued, SliceRequest
from gpukernel.pool.leases.agent_sessions import AgentSessions
from gpukernel.pool.store.schema import audit
from tests.pool.world import Agent, World, story


def test_a_drained_server_gets_nothing_new_and_its_leases_end_at_the_deadline(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        other = Agent(world.manager, "t")
        first = await world.get("first", 0.5)
        other.attach()
        assert world.manager.drain("s", "admin", deadline=100) == 1
        assert (await world.get("second", 0.2)).slices[0].server == "t"
        assert [d.trouble for d in world.manager.devices()] == ["drained", ""]
        assert "its GPU server is being drained" in world.manager.renew(first.id).notice  # type: ignore[union-attr]
        for _ in range(9):
            world.pass_time(10)
            world.manager.renew(first.id)
        assert world.store.leases.get(first.id).state == "live"  # type: ignore[union-attr]
        world.pass_time(11)
        ended = world.store.leases.get(first.id)
        assert ended is not None
        assert (ended.state, ended.end_reason) == ("ended", "its GPU server s was drained")

    story(tmp_path, tell)


def test_without_a_deadline_leases_stay_and_undrain_serves_who_waits(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        kept = await world.get("kept", 0.5)
        waiting = world.ask("waiting", 0.8)
        assert isinstance(await anext(waiting), Queued)
        world.manager.drain("s", "admin")
        world.now += 10
        world.manager.renew(kept.id)
        world.manager.tick()
        world.manager.end(kept.id, "done")
        assert [w.key for w in world.manager.waiting()] == ["waiting"]
        world.agent.attach()  # an agent that is started again does not undo it
        assert not world.manager.devices()[0].available
        world.manager.undrain("s", "admin")
        assert isinstance(await anext(waiting), Lease)

    story(tmp_path, tell)


def test_who_drains_what_is_kept_and_nonsense_is_one_sentence(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        import sqlalchemy as sa

        from gpukernel.pool.store.schema import audit

        world.manager.drain("s", "prof")
        world.manager.undrain("s", "root")
        with world.store.reader.connect() as db:
            rows = [tuple(row)[2:] for row in db.execute(sa.select(audit))]
        assert rows == [
            ("prof", "drain", "s", "in use", "drained"),
            ("root", "drain", "s", "drained", "in use"),
        ]
        for attempt in (lambda: world.manager.drain("x", "a"), lambda: world.manager.undrain("x", "a")):
            with pytest.raises(Refused, match="no GPU server x"):
                attempt()
        for deadline in (-1, float("nan"), float("inf")):
            with pytest.raises(Refused, match="deadline"):
                world.manager.drain("s", "a", deadline)

    story(tmp_path, tell)


def test_a_device_that_fails_is_taken_out_its_leases_are_lost_and_it_comes_back(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        lost, kept = await world.get("a", 1.0), await world.get("b", 0.9)
        (piece,) = lost.slices
        world.sessions.faults("s", {piece.device_id: "critical error XID 79"})
        ended = world.store.leases.get(lost.id)
        assert ended is not None
        assert ended.end_reason == f"its device {piece.device_id} failed: critical error XID 79"
        assert world.store.leases.get(kept.id).state == "live"  # type: ignore[union-attr]
        waiting = world.ask("c", 0.5)
        assert isinstance(await anext(waiting), Queued)
        assert [d.trouble for d in world.manager.devices() if not d.available] == ["critical error XID 79"]
        world.agent.attach()
        assert not all(d.available for d in world.manager.devices())
        world.sessions.faults("s", {piece.device_id: "critical error XID 79"})
        world.sessions.faults("s", {})
        world.manager.tick()
        assert isinstance(await anext(waiting), Lease)

    story(tmp_path, tell, devices=2)


def test_a_device_that_its_server_no_longer_has_stays_out_until_it_does(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        await world.get("a", 1.0)
        held = next(d for d in world.manager.devices() if d.leases)
        both = list(world.agent.devices)
        world.agent.devices = [d for d in both if d.id != held.id]
        world.agent.attach()
        world.sessions.faults("s", {})
        assert [d.trouble for d in world.manager.devices() if d.id == held.id] == [
            "its server has it no more"
        ]
        world.agent.devices = both
        world.agent.attach()
        assert all(d.available for d in world.manager.devices())

    story(tmp_path, tell, devices=2)


def test_devices_that_are_counted_anew_keep_their_leases_and_new_workers_start_on_the_right_one(
    tmp_path: Path,
) -> None:
    async def tell(world: World) -> None:
        world.agent.tell_uuids()
        world.agent.attach()
        first, second = await world.get("a", 1.0), await world.get("b", 0.5)
        (mine,) = second.slices
        world.sessions.detach("s", world.agent)
        world.agent.count_anew((1, 0))
        world.agent.attach()
        for before in (first, second):
            now = world.manager.lease(before.id)
            assert now is not None
            assert (now.state, now.slices[0].uuid) == ("live", before.slices[0].uuid)
            assert now.slices[0].device_index == 1 - before.slices[0].device_index
        third = await world.get("c", 0.5)
        assert (third.slices[0].uuid, third.slices[0].label) == (mine.uuid, f"s/{1 - mine.device_index}")
        assert (third.id, mine.device_id) in world.agent.alive

    story(tmp_path, tell, devices=2)


@pytest.mark.parametrize("killed", [True, False])
def test_a_device_that_disappears_takes_its_leases_with_it_and_comes_back(
    tmp_path: Path, killed: bool
) -> None:
    async def tell(world: World) -> None:
        world.agent.tell_uuids()
        world.agent.attach()
        lost, kept = await world.get("a", 1.0), await world.get("b", 0.9)
        (piece,) = lost.slices
        world.sessions.detach("s", world.agent)
        world.agent.count_anew([kept.slices[0].device_index])
        if killed:
            world.agent.alive.discard((lost.id, piece.device_id))
        world.agent.prompt = False
        world.agent.attach()
        reason = f"its device {piece.label} ({piece.uuid}) is gone from GPU server s"
        ended = world.store.leases.get(lost.id)
        assert ended is not None
        assert (ended.state, ended.end_reason) == ("ended" if killed else "ending", reason)
        if not killed:  # its memory is nobody's until the worker is dead, which is told the reason
            assert world.agent.to_stop == [(lost.id, piece.device_id)]
            assert world.promised() == pytest.approx(1.9, abs=0.001)
            world.agent.stop()
        assert world.promised() == pytest.approx(0.9, abs=0.001)
        assert world.store.leases.get(kept.id).state == "live"  # type: ignore[union-attr]
        with world.store.reader.connect() as db:
            who, *what = tuple(db.execute(sa.select(audit)).one())[2:]
        assert (who, what) == (
            "agent of s",
            ["device", piece.label, piece.uuid, "its server has it no more"],
        )
        waiting = world.ask("c", 0.5)
        assert isinstance(await anext(waiting), Queued)
        world.agent.prompt = True
        world.agent.count_anew((0, 1))
        world.agent.attach()
        again = await anext(waiting)
        assert isinstance(again, Lease)
        assert again.slices[0].uuid == piece.uuid

    story(tmp_path, tell, devices=2)


def test_a_request_may_name_its_device(tmp_path: Path) -> None:
    async def ask(world: World, key: str, device: str, **more: object) -> Lease:
        wanted = SliceRequest(share=0.25, device=device, **more)  # type: ignore[arg-type]
        async for event in world.manager.acquire(key, wanted, Holder("anna"), 0, 0):
            if isinstance(event, Lease):
                return event
        raise AssertionError

    async def tell(world: World) -> None:
        world.agent.tell_uuids()
        world.agent.attach()
        uuids = [device.uuid for device in world.agent.devices]
        found = [(await ask(world, f"k{i}", text)).slices[0].uuid for i, text in enumerate((uuids[1], "S/0"))]
        assert found == [uuids[1], uuids[0]]
        world.agent.count_anew((1, 0))
        world.agent.attach()
        assert (await ask(world, "k2", uuids[1].lower()[:12])).slices[0].uuid == uuids[1]
        assert (await ask(world, "k3", "s/0")).slices[0].uuid == uuids[1]
        full = "“s/0” has no room for 8192 MiB of a device now"
        assert (await ask(world, "k4", "s/0")).slices[0].label == "s/0"
        with pytest.raises(Refused, match=full):
            await ask(world, "k5", "s/0")
        for text in ("s/2", "GPU-1", "0", uuids[0][4:]):
            with pytest.raises(Refused, match="no device “"):
                await ask(world, "k6", text)
        with pytest.raises(Refused, match="2 devices are asked for; “s/0” has 1 that fit"):
            await ask(world, "k7", "s/0", devices=2)

    story(tmp_path, tell, devices=2)


def test_a_server_that_says_that_it_ends_is_drained(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        sessions = AgentSessions(world.manager)
        held = await world.get("held", 0.5)
        sessions.leaving("s", 100.0, "its job ends")
        assert [d.trouble for d in world.manager.devices()] == ["drained"]
        assert "its GPU server is being drained" in world.manager.renew(held.id).notice  # type: ignore[union-attr]
        # A later word counts, and no agent keeps its server for ever, or ends it with a figure that is none.
        for nonsense in (math.nan, math.inf, -5.0):
            sessions.leaving("s", nonsense, "")
        world.pass_time(2)
        ended = world.store.leases.get(held.id)
        assert ended is not None
        assert (ended.state, ended.end_reason) == ("ended", "its GPU server s was drained")
        with world.store.deciding() as (db, _):
            whose = db.execute(sa.select(audit.c.who).where(audit.c.action == "drain"))
            assert set(whose.scalars()) == {"agent of s"}

    story(tmp_path, tell)
