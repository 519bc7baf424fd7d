"""Pools, PostgreSQL and agents that die while leases are held, and what their clients notice.

The ordinary suite lets each fault happen once; ``make failover`` goes on for ten minutes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpukernel.client.admin import AdminClient
from gpukernel.client.pool import PoolClient
from gpukernel.common.connection import read_connection_file
from gpukernel.common.errors import PoolUnreachable
from gpukernel.common.model import Holder, Lease, Queued, SliceRequest
from tests.failover import chaos
from tests.failover.cluster import Cluster, cluster, programs

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(programs() is None, reason="PostgreSQL is not installed"),
    pytest.mark.slow,
    pytest.mark.postgresql,
]

WHOLE = SliceRequest(share=0.9)
ANNA, BEN = Holder("anna"), Holder("ben")


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    """Two pools and one GPU server with one device."""
    with cluster(2, ("v100:1",)) as running:
        yield running


def restart(running: Cluster, number: int) -> None:
    pool = running.pools[number]
    times = pool.log.read_text().count(" is ready")
    pool.start()
    pool.wait_ready(times + 1)


@pytest.fixture(autouse=True)
def _all_run(request: pytest.FixtureRequest) -> None:
    """Have all pools run, whatever the test before has left."""
    if "running" in request.fixturenames:
        running = request.getfixturevalue("running")
        for number, pool in enumerate(running.pools):
            if not pool.runs:
                restart(running, number)


def test_each_fault_once_loses_no_lease_no_place_and_no_byte() -> None:
    assert chaos.main(["--seconds", "0", "--holders", "10", "--seed", "1"]) == 0


def test_leases_and_places_go_over_to_another_pool(running: Cluster) -> None:
    async def story() -> None:
        async with PoolClient(str(running.holders)) as client, PoolClient(str(running.holders)) as second:
            lease = await client.acquire_now("first", WHOLE, ANNA)
            ended: list[str] = []
            places: list[int] = []
            granted = asyncio.get_running_loop().create_future()

            async def wait() -> None:
                async for event in second.acquire("second", WHOLE, BEN):
                    if isinstance(event, Queued):
                        places.append(event.position)
                    else:
                        granted.set_result(event)

            async with client.keep_alive(lease, ended.append):
                waiting = asyncio.create_task(wait())
                while not places:
                    await asyncio.sleep(0.05)
                for number, signum in ((0, signal.SIGKILL), (1, signal.SIGTERM)):
                    assert (client._ways.current, second._ways.current) == (number, number)
                    running.pools[number].end(signum)
                    begun = time.monotonic()
                    assert (await client.renew(lease.id)).state == "live"
                    assert time.monotonic() - begun < 10  # a bound on being stuck: it is the promise
                    assert [one.id for one in (await client.leases())[0]] == [lease.id]
                    while [one.key for one in (await client.leases())[1]] != ["second"]:
                        await asyncio.sleep(0.1)  # the next second's look at the queue
                    while second._ways.current == number:
                        await asyncio.sleep(0.05)
                    await asyncio.to_thread(restart, running, number)
                assert (ended, set(places)) == ([], {1})
            await client.release(lease.id)
            theirs: Lease = await asyncio.wait_for(granted, 60)
            await waiting
            assert (theirs.key, theirs.state) == ("second", "live")
            await client.release(theirs.id)
            leases, queue = await client.leases(include_ended=True)
            assert [one.key for one in leases].count("second") == 1
            assert queue == []

    asyncio.run(story())


@pytest.mark.thorough
def test_asking_another_pool_again_gives_the_same_lease_and_the_first_call_ends_nothing(
    running: Cluster,
) -> None:
    async def story() -> None:
        ways = f"tls://{running.addresses[0]}", f"tls://{running.addresses[1]}"
        known = read_connection_file(running.holders)
        async with PoolClient(ways[0], known) as one, PoolClient(ways[1], known) as other:
            asking = (client.acquire_now("the same", WHOLE, ANNA) for client in (one, other))
            leases = await asyncio.gather(*asking)
            assert leases[0].id == leases[1].id
            assert (await other.renew(leases[0].id)).state == "live"
            await other.release(leases[0].id)

    asyncio.run(story())


def test_what_may_not_be_done_twice_is_not_repeated(running: Cluster) -> None:
    """A pool that takes the call and never answers stands before the real one."""

    async def story() -> None:
        asked = 0

        async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            host, _, port = running.addresses[0].rpartition(":")
            there, back = await asyncio.open_connection(host, int(port))
            asked += 1

            async def pass_on(
                source: asyncio.StreamReader, target: asyncio.StreamWriter, *, stops: bool
            ) -> None:
                count = 0
                while data := await source.read(2**16):
                    count += len(data)
                    if stops and cut.is_set():
                        continue
                    target.write(data)

            await asyncio.gather(pass_on(reader, back, stops=False), pass_on(there, writer, stops=True))

        cut = asyncio.Event()
        server = await asyncio.start_server(deaf, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        known = read_connection_file(running.administrator)
        ways = f"tls://127.0.0.1:{port},tls://{running.addresses[1]}"
        async with AdminClient(ways, known) as client:
            client.patience = 4
            await client.devices()
            before = len(await client.tokens())
            cut.set()
            with pytest.raises(PoolUnreachable, match="may have been done; look before you ask again"):
                await client.create_token("twice?", "anna")
            # What may be repeated finds the other pool.
            assert len(await client.tokens()) == before + 1
            assert client._ways.current == 1
        server.close()

    asyncio.run(story())


def test_new_connection_files_name_all_pools_and_the_command_line_uses_them(running: Cluster) -> None:
    text = running.holders.read_text()
    first, second = (f"tls://{address}" for address in running.addresses)
    assert f"addresses: {first}, {second}\n" in text
    chosen = running.file("chosen", "--person", "anna", "--address", second, "--address", "tls://a:1")
    assert f"addresses: {second}, tls://a:1\n" in chosen.read_text()
    running.pools[0].end()
    try:
        begun = time.monotonic()
        environment = running.environment | {"GPUKERNEL_POOL": str(running.administrator)}
        listed = subprocess.run(
            [*running.agents[0]._arguments[:3], "list-gpus"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert listed.returncode == 0, listed.stderr
        assert "gpu0/0" in listed.stdout
        assert time.monotonic() - begun < 30  # a bound on being stuck, most of it for Python to start
    finally:
        restart(running, 0)


def test_a_pool_that_says_nothing_is_passed_over(running: Cluster, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts connections, and says nothing
        known = running.holders.read_text()
        file = tmp_path / "silent.pool"
        first, second = running.addresses
        file.write_text(known.replace(first, f"127.0.0.1:{silent.getsockname()[1]}"))

        async def story() -> None:
            async with PoolClient(str(file)) as client:
                assert await client.devices()
                assert client.connection.addresses[client._ways.current] == f"tls://{second}"
            # Where nobody answers, the sentence names all of them.
            nobody = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:1"
            async with PoolClient(nobody, "t") as client:
                client.patience = 2
                with pytest.raises(PoolUnreachable, match=r"127\.0\.0\.1:\d+ or 127\.0\.0\.1:1"):
                    await client.devices()

        asyncio.run(story())


def test_who_waits_for_a_slice_gives_up_a_pool_that_stands_still(running: Cluster) -> None:
    async def story() -> None:
        async with PoolClient(str(running.holders)) as client:
            await client.devices()
            way = client._ways.current
            frozen = running.pools[way].process
            assert frozen is not None
            frozen.send_signal(signal.SIGSTOP)
            try:
                async with asyncio.timeout(50):  # a bound on being stuck: gRPC's own patience is a minute
                    lease = await client.acquire_now("beside", SliceRequest(share=0.02), Holder("anna"))
                assert client._ways.current != way
                await client.release(lease.id)
            finally:
                frozen.send_signal(signal.SIGCONT)

    asyncio.run(story())


def test_a_pool_stops_while_its_database_stands_still(running: Cluster) -> None:
    server = running.postgresql.processes()
    for each in server:
        os.kill(each, signal.SIGSTOP)
    try:
        time.sleep(2)  # until it waits for an answer
        stopped = running.pools[0]
        assert stopped.process is not None
        stopped.process.send_signal(signal.SIGTERM)
        assert stopped.process.wait(60) == 0
        assert "not stopped within 10 s; it ends now." in stopped.log.read_text()
    finally:
        for each in server:
            os.kill(each, signal.SIGCONT)
    restart(running, 0)
