"""Reports of agents, checked before anything of them reaches the books: an agent may be one of a GPU server that was taken over.

Guarantees
----------
* An agent's devices are its own server's, each index once, with sizes that the database can count.
* Figures are numbers that the database can keep, and sentences have printable characters only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

import gpukernel.common.proto.pool_pb2 as pb
from gpukernel.common import messages
from gpukernel.common.errors import Refused
from gpukernel.common.logs import one_line
from gpukernel.common.model import Device, Usage
from gpukernel.pool.store.servers import Attachment

__all__ = ["check_register", "reported_devices", "reported_reason", "reported_usage"]

LARGEST_MEMORY = 2**50
LEAST_MEMORY = 2**20
LARGEST_INDEX = 2**16
LONGEST_NAME = 256
UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z-]{8,56}")
LONGEST_REASON = 512
LARGEST_FIGURE = 2**62


def check_register(register: pb.Register) -> None:
    """Check what an agent says of itself.

    Raises
    ------
    Refused
        ``invalid``, with a sentence.
    """
    server = register.server
    if len(server) > 100 or not server.isprintable():
        raise Refused("invalid", "A server's name has 1 to 100 printable characters; choose another --name.")
    own = (register.machine, register.place, register.instance, register.direct_machine)
    if not all(text.isprintable() for text in own):
        raise Refused("invalid", "An agent's machine, place and process have printable characters only.")


def reported_devices(server: str, reported: Iterable[pb.Device]) -> list[Device]:
    """Return the devices of a server.

    Raises
    ------
    Refused
        ``invalid``, with a sentence that names the device.
    """
    found: dict[int, Device] = {}
    uuids: set[str] = set()
    for message in reported:
        device, own = messages.device_from(message), f"{server}/{message.index}"
        if (device.id, device.server) != (own, server):
            raise Refused(
                "invalid",
                f"GPU server {server} offers the device {one_line(device.id)[:120]}; its device {device.index} is {own}.",
            )
        if device.index in found or device.index >= LARGEST_INDEX:
            raise Refused(
                "invalid", f"Devices have numbers below {LARGEST_INDEX}, each its own; {own} has not."
            )
        if device.uuid and (device.uuid in uuids or not UUID.fullmatch(device.uuid)):
            raise Refused(
                "invalid",
                f"Device {own} cannot have the UUID {one_line(device.uuid)[:80]}; it begins with GPU- or MIG-, and each device has its own.",
            )
        uuids.add(device.uuid)
        if not LEAST_MEMORY <= device.memory_bytes <= LARGEST_MEMORY:
            raise Refused(
                "invalid",
                f"Device {own} cannot have {device.memory_bytes} bytes of memory; it is 1 MiB to 1 PiB.",
            )
        if not 1 <= len(device.name) <= LONGEST_NAME or device.multiprocessors >= 2**31:
            raise Refused(
                "invalid",
                f"Device {own} has a name of 1 to {LONGEST_NAME} characters, and fewer than 2³¹ multiprocessors.",
            )
        found[device.index] = replace(
            device,
            id=Attachment.named(server, device.uuid) if device.uuid else own,
            name=one_line(device.name),
            compute_capability=one_line(device.compute_capability),
        )
    return list(found.values())


def reported_reason(sentence: str) -> str:
    """Return a sentence of an agent's as people and logs may have it."""
    return one_line(sentence[:LONGEST_REASON])


def reported_usage(
    workers: Iterable[pb.WorkerState], device: Callable[[str, int], str]
) -> dict[tuple[str, str], Usage]:
    """Return the figures of workers, by lease and device; those that are no counts are left out.

    `device` makes an id of the UUID and the number by which the agent names a device.
    """
    found = {}
    for worker in workers:
        usage = messages.usage_from(worker.usage)
        figures = (getattr(usage, name) for name in Usage.__dataclass_fields__)
        if all(math.isfinite(figure) and 0 <= figure < LARGEST_FIGURE for figure in figures):
            found[worker.lease_id, device(worker.device, worker.device_index)] = usage
    return found
