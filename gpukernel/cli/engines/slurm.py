"""``gpukernel slurm``: GPU servers that run as jobs of Slurm, and slices for jobs."""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpukernel.cli.engines.slurm_job import job
from gpukernel.cli.engines.slurm_node import configure, node
from gpukernel.cli.engines.slurm_options import (
    DownAfter,
    DryRun,
    Every,
    Folder,
    Gpu,
    Gpus,
    JobHours,
    JobsPool,
    Json,
    LeadTime,
    Least,
    Most,
    NoticeTime,
    Partition,
    Program,
    SbatchOptions,
    ScheduleHours,
    SimulateModel,
    SupplyName,
    UpAfter,
)
from gpukernel.cli.options import Level, LogFormat, LogLevel, Pool, State, TcpHost
from gpukernel.cli.terminal.formats import Format, FormatOption, chosen, present, print_data
from gpukernel.cli.terminal.listing import Column, Listing
from gpukernel.cli.terminal.output import NOT_THERE, USAGE, Problem, age, failure, seconds, span
from gpukernel.cli.terminal.usage import Group
from gpukernel.common.errors import PoolError
from gpukernel.common.logs import Form, one_line

if TYPE_CHECKING:
    from gpukernel.engines.slurm.supply import Supply

__all__ = ["app"]

app = typer.Typer(
    help="Lend GPUs from Slurm: GPU servers run as its jobs; and give slices to its jobs.",
    no_args_is_help=True,
    cls=Group,
)

app.command()(job)
app.command()(node)
app.command()(configure)

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")


@app.command()
def supply(
    partition: Partition,
    gpus: Gpus = 1,
    hours: JobHours = 8.0,
    least: Least = 1,
    most: Most = None,
    schedule: ScheduleHours = "",
    notice: NoticeTime = "5m",
    lead: LeadTime = "10m",
    up_after: UpAfter = "1m",
    down_after: DownAfter = "15m",
    every: Every = "10s",
    gpu: Gpu = "",
    simulate: SimulateModel = "",
    sbatch: SbatchOptions = None,
    program: Program = "",
    jobs_pool: JobsPool = "",
    tcp_host: TcpHost = "",
    name: SupplyName = "",
    folder: Folder = None,
    dry_run: DryRun = False,
    pool: Pool = None,
    state: State = None,
    log_level: LogLevel = Level.INFO,
    log_format: LogFormat = Form.TEXT,
) -> None:
    """Keep GPU servers running as jobs of Slurm: more when people wait, fewer when slices are idle.

    It runs in the foreground, with a token of scope supply and as the account that the jobs run as.  Each job lends its GPUs for as
    long as it lives.  Stopped, it leaves its jobs alone; started again, it takes them over.  “gpukernel slurm stop” ends them.

    \b
    Examples:
      gpukernel slurm supply --partition gpu --gpus 4 --hours 8 --pool supply.pool
      gpukernel slurm supply --partition gpu --gpus 4 --min 1 --max 8 --schedule 'Mo-Fr 8-18' --pool supply.pool
      gpukernel slurm supply --partition gpu --min 0 --max 4 --gpu 'Tesla V100-SXM2-32GB, 32768 MiB' --pool supply.pool
      gpukernel slurm supply --partition gpu --gpus 2 --sbatch=--account=lab --dry-run --pool supply.pool
    """
    from gpukernel.engines.schedule import parse_schedule
    from gpukernel.engines.slurm.autoscaler import Settings

    try:
        weekly = parse_schedule(schedule)
    except ValueError as error:
        raise Problem(str(error), USAGE) from None
    settings = Settings(
        gpus=gpus,
        least=least,
        most=max(least, 1) if most is None else most,
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
        _gpu(gpu, simulate),
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


def _gpu(text: str, simulate: str) -> tuple[str, int] | None:
    """Return model and bytes of a job's GPU: as they were said, or of the simulated one; None where nothing is known."""
    from gpukernel.agent.inventory import NoDevices, simulated
    from gpukernel.engines.slurm.announcement import parse_gpu

    if simulate and not re.fullmatch(r"[a-z0-9-]{1,20}", simulate):
        raise Problem(f"“{simulate[:40]}” is no model; write --simulate v100, without a number.", USAGE)
    if text and simulate:
        raise Problem("--gpu and --simulate say the same thing; say one of them.", USAGE)
    try:
        if not simulate:
            return parse_gpu(text) if text else None
        (device,) = simulated(f"{simulate}:1").devices
    except (ValueError, NoDevices) as error:
        raise Problem(str(error), USAGE) from None
    return device.name, device.memory_bytes


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
    gpu: tuple[str, int] | None,
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
    from gpukernel.common.address import are_network_addresses, resolve_address
    from gpukernel.common.connection import connection_to
    from gpukernel.engines.slurm.commands import Slurm
    from gpukernel.engines.slurm.offer import JobOffer
    from gpukernel.engines.slurm.records import Records
    from gpukernel.engines.slurm.supply import Supply

    if jobs_pool and not are_network_addresses(jobs_pool):
        raise Problem(
            f"“{jobs_pool[:60]}” is no address for jobs; write HOST:PORT or tls://HOST:PORT.", USAGE
        )
    if wrong := [option for option in options if not option.startswith("-")]:
        raise Problem(f"“{wrong[0][:40]}” is no option of sbatch; write --sbatch=--account=lab.", USAGE)
    try:
        address = resolve_address(pool, state)
        connection = connection_to(address)
        if not jobs_pool and not connection.address.startswith("unix:"):
            jobs_pool = ",".join(connection.addresses)
        offer = JobOffer(
            name,
            partition,
            tuple(shlex.split(program)) if program else (sys.executable, "-P", "-m", "gpukernel.cli"),
            simulate,
            tcp_host,
            jobs_pool,
            tuple(options),
        )
        records = Records(_folder(folder, name, state), hold=hold)
    except PoolError as error:
        raise failure(error) from None
    return Supply(Slurm(), records, settings, offer, lambda: AdminClient(address), gpu)


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
    runs, how = records.is_held(), chosen(form, json)
    if how in (Format.JSON, Format.YAML):
        print_data([{**found, "running": runs}], how)
        return
    listing = Listing(
        [
            Column("Job", lambda one: one["job"] or one["tag"]),
            Column("State", lambda one: one["state"]),
            Column("Slurm", lambda one: f"{one['slurm_state']} {one['reason']}".strip(), drop=1, least=10),
            Column("Server", lambda one: one["server"]),
            Column("Node", lambda one: one["node"], drop=2),
            Column("Leases", lambda one: str(one["leases"]), right=True),
            Column(
                "Ends", lambda one: f"in {span(one['ends'] - time.time())}" if one["ends"] else "", drop=3
            ),
        ],
        found.get("jobs", []),
        lambda one: one["job"],
    )
    present(found.get("jobs", []), listing, how, "The supply has no jobs.")
    if how is Format.NAME:
        return
    for line in found.get("log", [])[-8:]:
        print(f"{time.strftime('%a %H:%M:%S', time.localtime(line['at']))}  {one_line(line['sentence'])}")
    if not runs:
        print(f"The supply does not run; this is of {age(found['at'])} ago.")


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
        for found in await slurm.jobs(f"gpukernel.{name}."):
            if found.is_queued:
                await slurm.cancel(found.id)
            elif found.state == "RUNNING":
                await slurm.terminate(found.id)
            else:
                continue
            count += 1
            if record := records.all().get(found.name.rpartition(".")[2]):
                records.save(record, leaving="the supply was stopped")
        return count

    try:
        count = asyncio.run(end())
    except (SlurmAway, SlurmRefused) as error:
        raise Problem(f"Slurm does not answer: {error}.") from None
    print("1 job was told to end." if count == 1 else f"{count} jobs were told to end.")
