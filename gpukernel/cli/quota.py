"""``gpukernel quota``: courses and quotas, shown and changed."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gpukernel.cli.terminal.charset import write_data
from gpukernel.cli.terminal.formats import Format, FormatOption, chosen, present, print_data
from gpukernel.cli.terminal.listing import Column, Listing
from gpukernel.cli.terminal.output import NOT_THERE, USAGE, Problem, failure
from gpukernel.cli.terminal.usage import Group
from gpukernel.common.logs import one_line

if TYPE_CHECKING:
    from gpukernel.client.admin import AdminClient

__all__ = ["app", "ask_admin"]

T = TypeVar("T")

app = typer.Typer(
    help="Show and change courses and quotas: who may hold how much of the pool.",
    no_args_is_help=True,
    cls=Group,
)

Pool = Annotated[str | None, typer.Option("--pool", metavar="ADDRESS", help="The pool. Else GPUKERNEL_POOL.")]
State = Annotated[
    Path | None, typer.Option("--state", metavar="DIR", help="State directory. Else GPUKERNEL_STATE.")
]
Json = Annotated[bool, typer.Option("--json", help="The same as -o json: a list of objects for programs.")]


def ask_admin(pool: str | None, state: Path | None, call: Callable[[AdminClient], Awaitable[T]]) -> T:
    """Ask the pool one thing as `AdminClient` can; its error becomes a `Problem`."""
    from gpukernel.client.admin import AdminClient
    from gpukernel.common.address import resolve_address
    from gpukernel.common.errors import PoolError

    async def ask() -> T:
        async with AdminClient(resolve_address(pool, state)) as client:
            return await call(client)

    try:
        return asyncio.run(ask())
    except PoolError as error:
        raise failure(error) from None


def _say(changes: list[str], nothing: str) -> None:
    print("\n".join(changes) if changes else nothing)


@app.command()
def show(
    subject: Annotated[
        str, typer.Argument(metavar="SUBJECT", help="Only what begins with this, such as course:ml101.")
    ] = "",
    pool: Pool = None,
    state: State = None,
    form: FormatOption = Format.TABLE,
    json: Json = False,
) -> None:
    """Show every quota that concerns you, and what is used of it.

    \b
    Examples:
      gpukernel quota show
      gpukernel quota show course:ml101 --json
    """
    lines = [
        line for line in ask_admin(pool, state, lambda c: c.quotas()) if line.subject.startswith(subject)
    ]
    listing = Listing(
        [
            Column("Subject", lambda line: line.subject, least=12, once=True),
            Column("Bound", lambda line: line.bound),
            Column("Quota", lambda line: line.value, right=True),
            Column("Used", lambda line: line.used, drop=1, right=True),
        ],
        lines,
        lambda line: line.subject,
    )
    nothing = "Nothing is bounded; set a quota with “gpukernel quota set”."
    present(lines, listing, chosen(form, json), nothing)


@app.command("set")
def set_(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="SUBJECT",
            help="pool, course:NAME, student:COURSE or instructor:COURSE (each of them), person:NAME, person:* (each without a row).",
        ),
    ],
    bounds: Annotated[
        list[str],
        typer.Argument(
            metavar="BOUND=VALUE…",
            help="devices, memory, leases, gpu_hours_per_day, gpu_hours_per_week, gpu_hours_per_term, longest_lease, "
            "largest_slice, idle, waiting, interactive; “none” takes one away.",
        ),
    ],
    held: Annotated[
        bool,
        typer.Option(
            "--held", help="A new idle limit or longest time counts for slices that are held now, too."
        ),
    ] = False,
    pool: Pool = None,
    state: State = None,
) -> None:
    """Change a quota, at once: what is held stays, and nothing above it is granted from now on.

    \b
    Examples:
      gpukernel quota set course:ml101 devices=1.0 leases=60
      gpukernel quota set student:ml101 devices=0.05 idle=20min --held
      gpukernel quota set person:anna gpu_hours_per_week=none
    """
    given = {}
    for text in bounds:
        name, equals, value = text.partition("=")
        if not equals:
            raise Problem(f"“{text[:40]}” is no bound; write NAME=VALUE, such as devices=1.0.", USAGE)
        if name in given:
            raise Problem(f"{name} is given twice.", USAGE)
        given[name] = value
    if held:
        lines, effects = ask_admin(
            pool, state, lambda c: c.quota_effects(subject, given, check=False, held=True)
        )
        lines += [effect.sentence for effect in effects if effect.kind == "held"]
    else:
        lines = ask_admin(pool, state, lambda c: c.set_quota(subject, given))
    _say(lines, "Nothing changed.")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="courses.yaml")],
    check: Annotated[
        bool, typer.Option("--check", help="Say what would change, or what is wrong, and change nothing.")
    ] = False,
    pool: Pool = None,
    state: State = None,
) -> None:
    """Make the pool's courses, members and quotas exactly what a file says.

    \b
    Examples:
      gpukernel quota import courses.yaml --check
      gpukernel quota import courses.yaml
    """
    from gpukernel.common.course_file import read_courses
    from gpukernel.common.errors import Refused

    try:
        text = file.read_text()
        read_courses(text)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise Problem(f"{file} cannot be read: {reason}.", NOT_THERE) from None
    except Refused as refusal:
        lines = "\n".join(f"{file}: {line}" for line in str(refusal).splitlines())
        raise Problem(lines, USAGE) from None
    changes = ask_admin(pool, state, lambda c: c.import_courses(text, check=check))
    _say(changes, "Nothing would change." if check else "Nothing changed.")


@app.command()
def export(pool: Pool = None, state: State = None) -> None:
    """Print the file that says what the pool has now.

    \b
    Example:
      gpukernel quota export > courses.yaml
    """
    write_data(ask_admin(pool, state, lambda c: c.export_courses()))


@app.command()
def schema() -> None:
    """Print the JSON Schema of courses.yaml, with which editors check and complete it.

    \b
    Example:
      gpukernel quota schema > courses.schema.json
      # and as the first line of courses.yaml:
      # yaml-language-server: $schema=courses.schema.json
    """
    import json

    from gpukernel.common.course_entries import courses_schema

    print(json.dumps(courses_schema(), indent=2))


@app.command()
def audit(
    most: Annotated[int, typer.Option("-n", min=1, max=1000, metavar="N", help="How many changes.")] = 50,
    who: Annotated[
        str, typer.Option(metavar="NAME", help="Only changes by people whose name contains this.")
    ] = "",
    about: Annotated[
        str, typer.Option(metavar="WORDS", help="Only changes in which this stands, such as course:ml101.")
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="Only changes since then: monday, today, 2026-09-01 or 7d.")
    ] = "",
    csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values for a spreadsheet.")] = False,
    pool: Pool = None,
    state: State = None,
    form: FormatOption = Format.TABLE,
    json: Json = False,
) -> None:
    """Show who changed what, and when, a sentence a line: what was added, taken away, and set.

    Of what --who, --about and --since leave, the newest are shown; the pool gives out its newest 1000 changes.

    \b
    Examples:
      gpukernel quota audit -n 20
      gpukernel quota audit --who prof --about ml101 --since monday
      gpukernel quota audit -n 1000 --csv > changes.csv
    """
    import math
    import time

    from gpukernel.cli.terminal.times import when
    from gpukernel.client.audit import matching_entries, sentence
    from gpukernel.common.csv_text import csv_text

    how = chosen(form, json)
    if how is Format.NAME or (csv and how is not Format.TABLE):
        raise Problem("Changes have no names; choose one of --csv, -o json and -o yaml.", USAGE)
    begin = when(since, time.time()) if since else -math.inf
    filtered = bool(who or about or since)
    found = ask_admin(pool, state, lambda c: c.audit(1000 if filtered else most))
    entries = matching_entries(found, who=who, about=about, since=begin)[-most:]
    if csv:
        header = ("time", "who", "action", "subject", "change", "before", "after")
        rows = [
            (_moment(e.time), e.who, e.action, e.subject, sentence(e), e.before, e.after) for e in entries
        ]
        write_data(csv_text(header, rows))
    elif how in (Format.JSON, Format.YAML):
        print_data(entries, how)
    else:
        for entry in entries:
            print(one_line(f"{_moment(entry.time)}  {sentence(entry)}"))


def _moment(when: float) -> str:
    return datetime.datetime.fromtimestamp(when).isoformat(" ", "seconds")
