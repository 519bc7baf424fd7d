"""Conversion between `model` and the generated messages, in both directions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gpukernel.common.proto.pool_pb2 as pb
from gpukernel.common import model
from gpukernel.common.errors import Refused
from gpukernel.common.i18n import sentence_of, words_from, words_to

__all__ = [
    "device_from",
    "device_to",
    "holder_from",
    "holder_to",
    "lease_from",
    "lease_to",
    "refused_from",
    "refused_to",
    "request_from",
    "request_to",
    "rung_from",
    "rung_to",
    "usage_from",
    "usage_to",
    "waiting_from",
    "waiting_to",
]

_USAGE = tuple(model.Usage.__dataclass_fields__)
_DEVICE = tuple(model.Device.__dataclass_fields__)
_HOLDER = tuple(model.Holder.__dataclass_fields__)


def _fields(source: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def usage_from(message: pb.Usage) -> model.Usage:
    """Return the `model.Usage` of a message."""
    return model.Usage(**_fields(message, _USAGE))


def usage_to(usage: model.Usage) -> pb.Usage:
    """Return the message of `model.Usage`."""
    return pb.Usage(**_fields(usage, _USAGE))


def rung_from(message: pb.Rung) -> model.Rung:
    """Return the `model.Rung` of a message."""
    return model.Rung(message.name, message.used, message.detail)


def rung_to(rung: model.Rung) -> pb.Rung:
    """Return the message of a `model.Rung`."""
    return pb.Rung(name=rung.name, used=rung.used, detail=rung.detail)


def device_from(message: pb.Device) -> model.Device:
    """Return the `model.Device` of a message."""
    found = model.Device(**_fields(message, _DEVICE))
    return found if found.decided_by else replace(found, decided_by="pool")


def device_to(device: model.Device) -> pb.Device:
    """Return the message of a `model.Device`, with the name that people read."""
    return pb.Device(**_fields(device, _DEVICE) | {"id": device.label})


def holder_from(message: pb.Holder) -> model.Holder:
    """Return the `model.Holder` of a message."""
    return model.Holder(**_fields(message, _HOLDER))


def holder_to(holder: model.Holder) -> pb.Holder:
    """Return the message of a `model.Holder`."""
    return pb.Holder(**_fields(holder, _HOLDER))


def request_from(message: pb.SliceRequest) -> model.SliceRequest:
    """Return the `model.SliceRequest` of a message, where zero means not given; NaN and negative numbers stay what they are."""
    return model.SliceRequest(
        share=None if message.share == 0 else message.share,
        memory_bytes=message.memory_bytes or None,
        devices=message.devices or 1,
        model=message.model,
        mode=message.mode or "remote",
        machine=message.machine,
        user=message.user,
        server=message.server,
        device=message.device,
        priority=message.priority or "interactive",
    )


def request_to(request: model.SliceRequest) -> pb.SliceRequest:
    """Return the message of a `model.SliceRequest`."""
    return pb.SliceRequest(
        share=request.share or 0,
        memory_bytes=request.memory_bytes or 0,
        devices=request.devices,
        model=request.model,
        mode=request.mode,
        machine=request.machine,
        user=request.user,
        server=request.server,
        device=request.device,
        priority=request.priority,
    )


def lease_from(message: pb.Lease) -> model.Lease:
    """Return the `model.Lease` of a message."""
    slices = tuple(
        model.Slice(
            device_id=s.device_id,
            server=s.server,
            device_index=s.device_index,
            device_name=s.device_name,
            device_memory_bytes=s.device_memory_bytes,
            memory_bytes=s.memory_bytes,
            weight=s.weight,
            endpoints=tuple(s.endpoints),
            usage=usage_from(s.usage),
            uuid=s.uuid,
            reserve_bytes=s.reserve_bytes,
            lent_bytes=s.lent_bytes,
        )
        for s in message.slices
    )
    return model.Lease(
        id=message.id,
        key=message.key,
        holder=holder_from(message.holder),
        slices=slices,
        state=message.state,
        created=message.created,
        expires=message.expires,
        ttl_seconds=message.ttl_seconds,
        epoch=message.epoch,
        secret=message.secret,
        end_reason=message.end_reason,
        ended=message.ended,
        until=message.until,
        notice=message.notice,
        role=message.role,
        mode=message.mode or "remote",
        decided_by=message.decided_by or "pool",
        ceiling=message.ceiling,
        within=message.within,
        priority=message.priority or ("interactive" if message.decided_by in ("", "pool") else ""),
        gives_way=message.gives_way,
    )


def lease_to(lease: model.Lease, *, with_secret: bool = False) -> pb.Lease:
    """Return the message of a `model.Lease`; the secret goes into it only for the holder itself."""
    slices = [
        pb.Slice(
            device_id=s.label,
            server=s.server,
            device_index=s.device_index,
            device_name=s.device_name,
            device_memory_bytes=s.device_memory_bytes,
            memory_bytes=s.memory_bytes,
            weight=s.weight,
            endpoints=s.endpoints,
            usage=usage_to(s.usage),
            uuid=s.uuid,
            reserve_bytes=s.reserve_bytes,
            lent_bytes=s.lent_bytes,
        )
        for s in lease.slices
    ]
    return pb.Lease(
        id=lease.id,
        key=lease.key,
        holder=holder_to(lease.holder),
        secret=lease.secret if with_secret else "",
        slices=slices,
        created=lease.created,
        expires=lease.expires,
        epoch=lease.epoch,
        state=lease.state,
        end_reason=lease.end_reason,
        ended=lease.ended,
        ttl_seconds=lease.ttl_seconds,
        until=lease.until,
        notice=lease.notice,
        role=lease.role,
        mode=lease.mode,
        decided_by=lease.decided_by,
        ceiling=lease.ceiling,
        within=lease.within,
        priority=lease.priority,
        gives_way=lease.gives_way,
    )


def waiting_from(message: pb.Waiting) -> model.Waiting:
    """Return the `model.Waiting` of a message."""
    return model.Waiting(
        key=message.key,
        holder=holder_from(message.holder),
        slice=request_from(message.slice),
        position=message.position,
        since=message.since,
        estimate_seconds=message.estimate_seconds,
        reason=words_from(message.words, message.reason),
    )


def waiting_to(waiting: model.Waiting) -> pb.Waiting:
    """Return the message of a `model.Waiting`."""
    return pb.Waiting(
        key=waiting.key,
        holder=holder_to(waiting.holder),
        slice=request_to(waiting.slice),
        position=waiting.position,
        since=waiting.since,
        estimate_seconds=waiting.estimate_seconds,
        reason=waiting.reason,
        words=words_to(waiting.reason),
    )


def refused_from(message: pb.Refused) -> Refused:
    """Return the error of a message, with its words."""
    return Refused(message.code, words_from(message.words, message.sentence))


def refused_to(refusal: Refused) -> pb.Refused:
    """Return the message of a refusal."""
    sentence = sentence_of(refusal)
    return pb.Refused(code=refusal.code, sentence=sentence, words=words_to(sentence))
