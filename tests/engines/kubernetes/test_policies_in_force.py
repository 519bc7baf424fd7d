"""The policies as Kubernetes' own API server keeps them: what they refuse, and that nothing of the API leads around them.

`test_admission` evaluates the same expressions without a cluster; here are types, costs, versions of the API, subresources and roles.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.conftest import Pool, eventually
from tests.deploy.helm.chart import VALUES, needs_helm, render
from tests.engines.kubernetes.cluster import Cluster
from tests.engines.kubernetes.control_plane import ControlPlane
from tests.engines.kubernetes.test_admission import (
    FOLDER,
    LIMITS,
    MANIFESTS,
    alternatives,
    claim,
    pod,
    request,
)
from tests.engines.kubernetes.test_scheduler import classes

GROUP = "/apis/resource.k8s.io"
SLICES, CLASS_S = "gpukernel.io/v100-slice", "deviceclass.resource.kubernetes.io/v100.gpukernel.io"


class Namespace:
    """A namespace in which the policies count; writes are tried and not carried out unless they are `kept`."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.plane, self.name = plane, name

    def path(self, one: dict[str, Any]) -> str:
        root = "/api/v1" if one["apiVersion"] == "v1" else f"/apis/{one['apiVersion']}"
        return f"{root}/namespaces/{self.name}/{one['kind'].lower()}s"

    def create(self, one: dict[str, Any], *, kept: bool = False, user: str = "") -> str:
        """Create an object; return why it is refused, empty where it is not."""
        one = copy.deepcopy(one)
        one["metadata"].pop("namespace", None)
        query = {} if kept else {"dryRun": "All"}
        return said(self.plane.ask("POST", self.path(one), one, user=user, **query))

    def patch(self, kind: str, name: str, patch: dict[str, Any], *, part: str = "", user: str = "") -> str:
        root = "/api/v1" if kind == "pods" else f"{GROUP}/v1"
        where = f"{root}/namespaces/{self.name}/{kind}/{name}{part}"
        return said(self.plane.ask("PATCH", where, patch, user=user))


def bind(plane: ControlPlane, namespace: str, *roles: tuple[str, str]) -> None:
    """Give people roles in a namespace, those of ``rbac.yaml`` or Kubernetes' own."""
    rbac = "rbac.authorization.k8s.io"
    for one in yaml.safe_load_all((FOLDER / "rbac.yaml").read_text()):
        assert plane.apply(one).is_success
    for user, role in roles:
        bound = plane.apply(
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "RoleBinding",
                "metadata": {"name": f"{user}-{role}", "namespace": namespace},
                "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": rbac, "kind": "User", "name": user}],
            }
        )
        assert bound.is_success, bound.text


def said(answer: Any) -> str:
    return "" if answer.is_success else str(answer.json()["message"])


@pytest.fixture
def namespace(plane: ControlPlane, cluster: Cluster, lent_pool: Pool) -> Iterator[Namespace]:
    bounds = ("--max-count", str(LIMITS.count), "--max-memory", LIMITS.memory)
    for one in classes(lent_pool, *bounds, "--max-total-memory", LIMITS.total):
        assert plane.apply(one).is_success
    policies = list(yaml.safe_load_all((FOLDER / "admission.yaml").read_text()))
    for one in policies:
        made = plane.apply(one)
        assert made.is_success, made.text
        assert "typeChecking" not in str(made.json().get("status"))
    own = Namespace(plane, cluster.namespace)
    account = f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts/default"
    eventually(lambda: plane.ask("GET", account).status_code == 200)
    # They count a moment after they are written.
    eventually(lambda: own.create(claim(request("1Gi", 9))) and own.create(pod({SLICES: "9"})))
    yield own
    for one in policies:
        plural = (
            "validatingadmissionpolicies"
            if one["kind"].endswith("Policy")
            else "validatingadmissionpolicybindings"
        )
        plane.ask("DELETE", f"/apis/{one['apiVersion']}/{plural}/{one['metadata']['name']}")


def test_the_api_s_type_checker_finds_nothing(plane: ControlPlane, namespace: Namespace) -> None:
    # The controller that would check is told off by nobody here: the API compiles expressions at each write, and refuses what it cannot.
    for one in yaml.safe_load_all((FOLDER / "admission.yaml").read_text()):
        if one["kind"] == "ValidatingAdmissionPolicy":
            wrong = copy.deepcopy(one)
            wrong["metadata"]["name"] = "wrong"
            wrong["spec"]["validations"][0]["expression"] = "variables.nothing.at.all"
            assert "undefined field 'nothing'" in said(plane.apply(wrong, dryRun="All"))


@pytest.mark.parametrize("template", [False, True])
def test_claims_are_bounded_as_the_sentences_say(namespace: Namespace, template: bool) -> None:
    for inside in ([request("655Mi")], [request("3Gi", 2)], [request(), request("4Gi")]):
        assert namespace.create(claim(*inside, template=template)) == ""
    for beyond, sentence in (
        ([request("8Gi")], "A slice of v100.gpukernel.io has at most 4Gi of memory"),
        ([request("1Gi", 3)], "3 slices of v100.gpukernel.io are asked for; one claim has at most 2."),
        ([request("1Gi", 1), request("1Gi", 2)], "3 slices of v100.gpukernel.io are asked for"),
        (
            [request("4Gi", 2)],
            "The slices of v100.gpukernel.io have 8192 MiB together; one claim has at most 6Gi.",
        ),
        ([request("8589934592")], "has at most 4Gi of memory"),
        ([request("8388608k")], "has at most 4Gi of memory"),
        ([request("8Gi", device_class="gpukernel.io")], "A slice of gpukernel.io has at most 4Gi of memory"),
    ):
        assert sentence in namespace.create(claim(*beyond, template=template))
    everything = request()
    everything.pop("count")
    everything["allocationMode"] = "All"
    assert "“All” is not possible" in namespace.create(claim(everything, template=template))


def test_alternatives_are_bounded(namespace: Namespace) -> None:
    assert namespace.create(alternatives([request("4Gi"), request("3Gi", 2)])) == ""
    assert "has at most 4Gi of memory" in namespace.create(alternatives([request("1Gi"), request("5Gi")]))
    one = [request("1Gi"), request("3Gi")]
    assert "3 slices of v100" in namespace.create(alternatives(one, one, one))


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_an_older_version_of_the_api_is_no_way_around(namespace: Namespace, version: str) -> None:
    def older(made: dict[str, Any]) -> dict[str, Any]:
        made["apiVersion"] = f"resource.k8s.io/{version}"
        if version == "v1beta1":
            for one in made["spec"]["devices"]["requests"]:
                one.update(one.pop("exactly"))
        return made

    assert namespace.create(older(claim(request("655Mi")))) == ""
    assert "has at most 4Gi of memory" in namespace.create(older(claim(request("8Gi"))))


def test_a_change_is_no_way_around(namespace: Namespace) -> None:
    assert namespace.create(claim(request("655Mi")), kept=True) == ""
    more = {"spec": claim(request("1Gi"))["spec"]}
    assert "immutable" in namespace.patch("resourceclaims", "one", more)
    assert namespace.create(claim(request("655Mi"), template=True), kept=True) == ""
    more = {"spec": claim(request("8Gi"), template=True)["spec"]}
    refusal = namespace.patch("resourceclaimtemplates", "one", more)
    assert "immutable" in refusal or "has at most 4Gi" in refusal


def test_pods_are_bounded_in_every_kind_of_container(namespace: Namespace) -> None:
    def first(limits: dict[str, str], **more: Any) -> list[dict[str, Any]]:
        return [{"name": "i", "image": "i", "resources": {"limits": limits}, **more}]

    assert namespace.create(pod({SLICES: "2"})) == ""
    sentence = "3 slices of v100.gpukernel.io are asked for; one pod has at most 2."
    for beyond in (
        pod({SLICES: "3"}),
        pod({SLICES: "3e0"}),
        pod({CLASS_S: "3"}),
        pod({SLICES: "2"}, {CLASS_S: "1"}),
        pod({}, initContainers=first({SLICES: "3"})),
        pod({SLICES: "1"}, initContainers=first({SLICES: "2"}, restartPolicy="Always")),
    ):
        assert sentence in namespace.create(beyond), beyond


def test_no_part_of_a_pod_asks_for_slices_unseen(namespace: Namespace) -> None:
    only_requested = pod({})
    only_requested["spec"]["containers"][0]["resources"] = {"requests": {SLICES: "9"}}
    assert "Limit must be set" in namespace.create(only_requested)
    of_the_pod = pod({}, resources={"limits": {SLICES: "9"}})
    assert "nsupported" in namespace.create(of_the_pod)
    made_by_hand = pod({}, resourceClaims=[{"name": "x", "resourceClaimName": "x"}])
    assert namespace.create(made_by_hand) == ""  # a claim is bounded where it is made

    running = pod({"cpu": "1"})
    assert namespace.create(running, kept=True) == ""
    beside = {"name": "debug", "image": "i", "resources": {"limits": {SLICES: "9"}}}
    refusal = namespace.patch(
        "pods", "one", {"spec": {"ephemeralContainers": [beside]}}, part="/ephemeralcontainers"
    )
    assert "resources" in refusal
    beside = {"name": "debug", "image": "i", "resources": {"claims": [{"name": "x"}]}}
    refusal = namespace.patch(
        "pods", "one", {"spec": {"ephemeralContainers": [beside]}}, part="/ephemeralcontainers"
    )
    assert "resources" in refusal
    containers = copy.deepcopy(running["spec"]["containers"])
    containers[0]["resources"] = {"limits": {"cpu": "1", SLICES: "9"}}
    for part in ("", "/resize"):
        assert namespace.patch("pods", "one", {"spec": {"containers": containers}}, part=part) != ""
    claims = {"spec": {"resourceClaims": [{"name": "x", "resourceClaimName": "x"}]}}
    assert namespace.patch("pods", "one", claims) != ""


def test_who_works_in_a_namespace_forges_nothing(
    plane: ControlPlane, cluster: Cluster, namespace: Namespace
) -> None:
    bind(plane, namespace.name, ("bob", "admin"))
    # An allocation that comes with a claim is dropped by the API, and so is a uid of another's.
    forged = claim(request("655Mi"))
    result = {"request": "r0", "driver": "gpukernel.io", "pool": "gpukernel", "device": "gpu-0"}
    forged["status"] = {"allocation": {"devices": {"results": [result]}}}
    forged["metadata"]["uid"] = "7a1c1f4e-0000-0000-0000-000000000000"
    eventually(
        lambda: namespace.create(forged, user="bob") == ""
    )  # “admin” is made of other roles, a moment later
    assert namespace.create(forged, kept=True, user="bob") == ""
    made = cluster.get("one")
    assert made.status is None or made.status.allocation is None
    assert made.metadata.uid != forged["metadata"]["uid"]
    # Nor can it be written later, nor what the scheduler, the driver and the namespace say.
    forbidden = "bob" + '" cannot '
    for part in ("/status", "/binding", "/driver"):
        refusal = namespace.patch(
            "resourceclaims", "one", {"status": forged["status"]}, part=part, user="bob"
        )
        assert forbidden in refusal or "could not find" in refusal, refusal
    for path in (f"{GROUP}/v1/deviceclasses/v100.gpukernel.io", f"/api/v1/namespaces/{namespace.name}"):
        refusal = said(
            plane.ask("PATCH", path, {"metadata": {"labels": {"gpukernel.io/course": "x"}}}, user="bob")
        )
        assert forbidden in refusal, path
    for plural in ("deviceclasses", "resourceslices"):
        assert forbidden in said(plane.ask("POST", f"{GROUP}/v1/{plural}", {}, user="bob"))
    other = claim(request("1Gi"))
    assert forbidden in said(
        plane.ask("POST", f"{GROUP}/v1/namespaces/default/resourceclaims", other, user="bob")
    )
    # An administrator's view of all devices needs a label of the namespace.
    assert "admin access" in namespace.create(claim(request("1Gi", adminAccess=True)), user="bob")


def test_only_who_may_speak_for_a_person_names_one(
    plane: ControlPlane, cluster: Cluster, namespace: Namespace
) -> None:
    bind(
        plane,
        namespace.name,
        ("bob", "admin"),
        ("hub", "admin"),
        ("hub", "gpukernel-persons"),
    )
    cluster.label(persons="by-claim")
    named = claim(request("655Mi"))
    named["metadata"]["annotations"] = {"gpukernel.io/person": "anna"}
    sentence = "bob may not ask for slices of anna: that takes the verb “use” on gpukernel.io/persons in this namespace."
    eventually(lambda: sentence in namespace.create(named, user="bob"))
    assert namespace.create(named, user="hub") == ""
    assert namespace.create(claim(request("655Mi")), kept=True, user="bob") == ""
    written = {"metadata": {"annotations": named["metadata"]["annotations"]}}
    assert sentence in namespace.patch("resourceclaims", "one", written, user="bob")
    # Whoever writes a claim's status changes no annotation with it.
    assert (
        namespace.patch("resourceclaims", "one", {"metadata": {"annotations": {"x": "y"}}}, part="/status")
        == ""
    )
    assert "x" not in (cluster.get("one").metadata.annotations or {})
    template = claim(request("655Mi"), template=True)
    template["spec"]["metadata"] = {"annotations": {"gpukernel.io/person": "anna"}}
    assert sentence in namespace.create(template, user="bob")
    assert namespace.create(template, kept=True, user="hub") == ""
    # Kubernetes' controller makes claims of that template, in nobody's name but the template's.
    asks = pod({}, resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one"}])
    eventually(
        lambda: namespace.create(asks, user="bob") == ""
    )  # “admin” is made of other roles, a moment later
    assert namespace.create(asks, kept=True, user="bob") == ""
    eventually(
        lambda: [
            one
            for one in cluster.claims()
            if (one.metadata.annotations or {}).get("gpukernel.io/person") == "anna"
        ]
    )


def test_every_manifest_is_taken(plane: ControlPlane) -> None:
    for name in ("gpukernel", "jupyter"):
        plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for file in MANIFESTS:
        for one in yaml.safe_load_all((FOLDER / f"{file}.yaml").read_text()):
            if "namespace" not in one["metadata"] and one["kind"] in (
                "Pod",
                "ResourceClaim",
                "ResourceClaimTemplate",
            ):
                one["metadata"]["namespace"] = "gpukernel"
            for account in ("gpukernel", "jupyter"):
                eventually(
                    lambda account=account: (
                        plane.ask("GET", f"/api/v1/namespaces/{account}/serviceaccounts/default").is_success
                    )
                )
            made = plane.apply(one, dryRun="All")
            assert made.is_success, f"{file}: {made.text}"


@needs_helm
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_chart_s_manifests_are_taken(plane: ControlPlane, values: dict[str, Any]) -> None:
    where = "gpukernel-system"
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": where}})
    cluster_wide = ("ClusterRole", "ClusterRoleBinding", "PriorityClass")
    for one in render(values):
        if one["kind"] == "ServiceMonitor":  # the Prometheus operator's
            continue
        if one["kind"] not in cluster_wide:
            one["metadata"].setdefault("namespace", where)
        made = plane.apply(one, dryRun="All")
        assert made.is_success, f"{one['kind']} {one['metadata']['name']}: {made.text}"
