"""Pools, PostgreSQL and agents that are killed at random under load, with the books' invariants, and the times to recover.

    python -m tests.failover.chaos --seconds 600

It fails where a lease is lost that somebody holds, a key has two leases, a place in the queue is lost, a byte is promised twice,
or something takes longer than a minute to recover.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg

from gpukernel.pool.store.store import Store
from tests.failover.cluster import Cluster, Process, cluster
from tests.failover.load import Load, Seen
from tests.pool.books import check_books

__all__ = ["Chaos", "main"]

RECOVERS_SECONDS = 60.0
FROZEN_SECONDS = 12.0

Times = dict[str, list[float]]

_OVERFULL = """
    SELECT d.id, sum(s.memory_bytes) FROM slices s JOIN devices d ON d.id = s.device_id
    WHERE s.worker <> 'gone' GROUP BY d.id, d.memory_bytes HAVING sum(s.memory_bytes) > d.memory_bytes
"""
_TWICE = (
    "SELECT key, count(*) FROM leases WHERE state IN ('starting', 'live') GROUP BY key HAVING count(*) > 1"
)
_OTHER = "SELECT key, id, state, end_reason FROM leases"

GIVEN_UP = (
    "the request was given up",
    "did not confirm the start",
    "its worker ended",
    "gave no sign of life",
)
"""The ends of leases that were never delivered to whoever asked for them."""

ENDED = "ended PostgreSQL's process"
"""The words of a pool that has ended the connection of one which stood still with a lock."""

NOBODYS_SECONDS = 20.0
"""The most for which a pool that wakes keeps a lease of somebody who was given another one meanwhile, and has given it back."""


class Chaos:
    """The faults of one run."""

    def __init__(self, running: Cluster, load: Load, chance: random.Random) -> None:
        self._cluster, self._load, self._chance = running, load, chance
        self.times: dict[str, Times] = defaultdict(lambda: defaultdict(list))
        self._away = 0.0
        self._nobodys: dict[str, float] = {}  # living leases that nobody was given, and since when

    @property
    def seen(self) -> Seen:
        return self._load.seen

    def faults(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return the faults by their names in the table."""
        return {
            "`kill -9` of a pool": self.kill_pool,
            "a pool is frozen for 12 s": self.freeze_pool,
            "rolling restart of all pools": self.restart_pools,
            "`kill -9` of PostgreSQL": self.kill_postgresql,
            "PostgreSQL is restarted": self.restart_postgresql,
            "`kill -9` of an agent": self.kill_agent,
        }

    async def run(self, seconds: float, only: str = "") -> None:
        """Let one fault come after the other, each as often as the others; with 0 seconds, each once."""
        faults = {name: fault for name, fault in self.faults().items() if only in name}
        end = time.monotonic() + seconds
        left = list(faults)
        self._chance.shuffle(left)
        while time.monotonic() < end or (left and not seconds):
            if not left:
                left = list(faults)
                self._chance.shuffle(left)
            await self.one(left[0], faults[left.pop(0)])
            await asyncio.sleep(self._chance.uniform(0.5, 3))

    async def one(self, name: str, fault: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let a fault happen, and see how long everybody takes to recover from its beginning; of PostgreSQL's, from when it answers again."""
        work = asyncio.create_task(fault())
        if "PostgreSQL" in name:  # how long that takes to recover itself is the machine's affair
            await work
            self.times[name]["away"].append(self._away)
        begun = time.monotonic()
        waits = {
            "holders": self._until(lambda: self._last_answer(begun)),
            "grants": self._until(
                lambda: next((done for ask, done in self.seen.grants if ask > begun), None)
            ),
        }
        found = await asyncio.gather(*waits.values())
        await work
        self.check()
        # The last of several restarts may come later than the first answers.
        servers = await self._until(lambda: next((at for at in self.seen.complete if at > begun + 1), None))
        for what, when in zip((*waits, "servers"), (*found, servers), strict=True):
            assert when is not None, f"{name}: no {what} within {RECOVERS_SECONDS:.0f} s"
            self.times[name][what].append(when - begun)
        print(f"{name}: " + ", ".join(f"{w} {t[-1]:.1f} s" for w, t in self.times[name].items()), flush=True)

    def _last_answer(self, begun: float) -> float | None:
        """Return when the last of those who hold a lease was answered after the fault; None where somebody was not yet."""
        held = [self.seen.answers.get(number, 0.0) for number in self.seen.holding]
        return time.monotonic() if held and min(held) > begun else None

    async def _until(self, found: Callable[[], float | None]) -> float | None:
        end = time.monotonic() + RECOVERS_SECONDS
        while (when := found()) is None and time.monotonic() < end:
            await asyncio.sleep(0.02)
        return when

    def check(self) -> None:
        """Fail where something was lost, or promised twice."""
        seen = self.seen
        assert not seen.lost, f"lost: {seen.lost}"
        with psycopg.connect(self._cluster.postgresql.address()) as db:
            for key in seen.passed:
                # One that was granted, but could not be started, begins anew.
                ended = db.execute("SELECT count(*) FROM leases WHERE key = %s", [key]).fetchone()
                assert ended is not None
                assert ended[0] > (key in seen.delivered), f"{key} lost its place"
            for query in (_OVERFULL, _TWICE):
                assert not (found := db.execute(query).fetchall()), f"{query}: {found}"
            others = [
                row
                for row in db.execute(_OTHER).fetchall()
                if seen.delivered.get(row[0]) not in (None, row[1])
            ]
        now = time.monotonic()
        living = {
            lease_id: self._nobodys.get(lease_id, now)
            for _, lease_id, state, _ in others
            if state in ("starting", "live")
        }
        self._nobodys = living
        for key, lease_id, _, reason in others:
            what = f"{key} has {seen.delivered[key]} and {lease_id}"
            if lease_id in living:
                assert now < living[lease_id] + NOBODYS_SECONDS, what
            else:
                assert any(words in reason for words in GIVEN_UP), f"{what}: {reason}"

    # --- faults ---

    async def _again(self, process: Process, number: int, pause: float) -> None:
        """End a process, and start it again."""
        times = process.log.read_text(errors="replace").count(" is ready")
        await asyncio.to_thread(process.end, number)
        await asyncio.sleep(pause)
        process.start()
        await asyncio.to_thread(process.wait_ready, times + 1)

    def _pool(self) -> Process:
        """Return the pool that most holders speak with."""
        ways = Counter(client._ways.current for client in self._load.clients)
        return self._cluster.pools[max(ways, key=lambda way: ways[way])]

    async def kill_pool(self) -> None:
        await self._again(self._pool(), signal.SIGKILL, self._chance.uniform(0, 4))

    async def freeze_pool(self) -> None:
        pool = self._pool().process
        assert pool is not None
        pool.send_signal(signal.SIGSTOP)
        await asyncio.sleep(FROZEN_SECONDS)
        pool.send_signal(signal.SIGCONT)

    async def restart_pools(self) -> None:
        for pool in self._cluster.pools:
            await self._again(pool, signal.SIGTERM, 0)

    async def kill_postgresql(self) -> None:
        begun = time.monotonic()
        self._cluster.postgresql.kill()
        await asyncio.sleep(2)
        await asyncio.to_thread(self._cluster.postgresql.start)
        self._away = time.monotonic() - begun

    async def restart_postgresql(self) -> None:
        begun = time.monotonic()
        await asyncio.to_thread(self._cluster.postgresql.stop)
        await asyncio.to_thread(self._cluster.postgresql.start)
        self._away = time.monotonic() - begun

    async def kill_agent(self) -> None:
        await self._again(self._chance.choice(self._cluster.agents), signal.SIGKILL, 2)

    # --- the end ---

    async def settle(self) -> None:
        """Have everybody give back what they have; fail where a lease, a promise or a worker is left."""
        end = time.monotonic() + RECOVERS_SECONDS
        while True:
            with psycopg.connect(self._cluster.postgresql.address()) as db:
                left = db.execute(
                    "SELECT key, state, end_reason FROM leases WHERE state <> 'ended'"
                ).fetchall()
            if not left:
                break
            assert time.monotonic() < end, f"not over: {left}"
            await asyncio.sleep(0.5)
        self.check()
        store = await asyncio.to_thread(Store, self._cluster.postgresql.address())
        try:
            check_books(store, {})
        finally:
            store.close()
        assert not (workers := self._workers()), workers

    def _workers(self) -> list[str]:
        listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        ours = (line for line in listed.splitlines() if str(self._cluster.folder) in line)
        return [line for line in ours if "gpukernel-worker" in line.split()[0]]

    def table(self) -> str:
        """Return the times to recover as a table."""
        lines = [
            "| fault | times | holders | new grants | GPU servers |",
            "| --- | ---: | ---: | ---: | ---: |",
        ]
        for name, times in self.times.items():
            cells = [
                f"{statistics.median(times[what]):.1f} s, {max(times[what]):.1f} s"
                for what in ("holders", "grants", "servers")
            ]
            away = times.get("away")
            after = f", away for {statistics.median(away):.0f} s, from its return on" if away else ""
            lines.append(f"| {name}{after} | {len(times['holders'])} | {' | '.join(cells)} |")
        return "\n".join(lines)


async def _run(running: Cluster, seconds: float, holders: int, seed: int, only: str) -> Chaos:
    chance = random.Random(seed)
    load = Load(running.holders, running.administrator, holders, running.devices, chance)
    chaos = Chaos(running, load, chance)
    making = asyncio.create_task(load.run())
    try:
        while len(load.seen.holding) < 4:
            assert not making.done(), making.result()
            await asyncio.sleep(0.1)
        running_chaos = asyncio.create_task(chaos.run(seconds, only))
        await asyncio.wait([making, running_chaos], return_when=asyncio.FIRST_COMPLETED)
        if making.done():
            running_chaos.cancel()
            making.result()
        await running_chaos
    finally:
        load.stop()
        await asyncio.wait([making], timeout=RECOVERS_SECONDS)
    await making
    await chaos.settle()
    return chaos


def main(arguments: list[str]) -> int:
    """Run it, and print the table."""
    parser = argparse.ArgumentParser(prog="tests.failover.chaos")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--holders", type=int, default=14)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", default="", help="faults with this in their names")
    chosen = parser.parse_args(arguments)
    print(f"seed {chosen.seed}", flush=True)
    with cluster() as running:
        chaos = asyncio.run(_run(running, chosen.seconds, chosen.holders, chosen.seed, chosen.only))
        seen = chaos.seen
        print("median and longest time from the fault on:\n")
        print(chaos.table())
        print(
            f"\n{len(seen.delivered)} leases, none lost; {len(seen.again)} starts failed and were made again; "
            f"{seen.unreachable} calls found no pool within their time; "
            f"{sum(pool.log.read_text(errors='replace').count(ENDED) for pool in running.pools)} connections of frozen pools were ended."
        )
        print("".join(f"made again: {reason}\n" for reason in seen.again), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
