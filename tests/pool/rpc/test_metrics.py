"""The metrics that Prometheus reads; the dashboard asks for nothing else."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gpukernel.common.bounds import Bounds
from gpukernel.common.course import Course
from gpukernel.common.errors import PoolError
from gpukernel.common.model import Holder, Queued, Usage
from gpukernel.pool.rpc.metrics import exposition, known, serve_metrics
from tests.pool.world import GIB, Agent, World, story

DASHBOARD = Path(__file__).parents[3] / "deploy" / "grafana" / "gpukernel.json"
SAMPLE = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)')


def read(text: str) -> dict[tuple[str, str], float]:
    samples = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            samples[match[1], match[2] or ""] = float(match[3])
    return samples


def test_figures_are_those_of_the_pool(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(Course('m"l', members={"*": "student"}), quotas={'course:m"l': Bounds(devices=0.75)})
        lease = await world.get("a", 0.5, holder=Holder("anna", course='m"l'))
        world.sessions.heartbeat("s", {(lease.id, "s/0"): Usage(memory_used_bytes=GIB, connections=1)})
        waiting = world.ask("b", 0.5, holder=Holder("anna", course='m"l'))
        assert isinstance(await anext(waiting), Queued)
        world.now += 3600
        text = exposition(world.store, known(world.manager))
        assert "anna" not in text
        found = read(text)
        device = 'device="s/0",server="s",model="Tesla V100"'
        assert found["gpukernel_device_memory_bytes", device] == 32 * GIB
        assert found["gpukernel_device_promised_bytes", device] == 16 * GIB
        assert found["gpukernel_device_used_bytes", device] == GIB
        assert found["gpukernel_leases", 'state="live"'] == 1
        assert found["gpukernel_grants_total", ""] == 1
        assert found["gpukernel_waiting", 'course="m\\"l"'] == 1
        assert found["gpukernel_longest_wait_seconds", ""] == 3600
        assert found["gpukernel_course_devices", 'course="m\\"l"'] == 0.5
        assert found["gpukernel_course_devices_quota", 'course="m\\"l"'] == 0.75
        assert found["gpukernel_course_device_hours", 'course="m\\"l",period="term"'] == pytest.approx(0.5)

    story(tmp_path, tell)


def test_a_device_that_an_engine_decides_over_is_not_broken(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.agent.tell_uuids()
        world.agent.attach()
        world.store.deciders.delegate("s/0", "slurm", "root", world.now)
        device = f'device="s/0",server="s",model="Tesla V100",uuid="{world.agent.devices[0].uuid}"'
        found = read(exposition(world.store, known(world.manager)))
        assert found["gpukernel_device_available", device] == 1
        assert found["gpukernel_device_decided_by", f'{device},decided_by="slurm"'] == 1
        world.store.servers.note_faults("s", {f"s/{world.agent.devices[0].uuid}": "the fan rattles"})
        assert read(exposition(world.store, known(world.manager)))["gpukernel_device_available", device] == 0

    story(tmp_path, tell)


def test_the_dashboard_asks_only_for_figures_that_there_are(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        text = exposition(world.store, known(world.manager))
        named = set(re.findall(r"# TYPE (\w+)", text))
        panels = json.loads(DASHBOARD.read_text())["panels"]
        asked = {
            name
            for panel in panels
            for target in panel["targets"]
            for name in re.findall(r"gpukernel_\w+", target["expr"])
        }
        assert len(panels) >= 10
        assert asked <= named
        assert named - asked == {"gpukernel_device_leases", "gpukernel_device_decided_by"}

    story(tmp_path, tell)


def test_they_are_served_over_http_and_nothing_else_is(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

    def fetch(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    async def tell(world: World) -> None:
        async with serve_metrics(address, world.store, world.manager, asyncio.get_running_loop()):
            status, text = await asyncio.to_thread(fetch, "/metrics")
            assert status == 200
            assert read(text)["gpukernel_grants_total", ""] == 0
            for probe in ("/livez", "/readyz"):
                assert await asyncio.to_thread(fetch, probe) == (200, "ok\n")
            assert (await asyncio.to_thread(fetch, "/"))[0] == 404
            reader, writer = await asyncio.open_connection(*address.split(":"))
            writer.write(b"x" * 20_000)  # no request at all
            assert await reader.read() == b""
            writer.close()
            with pytest.raises(PoolError, match="cannot be served"):
                async with serve_metrics(address, world.store, world.manager, asyncio.get_running_loop()):
                    pass
        with pytest.raises(PoolError, match="no address"):
            async with serve_metrics("nonsense", world.store, world.manager, asyncio.get_running_loop()):
                pass

    story(tmp_path, tell)


def test_a_pool_without_its_database_is_alive_and_not_ready(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

    def status(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    class Away:
        """A store whose database answers nobody."""

        class reader:
            @staticmethod
            def connect() -> None:
                raise sa.exc.OperationalError("", {}, Exception("connection refused"))

    async def tell(world: World) -> None:
        away: Any = Away()
        async with serve_metrics(address, away, world.manager, asyncio.get_running_loop()):
            found = {
                path: await asyncio.to_thread(status, path) for path in ("/livez", "/readyz", "/metrics")
            }
        assert found == {"/livez": 200, "/readyz": 503, "/metrics": 503}

    story(tmp_path, tell)


def test_parts_of_a_pool_are_counted(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        await world.get("a", 0.25)
        other = Agent(world.manager, "t")
        other.attach()
        world.manager.drain("t", "admin")
        found = read(exposition(world.store, known(world.manager)))
        assert found["gpukernel_servers", 'state="attached"'] == 1
        assert found["gpukernel_servers", 'state="draining"'] == 1
        assert found["gpukernel_agents", ""] == 2
        assert found["gpukernel_pools", ""] == 1
        assert found["gpukernel_leases_by_decider", 'decided_by="pool"'] == 1
        assert found["gpukernel_leases_by_decider", 'decided_by="slurm"'] == 0
        assert found["gpukernel_decisions_total", ""] >= 1
        assert found["gpukernel_decision_seconds_total", ""] > 0
        assert found["gpukernel_fenced_bytes", ""] == 0
        world.sessions.detach("s", world.agent)
        world.agent.attachment = None
        found = read(exposition(world.store, known(world.manager)))
        assert found["gpukernel_servers", 'state="away"'] == 1
        assert found["gpukernel_agents", ""] == 1
        assert found["gpukernel_fenced_bytes", ""] == 8 * GIB

    story(tmp_path, tell)


def test_waits_for_the_disk_are_counted(new_postgresql: Callable[[], str]) -> None:
    async def tell(world: World) -> None:
        await world.get("a", 0.25)
        store = world.store
        await store.commits.lasting(store.commits.number)
        found = read(exposition(store, known(world.manager)))
        assert found["gpukernel_commit_waits_total", ""] == 1
        assert found["gpukernel_commit_wait_seconds_total", ""] > 0
        world.pass_time(1)
        assert read(exposition(store, known(world.manager)))["gpukernel_everything_read_total", ""] == 1
        world.rule(Course("ml", members={"*": "student"}))
        await world.get("b", 0.25)
        world.pass_time(1)
        assert read(exposition(store, known(world.manager)))["gpukernel_changes_read_total", ""] >= 1

    asyncio.run(_tell(new_postgresql(), tell))


async def _tell(url: str, tell: Callable[[World], Awaitable[None]]) -> None:
    await tell(World(url))
