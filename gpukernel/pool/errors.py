"""What can go wrong between a holder and the pool, each as a sentence for people."""

from __future__ import annotations

__all__ = ["LeaseEnded", "NotAllowed", "PoolError", "PoolUnreachable", "Refused"]


class PoolError(Exception):
    """The pool could not do what was asked; the text is one sentence that says what and why."""


class PoolUnreachable(PoolError):
    """Nobody answers at the pool's address, or the connection broke."""


class Refused(PoolError):
    """The pool said no.

    Attributes
    ----------
    code
        Stable: ``invalid``, ``no_such_model``, ``too_large``, ``full``, ``failed``.
    """

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class LeaseEnded(PoolError):
    """The lease is over; the text says why."""


class NotAllowed(PoolError):
    """The pool does not allow the caller that."""
