"""The lease of one shard job on its node, from when the daemon sees it to its epilog.

Guarantees
----------
* Acquiring and releasing run one after the other: no lease is asked for once the job is over.
* Whatever is killed, the job's key is asked for or released again: the pool gives the same lease to the same key.
* Its hours in the pool count from when Slurm started the job, however late it was seen, up to two minutes.
* What waits is told why; what the pool refuses for good is refused with the pool's sentence, and asked again when a program asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Protocol

from gpukernel.client.engines import EngineClient
from gpukernel.common.errors import PoolError, Refused
from gpukernel.common.logs import of_lease
from gpukernel.common.model import Holder, Lease, PlacedOn
from gpukernel.engines.shards.allocation import JobShards, NotUnderstood, no_shards
from gpukernel.engines.shards.folder import JobNote, JobsFolder
from gpukernel.engines.slurm.commands import SlurmAway, SlurmRefused
from gpukernel.remoting.lease_file import lease_text, no_lease_text

__all__ = ["JobLease", "NodeOfJobs"]

log = logging.getLogger(__name__)

QUIET_SECONDS = 3.0
"""A program draws no line in its job's output for a wait that is shorter."""
STARTING_SECONDS = 10.0
STOP_SECONDS = 20.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
LEAST_SECONDS = 1.0
"""Slurm and the pool are asked again for a program that asks, but no sooner: one that never stops asking shares them with every job."""
_SOON = frozenset(["full", "unavailable", "too_often", "failed"])
"""Codes of refusals that time may mend."""


class NodeOfJobs(Protocol):
    """The node, as the lease of a job needs it."""

    folder: JobsFolder
    name: str

    async def client(self) -> EngineClient:
        """Return the client of the pool."""

    async def allocation(self, job: str) -> JobShards | None:
        """Return what Slurm allocated to a job here."""

    async def placement(self, allocation: JobShards) -> PlacedOn:
        """Return the part of the device that this is."""

    def without_shards(self, job: str) -> None:
        """Forget a job that has none here."""


class JobLease:
    """The lease of one start of a job.

    Attributes
    ----------
    lease
        The living lease; None before and after.
    ending
        It is being released.
    """

    lease: Lease | None
    _course: str | None  # of its lease, once that is known

    def __init__(self, node: NodeOfJobs, note: JobNote) -> None:
        self.note, self.lease, self.ending = note, None, False
        self._node = node
        self._word, self._sentence = "waiting", "the slice is being started"
        self._changed = asyncio.Event()
        self._again, self._ended = asyncio.Event(), asyncio.Event()
        self._over, self._course = False, None
        self._task = asyncio.create_task(self._hold())

    @property
    def key(self) -> str:
        """Return the pool's key of this job on this node."""
        return f"{self.note.cluster}:{self.note.job}/{self._node.name}"

    # --- what programs are told ---

    async def answers(self) -> AsyncIterator[tuple[str, str]]:
        """Give how it stands whenever that changes, until the slice is live or refused; what was refused is asked again."""
        if not self._over:
            if self._word == "refused":
                self._say("waiting", "the slice is asked for again")
            self._again.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(QUIET_SECONDS):
                while self._word == "waiting":
                    await self._changed.wait()
        while True:
            changed = self._changed
            yield self._word, self._sentence
            if self._word != "waiting":
                return
            await changed.wait()

    def _say(self, word: str, sentence: str = "") -> None:
        if (word, sentence) != (self._word, self._sentence):
            self._word, self._sentence = word, sentence
            self._changed.set()
            self._changed = asyncio.Event()

    # --- the lease ---

    async def _hold(self) -> None:
        """Acquire the slice, and again when it was lost and a program asks, until the job is over."""
        try:
            placed = await self._placement()
            while placed is not None and not self._over:
                self.lease = await self._acquire(*placed)
                if self.lease is None or self._over:
                    return
                self._again.clear()
                await self._again.wait()
                await self._pause(LEAST_SECONDS)
        except Exception:
            log.exception("job %s: its slice cannot be held", self.note.job)
            self._say("refused", "The node's daemon failed; its log says how.")

    async def _placement(self) -> tuple[PlacedOn, JobShards] | None:
        """Return where the job's slice is, and what Slurm allocated; None where it has no shards here, or is over."""
        pause = FIRST_PAUSE
        while not self._over:
            try:
                found = await self._node.allocation(self.note.job)
                if found is None:
                    self._say("refused", no_shards(self.note.job, self._node.name))
                    self._node.without_shards(self.note.job)
                    return None
                return await self._node.placement(found), found
            except NotUnderstood as error:
                await self._refused(str(error))
                continue
            except SlurmRefused as error:
                await self._refused(f"Slurm does not tell what job {self.note.job} has: {error}.")
                continue
            except (SlurmAway, PoolError) as error:
                self._say("waiting", f"{error}")
            pause = await self._pause(pause)
        return None

    async def _acquire(self, placed: PlacedOn, allocation: JobShards) -> Lease | None:
        """Return the live lease, its lease file written; None once the job is over."""
        pause, course = FIRST_PAUSE, allocation.account if self._course is None else self._course
        while not self._over:
            holder = Holder(self.note.person, self._node.name, course, f"Slurm job {self.note.job}")
            try:
                client = await self._node.client()
                if self._over:
                    return None
                began = min(allocation.began, time.time())
                lease = await client.acquire_placed([placed], self.key, holder, STARTING_SECONDS, began=began)
                if lease.state == "live":
                    text = lease_text(lease, self.note.job, str(self._node.folder.socket))
                    self._node.folder.write_lease(self.note, text)
                    log.info("job %s has its slice", self.note.job, extra=of_lease(lease))
                    self._say("live")
                    return lease
            except Refused as error:
                if error.code == "no_such_course" and course:
                    course = self._course = ""  # an account that is no course
                    continue
                if error.code == "different":
                    if (has := await self._course_before(placed)) not in (None, course):
                        course = self._course = has or ""
                        continue
                    # Of a job that had this number before: this one has it now.
                    await self._release("its number is another job's now")
                elif error.code in _SOON:
                    self._say("waiting", str(error))
                else:
                    await self._refused(str(error))
                    continue
            except PoolError as error:
                self._say("waiting", str(error))
            except OSError as error:
                self._say("waiting", f"the lease file cannot be written: {error.strerror}")
            pause = await self._pause(pause)
        return None

    async def _course_before(self, placed: PlacedOn) -> str | None:
        """Return the course of the lease that this job has from an earlier daemon, whatever its account is called in the pool now; else None."""
        with contextlib.suppress(PoolError):
            for lease in await (await self._node.client()).placed(self.key):
                has = [PlacedOn(one.uuid, one.memory_bytes) for one in lease.slices]
                if lease.holder.person == self.note.person and has == [placed]:
                    return lease.holder.course
        return None

    async def _refused(self, sentence: str) -> None:
        """Say no, and wait until a program asks again."""
        if self._over:
            return
        log.error("job %s gets no slice: %s", self.note.job, sentence)
        self._again.clear()
        self._say("refused", sentence)
        await self._again.wait()
        await self._pause(LEAST_SECONDS)

    async def _pause(self, seconds: float) -> float:
        """Wait, after `LEAST_SECONDS` no longer than until a program asks or the job is over; return how long to wait the next time."""
        least = min(LEAST_SECONDS, seconds)
        for event, most in ((self._ended, least), (self._again, seconds - least)):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), most)
        self._again.clear()
        return min(2 * seconds, LONGEST_PAUSE)

    def lost(self, lease: Lease, why: str) -> None:
        """Note that the lease is over though the job runs: its programs are told, and the next one asks for another."""
        if self.lease is not lease or self._over:
            return
        log.warning("job %s has lost its slice: %s", self.note.job, why, extra=of_lease(lease))
        self.lease = None
        socket = str(self._node.folder.socket)
        with contextlib.suppress(OSError):
            self._node.folder.write_lease(self.note, no_lease_text(why, self.note.job, socket))
        self._say("refused", why)

    # --- the end ---

    async def end(self, why: str) -> bool:
        """Release the slice and remove the job's folder; False where the pool does not answer, so that it is tried again later."""
        self._over = True
        self._ended.set()
        self._again.set()
        self._say("refused", f"Job {self.note.job} is over.")
        if (
            self.lease is None
        ):  # what is being started ends, so that whoever waits for it need not wait for long
            await self._release(why)
        await asyncio.wait({self._task})
        released = await self._release(why)
        # Another note is of the job's next start, which has its lease file already.
        if released and self._node.folder.note(self.note.job) in (self.note, None):
            self._node.folder.remove(self.note.job)
        return released

    async def _release(self, why: str) -> bool:
        try:
            client = await self._node.client()
            lease = await client.release_placed(self.key, why, STOP_SECONDS)
        except PoolError as error:
            log.warning("job %s: its slice is not released yet: %s", self.note.job, error)
            return False
        return lease is None or lease.state == "ended"

    async def leave(self) -> None:
        """Stop holding without releasing: the daemon ends, and the job goes on."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
