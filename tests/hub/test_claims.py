"""Servers of KubeSpawner whose pods have a claim as their ceiling: real KubeSpawner code, a real controller, a real pool with workers, and
programs in the pod that lease inside of the claim.

The API server is a stand-in, or Kubernetes' own (``GPUKERNEL_TEST_KUBERNETES``, ``GPUKERNEL_TEST_KUBECONFIG``), whose controllers and
scheduler then make, place and remove claims; what a kubelet does is this module's in both.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
import yaml

pytest.importorskip("kubespawner")
pytest.importorskip("lightkube")

from lightkube import AsyncClient, KubeConfig
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Node as ClusterNode
from lightkube.resources.core_v1 import Pod, ServiceAccount
from lightkube.resources.resource_v1 import DeviceClass, ResourceClaim, ResourceClaimTemplate
from lightkube.types import PatchType

from gpukernel.client.admin import AdminClient
from gpukernel.client.engines import EngineClient
from gpukernel.client.hub import HubClient
from gpukernel.engines.kubernetes.claim_files import ClaimFiles
from gpukernel.engines.kubernetes.preparing import Preparing
from tests.conftest import Pool, eventually
from tests.engines.kubernetes.cluster import Cluster, running_cluster
from tests.engines.kubernetes.conftest import control_plane, lent  # noqa: F401
from tests.engines.kubernetes.test_scheduler import READY, ROOM, classes
from tests.hub.test_spawners import spawner

TEMPLATE = yaml.safe_load((Path(__file__).parents[2] / "deploy" / "kubernetes" / "ceilings.yaml").read_text())
COURSES = "courses: {ml101: {title: Machine learning, students: [anna]}, vision: {students: [anna]}}"
MEMORY = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print(total.value >> 20)
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    pool = Pool("v100:2", tcp_host="127.0.0.1")

    async def courses() -> None:
        async with AdminClient(pool.address) as admin:
            await admin.import_courses(COURSES)

    with pool:
        asyncio.run(courses())
        yield lent(pool)


@pytest.fixture
def cluster(tmp_path: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    import kubernetes_asyncio.config.kube_config as config
    from kubespawner.clients import load_config

    load_config.cache_clear()  # KubeSpawner looks once where its cluster is
    with running_cluster(tmp_path) as cluster:
        monkeypatch.setattr(config, "KUBE_CONFIG_DEFAULT_LOCATION", str(cluster.kubeconfig))
        with cluster.running(pool, "controller", "--every", "0.3"):
            eventually(cluster.slices, seconds=120)
            yield cluster
            for pod in list(cluster.api.list(Pod, namespace=cluster.namespace)):
                delete(cluster, Pod, pod.metadata.name)
            for claim in cluster.claims():
                delete(cluster, ResourceClaim, claim.metadata.name)
            eventually(lambda: not pool.promised(), seconds=120)
    load_config.cache_clear()


def delete(cluster: Cluster, kind: Any, name: str) -> None:
    """Delete an object at once, where it is still there."""
    try:
        cluster.api.delete(kind, name, namespace=cluster.namespace, grace_period=0)
    except ApiError as error:
        if error.status.code != 404:
            raise


class Node:
    """The cluster that a pod sees with the stand-in API server: the scheduler, the controller of claims and the kubelet."""

    selector: ClassVar[dict[str, str]] = {}

    def __init__(self, cluster: Cluster, pool: Pool, home: Path) -> None:
        self.cluster, self.pool, self.home = cluster, pool, home
        self.environment: dict[str, str] = {}

    def pods(self) -> list[Any]:
        return list(self.cluster.api.list(Pod, namespace=self.cluster.namespace))

    async def start(self) -> str:
        """Bring the one pod that waits to life; return the name of its claim, empty where it asks for none."""
        pod = (await self.eventually(self.pods))[0]
        (container,) = pod.spec.containers
        self.environment = {one.name: one.value for one in container.env if one.value}
        name = ""
        for asked in pod.spec.resourceClaims or []:
            assert asked.resourceClaimTemplateName == TEMPLATE["metadata"]["name"]
            assert [one.name for one in container.resources.claims] == [asked.name]
            name = await self.claimed(pod, asked.name)
            await self.eventually(lambda name=name: self.cluster.is_ready(name))
            self.environment |= await self.prepared(name)
        self.tell(pod.metadata.name, "Running", {"running": {}})
        return name

    async def claimed(self, pod: Any, asked: str) -> str:
        """Return the name of the claim of a pod's template, which is allocated."""
        name = f"{pod.metadata.name}-{asked}"
        made: dict[str, Any] = {
            "metadata": {**TEMPLATE["spec"]["metadata"], "name": name, "namespace": self.cluster.namespace},
            "spec": TEMPLATE["spec"]["spec"],
        }
        claim: Any = ResourceClaim.from_dict(made)
        self.cluster.api.create(claim)
        assert self.cluster.allocate(name)
        return name

    def forget(self, claim: str) -> None:
        """Delete the claim of a pod that is gone, as Kubernetes does."""
        self.cluster.delete(claim)

    async def prepared(self, name: str) -> dict[str, str]:
        """Return what the runtime makes of the claim's CDI file, with the paths of this machine."""
        claim: Any = self.cluster.get(name)
        uid = str(claim.metadata.uid)
        files = ClaimFiles(self.home / "claims", self.home / "cdi")
        api = AsyncClient(KubeConfig.from_file(str(self.cluster.kubeconfig)).get())
        async with EngineClient(self.pool.address) as engine:
            engine.engine = "kubernetes"
            await Preparing(api, engine, files).prepare(self.cluster.namespace, name, uid)
        await api.close()
        (cdi,) = (self.home / "cdi").glob(f"*{uid}.json")
        (device,) = json.loads(cdi.read_text())["devices"]
        found = dict(one.partition("=")[::2] for one in device["containerEdits"]["env"])
        assert "GPUKERNEL_LEASE_FILE" not in found  # kernels have their own
        assert found["GPUKERNEL_CEILING_FILE"] == "/run/gpukernel/lease"
        return {"GPUKERNEL_CEILING_FILE": str(self.home / "claims" / uid / "gpu" / "lease")}

    def tell(self, name: str, phase: str, state: dict[str, Any]) -> None:
        container = {
            "name": "notebook",
            "image": "i",
            "imageID": "i",
            "ready": "running" in state,
            "restartCount": 0,
            "state": state,
        }
        status = {"phase": phase, "podIP": "127.0.0.1", "containerStatuses": [container]}
        self.cluster.api.patch(
            Pod.Status, name, {"status": status}, namespace=self.cluster.namespace, patch_type=PatchType.MERGE
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program in the pod: with its variables, and as nobody who administers the pool."""
        mine = {k: v for k, v in os.environ.items() if not k.startswith("GPUKERNEL_")}
        return subprocess.run(
            [sys.executable, "-m", "gpukernel.cli", "run", "--wait", "0", *words],
            env=mine | self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )

    @staticmethod
    async def eventually(what: Any) -> Any:
        return await asyncio.to_thread(eventually, what, 120)


class RealNode(Node):
    """The same where the cluster is Kubernetes' own: its controllers make and remove claims, and its scheduler chooses this node."""

    name = "claims-node"
    selector: ClassVar[dict[str, str]] = {"kubernetes.io/hostname": name}

    def __enter__(self) -> Self:
        api, namespace = self.cluster.api, self.cluster.namespace
        for one in classes(self.pool):
            made: Any = DeviceClass.from_dict(one)
            api.apply(made, field_manager="tests", force=True)
        metadata = {"name": self.name, "labels": {"kubernetes.io/hostname": self.name}}
        status = {"capacity": ROOM, "allocatable": ROOM, "conditions": [READY]}
        own: Any = ClusterNode.from_dict({"metadata": metadata})
        api.create(own)
        api.patch(ClusterNode, self.name, {"spec": {"taints": None}}, patch_type=PatchType.MERGE)
        api.patch(ClusterNode.Status, self.name, {"status": status}, patch_type=PatchType.MERGE)
        here = {**TEMPLATE["metadata"], "namespace": namespace}
        template: Any = ResourceClaimTemplate.from_dict({"metadata": here, "spec": TEMPLATE["spec"]})
        api.create(template)
        eventually(lambda: list(api.list(ServiceAccount, namespace=namespace)))
        # The client makes its decoders at their first use, and two threads that do so at once end the process (msgspec).
        self.pods(), self.cluster.claims(), delete(self.cluster, Pod, "none")
        self._ends = threading.Event()
        self._kubelet = threading.Thread(target=self._end_pods)
        self._kubelet.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._kubelet.join()
        self.cluster.api.delete(ClusterNode, self.name)

    def _end_pods(self) -> None:
        """Say that pods which are told to end have ended, as a kubelet does."""
        while not self._ends.wait(0.2):
            for pod in self.pods():
                if pod.metadata.deletionTimestamp:
                    delete(self.cluster, Pod, pod.metadata.name)

    async def claimed(self, pod: Any, asked: str) -> str:
        def made() -> str:
            (now,) = self.pods()
            told = now.status.resourceClaimStatuses or []
            return next((str(one.resourceClaimName) for one in told if one.name == asked), "")

        name = str(await self.eventually(made))
        await self.eventually(lambda: self.pods()[0].spec.nodeName == self.name)
        return name

    def forget(self, claim: str) -> None:
        eventually(lambda: self.cluster.get(claim) is None)


@pytest.fixture
def node(cluster: Cluster, pool: Pool, tmp_path: Path) -> Iterator[Node]:
    if cluster.stand_in is not None:
        yield Node(cluster, pool, tmp_path)
        return
    with RealNode(cluster, pool, tmp_path) as node:
        yield node


def a_server(node: Node, course: str = "ml101") -> Any:
    one = spawner(
        "GPUKubeSpawner",
        node.pool,
        "anna",
        namespace=node.cluster.namespace,
        claim_templates={"ml101": TEMPLATE["metadata"]["name"]},
        image="i",
        node_selector=node.selector,
        events_enabled=False,
        start_timeout=300,
    )
    one.user_options = {"profile": f"gpu-{course}"}
    return one


async def started(node: Node, one: Any) -> str:
    starting = asyncio.ensure_future(one.start())
    claim = await node.start()
    assert "127.0.0.1" in str(await starting)
    assert await one.poll() is None
    return claim


async def opened(pool: Pool) -> list[str]:
    async with HubClient(pool.address) as hub:
        return [f"{one.person} {one.course}" for one in await hub.servers()]


def test_a_server_s_kernels_lease_inside_of_its_claim_and_get_nothing_beside_it(node: Node) -> None:
    async def work() -> None:
        one = a_server(node)
        claim = await started(node, one)
        assert claim
        one_kernel = ("-p", "0.05", "--", sys.executable, "-c", MEMORY)  # 1638 of the 2047 MiB
        done = await asyncio.to_thread(node.run, *one_kernel)
        assert (done.returncode, done.stdout.strip()) == (0, "1638"), done.stderr
        too_large = await asyncio.to_thread(node.run, "-p", "0.07", "--", "true")
        assert too_large.returncode != 0
        assert "that this pod's claim has for kernels" in too_large.stderr
        # The variable is the student's to unset, and that gives nothing.
        file = node.environment.pop("GPUKERNEL_CEILING_FILE")
        beside = await asyncio.to_thread(node.run, "-p", "0.01", "--", "true")
        assert beside.returncode != 0
        assert "lie inside of its pod's claim" in beside.stderr
        node.environment["GPUKERNEL_CEILING_FILE"] = file

        await one.stop()
        await node.eventually(lambda: node.pods() == [])
        assert await opened(node.pool) == []
        late = await asyncio.to_thread(node.run, "-p", "0.01", "--", "true")
        assert late.returncode != 0  # its token is worth nothing
        await asyncio.to_thread(node.forget, claim)
        await node.eventually(lambda: not node.pool.promised())

    asyncio.run(work())


def test_a_course_without_an_entry_leases_from_the_pool(node: Node) -> None:
    async def work() -> None:
        one = a_server(node, "vision")
        assert await started(node, one) == ""
        done = await asyncio.to_thread(node.run, "-p", "0.01", "--", sys.executable, "-c", MEMORY)
        assert (done.returncode, done.stdout.strip()) == (0, "327"), done.stderr
        await one.stop()

    asyncio.run(work())


@pytest.mark.parametrize("how", ["evicted", "crashed", "deleted"])
def test_a_pod_that_is_lost_ends_its_server_in_the_pool(node: Node, how: str) -> None:
    async def work() -> None:
        one = a_server(node)
        await started(node, one)
        assert await opened(node.pool) == ["anna ml101"]
        (pod,) = node.pods()
        if how == "deleted":
            node.cluster.api.delete(Pod, pod.metadata.name, namespace=node.cluster.namespace)
        else:
            code = 137 if how == "evicted" else 1
            node.tell(pod.metadata.name, "Failed", {"terminated": {"exitCode": code}})
        for _ in range(300):
            if (status := await one.poll()) is not None:
                break
            await asyncio.sleep(0.1)
        assert status in (1, 137)
        assert await opened(node.pool) == []

    asyncio.run(work())


def test_a_culled_server_starts_again_with_another_claim_and_token(node: Node) -> None:
    async def work() -> None:
        one = a_server(node)
        first = await started(node, one)
        token = node.environment["GPUKERNEL_POOL_TOKEN"]
        await one.stop(now=True)  # as the culler has the Hub do
        await asyncio.to_thread(node.forget, first)
        await node.eventually(lambda: not node.pool.promised())
        again = a_server(node)
        await started(node, again)
        assert node.environment["GPUKERNEL_POOL_TOKEN"] != token
        done = await asyncio.to_thread(node.run, "-p", "0.01", "--", sys.executable, "-c", MEMORY)
        assert (done.returncode, done.stdout.strip()) == (0, "327"), done.stderr
        await again.stop()

    asyncio.run(work())
