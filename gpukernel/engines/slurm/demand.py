"""The demand: how many GPUs' worth people wait for that more jobs of one supply could give them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gpukernel.client.admin import AnnouncedKind
from gpukernel.common.model import Device, Waiting

__all__ = ["waiting_gpus"]

FALLBACK_BYTES = 16 << 30
"""The memory of a device of which none was seen yet."""


def waiting_gpus(
    waiting: Iterable[Waiting],
    devices: Iterable[Device],
    servers: Collection[str],
    prefix: str,
    gpus: int,
    kinds: Collection[AnnouncedKind] = (),
) -> float:
    """Return the GPUs' worth of the requests that wait for room, and that devices of this supply could serve.

    Those are left out that a quota or a reservation holds back, that name a device or another server, that use their machine's own GPU,
    or that want more devices than a job has.

    Parameters
    ----------
    servers, prefix
        The names of the supply's servers that are there, and the beginning of all of them.
    gpus
        GPUs of a job.
    kinds
        The models of the supply's devices where none is there; where they are not known either, any.
    """
    ours = [device for device in devices if device.server in servers]
    models = [(one.name, one.memory_bytes) for one in ours or kinds]
    names = {name.lower() for name, _ in models}
    memory = min((size for _, size in models), default=FALLBACK_BYTES)
    worth = 0.0
    for request in waiting:
        wanted = request.slice
        if request.reason or wanted.device or wanted.mode == "direct" or wanted.devices > gpus:
            continue
        if wanted.server and wanted.server.lower() not in prefix.lower():
            continue
        if names and not any(wanted.model.lower() in name for name in names):
            continue
        share = wanted.share if wanted.share is not None else (wanted.memory_bytes or memory) / memory
        if share <= 1:
            worth += share * wanted.devices
    return worth
