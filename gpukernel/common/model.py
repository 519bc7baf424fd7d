"""The pool's terms as data: what travels in messages, without the messages."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

__all__ = [
    "DECIDERS",
    "ENGINES",
    "PRIORITIES",
    "Chance",
    "DailyUse",
    "Device",
    "GpuServer",
    "Holder",
    "Lease",
    "LeaseUse",
    "PlacedOn",
    "Queued",
    "Rung",
    "Slice",
    "SliceRequest",
    "Usage",
    "Waiting",
]


ENGINES = ("kubernetes", "slurm")
"""The engines that may decide over devices: they choose them for leases, and the pool never does there."""

DECIDERS = ("pool", *ENGINES)
"""Deciders over devices, of which each device has exactly one."""

PRIORITIES = ("interactive", "batch", "scavenger")
"""Priority classes of requests and their leases, the first served first."""


@dataclass(frozen=True)
class SliceRequest:
    """A request: a `share` (0 < share ≤ 1) or `memory_bytes` of each of `devices` devices whose name contains `model`, on GPU
    servers whose name contains `server`.  `device` asks for one device, ``gpu1/0``, or for those whose UUID begins so.

    `mode` is ``remote``, ``direct`` or ``auto``; for the latter two `machine` is the identity of the machine that the
    program runs on (`gpukernel.common.machine`) and `user` the number of the user who runs it there.  `priority` is its class,
    one of `PRIORITIES`.
    """

    share: float | None = None
    memory_bytes: int | None = None
    devices: int = 1
    model: str = ""
    mode: str = "remote"
    machine: str = ""
    user: int = 0
    server: str = ""
    device: str = ""
    priority: str = "interactive"


@dataclass(frozen=True)
class PlacedOn:
    """A slice that an engine has placed: `memory_bytes` of the device with this UUID."""

    uuid: str
    memory_bytes: int


@dataclass(frozen=True)
class Holder:
    """The holder of a lease, and its purpose."""

    person: str
    server: str = ""
    course: str = ""
    description: str = ""


@dataclass(frozen=True)
class Usage:
    """A worker's count; memory in bytes, times in seconds."""

    memory_used_bytes: int = 0
    memory_peak_bytes: int = 0
    cuda_calls: int = 0
    launches: int = 0
    gpu_seconds: float = 0.0
    connections: int = 0
    idle_seconds: float = 0.0


@dataclass(frozen=True)
class Rung:
    """One rung of the confinement of a server's workers; `detail` says how it is used, or why it is not."""

    name: str
    used: bool
    detail: str = ""


@dataclass(frozen=True)
class Slice:
    """A part of one device, named as in `Device`; `endpoints` are the worker's addresses, best first.

    Of a ceiling `reserve_bytes` more are promised for leases inside, which have `lent_bytes` of them.
    """

    device_id: str
    server: str
    device_index: int
    device_name: str
    device_memory_bytes: int
    memory_bytes: int
    weight: float = 1.0
    endpoints: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)
    uuid: str = ""
    reserve_bytes: int = 0
    lent_bytes: int = 0

    @property
    def label(self) -> str:
        """Return the device's name for people, ``gpu1/0``."""
        return f"{self.server}/{self.device_index}"


@dataclass(frozen=True)
class Lease:
    """A holder's right to slices until some time; times in seconds since the epoch.

    `secret` is empty except in the answer to the holder's own request.  `state` is ``starting``, ``live``,
    ``ending`` or ``ended``; `epoch` grows with every grant of the pool.  It ends at `until` at the latest (0: whenever its
    holder likes); `notice` is a sentence for its holder, for example that it is about to be released.  In `mode` ``direct`` the
    programs of `user` use the devices themselves, in ``remote`` a worker does it for them.

    Attributes
    ----------
    decided_by
        Who chose its devices: ``pool``, or the engine that placed it there (`ENGINES`).  A placed lease needs no sign of life: `expires`
        and `ttl_seconds` are 0.
    traceparent
        The context of the trace that it was granted in, on its way to its agents; empty else.
    ceiling, within
        Whether its memory is for leases inside of it; the id of the ceiling that it is inside of.
    priority
        Its class, one of `PRIORITIES`; empty where an engine has placed it.
    gives_way
        The time at which it ends to give way to a request of an earlier class, or did; 0: it does not.  `notice` says to whom.
    """

    id: str
    key: str
    holder: Holder
    slices: tuple[Slice, ...]
    state: str
    created: float
    expires: float
    ttl_seconds: float
    epoch: int
    secret: str = field(default="", repr=False)
    end_reason: str = ""
    ended: float = 0.0
    until: float = 0.0
    notice: str = ""
    role: str = ""
    mode: str = "remote"
    user: int = 0
    decided_by: str = "pool"
    traceparent: str = field(default="", compare=False)
    ceiling: bool = False
    within: str = ""
    priority: str = "interactive"
    gives_way: float = 0.0


@dataclass(frozen=True)
class Device:
    """One GPU of the pool; `promised_bytes` of its memory belong to leases.

    Attributes
    ----------
    available
        The pool may promise it now.
    trouble
        What is wrong with it, in words; empty where it works, whoever decides over it.
    uuid
        NVIDIA's name for it, or one made up for a simulated device; empty where its agent tells none.  It stays the same whatever number
        the device has on its server.
    decided_by
        Who chooses it for leases: the pool, or an engine (`DECIDERS`).  Only what the pool decides over is ever `available`.
    next_decider
        Who will once no lease is left there; empty: it stays as it is.
    id
        In the pool's books its server with its UUID, or with its number where there is none.  To everybody else it is `label`.
    """

    id: str
    server: str
    index: int
    name: str
    memory_bytes: int
    promised_bytes: int = 0
    leases: int = 0
    available: bool = True
    trouble: str = ""
    compute_capability: str = ""
    multiprocessors: int = 0
    uuid: str = ""
    decided_by: str = "pool"
    next_decider: str = ""

    @property
    def label(self) -> str:
        """Return its name for people, ``gpu1/0``: the number is the one that it has now."""
        return f"{self.server}/{self.index}"

    @property
    def condition(self) -> str:
        """Return in words why the pool does not promise it: what is wrong, or who decides over it; empty where it is available."""
        if self.available:
            return ""
        if self.trouble:
            return self.trouble
        if self.next_decider:
            return f"{self.next_decider} decides over it once it is free"
        return "away" if self.decided_by == "pool" else f"{self.decided_by} decides over it"

    @property
    def works(self) -> bool:
        """Return whether whoever decides over it may use it, or the next one will."""
        return self.available or (not self.trouble and (self.decided_by != "pool" or bool(self.next_decider)))


@dataclass(frozen=True)
class GpuServer:
    """One GPU server of the pool.

    Attributes
    ----------
    state
        ``attached``, ``drained``, ``settling`` (workers of before are being stopped) or ``away``.
    credential, machine
        What its agent enrolled with; empty: the next agent of this name enrols.
    epoch
        Of its orders; it grows with every other process that speaks for the server.
    silent_seconds
        Since its last sign of life.
    fenced_seconds
        If it stays away, no worker of it lives after this time, and its memory is free; negative: only once it is forgotten.
    leases
        The leases that hold memory there.
    """

    name: str
    state: str
    credential: str = ""
    machine: str = ""
    epoch: int = 0
    silent_seconds: float = 0.0
    fenced_seconds: float = 0.0
    leases: int = 0


@dataclass(frozen=True)
class Queued:
    """A place in the queue: position 1 is next; the estimate in seconds, negative where none can be made; `quota` is the sentence of
    the quota that is full, or says whose reservation keeps the room; empty where only room is missing."""

    position: int
    estimate_seconds: float
    reason: str
    quota: str = ""


@dataclass(frozen=True)
class Waiting:
    """One request of the queue as tables show it."""

    key: str
    holder: Holder
    slice: SliceRequest
    position: int
    since: float
    estimate_seconds: float = -1.0
    reason: str = ""


@dataclass(frozen=True)
class Chance:
    """The prospects of one size.

    Attributes
    ----------
    state
        ``free``: at once; ``wait``: later; ``refused``: never, as quotas and devices are.
    memory_bytes
        Of one such slice on the smallest such device.
    free
        How many such slices there is room for.
    waiting
        How many requests wait for the same devices.
    wait_seconds
        At most, where promised ends of leases or a new quota period tell; negative: not known.
    sentence
        Why not at once.
    """

    state: str
    memory_bytes: int = 0
    free: int = 0
    waiting: int = 0
    wait_seconds: float = -1.0
    sentence: str = ""


@dataclass(frozen=True)
class LeaseUse:
    """The use of one lease while it had one size: `device_hours` is share × hours, `memory_hours` GiB × hours, `hours` its time.

    Attributes
    ----------
    decided_by
        ``pool``, or the engine that placed it: its own books (Slurm's) have these hours, too.
    """

    lease: str
    person: str
    course: str
    description: str
    begins: float
    hours: float
    device_hours: float
    memory_hours: float
    decided_by: str = "pool"


@dataclass(frozen=True)
class DailyUse:
    """The use of one person in one day of the pool's calendar, in the units of `LeaseUse`."""

    day: datetime.date
    person: str
    device_hours: float
    memory_hours: float
