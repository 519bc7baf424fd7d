"""Which devices a request gets: pure functions of what is free.

Best fit by memory: of the devices that have room, the one with the least to spare, so that large slices stay possible.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gpukernel.pool.errors import Refused
from gpukernel.pool.model import Device, SliceRequest

__all__ = ["MIB", "Placement", "check_request", "matching", "place", "slice_bytes"]

MIB = 2**20
MOST_DEVICES = 64
LONGEST_TEXT = 256


@dataclass(frozen=True)
class Placement:
    """`memory_bytes` of one device."""

    device: Device
    memory_bytes: int


def check_request(request: SliceRequest, texts: Iterable[str] = ()) -> None:
    """Raise `Refused` with code ``invalid``, naming what is wrong, where no pool could ever fulfil `request`."""

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
    for text in (request.model, *texts):
        if len(text) > LONGEST_TEXT:
            refuse(f"“{text[:20]}…” has {len(text)} characters; names have at most {LONGEST_TEXT}.")


def slice_bytes(request: SliceRequest, device: Device) -> int:
    """Bytes of a slice on `device`: a share is rounded down to a whole MiB, but is at least one."""
    if request.memory_bytes is not None:
        return request.memory_bytes
    assert request.share is not None
    return max(MIB, int(request.share * device.memory_bytes) // MIB * MIB)


def matching(request: SliceRequest, devices: Iterable[Device]) -> list[Device]:
    """The devices whose model fits and that are large enough when empty.

    Raises
    ------
    Refused
        ``no_such_model`` or ``too_large`` where that leaves too few, whoever holds what.
    """
    known = [device for device in devices if device.available]
    named = [device for device in known if request.model.lower() in device.name.lower()]
    if not named:
        models = ", ".join(sorted({device.name for device in known}))
        sentence = f"The pool has no {request.model or 'device'}"
        raise Refused(
            "no_such_model",
            f"{sentence}; it has {models}." if models else f"{sentence}: no GPU server is attached.",
        )
    large = [device for device in named if slice_bytes(request, device) <= device.memory_bytes]
    if not large:
        asked, most = request.memory_bytes or 0, max(device.memory_bytes for device in named)
        raise Refused("too_large", f"{asked // MIB} MiB fit on no device; the largest has {most // MIB} MiB.")
    if len(large) < request.devices:
        raise Refused(
            "too_large", f"{request.devices} devices are asked for; the pool has {len(large)} that fit."
        )
    return large


def place(
    request: SliceRequest, candidates: Iterable[Device], blocked: Collection[str] = ()
) -> list[Placement] | None:
    """Distinct devices with room for `request` now, or None; devices in `blocked` are kept for those who wait longer."""
    fitting = [
        Placement(device, slice_bytes(request, device))
        for device in candidates
        if device.id not in blocked
        and device.memory_bytes - device.promised_bytes >= slice_bytes(request, device)
    ]
    if len(fitting) < request.devices:
        return None
    fitting.sort(
        key=lambda p: (p.device.memory_bytes - p.device.promised_bytes - p.memory_bytes, p.device.id)
    )
    return fitting[: request.devices]
