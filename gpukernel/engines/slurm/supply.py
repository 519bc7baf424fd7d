"""The supply: a loop that looks at Slurm and the pool, and asks for jobs or gives them up as `autoscaler` decides.

Guarantees
----------
* It keeps nothing that its folder and Slurm do not have: killed and started again, it finds its jobs by their names, and asks for none twice.
* Nothing is asked for or ended while Slurm or the pool does not answer; running leases go on.
* A job gets a way into the pool of its own, bound to its GPU server, in a file that only the account can read; it is revoked when the job
  is over.  The supply's own token is in no command, no script and no environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpukernel.client.admin import AdminClient
from gpukernel.common.address import network_addresses
from gpukernel.common.connection import write_connection
from gpukernel.common.errors import PoolError
from gpukernel.common.model import GpuServer
from gpukernel.engines.slurm.announcement import Announcement
from gpukernel.engines.slurm.autoscaler import Decision, Job, JobState, Memory, Settings, decide
from gpukernel.engines.slurm.commands import Slurm, SlurmAway, SlurmJob, SlurmRefused
from gpukernel.engines.slurm.demand import waiting_gpus
from gpukernel.engines.slurm.journal import Journal
from gpukernel.engines.slurm.offer import JobOffer, server_name
from gpukernel.engines.slurm.records import JobRecord, Records, connection_file

__all__ = ["Seen", "Supply"]

log = logging.getLogger(__name__)

DAY = 86_400.0
UNSEEN_SECONDS = 60.0
"""Seconds within which a job that was asked for appears in Slurm's list, whatever became of whoever asked."""

QUEUED_SECONDS = 15 * DAY
"""Seconds beyond its time limit for which a job's token is valid: it may wait in Slurm's queue."""

FIRST_PAUSE, LONGEST_PAUSE = 30.0, 900.0
"""Seconds before Slurm is asked again after a refusal, or a job that came to nothing; twice as long each time."""

_ORDINARY = frozenset(["", "BeginTime", "Cleaning", "Priority", "Reservation", "Resources"])
"""The reasons for which jobs wait their turn; others may need somebody who looks."""

EMPTY_SECONDS = 15.0


@dataclass(frozen=True)
class Seen:
    """One look at one job."""

    record: JobRecord
    slurm: SlurmJob | None
    server: GpuServer | None
    job: Job

    def shown(self, name: str) -> dict[str, Any]:
        """Return the job of the supply `name` as programs see it."""
        job = self.slurm
        return {
            "tag": self.record.tag,
            "job": self.record.job,
            "state": str(self.job.state),
            "slurm_state": job.state if job else "",
            "reason": job.reason if job else "",
            "node": job.nodes if job else "",
            "server": server_name(name, job.id, job.restarts) if job else "",
            "starts": self.record.starts,
            "leases": self.job.leases,
            "ends": self.job.ends,
            "leaving": self.record.leaving,
        }


@dataclass
class _Pause:
    """The time before which Slurm is not asked again, and how often in a row that was needed."""

    until: float = 0.0
    times: int = 0

    def begin(self, now: float) -> float:
        seconds = min(FIRST_PAUSE * 2.0 ** min(self.times, 10), LONGEST_PAUSE)
        self.until, self.times = now + seconds, self.times + 1
        return seconds


@dataclass
class Supply:
    """One supply.

    Attributes
    ----------
    pool
        Opens a client with a token of scope ``supply``, or an administrator's.
    gpu
        Model and bytes of a job's GPU, for as long as none was seen.
    """

    slurm: Slurm
    records: Records
    settings: Settings
    offer: JobOffer
    pool: Callable[[], AdminClient]
    gpu: tuple[str, int] | None = None
    clock: Callable[[], float] = time.time
    memory: Memory = field(default_factory=Memory)
    _pause: _Pause = field(default_factory=_Pause)
    _leave: set[str] = field(default_factory=set)
    _empty: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.journal = Journal(self.records, self.settings, self.clock)
        self.announcement = Announcement(self.records, self.offer.name, self.settings.gpus, self.gpu)

    async def run(self, every: float, stop: asyncio.Event) -> None:
        """Look again every so many seconds, until `stop` is set; the jobs live on."""
        while not stop.is_set():
            await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every):
                    await stop.wait()

    async def look(self) -> Decision | None:
        """Look once and do what is decided; return None where Slurm or the pool does not answer."""
        try:
            listed = await self._listed()
            async with self.pool() as client:
                await self._settle(client, listed)
                seen, waiting = await self._see(client, listed)
                for one in seen:
                    self._note(one)
                seen = [await self._let_in(client, one) for one in seen]
                decision = self._decide(seen, waiting)
                none_there = not (seen or self.settings.least or decision.ask)
                may_come = self.settings.may_ask(self.clock())
                await self.announcement.make(client, self.journal, may_come=may_come, none_there=none_there)
                for sentence in decision.sentences:
                    self.journal.say(sentence)
                await self._give_up(decision, seen)
                await self._ask(decision)
        except (SlurmAway, SlurmRefused) as error:
            self.journal.trouble(
                "Slurm",
                f"Slurm does not answer: {error}. Running leases go on; no job is asked for or ended.",
            )
            return None
        except PoolError as error:
            self.journal.trouble("The pool", f"{error} No job is asked for or ended.")
            return None
        except OSError as error:
            log.error("The folder %s cannot be written: %s.", self.records.folder, error.strerror)
            return None
        self.journal.answers("Slurm", "The pool")
        self.journal.publish(
            {
                "name": self.offer.name,
                "target": self.memory.target,
                "waiting_gpus": waiting,
                "jobs": [one.shown(self.offer.name) for one in seen],
            }
        )
        return decision

    async def rehearse(self) -> tuple[Decision, list[Seen], float]:
        """Return what a look would decide, and what it would see; nothing is changed."""
        listed = await self._listed()
        async with self.pool() as client:
            seen, waiting = await self._see(client, listed)
        return self._decide(seen, waiting), seen, waiting

    # --- one look ---

    async def _listed(self) -> dict[str, SlurmJob]:
        prefix = self.offer.prefix
        return {job.name.removeprefix(prefix): job for job in await self.slurm.jobs(prefix)}

    async def _settle(self, client: AdminClient, listed: Mapping[str, SlurmJob]) -> None:
        """Bring the records in line with Slurm: jobs without one are adopted, those that are over are finished."""
        known = self.records.all()
        servers = {server.name: server.state for server in await client.gpu_servers()}
        attached = {name for name, state in servers.items() if state != "away"}
        for tag, job in listed.items():
            if tag not in known and not job.is_over and tag.isalnum():
                self.journal.say(f"Job {job.id} is adopted.")
                self.records.save(JobRecord(tag, self.clock(), self.settings.seconds, job.id))
        for before in known.values():
            lends = before.job and not before.served and not self._servers(before).isdisjoint(servers)
            record = self.records.save(before, served=True) if lends else before
            job_or_none = listed.get(record.tag)
            if record.over:
                await self._forget(client, record)
            elif job_or_none is None:
                serves = record.job and attached & self._servers(record)
                if self.clock() - record.asked > UNSEEN_SECONDS and not serves:
                    await self._finish(client, record, None)
            elif job_or_none.is_over:
                await self._finish(client, record, job_or_none)
            elif not record.job:
                self.records.save(record, job=job_or_none.id)

    async def _finish(self, client: AdminClient, record: JobRecord, job: SlurmJob | None) -> None:
        how = f"is over ({job.state})" if job else "is unknown to Slurm"
        words = self.records.last_words(record.tag)
        if record.served or record.leaving:
            self._pause.times = 0
            self.journal.say(f"Job {record.job} {how}.")
        elif record.job:
            seconds = self._pause.begin(self.clock())
            why = f": {words}" if words else ""
            self.journal.say(
                f"Job {record.job} {how} before its GPUs were in the pool{why}. Slurm is asked again in {seconds:.0f} s."
            )
        if record.job:
            await self._revoke(client, record)
        self.records.remove(record, keep_log=not record.served)
        if record.job and record.starts:
            self.records.save(record, over=True)

    async def _revoke(self, client: AdminClient, record: JobRecord) -> None:
        for token in await client.tokens():
            # The pool puts a supply's own name before it.
            if token.name.endswith(self._token_name(record)) and not token.revoked:
                await client.revoke_token(token.id)

    async def _forget(self, client: AdminClient, record: JobRecord) -> None:
        """Take the servers of a job that is over off the pool's list once nothing is held there."""
        names = self._servers(record)
        for server in await client.gpu_servers():
            if server.name not in names:
                continue
            if server.state != "away" or server.leases:
                return
            try:
                await client.forget_server(server.name)
            except PoolError:
                return  # it was heard of just now
        self.records.remove(record, keep_log=True)

    def _servers(self, record: JobRecord) -> set[str]:
        return {server_name(self.offer.name, record.job, start) for start in range(record.starts)}

    def _token_name(self, record: JobRecord) -> str:
        return f"Slurm job {self.offer.name} {record.tag}"

    async def _see(self, client: AdminClient, listed: Mapping[str, SlurmJob]) -> tuple[list[Seen], float]:
        """Return the jobs that are not over, and the GPUs' worth that people wait for."""
        servers = {server.name: server for server in await client.gpu_servers()}
        devices, (_, waiting) = await client.devices(), await client.leases()
        seen = []
        for record in self.records.all().values():
            job = listed.get(record.tag)
            if record.over or (job is not None and job.is_over):
                continue
            server = servers.get(server_name(self.offer.name, job.id, job.restarts)) if job else None
            state = self._state(record, job, server)
            begins, ends = self._times(job)
            seen.append(
                Seen(
                    record, job, server, Job(record.tag, state, ends, server.leases if server else 0, begins)
                )
            )
        ours = {one.server.name for one in seen if one.server}
        name = f"{self.offer.name}-"
        self.announcement.learn(devices, ours)
        kinds = self.announcement.kinds
        return seen, waiting_gpus(waiting, devices, ours, name, self.settings.gpus, kinds)

    def _note(self, one: Seen) -> None:
        """Say what is new about a job."""
        record, job, state = one.record, one.slurm, one.job.state
        if job is not None and job.is_queued and job.reason not in _ORDINARY:
            self.journal.say_once(f"Job {job.id} stays in Slurm's queue: {job.reason}.")
        if state is JobState.LEAVING and not record.leaving and record.tag not in self._leave:
            self._leave.add(record.tag)
            self.journal.say(f"Job {record.job} leaves: it gets no new leases.")

    @staticmethod
    def _times(job: SlurmJob | None) -> tuple[float, float]:
        """Return when a job began and when its time is over; zeros for one that does not run."""
        # Where one is completing, its end is that of its program, and no reason to ask for a successor.
        if job is None or job.is_queued or job.state == "COMPLETING":
            return 0.0, 0.0
        return job.starts, job.ends

    @staticmethod
    def _state(record: JobRecord, job: SlurmJob | None, server: GpuServer | None) -> JobState:
        ending = job is not None and job.state == "COMPLETING"
        # One that never served comes to nothing, it seems: no other one is asked for before Slurm says so.
        if record.leaving or (ending and record.served):
            return JobState.LEAVING
        if job is None or job.is_queued:
            return JobState.WAITING
        if server is None or server.state == "away":
            return JobState.STARTING
        return JobState.LEAVING if server.state == "drained" else JobState.SERVING

    async def _let_in(self, client: AdminClient, one: Seen) -> Seen:
        """Write a way into the pool for the start of a job that has none."""
        record, job, now = one.record, one.slurm, self.clock()
        if job is None or one.job.state is JobState.LEAVING:
            return one
        stale = job.is_queued and 0 < record.expires < now + record.seconds
        if job.restarts < record.starts and not stale:
            return one
        path, valid = (
            connection_file(self.records.folder, record.tag, job.restarts),
            record.seconds + QUEUED_SECONDS,
        )
        if stale or not path.exists():  # a supply that was killed in between has written it
            await self._revoke(client, record)
            _, way = await client.create_connection(self._token_name(record), "", "agent", valid)
            if not way.address and self.offer.address:
                way = way.at(network_addresses(self.offer.address, "--jobs-pool"))
            if not way.address:
                raise PoolError(
                    "The pool tells no address by which jobs reach it, since it has no TLS; name it with --jobs-pool HOST:PORT."
                )
            self.records.write(path, write_connection(way, f"The way into the pool of Slurm's job {job.id}"))
        if job.restarts:
            times = _ordinal(job.restarts)
            self.journal.say(f"Job {job.id} was put back into the queue by Slurm, for the {times} time.")
        return replace(one, record=self.records.save(record, starts=job.restarts + 1, expires=now + valid))

    def _decide(self, seen: Sequence[Seen], waiting: float) -> Decision:
        now = self.clock()
        decision = decide(
            self.settings,
            now,
            [one.job for one in seen],
            waiting,
            self.memory,
            may_ask=now >= self._pause.until,
        )
        self.memory = decision.memory
        return decision

    async def _give_up(self, decision: Decision, seen: Sequence[Seen]) -> None:
        known = {one.record.tag: one for one in seen}
        for end in decision.end:
            await self._end(known[end.tag], end.why)
        for one in seen:
            if one.record.leaving and one.slurm is not None:
                await self._tell_again(one, one.slurm)
        await self._take_back(seen)

    async def _take_back(self, seen: Sequence[Seen]) -> None:
        """End jobs whose servers an administrator has drained, once they are empty; those that leave by themselves are gone before."""
        now = self.clock()
        empty = {}
        for one in seen:
            drained = one.server is not None and one.server.state == "drained" and not one.server.leases
            if drained and not one.record.leaving and one.slurm is not None and one.slurm.state == "RUNNING":
                empty[one.record.tag] = self._empty.get(one.record.tag, now)
                if now - empty[one.record.tag] >= EMPTY_SECONDS:
                    await self._end(one, "its GPU server is drained and empty")
        self._empty = empty

    async def _end(self, one: Seen, why: str) -> None:
        if one.slurm is None:
            return  # it will be seen in a moment, or never
        self.journal.say(f"Job {one.slurm.id} is given up: {why}.")
        # Written first: who dies in between has told nobody, and the next supply does not count on the job.
        self.records.save(one.record, leaving=why)
        if one.server is None or one.slurm.is_queued:
            await self.slurm.cancel(one.slurm.id)
        else:
            await self.slurm.terminate(one.slurm.id)

    async def _tell_again(self, one: Seen, job: SlurmJob) -> None:
        """Tell a job to leave that an earlier supply wanted to, or that Slurm has put back into the queue since."""
        if job.is_queued:
            await self.slurm.cancel(job.id)
        elif job.state == "RUNNING" and one.server is not None and one.server.state == "attached":
            await self.slurm.terminate(job.id)

    async def _ask(self, decision: Decision) -> None:
        for _ in range(decision.ask):
            record = self.records.new(self.clock(), decision.seconds)
            try:
                job_id = await self.slurm.submit(
                    self.offer.script(record, self.records, self.settings),
                    self.offer.sbatch(record, self.records, self.settings),
                )
            except SlurmRefused as error:
                self.records.remove(record)
                seconds = self._pause.begin(self.clock())
                self.journal.say(f"sbatch refused: {error}. Slurm is asked again in {seconds:.0f} s.")
                return
            self.records.save(record, job=job_id)
            self.journal.say(f"Job {job_id} was asked for, for {decision.seconds / 3600:.3g} h.")


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
