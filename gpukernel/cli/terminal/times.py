"""Moments on the command line: ``monday``, ``2026-09-01``, ``7d`` ago."""

from __future__ import annotations

import datetime
import re

from gpukernel.cli.terminal.output import USAGE, Problem, seconds

__all__ = ["when"]

_AGO = re.compile(r"\d+(?:\.\d+)? ?(?:s|m|min|h|d)")
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def when(text: str, now: float) -> float:
    """Return the time that `text` names, in seconds since the epoch.

    It may be ``today``, ``monday`` (the last one), ``2026-09-01``, ``2026-09-01T10:00`` or ``7d`` (ago); `now` is the present.

    Raises
    ------
    Problem
        When it is none of these.
    """
    words = text.strip().lower()
    midnight = datetime.datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
    if words == "today":
        return midnight.timestamp()
    if words in _DAYS:
        back = (midnight.weekday() - _DAYS.index(words)) % 7
        return (midnight - datetime.timedelta(days=back)).timestamp()
    if _AGO.fullmatch(words):
        return now - seconds(words)
    try:
        return datetime.datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        raise Problem(
            f"“{text[:40]}” is no time; write today, monday, 2026-09-01, 2026-09-01T10:00 or 7d.", USAGE
        ) from None
