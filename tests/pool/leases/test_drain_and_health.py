"""Servers that are drained and devices that fail get no leases, and holders are told what becomes of theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpukernel.common.errors import Refused
from gpukernel.common.model import Lease, Queued
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
        world.sessions.faults("s", {piece.device_index: "critical error XID 79"})
        ended = world.store.leases.get(lost.id)
        assert ended is not None
        assert ended.end_reason == f"its device {piece.device_id} failed: critical error XID 79"
        assert world.store.leases.get(kept.id).state == "live"  # type: ignore[union-attr]
        waiting = world.ask("c", 0.5)
        assert isinstance(await anext(waiting), Queued)
        assert [d.trouble for d in world.manager.devices() if not d.available] == ["critical error XID 79"]
        world.agent.attach()
        assert not all(d.available for d in world.manager.devices())
        world.sessions.faults("s", {piece.device_index: "critical error XID 79"})
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
