"""The jobs of a supply: their names, their script, what is asked of Slurm for them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from gpukernel.engines.slurm.autoscaler import Settings
from gpukernel.engines.slurm.records import JobRecord, Records

__all__ = ["JobOffer", "server_name"]


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
