"""The kubelet's side of the plugin's protocols: it finds sockets in its registry, asks who is there, and has claims prepared."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

import gpukernel.engines.kubernetes.proto.dra_beta_pb2 as beta_pb
import gpukernel.engines.kubernetes.proto.dra_beta_pb2_grpc as beta_rpc
import gpukernel.engines.kubernetes.proto.dra_health_pb2 as health_pb
import gpukernel.engines.kubernetes.proto.dra_health_pb2_grpc as health_rpc
import gpukernel.engines.kubernetes.proto.dra_pb2 as pb
import gpukernel.engines.kubernetes.proto.dra_pb2_grpc as rpc
import gpukernel.engines.kubernetes.proto.registration_pb2 as registration_pb
import gpukernel.engines.kubernetes.proto.registration_pb2_grpc as registration_rpc
from tests.conftest import Pool, eventually
from tests.engines.kubernetes.cluster import Cluster

__all__ = ["Kubelet", "running_kubelet"]


class Kubelet:
    """The kubelet of a node whose folders are below `home`; `process` is the plugin."""

    def __init__(self, home: Path, cluster: Cluster, pool: Pool, *options: str) -> None:
        self.home, self._cluster, self._pool, self._options = home, cluster, pool, options
        self.plugins, self.registry = home / "plugins", home / "registry"
        self.cdi, self.claims = home / "cdi", home / "claims"
        for folder in (self.plugins, self.registry):
            folder.mkdir()
        self.process: subprocess.Popen[bytes] | None = None
        self._channel: grpc.Channel | None = None

    def start(self) -> None:
        """Start the plugin, and register it as soon as its socket is there."""
        words = ["--plugins", str(self.plugins), "--registry", str(self.registry), "--cdi", str(self.cdi)]
        words += ["--claims", str(self.claims), "--every", "0.3", *self._options]
        self.process = self._cluster.start(self._pool, "node", *words)
        self.register()

    def kill(self) -> None:
        """End the plugin without giving it a chance."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.forget()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(20)
        self.forget()

    def forget(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def register(self) -> registration_pb.PluginInfo:
        """Find the plugin, ask who it is, and say that it is registered."""

        def asked() -> registration_pb.PluginInfo | None:
            for found in self.registry.glob("*.sock"):
                with grpc.insecure_channel(f"unix:{found}") as channel:
                    stub = registration_rpc.RegistrationStub(channel)
                    try:
                        info = stub.GetInfo(registration_pb.InfoRequest(), timeout=2)
                        stub.NotifyRegistrationStatus(
                            registration_pb.RegistrationStatus(plugin_registered=True), timeout=2
                        )
                    except grpc.RpcError:
                        continue  # what a killed plugin left
                    return info
            return None

        info = eventually(asked)
        self.forget()
        self._channel = grpc.insecure_channel(f"unix:{info.endpoint}")
        return info

    def _stub(self, beta: bool) -> tuple[Any, Any]:
        assert self._channel is not None
        return (
            (beta_rpc.DRAPluginStub(self._channel), beta_pb)
            if beta
            else (rpc.DRAPluginStub(self._channel), pb)
        )

    def health(self) -> Iterator[dict[str, tuple[str, str]]]:
        """Watch devices' health: of each answer, by device, the state and what is said."""
        assert self._channel is not None
        stub = health_rpc.DRAResourceHealthStub(self._channel)
        for answer in stub.NodeWatchResources(health_pb.NodeWatchResourcesRequest()):
            assert {one.device.pool_name for one in answer.devices} <= {"gpukernel"}
            yield {
                one.device.device_name: (health_pb.HealthStatus.Name(one.health), one.message)
                for one in answer.devices
            }

    def start_preparing(self, *names: str, beta: bool = False, uid: str = "") -> Any:
        """Ask that claims be prepared, and return the call; `uid` is said in place of a claim's own."""
        stub, messages = self._stub(beta)
        claims = [self._message(messages, name, uid) for name in names]
        return stub.NodePrepareResources.future(
            messages.NodePrepareResourcesRequest(claims=claims), timeout=60
        )

    def _message(self, messages: Any, name: str, uid: str) -> Any:
        claim = self._cluster.get(name)
        assert claim is not None
        return messages.Claim(namespace=self._cluster.namespace, name=name, uid=uid or claim.metadata.uid)

    def prepare(self, name: str, *, beta: bool = False, uid: str = "") -> Any:
        """Have a claim prepared; return what is said of it."""
        uid = uid or str(self._cluster.get(name).metadata.uid)
        return self.start_preparing(name, beta=beta, uid=uid).result().claims[uid]

    def unprepare(self, name: str, uid: str, *, beta: bool = False) -> str:
        """Have a claim given up; return the error."""
        stub, messages = self._stub(beta)
        claim = messages.Claim(namespace=self._cluster.namespace, name=name, uid=uid)
        request = messages.NodeUnprepareResourcesRequest(claims=[claim])
        return str(stub.NodeUnprepareResources(request, timeout=60).claims[uid].error)

    def device(self, name: str) -> dict[str, Any]:
        """Return what CDI files say of a device by its whole name, as a container runtime finds it."""
        kind, _, short = name.partition("=")
        for file in self.cdi.glob("*.json"):
            content = json.loads(file.read_text())
            for device in content["devices"]:
                if content["kind"] == kind and device["name"] == short:
                    return dict(device["containerEdits"])
        raise AssertionError(f"no CDI file has {name}")

    def lease_folder(self, name: str) -> Path:
        """Return the folder of this machine that containers with a CDI device see as their lease's."""
        (mount,) = [one for one in self.device(name)["mounts"] if one["containerPath"] == "/run/gpukernel"]
        assert "ro" in mount["options"]
        return Path(mount["hostPath"])

    def files(self) -> list[str]:
        """Return the files that the plugin has made."""
        return sorted(
            str(one.relative_to(self.home))
            for folder in (self.cdi, self.claims)
            for one in folder.rglob("*")
            if not one.is_dir()
        )


def mode(path: Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


@contextmanager
def running_kubelet(cluster: Cluster, pool: Pool, *options: str) -> Iterator[Kubelet]:
    """A kubelet with the plugin; its folders are in memory, and their paths short enough for sockets."""
    home = Path(tempfile.mkdtemp(prefix="kubelet-", dir="/dev/shm"))
    kubelet = Kubelet(home, cluster, pool, *options)
    try:
        kubelet.start()
        yield kubelet
    finally:
        kubelet.stop()
        shutil.rmtree(home)
