"""The device plugin (v1beta1) for clusters before 1.34: ``limits: gpukernel.io/v100-slice: 1`` by slots that each node counts.

The kubelet chooses slots, and a pod that the pool has no room for fails where a claim would wait: a node knows nothing of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from gpukernel.common.fork_safe_grpc import grpc  # before the messages import it

# isort: split
import gpukernel.engines.kubernetes.proto.device_plugin_pb2 as pb
import gpukernel.engines.kubernetes.proto.device_plugin_pb2_grpc as rpc
import gpukernel.engines.kubernetes.proto.pod_resources_pb2 as resources_pb
import gpukernel.engines.kubernetes.proto.pod_resources_pb2_grpc as resources_rpc
from gpukernel.common.errors import PoolError
from gpukernel.engines.kubernetes.kubelet import listening
from gpukernel.engines.kubernetes.preparing import NotPrepared
from gpukernel.engines.kubernetes.slots import Slots

__all__ = ["DevicePlugin"]

log = logging.getLogger(__name__)

VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
CALL_SECONDS = 10.0
KNOWS_ALL_SECONDS = 600.0
"""Seconds after its start in which a kubelet may not have heard of all its pods: the API server was away."""


class DevicePlugin:
    """The plugin of one resource on one node.

    Parameters
    ----------
    resource
        Its name, such as ``gpukernel.io/v100-slice``.
    plugins
        The kubelet's folder with ``kubelet.sock``; the plugin's socket is made there.
    pod_resources
        The kubelet's socket that tells which devices containers have.
    """

    def __init__(self, slots: Slots, resource: str, plugins: Path, pod_resources: Path) -> None:
        self._slots, self._resource = slots, resource
        self._kubelet, self._pod_resources = plugins / "kubelet.sock", pod_resources
        self._socket = plugins / f"{resource.replace('/', '-')}.sock"
        self._health = UNHEALTHY
        self._changed = asyncio.Condition()

    async def run(self, every: float = 5.0) -> None:
        """Serve, register again whenever the kubelet starts anew, and release what containers have left, until this is cancelled."""
        registered: tuple[int, int] | None = None
        lister: tuple[int, int] | None = None
        async with listening(
            self._socket,
            lambda server: rpc.add_DevicePluginServicer_to_server(self, server),  # type: ignore[arg-type]
        ):
            while True:
                await self._look()
                kubelet = _identity(self._kubelet)
                # A kubelet that starts removes the plugin's socket before it makes its own: begin anew, or it would look for it in vain.
                if not self._socket.exists():
                    return
                if kubelet is not None and kubelet != registered:
                    registered = kubelet if await self._register() else None
                # It lists what containers have before it takes plugins.
                if (known := _identity(self._pod_resources)) != lister:
                    self._slots.begin_anew()
                    lister = known
                with contextlib.suppress(PoolError, grpc.aio.AioRpcError):
                    await self._slots.sweep(self._in_use, _knows_all(lister, time.time()))
                await asyncio.sleep(every)

    async def _look(self) -> None:
        health = HEALTHY if await self._slots.works() else UNHEALTHY
        if health != self._health:
            async with self._changed:
                self._health = health
                self._changed.notify_all()

    async def _register(self) -> bool:
        request = pb.RegisterRequest(
            version=VERSION, endpoint=self._socket.name, resource_name=self._resource
        )
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet}") as channel:
            try:
                await rpc.RegistrationStub(channel).Register(request, timeout=CALL_SECONDS)
            except grpc.aio.AioRpcError as error:
                log.warning("the kubelet does not take %s: %s", self._resource, error.details())
                return False
        log.info("the kubelet has registered %s", self._resource)
        return True

    async def _in_use(self) -> set[str]:
        async with grpc.aio.insecure_channel(f"unix:{self._pod_resources}") as channel:
            stub = resources_rpc.PodResourcesListerStub(channel)
            told = await stub.List(resources_pb.ListPodResourcesRequest(), timeout=CALL_SECONDS)
        return {
            slot
            for pod in told.pod_resources
            for container in pod.containers
            for devices in container.devices
            if devices.resource_name == self._resource
            for slot in devices.device_ids
        }

    # --- the kubelet's calls --------------------------------------------------------------------------------------

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> pb.DevicePluginOptions:
        """Answer that nothing is wanted beyond `Allocate`."""
        return pb.DevicePluginOptions()

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:
        """Tell the slots, and again whenever their health changes."""
        told = ""
        while True:
            async with self._changed:
                while self._health == told:
                    await self._changed.wait()
                told = self._health
            yield pb.ListAndWatchResponse(
                devices=[pb.Device(ID=slot, health=told) for slot in self._slots.names]
            )

    async def GetPreferredAllocation(self, request: Any, context: Any) -> pb.PreferredAllocationResponse:
        """Prefer nothing: a slot is as good as any other."""
        return pb.PreferredAllocationResponse()

    async def PreStartContainer(self, request: Any, context: Any) -> pb.PreStartContainerResponse:
        """Do nothing."""
        return pb.PreStartContainerResponse()

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        """Hold a slice for each container, and tell its variables and mounts; the pod fails with the sentence where there is none."""
        reply = pb.AllocateResponse()
        for container in request.container_requests:
            try:
                edits = await self._slots.start(list(container.devices_ids))
            except NotPrepared as error:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
            answer = reply.container_responses.add()
            for variable in edits["env"]:
                name, _, value = variable.partition("=")
                answer.envs[name] = value
            for one in edits["mounts"]:
                answer.mounts.add(
                    container_path=one["containerPath"], host_path=one["hostPath"], read_only=True
                )
        return reply


def _identity(path: Path) -> tuple[int, int] | None:
    """Return which file a path is now; a kubelet that starts anew makes another socket."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _knows_all(kubelet: tuple[int, int] | None, now: float) -> bool:
    """Return whether a kubelet, by the file of its socket, has started long enough ago to have heard of its pods."""
    return kubelet is not None and now - kubelet[1] / 1e9 > KNOWS_ALL_SECONDS
