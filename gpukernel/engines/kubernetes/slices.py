"""ResourceSlices of the devices that Kubernetes decides over, as data; `gpukernel.engines.kubernetes.publisher` writes them.

Each device may be allocated many times and is reachable from every node.  Its capacity ``memory`` is consumed in steps of 1 MiB; a claim
that says no size gets `SliceSettings.share` of the device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpukernel.common.model import Device
from gpukernel.engines.kubernetes.names import DRIVER, POOL, attribute_text, device_name, model_name
from gpukernel.engines.kubernetes.quantities import MIB, quantity

__all__ = [
    "MOST_DEVICES",
    "SliceSettings",
    "arranged",
    "is_passing",
    "slice_manifest",
    "slice_name",
    "spec_of",
]

MOST_DEVICES = 64
"""Devices of one ResourceSlice, where any of them may have a taint."""

DRAINED, FAILED = f"{DRIVER}/drained", f"{DRIVER}/failed"
"""Keys of taints: no new claims; and one that ends pods, since there is no memory behind their claims any more."""


@dataclass(frozen=True)
class SliceSettings:
    """The settings by which devices are shown.

    Attributes
    ----------
    share
        Part of a device that a claim without a size gets, and ``limits: gpukernel.io/v100-slice: 1`` too.
    round_trip
        The class of the way to GPU servers, such as ``near``, by the beginnings of their names; an attribute for selectors.
    driver_versions
        NVIDIA's driver on GPU servers, by the beginnings of their names.
    """

    share: float = 0.02
    round_trip: Mapping[str, str] = field(default_factory=dict)
    driver_versions: Mapping[str, str] = field(default_factory=dict)


def _of_server(values: Mapping[str, str], server: str) -> str:
    fitting = [begin for begin in values if server.startswith(begin)]
    return values[max(fitting, key=len)] if fitting else ""


def _semantic(version: str) -> str:
    """Return a version as three numbers without leading zeros (``570.86.10``), the form that the API takes; empty where it is none."""
    parts = re.findall(r"\d+", version)[:3]
    return ".".join(str(int(part)) for part in [*parts, "0", "0"][:3]) if parts else ""


def _attributes(device: Device, settings: SliceSettings) -> dict[str, Any]:
    simulated = device.name.endswith("(simulated)")
    strings = {
        "uuid": device.uuid,
        "model": model_name(device.name),
        "server": device.server,
        "roundTrip": _of_server(settings.round_trip, device.server),
    }
    versions = {
        "computeCapability": _semantic(device.compute_capability),
        "driverVersion": _semantic(_of_server(settings.driver_versions, device.server)),
    }
    return {
        **{name: {"string": attribute_text(text)} for name, text in strings.items() if text},
        **{name: {"version": text} for name, text in versions.items() if text},
        "multiprocessors": {"int": device.multiprocessors},
        "simulated": {"bool": simulated},
    }


def is_passing(trouble: str) -> bool:
    """Return whether what is said of a device keeps only new leases away: memory behind those that are there is still theirs."""
    return trouble in ("", "drained", "away") or "being stopped" in trouble


def _taints(device: Device) -> list[dict[str, str]]:
    """Return why new claims, or any, have no place on a device.

    A server that is away may be back in a moment and its workers live on, so nobody is sent away for that.
    """
    if not device.trouble and device.decided_by == "kubernetes" and not device.next_decider:
        return []
    word = re.sub(r"[^A-Za-z0-9]+", "-", device.trouble or "leaving").strip("-")[:63].strip("-")
    if is_passing(device.trouble):
        return [{"key": DRAINED, "value": word, "effect": "NoSchedule"}]
    return [{"key": FAILED, "value": word, "effect": "NoExecute"}]


def _shown(device: Device, settings: SliceSettings) -> dict[str, Any]:
    memory = device.memory_bytes // MIB * MIB
    default = max(MIB, int(device.memory_bytes * settings.share) // MIB * MIB)
    shown: dict[str, Any] = {
        "name": device_name(device.uuid),
        "allowMultipleAllocations": True,
        "attributes": _attributes(device, settings),
        "capacity": {
            "memory": {
                "value": quantity(memory),
                "requestPolicy": {
                    "default": quantity(default),
                    "validRange": {"min": "1Mi", "max": quantity(memory), "step": "1Mi"},
                },
            }
        },
    }
    if taints := _taints(device):
        shown["taints"] = taints
    return shown


def arranged(
    devices: Iterable[Device], settings: SliceSettings, before: Sequence[Sequence[str]] = ()
) -> list[list[dict[str, Any]]]:
    """Return the devices of each ResourceSlice.

    A device stays in the slice where it was `before` (names of devices, by slice), so that a change of one device is a change of one
    slice.  Empty slices at the end are left out, so there may be none.
    """
    shown = {
        one["name"]: one
        for one in (
            _shown(device, settings)
            for device in sorted(devices, key=lambda one: (one.server, one.index))
            if device.uuid and device.decided_by == "kubernetes" and device.memory_bytes >= 2 * MIB
        )
    }
    slices: list[list[dict[str, Any]]] = []
    for names in before:
        slices.append([shown.pop(name) for name in names if name in shown][:MOST_DEVICES])
    for one in shown.values():
        room = next((held for held in slices if len(held) < MOST_DEVICES), None)
        if room is None:
            slices.append(room := [])
        room.append(one)
    while slices and not slices[-1]:
        slices.pop()
    return slices


def slice_name(number: int) -> str:
    """Return the name of a ResourceSlice."""
    return f"{POOL}-{number}"


def spec_of(devices: list[dict[str, Any]], generation: int, count: int) -> dict[str, Any]:
    """Return what a ResourceSlice says: `count` slices of the pool have this `generation`."""
    return {
        "driver": DRIVER,
        "pool": {"name": POOL, "generation": generation, "resourceSliceCount": count},
        "allNodes": True,
        "devices": devices,
    }


def slice_manifest(number: int, spec: dict[str, Any], version: str = "") -> dict[str, Any]:
    """Return a ResourceSlice; `version` is that of the one that it replaces."""
    metadata: dict[str, Any] = {"name": slice_name(number), "labels": {"app.kubernetes.io/name": POOL}}
    if version:
        metadata["resourceVersion"] = version
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
