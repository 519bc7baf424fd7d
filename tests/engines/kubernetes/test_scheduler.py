"""Kubernetes' own scheduler and controllers, from its programs: they read the driver's slices, make claims of pods, and take them away."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from lightkube import AsyncClient, KubeConfig

from gpukernel.engines.kubernetes.publisher import Publisher
from gpukernel.engines.kubernetes.slices import SliceSettings
from tests.conftest import Pool, eventually
from tests.engines.kubernetes.cluster import Cluster
from tests.engines.kubernetes.control_plane import ControlPlane
from tests.engines.kubernetes.fake_kubelet import running_kubelet
from tests.engines.kubernetes.test_admission import FOLDER
from tests.engines.kubernetes.test_slices import Pool as Devices
from tests.engines.kubernetes.test_slices import device

MIB = 2**20
# A node without a kubelet: pods that are placed there stay as the scheduler left them.
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}
ROOM = {"cpu": "64", "memory": "64Gi", "pods": "500"}
READY = {
    "type": "Ready",
    "status": "True",
    "reason": "KubeletReady",
    "lastHeartbeatTime": "2026-01-01T00:00:00Z",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


class Pods:
    """Pods of the test's namespace."""

    def __init__(self, plane: ControlPlane, cluster: Cluster) -> None:
        self._plane, self._cluster = plane, cluster
        self.path = f"/api/v1/namespaces/{cluster.namespace}/pods"
        account = f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts/default"
        eventually(lambda: plane.ask("GET", account).status_code == 200)

    def template(self, name: str, memory: str, device_class: str = "gpukernel.io") -> None:
        exact = {"deviceClassName": device_class, "capacity": {"requests": {"memory": memory}}}
        made = self._plane.apply(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": name, "namespace": self._cluster.namespace},
                "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exact}]}}},
            }
        )
        assert made.is_success, made.text

    def create(self, name: str, **spec: Any) -> None:
        made = self._plane.ask("POST", self.path, pod(name, **spec))
        assert made.is_success, made.text

    def claiming(self, name: str, template: str) -> None:
        """Create a pod with a claim of a template."""
        claims = [{"name": "gpu", "resourceClaimTemplateName": template}]
        self.create(name, resourceClaims=claims, resources={"claims": [{"name": "gpu"}]})

    def get(self, name: str) -> dict[str, Any]:
        return dict(self._plane.ask("GET", f"{self.path}/{name}").json())

    def placed(self, name: str) -> bool:
        return bool(self.get(name)["spec"].get("nodeName"))

    def waits(self, name: str) -> str:
        """Return why a pod waits, in the scheduler's words; empty where it does not, or was not looked at."""
        told = self.get(name).get("status", {}).get("conditions", [])
        return next((str(one["message"]) for one in told if one.get("reason") == "Unschedulable"), "")

    def delete(self, name: str) -> None:
        self._plane.ask("DELETE", f"{self.path}/{name}", gracePeriodSeconds="0")


def pod(name: str, *, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "train", "image": "python:3.12", "resources": spec.pop("resources", {})}
    container |= spec.pop("container", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"containers": [container], **spec},
    }


@pytest.fixture
def pods(plane: ControlPlane, cluster: Cluster, lent_pool: Pool) -> Iterator[Pods]:
    """Pods, where the node and the classes are there."""
    plane.apply(NODE)
    plane.ask("PATCH", "/api/v1/nodes/node-1", {"spec": {"taints": None}})  # as its controller does
    status = {"capacity": ROOM, "allocatable": ROOM, "conditions": [READY]}
    assert plane.ask("PATCH", "/api/v1/nodes/node-1/status", {"status": status}).is_success
    for one in classes(lent_pool):
        assert plane.apply(one).is_success
    yield (made := Pods(plane, cluster))
    for one in plane.ask("GET", made.path).json()["items"]:
        made.delete(one["metadata"]["name"])
    eventually(lambda: not cluster.claims())


def classes(pool: Pool, *words: str) -> list[dict[str, Any]]:
    done = pool.gpukernel("kubernetes", "classes", *words)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_pods_become_workers_where_the_scheduler_puts_them_and_the_next_one_waits(
    cluster: Cluster, pool: Pool, pods: Pods
) -> None:
    count = int(os.environ.get("GPUKERNEL_SLICES", "10"))
    pods.template("slice", f"{32768 // count}Mi")
    with cluster.running(pool, "controller", "--every", "0.3"):
        eventually(cluster.slices)
        names = [f"pod-{number}" for number in range(count)]
        for name in names:
            pods.claiming(name, "slice")
        eventually(lambda: all(pods.placed(name) for name in names), seconds=120)
        eventually(lambda: len(pool.live()) == count, seconds=180)
        claims = [one.metadata.name for one in cluster.claims()]
        eventually(lambda: all(map(cluster.is_ready, claims)), seconds=60)
        placed = {lease.key: [part.uuid.lower() for part in lease.slices] for lease in pool.live()}
        assert placed == chosen(cluster)
        pods.claiming("one-more", "slice")
        eventually(lambda: "cannot allocate all claims" in pods.waits("one-more"))
        assert len(pool.live()) == count
        pods.delete(names[0])
        eventually(lambda: pods.placed("one-more"), seconds=60)
        eventually(lambda: len(pool.live()) == count and all(one.state == "live" for one in pool.live()))
        for name in [*names[1:], "one-more"]:
            pods.delete(name)
        eventually(lambda: not cluster.claims(), seconds=60)
        eventually(lambda: not pool.promised(), seconds=5)


def chosen(cluster: Cluster) -> dict[str, list[str]]:
    """Return the devices that the scheduler has chosen, by the keys of the leases that follow."""
    return {
        f"{claim.metadata.uid}.{result.shareID}": [result.device]
        for claim in cluster.claims()
        for result in claim.status.allocation.devices.results
    }


def test_a_name_in_limits_makes_a_claim_by_itself(cluster: Cluster, pool: Pool, pods: Pods) -> None:
    with cluster.running(pool, "controller", "--every", "0.3"):
        eventually(cluster.slices)
        pods.create("by-name", resources={"limits": {"gpukernel.io/v100-slice": "1"}})
        eventually(lambda: pods.placed("by-name"))
        told = pods.get("by-name")["status"]["extendedResourceClaimStatus"]
        eventually(lambda: cluster.is_ready(told["resourceClaimName"]))
        (lease,) = pool.live()
        assert [one.memory_bytes for one in lease.slices] == [655 * MIB]  # --share of 32 GiB
        pods.delete("by-name")
        eventually(lambda: not pool.promised())


def test_an_annotation_gives_a_pod_its_claim(
    plane: ControlPlane, cluster: Cluster, pool: Pool, pods: Pods
) -> None:
    for one in yaml.safe_load_all((FOLDER / "injection.yaml").read_text()):
        assert plane.apply(one).is_success
    try:
        pods.template("gpukernel", "100Mi")
        with cluster.running(pool, "controller", "--every", "0.3"):
            eventually(cluster.slices)

            def injected() -> bool:  # the policy counts a moment after it is written
                asks = pod("injected", annotations={"gpukernel.io/inject": "true"})
                made = plane.ask("POST", pods.path, asks, dryRun="All")
                return "resourceClaims" in made.json().get("spec", {})

            eventually(injected)
            pods.create("plain")
            assert "resourceClaims" not in pods.get("plain")["spec"]
            asks = pod("injected", annotations={"gpukernel.io/inject": "true"})
            asks["spec"]["containers"].append({"name": "second", "image": "python:3.12"})
            assert plane.ask("POST", pods.path, asks).is_success
            made = pods.get("injected")["spec"]
            assert [one["resources"]["claims"] for one in made["containers"]] == [[{"name": "gpukernel"}]] * 2
            eventually(lambda: pods.placed("injected"))
            eventually(lambda: [one.slices[0].memory_bytes for one in pool.live()] == [100 * MIB])
    finally:
        for one in yaml.safe_load_all((FOLDER / "injection.yaml").read_text()):
            kind = (
                "mutatingadmissionpolicies"
                if one["kind"].endswith("Policy")
                else "mutatingadmissionpolicybindings"
            )
            plane.ask("DELETE", f"/apis/{one['apiVersion']}/{kind}/{one['metadata']['name']}")


def test_a_drained_server_takes_no_pods_until_it_is_back(cluster: Cluster, pool: Pool, pods: Pods) -> None:
    server = pool.devices()[0].server
    pods.template("slice", "64Mi")
    with cluster.running(pool, "controller", "--every", "0.3"):
        eventually(cluster.slices)
        assert pool.gpukernel("drain", server).returncode == 0
        try:
            eventually(lambda: any(one.spec.devices[0].taints for one in cluster.slices()))
            pods.claiming("waits", "slice")
            eventually(lambda: pods.waits("waits"))
            assert not pods.placed("waits")
        finally:
            assert pool.gpukernel("undrain", server).returncode == 0
        eventually(lambda: pods.placed("waits"), seconds=60)


def publish(plane: ControlPlane, devices: Devices) -> None:
    async def once() -> None:
        api = AsyncClient(KubeConfig.from_file(str(plane.kubeconfig)).get())
        try:
            await Publisher(api, devices, SliceSettings()).publish()  # type: ignore[arg-type]
        finally:
            await api.close()

    asyncio.run(once())


def test_pods_of_a_device_that_has_failed_are_ended(
    plane: ControlPlane, cluster: Cluster, pods: Pods
) -> None:
    devices = Devices(device(0))
    publish(plane, devices)
    pods.template("slice", "64Mi")
    pods.claiming("doomed", "slice")
    eventually(lambda: pods.placed("doomed"))
    devices.known[0] = device(0, trouble="its server has it no more")
    publish(plane, devices)
    eventually(lambda: "deletionTimestamp" in pods.get("doomed")["metadata"], seconds=60)


def test_a_claim_s_pod_is_prepared_on_its_node(cluster: Cluster, pool: Pool, pods: Pods) -> None:
    pods.template("slice", "655Mi")
    with cluster.running(pool, "controller", "--every", "0.3"):
        eventually(cluster.slices)
        with running_kubelet(cluster, pool) as kubelet:
            pods.claiming("one", "slice")
            eventually(lambda: pods.placed("one"))
            (told,) = pods.get("one")["status"]["resourceClaimStatuses"]
            name = told["resourceClaimName"]
            answer = kubelet.prepare(name)
            assert answer.error == ""
            assert len(answer.devices) == 1
            uid = str(cluster.get(name).metadata.uid)
            assert kubelet.unprepare(name, uid) == ""


def test_the_controller_s_and_the_node_s_roles_are_enough_and_are_all(
    plane: ControlPlane, cluster: Cluster, pool: Pool, pods: Pods
) -> None:
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpukernel"}})
    for name in ("rbac", "driver"):
        for one in yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()):
            if one["kind"] not in ("Deployment", "DaemonSet"):
                made = plane.apply(one)
                assert made.is_success, made.text
    own = plane.token_of("gpukernel", "gpukernel-controller")
    node = plane.token_of("gpukernel", "gpukernel-node")
    administrator = cluster.kubeconfig
    pods.template("slice", "655Mi")
    cluster.kubeconfig = plane.config_for("controller", own)
    log = plane.home / "controller.log"
    with cluster.running(pool, "controller", "--every", "0.3", log=log):
        eventually(cluster.slices)
        cluster.kubeconfig = plane.config_for("node", node)
        with running_kubelet(cluster, pool) as kubelet:
            pods.claiming("one", "slice")
            eventually(lambda: pods.placed("one"))
            name = pods.get("one")["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
            eventually(lambda: cluster.is_ready(name))
            assert kubelet.prepare(name).error == ""
    cluster.kubeconfig = administrator
    claim = f"/apis/resource.k8s.io/v1/namespaces/{cluster.namespace}/resourceclaims/{name}"
    annotated = {"metadata": {"annotations": {"a": "b"}}}
    allocated = {"status": {"allocation": None}}
    for token in (own, node):
        assert plane.ask("GET", "/api/v1/secrets", token=token).status_code == 403
        assert plane.ask("GET", "/api/v1/pods", token=token).status_code == 403
        assert plane.ask("PATCH", claim, annotated, token=token).status_code == 403
        assert plane.ask("DELETE", claim, token=token).status_code == 403
        refused = plane.ask("PATCH", f"{claim}/status", allocated, token=token)
        assert "cannot patch resource" in refused.json()["message"]
        assert cluster.get(name).status.allocation is not None
    assert plane.ask("GET", "/apis/resource.k8s.io/v1/resourceclaims", token=node).status_code == 403
    slices = plane.ask("GET", "/apis/resource.k8s.io/v1/resourceslices", token=node)
    assert slices.status_code == 403


def test_a_claim_is_free_within_five_seconds(cluster: Cluster, pool: Pool, pods: Pods) -> None:
    pods.template("slice", "655Mi")
    with cluster.running(pool, "controller"):  # as administrators start it
        eventually(cluster.slices)
        pods.claiming("one", "slice")
        eventually(lambda: len(pool.live()) == 1)
        pods.delete("one")
        eventually(lambda: not cluster.claims())
        began = time.monotonic()
        eventually(lambda: not pool.promised(), seconds=5)
        print(f"free {time.monotonic() - began:.2f} s after its claim")
