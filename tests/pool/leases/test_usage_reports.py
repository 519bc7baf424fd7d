"""Reports of agents about their workers: news are written down, and nothing else, on SQLite and PostgreSQL."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from gpukernel.common.model import Usage
from gpukernel.pool.leases.usage_reports import UsageReports
from gpukernel.pool.store.schema import slices
from tests.pool.world import World, story
from tests.pool.written import Written


def test_an_idle_report_changes_no_row_and_one_with_news_those_that_it_is_about(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell(world: World) -> None:
        leases = [await world.get(f"k{number}", 0.1) for number in range(5)]
        workers = [(lease.id, lease.slices[0].device_id) for lease in leases]
        written = Written(monkeypatch, world)

        def report(usage: dict[tuple[str, str], Usage]) -> int:
            world.now += 2
            here = world.sessions.of_server("s", usage)
            world.sessions.heartbeat("s", here)
            world.sessions.faults("s", {})
            return written.since()

        def idle(seconds: float) -> dict[tuple[str, str], Usage]:
            return dict.fromkeys(workers, Usage(launches=3, idle_seconds=seconds))

        assert report(idle(10)) == 5
        assert report(idle(12)) == report(idle(13.2)) == report({}) == 0
        # A program works: its own row and no other one.
        assert report(idle(18) | {workers[0]: Usage(launches=4)}) == 1
        assert report({workers[0]: Usage(launches=4)}) == 0
        found = world.store.leases.get(leases[1].id)
        assert found is not None
        assert found.slices[0].usage.idle_seconds == pytest.approx(22, abs=2)
        # A worker that was idle and did something meanwhile is idle since then.
        assert report({workers[1]: Usage(launches=3, idle_seconds=1)}) == 1
        with world.store.reader.connect() as db:
            since = db.execute(
                sa.select(slices.c.idle_since).where(slices.c.lease_id == leases[1].id)
            ).scalar()
        assert since == pytest.approx(world.manager.steady() - 1)

    story(database, tell)


def test_connected_programs_keep_their_leases_with_few_writes(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell(world: World) -> None:
        lease, other = await world.get("a", 0.5), await world.get("b", 0.25)
        usage = {(lease.id, "s/0"): Usage(connections=1), (other.id, "s/0"): Usage()}
        world.sessions.heartbeat("s", usage)
        written = Written(monkeypatch, world)
        for _ in range(30):
            world.now += 2
            world.sessions.heartbeat("s", {})
        assert written.since() == 5  # a minute with leases of 20 s, which are renewed after half of it
        world.manager.tick()
        assert [one.id for one in world.manager.leases(False)] == [lease.id]
        world.sessions.heartbeat("s", {(lease.id, "s/0"): Usage()})
        for _ in range(11):
            world.now += 2
            world.sessions.heartbeat("s", {})
        world.manager.tick()
        assert world.manager.leases(False) == []

    story(database, tell)


def test_a_pool_that_hears_of_a_server_anew_writes_everything_once(database: str) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("a", 0.5)
        usage = {(lease.id, "s/0"): Usage(launches=7, idle_seconds=5)}
        world.sessions.heartbeat("s", usage)
        with world.store.deciding() as (db, _):
            db.execute(slices.update().values(launches=0))  # as another pool's restart may leave it
        world.agent.attach()
        world.sessions.heartbeat("s", usage)
        found = world.store.leases.get(lease.id)
        assert found is not None
        assert found.slices[0].usage.launches == 7
        reports = world.manager.usage_reports
        reports.keep("s", set())
        assert isinstance(reports, UsageReports)
        assert reports._known["s"] == {}

    story(database, tell)


def test_idleness_grows_without_reports_and_ends_no_lease_of_a_server_that_is_away(database: str) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("a", 0.5)
        with world.store.deciding() as (db, _):
            db.execute(sa.text("UPDATE leases SET idle_limit = 100"))
        world.sessions.heartbeat("s", {(lease.id, "s/0"): Usage(idle_seconds=40)})
        assert world.store.leases.idle(world.manager.steady()) == []
        world.now += 20
        ((_, idle, limit, _),) = world.store.leases.idle(world.manager.steady())
        assert (idle, limit) == (pytest.approx(60), 100)
        world.sessions.detach("s", world.agent)
        assert world.store.leases.idle(world.manager.steady()) == []

    story(database, tell)
