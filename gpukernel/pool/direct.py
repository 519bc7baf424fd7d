"""Where direct mode is possible: pure functions of what is asked for and of which servers allow it.

In direct mode a program uses the GPU of its own machine without a worker, so its slices lie on the devices of one server:
the one that it runs on, whose agent allows it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gpukernel.pool.errors import Refused
from gpukernel.pool.model import Device, SliceRequest
from gpukernel.pool.placement import Placement, place

__all__ = ["MODES", "check_mode", "choose", "possible"]

MODES = ("remote", "direct", "auto")


def check_mode(request: SliceRequest) -> None:
    """Raise `Refused` with code ``invalid`` where the request's mode is none."""
    if request.mode not in MODES:
        raise Refused("invalid", f"“{request.mode[:20]}” is no mode; it is one of {', '.join(MODES)}.")


def _here(request: SliceRequest, devices: Sequence[Device], machines: Mapping[str, str]) -> list[Device]:
    return [d for d in devices if request.machine and machines.get(d.server) == request.machine]


def possible(request: SliceRequest, devices: Sequence[Device], machines: Mapping[str, str]) -> list[Device]:
    """The devices among which to look: all of them, or in direct mode those of the program's machine.

    Parameters
    ----------
    machines
        The identity of each server whose agent allows direct mode.

    Raises
    ------
    Refused
        ``no_direct`` where the program's machine has no server that allows it.
    """
    if request.mode != "direct":
        return list(devices)
    if here := _here(request, devices, machines):
        return here
    raise Refused(
        "no_direct",
        "No GPU server on this machine allows direct mode; its agent must run here with --direct, or use remote mode.",
    )


def choose(
    request: SliceRequest,
    candidates: Sequence[Device],
    blocked: Collection[str],
    machines: Mapping[str, str],
) -> tuple[list[Placement] | None, bool]:
    """Devices with room now, as `place` gives them, and whether they are used in direct mode."""
    if request.mode != "remote":
        here = _here(request, candidates, machines)
        placed = place(request, here, blocked) if len(here) >= request.devices else None
        if placed is not None or request.mode == "direct":
            return placed, placed is not None
    return place(request, candidates, blocked), False
