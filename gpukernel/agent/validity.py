"""The time for which workers may live without the pool, by this machine's own clock, and the epoch of the orders that are obeyed.

Both are pure: the clock is passed in, and `gpukernel.agent.own_identity` writes them down.  The pool's side of the bound is in
`gpukernel.pool.domain.fencing`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Epochs", "Validity", "Wakefulness", "boot_seconds"]

MOST_UNANSWERED = 10_000

SLEEP_SECONDS = 0.2
"""The shortest sleep of a machine that counts: its clocks differ by less between two looks."""

SETTLE_SECONDS = 10.0
"""The time that workers need to end after their machine slept: the stop time of `gpukernel.pool.domain.fencing`."""


def boot_seconds() -> float:
    """Return the seconds since this machine started, with those that it slept: no step of its clock moves them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Validity:
    """The end of the time for which workers may live, counted from when the last heartbeat that the pool answered was *sent*.

    Attributes
    ----------
    until
        The time by `clock` at which every worker is over; None as long as no pool has said anything about it.
    """

    def __init__(self, clock: Callable[[], float] = boot_seconds, until: float | None = None) -> None:
        self.until = until
        self._clock = clock
        self._sent: dict[int, float] = {}

    def connected(self) -> None:
        """Forget what was sent over an earlier stream: its numbers begin anew."""
        self._sent.clear()

    def sent(self, number: int) -> None:
        """Note that heartbeat `number` is being sent; call it before."""
        self._sent[number] = self._clock()
        while len(self._sent) > MOST_UNANSWERED:
            del self._sent[next(iter(self._sent))]

    def answered(self, number: int, seconds: float) -> None:
        """Take the pool's answer to heartbeat `number`: workers may live for `seconds` after it was sent."""
        at = self._sent.pop(number, None)
        if at is None:
            return  # never asked, or answered already
        for earlier in [other for other in self._sent if other < number]:
            del self._sent[earlier]
        if self.until is None or at + seconds > self.until:
            self.until = at + seconds

    def left(self) -> float | None:
        """Return the seconds that are left, negative after the end; None where there is no end."""
        return None if self.until is None else self.until - self._clock()

    def over(self) -> bool:
        """Return whether no worker may live any more."""
        return self.until is not None and self._clock() >= self.until


class Wakefulness:
    """The time since this machine slept: workers that were over meanwhile need a moment to end, and no other one starts before that.

    Parameters
    ----------
    clock, awake
        Clocks that count the machine's sleep, and that do not.
    others
        Workers of earlier agents may live on this machine, so a sleep before this process counts as one that has just ended.
    """

    def __init__(
        self,
        clock: Callable[[], float] = boot_seconds,
        awake: Callable[[], float] = time.monotonic,
        others: bool = True,
    ) -> None:
        self._clock, self._awake = clock, awake
        self._asleep = clock() - awake()
        self._woke = clock() if others and self._asleep > SLEEP_SECONDS else float("-inf")

    def wait(self) -> float:
        """Return the seconds to wait before a worker may start; look at least as often as workers do."""
        asleep = self._clock() - self._awake()
        if asleep > self._asleep + SLEEP_SECONDS:
            self._woke = self._clock()
        self._asleep = asleep
        return max(self._woke + SETTLE_SECONDS - self._clock(), 0.0)


class Epochs:
    """The highest epoch that this server's agents have seen; orders of a lower one come from a pool that has been overtaken."""

    def __init__(self, highest: int = 0) -> None:
        self.highest = highest
        self.spoken = False  # this stream's pool says epochs

    def connected(self) -> None:
        """Expect nothing of a new stream's pool yet: one of version 0.2 says no epochs."""
        self.spoken = False

    def admit(self, epoch: int) -> bool:
        """Return whether an order with this epoch is obeyed; remember a higher one."""
        if epoch == 0:
            return not self.spoken
        if epoch < self.highest:
            return False
        self.spoken = True
        self.highest = epoch
        return True
