"""Servers of KubeSpawner whose pods have a claim as their ceiling: real KubeSpawner code against the stand-in API server, a real controller,
a real pool with workers, and programs in the pod that lease inside of the claim.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("kubespawner")
pytest.importorskip("lightkube")

from lightkube import AsyncClient, KubeConfig
from lightkube.resources.core_v1 import Pod
from lightkube.resources.resource_v1 import ResourceClaim
from lightkube.types import PatchType

from gpukernel.client.admin import AdminClient
from gpukernel.client.engines import EngineClient
from gpukernel.client.hub import HubClient
from gpukernel.engines.kubernetes.claim_files import ClaimFiles
from gpukernel.engines.kubernetes.preparing import Preparing
from tests.conftest import Pool, eventually
from tests.engines.kubernetes.cluster import Cluster, running_cluster
from tests.engines.kubernetes.conftest import lent
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
            eventually(cluster.slices)
            yield cluster
            left: list[Any] = cluster.claims()
            for claim in left:
                cluster.delete(claim.metadata.name)
            eventually(lambda: not pool.promised())
    load_config.cache_clear()


class Node:
    """The scheduler, the controller of claims and the kubelet, as far as a pod with a claim sees them."""

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
            name = f"{pod.metadata.name}-{asked.name}"
            made: dict[str, Any] = {
                "metadata": {
                    **TEMPLATE["spec"]["metadata"], "name": name, "namespace": self.cluster.namespace,
                },
                "spec": TEMPLATE["spec"]["spec"],
            }  # fmt: skip
            claim: Any = ResourceClaim.from_dict(made)
            self.cluster.api.create(claim)
            assert self.cluster.allocate(name)
            await self.eventually(lambda name=name: self.cluster.is_ready(name))
            self.environment |= await self.prepared(name)
        self.tell(pod.metadata.name, "Running", {"running": {}})
        return name

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
            timeout=60,
        )

    @staticmethod
    async def eventually(what: Any) -> Any:
        return await asyncio.to_thread(eventually, what)


@pytest.fixture
def node(cluster: Cluster, pool: Pool, tmp_path: Path) -> Node:
    return Node(cluster, pool, tmp_path)


def a_server(node: Node, course: str = "ml101") -> Any:
    one = spawner(
        "GPUKubeSpawner",
        node.pool,
        "anna",
        namespace=node.cluster.namespace,
        claim_templates={"ml101": TEMPLATE["metadata"]["name"]},
        image="i",
        events_enabled=False,
        start_timeout=60,
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
        assert node.pods() == []
        assert await opened(node.pool) == []
        late = await asyncio.to_thread(node.run, "-p", "0.01", "--", "true")
        assert late.returncode != 0  # its token is worth nothing
        node.cluster.delete(claim)  # as Kubernetes does with the pod's own claims
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
        node.cluster.delete(first)
        await node.eventually(lambda: not node.pool.promised())
        again = a_server(node)
        await started(node, again)
        assert node.environment["GPUKERNEL_POOL_TOKEN"] != token
        done = await asyncio.to_thread(node.run, "-p", "0.01", "--", sys.executable, "-c", MEMORY)
        assert (done.returncode, done.stdout.strip()) == (0, "327"), done.stderr
        await again.stop()

    asyncio.run(work())
