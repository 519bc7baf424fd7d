"""The health of this server's devices: NVML's word, and what an administrator wrote down.

A device is out of order while NVML answers for it with an error, after a critical error (XID) of the device itself until the agent is started
again, and while a file ``faults/NUMBER`` or ``faults/UUID`` lies in the agent's state directory: its text is the sentence that people see.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from gpukernel.agent.inventory import Inventory

__all__ = ["PROGRAM_ERRORS", "Health"]

LONGEST_SENTENCE = 200

PROGRAM_ERRORS = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that a faulty program causes on a sound device (NVIDIA, “XID Errors”, table of causes): its own context ends, nothing else."""


class Health:
    """The check of the devices of `inventory`; `state` is the agent's state directory."""

    def __init__(self, inventory: Inventory, state: Path) -> None:
        self._inventory = inventory
        self._folder = state / "faults"
        self._lasting: dict[int, str] = {}
        self._nvml: Any = None
        self._handles: dict[int, Any] = {}
        self._events: Any = None
        if not inventory.simulated:
            with contextlib.suppress(Exception):  # an inventory without NVML is checked by hand only
                self._open()

    def _open(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml = pynvml
        for device in self._inventory.devices:
            self._handles[device.index] = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
        try:
            events = pynvml.nvmlEventSetCreate()
            for handle in self._handles.values():
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
            self._events = events
        except pynvml.NVMLError:
            self._events = None  # some devices and virtual machines have no events: errors still show

    def check(self) -> dict[int, str]:
        """Return a sentence for each device that does not work now; takes some milliseconds a device."""
        faults = dict(self._lasting)
        if self._nvml is not None:
            faults |= self._ask_nvml()
        for device in self._inventory.devices:
            for name in filter(None, (str(device.index), device.uuid)):
                path = self._folder / name
                try:
                    text = path.read_text(errors="replace")
                except FileNotFoundError:
                    continue
                except OSError as error:
                    text = f"{path} cannot be read: {error.strerror}"
                faults[device.index] = " ".join(text.split())[:LONGEST_SENTENCE] or "taken out by hand"
        return faults

    def _ask_nvml(self) -> dict[int, str]:
        nvml = self._nvml
        self._read_events()
        faults = dict(self._lasting)
        for index, handle in self._handles.items():
            try:
                nvml.nvmlDeviceGetMemoryInfo(handle)
                nvml.nvmlDeviceGetUtilizationRates(handle)
            except nvml.NVMLError_NotSupported:
                continue
            except nvml.NVMLError as error:
                faults[index] = f"NVML: {error}"
        return faults

    def _read_events(self) -> None:
        nvml = self._nvml
        while self._events is not None:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError_Timeout:
                return
            except nvml.NVMLError:
                self._events = None
                return
            if event.eventData in PROGRAM_ERRORS:
                continue
            try:
                uuid = nvml.nvmlDeviceGetUUID(event.device)
            except nvml.NVMLError:
                uuid = ""
            for device in self._inventory.devices:
                # An error that no device claims (it fell off the bus) takes all of them out.
                if uuid in ("", device.uuid):
                    self._lasting[device.index] = (
                        f"critical error XID {event.eventData}; restart the agent when it is mended"
                    )
