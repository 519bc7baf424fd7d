"""``gpukernel slurm job``: the agent of one job of Slurm."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import platform
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpukernel.cli.options import Level, TcpHost
from gpukernel.cli.terminal.output import FAILED, USAGE, Problem
from gpukernel.common.data_tls import DataTls
from gpukernel.common.logs import Form

if TYPE_CHECKING:
    from gpukernel.agent.inventory import Inventory

__all__ = ["job"]


def job(
    folder: Annotated[Path, typer.Option(metavar="DIR", help="The supply's folder.")],
    tag: Annotated[str, typer.Option(metavar="TAG", help="The job's tag.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="The supply's name.")],
    notice: Annotated[float, typer.Option(min=0, help="Seconds that holders are given.")],
    simulate: Annotated[
        str, typer.Option(metavar="MODELS", help="Simulated GPUs in place of the job's.")
    ] = "",
    tcp_host: TcpHost = "",
) -> None:
    """Lend the GPUs of the job that this runs in; the supply's jobs start it.

    \b
    Example:
      gpukernel slurm job --folder DIR --tag TAG --name gpu --notice 300
    """
    from gpukernel.agent.confinement import IN_A_JOB
    from gpukernel.cli import services
    from gpukernel.engines.slurm.commands import Slurm
    from gpukernel.engines.slurm.job import Ear, await_way_in, seconds_left, term_to_self
    from gpukernel.engines.slurm.offer import server_name

    job_id, start = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "0")
    if not (job_id.isdigit() and start.isdigit()):
        raise Problem("This runs in a job of Slurm, which “gpukernel slurm supply” asks for.", USAGE)
    try:
        way = await_way_in(folder, tag, int(start))
    except FileNotFoundError as error:
        raise Problem(str(error)) from None
    # Sockets and records of workers: on the node itself, and nobody else's.
    own = Path(tempfile.mkdtemp(prefix=f"gpukernel-job-{job_id}-"))

    async def left(told: asyncio.Event) -> tuple[float, str]:
        return await seconds_left(Slurm(), job_id, notice, time.time()), f"Slurm ends its job {job_id}"

    try:
        with Ear(term_to_self) as ear:
            ear.await_listening()
            services.agent(
                str(way),
                None,
                simulate,
                own,
                tcp_host or platform.node(),
                DataTls.AUTO,
                server_name(name, job_id, int(start)),
                None,
                1024,
                IN_A_JOB,
                "1900000000-1900000999",
                False,
                Level.INFO,
                Form.TEXT,
                left,
                _the_jobs,
            )
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends already
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _the_jobs(found: Inventory) -> Inventory:
    """Return the job's own devices of those of this machine."""
    from gpukernel.engines.slurm.job import NotTheJobs, own_devices

    if found.simulated:
        return found
    import pynvml

    pynvml.nvmlInit()
    try:
        minors = [
            (device.uuid, pynvml.nvmlDeviceGetMinorNumber(pynvml.nvmlDeviceGetHandleByUUID(device.uuid)))
            for device in found.devices
        ]
    finally:
        pynvml.nvmlShutdown()
    try:
        ours = own_devices(minors, os.environ)
    except NotTheJobs as error:
        raise Problem(str(error), FAILED) from None
    return dataclasses.replace(
        found, devices=tuple(device for device in found.devices if device.uuid in ours)
    )
