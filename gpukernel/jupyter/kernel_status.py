"""The status of a kernel's slice as one record, from the lease manager to the notebook and the front end.

The lease manager makes a `KernelStatus`, the kernel socket and the server extension send it as JSON, `gpukernel.jupyter.notebook`
reads it back, and ``tools/typescript.py`` writes the front end's interfaces from it (``labextension/src/kernel_status.ts``).
Nothing here needs more than the standard library, since kernels load it, and nothing here holds a secret.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from gpukernel.jupyter.trouble.next_step import Trouble, next_step

if TYPE_CHECKING:
    from gpukernel.common.model import Lease
    from gpukernel.remoting.usage import SliceUsage

__all__ = [
    "EVENT_FIELDS",
    "DeviceStatus",
    "KernelState",
    "KernelStatus",
    "LeaseStatus",
    "OtherLease",
    "ServerStatus",
]

KernelState = Literal["none", "waiting", "live", "ended"]
"""``none``: nothing is asked for; ``waiting``: in the queue; ``live``: the slice is there; ``ended``: refused, or over."""

EVENT_FIELDS = ("kernel_id", "state", "what", "words", "sentence", "notice", "position", "estimate_seconds")
"""The fields of `KernelStatus` that an event of a change carries."""

IDLE = "This slice is idle"  # as the pool's notice says


@dataclass(frozen=True)
class DeviceStatus:
    """A slice's part of one device.

    Attributes
    ----------
    id, name
        The device as the pool knows it, and its model's name.
    device_memory_bytes
        Memory of the whole device.
    memory_bytes, used_bytes
        Memory of the slice, and how much of it is in use.
    gpu_seconds
        GPU time since the slice was granted.
    gpu_share
        Busy part of the last second, 0 to 1; None where nobody has measured it.
    """

    id: str
    name: str
    device_memory_bytes: int
    memory_bytes: int
    used_bytes: int
    gpu_seconds: float
    gpu_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class LeaseStatus:
    """A lease and its use, over all of its devices.  All fields but `state` are empty or 0 where there is no lease.

    Attributes
    ----------
    lease_id
        The pool's identifier of the lease.
    state
        State of the kernel's slice, or of the lease where no kernel of this server has it.
    created, until
        Seconds since the epoch: the grant, and the latest end; 0 where nothing bounds it.
    notice
        What the pool wants the holder to know, one sentence.
    device, device_name
        The devices' names in the pool, separated by commas, and the model of the first.
    device_memory_bytes, memory_bytes, used_bytes
        Memory of the whole devices, of the slice, and in use.
    gpu_share
        Busy part of the last second, 0 to 1, of the busiest device; null where nobody has measured it.
    gpu_seconds
        GPU time since the slice was granted.
    """

    state: str
    lease_id: str = ""
    created: float = 0.0
    until: float = 0.0
    notice: str = ""
    device: str = ""
    device_name: str = ""
    device_memory_bytes: int = 0
    memory_bytes: int = 0
    used_bytes: int = 0
    gpu_share: float | None = None
    gpu_seconds: float = 0.0

    def with_devices(self, devices: Sequence[DeviceStatus]) -> Self:
        """Return this status with the sums over `devices`."""
        return replace(
            self,
            device=", ".join(one.id for one in devices),
            device_name=devices[0].name if devices else "",
            device_memory_bytes=sum(one.device_memory_bytes for one in devices),
            memory_bytes=sum(one.memory_bytes for one in devices),
            used_bytes=sum(one.used_bytes for one in devices),
            gpu_share=max((one.gpu_share for one in devices if one.gpu_share is not None), default=None),
            gpu_seconds=sum(one.gpu_seconds for one in devices),
        )


@dataclass(frozen=True, kw_only=True)
class KernelStatus(LeaseStatus):
    """The slice of one kernel, or its place in the queue.

    Attributes
    ----------
    kernel_id
        Jupyter's identifier of the kernel.
    state
        ``none``, ``waiting``, ``live`` or ``ended``.
    what
        The size that was asked for, in words: V100 × 0.02.
    words
        The place in the queue as one line; empty unless `state` is ``waiting``.
    sentence
        Why there is no slice; of a request that waits, the quota or reservation that holds it back, and empty where only room is missing.
    position, estimate_seconds
        The place in the queue (1 is next, 0 not known), and about how long it takes; negative where nobody can tell.
    share, model
        The size as it was asked for; null for a size in MiB.
    may_keep
        Whether the slice is about to be released as idle, and may be kept.
    trouble
        What became of the kernel's latest work on the GPU: ``fault`` (its context is lost), ``memory`` (too little for a cell), or empty.
    needs_restart
        Whether the kernel's process cannot use another slice, since it has used CUDA before.
    larger_share
        The next larger of the usual sizes that quotas allow, where `trouble` is ``memory``; 0 where there is none.
    devices
        The parts of the single devices.
    """

    state: KernelState
    kernel_id: str
    what: str
    words: str = ""
    sentence: str = ""
    position: int = 0
    estimate_seconds: float = -1.0
    share: float | None = None
    model: str = ""
    may_keep: bool = False
    trouble: Trouble = ""
    needs_restart: bool = False
    larger_share: float = 0.0
    devices: tuple[DeviceStatus, ...] = ()

    @property
    def held_seconds(self) -> float:
        """Seconds since the slice was granted; 0 without one."""
        return max(0.0, time.time() - self.created) if self.lease_id else 0.0

    @property
    def left_seconds(self) -> float | None:
        """Seconds until the slice ends at the latest; None where nothing bounds it."""
        return max(0.0, self.until - time.time()) if self.until else None

    @property
    def next_step(self) -> str:
        """One sentence that says what to do about a trouble; empty where there is none."""
        return next_step(self)

    def with_devices(self, devices: Sequence[DeviceStatus]) -> Self:
        """Return this status with `devices` and their sums."""
        return replace(super().with_devices(devices), devices=tuple(devices))

    def with_lease(self, lease: Lease) -> Self:
        """Return this status with what the pool told last of the kernel's `lease`."""
        keep = IDLE in lease.notice and lease.mode != "direct"
        status = replace(self, lease_id=lease.id, created=lease.created, until=lease.until)
        return replace(status, notice=lease.notice, may_keep=keep).with_devices(devices_of(lease))

    def with_use(self, uses: Sequence[SliceUsage]) -> Self:
        """Return this status with what the devices' workers say now; devices without an answer keep what the pool says."""
        measured = [
            replace(
                one,
                memory_bytes=use.limit_bytes,
                used_bytes=use.used_bytes,
                gpu_share=use.gpu_share,
                gpu_seconds=use.gpu_seconds,
            )
            for one, use in zip(self.devices, uses, strict=False)
        ]
        return self.with_devices([*measured, *self.devices[len(measured) :]])

    def event(self) -> dict[str, Any]:
        """Return the body of an event that this has changed."""
        return {name: getattr(self, name) for name in EVENT_FIELDS}

    def as_json(self) -> dict[str, Any]:
        """Return all fields as JSON has them."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the status that `as_json` has written; fields of a newer version are left out.

        Raises
        ------
        ValueError
            A field is missing, as in what version 0.1 wrote.
        """
        known = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        try:
            return cls(**{**known, "devices": tuple(DeviceStatus(**one) for one in data.get("devices", ()))})
        except TypeError as error:
            raise ValueError(f"no status of a kernel: {error}") from None

    def __str__(self) -> str:
        if self.state == "waiting":
            return self.words or self.sentence
        if self.state != "live":
            why = f": {self.sentence}" if self.sentence else ""
            if self.next_step:
                return f"No slice now{why.rstrip('.')}. {self.next_step}"
            return f"No slice now{why.rstrip('.')}. “%gpu acquire”, or the first use of CUDA, asks for {self.what}."
        lines = []
        for one in self.devices:
            busy = f", {one.gpu_share:.0%} busy" if one.gpu_share is not None else ""
            lines += [
                f"{self.what} on {one.id}, {one.name}",
                f"  memory  {_bar(one.used_bytes / one.memory_bytes)} {size_words(one.used_bytes)} of {size_words(one.memory_bytes)}",
                f"  compute {_bar(one.gpu_share or 0)} {one.gpu_seconds:.1f} s of GPU time{busy}",
            ]
        left = f"{_time(self.left_seconds)} left" if self.left_seconds is not None else "no end set"
        lines.append(f"  held for {_time(self.held_seconds)}, {left}")
        lines += [f"  {words}" for words in (self.next_step, self.notice) if words]
        return "\n".join(lines)

    __repr__ = __str__


@dataclass(frozen=True, kw_only=True)
class OtherLease(LeaseStatus):
    """A lease of this person that another server holds.

    Attributes
    ----------
    description, server
        What its holder says of it, and the name of the server.
    """

    description: str = ""
    server: str = ""


@dataclass(frozen=True)
class ServerStatus:
    """Everything that the status bar and the side panel show.

    Attributes
    ----------
    kernels
        The kernels of this server.
    others
        This person's leases elsewhere.
    problem
        Why `others` may be out of date, one sentence.
    time
        Seconds since the epoch, by the server's clock.
    """

    kernels: tuple[KernelStatus, ...]
    others: tuple[OtherLease, ...]
    problem: str
    time: float


def devices_of(lease: Lease) -> list[DeviceStatus]:
    """Return the devices of a lease with the use that the pool knows of."""
    return [
        DeviceStatus(
            id=piece.device_id,
            name=piece.device_name,
            device_memory_bytes=piece.device_memory_bytes,
            memory_bytes=piece.memory_bytes,
            used_bytes=piece.usage.memory_used_bytes,
            gpu_seconds=piece.usage.gpu_seconds,
        )
        for piece in lease.slices
    ]


def other_lease(lease: Lease) -> OtherLease:
    """Return the status of a lease that another server holds."""
    status = OtherLease(
        state=lease.state,
        lease_id=lease.id,
        created=lease.created,
        until=lease.until,
        notice=lease.notice,
        description=lease.holder.description,
        server=lease.holder.server,
    )
    return status.with_devices(devices_of(lease))


def size_words(count: float) -> str:
    """Return a number of bytes for people: 12 bytes, 5 KiB, 655 MiB."""
    if count < 1024:
        return f"{count:.0f} bytes"
    return f"{count / 1024:.0f} KiB" if count < 2**20 else f"{count / 2**20:,.0f} MiB"


def _bar(part: float, width: int = 20) -> str:
    full = round(min(max(part, 0), 1) * width)
    return "█" * full + "░" * (width - full)


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{round(seconds / 3600, 1):g} h"
