"""The numbers that an agent gives its devices: kept by UUID in its state directory, so that a driver that counts anew moves none.

Guarantees
----------
* A device keeps its number for as long as another one does not need it; a number under which workers may live is given to no other device.
* A simulated device has a made-up UUID: the same after every start, and another one on every server.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from gpukernel.agent.inventory import Inventory
from gpukernel.remoting.worker import DeviceDescription

__all__ = ["made_up_uuid", "numbered", "numbers_of_workers"]

FILE = "devices.json"


def made_up_uuid(machine: str, server: str, model: str, ordinal: int) -> str:
    """Return the UUID of a simulated device, `ordinal` among those of its model, in the form of NVIDIA's."""
    digits = hashlib.sha256("\n".join((machine, server, model, str(ordinal))).encode()).hexdigest()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"


def numbers_of_workers(state: Path) -> set[int]:
    """Return the numbers of the devices on which workers or slices of an earlier agent may live, by what it left below `state`."""
    names = [path.name for path in (state / "workers").glob("*-*")]
    names += [path.stem for path in (state / "direct").glob("*-*.json")]
    return {int(number) for name in names if (number := name.rpartition("-")[2]).isdigit()}


def numbered(
    inventory: Inventory, state: Path, server: str, machine: str, living: Collection[int]
) -> Inventory:
    """Return `inventory` with the numbers that its devices had before, which are written down in `state`.

    Parameters
    ----------
    server, machine
        The server's name and the identity of its machine, for the UUIDs of simulated devices.
    living
        Numbers under which workers may live.
    """
    found = list(inventory.devices)
    if inventory.simulated:
        ordinals = Counter[str]()
        for place, device in enumerate(found):
            uuid = made_up_uuid(machine, server, device.name, ordinals[device.name])
            found[place] = replace(device, uuid=uuid)
            ordinals[device.name] += 1
    before = _read(state / FILE)
    numbers = _numbers(found, before, living)
    present = {device.uuid for device in found}
    gone = {n: uuid for n, uuid in before.items() if uuid not in present and n not in numbers.values()}
    _write(state / FILE, gone | {number: uuid for uuid, number in numbers.items()})
    devices = sorted((replace(device, index=numbers[device.uuid]) for device in found), key=lambda d: d.index)
    positions = {numbers[device.uuid]: device.index for device in found}
    return replace(inventory, devices=tuple(devices), positions=positions, gone=gone)


def _numbers(
    found: Collection[DeviceDescription], before: Mapping[int, str], living: Collection[int]
) -> dict[str, int]:
    """Return a number for each device, by UUID: the one that it had, or else the driver's where that is free."""
    known = {uuid: number for number, uuid in before.items()}
    numbers = {device.uuid: known[device.uuid] for device in found if device.uuid in known}
    for device in found:
        if device.uuid in numbers:
            continue
        # Of before there were numbers, workers live under the driver's.
        taken = {*numbers.values(), *(living if before else ())}
        wanted = (device.index, *range(len(found) + len(taken)))
        numbers[device.uuid] = next(number for number in wanted if number not in taken)
    return numbers


def _read(path: Path) -> dict[int, str]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return {int(number): str(uuid) for number, uuid in kept.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _write(path: Path, numbers: Mapping[int, str]) -> None:
    new = path.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        json.dump({str(number): numbers[number] for number in sorted(numbers)}, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
