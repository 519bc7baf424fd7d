"""Devices of the pool by what an engine calls them, which their own servers say.

A GPU server that was taken over may say the UUID of another's device.  It is decided over by the pool, or by whom an administrator gave
it to, so an engine knows its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpukernel.common.model import Device

__all__ = ["devices_by"]


def devices_by(name: Callable[[str], str], devices: Iterable[Device], engine: str) -> dict[str, Device]:
    """Return the devices that tell a UUID by the name that `name` makes of it.

    Where several have one name, it is the device's that `engine` decides over, and of those one that works.
    """
    told = [one for one in devices if one.uuid]
    told.sort(key=lambda one: (one.decided_by == engine, not one.trouble))
    return {name(one.uuid): one for one in told}
