"""Slurm's own commands: jobs are asked for, listed, signalled and cancelled.

Guarantees
----------
* Nothing passes through a shell; what comes from people is one word of a command each.
* A job's environment is a handful of variables: no token of whoever asks for the job is among them.
* “Slurm says no” and “Slurm does not answer” are two errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["NodeJob", "Slurm", "SlurmAway", "SlurmJob", "SlurmRefused"]

PATIENCE_SECONDS = 30.0
KEPT = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "TZ",
    "LD_LIBRARY_PATH",
    "SLURM_CONF",
    "GPUKERNEL_NATIVE_DIR",
    "GPUKERNEL_LIBRARIES",
    "GPUKERNEL_OPENBLAS",
    "GPUKERNEL_SIMGPU_TIER",
)
"""The variables that commands and jobs get of this process's environment."""

_COLUMNS = {
    "JobID": 20,
    "Name": 120,
    "State": 20,
    "Reason": 120,
    "NodeList": 80,
    "RestartCnt": 8,
    "StartTime": 24,
    "EndTime": 24,
}
_AWAY = re.compile(
    r"unable to contact|connect failure|connection refused|timed out|zero bytes|communication"
    r"|not responding|try again|munge|temporarily",
    re.IGNORECASE,
)
_OVER = re.compile(r"completing or completed|invalid job id", re.IGNORECASE)
_NO_STEPS = re.compile(r"no job steps exist", re.IGNORECASE)
_ENDED = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    ]
)
_QUEUED = frozenset(
    ["PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"]
)


class SlurmAway(Exception):
    """An error: Slurm does not answer, and it is not known whether something was done; the text is a sentence's part."""


class SlurmRefused(Exception):
    """An error: Slurm says no; the text is its reason, without a full stop."""


@dataclass(frozen=True)
class SlurmJob:
    """One job as Slurm lists it; times in seconds since the epoch, 0 where there is none.

    `restarts` counts how often it was put back into the queue.
    """

    id: str
    name: str
    state: str
    reason: str = ""
    nodes: str = ""
    restarts: int = 0
    starts: float = 0.0
    ends: float = 0.0

    @property
    def is_over(self) -> bool:
        """Return whether nothing of it runs any more, nor will."""
        return self.state in _ENDED

    @property
    def is_queued(self) -> bool:
        """Return whether it waits."""
        return self.state in _QUEUED


@dataclass(frozen=True)
class NodeJob:
    """A job on a node: the numbers of its account, how often Slurm has started it again, and whether it runs."""

    user: int
    group: int
    restarts: int
    runs: bool = True


class Slurm:
    """The commands of one cluster.

    Parameters
    ----------
    environment
        Where `KEPT` is taken from; None: this process's.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        given = os.environ if environment is None else environment
        self.environment = {name: given[name] for name in KEPT if name in given}

    async def submit(self, script: str, options: Sequence[str]) -> str:
        """Ask for a job, and return its id.

        Raises
        ------
        SlurmRefused, SlurmAway
            After `SlurmAway` the job may be there or not.
        """
        said = await self._run(["sbatch", "--parsable", "--export=ALL", *options], script)
        job_id = said.strip().partition(";")[0]
        if not job_id.isdigit():
            raise SlurmAway(f"sbatch answered “{said.strip()[:80]}”")
        return job_id

    async def jobs(self, prefix: str) -> list[SlurmJob]:
        """Return this account's jobs whose name begins with `prefix`: those that are not over, and those that Slurm remembers."""
        form = ",".join(f"{name}:{width}|" for name, width in _COLUMNS.items())
        said = await self._run(["squeue", "--me", "--noheader", "--states=all", f"--Format={form}"])
        found = []
        for line in said.splitlines():
            fields = [field.strip() for field in line.split("|")]
            if len(fields) < len(_COLUMNS):
                raise SlurmAway(f"squeue answered “{line.strip()[:80]}”")
            job_id, name, state, reason, nodes, restarts, starts, ends = fields[: len(_COLUMNS)]
            if name.startswith(prefix):
                found.append(
                    SlurmJob(
                        job_id,
                        name,
                        state,
                        "" if reason == "None" else reason,
                        nodes,
                        int(restarts) if restarts.isdigit() else 0,
                        _time(starts),
                        _time(ends),
                    )
                )
        return found

    async def job(self, job_id: str) -> SlurmJob | None:
        """Return one job of this account; None where Slurm does not know it."""
        return next((job for job in await self.jobs("") if job.id == job_id), None)

    async def terminate(self, job_id: str) -> None:
        """Send SIGTERM to the batch step of a running job; nothing happens where it is over."""
        await self._cancel("--batch", "--signal=TERM", job_id)

    async def cancel(self, job_id: str) -> None:
        """Cancel a job, whether it waits or runs; nothing happens where it is over."""
        await self._cancel(job_id)

    async def _cancel(self, *words: str) -> None:
        try:
            await self._run(["scancel", *words])
        except SlurmRefused as error:
            if not _OVER.search(str(error)):
                raise

    async def show_job(self, job_id: str) -> str:
        """Return Slurm's description of any account's job, on one line, with what it has on each node."""
        return await self._run(["scontrol", "show", "job", "--details", "--oneliner", job_id])

    async def show_node(self, node: str) -> str:
        """Return Slurm's description of a node, on one line."""
        return await self._run(["scontrol", "show", "node", "--oneliner", node])

    async def jobs_on(self, node: str) -> dict[str, NodeJob]:
        """Return every account's jobs that Slurm has on a node, by id."""
        form = "JobID:20|,UserID:12|,GroupID:12|,RestartCnt:8|,State:20|"
        said = await self._run(["squeue", "--noheader", f"--nodelist={node}", f"--Format={form}"])
        found = {}
        for line in said.splitlines():
            fields = [field.strip() for field in line.split("|")]
            if len(fields) != 6 or not all(field.isdigit() for field in fields[:4]):
                raise SlurmAway(f"squeue answered “{line.strip()[:80]}”")
            job, user, group, restarts, state, _ = fields
            found[job] = NodeJob(int(user), int(group), int(restarts), state in ("RUNNING", "CONFIGURING"))
        return found

    async def steps_on(self, node: str) -> set[str]:
        """Return the ids of jobs that have a step on this machine, by its ``slurmd`` of that name; the controller is not asked."""
        try:
            said = await self._run(["scontrol", "listpids", "*", node])
        except SlurmRefused as error:
            if _NO_STEPS.search(str(error)):
                return set()
            raise
        rows = [line.split() for line in said.splitlines()[1:]]
        return {row[1] for row in rows if len(row) > 1 and row[1].isdigit()}

    async def setting(self, name: str) -> str:
        """Return the first word of one of Slurm's settings; empty where it has none of that name."""
        said = await self._run(["scontrol", "show", "config"])
        match = re.search(rf"^{re.escape(name)}\s*=[ \t]*(\S+)", said, re.MULTILINE)
        return match[1] if match else ""

    async def kill_wait(self) -> float:
        """Return the seconds between SIGTERM and SIGKILL of a job that is cancelled."""
        seconds = await self.setting("KillWait")
        return float(seconds) if seconds.isdigit() else 30.0

    async def _run(self, command: Sequence[str], stdin: str = "") -> str:
        environment = {**self.environment, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        if command[0] == "sbatch":
            environment = self.environment  # which becomes the job's
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
            )
        except OSError as error:
            raise SlurmRefused(f"{command[0]} cannot be run here: {error.strerror}") from None
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                out, err = await process.communicate(stdin.encode())
        except TimeoutError:
            raise SlurmAway(f"{command[0]} had no answer for {PATIENCE_SECONDS:.0f} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode == 0:
            return out.decode(errors="replace")
        why = _reason(command[0], err.decode(errors="replace"))
        raise SlurmAway(why) if _AWAY.search(why) else SlurmRefused(why)


def _reason(program: str, said: str) -> str:
    """Return the last thing that a command complained about, without its own name."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if not lines:
        return f"{program} failed and said nothing"
    last = re.sub(rf"^{program}: (error: |fatal: )?", "", lines[-1])
    return last.removeprefix("Batch job submission failed: ").rstrip(".")[:300]


def _time(text: str) -> float:
    return float(text) if text.isdigit() else 0.0
