"""The words of commands: sizes and times as people read them, one sentence and one exit status for trouble."""

from __future__ import annotations

import re
import sys
import time

from gpukernel.common.errors import (
    LeaseEnded,
    NoAddress,
    NotAllowed,
    PoolError,
    PoolUnreachable,
    Refused,
    UnknownToken,
)
from gpukernel.common.logs import one_line

__all__ = [
    "FAILED",
    "NOT_ALLOWED",
    "NOT_NOW",
    "NOT_THERE",
    "STATUSES",
    "UNREACHABLE",
    "USAGE",
    "Problem",
    "age",
    "bar",
    "complain",
    "estimate",
    "failure",
    "hours",
    "seconds",
    "size",
    "span",
    "status_of",
]

FAILED, USAGE, UNREACHABLE, NOT_ALLOWED, NOT_THERE, NOT_NOW = range(1, 7)

STATUSES = {
    0: "It was done.",
    FAILED: "It was refused or failed, for a reason that none of the following is; “health”: something is wrong.",
    USAGE: "The command line is not understood, or a value in it is not possible.",
    UNREACHABLE: "No pool answers, or it cannot be trusted.",
    NOT_ALLOWED: "The pool does not allow you that, or does not know your token.",
    NOT_THERE: "There is no such lease, server, course, token, kernel or file, or no longer.",
    NOT_NOW: "Not now: no slice is free within “--wait”, a quota is full, or the pool is asked too often.",
    126: "“run”, “client”: the program cannot be executed.",
    127: "“run”, “client”: the program was not found.",
    130: "It was interrupted by Ctrl-C.",
}
"""The exit statuses of every command; of “run” and “client” until their program runs, whose own is passed on."""

_OF_CODES = {
    "invalid": USAGE,
    "too_large": USAGE,
    "no_such_model": NOT_THERE,
    "no_such_device": NOT_THERE,
    "not_decided": NOT_ALLOWED,
    "ambiguous": USAGE,
    "unavailable": NOT_NOW,
    "in_use": NOT_NOW,
    "no_such_server": NOT_THERE,
    "no_such_course": NOT_THERE,
    "no_such_token": NOT_THERE,
    "full": NOT_NOW,
    "quota": NOT_NOW,
    "busy": NOT_NOW,
    "too_often": NOT_NOW,
}

_OF_KINDS = {
    NoAddress: USAGE,
    PoolUnreachable: UNREACHABLE,
    NotAllowed: NOT_ALLOWED,
    UnknownToken: NOT_ALLOWED,
    LeaseEnded: NOT_THERE,
}


def status_of(error: PoolError) -> int:
    """Return the exit status of a command that ends with this error."""
    if isinstance(error, Refused):
        return _OF_CODES.get(error.code, FAILED)
    return next((status for kind, status in _OF_KINDS.items() if isinstance(error, kind)), FAILED)


class Problem(Exception):
    """An error with which a command ends; the text is the sentence for the person, `status` the exit status."""

    def __init__(self, sentence: str, status: int = 1) -> None:
        super().__init__(sentence)
        self.status = status


def failure(error: PoolError) -> Problem:
    """Return the problem with which a command ends that the pool answered with `error`."""
    return Problem(str(error), status_of(error))


def complain(sentence: str) -> None:
    """Print one sentence on standard error; what is in it of others' names and reasons cannot command the terminal."""
    print("\n".join(map(one_line, f"gpukernel: {sentence}".splitlines())), file=sys.stderr)


def size(count: int) -> str:
    """Return bytes as people read them: ``655 MiB``, ``32.0 GiB``."""
    return f"{count / 2**30:.1f} GiB" if count >= 10 * 2**30 else f"{count / 2**20:.0f} MiB"


def age(since: float) -> str:
    """Return the time since `since`, in seconds since the epoch, as a short `span`."""
    return span(time.time() - since)


def span(length: float) -> str:
    """Return so many seconds, none if they are negative, as people read them: ``4 s``, ``12 min``, ``3.5 h``."""
    length = max(length, 0)
    if length < 100:
        return f"{length:.0f} s"
    return f"{length / 60:.0f} min" if length < 6000 else f"{length / 3600:.1f} h"


def hours(count: float) -> str:
    """Return hours, of which the column's head is the unit, as people read them: ``2.50``, ``0.004`` where that would round to nothing."""
    if count >= 0.1:
        return f"{count:.2f}"
    if count >= 0.0005:
        return f"{count:.3f}"
    return "< 0.001" if count > 0 else "0"


def estimate(seconds: float) -> str:
    """Return the pool's promise to somebody who waits, as the end of a sentence; nothing where it can promise nothing."""
    if seconds < 0:
        return ""
    return (
        f" It starts within {seconds:.0f} s."
        if seconds < 100
        else f" It starts within {seconds / 60:.0f} min."
    )


_TIME = re.compile(r"(-1|\d+(?:\.\d+)?) ?(s|m|min|h|d)?")
_SECONDS = {None: 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    """Return a time on the command line in seconds: ``90``, ``90s``, ``10m``, ``2h``, ``1d``; ``-1`` stays what it is.

    Raises
    ------
    Problem
        When it is none.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise Problem(f"“{text[:40]}” is no time; write seconds, or 90s, 10m, 2h.", 2)
    return float(match[1]) * _SECONDS[match[2]]


def bar(part: int, whole: int, width: int = 10) -> str:
    """Return a bar of `width` characters, `part` of `whole` filled."""
    filled = round(width * part / whole) if whole else 0
    if part and not filled:
        filled = 1
    return "█" * filled + "░" * (width - filled)
