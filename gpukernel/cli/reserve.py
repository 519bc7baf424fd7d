"""``gpukernel reserve``: capacity that a course owns at certain hours."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from gpukernel.cli.quota import Json, Pool, State, ask_admin
from gpukernel.cli.terminal.formats import Format, FormatOption, chosen, present, print_data
from gpukernel.cli.terminal.listing import Column, Listing
from gpukernel.cli.terminal.output import USAGE, Problem
from gpukernel.cli.terminal.usage import Group
from gpukernel.common.bounds import plain_number

if TYPE_CHECKING:
    from gpukernel.client.reservations import KnownReservation

__all__ = ["app"]

app = typer.Typer(
    help="Keep capacity for a course at certain hours; list it, and give it back.",
    no_args_is_help=True,
    cls=Group,
)


@app.command()
def add(
    course: Annotated[str, typer.Argument(metavar="COURSE", help="For whom.")],
    devices: Annotated[
        float, typer.Option("-d", "--devices", metavar="N", help="Devices' worth, such as 1.5.")
    ],
    begin: Annotated[str, typer.Option("--from", metavar="TIME", help="When it begins, such as 10:00.")],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="When it ends, up to 24:00.")],
    days: Annotated[
        str, typer.Option("--days", metavar="DAYS", help="Every week on these days, such as tue,thu.")
    ] = "",
    date: Annotated[str, typer.Option("--date", metavar="DAY", help="Or once, such as 2026-12-01.")] = "",
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="Part of the devices' name, such as V100; else any.")
    ] = "",
    preempt: Annotated[
        bool,
        typer.Option(
            "--preempt", help="Lend it to everybody until then; who is in the way is told, and has to leave."
        ),
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Only say whether that could be.")] = False,
    pool: Pool = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Keep capacity for a course: in these hours nobody else gets it, and before only who ends in time.

    Administrators may do that for any course; instructors for theirs, within its quota and what others have left.

    \b
    Examples:
      gpukernel reserve add ml101 --days tue,thu --from 10:00 --to 12:00 -d 1.5 --model V100
      gpukernel reserve add ml101 --date 2026-12-01 --from 08:00 --to 18:00 -d 2 --preempt
    """
    from gpukernel.common.errors import Refused
    from gpukernel.common.reservation_entry import parse_days, parse_time
    from gpukernel.common.reservations import Reservation, check_reservation

    try:
        new = Reservation(
            course,
            parse_days(days) if days else (),
            date,
            parse_time(begin),
            parse_time(end),
            devices,
            model,
            preempt,
        )
        check_reservation(new)
    except ValueError as error:
        raise Problem(f"{str(error)[:1].upper()}{str(error)[1:]}.", USAGE) from None
    except Refused as error:
        raise Problem(str(error), USAGE) from None
    made = ask_admin(pool, state, lambda c: c.reserve(new, check=check))
    if json:
        print_data([_plain(made)])
    elif check:
        print(
            f"Course {course} could reserve {made.reservation}. "
            f"Of that {made.ready:.3g} would be certain now; others hold the rest without an end."
            if made.ready < devices - 1e-3
            else f"Course {course} could reserve {made.reservation}."
        )
    else:
        print(
            f"Reservation {made.reservation.id} of course {course}: {made.reservation}. Next: {_next(made)}."
        )


@app.command("list")
def list_(
    course: Annotated[str, typer.Argument(metavar="COURSE", help="Only this one's.")] = "",
    pool: Pool = None,
    state: State = None,
    form: FormatOption = Format.TABLE,
    json: Json = False,
) -> None:
    """Show what is reserved for whom, and how much of the next window's room is kept already.

    \b
    Examples:
      gpukernel reserve list
      gpukernel reserve list ml101 --json
    """
    found, zone = ask_admin(pool, state, lambda c: c.reservations(course))
    listing = Listing(
        [
            Column("Reservation", lambda one: one.reservation.id),
            Column("Course", lambda one: one.reservation.course, least=8),
            Column("When", lambda one: one.reservation.when(), least=16),
            Column("Devices", lambda one: plain_number(one.reservation.devices), right=True),
            Column("Model", lambda one: one.reservation.model or "any", drop=3),
            Column("Next window", _next, drop=2),
            Column("Room", lambda one: f"{one.ready:.2g}" if one.next_begins else "", drop=4, right=True),
            Column("Preempts", lambda one: "yes" if one.reservation.preempt else "", drop=5),
        ],
        found,
        lambda one: one.reservation.id,
    )
    how = chosen(form, json)
    present([_plain(one) for one in found], listing, how, "Nothing is reserved.")
    if found and zone and how in (Format.TABLE, Format.WIDE):
        print(f"Hours are those of {zone}; the next window is in this machine's time.")


@app.command()
def remove(
    reservation: Annotated[
        str, typer.Argument(metavar="RESERVATION", help="Its id, as “gpukernel reserve list” shows it.")
    ],
    pool: Pool = None,
    state: State = None,
) -> None:
    """Give reserved capacity back to everybody; leases stay as they are.

    \b
    Example:
      gpukernel reserve remove r3f2a1b
    """
    gone = ask_admin(pool, state, lambda c: c.unreserve(reservation))
    print(f"Reservation {reservation} of course {gone.reservation.course} ({gone.reservation}) is gone.")


def _next(one: KnownReservation) -> str:
    if not one.next_begins:
        return "over"
    begin, end = (datetime.datetime.fromtimestamp(when) for when in (one.next_begins, one.next_ends))
    return f"{begin:%a %d %b %H:%M}–{end:%H:%M}"


def _plain(one: KnownReservation) -> dict[str, object]:
    from gpukernel.common.reservations import DAYS, clock

    r = one.reservation
    return {
        "id": r.id,
        "course": r.course,
        "days": [DAYS[day] for day in r.days],
        "date": r.on,
        "from": clock(r.begins),
        "to": clock(r.ends),
        "devices": r.devices,
        "model": r.model,
        "preempt": r.preempt,
        "next_begins": one.next_begins,
        "next_ends": one.next_ends,
        "ready": one.ready,
    }
