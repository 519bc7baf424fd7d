"""The daemon of one node: it gives every shard job there its slice, and takes it back.

It sees a job by its first step, within `LOOK_SECONDS`, or when a program of the job asks, whichever comes first; an allocation without
steps by the next sweep.

Guarantees
----------
* Nothing of it stands in a job's start.
* Whose a job is says the controller, in numbers; it is asked once for each job that has a step here, whoever asks for which job.
* An account that asks for jobs that are not its own here has Slurm looked at for it once in `IN_VAIN_SECONDS`, however often it asks.
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
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from gpukernel.client.engines import EngineClient
from gpukernel.common.errors import NotAllowed, PoolError, UnknownToken
from gpukernel.common.model import Device, PlacedOn
from gpukernel.engines.named_devices import devices_by
from gpukernel.engines.shards.allocation import (
    JobShards,
    NotUnderstood,
    no_shards,
    parse_allocation,
    shards_of_a_gpu,
)
from gpukernel.engines.shards.calls import Calls
from gpukernel.engines.shards.folder import JobNote, JobsFolder
from gpukernel.engines.shards.holding import JobLease
from gpukernel.engines.slurm.commands import NodeJob, Slurm, SlurmAway, SlurmRefused

__all__ = ["ShardNode"]

log = logging.getLogger(__name__)

KNOWN_SECONDS = 60.0
LOOK_SECONDS, LEAST_LOOK_SECONDS = 0.5, 0.05
IN_VAIN_SECONDS = 1.0
MOST_AT_ONCE = 8
LONGEST_NOTICE = 64
MIB = 2**20
ITS_END = "its job is over"
EPILOG_LOST = "its job is over, and no epilog was heard of"
STARTED_AGAIN = "its job was started again, and no epilog was heard of"
ENDED_BY_POOL = "the pool has ended the job's slice; a program that starts now gets another"


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
        self._looking, self._looked_at, self._tried_at = asyncio.Lock(), 0.0, 0.0
        self._failure: SlurmAway | SlurmRefused | None = None  # of the last look
        self._in_vain: dict[int, float] = {}  # the accounts that have just asked for nothing of theirs
        self._over, self._without = set[str](), dict[str, NodeJob]()
        self._allocated: dict[str, JobShards] = {}
        self._said = ""

    async def run(self, sweep: float, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Give slices until `stop` is set; jobs keep theirs."""
        try:
            self.folder.prepare()
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
            calls = Calls(self._answers)
            tasks = [
                asyncio.create_task(calls.serve(self.folder.socket)),
                asyncio.create_task(self._listen(hooks)),
                asyncio.create_task(self._sweeps(sweep)),
                asyncio.create_task(self._looks()),
            ]
            self._see_all()
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
            known = devices_by(str, devices, "slurm")
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
        if (known := self._allocated.pop(job, None)) is not None:
            return known
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
        """Hear from epilogs that a job ends."""
        loop = asyncio.get_running_loop()
        while True:
            words = (await loop.sock_recv(hooks, LONGEST_NOTICE)).decode(errors="replace").split()
            if len(words) == 2 and words[0] == "end" and words[1].isdigit():
                self._over.add(words[1])
                self._without.pop(words[1], None)
                if (held := self._jobs.get(words[1])) is not None:
                    self._end(held, ITS_END)

    async def _looks(self) -> None:
        while True:
            try:
                await self._look()
            except (SlurmAway, SlurmRefused) as error:
                self._note(f"Slurm does not answer: {error}.")
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, asked: float | None = None) -> None:
        """Take on the jobs that have a step here and are not known; one look is for all who asked before it, also where it fails.

        Raises
        ------
        SlurmAway, SlurmRefused
        """
        asked = time.monotonic() if asked is None else asked
        async with self._looking:
            if self._looked_at <= asked:
                await asyncio.sleep(max(0.0, self._tried_at + LEAST_LOOK_SECONDS - time.monotonic()))
                self._tried_at = begin = time.monotonic()
                try:
                    await self._look_now()
                    self._failure = None
                except (SlurmAway, SlurmRefused) as error:
                    self._failure = error
                self._looked_at = begin
            if self._failure is not None:
                raise type(self._failure)(*self._failure.args)

    async def _look_now(self) -> None:
        self._over.clear()
        new = await self._slurm.steps_on(self.name) - set(self._jobs) - set(self._without)
        if new:
            there, learnt = await asyncio.gather(self._slurm.jobs_on(self.name), self._learn(new))
            await self._take_on({job: there[job] for job in new if job in there}, learnt)

    async def _look_for(self, user: int) -> None:
        """Look because an account asks; one that has just asked in vain waits, most often for one of the daemon's own looks."""
        asked = time.monotonic()
        await asyncio.sleep(max(0.0, self._in_vain.get(user, 0.0) - asked))
        await self._look(asked)

    def _asked_in_vain(self, user: int) -> None:
        now = time.monotonic()
        self._in_vain = {one: until for one, until in self._in_vain.items() if until > now}
        self._in_vain[user] = now + IN_VAIN_SECONDS

    async def _take_on(self, jobs: dict[str, NodeJob], learnt: dict[str, JobShards | None]) -> None:
        """Hold the leases of those jobs that have shards; an epilog that comes meanwhile ends a job that is not put down yet."""
        if not self._cluster:
            self._cluster = await self._slurm.setting("ClusterName")
        for job, facts in jobs.items():
            if job in self._over or job in self._jobs or not facts.runs:
                continue
            found = learnt.get(job)
            if found is not None:
                self._allocated[job] = found
            elif job in learnt:
                self._without[job] = facts
                continue
            try:
                self.folder.begin(JobNote(job, facts.user, facts.group, self._cluster, facts.restarts))
            except OSError as error:
                self._note(f"The folder of job {job} cannot be written: {error.strerror}.")
                continue
            self._see(job)

    async def _learn(self, jobs: Iterable[str]) -> dict[str, JobShards | None]:
        """Return what Slurm allocated to these jobs here, several at once; one that is not told or not understood is missing."""
        learnt: dict[str, JobShards | None] = {}
        several = asyncio.Semaphore(MOST_AT_ONCE)

        async def learn(job: str) -> None:
            async with several:
                with contextlib.suppress(NotUnderstood, SlurmRefused):
                    learnt[job] = await self.allocation(job)

        await asyncio.gather(*map(learn, jobs))
        return learnt

    def _see_all(self) -> None:
        """See to every job that is put down."""
        for job in self.folder.ids():
            self._see(job)

    def _see(self, job: str) -> None:
        """See to one job: hold its lease, or end it."""
        held, note = self._jobs.get(job), self.folder.note(job)
        if held is None and note is not None:
            held = self._jobs[job] = JobLease(self, note)
        if held is not None and self.folder.is_over(job):
            self._end(held, ITS_END)

    def without_shards(self, job: str) -> None:
        """Forget a job that has none here; its epilog finds nothing to wait for."""
        self.folder.remove(job)
        self._jobs.pop(job, None)
        self._allocated.pop(job, None)

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

        task = asyncio.create_task(end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _answers(self, job: str, user: int) -> AsyncIterator[tuple[str, str]]:
        while job not in self._jobs and job not in self._without:
            try:
                await self._look_for(user)
                break
            except (SlurmAway, SlurmRefused) as error:
                self._asked_in_vain(user)
                yield "waiting", f"Slurm does not answer: {error}"
        held, other = self._jobs.get(job), self._without.get(job)
        if held is not None and user in (0, held.note.user):
            async for answer in held.answers():
                yield answer
        elif other is not None and user in (0, other.user):
            yield "refused", no_shards(job, self.name)
        else:
            self._asked_in_vain(user)
            yield "refused", f"You have no job {job[:20]} on {self.name}."

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
        self._see_all()
        # Each as it was before the pool and Slurm were asked.
        before = {job: (held, held.lease) for job, held in self._jobs.items()}
        client = await self.client()
        leases = await client.placed()
        async with self._looking:
            self._over.clear()
            jobs = await self._slurm.jobs_on(self.name)
            self._without = {job: one for job, one in self._without.items() if jobs.get(job) == one}
            new = {
                job: one for job, one in jobs.items() if one.runs and job not in {*self._jobs, *self._without}
            }
            await self._take_on(new, await self._learn(new))
        there = set(jobs)
        begin, end = f"{self._cluster}:", f"/{self.name}"
        keys = {lease.key.removeprefix(begin).removesuffix(end): lease.key for lease in leases}
        ours = {job: key for job, key in keys.items() if key == f"{begin}{job}{end}"}
        missing = ({*before, *ours}) - there
        living = {lease.id for lease in leases}
        for job, (held, lease) in before.items():
            now, note = jobs.get(job), held.note
            if job in missing & self._missing:
                self._end(held, EPILOG_LOST)
            elif now is not None and (now.user, now.restarts) != (note.user, note.restart):
                self._end(held, STARTED_AGAIN)
            elif job in there and lease is not None and lease.id not in living:
                held.lost(lease, ENDED_BY_POOL)
        for job in (missing & self._missing & set(ours)) - set(self._jobs):
            log.warning("%s is released: %s", ours[job], EPILOG_LOST)
            await client.release_placed(ours[job], EPILOG_LOST, 0)
        self._missing = missing
