"""The daemon of one node: it gives every shard job there its slice, and takes it back.

Guarantees
----------
* What it knows is on disk, in Slurm and in the pool; killed at any moment, the next one goes on.
* A lease of this node whose job Slurm does not have there any more, in two looks `sweep` seconds apart, is released, whoever forgot it.
  While Slurm does not answer, nothing is released but by epilogs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence

from gpukernel.client.engines import EngineClient
from gpukernel.common.errors import NotAllowed, PoolError, UnknownToken
from gpukernel.common.model import Device, PlacedOn
from gpukernel.engines.shards.allocation import JobShards, NotUnderstood, parse_allocation, shards_of_a_gpu
from gpukernel.engines.shards.calls import Calls
from gpukernel.engines.shards.folder import JobsFolder
from gpukernel.engines.shards.holding import JobLease
from gpukernel.engines.shards.recipe import recipe
from gpukernel.engines.slurm.commands import Slurm, SlurmAway, SlurmRefused

__all__ = ["ShardNode"]

log = logging.getLogger(__name__)

KNOWN_SECONDS = 60.0
LONGEST_NOTICE = 64
MIB = 2**20
EPILOG_LOST = "its job is over, and no epilog was heard of"
ENDED_BY_POOL = "the pool has ended the job's slice; a program that starts now gets another"
SIMULATED = "(simulated)"


class ShardNode:
    """The shard jobs of one node.

    Parameters
    ----------
    name
        Slurm's name of the node.
    server
        The GPU server of the pool that runs there.
    uuids
        The devices in the order of ``gres.conf``; empty: the server's, whose numbers are Slurm's.
    connect
        Makes a client of the pool.
    """

    def __init__(
        self,
        slurm: Slurm,
        folder: JobsFolder,
        name: str,
        server: str,
        uuids: Sequence[str],
        connect: Callable[[], EngineClient],
    ) -> None:
        self.folder, self.name = folder, name
        self._slurm, self._server, self._uuids, self._connect = slurm, server, uuids, connect
        self._jobs: dict[str, JobLease] = {}
        self._ending = set[asyncio.Task[None]]()
        self._client: EngineClient | None = None
        self._connecting = asyncio.Lock()
        self._devices: dict[int, Device] = {}
        self._shards, self._known_at = 0, 0.0
        self._cluster = ""
        self._missing = set[str]()
        self._said = ""

    async def run(self, sweep: float, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Give slices until `stop` is set; jobs keep theirs."""
        try:
            simulated = await self._are_simulated(stop)
            if simulated is not None:
                self.folder.prepare(recipe(simulated=simulated))
                await self._serve(sweep, stop, ready)
        finally:
            await self._disconnect()

    async def _serve(self, sweep: float, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        hooks = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        draft = self.folder.hooks.with_name(".hooks")
        draft.unlink(missing_ok=True)
        tasks = []
        try:
            hooks.bind(str(draft))
            draft.chmod(0o600)
            draft.rename(self.folder.hooks)
            calls = Calls(self._answers, self._has_job)
            tasks = [
                asyncio.create_task(calls.serve(self.folder.socket)),
                asyncio.create_task(self._listen(hooks)),
                asyncio.create_task(self._sweeps(sweep)),
            ]
            self._look()
            ready()
            stopped = asyncio.create_task(stop.wait())
            done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            hooks.close()
            await asyncio.gather(*(job.leave() for job in self._jobs.values()))

    async def _are_simulated(self, stop: asyncio.Event) -> bool | None:
        """Return whether the node's devices are; waits until the pool knows them, and gives None where `stop` is set before."""
        while not stop.is_set():
            try:
                if devices := await self._own_devices():
                    return next(iter(devices.values())).name.endswith(SIMULATED)
                self._note(f"The pool knows no GPU server {self._server} with devices; waiting for it.")
            except PoolError as error:
                await self._take_note(error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 1.0)
        return None

    async def _take_note(self, error: PoolError) -> None:
        """Log an error of the pool, and let the next call read the connection file again where that is why."""
        self._note(str(error))
        if isinstance(error, NotAllowed | UnknownToken):
            await self._disconnect()

    def _note(self, sentence: str) -> None:
        """Log a sentence once, until another one is."""
        if sentence != self._said:
            self._said = sentence
            log.warning("%s", sentence)

    # --- the pool and Slurm ---

    async def client(self) -> EngineClient:
        """Return the client of the pool, connected."""
        async with self._connecting:
            if self._client is None:
                self._client = await self._connect().__aenter__()
            return self._client

    async def _disconnect(self) -> None:
        async with self._connecting:
            client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)

    async def _own_devices(self) -> dict[int, Device]:
        """Return the node's devices that the pool has now, by Slurm's numbers: one that is missing moves no other one to its place."""
        devices = await (await self.client()).devices()
        if self._uuids:
            known = {device.uuid: device for device in devices}
            return {number: known[uuid] for number, uuid in enumerate(self._uuids) if uuid in known}
        # One that was taken out comes before the one that has its number now.
        devices = sorted(devices, key=lambda device: not device.trouble)
        return {device.index: device for device in devices if device.server == self._server}

    async def allocation(self, job: str) -> JobShards | None:
        """Return the shards of a job here; None where it has none.

        Raises
        ------
        NotUnderstood, SlurmAway, SlurmRefused
        """
        return parse_allocation(await self._slurm.show_job(job), self.name, job)

    async def placement(self, allocation: JobShards) -> PlacedOn:
        """Return the part of a device that the shards are.

        Raises
        ------
        NotUnderstood, SlurmAway, SlurmRefused, PoolError
        """
        now = time.monotonic()
        if not self._shards or now > self._known_at + KNOWN_SECONDS or allocation.gpu not in self._devices:
            self._devices = await self._own_devices()
            self._shards, self._known_at = shards_of_a_gpu(await self._slurm.show_node(self.name)), now
        if (device := self._devices.get(allocation.gpu)) is None:
            there = ", ".join(f"{number} is {one.label}" for number, one in sorted(self._devices.items()))
            raise NotUnderstood(
                f"Slurm gave GPU {allocation.gpu} of {self.name}, and the pool has no device of that number ({there or 'none at all'}); "
                "--device names them in Slurm's order."
            )
        size = device.memory_bytes * min(allocation.shards, self._shards) // self._shards // MIB * MIB
        return PlacedOn(device.uuid, max(size, MIB))

    # --- jobs ---

    async def _listen(self, hooks: socket.socket) -> None:
        """Hear what hooks say: that a job begins, or ends."""
        loop = asyncio.get_running_loop()
        while True:
            words = (await loop.sock_recv(hooks, LONGEST_NOTICE)).decode(errors="replace").split()
            if len(words) == 2 and words[1].isdigit():
                self._see(words[1], fresh=words[0] == "begin")

    def _look(self) -> None:
        """See to every job that the hook has put down."""
        for job in self.folder.ids():
            self._see(job)

    def _see(self, job: str, *, fresh: bool = False) -> None:
        """See to one job: hold its lease, or end it."""
        held, note = self._jobs.get(job), self.folder.note(job)
        if note is None and held is None:
            return  # the hook was killed in the middle; Slurm starts such a job again
        if held is None and note is not None:
            held = self._jobs[job] = JobLease(self, note, fresh=fresh)
        elif held is not None and note is not None and note != held.note:
            self._end(held, "its job was started again")
            return
        if held is not None and self.folder.is_over(job):
            self._end(held, "its job is over")

    def without_shards(self, job: str) -> None:
        """Forget a job that has none here; its epilog finds nothing to wait for."""
        self.folder.remove(job)
        self._jobs.pop(job, None)

    def _end(self, held: JobLease, why: str) -> None:
        if held.ending:
            return
        held.ending = True

        async def end() -> None:
            try:
                released = await held.end(why)
            finally:
                held.ending = False
            if released and self._jobs.get(held.note.job) is held:
                del self._jobs[held.note.job]
                self._see(held.note.job)  # the hook may have put it down again meanwhile

        task = asyncio.create_task(end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _has_job(self, user: int) -> bool:
        return any(job.note.user == user for job in self._jobs.values())

    async def _answers(self, job: str, user: int) -> AsyncIterator[tuple[str, str]]:
        held = self._jobs.get(job)
        if held is None or user not in (0, held.note.user):
            yield "refused", f"You have no job {job[:20]} on {self.name}."
            return
        async for answer in held.answers():
            yield answer

    # --- what was lost ---

    async def _sweeps(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            try:
                await self.sweep()
                self._said = ""
            except (SlurmAway, SlurmRefused) as error:
                self._note(f"Slurm does not answer: {error}.")
            except PoolError as error:
                await self._take_note(error)

    async def sweep(self) -> None:
        """Compare the pool, the folder and Slurm, and end what only one of them has.

        Raises
        ------
        SlurmAway, SlurmRefused, PoolError
            Nothing is ended where one of them does not answer.
        """
        self._look()
        # Each as it was before the pool and Slurm were asked.
        before = {job: (held, held.lease) for job, held in self._jobs.items()}
        client = await self.client()
        leases = await client.placed()
        if not self._cluster:
            self._cluster = await self._slurm.setting("ClusterName")
        there = await self._slurm.jobs_on(self.name)
        begin, end = f"{self._cluster}:", f"/{self.name}"
        keys = {lease.key.removeprefix(begin).removesuffix(end): lease.key for lease in leases}
        ours = {job: key for job, key in keys.items() if key == f"{begin}{job}{end}"}
        missing = ({*before, *ours}) - there
        living = {lease.id for lease in leases}
        for job, (held, lease) in before.items():
            if job in missing & self._missing:
                self._end(held, EPILOG_LOST)
            elif job in there and lease is not None and lease.id not in living:
                held.lost(lease, ENDED_BY_POOL)
        for job in (missing & self._missing & set(ours)) - set(self._jobs):
            log.warning("%s is released: %s", ours[job], EPILOG_LOST)
            await client.release_placed(ours[job], EPILOG_LOST, 0)
        self._missing = missing
