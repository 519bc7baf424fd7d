"""Direct mode in the pool: where a request may go, who waits for whom, and what the database remembers of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpukernel.common.bounds import Bounds
from gpukernel.common.errors import Refused
from gpukernel.common.machine import machine_identity
from gpukernel.common.messages import lease_from, lease_to, request_from, request_to
from gpukernel.common.model import Lease, Queued, SliceRequest
from gpukernel.pool.domain.direct_mode import NO_USER, Machine, Places, check_mode, matching_in_mode
from gpukernel.pool.domain.placement import DeviceClass
from gpukernel.pool.store.store import Store
from tests.pool.world import ANNA, GIB, Agent, World, story

V100, A100 = DeviceClass("V100", 32 * GIB, 3), DeviceClass("A100", 80 * GIB, 1)
MACHINES = Places({"m1": Machine(("here",), (DeviceClass("V100", 32 * GIB),)), "m2": Machine(("away",))})


def request(mode: str, machine: str = "m1", devices: int = 1, share: float = 0.5) -> SliceRequest:
    return SliceRequest(share=share, devices=devices, mode=mode, machine=machine, user=1000)


# --- pure functions ---


def test_direct_mode_looks_on_the_programs_own_machine_only() -> None:
    assert [k.count for k in matching_in_mode(request("direct"), [A100, V100], MACHINES)] == [1]
    for mode in ("remote", "auto"):
        assert matching_in_mode(request(mode), [A100, V100], MACHINES) == [A100, V100]


@pytest.mark.parametrize("machine", ["m3", ""])  # an agent that forbids it tells no machine
def test_direct_mode_elsewhere_is_refused_with_what_to_do(machine: str) -> None:
    with pytest.raises(Refused, match="--direct, or use remote mode") as refusal:
        matching_in_mode(request("direct", machine), [V100], MACHINES)
    assert refusal.value.code == "no_direct"


def test_what_this_machine_cannot_give_is_said_of_this_machine() -> None:
    for wish, sentence in (
        (request("direct", devices=2), "2 devices are asked for; this machine has 1 that fit"),
        (
            SliceRequest(0.5, model="A100", mode="direct", machine="m1"),
            "This machine has no A100; it has V100",
        ),
        (request("direct", "m2"), "The GPU server on this machine offers no device now"),
    ):
        with pytest.raises(Refused, match=sentence):
            matching_in_mode(wish, [A100, V100], MACHINES)


def test_a_mode_that_is_none_and_a_user_that_is_nobody_are_refused() -> None:
    with pytest.raises(Refused, match="remote, direct, auto"):
        check_mode(request("fast"))
    with pytest.raises(Refused, match="is not the number of a user"):
        check_mode(SliceRequest(0.5, mode="direct", machine="m1", user=NO_USER))


def test_requests_and_leases_travel_with_their_mode_and_older_ones_are_remote() -> None:
    assert request_from(request_to(request("direct"))) == request("direct")
    message = request_to(SliceRequest(share=0.5))
    message.mode = ""
    assert request_from(message).mode == "remote"
    lease = Lease("l", "k", ANNA, (), "live", 1.0, 2.0, 20.0, 1, mode="direct")
    assert lease_from(lease_to(lease)) == lease


def test_a_machine_is_itself() -> None:
    assert machine_identity() == machine_identity()
    assert len(machine_identity()) in (0, 32)


# --- the pool: server s on no machine, here on m1, there on m2 ---


def servers(world: World) -> tuple[Agent, Agent]:
    here = Agent(world.manager, "here", devices=2, direct_machine="m1")
    there = Agent(world.manager, "there", direct_machine="m2")
    for agent in (here, there):
        agent.attach()
    return here, there


def ask(
    world: World, key: str, wish: SliceRequest, wait: float = -1, longest: float = 0
) -> AsyncIterator[Queued | Lease]:
    return world.manager.acquire(key, wish, ANNA, wait, 0, longest)


async def get(world: World, key: str, wish: SliceRequest, wait: float = 0, longest: float = 0) -> Lease:
    async for event in ask(world, key, wish, wait, longest):
        if isinstance(event, Lease):
            return event
    raise AssertionError


async def waits(world: World, key: str, wish: SliceRequest) -> tuple[AsyncIterator[Queued | Lease], Queued]:
    asked = ask(world, key, wish)
    first = await anext(asked)
    assert isinstance(first, Queued)
    return asked, first


async def leave(*asked: AsyncIterator[Queued | Lease]) -> None:
    for one in asked:
        await one.aclose()  # type: ignore[attr-defined]


def test_a_direct_lease_is_made_on_its_machine_for_its_user_without_a_worker(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        here, _ = servers(world)
        lease = await get(world, "k", request("direct", devices=2))
        assert (lease.mode, lease.user) == ("direct", 1000)
        assert [piece.device_id for piece in lease.slices] == ["here/0", "here/1"]
        assert here.users == {(lease.id, "here/0"): 1000, (lease.id, "here/1"): 1000}
        assert world.agent.to_start == []
        remote = await get(world, "r", request("remote"))
        assert (remote.mode, remote.user) == ("remote", 0)

    story(tmp_path, tell)


def test_auto_is_direct_where_that_has_room_and_else_remote(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        servers(world)
        for key, wish, mode, device in (
            ("a", request("auto", share=1.0), "direct", "here"),
            ("b", request("auto", share=1.0), "direct", "here"),
            ("c", request("auto", share=0.7), "remote", "there"),
            ("d", request("auto", "nowhere", share=0.7), "remote", "s"),
        ):
            lease = await get(world, key, wish)
            assert (lease.mode, lease.slices[0].server) == (mode, device), key
        with pytest.raises(Refused) as refusal:
            await get(world, "e", request("auto"))
        assert refusal.value.code == "full"

    story(tmp_path, tell)


def test_auto_over_more_devices_than_its_machine_has_is_remote(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        servers(world)
        lease = await get(world, "k", request("auto", devices=3))
        assert (lease.mode, len(lease.slices)) == ("remote", 3)

    story(tmp_path, tell)


def test_who_waits_for_a_machine_closes_that_machine_and_nothing_else(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        servers(world)
        held = [await get(world, f"h{i}", request("direct", share=0.8)) for i in range(2)]
        large, told = await waits(world, "large", request("direct", share=0.5))
        assert told.reason.startswith("This machine has no room for 16384 MiB of a device now")
        assert "most free on one device: 6554 MiB" in told.reason
        # Room of its machine is kept for it, whoever asks and in whatever mode.
        small, _ = await waits(world, "small", request("direct", share=0.1))
        elsewhere = await get(world, "elsewhere", request("auto", share=0.1))
        assert elsewhere.mode == "remote"
        other = await get(world, "other", request("direct", "m2", share=0.1))
        assert other.slices[0].server == "there"
        with pytest.raises(Refused, match="Others wait for Tesla V100"):
            await world.manager.resize(held[0].id, SliceRequest(share=0.9))
        assert [w.key for w in world.manager.waiting()] == ["large", "small"]
        world.manager.end(held[0].id, "done")
        got = await anext(large)
        assert isinstance(got, Lease)
        assert (got.mode, got.slices[0].device_id) == ("direct", held[0].slices[0].device_id)
        assert isinstance(await anext(small), Lease)

    story(tmp_path, tell)


def test_who_waits_remotely_for_a_model_is_not_passed_by_direct_mode(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        servers(world)
        for number in range(4):
            await get(world, f"h{number}", SliceRequest(share=0.8))
        large, _ = await waits(world, "large", SliceRequest(share=1.0))
        small, _ = await waits(world, "small", request("direct", share=0.1))
        await leave(large)
        assert isinstance(await anext(small), Lease)

    story(tmp_path, tell)


def test_a_promise_on_a_machine_lets_those_pass_who_are_over_in_time(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        servers(world)
        await get(world, "one", request("direct", share=0.8), longest=600)
        await get(world, "two", request("direct", share=0.8), longest=900)
        large, told = await waits(world, "large", request("direct", share=1.0))
        assert told.estimate_seconds == 600
        short = await get(world, "short", request("direct", share=0.2), longest=500)
        device = short.slices[0].device_id
        # Where nothing is promised there is room for ever.
        forever = await get(world, "forever", request("direct", share=0.2))
        assert {device, forever.slices[0].device_id} == {"here/0", "here/1"}
        await leave(large)

    story(tmp_path, tell)


def test_a_server_that_is_away_is_no_place_and_one_that_comes_back_is(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        here, _ = servers(world)
        for number in range(2):
            await get(world, f"h{number}", request("direct", share=1.0))
        asked, _ = await waits(world, "k", request("direct", share=0.5))
        world.sessions.detach("here", here)
        with pytest.raises(Refused, match="offers no device now"):
            await get(world, "j", request("direct", share=0.5))
        here.direct_machine = ""  # its agent was started again without --direct
        here.attach()
        with pytest.raises(Refused) as refusal:
            await get(world, "j", request("direct", share=0.5))
        assert refusal.value.code == "no_direct"
        await leave(asked)

    story(tmp_path, tell)


def test_an_agent_ends_leases_of_its_own_server_only(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        servers(world)
        lease = await get(world, "k", request("direct"))
        world.sessions.end_for("there", lease.id, "nonsense")
        world.sessions.end_for("here", "nothing", "nonsense")
        assert [one.state for one in world.manager.leases(False)] == ["live"]
        world.sessions.end_for("here", lease.id, "it held too much")
        (over,) = world.manager.leases(True)
        assert (over.state, over.end_reason) == ("ended", "it held too much")

    story(tmp_path, tell)


def test_a_pool_that_is_started_again_knows_modes_machines_and_users(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        here, _ = servers(world)
        held = await get(world, "held", request("direct", share=1.0, devices=2))
        asked, _ = await waits(world, "k", request("direct", share=0.5))
        before = world.manager.lease(held.id)
        world.manager.orders._agents.clear()
        world.store.close()  # as by kill -9
        again = World(tmp_path, now=world.now, alive=world.agent.alive)
        assert again.manager.lease(held.id) == before
        again.manager.tick()
        (entry,) = again.manager.waiting()
        assert entry.slice == request("direct", share=0.5)
        agent = Agent(again.manager, "here", devices=2, direct_machine="m1")
        agent.alive, agent.users = here.alive, here.users
        agent.attach()
        taken = ask(again, "k", request("direct", share=0.5))
        assert isinstance(await anext(taken), Queued)
        again.manager.end(held.id, "done")
        lease = await anext(taken)
        assert isinstance(lease, Lease)
        assert (lease.mode, agent.users[lease.id, lease.slices[0].device_id]) == ("direct", 1000)
        del asked

    story(tmp_path, tell)


def test_one_pool_decides_for_a_machine_whose_agent_speaks_with_another(database: str) -> None:
    if database.startswith("sqlite"):
        pytest.skip("several pools share a PostgreSQL database")

    async def tell() -> None:
        one, two = World(database, server="s"), World(database, server="t")
        here = Agent(two.manager, "here", direct_machine="m1")
        here.attach()
        task = asyncio.create_task(get(one, "k", request("direct"), wait=-1))
        await asyncio.sleep(0)
        two.manager.look()
        one.manager.look()
        lease = await task
        assert (lease.mode, lease.slices[0].server) == ("direct", "here")
        assert here.users == {(lease.id, "here/0"): 1000}
        one.store.close()
        two.store.close()

    asyncio.run(tell())


def test_the_room_of_one_machine_is_found_without_looking_at_the_others(tmp_path: Path) -> None:
    store = Store.in_directory(tmp_path)
    kinds = [DeviceClass("Tesla V100", 32 * GIB)]
    asked: list[str] = []
    with store.engine.connect() as db:
        db.connection.driver_connection.set_trace_callback(asked.append)  # type: ignore[union-attr]
        assert store.devices.on_machine(db, Machine(("here", "too")), kinds) == []
        plan = db.exec_driver_sql(f"EXPLAIN QUERY PLAN {asked[-1]}").fetchall()
    assert [row[3] for row in plan] == ["SEARCH devices USING INDEX ix_devices_server (server=?)"]
    store.close()


def test_holders_of_courses_are_bounded_in_direct_mode_too(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        servers(world)
        world.rule(quotas={"person:anna": Bounds(devices=0.6)})
        await get(world, "one", request("direct"))
        with pytest.raises(Refused, match="anna") as refusal:
            await get(world, "two", request("direct"))
        assert refusal.value.code == "quota"

    story(tmp_path, tell)
