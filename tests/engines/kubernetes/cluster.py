"""A cluster that tests see by its API alone: a stand-in, or a real API server (``GPUKERNEL_TEST_KUBECONFIG``); and what a scheduler does."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lightkube import Client, KubeConfig
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace
from lightkube.resources.resource_v1 import ResourceClaim, ResourceClaimStatus, ResourceSlice
from lightkube.types import PatchType

from gpukernel.engines.kubernetes.names import DRIVER
from gpukernel.engines.kubernetes.quantities import bytes_of
from tests.conftest import Pool
from tests.engines.kubernetes.api_server import ApiServer

__all__ = ["REAL", "Cluster", "running_cluster"]

REAL = "GPUKERNEL_TEST_KUBECONFIG"
_MERGE = PatchType.MERGE


class Cluster:
    """A cluster.

    Attributes
    ----------
    kubeconfig
        The file that says how to reach it.
    stand_in
        The stand-in for its API server; None where that is a real one.
    namespace
        Of the test's claims.
    """

    def __init__(self, kubeconfig: Path, stand_in: ApiServer | None) -> None:
        self.kubeconfig, self.stand_in = kubeconfig, stand_in
        self.api = Client(KubeConfig.from_file(str(kubeconfig)).get())
        self.api._client._client.headers["User-Agent"] = ApiServer.tests
        self.api._client._client.timeout = 60.0  # a busy machine's API server is slow
        self.namespace = f"gpukernel-test-{uuid.uuid4().hex[:8]}"
        self.api.create(Namespace(metadata=ObjectMeta(name=self.namespace)))

    def label(self, **labels: str) -> None:
        """Label the namespace; ``course="ml101"`` is ``gpukernel.io/course``."""
        named = {f"{DRIVER}/{name}": value for name, value in labels.items()}
        self.api.patch(Namespace, self.namespace, {"metadata": {"labels": named}}, patch_type=_MERGE)

    def claim(self, name: str, memory: str = "", count: int = 1, **annotations: str) -> ResourceClaim:
        """Create a claim of ``count`` times this memory."""
        request: dict[str, Any] = {"deviceClassName": "gpukernel.io", "count": count}
        if memory:
            request["capacity"] = {"requests": {"memory": memory}}
        made = ResourceClaim.from_dict(
            {
                "metadata": {"name": name, "namespace": self.namespace, "annotations": annotations},
                "spec": {"devices": {"requests": [{"name": "gpu", "exactly": request}]}},
            }
        )
        return self.api.create(made)

    def get(self, name: str) -> ResourceClaim | None:
        try:
            return self.api.get(ResourceClaim, name, namespace=self.namespace)
        except ApiError as error:
            if error.status.code == 404:
                return None
            raise

    def claims(self) -> list[ResourceClaim]:
        return list(self.api.list(ResourceClaim, namespace=self.namespace))

    def slices(self) -> list[ResourceSlice]:
        return [one for one in self.api.list(ResourceSlice) if one.spec.driver == DRIVER]

    def devices(self) -> list[str]:
        """Return the names of the devices that are shown."""
        return sorted(device.name for one in self.slices() for device in one.spec.devices or [])

    def allocate(self, name: str, avoid: frozenset[str] = frozenset()) -> bool:
        """Do what the scheduler does for a claim: find devices with room and no taint, and write them down; False where there is none."""
        claim = self.get(name)
        assert claim is not None
        free: dict[str, int] = {}
        pools: dict[str, str] = {}
        defaults: dict[str, str] = {}
        for one in self.slices():
            for device in one.spec.devices or []:
                if not device.taints and device.name not in avoid:
                    free[device.name] = bytes_of(device.capacity["memory"]["value"])
                    defaults[device.name] = device.capacity["memory"]["requestPolicy"]["default"]
                    pools[device.name] = one.spec.pool.name
        for other in self.api.list(ResourceClaim, namespace="*"):
            for result in _results(other):
                if result.device in free:
                    free[result.device] -= bytes_of(result.consumedCapacity["memory"])
        request = claim.spec.devices.requests[0].exactly
        results = []
        for _ in range(1 if request.count is None else request.count):
            for device, left in sorted(free.items(), key=lambda item: -item[1]):
                wanted = (request.capacity.requests if request.capacity else {}).get("memory") or defaults[
                    device
                ]
                if bytes_of(wanted) <= left:
                    free[device] -= bytes_of(wanted)
                    results.append(
                        {
                            "request": "gpu",
                            "driver": DRIVER,
                            "pool": pools[device],
                            "device": device,
                            "shareID": str(uuid.uuid4()),
                            "consumedCapacity": {"memory": wanted},
                        }
                    )
                    break
            else:
                return False
        self._write(name, {"allocation": {"devices": {"results": results}}})
        return True

    def deallocate(self, name: str) -> None:
        """Take the allocation away, with the status of its devices, as Kubernetes' controller does once no pod uses the claim."""
        self._write(name, {"allocation": None, "devices": None})

    def forge(self, name: str, memory: str) -> str:
        """Write more memory into a claim's allocation; return what the API says to that."""
        claim = self.get(name)
        assert claim is not None
        results = [one.to_dict() for one in _results(claim)]
        results[0]["consumedCapacity"] = {"memory": memory}
        try:
            self._write(name, {"allocation": {"devices": {"results": results}}})
        except ApiError as error:
            return str(error.status.message)
        return ""

    def _write(self, name: str, status: dict[str, Any]) -> None:
        self.api.patch(
            ResourceClaimStatus, name, {"status": status}, namespace=self.namespace, patch_type=_MERGE
        )

    def delete(self, name: str) -> None:
        self.api.delete(ResourceClaim, name, namespace=self.namespace)

    def condition(self, name: str) -> tuple[str, str, str]:
        """Return status, reason and message of a claim's first device of this driver; empty where nothing is said."""
        claim = self.get(name)
        for device in (claim.status.devices if claim is not None and claim.status else None) or []:
            if device.driver == DRIVER and device.conditions:
                one = device.conditions[0]
                return one.status, one.reason, one.message
        return "", "", ""

    def is_ready(self, name: str) -> bool:
        return self.condition(name)[0] == "True"

    @contextlib.contextmanager
    def running(
        self, pool: Pool, *words: str, log: Path | None = None, inside: Sequence[str] = ()
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run ``gpukernel kubernetes WORDS`` within the context; the words of `inside` come first, such as ``nsenter`` and its options."""
        process = self.start(pool, *words, log=log, inside=inside)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(
        self, pool: Pool, *words: str, log: Path | None = None, inside: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        command = [*inside, sys.executable, "-m", "gpukernel.cli", "kubernetes", *words]
        if words[0] != "device-plugin":  # which asks the kubelet alone
            command += ["--kubeconfig", str(self.kubeconfig)]
        with open(log, "ab") if log is not None else contextlib.nullcontext() as file:
            return subprocess.Popen(
                command,
                env=pool.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
            )

    def close(self) -> None:
        for claim in self.claims():
            self.delete(claim.metadata.name)
        self.api.delete(Namespace, self.namespace)
        for one in self.slices():
            self.api.delete(ResourceSlice, one.metadata.name)
        self.api.close()


def _results(claim: ResourceClaim) -> list[Any]:
    allocation = claim.status.allocation if claim.status else None
    return list((allocation.devices.results if allocation and allocation.devices else None) or [])


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """The cluster of ``GPUKERNEL_TEST_KUBECONFIG``, else a stand-in."""
    if real := os.environ.get(REAL):
        cluster = Cluster(Path(real), None)
        try:
            yield cluster
        finally:
            cluster.close()
        return
    with ApiServer() as server:
        file = folder / "kubeconfig"
        file.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "stand-in", "cluster": {"server": server.url}}],
                    "users": [{"name": "test", "user": {"token": "none"}}],
                    "contexts": [{"name": "test", "context": {"cluster": "stand-in", "user": "test"}}],
                    "current-context": "test",
                }
            )
        )
        yield Cluster(file, server)
