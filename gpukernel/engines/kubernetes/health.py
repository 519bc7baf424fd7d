"""The health of devices as the kubelet watches it, and writes it into the status of pods.

Guarantees
----------
* Each answer names all devices that Kubernetes decides over.
* A pool that does not answer makes nothing healthy or unhealthy: the kubelet counts what it has not heard of for 30 s as unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from gpukernel.common.fork_safe_grpc import grpc  # before the messages import it

# isort: split
import gpukernel.engines.kubernetes.proto.dra_health_pb2 as pb
from gpukernel.client.engines import EngineClient
from gpukernel.common.errors import PoolError
from gpukernel.common.model import Device
from gpukernel.engines.kubernetes.names import POOL, device_name
from gpukernel.engines.kubernetes.slices import is_passing

__all__ = ["DeviceHealth", "health_of"]

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two answers; the kubelet forgets after 30."""

MOST_SAID = 1024
"""Characters of a sentence, by the interface."""


def health_of(device: Device) -> tuple[int, str]:
    """Return whether a device is well, and what is to be said of it.

    One whose server is away is unknown: its workers may live on.  A drained one is well until its leases end.
    """
    if not device.trouble:
        return pb.HEALTHY, ""
    if device.trouble == "away":
        return pb.UNKNOWN, f"GPU server {device.server} is away."
    said = f"{device.label}: {device.trouble}."[:MOST_SAID]
    return (pb.HEALTHY if is_passing(device.trouble) else pb.UNHEALTHY), said


class DeviceHealth:
    """The service of the plugin's socket."""

    def __init__(self, pool: EngineClient, every: float = EVERY) -> None:
        self._pool, self._every = pool, every
        self._closed = asyncio.Event()

    def close(self) -> None:
        """End all streams, which would otherwise keep the server from stopping."""
        self._closed.set()

    async def NodeWatchResources(
        self, request: pb.NodeWatchResourcesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.NodeWatchResourcesResponse]:
        """Answer every few seconds, until the kubelet has enough or `close` is called."""
        while not self._closed.is_set():
            try:
                devices = await self._pool.devices()
            except PoolError as error:
                log.warning("the health of devices is not known: %s", error)
            else:
                yield _answer(devices)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), self._every)


def _answer(devices: list[Device]) -> pb.NodeWatchResourcesResponse:
    answer, now = pb.NodeWatchResourcesResponse(), int(time.time())
    for device in devices:
        if device.uuid and device.decided_by == "kubernetes":
            one = answer.devices.add(last_updated_time=now)
            one.device.pool_name, one.device.device_name = POOL, device_name(device.uuid)
            one.health, one.message = health_of(device)  # type: ignore[assignment]
    return answer
