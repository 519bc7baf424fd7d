"""The size of a slice, as JSON that a notebook or the side panel sends, and in words."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from gpukernel.jupyter.errors import SliceUnavailable
from gpukernel.jupyter.kernelspecs import STANDARD, figure

if TYPE_CHECKING:
    from gpukernel.client.hub import HubClient
    from gpukernel.common.model import Lease, Queued, SliceRequest

__all__ = ["duration_words", "larger_share", "queue_words", "request_from", "request_words"]

MIB = 2**20
ASK_SECONDS = 2.0


def request_from(data: Any, before: SliceRequest | None) -> SliceRequest:
    """Return the request that JSON names: ``share`` or ``memory_mib``, and perhaps ``model`` and ``devices``; the rest is as before.

    Raises
    ------
    SliceUnavailable
        It names no size that could be.
    """
    from gpukernel.common.errors import Refused
    from gpukernel.common.model import SliceRequest
    from gpukernel.common.slice_request import check_request

    try:
        memory = int(data["memory_mib"]) * MIB if data.get("memory_mib") else None
        share = float(data["share"]) if memory is None and data.get("share") is not None else None
        if memory is None and share is None and before is not None:
            memory, share = before.memory_bytes, before.share
        request = SliceRequest(
            share=share,
            memory_bytes=memory,
            devices=int(data.get("devices") or (before.devices if before else 1)),
            model=str(data.get("model") or (before.model if before else "")),
            mode=before.mode if before else "remote",
            machine=before.machine if before else "",
            user=before.user if before else 0,
            priority=before.priority if before else "interactive",
        )
        check_request(request)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        raise SliceUnavailable("A size is a share like 0.05, or a number of MiB.") from None
    except Refused as refusal:
        raise SliceUnavailable(str(refusal)) from None
    return request


def request_words(request: SliceRequest | None) -> str:
    """Return what is asked for, in words: V100 × 0.02."""
    if request is None:
        return "a slice"
    size = figure(request.share) if request.share is not None else f"{(request.memory_bytes or 0) // MIB} MiB"
    count = f"{request.devices} × " if request.devices > 1 else ""
    return f"{count}{request.model or 'GPU'} × {size}"


def queue_words(request: SliceRequest | None, queued: Queued | None) -> str:
    """Return a request's place in the queue as one line; `queued` is what the pool told last, None before it has answered."""
    what = request_words(request)
    if queued is None or not queued.position:
        return f"waiting for {what}: {queued.reason if queued else 'asking the pool'} …"
    about = "" if queued.estimate_seconds < 0 else f", about {duration_words(queued.estimate_seconds)} to go"
    why = f": {queued.quota.rstrip('.')}" if queued.quota else ""
    return f"waiting for {what}: position {queued.position} in the queue{about}{why} …"


async def larger_share(client: HubClient, lease: Lease, model: str) -> float:
    """Return the next larger of the standard sizes than that of `lease` that quotas and devices allow; 0 where there is none.

    Where the pool does not answer within `ASK_SECONDS` it is the next larger one.
    """
    from gpukernel.common.course import Offered
    from gpukernel.common.errors import PoolError

    first = lease.slices[0]
    more = first.memory_bytes + 2 * MIB  # a slice is a whole number of MiB
    sizes = sorted(spec.share for spec in STANDARD if spec.share * first.device_memory_bytes > more)
    try:
        offered = [Offered(size, model) for size in sizes]
        chances = await asyncio.wait_for(client.estimate(lease.holder.course, offered), ASK_SECONDS)
    except (PoolError, TimeoutError):
        return sizes[0] if sizes else 0.0
    allowed = (size for size, chance in zip(sizes, chances, strict=True) if chance.state != "refused")
    return next(allowed, 0.0)


def duration_words(seconds: float) -> str:
    """Return a duration for people: 40 s, 3 min, 2 h."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{round(seconds / 3600, 1):g} h"
