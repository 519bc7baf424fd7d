"""The commands that show the pool: its devices, its leases, their use, its health."""

from __future__ import annotations

from typing import Annotated

import typer

from gpukernel.cli.options import Json, Pool, State
from gpukernel.cli.terminal.formats import Format, FormatOption, chosen
from gpukernel.cli.terminal.watching import Watch, WatchCommand

__all__ = ["app"]

app = typer.Typer()


@app.command("list-gpus", cls=WatchCommand)
def list_gpus(
    watch: Watch = None,
    pool: Pool = None,
    state: State = None,
    form: FormatOption = Format.TABLE,
    json: Json = False,
) -> None:
    """Show the pool's devices and how much of each is promised.

    \b
    Examples:
      gpukernel list-gpus
      gpukernel list-gpus -o json
    """
    from gpukernel.cli import tables

    tables.list_gpus(pool, state, chosen(form, json), watch)


@app.command()
def health(
    pool: Pool = None, state: State = None, form: FormatOption = Format.TABLE, json: Json = False
) -> None:
    """Check every part, and say what to do where one does not work.

    The exit status is 1 where something is wrong.

    \b
    Examples:
      gpukernel health
      gpukernel health --json
    """
    from gpukernel.cli import health as command

    command.health(pool, state, chosen(form, json))


@app.command()
def report(
    course: Annotated[str, typer.Option(metavar="NAME", help="This course only.")] = "",
    person: Annotated[str, typer.Option(metavar="NAME", help="This person only.")] = "",
    since: Annotated[
        str,
        typer.Option(
            metavar="WHEN", help="monday, today, 2026-09-01, 2026-09-01T10:00, or a time ago: 7d, 12h."
        ),
    ] = "monday",
    until: Annotated[str, typer.Option(metavar="WHEN", help="The same; else now.")] = "",
    by: Annotated[
        str, typer.Option(metavar="WHAT", help="A line for each person, course, day, lease or decider.")
    ] = "person",
    decided_by: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What this one placed only: pool, or slurm or kubernetes, whose own books have it, too.",
        ),
    ] = "",
    csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values for a spreadsheet.")] = False,
    pool: Pool = None,
    state: State = None,
    form: FormatOption = Format.TABLE,
    json: Json = False,
) -> None:
    """Show who held how much of the pool for how long.

    A device-hour is one whole device for one hour, or a tenth of one for ten.  People see their own, instructors their courses'.

    \b
    Examples:
      gpukernel report --course ml101 --since monday
      gpukernel report --since 2026-09-01 --by course --csv > term.csv
      gpukernel report --decided-by pool --by course       # without what Slurm charges
    """
    from gpukernel.cli import report as command

    command.report(course, person, since, until, by, csv, pool, state, chosen(form, json), decided_by)


@app.command()
def top(
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.2, help="How often it looks again.")
    ] = 2.0,
    times: Annotated[
        int, typer.Option(metavar="N", help="End after so many pictures; 0: at Ctrl-C.", min=0)
    ] = 0,
    pool: Pool = None,
    state: State = None,
) -> None:
    """Watch the pool: its devices, who holds what, and who waits.

    \b
    Example:
      gpukernel top
    """
    from gpukernel.cli import tables

    tables.top(every, times, pool, state)


@app.command(cls=WatchCommand)
def smi(
    kernels: Annotated[
        bool,
        typer.Option(
            "--kernels",
            help="The kernels of this slice, on simulated devices: which tier runs each, and why.",
        ),
    ] = False,
    watch: Watch = None,
    pool: Pool = None,
    state: State = None,
    form: FormatOption = Format.TABLE,
    json: Json = False,
) -> None:
    """Show your own slices: memory, use and programs.

    Inside a slice it shows that one, otherwise all that you hold.

    \b
    Examples:
      gpukernel smi
      gpukernel smi --watch 1
      gpukernel run -p 0.05 -- gpukernel smi --json
      gpukernel client -- gpukernel smi --kernels
    """
    if kernels:
        from gpukernel.cli.kernels import tiers

        tiers.show_kernels(chosen(form, json), watch)
        return
    from gpukernel.cli import smi as command

    command.smi(watch, pool, state, chosen(form, json))


@app.command(cls=WatchCommand)
def leases(
    all: Annotated[
        bool, typer.Option("--all", "-a", help="Also those that have ended, with the reason.")
    ] = False,
    filter: Annotated[
        str,
        typer.Option(
            metavar="WHICH",
            help="Which leases: key=KEY, decided_by=pool, kubernetes or slurm; both with “and” between.",
        ),
    ] = "",
    watch: Watch = None,
    pool: Pool = None,
    state: State = None,
    form: FormatOption = Format.TABLE,
    json: Json = False,
) -> None:
    """Show who holds which slices, what they use, and who waits.  “ps” is the same.

    \b
    Examples:
      gpukernel leases
      gpukernel ps -w
      gpukernel leases --all -o json
      gpukernel leases --filter decided_by=slurm -o wide
    """
    from gpukernel.cli import tables
    from gpukernel.cli.engines.filters import lease_conditions

    tables.leases(all, pool, state, chosen(form, json), watch, lease_conditions(filter))


app.command("ps", cls=WatchCommand, help="The same as “leases”: who holds which slices, and who waits.")(
    leases
)


@app.command()
def why(
    which: Annotated[
        str,
        typer.Argument(metavar="LEASE|REQUEST", help="The beginning of a lease's id or of a request's key."),
    ],
    pool: Pool = None,
    state: State = None,
    form: FormatOption = Format.TABLE,
    json: Json = False,
) -> None:
    """Say why a lease is where it is, or why a request waits: your own, of a course that you teach, or as the administrator all.

    \b
    Examples:
      gpukernel why 3f2a
      gpukernel why run-7c1e --json
    """
    from gpukernel.cli.queue import why as command

    command.why(which, pool, state, chosen(form, json))
