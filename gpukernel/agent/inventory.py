"""The devices of this machine: NVIDIA's as NVML shows them, or simulated ones, with the numbers that they have on this server.

Guarantees
----------
* Numbers are kept by UUID in the agent's state directory: a driver that counts anew moves none.  A device keeps its number for as long as
  another one does not need it; a number under which workers may live is given to no other device.
* A simulated device has a made-up UUID: the same after every start, and another one on every server.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpukernel import native
from gpukernel.common.model import Device
from gpukernel.remoting.worker import DeviceDescription, WorkerStartFailed, list_devices

__all__ = [
    "Inventory",
    "NoDevices",
    "made_up_uuid",
    "numbered",
    "numbers_of_workers",
    "offered_devices",
    "real",
    "simulated",
]


# What a worker is told of the agent's environment, in which an administrator may have put secrets.
_PASSED_ON = {
    "PATH",
    "HOME",
    "LANG",
    "TZ",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "TMPDIR",
    "GPUKERNEL_LIBRARIES",
    "GPUKERNEL_OPENBLAS",
    "GPUKERNEL_SIMGPU_COPIES",
    "GPUKERNEL_SIMGPU_TIER",
    "GPUKERNEL_SIMGPU_TIER_LOG",
}
_PASSED_ON_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "MALLOC_", "ASAN_", "UBSAN_", "TSAN_", "LSAN_")


class NoDevices(Exception):
    """An error: there is nothing to offer; the text is a sentence that says what to do."""


@dataclass(frozen=True)
class Inventory:
    """Devices, and the way in which a worker gets at one of them.

    A device's index is its number on this server, which stays when the driver counts anew (`numbered`).

    Attributes
    ----------
    simulated, processes
        Of simulated devices their specification, and the directory where those who use them are listed.
    positions
        The indices of devices in the CUDA library, by number; those that are not there are the numbers themselves.
    gone
        The UUIDs of devices that this server had and has no more, by number.
    """

    devices: tuple[DeviceDescription, ...]
    library: str
    simulated: str = ""
    processes: str = ""
    positions: Mapping[int, int] = field(default_factory=dict)
    gone: Mapping[int, str] = field(default_factory=dict)

    def uuid(self, number: int) -> str:
        """Return the UUID of a device that is there or was; empty for another number."""
        here = (device.uuid for device in self.devices if device.index == number)
        return next(here, self.gone.get(number, ""))

    def number(self, uuid: str) -> int | None:
        """Return the number of the device with a UUID that is there or was."""
        here = (device.index for device in self.devices if device.uuid == uuid)
        return next(here, next((number for number, one in self.gone.items() if one == uuid), None))

    def position(self, number: int) -> int:
        """Return the index of a device in the CUDA library that shows all of them."""
        return self.positions.get(number, number)

    def worker_device(self, index: int) -> int:
        """Return the index of device `index` in the CUDA library that its worker loads."""
        return self.position(index) if self.simulated else 0

    def worker_environment(self, index: int) -> Mapping[str, str]:
        """Return the environment of a worker on device `index`, which sees no other real device."""
        environment = {
            k: v for k, v in os.environ.items() if k in _PASSED_ON or k.startswith(_PASSED_ON_PREFIXES)
        }
        if self.simulated:
            environment.pop("CUDA_VISIBLE_DEVICES", None)  # it selects among real devices
            return {
                **environment,
                "GPUKERNEL_SIMGPU": self.simulated,
                "GPUKERNEL_SIMGPU_PROCESSES": self.processes,
            }
        return {**environment, "CUDA_VISIBLE_DEVICES": self.uuid(index)}


def simulated(specification: str) -> Inventory:
    """Return simulated devices, for example ``v100:2,t4``.

    Raises
    ------
    NoDevices
        When the specification names a model that does not exist.
    """
    library = native.simgpu_library()
    try:
        found = list_devices(library, Inventory((), str(library), specification).worker_environment(0))
    except WorkerStartFailed:
        raise NoDevices(
            f"“{specification}” names no simulated GPUs; write MODEL:COUNT, separated by commas, "
            "with v100, v100-16gb, t4, a100, a100-80gb, h100, h200, b200 or rtx5090."
        ) from None
    return Inventory(tuple(found), str(library), specification)


def real() -> Inventory:
    """Return this machine's NVIDIA GPUs.

    Raises
    ------
    NoDevices
        When there is no NVIDIA driver, or no GPU.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoDevices(
            f"This machine has no usable NVIDIA GPU ({error}); install the driver, or use --simulate v100:2."
        ) from None
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            found.append(
                DeviceDescription(
                    index=index,
                    name=pynvml.nvmlDeviceGetName(handle),
                    uuid=pynvml.nvmlDeviceGetUUID(handle),
                    memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
                    compute_capability=f"{major}.{minor}",
                    multiprocessors=0,
                )
            )
    finally:
        pynvml.nvmlShutdown()
    if not found:
        raise NoDevices("NVML shows no GPU on this machine; use --simulate v100:2 for simulated ones.")
    return Inventory(tuple(found), str(Path("libcuda.so.1")))


# --- numbers ---

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


def offered_devices(inventory: Inventory, server: str) -> list[Device]:
    """Return the devices of an inventory as the pool is told of them."""
    return [
        Device(
            id=f"{server}/{d.index}",
            server=server,
            index=d.index,
            name=d.name,
            memory_bytes=d.memory_bytes,
            compute_capability=d.compute_capability,
            multiprocessors=d.multiprocessors,
            uuid=d.uuid,
        )
        for d in inventory.devices
    ]
