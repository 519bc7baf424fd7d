"""The kubelet's side of the driver: the socket on which it finds the plugin, and the one on which it has claims prepared and watches health.

Guarantees
----------
* Both sockets are this account's alone (mode 0600).  A socket that a killed plugin left is replaced.
* A claim that fails says so in its own answer; the others of the same call are prepared.
* The registration's socket appears last and goes first, so the kubelet calls nobody who does not listen yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from gpukernel.common.fork_safe_grpc import grpc  # before the messages import it

# isort: split
import gpukernel.engines.kubernetes.proto.dra_beta_pb2 as beta_pb
import gpukernel.engines.kubernetes.proto.dra_beta_pb2_grpc as beta_rpc
import gpukernel.engines.kubernetes.proto.dra_health_pb2_grpc as health_rpc
import gpukernel.engines.kubernetes.proto.dra_pb2 as pb
import gpukernel.engines.kubernetes.proto.dra_pb2_grpc as rpc
import gpukernel.engines.kubernetes.proto.registration_pb2 as registration_pb
import gpukernel.engines.kubernetes.proto.registration_pb2_grpc as registration_rpc
from gpukernel.engines.kubernetes.health import DeviceHealth
from gpukernel.engines.kubernetes.names import DRIVER
from gpukernel.engines.kubernetes.preparing import NotPrepared, Preparing

__all__ = ["VERSIONS", "KubeletPlugin", "listening"]

log = logging.getLogger(__name__)

VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""Services of the plugin's socket, as the kubelet names them."""

AT_ONCE = 8
"""Claims of one call that are prepared at the same time."""
STOP_SECONDS = 5.0


class _Claims:
    """The calls, in the messages of either version, whose fields are the same."""

    def __init__(self, preparing: Preparing, messages: Any) -> None:
        self._preparing, self._messages = preparing, messages

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:
        reply, places = self._messages.NodePrepareResourcesResponse(), asyncio.Semaphore(AT_ONCE)

        async def prepare(claim: Any) -> None:
            async with places:
                reply.claims[claim.uid].CopyFrom(await self._prepared(claim))

        async with asyncio.TaskGroup() as group:
            for claim in request.claims:
                group.create_task(prepare(claim))
        return reply

    async def _prepared(self, claim: Any) -> Any:
        answer = self._messages.NodePrepareResourceResponse()
        try:
            allocation, names = await self._preparing.prepare(claim.namespace, claim.name, claim.uid)
        except NotPrepared as error:
            log.warning("claim %s/%s: %s", claim.namespace, claim.name, error)
            answer.error = str(error)
            return answer
        except Exception as error:
            log.exception("claim %s/%s", claim.namespace, claim.name)
            answer.error = f"The plugin failed: {type(error).__name__}."
            return answer
        for result in allocation.results:
            device = answer.devices.add(
                request_names=[result.request], pool_name=result.pool, device_name=result.device
            )
            if name := names.pop(result.request, ""):  # all of a request's devices are in one CDI device
                device.cdi_device_ids.append(name)
        return answer

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        reply = self._messages.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            answer = self._messages.NodeUnprepareResourceResponse()
            try:
                await self._preparing.give_up(claim.uid)
            except NotPrepared as error:
                answer.error = str(error)
            reply.claims[claim.uid].CopyFrom(answer)
        return reply


class _Registration:
    """The answers about the plugin itself; `registered` is set while the kubelet has it."""

    def __init__(self, endpoint: Path) -> None:
        self._endpoint = endpoint
        self.registered = asyncio.Event()

    async def GetInfo(self, request: Any, context: Any) -> registration_pb.PluginInfo:
        return registration_pb.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(self._endpoint), supported_versions=VERSIONS
        )

    async def NotifyRegistrationStatus(
        self, request: registration_pb.RegistrationStatus, context: Any
    ) -> registration_pb.RegistrationStatusResponse:
        if request.plugin_registered:
            log.info("the kubelet has registered %s", DRIVER)
            self.registered.set()
        else:
            log.error("the kubelet does not take %s: %s", DRIVER, request.error)
            self.registered.clear()
        return registration_pb.RegistrationStatusResponse()


@contextlib.asynccontextmanager
async def listening(socket: Path, *adders: Any) -> AsyncIterator[None]:
    """Serve gRPC at a Unix socket of mode 0600 within the context; each of `adders` adds a service to the server.

    Raises
    ------
    OSError
        The socket cannot be made there.
    """
    socket.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(socket)  # a plugin that was killed
    server = grpc.aio.server()
    for add in adders:
        add(server)
    before = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
    except RuntimeError:  # gRPC's word for it
        raise OSError(f"{socket} cannot be listened at; its path has at most 107 characters") from None
    finally:
        os.umask(before)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket)
        await server.stop(STOP_SECONDS)


class KubeletPlugin:
    """The plugin of one node.

    Parameters
    ----------
    plugins, registry
        The kubelet's folders of plugins' sockets, and of those on which plugins are found.
    """

    def __init__(self, preparing: Preparing, health: DeviceHealth, plugins: Path, registry: Path) -> None:
        self._preparing, self._health = preparing, health
        self._socket = plugins / DRIVER / "dra.sock"
        self._found_by = registry / f"{DRIVER}-reg.sock"
        self._registration = _Registration(self._socket)

    async def run(self, every: float = 5.0) -> None:
        """Serve, and refresh lease files every so many seconds, until this is cancelled."""
        claims, beta = _Claims(self._preparing, pb), _Claims(self._preparing, beta_pb)
        async with (
            listening(
                self._socket,
                lambda server: rpc.add_DRAPluginServicer_to_server(claims, server),  # type: ignore[arg-type]
                lambda server: beta_rpc.add_DRAPluginServicer_to_server(beta, server),  # type: ignore[arg-type]
                lambda server: health_rpc.add_DRAResourceHealthServicer_to_server(self._health, server),  # type: ignore[arg-type]
            ),
            listening(
                self._found_by,
                lambda server: registration_rpc.add_RegistrationServicer_to_server(
                    self._registration,  # type: ignore[arg-type]
                    server,
                ),
            ),
        ):
            log.info("listening at %s, to be found at %s", self._socket, self._found_by)
            try:
                await self._preparing.run(every)
            finally:
                self._health.close()
