"""Bounds of fields: every field that can grow has one, and the check finds each that is passed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import gpukernel.common.proto.admin_pb2 as admin_pb
import gpukernel.common.proto.engines_pb2 as engines_pb
import gpukernel.common.proto.hub_pb2 as hub_pb
import gpukernel.common.proto.pool_pb2 as pb
import gpukernel.common.proto.reservations_pb2 as reservations_pb
import gpukernel.common.proto.teaching_pb2 as teaching_pb
from gpukernel.pool.doors.field_bounds import FIELDS, MESSAGES, Unfit, bound_of, decode, is_text, largest

MODULES = (admin_pb, engines_pb, hub_pb, pb, reservations_pb, teaching_pb)


def asked() -> dict[str, Descriptor]:
    """The messages that callers send, by the names of RPCs."""
    return {
        f"{service.name}/{method.name}": method.input_type
        for module in MODULES
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def reachable(descriptor: Descriptor, seen: set[str]) -> Iterator[FieldDescriptor]:
    if descriptor.full_name not in seen:
        seen.add(descriptor.full_name)
        for field in descriptor.fields:
            yield field
            if field.message_type is not None:
                yield from reachable(field.message_type, seen)


def growing() -> list[tuple[FieldDescriptor, str]]:
    """Every field that a message of a caller can make larger, and ``[]`` for the texts in a repeated one."""
    seen: set[str] = set()
    fields = [field for descriptor in asked().values() for field in reachable(descriptor, seen)]
    found = [(field, "") for field in fields if field.is_repeated or is_text(field)]
    return found + [(field, "[]") for field in fields if field.is_repeated and is_text(field)]


def test_every_field_that_can_grow_has_a_bound_and_no_bound_is_of_nothing() -> None:
    missing = []
    for field, entry in growing():
        try:
            assert bound_of(field, entry) > 0
        except KeyError as name:
            missing.append(name.args[0])
    assert missing == []
    assert len(FIELDS) == len(growing())
    assert set(MESSAGES) <= {descriptor.name for descriptor in asked().values()}


def wrapped(field: FieldDescriptor, fill: Message) -> Message:
    """The message of an RPC in which `fill` lies."""
    roots = {descriptor.full_name: GetMessageClass(descriptor) for descriptor in asked().values()}
    if (root := roots.get(fill.DESCRIPTOR.full_name)) is not None:
        assert isinstance(fill, root)
        return fill
    for descriptor in [*roots.values()]:
        for outer in reachable(descriptor.DESCRIPTOR, set()):
            if outer.message_type is not None and outer.message_type.full_name == fill.DESCRIPTOR.full_name:
                message = GetMessageClass(outer.containing_type)()
                if outer.is_repeated:
                    getattr(message, outer.name).add().CopyFrom(fill)
                else:
                    getattr(message, outer.name).CopyFrom(fill)
                return wrapped(field, message)
    raise AssertionError(field.full_name)


def filled(field: FieldDescriptor, entry: str, count: int) -> Message:
    """A message of the field's own type in which it is `count` long."""
    assert field.containing_type is not None
    message = GetMessageClass(field.containing_type)()
    if field.is_repeated and not entry:
        values = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for number in range(count):
                values[str(number)] = ""
        elif field.message_type is not None:
            for _ in range(count):
                values.add()
        else:
            values.extend(["x" if is_text(field) else 1] * count)
    elif entry:
        getattr(message, field.name).append("x" * count)
    else:
        setattr(message, field.name, "x" * count)
    return message


@pytest.mark.parametrize(
    ("field", "entry"),
    [pytest.param(f, e, id=f"{f.full_name.removeprefix('gpukernel.v1.')}{e}") for f, e in growing()],
)
def test_one_more_than_the_bound_is_refused_with_both_figures(field: FieldDescriptor, entry: str) -> None:
    assert field.containing_type is not None
    most = bound_of(field, entry)
    if field.containing_type.GetOptions().map_entry:
        outer = pb.DESCRIPTOR.pool.FindMessageTypeByName(field.containing_type.full_name.rpartition(".")[0])
        message = GetMessageClass(outer)()
        text = "x" * (most + 1)
        message.bounds.update({text: ""} if field.name == "key" else {"devices": text})
    else:
        message = wrapped(field, filled(field, entry, most + 1))
    with pytest.raises(Unfit, match=r"has at most \d+ .*; this .* has \d+\.$"):
        decode(type(message), message.SerializeToString())


def test_what_is_just_within_the_bounds_arrives_whole() -> None:
    message = pb.HoldRequest(hold=["x" * 64] * 1000, let_go=["y"] * 1000)
    assert decode(pb.HoldRequest, message.SerializeToString()) == message


def test_a_message_that_is_too_large_is_refused_before_it_is_read() -> None:
    most = largest(pb.RenewRequest)
    with pytest.raises(Unfit, match=f"at most {most} bytes; this one has {most + 1}"):
        decode(pb.RenewRequest, b"\xff" * (most + 1))  # no message at all
    with pytest.raises(Unfit, match="no message RenewRequest"):
        decode(pb.RenewRequest, b"\xff")
