"""The places that a request may be confined to, as pure functions of the request: servers, single devices, and machines in direct mode.

In direct mode a program uses the GPU of its own machine without a worker, so its slices lie on the devices of that machine, whose
agent allows it.  A request in mode ``auto`` is one that may have any device, and takes its own machine's in direct mode where it can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpukernel.common.errors import Refused
from gpukernel.common.i18n import say
from gpukernel.common.model import SliceRequest
from gpukernel.pool.domain.placement import DeviceClass, matching

__all__ = [
    "MODES",
    "NO_USER",
    "Machine",
    "NamedDevice",
    "Places",
    "check_mode",
    "is_named",
    "matching_in_mode",
]

MODES = ("remote", "direct", "auto")
NO_USER = 2**32 - 1
"""(uid_t)-1, which means “leave it as it is” where an owner is changed."""


@dataclass(frozen=True)
class Machine:
    """A place: some servers, those of a machine that allows direct mode for example, and their available devices by kind.

    `devices`: the ids of those that it has alone; None for all of the servers'.
    """

    servers: tuple[str, ...]
    kinds: tuple[DeviceClass, ...] = ()
    devices: frozenset[str] | None = None


@dataclass(frozen=True)
class NamedDevice:
    """An available device, and the names by which requests may ask for it."""

    id: str
    label: str
    uuid: str
    kind: DeviceClass


def is_named(text: str, label: str, uuid: str) -> bool:
    """Return whether `text` asks for a device: it is its label, ``gpu1/0``, or the beginning of its UUID, in any case."""
    text = text.lower()
    return text == label.lower() or (text[:4] in ("gpu-", "mig-") and uuid.lower().startswith(text))


@dataclass(frozen=True)
class Places:
    """The places that requests may be confined to: machines that allow direct mode, by identity, and servers, each with its devices."""

    machines: Mapping[str, Machine] = field(default_factory=dict)
    servers: Mapping[str, tuple[NamedDevice, ...]] = field(default_factory=dict)

    def of(self, request: SliceRequest) -> Machine | None:
        """Return the only place where `request` may lie; None where that is the whole pool, or in direct mode nowhere."""
        machine = self.machines.get(request.machine) if request.mode == "direct" else None
        if not (request.server or request.device) or (request.mode == "direct" and machine is None):
            return machine
        return self.named(request, machine)

    def named(self, request: SliceRequest, machine: Machine | None = None) -> Machine:
        """Return the servers and the devices that `request` names, of a machine or of the pool."""
        part = request.server.lower()
        names = [
            name
            for name in sorted(self.servers)
            if part in name.lower() and (machine is None or name in machine.servers)
        ]
        found = [device for name in names for device in self.servers[name]]
        only = None
        if request.device:
            found = [one for one in found if is_named(request.device, one.label, one.uuid)]
            only = frozenset(one.id for one in found)
        counts = Counter((one.kind.name, one.kind.memory_bytes) for one in found)
        kinds = (DeviceClass(name, memory, count) for (name, memory), count in sorted(counts.items()))
        return Machine(tuple(names), tuple(kinds), only)


def check_mode(request: SliceRequest) -> None:
    """Raise `Refused` with code ``invalid`` where the request's mode is none, or its user cannot be one."""
    if request.mode not in MODES:
        raise Refused("invalid", f"“{request.mode[:20]}” is no mode; it is one of {', '.join(MODES)}.")
    if not 0 <= request.user < NO_USER:
        raise Refused("invalid", f"{request.user} is not the number of a user.")


def matching_in_mode(
    request: SliceRequest, known: Iterable[DeviceClass], places: Places
) -> list[DeviceClass]:
    """Return the kinds as `gpukernel.pool.domain.placement.matching` does, in direct mode of the program's machine alone.

    Parameters
    ----------
    known
        The kinds of the pool's devices.
    places
        What requests may be confined to.

    Raises
    ------
    Refused
        ``no_direct`` where the program's machine does not allow it, or its server is away; else as `matching`.
    """
    if request.mode != "direct":
        if request.device:
            place = places.named(request)
            if not place.kinds:
                raise Refused(
                    "no_such_model",
                    say("The pool has no device “%(device)s” that it can offer now.", device=request.device),
                )
            return matching(request, place.kinds, f"“{request.device}”")
        if not request.server:
            return matching(request, known)
        return matching(request, places.named(request).kinds, f"a server named “{request.server}”")
    machine = places.of(request)
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
