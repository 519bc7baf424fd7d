"""A crowd: 200 honest students and 5 hostile ones in one pool; ``make crowd`` runs it and prints the honest ones' waits as a table.

Each part is a process of its own: the pool with a stand-in for its GPU servers, the honest students, and each hostile one.  It runs twice:
once with five students who take what their quotas allow and are quiet, and once with five who attack besides.  So what differs is the attack
alone.  The pool is full most of the time, as on the evening before a deadline.

The hostile ones: one floods (calls and requests without end), one hoards (as many slices and places as it gets), one sends what is no
message or a much too large one, one opens connections and streams and is silent, one guesses tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import secrets
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio

import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.pool_pb2_grpc as rpc
from gpukernel.client.admin import AdminClient
from gpukernel.client.pool import PoolClient
from gpukernel.common.address import socket_path
from gpukernel.common.connection import connection
from gpukernel.common.errors import PoolError
from gpukernel.common.model import Holder, SliceRequest
from gpukernel.pool.rpc.server import serve
from tests.pool.world import Agent
from tests.ports import free_port

OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
"""gRPC has all channels of a process share a connection; but these are people at machines of their own."""

HOLD_SECONDS = 2.0
THINK_SECONDS = 1.0
COURSES = """
courses:
  honest: {students: "*", each_student: {leases: 1}}
  hostile: {students: "*", each_student: {leases: 2}}
"""


# --- the pool ---


async def pool(students: int, seconds: float) -> None:
    """Run a pool with room for half of the students; print its address and everybody's token, and end with standard input."""
    with tempfile.TemporaryDirectory(prefix="gpukernel-crowd-") as folder:
        address = f"127.0.0.1:{free_port()}"
        async with serve(Path(folder), address) as running:
            agent = Agent(running.manager, "s", devices=1)
            agent.attach()
            async with AdminClient(f"unix:{socket_path(Path(folder))}") as admin:
                await admin.import_courses(COURSES)
                names = [f"student {n}" for n in range(students)] + [
                    f"mallory {n}" for n in range(len(HOSTILE))
                ]
                tokens = {name: (await admin.create_token("laptop", name))[1] for name in names}
            known = {"address": address, "tokens": tokens, "share": 1 / math.ceil(students * 0.45 + 10)}
            print(json.dumps(known), flush=True)
            told = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
            while not told.done():
                agent.sessions.heartbeat("s", {})
                await asyncio.wait([told], timeout=1)


# --- the honest ---


async def student(known: dict[str, Any], name: str, end: float, chance: random.Random) -> dict[str, Any]:
    """Take a slice, work, give it back and think, again and again; return the waits in seconds, and what was refused."""
    waits, refused = list[float](), list[str]()
    await asyncio.sleep(chance.uniform(0, HOLD_SECONDS))
    slice = SliceRequest(share=known["share"])
    async with PoolClient(known["address"], known["tokens"][name]) as client:
        while time.monotonic() < end:
            begin = time.monotonic()
            try:
                lease = await client.acquire_now(
                    secrets.token_hex(8), slice, Holder(name, course="honest"), ttl_seconds=60
                )
                waits.append(time.monotonic() - begin)
                await asyncio.sleep(HOLD_SECONDS * chance.uniform(0.5, 1.5))
                await client.renew(lease.id)
                await client.release(lease.id)
            except PoolError as error:
                refused.append(str(error))
            await asyncio.sleep(THINK_SECONDS * chance.uniform(0.5, 1.5))
    return {"waits": waits, "refused": refused}


async def honest(known: dict[str, Any], seconds: float) -> None:
    """Run all honest students; print what happened to them."""
    connection._OPTIONS_OF_ONE.append(OWN_CONNECTION)
    end, chance = time.monotonic() + seconds, random.Random(7)
    students = [name for name in known["tokens"] if name.startswith("student")]
    found = await asyncio.gather(
        *(student(known, name, end, random.Random(chance.random())) for name in students)
    )
    print(
        json.dumps(
            {
                "waits": [wait for one in found for wait in one["waits"]],
                "refused": [why for one in found for why in one["refused"]],
                "unserved": sum(not one["waits"] for one in found),
            }
        )
    )


# --- the hostile ---


async def hoard(address: str, name: str, token: str, count: int) -> None:
    """Keep what the quota allows, and ask for `count` in all."""
    async with PoolClient(address, token) as client:

        async def keep(number: int) -> None:
            with contextlib.suppress(PoolError):
                lease = await client.acquire_now(
                    f"{name} {number}",
                    SliceRequest(share=0.01),
                    Holder(name, course="hostile"),
                    ttl_seconds=600,
                )
                while True:
                    await asyncio.sleep(20)
                    await client.renew(lease.id)

        await asyncio.gather(*(keep(number) for number in range(count)))
        await asyncio.Event().wait()


async def flood(address: str, name: str, token: str) -> None:
    """Call as fast as possible, in 50 calls at a time."""
    async with grpc.aio.insecure_channel(address, options=[OWN_CONNECTION]) as channel:
        stub, metadata = rpc.PoolStub(channel), (("authorization", f"Bearer {token}"),)

        async def again() -> None:
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await stub.ListLeases(pb.ListLeasesRequest(include_ended=True), metadata=metadata)
                    request = pb.AcquireRequest(key=secrets.token_hex(8), wait_seconds=0)
                    request.slice.share, request.holder.course = 0.02, "hostile"
                    async for _ in stub.Acquire(request, metadata=metadata):
                        pass

        await asyncio.gather(*(again() for _ in range(50)))


async def malform(address: str, name: str, token: str) -> None:
    """Send bytes that are no message, messages that are too large, and bytes that are not even HTTP/2."""
    host, _, port = address.rpartition(":")
    metadata = (("authorization", f"Bearer {token}"),)
    large = pb.HoldRequest(hold=["x" * 22] * 150_000).SerializeToString()
    async with grpc.aio.insecure_channel(address) as channel:
        plain: dict[str, Any] = {"request_serializer": None, "response_deserializer": None}
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError, OSError, asyncio.InvalidStateError):
                await channel.unary_unary("/gpukernel.v1.Pool/Renew", **plain)(
                    secrets.token_bytes(60_000), metadata=metadata
                )
            with contextlib.suppress(grpc.aio.AioRpcError, OSError, asyncio.InvalidStateError):
                call = channel.stream_stream("/gpukernel.v1.Pool/Hold", **plain)(metadata=metadata)
                await call.write(large)
                await call.read()
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(secrets.token_bytes(100_000))
                await writer.drain()
                writer.close()
            await asyncio.sleep(0.05)


async def dawdle(address: str, name: str, token: str) -> None:
    """Open connections and say nothing, and streams that are neither written to nor read."""
    host, _, port = address.rpartition(":")
    silent = list[socket.socket]()
    async with grpc.aio.insecure_channel(address, options=[OWN_CONNECTION]) as channel:
        stub, metadata = rpc.PoolStub(channel), (("authorization", f"Bearer {token}"),)
        calls = [stub.Hold(metadata=metadata) for _ in range(300)]
        for call in calls:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(pb.HoldRequest(hold=[secrets.token_hex(8) for _ in range(1000)]))
        while True:
            with contextlib.suppress(OSError):
                silent.append(socket.create_connection((host, int(port)), timeout=5))
            if len(silent) > 400:
                silent.pop(0).close()
            await asyncio.sleep(0.02)


async def guess(address: str, name: str, token: str) -> None:
    """Call with made-up tokens, over ten connections."""

    async def again() -> None:
        while True:
            async with grpc.aio.insecure_channel(address, options=[OWN_CONNECTION]) as channel:
                for _ in range(20):
                    metadata = (
                        ("authorization", f"Bearer gpk{secrets.token_hex(5)}.{secrets.token_hex(16)}"),
                    )
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        await rpc.PoolStub(channel).ListDevices(pb.ListDevicesRequest(), metadata=metadata)

    await asyncio.gather(*(again() for _ in range(10)))


async def hoard_all(address: str, name: str, token: str) -> None:
    """Ask for 500 slices."""
    await hoard(address, name, token, 500)


HOSTILE: dict[str, Callable[[str, str, str], Awaitable[None]]] = {
    "flood": flood,
    "hoard": hoard_all,
    "malform": malform,
    "dawdle": dawdle,
    "guess": guess,
}


async def hostile(known: dict[str, Any], number: int, attack: bool) -> None:
    """Be one of the five until killed: take what the quota allows, and attack beside that."""
    name = f"mallory {number}"
    work = [hoard(known["address"], name, known["tokens"][name], 2)]
    if attack:
        work.append(list(HOSTILE.values())[number](known["address"], name, known["tokens"][name]))  # type: ignore[arg-type]
    await asyncio.gather(*work)


# --- the whole ---


@contextlib.asynccontextmanager
async def process(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A part of the crowd in a process of its own, ended with the context."""
    pipe = asyncio.subprocess.PIPE
    # The five have machines of their own: what their programs compute, and what the pool does not, is not to slow down anybody here.
    nice = ("nice", "-n", "19") if words[0] == "hostile" else ()
    command = (*nice, sys.executable, "-m", "tests.attacks.crowd", *words)
    started = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=2**26)
    try:
        yield started
    finally:
        if words[0] == "pool":
            assert started.stdin is not None
            started.stdin.close()
        elif started.returncode is None:
            started.kill()
        await started.wait()


async def run(students: int, seconds: float, *, attack: bool) -> dict[str, Any]:
    """Return what happened to the honest students of one run."""
    async with contextlib.AsyncExitStack() as stack:
        there = await stack.enter_async_context(process("pool", str(students), str(seconds)))
        assert there.stdout is not None
        known = (await there.stdout.readline()).decode().strip()
        for number in range(len(HOSTILE)):
            await stack.enter_async_context(process("hostile", known, str(number), str(int(attack))))
        await asyncio.sleep(2)  # the five have what they keep
        crowd = await stack.enter_async_context(process("honest", known, str(seconds)))
        assert crowd.stdout is not None
        return dict(json.loads((await crowd.stdout.read()).decode()))


def share(waits: list[float], part: float) -> float:
    """Return the wait that a part of all does not exceed."""
    return sorted(waits)[max(math.ceil(len(waits) * part) - 1, 0)]


def table(quiet: dict[str, Any], attacked: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Return the figures of both runs, by name."""
    figures: list[tuple[str, Callable[[dict[str, Any]], float]]] = [
        ("slices granted", lambda one: len(one["waits"])),
        ("requests refused", lambda one: len(one["refused"])),
        ("students without a slice", lambda one: one["unserved"]),
        ("mean wait, s", lambda one: statistics.fmean(one["waits"])),
        ("median wait, s", lambda one: statistics.median(one["waits"])),
        ("99th percentile, s", lambda one: share(one["waits"], 0.99)),
        ("longest wait, s", lambda one: max(one["waits"])),
    ]
    return [(name, figure(quiet), figure(attacked)) for name, figure in figures]


async def compare(students: int, seconds: float) -> int:
    """Run the crowd with five quiet and with five hostile students; print the table, return an exit status."""
    quiet = await run(students, seconds, attack=False)
    attacked = await run(students, seconds, attack=True)
    print(f"{students} honest students, {seconds:g} s, beside five …")
    print(f"{'':28}{'quiet':>10}{'hostile':>10}{'ratio':>8}")
    for name, before, after in table(quiet, attacked):
        ratio = f"{after / before:.2f}" if before else ""
        print(f"{name:28}{before:>10.2f}{after:>10.2f}{ratio:>8}")
    for why in sorted(set(attacked["refused"]))[:5]:
        print(f"refused: {why}")
    slower = any(
        after > 1.2 * before for name, before, after in table(quiet, attacked) if name.endswith(", s")
    )
    return int(bool(attacked["refused"]) or bool(attacked["unserved"]) or slower)


def main() -> int:
    """Run one part, or the whole."""
    if sys.argv[1:2] == ["pool"]:
        asyncio.run(pool(int(sys.argv[2]), float(sys.argv[3])))
        return 0
    if sys.argv[1:2] == ["honest"]:
        asyncio.run(honest(json.loads(sys.argv[2]), float(sys.argv[3])))
        return 0
    if sys.argv[1:2] == ["hostile"]:
        asyncio.run(hostile(json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1"))
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--students", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300.0)
    chosen = parser.parse_args()
    return asyncio.run(compare(chosen.students, chosen.seconds))


if __name__ == "__main__":
    sys.exit(main())
