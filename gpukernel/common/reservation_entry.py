"""A reservation as ``courses.yaml`` and the command line write it; `gpukernel.common.course_file` reads the file."""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Any

import pydantic

from gpukernel.common.i18n import say
from gpukernel.common.reservations import DAY_MINUTES, DAYS, MOST_DEVICES, Reservation, clock

__all__ = ["ReservationEntry", "parse_days", "parse_time", "plain"]

_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)|24:00")


def parse_time(value: Any) -> int:
    """Return the minutes after midnight of ``10:00``, up to ``24:00``; a number is that already, as YAML reads ``10:00``
    without quotes.

    Raises
    ------
    ValueError
        With what would be right.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= DAY_MINUTES:
        return value
    match = _CLOCK.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(say('write a time of the day as "10:00", up to "24:00"'))
    return int(match[1]) * 60 + int(match[2]) if match[1] else DAY_MINUTES


def parse_days(value: Any) -> tuple[int, ...]:
    """Return the numbers of weekdays of ``[tue, thu]``, ``tue`` or ``tue, thu``; Monday is 0.

    Raises
    ------
    ValueError
        With what would be right.
    """
    names = re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names:
        raise ValueError(say("write days as [tue, thu]; they are %(days)s", days=", ".join(DAYS)))
    days = [str(name).lower() for name in names]
    for day in days:
        if day not in DAYS:
            wrong = say(
                "there is no day %(day)s; they are %(days)s", day=repr(day[:20]), days=", ".join(DAYS)
            )
            raise ValueError(wrong)
    if len(set(days)) != len(days):
        raise ValueError(say("a day stands here twice"))
    return tuple(sorted(DAYS.index(day) for day in days))


class ReservationEntry(pydantic.BaseModel):
    """One entry of a course's ``reservations``."""

    model_config = pydantic.ConfigDict(extra="forbid", use_attribute_docstrings=True)

    days: Annotated[
        tuple[int, ...], pydantic.PlainValidator(parse_days, json_schema_input_type=list[str] | str)
    ] = ()
    """Every week on these: [tue, thu]; or `date`."""
    # Not “on”, which YAML takes for “yes”.
    on: Annotated[datetime.date | None, pydantic.Field(alias="date")] = None
    """Once, on this day: 2026-12-01."""
    begins: Annotated[
        int, pydantic.PlainValidator(parse_time, json_schema_input_type=str), pydantic.Field(alias="from")
    ]
    """"10:00"."""
    ends: Annotated[
        int, pydantic.PlainValidator(parse_time, json_schema_input_type=str), pydantic.Field(alias="to")
    ]
    """"12:00", up to "24:00"."""
    devices: float = pydantic.Field(gt=0, le=MOST_DEVICES, allow_inf_nan=False)
    """The room, in devices' worth."""
    model: str = pydantic.Field("", max_length=256)
    """Part of the devices' name; empty: any."""
    preempt: bool = False
    """Others may be there until the window opens, and have to leave then."""

    @pydantic.model_validator(mode="after")
    def _window(self) -> ReservationEntry:
        if bool(self.days) == (self.on is not None):
            raise ValueError(say("say on which days (days: [tue, thu]), or on which one (date: 2026-12-01)"))
        if self.begins >= self.ends:
            raise ValueError(
                say(
                    "it ends at %(ends)s, before it begins at %(begins)s; "
                    'one that goes over midnight is two, the first to "24:00"',
                    ends=clock(self.ends),
                    begins=clock(self.begins),
                )
            )
        if not self.model.isprintable():
            raise ValueError(say("a model's name has printable characters only"))
        return self

    def reservation(self, course: str) -> Reservation:
        """Return the entry as a reservation of `course`."""
        on = self.on.isoformat() if self.on else ""
        return Reservation(
            course, self.days, on, self.begins, self.ends, self.devices, self.model, self.preempt
        )


def plain(reservation: Reservation) -> dict[str, Any]:
    """Return the entry that states a reservation."""
    when: dict[str, Any] = (
        {"date": datetime.date.fromisoformat(reservation.on)}
        if reservation.on
        else {"days": [DAYS[day] for day in reservation.days]}
    )
    devices = reservation.devices
    entry = when | {
        "from": clock(reservation.begins),
        "to": clock(reservation.ends),
        "devices": int(devices) if devices == int(devices) else devices,
    }
    if reservation.model:
        entry["model"] = reservation.model
    return entry | ({"preempt": True} if reservation.preempt else {})
