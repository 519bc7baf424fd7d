"""Where direct mode is possible: pure functions of what is asked for and of which servers allow it.

In direct mode a program uses the GPU of its own machine without a worker, so its slices lie on the devices of that machine, whose
agent allows it.  A request in mode ``auto`` is one that may have any device, and takes its own machine's in direct mode where it can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpukernel.pool.errors import Refused
from gpukernel.pool.model import SliceRequest
from gpukernel.pool.placement import DeviceClass, matching

__all__ = ["MODES", "NO_USER", "Machine", "check_mode", "matching_in_mode"]

MODES = ("remote", "direct", "auto")
NO_USER = 2**32 - 1
"""(uid_t)-1, which means “leave it as it is” where an owner is changed."""


@dataclass(frozen=True)
class Machine:
    """One that allows direct mode: the servers that its agents speak for, and their available devices by kind."""

    servers: tuple[str, ...]
    kinds: tuple[DeviceClass, ...] = ()


def check_mode(request: SliceRequest) -> None:
    """Raise `Refused` with code ``invalid`` where the request's mode is none, or its user cannot be one."""
    if request.mode not in MODES:
        raise Refused("invalid", f"“{request.mode[:20]}” is no mode; it is one of {', '.join(MODES)}.")
    if not 0 <= request.user < NO_USER:
        raise Refused("invalid", f"{request.user} is not the number of a user.")


def matching_in_mode(
    request: SliceRequest, known: Iterable[DeviceClass], machines: Mapping[str, Machine]
) -> list[DeviceClass]:
    """As `gpukernel.pool.placement.matching`, in direct mode among the devices of the program's machine alone.

    Parameters
    ----------
    known
        The kinds of the pool's devices.
    machines
        Those that allow direct mode, by their identity.

    Raises
    ------
    Refused
        ``no_direct`` where the program's machine does not allow it, or its server is away; else as `matching`.
    """
    if request.mode != "direct":
        return matching(request, known)
    machine = machines.get(request.machine)
    if machine is None:
        raise Refused(
            "no_direct",
            "No GPU server on this machine allows direct mode; its agent must run here with --direct, or use remote mode.",
        )
    if not machine.kinds:
        raise Refused(
            "no_direct",
            "The GPU server on this machine offers no device now; try again later, or use remote mode.",
        )
    return matching(request, machine.kinds, "this machine")
