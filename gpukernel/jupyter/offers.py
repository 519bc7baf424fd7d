"""The offers of a pool to a person: sizes, how many of each are free now, and words for it.

Guarantees of `OfferBook`
-------------------------
* `OfferBook.read` answers within its patience (30 ms), whatever the pool does; the pool is asked in a thread of its own.
* What it says is at most `STALE_SECONDS` old, or carries a note that says that it is not from the pool.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpukernel.jupyter.kernelspecs import STANDARD, figure

if TYPE_CHECKING:
    from gpukernel.common.course import Offered
    from gpukernel.common.model import Chance

__all__ = ["Offer", "OfferBook", "Offers", "memory_words", "name_of", "offers_of", "short_model", "sizes_of"]

MIB = 2**20
STANDARD_SHARES = tuple(spec.share for spec in STANDARD)
FRESH_SECONDS = 2.0
STALE_SECONDS = 15.0
PATIENCE_SECONDS = 0.03

_NO_MODEL = re.compile(
    r"^(NVIDIA|Tesla|GeForce|Quadro|GRID|Graphics Device|[0-9]+ ?GB|HBM\w*|PCIe?|SXM\w*)$", re.I
)


def short_model(name: str) -> str:
    """Return a device's usual name: ``Tesla V100-SXM2-32GB (simulated)`` is a V100, ``NVIDIA GeForce RTX 3090`` an RTX 3090."""
    words = [word.split("-")[0] for word in name.replace("(simulated)", "").split()]
    return " ".join(word for word in words if not _NO_MODEL.match(word)) or name


def memory_words(size: int) -> str:
    """Return a number of bytes for people: 655 MiB, 3.2 GiB, 32 GiB."""
    if size < 1024 * MIB:
        return f"{size // MIB} MiB"
    return f"{size / 2**30:.1f}".removesuffix(".0") + " GiB"


@dataclass(frozen=True)
class Offer:
    """A size that may be asked for.

    Attributes
    ----------
    share, model
        As in a slice request; `model` is the short one.
    memory_bytes
        What a slice of it has, on the smallest such device.
    free
        How many such slices the pool could give now; None where that is not known.
    waiting
        How many wait already for a device of this model.
    start
        The course's start policy; empty where it has none.
    priority
        Its class; empty: interactive.
    """

    share: float
    model: str
    memory_bytes: int = 0
    free: int | None = None
    waiting: int = 0
    start: str = ""
    priority: str = ""

    def words(self) -> str:
        """Return the words that stand behind the name in a launcher."""
        if self.free is None:
            return ""
        size = memory_words(self.memory_bytes)
        if self.free:
            return f"{size}, {self.free} free"
        return f"{size}, would wait behind {self.waiting}" if self.waiting else f"{size}, would wait"


@dataclass(frozen=True)
class Offers:
    """All offers, and a note where they are not what the pool said just now."""

    offers: tuple[Offer, ...]
    note: str = ""


def sizes_of(models: Iterable[str], offered: Sequence[Offered], shares: Iterable[float]) -> list[Offered]:
    """Return the sizes to ask the pool about: a course's offers, else each share of each model that is there."""
    from gpukernel.common.course import Offered

    if offered:
        return list(offered)
    found = sorted({short_model(name) for name in models})
    return [Offered(share, model) for model in found for share in shares]


def offers_of(
    sizes: Iterable[Offered], chances: Iterable[Chance], start: str = "", priority: str = ""
) -> tuple[Offer, ...]:
    """Return the sizes that the person may have, now or later, without those that quotas or devices rule out.

    `start`, and `priority` where a size names no class, are those of the course.
    """
    return tuple(
        Offer(
            size.share,
            size.model,
            chance.memory_bytes,
            chance.free if chance.state == "free" else 0,
            chance.waiting,
            start,
            size.priority or priority,
        )
        for size, chance in zip(sizes, chances, strict=True)
        if chance.state != "refused"
    )


class OfferBook:
    """The offers as the pool told them last.

    Parameters
    ----------
    ask
        Gives the offers, or raises; called in a thread of its own, one at a time.
    """

    def __init__(
        self,
        ask: Callable[[], tuple[Offer, ...]],
        shares: Iterable[float] = STANDARD_SHARES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._changed = threading.Condition()
        self._asking = False
        self._answered = 0  # how many answers have come
        self._told: tuple[Offer, ...] = tuple(
            Offer(share, spec.model) for spec in STANDARD[:1] for share in shares
        )
        self._told_at = -float("inf")
        self._failure = ""

    def refresh(self) -> None:
        """Ask the pool, unless it is being asked."""
        with self._changed:
            if self._asking:
                return
            self._asking = True
        threading.Thread(target=self._refresh, name="gpukernel offers", daemon=True).start()

    def _refresh(self) -> None:
        told, failure = None, ""
        try:
            told = self._ask()
        except Exception as error:  # whatever it was, the launcher says it in its note
            failure = str(error) or type(error).__name__
        with self._changed:
            if told is not None:
                self._told, self._told_at = told, self._clock()
            self._failure = failure
            self._asking = False
            self._answered += 1
            self._changed.notify_all()

    def read(self, patience: float = PATIENCE_SECONDS) -> Offers:
        """Return the offers now, after at most `patience` seconds."""
        if self._clock() - self._told_at > FRESH_SECONDS:
            with self._changed:
                seen = self._answered
            self.refresh()
            with self._changed:
                self._changed.wait_for(lambda: self._answered != seen, patience)
        with self._changed:
            age = self._clock() - self._told_at
            if age <= STALE_SECONDS and not (self._failure and age > FRESH_SECONDS):
                return Offers(self._told)
            note = "the pool is away" if self._failure else "the pool is slow to answer"
            told = (Offer(one.share, one.model, priority=one.priority) for one in self._told)
            return Offers(tuple(told), note)

    @property
    def failure(self) -> str:
        """The sentence of the last query that failed; empty where it did not."""
        return self._failure


def name_of(share: float, model: str, priority: str = "") -> str:
    """Return the name that `gpukernel.jupyter.kernelspecs.SliceSpec` gives its directory."""
    later = f"-{priority}" if priority not in ("", "interactive") else ""
    return f"gpu-{re.sub(r'[^a-z0-9._-]+', '-', model.lower()) or 'any'}-{figure(share)}{later}"
