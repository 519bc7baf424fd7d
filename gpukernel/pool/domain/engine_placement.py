"""Placements by engines: what Kubernetes or Slurm has chosen is checked, and nothing is chosen, as pure functions of the devices.

A device has exactly one decider, the pool or an engine.  An engine places on its own devices only, under keys of its own: the uid of a
claim, the number of a job.  Who may have how much there was the engine's to say, so quotas refuse nothing; room does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpukernel.common.errors import Refused
from gpukernel.common.model import DECIDERS, ENGINES, Device, Holder, Lease, PlacedOn
from gpukernel.pool.domain.placement import MIB, Placement

__all__ = [
    "BEFORE_SECONDS",
    "KEY_CHARACTERS",
    "MOST_PLACEMENTS",
    "EngineDevice",
    "check_decider",
    "check_key",
    "check_placed",
    "counts_from",
    "differences",
    "place",
]

MOST_PLACEMENTS = 64
"""Devices of one placed lease."""

KEY_CHARACTERS = 128
"""Characters of an engine's key."""

BEFORE_SECONDS = 120.0
"""The most, in seconds, by which the hours of a lease may begin before the pool was asked for it."""

LONGEST_TEXT = 256
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@=+-]*")
_LARGEST = 2**50  # bytes of one device; none is nearly as large
_LATEST = 1e11  # seconds since the epoch


@dataclass(frozen=True)
class EngineDevice:
    """A device as a placement sees it: `trouble` is why it has no new leases, `ending` the bytes of leases there whose workers stop."""

    device: Device
    trouble: str = ""
    ending: int = 0


def check_decider(name: str, known: Sequence[str] = DECIDERS) -> None:
    """Raise `Refused` with code ``invalid`` where `name` is none of these deciders."""
    if name not in known:
        raise Refused("invalid", f"“{name[:20]}” is not one of {', '.join(known)}.")


def check_key(key: str) -> None:
    """Raise `Refused` with code ``invalid`` where `key` is none that an engine may use."""
    if not (len(key) <= KEY_CHARACTERS and _KEY.fullmatch(key)):
        raise Refused(
            "invalid",
            f"“{key[:40]}” is no key: it has 1 to {KEY_CHARACTERS} letters, digits and . _ : / @ = + -, and begins with a letter or digit.",
        )


def check_placed(
    engine: str,
    key: str,
    placed_on: Sequence[PlacedOn],
    holder: Holder,
    longest: float,
    *,
    ceiling: bool = False,
    began: float = 0.0,
) -> None:
    """Check what no pool could grant, whatever devices it has.

    Raises
    ------
    Refused
        ``invalid``; the sentence names what is wrong.
    """
    check_decider(engine, ENGINES)
    check_key(key)
    texts = (holder.person, holder.server, holder.course, holder.description)
    if not holder.person:
        raise Refused("invalid", "A placed lease needs the person for whom it is.")
    for text in texts:
        if len(text) > LONGEST_TEXT or not text.isprintable():
            raise Refused(
                "invalid", f"“{text[:20]}…” is no name: it has at most {LONGEST_TEXT} printable characters."
            )
    if not (longest == 0 or 1 <= longest < 1e9):
        raise Refused("invalid", f"A longest time of {longest!r} s is not possible; it is at least 1 s.")
    if not 0 <= began < _LATEST:
        raise Refused(
            "invalid",
            f"{began!r} is no time at which something began; it is in seconds since the epoch, or 0.",
        )
    if not 1 <= len(placed_on) <= MOST_PLACEMENTS:
        raise Refused("invalid", f"A placed lease has 1 to {MOST_PLACEMENTS} devices, not {len(placed_on)}.")
    for one in placed_on:
        if not (one.uuid and len(one.uuid) <= 64 and one.uuid.isprintable()):
            raise Refused("invalid", f"“{one.uuid[:64]}” is no UUID of a device.")
        if not MIB <= one.memory_bytes <= _LARGEST:
            raise Refused(
                "invalid",
                f"{one.memory_bytes} bytes of {one.uuid} are not possible; a slice has at least 1 MiB.",
            )
        if ceiling and one.memory_bytes < 2 * MIB:
            raise Refused(
                "invalid", f"A ceiling has at least 2 MiB of each device, not {_mib(one.memory_bytes)}."
            )
    if len({one.uuid for one in placed_on}) < len(placed_on):
        raise Refused("invalid", "A placed lease names each device once, with all that it has of it.")


def place(engine: str, placed_on: Iterable[PlacedOn], known: Iterable[EngineDevice]) -> list[Placement]:
    """Return the placements that an engine asks for, in its order, where each is possible; nothing is chosen.

    Raises
    ------
    Refused
        ``no_such_device``, ``not_decided`` (another decides over it), ``ambiguous``, ``unavailable``, ``too_large`` or ``full``.
    """
    known = list(known)
    return [Placement(_checked(one, _its(engine, one.uuid, known)), one.memory_bytes) for one in placed_on]


def _its(engine: str, uuid: str, known: Iterable[EngineDevice]) -> EngineDevice:
    """Return the engine's device of a UUID."""
    named = [one for one in known if one.device.uuid == uuid]
    if not named:
        raise Refused(
            "no_such_device", f"The pool has no device {uuid}; “gpukernel list-gpus” shows those that it has."
        )
    own = [one for one in named if one.device.decided_by == engine]
    if not own:
        other = named[0].device
        raise Refused(
            "not_decided",
            f"{other.label} ({uuid}) is decided by {_by(other.decided_by)}, not by {engine}; "
            f"an administrator gives it to {engine} with “gpukernel server delegate {other.label} --to {engine}”.",
        )
    works = [one for one in own if not one.trouble]
    if len(works) > 1:
        places = " and ".join(sorted(one.device.server for one in works))
        raise Refused("ambiguous", f"GPU servers {places} both offer {uuid}; only one of them can have it.")
    return (works or own)[0]


def _by(decider: str) -> str:
    return "the pool" if decider == "pool" else decider


def _checked(asked: PlacedOn, one: EngineDevice) -> Device:
    """Return a device that has room for what is asked of it."""
    device, named = one.device, f"{one.device.label} ({one.device.uuid})"
    if trouble := one.trouble or (
        device.next_decider and f"{_by(device.next_decider)} decides over it once it is free"
    ):
        raise Refused("unavailable", f"{named} gets no new leases: {trouble}.")
    if asked.memory_bytes > device.memory_bytes:
        raise Refused(
            "too_large",
            f"{_mib(asked.memory_bytes)} do not fit on {named}, which has {_mib(device.memory_bytes)}.",
        )
    free = device.memory_bytes - device.promised_bytes
    if asked.memory_bytes > free:
        soon = f"; {_mib(one.ending)} more are free once workers that end have stopped" if one.ending else ""
        raise Refused(
            "full",
            f"{named} has {_mib(free)} free, not the {_mib(asked.memory_bytes)} that are asked for{soon}.",
        )
    return device


def _mib(size: int) -> str:
    return f"{size / MIB:g} MiB" if size % MIB else f"{size // MIB} MiB"


def counts_from(began: float, now: float, taken: float) -> tuple[float, str]:
    """Return the time from which the hours of a new lease count, and why that is not `began`, as part of a sentence; empty where it is.

    Parameters
    ----------
    began
        When its engine says that the use began, by wall time as all three; 0: nothing is said.
    taken
        When the key's last lease ended, or the devices became the engine's, whichever is later; 0: neither in the last `BEFORE_SECONDS`.
    """
    if not began:
        return now, ""
    if began > now:
        return now, f"that is {began - now:.1f} s in the future by the pool's clock"
    first, why = (
        now - BEFORE_SECONDS,
        f"that is {now - began:.0f} s ago, and at most {BEFORE_SECONDS:.0f} s count",
    )
    if taken > first:
        first, why = (
            min(taken, now),
            "before, the key had another lease, or the engine not all of the devices",
        )
    return (began, "") if began >= first else (first, why)


def differences(lease: Lease, placed_on: Iterable[PlacedOn], holder: Holder, *, ceiling: bool = False) -> str:
    """Return what differs between a lease and another request with its key, as part of a sentence; empty where nothing does.

    The person, the course and the bytes of each device count; a description does not.
    """
    found = []
    for what, has, asks in (
        ("for", lease.holder.person, holder.person),
        ("for course", lease.holder.course or "none", holder.course or "none"),
    ):
        if has != asks:
            found.append(f"it is {what} {has}, not {asks}")
    if lease.ceiling != ceiling:
        found.append(f"it is {'a' if lease.ceiling else 'no'} ceiling")
    has_on = {piece.uuid: piece.memory_bytes + piece.reserve_bytes for piece in lease.slices}
    asks_on = {one.uuid: one.memory_bytes for one in placed_on}
    for uuid in [*has_on, *(uuid for uuid in asks_on if uuid not in has_on)]:
        has, asks = (
            _mib(size) if size else "nothing" for size in (has_on.get(uuid, 0), asks_on.get(uuid, 0))
        )
        if has != asks:
            found.append(f"it has {has} of {uuid}, not {asks}")
    return "; ".join(found)
