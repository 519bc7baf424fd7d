"""``gpukernel quota``: courses and quotas, shown and changed."""

from __future__ import annotations

import asyncio
import datetime
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gpukernel.cli.output import Problem, print_json
from gpukernel.common.logs import one_line

if TYPE_CHECKING:
    from gpukernel.client.admin import AdminClient

__all__ = ["app", "ask_admin"]

T = TypeVar("T")

app = typer.Typer(
    help="Show and change courses and quotas: who may hold how much of the pool.", no_args_is_help=True
)

Pool = Annotated[str | None, typer.Option("--pool", metavar="ADDRESS", help="The pool. Else GPUKERNEL_POOL.")]
State = Annotated[
    Path | None, typer.Option("--state", metavar="DIR", help="State directory. Else GPUKERNEL_STATE.")
]
Json = Annotated[bool, typer.Option("--json", help="Print a list of objects for programs.")]


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
        raise Problem(str(error)) from None


def _say(changes: list[str], nothing: str) -> None:
    print("\n".join(changes) if changes else nothing)


@app.command()
def show(
    subject: Annotated[
        str, typer.Argument(metavar="[SUBJECT]", help="Only what begins with this, such as course:ml101.")
    ] = "",
    pool: Pool = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Show every quota that concerns you, and what is used of it.

    \b
    Examples:
      gpukernel quota show
      gpukernel quota show course:ml101 --json
    """
    from rich.console import Console

    from gpukernel.cli.tables import make_table

    lines = [
        line for line in ask_admin(pool, state, lambda c: c.quotas()) if line.subject.startswith(subject)
    ]
    if json:
        print_json(lines)
        return
    table = make_table("Subject", "Bound", "Quota", "Used", right=("Quota", "Used"))
    last = ""
    for line in lines:
        table.add_row(line.subject if line.subject != last else "", line.bound, line.value, line.used)
        last = line.subject
    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print(table if lines else "Nothing is bounded; set a quota with “gpukernel quota set”.")


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
            "largest_slice, idle, waiting; “none” takes one away.",
        ),
    ],
    pool: Pool = None,
    state: State = None,
) -> None:
    """Change a quota, at once: what is held stays, and nothing above it is granted from now on.

    \b
    Examples:
      gpukernel quota set course:ml101 devices=1.0 leases=60
      gpukernel quota set student:ml101 devices=0.05 idle=20min
      gpukernel quota set person:anna gpu_hours_per_week=none
    """
    given = {}
    for text in bounds:
        name, equals, value = text.partition("=")
        if not equals:
            raise Problem(f"“{text[:40]}” is no bound; write NAME=VALUE, such as devices=1.0.", 2)
        if name in given:
            raise Problem(f"{name} is given twice.", 2)
        given[name] = value
    _say(ask_admin(pool, state, lambda c: c.set_quota(subject, given)), "Nothing changed.")


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
        raise Problem(f"{file} cannot be read: {reason}.") from None
    except Refused as refusal:
        raise Problem("\n".join(f"{file}: {line}" for line in str(refusal).splitlines())) from None
    changes = ask_admin(pool, state, lambda c: c.import_courses(text, check=check))
    _say(changes, "Nothing would change." if check else "Nothing changed.")


@app.command()
def export(pool: Pool = None, state: State = None) -> None:
    """Print the file that says what the pool has now.

    \b
    Example:
      gpukernel quota export > courses.yaml
    """
    sys.stdout.write(ask_admin(pool, state, lambda c: c.export_courses()))


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
    pool: Pool = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Show who changed what, when, from what to what.

    \b
    Example:
      gpukernel quota audit -n 20
    """
    entries = ask_admin(pool, state, lambda c: c.audit(most))
    if json:
        print_json(entries)
        return
    for entry in entries:
        when = datetime.datetime.fromtimestamp(entry.time).isoformat(" ", "seconds")
        changed = f"{entry.before or 'nothing'} → {entry.after or 'nothing'}"
        print(one_line(f"{when}  {entry.who}  {entry.subject}: {changed}"))
