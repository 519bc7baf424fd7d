"""The errors between a holder and the pool, each with a sentence for people."""

from __future__ import annotations

from urllib.parse import quote

__all__ = [
    "DatabaseLost",
    "LeaseEnded",
    "NoAddress",
    "NoPoolAnswers",
    "NotAllowed",
    "PoolError",
    "PoolUnreachable",
    "Refused",
    "UnknownToken",
    "in_details",
]


class PoolError(Exception):
    """An error: the pool could not do what was asked; the text is one sentence that says what and why."""


class PoolUnreachable(PoolError):
    """An error: nobody answers at the pool's address, or the connection broke."""


class NoPoolAnswers(PoolUnreachable):
    """An error: at none of the pool's addresses does anybody answer; the text says how to start a pool."""


class DatabaseLost(PoolError):
    """An error: the pool's database went away before what was decided had reached its disk."""


class NoAddress(PoolError):
    """A text that is no pool's address; nothing was asked."""


class Refused(PoolError):
    """A refusal by the pool.

    Attributes
    ----------
    code
        Stable: ``invalid``, ``no_such_model``, ``too_large``, ``full``, ``failed``.
    """

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class LeaseEnded(PoolError):
    """An error: the lease is over; the text says why."""


class UnknownToken(PoolError):
    """An error: the pool does not know the caller's token."""


class NotAllowed(PoolError):
    """A refusal: the caller may not do that."""


_LONGEST_DETAILS = 5000
"""gRPC gives a call's status 8192 bytes of headers, in which everything but ASCII is written as percent and digits."""


def in_details(sentences: str) -> str:
    """Return as many lines as the status of a call can carry, and how many more there were."""
    lines = sentences.splitlines()
    kept: list[str] = []
    room = _LONGEST_DETAILS
    for line in lines:
        room -= len(quote(line)) + 3
        if room < 0:
            break
        kept.append(line)
    if not kept:  # one line that is too long
        return lines[0][: _LONGEST_DETAILS // 12] + " …" if lines else ""
    return "\n".join([*kept, *([f"… and {len(lines) - len(kept)} more"] if len(kept) < len(lines) else [])])
