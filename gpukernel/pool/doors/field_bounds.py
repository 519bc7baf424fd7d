"""Bounds of every message that a caller may send: its size, the length of each text, and the entries of each repeated field.

One table for all RPCs, and one generic check that runs before a handler sees the message.  A field without a bound is refused by a test
that walks the descriptors (``tests/pool/doors``), so a new field cannot be forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

__all__ = ["FIELDS", "LARGEST_MESSAGE", "MESSAGES", "Unfit", "bound_of", "decode", "is_text", "largest"]

NAME = 1024
"""Characters of a name, a key or an id; handlers allow 256 of most, and say so with the figure."""

LEASES_IN_A_MESSAGE = 1000
"""Leases that one message of a ``Hold`` stream may name."""

WORKERS_IN_A_MESSAGE = 8192
"""Workers that an agent may report in one message; 64 devices with 128 slices each."""

KIB = 1024
LARGEST_MESSAGE = 4 * KIB * KIB
"""Bytes of the largest message of all."""

USUAL_MESSAGE = 64 * KIB
"""Bytes of a message that `MESSAGES` does not name."""

MESSAGES = {
    "HoldRequest": 128 * KIB,
    "ImportCoursesRequest": LARGEST_MESSAGE,
    "SetGroupsRequest": 512 * KIB,
    "CourseChange": 256 * KIB,
    "AgentMessage": LARGEST_MESSAGE,
}
"""Bytes of the messages that may be larger than others, by the type that an RPC takes."""

FIELDS = {
    # pool.proto
    "AcquireRequest.key": NAME,
    "AcquireRequest.within": 64,
    "AcquireRequest.within_secret": 128,
    "SliceRequest.model": NAME,
    "SliceRequest.mode": 16,
    "SliceRequest.machine": NAME,
    "SliceRequest.server": NAME,
    "SliceRequest.device": NAME,
    "SliceRequest.priority": 16,
    "Holder.person": NAME,
    "Holder.server": NAME,
    "Holder.course": NAME,
    "Holder.description": NAME,
    "HoldRequest.hold": LEASES_IN_A_MESSAGE,
    "HoldRequest.hold[]": 64,
    "HoldRequest.let_go": LEASES_IN_A_MESSAGE,
    "HoldRequest.let_go[]": 64,
    "RenewRequest.lease_id": NAME,
    "ReleaseRequest.lease_id": NAME,
    "ReleaseRequest.reason": 4096,
    "InterruptRequest.lease_id": NAME,
    "ResizeRequest.lease_id": NAME,
    "ListLeasesRequest.key": NAME,
    "ListLeasesRequest.decided_by": 16,
    # engines.proto
    "AcquirePlacedRequest.engine": 16,
    "AcquirePlacedRequest.key": NAME,
    "AcquirePlacedRequest.placed_on": 64,
    "PlacedOn.uuid": 64,
    "ReleasePlacedRequest.engine": 16,
    "ReleasePlacedRequest.key": NAME,
    "ReleasePlacedRequest.reason": 4096,
    "ListPlacedRequest.engine": 16,
    "ListPlacedRequest.key": NAME,
    # pool.proto: agents
    "Register.server": NAME,
    "Register.devices": 1024,
    "Register.workers": WORKERS_IN_A_MESSAGE,
    "Register.direct_machine": NAME,
    "Register.machine": 64,
    "Register.place": 64,
    "Register.instance": 64,
    "Register.proof": 64,
    "Register.rungs": 32,
    "Rung.name": 64,
    "Rung.detail": 1024,
    "Device.id": NAME,
    "Device.server": NAME,
    "Device.name": NAME,
    "Device.trouble": 4096,
    "Device.compute_capability": 16,
    "Device.uuid": 64,
    "Device.decided_by": 16,
    "Device.next_decider": 16,
    "WorkerState.lease_id": 64,
    "WorkerState.endpoints": 16,
    "WorkerState.endpoints[]": 512,
    "WorkerState.device": 64,
    "Heartbeat.workers": WORKERS_IN_A_MESSAGE,
    "Heartbeat.faults": 1024,
    "DeviceFault.sentence": 4096,
    "DeviceFault.device": 64,
    "WorkerStarting.lease_id": 64,
    "WorkerStarting.device": 64,
    "WorkerReady.lease_id": 64,
    "WorkerReady.endpoints": 16,
    "WorkerReady.endpoints[]": 512,
    "WorkerReady.device": 64,
    "WorkerEnded.lease_id": 64,
    "WorkerEnded.reason": 4096,
    "WorkerEnded.device": 64,
    "EndLease.lease_id": 64,
    "EndLease.reason": 4096,
    "Leaving.reason": 4096,
    "WorkerLimited.lease_id": 64,
    "WorkerLimited.device": 64,
    # admin.proto
    "SetQuotaRequest.subject": 300,
    "SetQuotaRequest.bounds": 32,
    "SetQuotaRequest.BoundsEntry.key": 64,
    "SetQuotaRequest.BoundsEntry.value": 64,
    "ImportCoursesRequest.yaml": LARGEST_MESSAGE,
    "CreateTokenRequest.name": NAME,
    "CreateTokenRequest.person": NAME,
    "CreateTokenRequest.scope": 64,
    "RevokeTokenRequest.id": NAME,
    "RenewTokenRequest.id": NAME,
    "DrainRequest.server": NAME,
    "DelegateRequest.device": NAME,
    "DelegateRequest.to": 64,
    "ForgetGpuServerRequest.server": NAME,
    "ResetGpuServerRequest.server": NAME,
    "AnnounceDevicesRequest.supply": 64,
    "AnnounceDevicesRequest.devices": 16,
    "AnnouncedDevices.name": NAME,
    "ReportRequest.course": NAME,
    "ReportRequest.person": NAME,
    # hub.proto
    "EstimateRequest.course": NAME,
    "EstimateRequest.person": NAME,
    "EstimateRequest.sizes": 100,
    "Size.model": NAME,
    "Size.priority": 16,
    "SetGroupsRequest.person": NAME,
    "SetGroupsRequest.groups": 1000,
    "SetGroupsRequest.groups[]": NAME,
    "OpenServerRequest.person": NAME,
    "OpenServerRequest.server": NAME,
    "OpenServerRequest.course": NAME,
    "CloseServerRequest.person": NAME,
    "CloseServerRequest.server": NAME,
    "CloseServerRequest.reason": 4096,
    # reservations.proto
    "ListReservationsRequest.course": NAME,
    "Reservation.id": 64,
    "Reservation.course": NAME,
    "Reservation.days": 7,
    "Reservation.on": 64,
    "Reservation.model": NAME,
    "RemoveReservationRequest.id": 64,
    # teaching.proto
    "QuotaChange.subject": 300,
    "QuotaChange.bounds": 32,
    "QuotaChange.BoundsEntry.key": 64,
    "QuotaChange.BoundsEntry.value": 64,
    "CourseChange.course": NAME,
    "CourseChange.fields": 65_536,
    "MessageToHolder.lease_id": NAME,
    "MessageToHolder.text": 4096,
    "RequestMove.key": NAME,
    "RequestMove.before": NAME,
    "CourseUseRequest.course": NAME,
}
"""Characters of a text, or entries of a repeated field; ``[]`` names the entries themselves, where they are texts.

Some handlers allow less, and say so themselves: no bound here is below one of theirs.
"""


class Unfit(Exception):
    """A refusal: a message is larger than its bounds, or is none; the text is a sentence."""


def largest(message: type[Message]) -> int:
    """Return the bytes that a message of a type may have."""
    return MESSAGES.get(message.DESCRIPTOR.name, USUAL_MESSAGE)


def is_text(field: FieldDescriptor) -> bool:
    """Return whether the values of a field are texts or bytes."""
    return field.cpp_type == FieldDescriptor.CPPTYPE_STRING


def bound_of(field: FieldDescriptor, entry: str = "") -> int:
    """Return the bound of a field, or with ``[]`` of its entries; raises `KeyError` where the table has none."""
    return FIELDS[_name(field) + entry]


def _name(field: FieldDescriptor) -> str:
    assert field.containing_type is not None
    return f"{field.containing_type.full_name.removeprefix('gpukernel.v1.')}.{field.name}"


def decode(kind: type[Message], data: bytes) -> Message:
    """Return the message in `data`.

    Raises
    ------
    Unfit
        With a sentence that names the bound and what was sent.
    """
    name = kind.DESCRIPTOR.name
    if len(data) > (most := largest(kind)):
        raise Unfit(f"A message {name} has at most {most} bytes; this one has {len(data)}.")
    try:
        message = kind.FromString(data)
    except DecodeError:
        raise Unfit(f"That is no message {name} of gpukernel's.") from None
    _checks(kind.DESCRIPTOR)(message)
    return message


_Check = Callable[[Message], None]


class _Field(NamedTuple):
    field: FieldDescriptor
    entries: int  # bound of entries; 0: not repeated
    characters: int  # bound of each text; 0: no texts
    inner: Descriptor | None


@cache
def _fields(descriptor: Descriptor) -> list[_Field]:
    """Return the fields of a message that have to be looked at."""
    found = []
    for field in descriptor.fields:
        inner, many = field.message_type, field.is_repeated
        entries = bound_of(field) if many else 0
        characters = bound_of(field, "[]" if many else "") if is_text(field) else 0
        if entries or characters or inner is not None:
            found.append(_Field(field, entries, characters, inner))
    return found


@cache
def _checks(descriptor: Descriptor) -> _Check:
    """Return the check of one type of message, made once."""
    fields = _fields(descriptor)

    def check(message: Message) -> None:
        for field, entries, characters, inner in fields:
            if entries:
                _check_entries(message, field, entries, characters, inner)
            elif inner is not None:
                if message.HasField(field.name):
                    _checks(inner)(getattr(message, field.name))
            elif len(value := getattr(message, field.name)) > characters:
                _too_long(field, len(value), characters)

    return check


def _check_entries(
    message: Message, field: FieldDescriptor, entries: int, characters: int, inner: Descriptor | None
) -> None:
    values = getattr(message, field.name)
    if len(values) > entries:
        raise Unfit(f"{_name(field)} has at most {entries} entries; this message has {len(values)}.")
    if inner is not None and inner.GetOptions().map_entry:
        key, value = inner.fields_by_name["key"], inner.fields_by_name["value"]
        for one, other in values.items():
            for part, text in ((key, one), (value, other)):
                if is_text(part) and len(text) > (most := bound_of(part)):
                    _too_long(part, len(text), most)
    elif inner is not None:
        check = _checks(inner)
        for value in values:
            check(value)
    elif characters:
        for value in values:
            if len(value) > characters:
                _too_long(field, len(value), characters)


def _too_long(field: FieldDescriptor, length: int, most: int) -> None:
    raise Unfit(f"{_name(field)} has at most {most} characters; this text has {length}.")
