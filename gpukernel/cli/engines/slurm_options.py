"""The options of ``gpukernel slurm``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "DownAfter",
    "DryRun",
    "Every",
    "Folder",
    "Gpu",
    "Gpus",
    "JobHours",
    "JobsPool",
    "Json",
    "LeadTime",
    "Least",
    "Most",
    "NoticeTime",
    "Partition",
    "Program",
    "SbatchOptions",
    "ScheduleHours",
    "SimulateModel",
    "SupplyName",
    "UpAfter",
]

MOST_GPUS, MOST_JOBS = 64, 1000

SupplyName = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="The supply's name, with which its jobs and servers begin. Else the partition's."
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder for the supply's records and its jobs' ways into the pool; nodes see it at the same path. Else “slurm/NAME” in the state directory.",
    ),
]
Gpu = Annotated[
    str,
    typer.Option(
        metavar="'MODEL, MEMORY'",
        help="The jobs' GPUs as nvidia-smi names them, such as 'Tesla V100-SXM2-32GB, 32768 MiB'; for --min 0 before the first job has shown its own.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="The same as -o json: a list of objects for programs.")]
Partition = Annotated[str, typer.Option(metavar="PARTITION", help="Slurm's partition for the jobs.")]
Gpus = Annotated[int, typer.Option(min=1, max=MOST_GPUS, help="GPUs of each job, on one node.")]
JobHours = Annotated[float, typer.Option(min=0.1, max=24 * 60, help="Time limit of each job.")]
Least = Annotated[
    int,
    typer.Option(
        "--min",
        min=0,
        max=MOST_JOBS,
        help="Jobs to keep. 0: none while nobody waits; the first who does starts one.",
    ),
]
Most = Annotated[
    int | None,
    typer.Option(
        "--max", min=0, max=MOST_JOBS, help="Jobs when people wait. Else as --min, and 1 for --min 0."
    ),
]
ScheduleHours = Annotated[
    str,
    typer.Option(
        metavar="HOURS",
        help="When there may be jobs, by this machine's clock: 'Mo-Fr 8-18'; several with “;” between. Else always.",
    ),
]
NoticeTime = Annotated[
    str,
    typer.Option(
        metavar="TIME", help="How long before a job's end its slices are told, and no new ones granted."
    ),
]
LeadTime = Annotated[
    str,
    typer.Option(metavar="TIME", help="How long before that the next job is asked for: Slurm's usual wait."),
]
UpAfter = Annotated[
    str,
    typer.Option(metavar="TIME", help="People must have waited for so long before there is another job."),
]
DownAfter = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="A job must have had no slice, and nobody waited, for so long before it is given up.",
    ),
]
Every = Annotated[str, typer.Option(metavar="TIME", help="How often to look; 1s to 1m.")]
SimulateModel = Annotated[
    str,
    typer.Option(
        metavar="MODEL", help="Simulated GPUs of this model, such as v100, in place of the jobs' own."
    ),
]
SbatchOptions = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OPTION",
        help="An option more for sbatch, such as --sbatch=--account=lab; may be repeated.",
    ),
]
Program = Annotated[
    str,
    typer.Option(
        metavar="COMMAND", help="The command gpukernel on the nodes. Else this one's, at the same path."
    ),
]
JobsPool = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS", help="The pool's address for jobs, where the pool has no TLS: HOST:PORT."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done now, and do nothing.")]
