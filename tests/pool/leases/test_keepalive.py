"""Holders of leases hear what has changed, and a pool reads for that what is new and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from gpukernel.pool.leases.following import EVERYTHING_SECONDS
from gpukernel.pool.store.changes import MOST_AT_ONCE
from gpukernel.pool.store.leases import HolderView
from tests.pool.world import World, story


def test_a_pool_alone_on_its_database_reads_the_leases_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell(world: World) -> None:
        manager, told, read = world.manager, list[str](), list[list[str]]()
        held = sorted([(await world.get(f"{n}", 0.1)).id for n in range(5)])
        for lease_id in held:
            manager.keepalive.hold(manager.store.leases.get(lease_id), told.append, manager.steady())
        manager.look()
        plain = world.store.leases.views

        def views(lease_ids: Iterable[str]) -> dict[str, HolderView]:
            read.append(sorted(lease_ids))
            return plain(read[-1])

        monkeypatch.setattr(world.store.leases, "views", views)
        manager.look()
        assert (read, told) == ([], [])
        for message in ("one", "two"):
            manager.store.leases.say(held[2], message)
        manager.look()
        manager.look()
        assert (read, told) == ([[held[2]]], [held[2]])
        for number in range(MOST_AT_ONCE + 1):  # more than it keeps
            manager.store.leases.say(held[number % 2], f"{number}")
        manager.look()
        assert read[1:] == [held]
        assert sorted(told[1:]) == held[:2]
        world.now += EVERYTHING_SECONDS
        manager.look()
        assert read[2:] == [held]

    story(tmp_path, tell)
