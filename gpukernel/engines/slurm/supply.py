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
import dataclasses
import logging
import shlex
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpukernel.client.admin import AdminClient
from gpukernel.common.connection import write_connection
from gpukernel.common.errors import PoolError
from gpukernel.common.model import GpuServer
from gpukernel.engines.slurm.autoscaler import Decision, Job, JobState, Memory, Settings, decide
from gpukernel.engines.slurm.commands import Slurm, SlurmAway, SlurmJob, SlurmRefused
from gpukernel.engines.slurm.demand import waiting_gpus
from gpukernel.engines.slurm.records import JobRecord, Records, connection_file

__all__ = ["JobOffer", "Seen", "Supply", "server_name"]

log = logging.getLogger(__name__)

DAY = 86_400.0
UNSEEN_SECONDS = 60.0
"""Seconds within which a job that was asked for appears in Slurm's list, whatever became of whoever asked."""

QUEUED_SECONDS = 15 * DAY
"""Seconds beyond its time limit for which a job's token is valid: it may wait in Slurm's queue."""

FIRST_PAUSE, LONGEST_PAUSE = 30.0, 900.0
"""Seconds before Slurm is asked again after a refusal, or a job that came to nothing; twice as long each time."""

EMPTY_SECONDS = 15.0
SENTENCES = 50


def server_name(name: str, job_id: str, start: int) -> str:
    """Return the name of a job's GPU server in the pool; each start of a job is another one."""
    return f"{name}-{job_id}" + (f"-{start}" if start else "")


@dataclass(frozen=True)
class JobOffer:
    """The jobs of one supply, beside their number.

    Attributes
    ----------
    name
        The supply's name, with which those of its jobs and servers begin.
    program
        The words that start gpukernel on a node.
    simulate
        The model of simulated devices in place of the job's GPUs; empty: the job's own.
    address
        The pool's address for jobs, where the pool itself tells none.
    options
        More options for sbatch.
    """

    name: str
    partition: str
    program: tuple[str, ...]
    simulate: str = ""
    tcp_host: str = ""
    address: str = ""
    options: tuple[str, ...] = ()

    @property
    def prefix(self) -> str:
        """Return the beginning of the jobs' names in Slurm."""
        return f"gpukernel.{self.name}."

    def script(self, record: JobRecord, records: Records, settings: Settings) -> str:
        """Return the batch script of a job; there is no secret in it."""
        words = [*self.program, "slurm", "job", "--folder", str(records.folder), "--tag", record.tag]
        words += ["--name", self.name, "--notice", f"{settings.notice:.0f}"]
        words += ["--simulate", f"{self.simulate}:{settings.gpus}"] if self.simulate else []
        words += ["--tcp-host", self.tcp_host] if self.tcp_host else []
        return f"#!/bin/sh\nexec {shlex.join(words)}\n"

    def sbatch(self, record: JobRecord, records: Records, settings: Settings) -> list[str]:
        """Return sbatch's options for a job."""
        minutes = max(int(record.seconds // 60), 1)
        return [
            f"--job-name={self.prefix}{record.tag}",
            f"--partition={self.partition}",
            f"--gres=gpu:{settings.gpus}",
            "--nodes=1",
            "--ntasks=1",
            f"--time={minutes}",
            f"--signal=B:TERM@{settings.notice + 15:.0f}",
            "--requeue",
            "--open-mode=append",
            f"--output={str(records.log(record.tag)).replace('%', '%%')}",
            f"--chdir={records.folder}",
            *self.options,
        ]


@dataclass(frozen=True)
class Seen:
    """One look at one job."""

    record: JobRecord
    slurm: SlurmJob | None
    server: GpuServer | None
    job: Job


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
        Opens a client of an administrator.
    """

    slurm: Slurm
    records: Records
    settings: Settings
    offer: JobOffer
    pool: Callable[[], AdminClient]
    clock: Callable[[], float] = time.time
    memory: Memory = field(default_factory=Memory)
    _pause: _Pause = field(default_factory=_Pause)
    _leave: set[str] = field(default_factory=set)
    _empty: dict[str, float] = field(default_factory=dict)
    _troubles: dict[str, str] = field(default_factory=dict)
    _said: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=SENTENCES))

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
                await self._let_in(client, seen)
                decision = self._decide(seen, waiting)
                for sentence in decision.sentences:
                    self._say(sentence)
                await self._give_up(decision, seen)
                await self._ask(decision)
        except (SlurmAway, SlurmRefused) as error:
            self._trouble(
                "Slurm",
                f"Slurm does not answer: {error}. Running leases go on; no job is asked for or ended.",
            )
            return None
        except PoolError as error:
            self._trouble("The pool", f"{error} No job is asked for or ended.")
            return None
        self._answers("Slurm")
        self._answers("The pool")
        self._publish(seen, waiting)
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
        attached = {server.name for server in await client.gpu_servers() if server.state != "away"}
        for tag, job in listed.items():
            if tag not in known and not job.is_over and tag.isalnum():
                self._say(f"Job {job.id} is adopted.")
                self.records.save(JobRecord(tag, self.clock(), self.settings.seconds, job.id))
        for record in known.values():
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
            self._say(f"Job {record.job} {how}.")
        elif record.job:
            seconds = self._pause.begin(self.clock())
            why = f": {words}" if words else ""
            self._say(
                f"Job {record.job} {how} before its GPUs were in the pool{why}. Slurm is asked again in {seconds:.0f} s."
            )
        await self._revoke(client, record)
        self.records.remove(record, keep_log=not record.served)
        if record.job and record.starts:
            self.records.save(record, over=True)

    async def _revoke(self, client: AdminClient, record: JobRecord) -> None:
        if not record.starts:
            return
        for token in await client.tokens():
            if token.name == self._token_name(record) and not token.revoked:
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
            if state is JobState.SERVING and not record.served:
                record = self.records.save(record, served=True)
            if state is JobState.LEAVING and not record.leaving and record.tag not in self._leave:
                self._leave.add(record.tag)
                self._say(f"Job {record.job} leaves: it gets no new leases.")
            begins, ends = (job.starts, job.ends) if job is not None and not job.is_queued else (0.0, 0.0)
            seen.append(
                Seen(
                    record, job, server, Job(record.tag, state, ends, server.leases if server else 0, begins)
                )
            )
        ours = {one.server.name for one in seen if one.server}
        name = f"{self.offer.name}-"
        return seen, waiting_gpus(waiting, devices, ours, name, self.settings.gpus, self.offer.simulate)

    @staticmethod
    def _state(record: JobRecord, job: SlurmJob | None, server: GpuServer | None) -> JobState:
        if record.leaving or (job is not None and job.state == "COMPLETING"):
            return JobState.LEAVING
        if job is None or job.is_queued:
            return JobState.WAITING
        if server is None or server.state == "away":
            return JobState.STARTING
        return JobState.LEAVING if server.state == "drained" else JobState.SERVING

    async def _let_in(self, client: AdminClient, seen: Sequence[Seen]) -> None:
        """Write a way into the pool for each start of a job that has none."""
        for one in seen:
            record, job, now = one.record, one.slurm, self.clock()
            if job is None or one.job.state is JobState.LEAVING:
                continue
            stale = job.is_queued and record.expires < now + record.seconds
            if job.restarts < record.starts and not stale:
                continue
            await self._revoke(client, record)
            valid = record.seconds + QUEUED_SECONDS
            record = self.records.save(record, starts=job.restarts + 1, expires=now + valid)
            _, way = await client.create_connection(self._token_name(record), "", "agent", valid)
            way = replace(way, address=way.address or self.offer.address)
            if not way.address:
                raise PoolError(
                    "The pool tells no address by which jobs reach it, since it has no TLS; name it with --jobs-pool HOST:PORT."
                )
            if job.restarts:
                self._say(
                    f"Job {job.id} was put back into the queue by Slurm, for the {_ordinal(job.restarts)} time."
                )
            self.records.write(
                connection_file(self.records.folder, record.tag, job.restarts),
                write_connection(way, f"The way into the pool of Slurm's job {job.id}"),
            )

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
        self._say(f"Job {one.slurm.id} is given up: {why}.")
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
                self._say(f"sbatch refused: {error}. Slurm is asked again in {seconds:.0f} s.")
                return
            self.records.save(record, job=job_id)
            self._say(f"Job {job_id} was asked for, for {decision.seconds / 3600:.3g} h.")

    # --- sentences ---

    def _say(self, sentence: str) -> None:
        log.info("%s", sentence)
        self._said.append((self.clock(), sentence))

    def _trouble(self, who: str, sentence: str) -> None:
        if self._troubles.get(who) != sentence:
            self._troubles[who] = sentence
            log.warning("%s", sentence)
            self._said.append((self.clock(), sentence))
        self._write({**(self.records.state() or {}), "trouble": " ".join(self._troubles.values())})

    def _answers(self, who: str) -> None:
        if self._troubles.pop(who, ""):
            self._say(f"{who} answers again.")

    def _publish(self, seen: Sequence[Seen], waiting: float) -> None:
        self._write(
            {
                "name": self.offer.name,
                "target": self.memory.target,
                "waiting_gpus": waiting,
                "jobs": [_shown(one, self.offer.name) for one in seen],
                "trouble": "",
            }
        )

    def _write(self, state: dict[str, Any]) -> None:
        self.records.publish(
            {
                **state,
                "at": self.clock(),
                "settings": {
                    name.name: getattr(self.settings, name.name)
                    for name in dataclasses.fields(self.settings)
                    if name.name != "schedule"
                }
                | {"schedule": self.settings.schedule.text},
                "log": [{"at": at, "sentence": sentence} for at, sentence in self._said],
            }
        )


def _shown(one: Seen, name: str) -> dict[str, Any]:
    job = one.slurm
    return {
        "tag": one.record.tag,
        "job": one.record.job,
        "state": str(one.job.state),
        "slurm_state": job.state if job else "",
        "reason": job.reason if job else "",
        "node": job.nodes if job else "",
        "server": server_name(name, job.id, job.restarts) if job else "",
        "starts": one.record.starts,
        "leases": one.job.leases,
        "ends": one.job.ends,
        "leaving": one.record.leaving,
    }


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
