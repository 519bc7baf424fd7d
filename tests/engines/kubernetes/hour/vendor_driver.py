"""A stand-in for a GPU vendor's DRA driver on a node: ``python -m tests.engines.kubernetes.hour.vendor_driver KUBECONFIG NODE COUNT``.

It publishes whole GPUs of the node, which one claim each can have, and prepares them by a CDI file.  What a container gets of a GPU is a
variable with its name.  Each line on stdout says which GPUs are prepared, by claim.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from lightkube import Client, KubeConfig
from lightkube.resources.resource_v1 import DeviceClass, ResourceClaim, ResourceSlice

import gpukernel.engines.kubernetes.proto.dra_pb2 as pb
import gpukernel.engines.kubernetes.proto.dra_pb2_grpc as rpc
import gpukernel.engines.kubernetes.proto.registration_pb2 as registration_pb
import gpukernel.engines.kubernetes.proto.registration_pb2_grpc as registration_rpc

DRIVER, VARIABLE = "gpu.nvidia.com", "VENDORS_GPUS"
PLUGINS, REGISTRY = Path("/var/lib/kubelet/plugins"), Path("/var/lib/kubelet/plugins_registry")
CDI = Path("/var/run/cdi")


class Driver:
    """Both of the node's services."""

    def __init__(self, api: Client, socket: Path) -> None:
        self._api, self._socket = api, socket
        self._prepared: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def _say(self) -> None:
        print(json.dumps(sorted(one for devices in self._prepared.values() for one in devices)), flush=True)

    def GetInfo(self, request: Any, context: Any) -> registration_pb.PluginInfo:
        return registration_pb.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(self._socket), supported_versions=["v1.DRAPlugin"]
        )

    def NotifyRegistrationStatus(
        self, request: registration_pb.RegistrationStatus, context: Any
    ) -> registration_pb.RegistrationStatusResponse:
        return registration_pb.RegistrationStatusResponse()

    def NodePrepareResources(self, request: Any, context: Any) -> Any:
        reply = pb.NodePrepareResourcesResponse()
        for asked in request.claims:
            claim = self._api.get(ResourceClaim, asked.name, namespace=asked.namespace)
            results = [one for one in claim.status.allocation.devices.results if one.driver == DRIVER]
            names = [one.device for one in results]
            edits = {"env": [f"{VARIABLE}={','.join(names)}"]}
            device = {"name": asked.uid, "containerEdits": edits}
            text = json.dumps({"cdiVersion": "0.5.0", "kind": f"{DRIVER}/claim", "devices": [device]})
            (CDI / f"{DRIVER}-{asked.uid}.json").write_text(text)
            for number, one in enumerate(results):
                made = reply.claims[asked.uid].devices.add(
                    request_names=[one.request], pool_name=one.pool, device_name=one.device
                )
                if not number:
                    made.cdi_device_ids.append(f"{DRIVER}/claim={asked.uid}")
            with self._lock:
                self._prepared[asked.uid] = names
                self._say()
        return reply

    def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        reply = pb.NodeUnprepareResourcesResponse()
        for asked in request.claims:
            (CDI / f"{DRIVER}-{asked.uid}.json").unlink(missing_ok=True)
            with self._lock:
                self._prepared.pop(asked.uid, None)
                self._say()
            reply.claims[asked.uid].CopyFrom(pb.NodeUnprepareResourceResponse())
        return reply


def main(kubeconfig: str, node: str, count: str) -> None:
    api = Client(KubeConfig.from_file(kubeconfig).get(), field_manager="vendor")
    for folder in (PLUGINS / DRIVER, CDI):
        folder.mkdir(parents=True, exist_ok=True)
    socket, found_by = PLUGINS / DRIVER / "dra.sock", REGISTRY / f"{DRIVER}-reg.sock"
    for path in (socket, found_by):
        path.unlink(missing_ok=True)
    driver = Driver(api, socket)
    services = (
        (socket, rpc.add_DRAPluginServicer_to_server),
        (found_by, registration_rpc.add_RegistrationServicer_to_server),
    )
    servers = []
    for path, add in services:
        server = grpc.server(ThreadPoolExecutor(4))
        add(driver, server)
        server.add_insecure_port(f"unix:{path}")
        server.start()
        servers.append(server)
    whole: Any = DeviceClass.from_dict(
        {
            "metadata": {"name": DRIVER},
            "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
        }
    )
    devices = [{"name": f"gpu-{number}"} for number in range(int(count))]
    slices: Any = ResourceSlice.from_dict(
        {
            "metadata": {"name": f"{node}-{DRIVER}"},
            "spec": {
                "driver": DRIVER,
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        }
    )
    for one in (whole, slices):
        api.apply(one, force=True)
    with contextlib.suppress(KeyboardInterrupt):
        servers[0].wait_for_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
