"""Pictures as figures for templates: positions and sizes, in the units of an SVG's view box; colours are the style sheet's."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpukernel.common.model import Device, Lease, Slice

__all__ = ["Bar", "Cut", "DayChart", "Part", "cut_devices", "day_chart"]

MIB = 2**20
COLOURS = 8
"""The number of classes ``c0`` … in the style sheet."""


@dataclass(frozen=True)
class Bar:
    """The bar of one day; `label` stands under the axis, and is empty for most."""

    x: float
    y: float
    width: float
    height: float
    day: str
    label: str  # under the axis; empty for most
    hours: float


@dataclass(frozen=True)
class DayChart:
    """Bars in a box of `width` × `height`, of which the lowest 20 are for labels; `lines` are (y, hours)."""

    width: float
    height: float
    bars: tuple[Bar, ...]
    lines: tuple[tuple[float, float], ...]


def _round_up(value: float) -> float:
    """Return a round figure that is not smaller."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(f * power for f in (1, 2, 5, 10) if f * power >= value - 1e-12)


def day_chart(
    days: Sequence[str], hours: Sequence[float], width: float = 720, height: float = 200
) -> DayChart:
    """Return GPU-hours a day as bars."""
    left, below, above = 44.0, 20.0, 8.0
    top = _round_up(max(hours, default=0.0))
    tall = height - below - above
    step = (width - left) / max(len(days), 1)
    every = max(1, math.ceil(len(days) / 10))
    bars = []
    for number, (day, value) in enumerate(zip(days, hours, strict=True)):
        high = tall * value / top
        date = datetime.date.fromisoformat(day)
        bars.append(
            Bar(
                round(left + number * step + step * 0.14, 2),
                round(above + tall - high, 2),
                round(step * 0.72, 2),
                round(high, 2),
                day,
                f"{date.month:02}-{date.day:02}" if (len(days) - 1 - number) % every == 0 else "",
                value,
            )
        )
    lines = tuple((round(above + tall * (1 - part), 2), top * part) for part in (0, 0.5, 1))
    return DayChart(width, height, tuple(bars), lines)


@dataclass(frozen=True)
class Part:
    """A slice on a device: where it lies in the device's bar of 1000, whose it is, and a colour's number for its course."""

    x: float
    width: float
    colour: int
    lease: str
    person: str
    course: str
    memory_mib: int
    used_mib: int


@dataclass(frozen=True)
class Cut:
    """The slices on one device; `free_mib` of its memory belongs to nobody."""

    device: Device
    parts: tuple[Part, ...]
    memory_mib: int
    free_mib: int


def _place(devices: Sequence[Device], piece: Slice) -> int:
    """Return which of `devices` a slice is on: one that was taken out of its server has the name of the one that is there now.

    -1 where it is on none of them.
    """

    def likeness(place: int) -> tuple[bool, bool, bool]:
        device = devices[place]
        return device.uuid == piece.uuid, device.name == piece.device_name, device.available

    named = (place for place, device in enumerate(devices) if device.id == piece.device_id)
    return max(named, key=likeness, default=-1)


def cut_devices(devices: Iterable[Device], leases: Iterable[Lease]) -> list[Cut]:
    """Return every device with the slices on it, side by side in the order of the courses."""
    devices = list(devices)
    on: dict[int, list[tuple[str, str, str, int, int]]] = {}
    courses = set()
    for lease in leases:
        courses.add(lease.holder.course)
        for piece in lease.slices:
            of = lease.holder
            used = piece.usage.memory_used_bytes
            place = _place(devices, piece)
            on.setdefault(place, []).append((of.course, of.person, lease.id, piece.memory_bytes, used))
    colour = {name: number % COLOURS for number, name in enumerate(sorted(courses))}
    cuts = []
    for place, device in enumerate(devices):
        parts, x = [], 0.0
        for course, person, lease_id, size, used in sorted(on.get(place, ())):
            width = 1000 * size / device.memory_bytes
            parts.append(
                Part(
                    round(x, 2),
                    round(width, 2),
                    colour[course],
                    lease_id,
                    person,
                    course,
                    size // MIB,
                    used // MIB,
                )
            )
            x += width
        free = device.memory_bytes - device.promised_bytes
        cuts.append(Cut(device, tuple(parts), device.memory_bytes // MIB, free // MIB))
    return cuts
