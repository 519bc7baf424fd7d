"""Kubernetes' own kubelet with containerd: pods get the slices of their claims, and give them back, whoever is killed on the way."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpukernel.common.model import Lease
from tests.conftest import Pool, eventually
from tests.engines.containers.test_cri import IMAGE
from tests.engines.kubernetes.cluster import Cluster
from tests.engines.kubernetes.control_plane import NODE, ControlPlane
from tests.engines.kubernetes.real_node import Node, running_node
from tests.engines.kubernetes.test_scheduler import Pods, classes

pytestmark = pytest.mark.timeout(3000)

MIB = 2**20
PATIENCE = 300.0
"""Seconds for what a kubelet does by the way: it waits longer after each try that failed."""
NAME = "gpukernel.io/v100-slice"
CDI, CLAIMS = "/run/cdi", "/run/gpukernel-claims"
# What CUDA and NVML say of the memory, and then it waits for its end.
PROGRAM = """
import ctypes, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
size, device, memory = ctypes.c_size_t(), ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
print(cuda.cuInit(0), cuda.cuDeviceTotalMem_v2(ctypes.byref(size), 0), size.value >> 20)
print(nvml.nvmlInit_v2(), nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)),
      nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)), memory[0] >> 20, flush=True)
signal.pause()
"""
SEEN = "0 0 655\n0 0 0 655\n"


@pytest.fixture(scope="module")
def node(control_plane: ControlPlane | None) -> Iterator[Node]:
    if control_plane is None:
        pytest.skip("needs Kubernetes' programs: make control-plane KUBERNETES=FOLDER")
    with running_node(control_plane) as node:
        yield node


class NodePods(Pods):
    """Pods that run on the node, with this machine's ``/usr`` for an image's."""

    def run(self, name: str, *, resources: dict[str, Any], **spec: Any) -> None:
        self.create(
            name,
            container={
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "command": ["/usr/bin/python3", "-c", PROGRAM],
                "volumeMounts": [{"name": "usr", "mountPath": "/usr", "readOnly": True}],
            },
            resources=resources,
            volumes=[{"name": "usr", "hostPath": {"path": "/usr"}}],
            hostNetwork=True,
            automountServiceAccountToken=False,
            nodeSelector={"kubernetes.io/hostname": NODE},
            restartPolicy="Never",
            terminationGracePeriodSeconds=20,
            **spec,
        )

    def claim(self, name: str) -> str:
        """Run a pod with a claim of 0.02 of a V100; return the claim's uid."""
        self.template("slice", "655Mi")
        claims = [{"name": "gpu", "resourceClaimTemplateName": "slice"}]
        self.run(name, resources={"claims": [{"name": "gpu"}]}, resourceClaims=claims)
        told = eventually(lambda: self.get(name)["status"].get("resourceClaimStatuses"), seconds=PATIENCE)
        return str(self._cluster.get(told[0]["resourceClaimName"]).metadata.uid)

    def container(self, name: str) -> str:
        """Return the id of a pod's container that runs."""
        (told,) = self.get(name)["status"].get("containerStatuses") or [{}]
        is_there = "running" in told.get("state", {})
        return str(told["containerID"]).removeprefix("containerd://") if is_there else ""

    def health(self, name: str) -> list[str]:
        """Return what the kubelet says of the devices of a pod's slices."""
        (told,) = self.get(name)["status"].get("containerStatuses") or [{}]
        return [
            device["health"]
            for one in told.get("allocatedResourcesStatus", ())
            for device in one.get("resources", ())
        ]

    def end(self, name: str) -> None:
        """Delete a pod as ``kubectl delete`` does: the kubelet ends it."""
        self._plane.ask("DELETE", f"{self.path}/{name}")

    def events(self, name: str) -> str:
        """Return what is said of a pod, by the kubelet too."""
        listed = self._plane.ask("GET", self.path.replace("/pods", "/events"))
        about = [one for one in listed.json()["items"] if one["involvedObject"]["name"] == name]
        return "\n".join(f"{one['reason']}: {one['message']}" for one in about)

    def is_gone(self, name: str) -> bool:
        return self._plane.ask("GET", f"{self.path}/{name}").status_code == 404


class Plugin:
    """A plugin of the node, in its folders; `log` is what it says."""

    def __init__(self, cluster: Cluster, pool: Pool, node: Node, *words: str) -> None:
        self.log = node.log / f"{words[0]}-{cluster.namespace}.log"
        self._words = (*words, "--libraries", str(node.home / "libraries"), "--every", "0.3")
        self._cluster, self._pool, self._node = cluster, pool, node
        self.start()

    def start(self) -> None:
        """Start it, and wait until the kubelet has registered it."""
        known = self.registered()
        start = self._cluster.start
        self.process = start(self._pool, *self._words, log=self.log, inside=self._node.powerless)
        self.wait_for(known + 1)

    def registered(self) -> int:
        """Return how often the kubelet has registered it."""
        return self.log.read_text().count("the kubelet has registered") if self.log.exists() else 0

    def wait_for(self, times: int) -> None:
        eventually(lambda: self.registered() >= times, seconds=PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def plugin(cluster: Cluster, pool: Pool, node: Node) -> Iterator[Plugin]:
    """The plugin of claims, and the controller."""
    with cluster.running(pool, "controller", "--every", "0.3"):
        eventually(cluster.slices, seconds=PATIENCE)
        made = Plugin(cluster, pool, node, "node")
        yield made
        made.kill()


@contextlib.contextmanager
def running_pods(plane: ControlPlane, cluster: Cluster, pool: Pool) -> Iterator[NodePods]:
    """Pods, which the kubelet ends before the plugin goes."""
    for one in classes(pool):
        assert plane.apply(one).is_success
    made = NodePods(plane, cluster)
    yield made
    names = [one["metadata"]["name"] for one in plane.ask("GET", made.path).json()["items"]]
    for name in names:
        made.end(name)
    eventually(lambda: all(map(made.is_gone, names)), seconds=PATIENCE)
    eventually(lambda: not cluster.claims(), seconds=PATIENCE)


@pytest.fixture
def pods(plane: ControlPlane, cluster: Cluster, lent_pool: Pool, plugin: Plugin) -> Iterator[NodePods]:
    with running_pods(plane, cluster, lent_pool) as made:
        yield made


def of(pool: Pool, uid: str) -> list[Lease]:
    """Return all leases that a claim ever had."""
    return [one for one in pool.leases(ended=True)[0] if one.key.startswith(uid)]


def test_a_pod_of_the_kubelet_sees_its_slice_and_gives_it_back(
    pool: Pool, node: Node, pods: NodePods, plugin: Plugin
) -> None:
    first, second = pods.claim("first"), pods.claim("second")
    eventually(lambda: pods.container("first") and pods.container("second"), seconds=PATIENCE)
    assert pods.get("first")["spec"]["nodeName"] == NODE
    for name, uid in (("first", first), ("second", second)):
        eventually(lambda name=name: node.output(pods.get(name)) == SEEN, seconds=PATIENCE)
        assert [one.slices[0].memory_bytes for one in of(pool, uid)] == [655 * MIB]
    assert node.files(CDI) == sorted(f"gpukernel.io-claim_{one}.json" for one in (first, second))
    eventually(lambda: pods.health("first") == ["Healthy"], seconds=PATIENCE)
    pods.end("first")
    eventually(lambda: pods.is_gone("first"), seconds=PATIENCE)
    began = time.monotonic()
    eventually(lambda: [one.key.partition(".")[0] for one in pool.live()] == [second], seconds=5)
    print(f"free {time.monotonic() - began:.2f} s after its pod")
    assert node.files(CDI) == [f"gpukernel.io-claim_{second}.json"]
    assert pods.container("second")


def test_a_kubelet_that_is_killed_finds_its_pods_and_makes_no_second_lease(
    pool: Pool, node: Node, pods: NodePods, plugin: Plugin
) -> None:
    uid = pods.claim("stays")
    before = eventually(lambda: pods.container("stays"), seconds=PATIENCE)
    eventually(lambda: node.output(pods.get("stays")) == SEEN, seconds=PATIENCE)
    known = plugin.registered()
    node.kill_kubelet()
    node.start_kubelet()
    plugin.wait_for(known + 1)
    other = pods.claim("later")  # whose start shows that it has looked at its pods
    eventually(lambda: node.output(pods.get("later")) == SEEN, seconds=PATIENCE)
    assert pods.container("stays") == before
    assert [len(of(pool, one)) for one in (uid, other)] == [1, 1]
    node.kill_kubelet()
    pods.end("stays")
    node.start_kubelet()
    eventually(lambda: pods.is_gone("stays"), seconds=PATIENCE)
    eventually(lambda: [one.key.partition(".")[0] for one in pool.live()] == [other], seconds=5)


def test_pods_go_on_without_the_plugin_and_end_once_it_is_back(
    pool: Pool, node: Node, pods: NodePods, plugin: Plugin
) -> None:
    uid = pods.claim("stays")
    before = eventually(lambda: pods.container("stays"), seconds=PATIENCE)
    plugin.kill()
    waiting = pods.claim("waits")
    pods.end("stays")
    eventually(lambda: not node.runs(before), seconds=PATIENCE)
    eventually(lambda: "FailedPrepareDynamicResources" in pods.events("waits"), seconds=PATIENCE)
    assert not pods.is_gone("stays")
    assert len(of(pool, uid)) == 1
    plugin.start()
    eventually(lambda: node.output(pods.get("waits")) == SEEN, seconds=PATIENCE)
    eventually(lambda: pods.is_gone("stays"), seconds=PATIENCE)
    eventually(lambda: [one.key.partition(".")[0] for one in pool.live()] == [waiting], seconds=5)
    assert node.files(CLAIMS).count("lease") == 1


def test_a_name_in_limits_is_prepared_by_the_kubelet(
    pool: Pool, node: Node, pods: NodePods, plugin: Plugin
) -> None:
    pods.run("by-name", resources={"limits": {NAME: "1"}})
    eventually(lambda: node.output(pods.get("by-name")) == SEEN, seconds=PATIENCE)
    assert len(pool.live()) == 1
    pods.end("by-name")
    eventually(lambda: pods.is_gone("by-name"), seconds=PATIENCE)
    eventually(lambda: not pool.promised(), seconds=5)


def test_the_kubelet_counts_slots_of_the_device_plugin(
    plane: ControlPlane, cluster: Cluster, pool: Pool, node: Node
) -> None:
    words = ("device-plugin", "--model", "v100", "--share", "0.02", "--slots", "2", "--node", NODE)
    slots = Plugin(cluster, pool, node, *words)
    try:
        eventually(lambda: node.status()["allocatable"].get(NAME) == "2", seconds=PATIENCE)
        with running_pods(plane, cluster, pool) as pods:
            pods.run("first", resources={"limits": {NAME: "1"}})
            eventually(lambda: node.output(pods.get("first")) == SEEN, seconds=PATIENCE)
            (lease,) = pool.live()
            assert lease.holder.person == f"node:{NODE}"
            node.kill_kubelet()
            node.start_kubelet()
            slots.wait_for(2)
            pods.run("second", resources={"limits": {NAME: "1"}})
            eventually(lambda: node.output(pods.get("second")) == SEEN, seconds=PATIENCE)
            live = [one.id for one in pool.live()]
            assert len(live) == 2
            assert lease.id in live
        eventually(lambda: not pool.promised(), seconds=PATIENCE)
    finally:
        slots.kill()
