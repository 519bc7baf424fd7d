"""Load on pools that die: holders that wait for slices, hold them, renew them and give them back, and what each of them has seen."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from gpukernel.client.admin import AdminClient
from gpukernel.client.pool import PoolClient
from gpukernel.common.errors import PoolError, PoolUnreachable, Refused
from gpukernel.common.model import Holder, Lease, Queued, SliceRequest

__all__ = ["Load", "Seen"]

LOOK_SECONDS = 0.5
WANTED = SliceRequest(share=0.45, model="V100")
SMALL = SliceRequest(share=0.02, model="A100")
HOLD_SECONDS = (3.0, 15.0)


@dataclass
class Seen:
    """The experience of all holders, by the monotonic clock.

    Attributes
    ----------
    answers
        For each holder of a lease: when its last call that was answered began.
    grants
        When small requests were made, and when they were granted.
    complete
        When an administrator saw all devices available.
    delivered
        The lease that each key was given.
    lost
        Leases that ended while they were held, with the reason.
    passed
        Keys of requests that were told a later place in the queue than before.
    again
        Starts that failed, with the reason: the same key was asked again.
    """

    answers: dict[int, float] = field(default_factory=dict)
    holding: set[int] = field(default_factory=set)
    grants: list[tuple[float, float]] = field(default_factory=list)
    complete: list[float] = field(default_factory=list)
    delivered: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)
    unreachable: int = 0


class Load:
    """`holders` people who want more slices than there are, on the pools of a connection file."""

    def __init__(
        self, file: Path, administrator: Path, holders: int, devices: int, chance: random.Random
    ) -> None:
        self.seen = Seen()
        self._file, self._administrator = str(file), str(administrator)
        self._holders, self._devices, self._chance = holders, devices, chance
        self.clients: list[PoolClient] = []
        self._stops = asyncio.Event()
        self._asking = set[asyncio.Task[Lease | None]]()

    async def run(self) -> None:
        """Make load until `stop`; then everybody gives back what they have."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._holders):
                tasks.create_task(self._hold(number))
            tasks.create_task(self._ask_small())
            tasks.create_task(self._look())
            await self._stops.wait()
            for task in self._asking:
                task.cancel()

    def stop(self) -> None:
        """Have everybody stop."""
        self._stops.set()

    async def _hold(self, number: int) -> None:
        count = 0
        async with PoolClient(self._file) as client:
            self.clients.append(client)
            while not self._stops.is_set():
                count += 1
                key, holder = f"holder{number}-{count}", Holder(f"person{number}")
                lease = await self._acquire(client, key, WANTED, holder)
                if lease is None:
                    return
                await self._use(client, number, lease)
                await self._until_done(client, lease)

    async def _acquire(
        self, client: PoolClient, key: str, wanted: SliceRequest, holder: Holder
    ) -> Lease | None:
        """Ask until there is a lease, always with the same key; None where the load stops meanwhile."""
        asking = asyncio.create_task(self._ask(client, key, wanted, holder))
        self._asking.add(asking)
        await asyncio.wait([asking])
        self._asking.discard(asking)
        return None if asking.cancelled() else asking.result()

    async def _ask(self, client: PoolClient, key: str, wanted: SliceRequest, holder: Holder) -> Lease | None:
        place = 10**9
        while not self._stops.is_set():
            try:
                events = client.acquire(key, wanted, holder)
                async with contextlib.aclosing(events):
                    async for event in events:
                        if isinstance(event, Queued):
                            if event.position > place:
                                self.seen.passed.append(key)
                            place = event.position
                        else:
                            self.seen.delivered[key] = event.id
                            return event
            except PoolUnreachable:
                self.seen.unreachable += 1
            except Refused as refusal:
                if refusal.code != "failed":
                    raise
                self.seen.again.append(str(refusal))
                place = 10**9  # it had been granted: it asks anew
            await asyncio.sleep(LOOK_SECONDS)
        return None

    async def _use(self, client: PoolClient, number: int, lease: Lease) -> None:
        """Hold a lease for some time: an open stream keeps it alive, and calls show when a pool answers."""
        until = time.monotonic() + self._chance.uniform(*HOLD_SECONDS)

        def ended(reason: str) -> None:
            self.seen.lost.append(f"{lease.key} {lease.id}: {reason}")

        async with client.keep_alive(lease, ended):
            self.seen.holding.add(number)
            while time.monotonic() < until and not self._stops.is_set():
                begun = time.monotonic()
                try:
                    await client.renew(lease.id)
                    self.seen.answers[number] = begun
                except PoolUnreachable:
                    self.seen.unreachable += 1
                except PoolError as error:
                    ended(str(error))
                    break
                await asyncio.sleep(LOOK_SECONDS)
            self.seen.holding.discard(number)

    async def _until_done(self, client: PoolClient, lease: Lease) -> None:
        while True:
            try:
                await client.release(lease.id)
                return
            except PoolUnreachable:
                self.seen.unreachable += 1
                await asyncio.sleep(LOOK_SECONDS)

    async def _ask_small(self) -> None:
        """Take and give back a slice of a device that nobody else wants."""
        count = 0
        async with PoolClient(self._file) as client:
            self.clients.append(client)
            while not self._stops.is_set():
                count += 1
                begun = time.monotonic()
                lease = await self._acquire(client, f"small-{count}", SMALL, Holder("small"))
                if lease is not None:
                    self.seen.grants.append((begun, time.monotonic()))
                    await self._until_done(client, lease)
                await asyncio.sleep(LOOK_SECONDS / 2)

    async def _look(self) -> None:
        """See whether all devices are available, as each page of the console does: with a client of its own."""
        while not self._stops.is_set():
            with contextlib.suppress(PoolUnreachable):
                begun = time.monotonic()
                async with AdminClient(self._administrator) as client:
                    devices = await client.devices()
                if len(devices) == self._devices and all(device.available for device in devices):
                    self.seen.complete.append(begun)
            await asyncio.sleep(LOOK_SECONDS)
