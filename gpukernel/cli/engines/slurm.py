"""``gpukernel slurm``: GPU servers that run as jobs of Slurm."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import platform
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpukernel.cli.options import Level, LogFormat, LogLevel, Pool, State, TcpHost
from gpukernel.cli.terminal.formats import Format, FormatOption, chosen, present, print_data
from gpukernel.cli.terminal.listing import Column, Listing
from gpukernel.cli.terminal.output import FAILED, NOT_THERE, USAGE, Problem, age, failure, seconds
from gpukernel.cli.terminal.usage import Group
from gpukernel.common.data_tls import DataTls
from gpukernel.common.errors import PoolError
from gpukernel.common.logs import Form, one_line

if TYPE_CHECKING:
    from gpukernel.agent.inventory import Inventory
    from gpukernel.engines.slurm.supply import Supply

__all__ = ["app"]

app = typer.Typer(help="Lend GPUs from Slurm: GPU servers run as its jobs.", no_args_is_help=True, cls=Group)

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
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
Json = Annotated[bool, typer.Option("--json", help="The same as -o json: a list of objects for programs.")]


@app.command()
def supply(
    partition: Annotated[str, typer.Option(metavar="PARTITION", help="Slurm's partition for the jobs.")],
    gpus: Annotated[int, typer.Option(min=1, max=MOST_GPUS, help="GPUs of each job, on one node.")] = 1,
    hours: Annotated[float, typer.Option(min=0.1, max=24 * 60, help="Time limit of each job.")] = 8.0,
    least: Annotated[
        int,
        typer.Option(
            "--min",
            min=0,
            max=MOST_JOBS,
            help="Jobs to keep; 0 only where the pool has such GPUs besides: nobody can wait for a model that it has not.",
        ),
    ] = 1,
    most: Annotated[
        int | None, typer.Option("--max", min=0, max=MOST_JOBS, help="Jobs when people wait. Else as --min.")
    ] = None,
    schedule: Annotated[
        str,
        typer.Option(
            metavar="HOURS",
            help="When there may be jobs, by this machine's clock: 'Mo-Fr 8-18'; several with “;” between. Else always.",
        ),
    ] = "",
    notice: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How long before a job's end its slices are told, and no new ones granted."
        ),
    ] = "5m",
    lead: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How long before that the next job is asked for: Slurm's usual wait."
        ),
    ] = "10m",
    up_after: Annotated[
        str,
        typer.Option(metavar="TIME", help="People must have waited for so long before there is another job."),
    ] = "1m",
    down_after: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="A job must have had no slice, and nobody waited, for so long before it is given up.",
        ),
    ] = "15m",
    every: Annotated[str, typer.Option(metavar="TIME", help="How often to look; 1s to 1m.")] = "10s",
    simulate: Annotated[
        str,
        typer.Option(
            metavar="MODEL", help="Simulated GPUs of this model, such as v100, in place of the jobs' own."
        ),
    ] = "",
    sbatch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION",
            help="An option more for sbatch, such as --sbatch=--account=lab; may be repeated.",
        ),
    ] = None,
    program: Annotated[
        str,
        typer.Option(
            metavar="COMMAND", help="The command gpukernel on the nodes. Else this one's, at the same path."
        ),
    ] = "",
    jobs_pool: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="The pool's address for jobs, where the pool has no TLS: HOST:PORT."
        ),
    ] = "",
    tcp_host: TcpHost = "",
    name: SupplyName = "",
    folder: Folder = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done now, and do nothing.")
    ] = False,
    pool: Pool = None,
    state: State = None,
    log_level: LogLevel = Level.INFO,
    log_format: LogFormat = Form.TEXT,
) -> None:
    """Keep GPU servers running as jobs of Slurm: more when people wait, fewer when slices are idle.

    It runs in the foreground, as an administrator of the pool and as the account that the jobs run as.  Each job lends its GPUs for as
    long as it lives.  Stopped, it leaves its jobs alone; started again, it takes them over.  “gpukernel slurm stop” ends them.

    \b
    Examples:
      gpukernel slurm supply --partition gpu --gpus 4 --hours 8 --pool admin.pool
      gpukernel slurm supply --partition gpu --gpus 4 --min 1 --max 8 --schedule 'Mo-Fr 8-18' --pool admin.pool
      gpukernel slurm supply --partition gpu --gpus 2 --sbatch=--account=lab --dry-run --pool admin.pool
    """
    from gpukernel.engines.slurm.autoscaler import Settings
    from gpukernel.engines.slurm.schedule import parse_schedule

    try:
        weekly = parse_schedule(schedule)
    except ValueError as error:
        raise Problem(str(error), USAGE) from None
    settings = Settings(
        gpus=gpus,
        least=least,
        most=least if most is None else most,
        seconds=hours * 3600,
        notice=_time("--notice", notice, 1, 12 * 3600),
        lead=_time("--lead", lead, 0, 24 * 3600),
        up_after=_time("--up-after", up_after, 0, 24 * 3600),
        down_after=_time("--down-after", down_after, 0, 7 * 24 * 3600),
        schedule=weekly,
    )
    if settings.most < least:
        raise Problem(f"--max {settings.most} is less than --min {least}.", USAGE)
    if settings.seconds < settings.shortest:
        raise Problem(
            f"A job of {hours:g} h is too short for a notice of {notice}; give it {settings.shortest / 3600:.2g} h at least.",
            USAGE,
        )
    looks = _time("--every", every, 1, 60)
    name = _name(name or partition.partition(",")[0].lower())
    work = _supply(
        name,
        partition,
        settings,
        simulate,
        sbatch or [],
        program,
        jobs_pool,
        tcp_host,
        folder,
        pool,
        state,
        hold=not dry_run,
    )
    if dry_run:
        _rehearse(work)
        return
    from gpukernel.common import logs

    logs.configure(log_level, log_format)

    async def run() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await work.run(looks, stop)

    asyncio.run(run())


def _time(option: str, text: str, least: float, most: float) -> float:
    span = seconds(text)
    if not least <= span <= most:
        raise Problem(f"{option} {text} is not possible; it is {least:g} to {most:g} s.", USAGE)
    return span


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise Problem(
            f"“{text[:40]}” is no name for a supply; it has small letters, digits and “-”, 31 at most. Say --name NAME.",
            USAGE,
        )
    return text


def _folder(folder: Path | None, name: str, state: Path | None) -> Path:
    from gpukernel.common.address import resolve_state

    return (folder or resolve_state(state) / "slurm" / name).absolute()


def _supply(
    name: str,
    partition: str,
    settings: Any,
    simulate: str,
    options: list[str],
    program: str,
    jobs_pool: str,
    tcp_host: str,
    folder: Path | None,
    pool: str | None,
    state: Path | None,
    *,
    hold: bool,
) -> Supply:
    from gpukernel.client.admin import AdminClient
    from gpukernel.common.address import is_network_address, resolve_address
    from gpukernel.common.connection import connection_to
    from gpukernel.engines.slurm.commands import Slurm
    from gpukernel.engines.slurm.records import Records
    from gpukernel.engines.slurm.supply import JobOffer, Supply

    if simulate and not re.fullmatch(r"[a-z0-9-]{1,20}", simulate):
        raise Problem(f"“{simulate[:40]}” is no model; write --simulate v100, without a number.", USAGE)
    if jobs_pool and not is_network_address(jobs_pool):
        raise Problem(
            f"“{jobs_pool[:60]}” is no address for jobs; write HOST:PORT or tls://HOST:PORT.", USAGE
        )
    if wrong := [option for option in options if not option.startswith("-")]:
        raise Problem(f"“{wrong[0][:40]}” is no option of sbatch; write --sbatch=--account=lab.", USAGE)
    try:
        address = resolve_address(pool, state)
        connection = connection_to(address)
        if not jobs_pool and not connection.address.startswith("unix:"):
            jobs_pool = connection.address
        offer = JobOffer(
            name,
            partition,
            tuple(shlex.split(program)) if program else (sys.executable, "-m", "gpukernel.cli"),
            simulate,
            tcp_host,
            jobs_pool,
            tuple(options),
        )
        records = Records(_folder(folder, name, state), hold=hold)
    except PoolError as error:
        raise failure(error) from None
    return Supply(Slurm(), records, settings, offer, lambda: AdminClient(address))


def _rehearse(work: Supply) -> None:
    from gpukernel.engines.slurm.commands import SlurmAway, SlurmRefused
    from gpukernel.engines.slurm.records import JobRecord

    try:
        decision, seen, waiting = asyncio.run(work.rehearse())
    except (SlurmAway, SlurmRefused) as error:
        raise Problem(f"Slurm does not answer: {error}.") from None
    except PoolError as error:
        raise failure(error) from None
    print(f"There are {len(seen)} jobs, and people wait for {waiting:.3g} GPUs' worth.")
    for line in decision.sentences or ("Nothing is to be done.",):
        print(line)
    for end in decision.end:
        print(
            f"Job {next(one.record.job for one in seen if one.record.tag == end.tag)} is given up: {end.why}."
        )
    if decision.ask:
        record = JobRecord("TAG", 0.0, decision.seconds)
        print(
            f"{decision.ask} × {shlex.join(['sbatch', *work.offer.sbatch(record, work.records, work.settings)])}"
        )
        print(work.offer.script(record, work.records, work.settings), end="")


@app.command()
def status(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The supply's name.")],
    folder: Folder = None,
    state: State = None,
    form: FormatOption = Format.TABLE,
    json: Json = False,
) -> None:
    """Show the jobs of a supply as it saw them last, and why it did what it did.

    \b
    Examples:
      gpukernel slurm status gpu
      gpukernel slurm status gpu --json
    """
    from gpukernel.engines.slurm.records import Records

    records = Records(_folder(folder, _name(name), state), hold=False)
    found = records.state()
    if found is None:
        raise Problem(f"There is no supply {name} in {records.folder}.", NOT_THERE)
    runs = records.is_held()
    if chosen(form, json) is not Format.TABLE:
        print_data([{**found, "running": runs}])
        return
    now = time.time()
    listing = Listing(
        [
            Column("Job", lambda one: one["job"] or one["tag"]),
            Column("State", lambda one: one["state"]),
            Column("Slurm", lambda one: f"{one['slurm_state']} {one['reason']}".strip(), drop=1, least=10),
            Column("Server", lambda one: one["server"]),
            Column("Node", lambda one: one["node"], drop=2),
            Column("Leases", lambda one: str(one["leases"]), right=True),
            Column("Ends", lambda one: f"in {age(one['ends'] - now)}" if one["ends"] else "", drop=3),
        ],
        found.get("jobs", []),
        lambda one: one["job"],
    )
    present(found.get("jobs", []), listing, Format.TABLE, "The supply has no jobs.")
    for line in found.get("log", [])[-8:]:
        print(f"{time.strftime('%a %H:%M:%S', time.localtime(line['at']))}  {one_line(line['sentence'])}")
    if not runs:
        print(f"The supply does not run; this is of {age(now - found['at'])} ago.")


@app.command()
def stop(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The supply's name.")],
    folder: Folder = None,
    state: State = None,
) -> None:
    """End the jobs of a supply that does not run any more: those that wait at once, those that serve with notice.

    \b
    Example:
      gpukernel slurm stop gpu
    """
    from gpukernel.engines.slurm.commands import Slurm, SlurmAway, SlurmRefused
    from gpukernel.engines.slurm.records import Records

    folder = _folder(folder, _name(name), state)
    if not folder.is_dir():
        raise Problem(f"There is no supply {name} in {folder}.", NOT_THERE)
    try:
        records = Records(folder)
    except PoolError as error:
        raise failure(error) from None

    async def end() -> int:
        slurm, count = Slurm(), 0
        for job in await slurm.jobs(f"gpukernel.{name}."):
            if job.is_queued:
                await slurm.cancel(job.id)
            elif job.state == "RUNNING":
                await slurm.terminate(job.id)
            else:
                continue
            count += 1
            if record := records.all().get(job.name.rpartition(".")[2]):
                records.save(record, leaving="the supply was stopped")
        return count

    try:
        count = asyncio.run(end())
    except (SlurmAway, SlurmRefused) as error:
        raise Problem(f"Slurm does not answer: {error}.") from None
    print(f"{count} jobs were told to end.")


@app.command(hidden=True)
def job(
    folder: Annotated[Path, typer.Option(metavar="DIR", help="The supply's folder.")],
    tag: Annotated[str, typer.Option(help="The job's tag.")],
    name: Annotated[str, typer.Option(help="The supply's name.")],
    notice: Annotated[float, typer.Option(min=0, help="Seconds that holders are given.")],
    simulate: Annotated[str, typer.Option(help="Simulated GPUs in place of the job's.")] = "",
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
    from gpukernel.engines.slurm.supply import server_name

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
        with Ear(term_to_self):
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
