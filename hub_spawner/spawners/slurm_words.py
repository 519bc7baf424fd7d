"""Slurm's words about the job of a server, and the sentences that its person reads."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["ServerJob", "parse_job", "refusal_of", "why_ended", "why_waiting"]

FORMAT = "State:24|,Reason:80|,TimeLimit:24|,RestartCnt:12|,exit_code:12|,PreemptTime:24|"
"""The columns of ``squeue --Format`` that `parse_job` reads."""

_WAITING = {
    "Priority": "jobs before it in the queue have a higher priority",
    "Resources": "it waits until the processors, memory or GPUs that it asked for are free",
    "BeginTime": "it is to start later",
    "Reservation": "it waits for its reservation to begin",
    "ReqNodeNotAvail": "a node that it needs is down, or reserved for maintenance",
    "PartitionTimeLimit": "it asks for more time than its partition allows",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it was held, with your account",
    "Licenses": "it waits for a licence",
}


_ENDED_IN_GRACE = ("CANCELLED", "COMPLETED", "FAILED", "TIMEOUT")


@dataclass(frozen=True)
class ServerJob:
    """One look at the job of a server.

    Attributes
    ----------
    state, reason
        As Slurm names them: ``PENDING``, ``QOSMaxGRESPerUser``.
    limit
        Its time limit, as Slurm writes it.
    restarts
        How often Slurm has put it back into its queue.
    status
        What its script ended with.
    preempted
        Another job has its place; in the time of grace a server ends by itself, in order, and Slurm calls that completed.
    """

    id: str
    state: str
    reason: str = ""
    limit: str = ""
    restarts: int = 0
    status: int = 0
    preempted: bool = False


def parse_job(job_id: str, said: str) -> ServerJob | None:
    """Return the job that ``squeue`` shows in the columns of `FORMAT`; None where it shows none."""
    line = (said.strip().splitlines() or [""])[-1]
    fields = [field.strip() for field in line.split("|")]
    if len(fields) < 5 or not re.fullmatch(r"[A-Z_]+", fields[0]):
        return None
    reason = "" if fields[1] == "None" else fields[1]
    restarts = int(fields[3]) if fields[3].isdigit() else 0
    # In squeue the status is as wait(2) has it: 256 for each unit that a shell shows.
    status = int(fields[4]) if fields[4].isdigit() else 0
    status = status >> 8 if status > 255 else status
    preempted = len(fields) > 5 and fields[5][:1].isdigit()
    return ServerJob(job_id, fields[0], reason, fields[2], restarts, status, preempted)


def why_waiting(job: ServerJob) -> str:
    """Return a sentence about a job that is in Slurm's queue or about to start."""
    if job.state != "PENDING":
        return f"Slurm starts your server (job {job.id})."
    reason = job.reason.strip("()").partition(",")[0]
    if why := _WAITING.get(reason):
        return f"Your server waits in Slurm's queue (job {job.id}): {why} ({reason})."
    if reason.startswith(("QOS", "Assoc")):
        whose = "your account's" if reason.startswith("Assoc") else "a"
        return (
            f"Your server waits in Slurm's queue (job {job.id}): with it {whose} limit would be exceeded ({reason}). "
            "It starts when jobs that count there have ended."
        )
    return f"Your server waits in Slurm's queue (job {job.id}{f': {reason}' if reason else ''})."


def why_ended(job: ServerJob | None, number: str) -> str:
    """Return why a server's job is over, without a full stop; empty where its server ended by itself, in order.

    Parameters
    ----------
    job
        The job as Slurm shows it; None where it does not know it any more.
    number
        Its number.
    """
    its = f"Slurm's job {number}, in which it ran,"
    if job is None:
        return f"{its} is gone"
    if job.state == "COMPLETED" and not job.preempted:
        return ""
    if job.restarts or job.state in ("PENDING", "REQUEUED"):
        return f"Slurm put its job {number} back into the queue, since its node failed or somebody had precedence"
    ways = {
        "CANCELLED": "was cancelled",
        "TIMEOUT": f"has reached its time limit ({job.limit})",
        "DEADLINE": "has reached its deadline",
        "SUSPENDED": "was suspended, and so ended",
        "PREEMPTED": "had to make way for a job of higher priority",
        "NODE_FAIL": "lost its node, which failed",
        "BOOT_FAIL": "lost its node, which failed",
        "OUT_OF_MEMORY": "took more memory than it had asked for",
    }
    state = "PREEMPTED" if job.preempted and job.state in _ENDED_IN_GRACE else job.state
    if way := ways.get(state):
        return f"{its} {way}"
    return f"{its} ended with status {job.status}; its output is in your home directory"


def refusal_of(said: str) -> str:
    """Return what ``sbatch`` says no with, without its decoration."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    line = lines[-1] if lines else "it gave no reason"
    line = re.sub(r"^\w+: (error|fatal): ", "", line).removeprefix("Batch job submission failed: ")
    return line[:300].rstrip(".")
