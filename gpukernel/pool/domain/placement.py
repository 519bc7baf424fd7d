"""Placement: the devices that a request gets, as pure functions of what is free.

Best fit by memory: of the devices that have room, the one with the least to spare, so that large slices stay possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpukernel.common.errors import Refused
from gpukernel.common.i18n import say
from gpukernel.common.model import Device, SliceRequest
from gpukernel.common.slice_request import MIB, check_request

__all__ = [
    "MIB",
    "DeviceClass",
    "Placement",
    "best_fit",
    "check_request",
    "classes",
    "matching",
    "slice_bytes",
]

THE_POOL = "the pool"


@dataclass(frozen=True)
class DeviceClass:
    """A kind of device, by model and size; how many there are is not part of it."""

    name: str
    memory_bytes: int
    count: int = field(default=1, compare=False)


@dataclass(frozen=True)
class Placement:
    """A slice on a device: `memory_bytes` of it."""

    device: Device
    memory_bytes: int


def slice_bytes(request: SliceRequest, device: Device | DeviceClass) -> int:
    """Return the bytes of a slice on `device`: a share is rounded down to a whole MiB, but is at least one."""
    if request.memory_bytes is not None:
        return request.memory_bytes
    assert request.share is not None
    return max(MIB, int(request.share * device.memory_bytes) // MIB * MIB)


def classes(devices: Iterable[Device]) -> list[DeviceClass]:
    """Return the kinds of devices among those that are available."""
    counts = Counter((device.name, device.memory_bytes) for device in devices if device.available)
    return [DeviceClass(name, memory, count) for (name, memory), count in sorted(counts.items())]


def _none_named(model: str, known: Iterable[DeviceClass], where: str) -> str:
    models = ", ".join(sorted({kind.name for kind in known}))
    figures = {
        "where": say("The pool") if where == THE_POOL else f"{where[:1].upper()}{where[1:]}",
        "model": model or say("device"),
    }
    if models:
        return say("%(where)s has no %(model)s; it has %(models)s.", models=models, **figures)
    return say("%(where)s has no %(model)s: no GPU server offers one now.", **figures)


def matching(request: SliceRequest, known: Iterable[DeviceClass], where: str = THE_POOL) -> list[DeviceClass]:
    """Return the kinds of devices whose model fits and that are large enough when empty; `where` they are, for the sentence.

    Raises
    ------
    Refused
        ``no_such_model`` or ``too_large`` where that leaves too few, whoever holds what.
    """
    known = list(known)
    named = [kind for kind in known if request.model.lower() in kind.name.lower()]
    if not named:
        raise Refused("no_such_model", _none_named(request.model, known, where))
    large = [kind for kind in named if slice_bytes(request, kind) <= kind.memory_bytes]
    if not large:
        asked, most = request.memory_bytes or 0, max(kind.memory_bytes for kind in named)
        raise Refused(
            "too_large",
            say(
                "%(size)s MiB fit on no device; the largest has %(most)s MiB.",
                size=asked // MIB,
                most=most // MIB,
            ),
        )
    count = sum(kind.count for kind in large)
    if count < request.devices:
        raise Refused(
            "too_large",
            say(
                "%(n)s devices are asked for; %(where)s has %(count)s that fit.",
                n=request.devices,
                where=say("the pool") if where == THE_POOL else where,
                count=count,
            ),
        )
    return large


def best_fit(request: SliceRequest, fitting: Iterable[Device]) -> list[Placement] | None:
    """Return the `request.devices` of `fitting` with the least to spare, or None where there are fewer with room."""
    placed = [
        Placement(device, slice_bytes(request, device))
        for device in fitting
        if device.memory_bytes - device.promised_bytes >= slice_bytes(request, device)
    ]
    if len(placed) < request.devices:
        return None
    placed.sort(
        key=lambda p: (
            p.device.memory_bytes - p.device.promised_bytes - p.memory_bytes,
            p.device.server,
            p.device.index,
        )
    )
    return placed[: request.devices]
