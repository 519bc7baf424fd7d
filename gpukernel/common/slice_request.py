"""The properties of a slice request without a pool: whether any could fulfil it, and the rank of its class."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gpukernel.common.errors import Refused
from gpukernel.common.model import PRIORITIES, SliceRequest

__all__ = ["MIB", "PROMOTED_AFTER", "check_request", "class_rank"]

MIB = 2**20
MOST_DEVICES = 64
LONGEST_TEXT = 256

PROMOTED_AFTER = {"interactive": 0.0, "batch": 4 * 3600.0, "scavenger": 24 * 3600.0}
"""Seconds of waiting after which a request of a class counts as interactive in the order."""


def class_rank(priority: str, waited: float) -> int:
    """Return the rank of a request of a class that has waited so many seconds; the lowest is served first."""
    return 0 if waited >= PROMOTED_AFTER[priority] else PRIORITIES.index(priority)


def check_request(request: SliceRequest, texts: Iterable[str] = ()) -> None:
    """Check that some pool could fulfil `request`, and that its texts and `texts` are not too long.

    Raises
    ------
    Refused
        With code ``invalid``; the sentence names what is wrong.
    """

    def refuse(sentence: str) -> None:
        raise Refused("invalid", sentence)

    share, memory = request.share, request.memory_bytes
    if (share is None) == (memory is None):
        refuse("Ask for a share of a device or for memory: exactly one of the two.")
    if share is not None and not (math.isfinite(share) and 0 < share <= 1):
        refuse(f"A share of {share!r} is not possible; it lies above 0 and up to 1.")
    if memory is not None and memory < MIB:
        refuse(f"{memory} bytes are too little; a slice has at least 1 MiB.")
    if not 1 <= request.devices <= MOST_DEVICES:
        refuse(f"{request.devices} devices are not possible; ask for 1 to {MOST_DEVICES}.")
    if request.priority not in PRIORITIES:
        known = ", ".join(PRIORITIES)
        refuse(f"“{request.priority[:20]}” is no priority class; it is one of {known}.")
    for text in (request.model, *texts):
        if len(text) > LONGEST_TEXT:
            refuse(f"“{text[:20]}…” has {len(text)} characters; names have at most {LONGEST_TEXT}.")
        if any(c < " " or "\x7f" <= c < "\xa0" for c in text):
            refuse("A name must not contain control characters.")
