"""The chart's manifests: ones that every supported Kubernetes knows, pods without rights, and a network that is closed by default."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpukernel.engines.kubernetes.agent_hours import HOURS, ZONE
from tests.deploy.helm.chart import ROOT, VALUES, containers, lint, needs_helm, pods, render

pytestmark = needs_helm

KUBERNETES = ["1.34", "1.35", "1.36", "1.37"]
ROOT_FOR = {"gpukernel-dra-node/node": "the folders of the kubelet and of CDI are root's"}


@pytest.fixture(params=VALUES.values(), ids=VALUES)
def manifests(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return render(request.param)


def of_kind(manifests: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_helm_finds_nothing_to_complain_about(values: dict[str, Any]) -> None:
    assert lint(values) == []


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_validate") is None, reason="needs kubernetes-validate from PyPI"
)
def test_every_manifest_is_one_of_this_kubernetes(manifests: list[dict[str, Any]], version: str) -> None:
    import kubernetes_validate

    for manifest in manifests:
        if manifest["kind"] == "ServiceMonitor":  # the Prometheus operator's, which is no part of Kubernetes
            continue
        assert kubernetes_validate.validate(manifest, version, strict=True) == version
    wrong = json.loads(json.dumps(of_kind(manifests, "StatefulSet")[0]))
    wrong["spec"]["template"]["spec"]["containers"][0]["readOnlyRootFilesystem"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_the_service_monitor_finds_the_figures() -> None:
    manifests = render(VALUES["three pools on the bundled PostgreSQL"])
    (monitor,) = of_kind(manifests, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    (service,) = (s for s in of_kind(manifests, "Service") if wanted <= s["metadata"]["labels"].items())
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (pool,) = (pod for name, pod in pods(manifests) if name == "gpukernel-pool")
    assert service["spec"]["selector"].items() <= pool["metadata"]["labels"].items()


def test_containers_have_no_rights(manifests: list[dict[str, Any]]) -> None:
    pod_of = {
        f"{name}/{container['name']}": pod
        for name, pod in pods(manifests)
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
    }
    for name, container in containers(manifests):
        own, pods_own = container["securityContext"], pod_of[name]["spec"]["securityContext"]
        assert own["allowPrivilegeEscalation"] is False, name
        assert own["readOnlyRootFilesystem"] is True, name
        assert own["capabilities"] == {"drop": ["ALL"]}, name
        assert "privileged" not in own, name
        assert pods_own["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert name in ROOT_FOR or (pods_own["runAsNonRoot"] is True and pods_own["runAsUser"] > 0), name
    for name, pod in pods(manifests):
        for way_out in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
            assert way_out not in pod["spec"], name


def test_the_host_s_files_are_those_that_are_needed(manifests: list[dict[str, Any]]) -> None:
    mounted = {
        (volume["hostPath"]["path"], mount.get("readOnly", False))
        for _, pod in pods(manifests)
        for volume in pod["spec"].get("volumes", ())
        for container in pod["spec"]["containers"]
        for mount in container["volumeMounts"]
        if "hostPath" in volume and volume["name"] == mount["name"]
    }
    assert mounted <= {
        ("/etc/machine-id", True),
        ("/var/lib/kubelet/plugins", False),
        ("/var/lib/kubelet/plugins_registry", False),
        ("/var/run/cdi", False),
        ("/run/gpukernel-claims", False),
        ("/var/lib/gpukernel/libraries", False),
    }


def test_what_is_written_can_be_written(manifests: list[dict[str, Any]]) -> None:
    for name, container in containers(manifests):
        places = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
        for word in container.get("args", ()):
            option, _, value = word.partition("=")
            if option == "--state":
                assert any(value.startswith(f"{place}/") for place in places), (name, word)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for part in value.values():
            yield from strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)
    elif isinstance(value, str):
        yield value


def test_secrets_are_in_secrets_and_nowhere_else(manifests: list[dict[str, Any]]) -> None:
    secrets = [text for secret in of_kind(manifests, "Secret") for text in strings(secret["stringData"])]
    bundled = any("database/" in name for name, _ in containers(manifests))
    assert bool(secrets) == bundled
    rest = json.dumps([m for m in manifests if m["kind"] != "Secret"])
    assert not any(secret in rest for secret in secrets)
    assert not of_kind(manifests, "ConfigMap")
    for name, container in containers(manifests):
        assert "envFrom" not in container, name
        for variable in container.get("env", ()):
            # A file that only the process reads, never a variable, which its children and /proc have too.
            assert "secretKeyRef" not in variable.get("valueFrom", {}), (name, variable)
            assert "://" not in variable.get("value", ""), (name, variable)
        assert not any("token" in word and "validity" not in word for word in container.get("args", ())), name


def test_an_agent_has_its_own_node_s_file_and_no_other_s(manifests: list[dict[str, Any]]) -> None:
    for name, container in containers(manifests):
        if name.endswith("/agent"):
            (mount,) = (m for m in container["volumeMounts"] if m["name"] == "servers")
            assert mount["subPathExpr"] == "$(NODE_NAME).pool"
            assert f"--pool={mount['mountPath']}" in container["args"]


def test_only_the_dra_driver_and_the_hours_talk_to_kubernetes(manifests: list[dict[str, Any]]) -> None:
    for name, pod in pods(manifests):
        assert pod["spec"]["automountServiceAccountToken"] == ("-dra-" in name or "-hours" in name), name
    if not any("-dra-" in name for name, _ in pods(manifests)):
        assert not of_kind(manifests, "ClusterRole", "ClusterRoleBinding")
        if not any("-hours" in name for name, _ in pods(manifests)):
            assert not of_kind(manifests, "Role", "RoleBinding", "ServiceAccount")


def test_the_hours_may_change_agents_with_a_schedule_and_nothing_else() -> None:
    manifests = render(VALUES["agents that give whole GPUs back at night"])
    (role,) = of_kind(manifests, "Role")
    rights = {
        (*rule["apiGroups"], resource, verb, *rule.get("resourceNames", ()))
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert rights == {
        ("apps", "daemonsets", "list"),
        ("apps", "deployments", "list"),
        ("apps", "daemonsets", "patch", "gpukernel-agent-v100"),
        ("apps", "deployments", "patch", "gpukernel-agent-a100"),
    }
    (binding,) = of_kind(manifests, "RoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_agents_claim_whole_gpus_and_say_their_hours() -> None:
    manifests = render(VALUES["agents that give whole GPUs back at night"])
    templates = {
        m["metadata"]["name"]: m["spec"]["spec"] for m in of_kind(manifests, "ResourceClaimTemplate")
    }
    asked = {name: spec["devices"]["requests"][0]["exactly"] for name, spec in templates.items()}
    assert asked == {
        "gpukernel-agent-v100": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"},
        "gpukernel-agent-a100": {
            "deviceClassName": "gpu.nvidia.com",
            "allocationMode": "ExactCount",
            "count": 4,
        },
    }
    for name, pod in pods(manifests):
        claims = pod["spec"].get("resourceClaims", [])
        assert [one["resourceClaimTemplateName"] for one in claims] == ([name] if name in asked else [])
        (container,) = pod["spec"]["containers"]
        assert container["resources"].get("claims", []) == [{"name": one["name"]} for one in claims]
    hours = {
        m["metadata"]["name"]: m["metadata"].get("annotations", {})
        for m in of_kind(manifests, "DaemonSet", "Deployment")
    }
    assert hours["gpukernel-agent-v100"] == {HOURS: "Mo-Fr 8-18", ZONE: "UTC"}
    assert hours["gpukernel-agent-a100"] == {HOURS: "Mo,We 8:30-12; Sa 22-6", ZONE: "Europe/Berlin"}
    assert hours["gpukernel-agent-always"] == {}


def test_the_dra_driver_s_rights_are_as_few_as_can_be() -> None:
    manifests = render(VALUES["the DRA driver"])
    rights = {
        (role["metadata"]["name"].rpartition("dra-")[2], resource, verb)
        for role in of_kind(manifests, "ClusterRole")
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert not any("*" in part for right in rights for part in right)
    writes = {right for right in rights if right[2] not in ("get", "list", "watch")}
    assert {(who, what) for who, what, _ in writes} == {
        ("controller", "resourceslices"),
        ("controller", "resourceclaims/status"),
        ("controller", "resourceclaims/driver"),
    }
    assert {right for right in rights if right[0] == "node"} == {("node", "resourceclaims", "get")}
    groups = {g for role in of_kind(manifests, "ClusterRole") for r in role["rules"] for g in r["apiGroups"]}
    assert groups == {"", "resource.k8s.io"}
    core = {resource for _, resource, _ in rights if not resource.startswith("resource")}
    assert core == {"namespaces"}  # no Secrets, no pods, no nodes
    accounts = {account["metadata"]["name"] for account in of_kind(manifests, "ServiceAccount")}
    for binding in of_kind(manifests, "ClusterRoleBinding"):
        assert binding["roleRef"]["name"] in {
            r["metadata"]["name"] for r in of_kind(manifests, "ClusterRole")
        }
        assert {subject["name"] for subject in binding["subjects"]} <= accounts


def test_the_network_is_closed_but_for_what_is_named(manifests: list[dict[str, Any]]) -> None:
    policies = of_kind(manifests, "NetworkPolicy")
    if not policies:
        return  # as the values say
    (closed,) = (p for p in policies if p["metadata"]["name"] == "gpukernel-closed")
    assert set(closed["spec"]) == {"podSelector", "policyTypes"}
    everybody = closed["spec"]["podSelector"]["matchLabels"].items()
    for name, pod in pods(manifests):
        assert everybody <= pod["metadata"]["labels"].items(), name
        policy = [
            p
            for p in policies
            if p is not closed
            and p["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        ]
        assert len(policy) == 1, name
        ports = {port["name"] for c in pod["spec"]["containers"] for port in c.get("ports", ())}
        for rule in policy[0]["spec"].get("ingress", ()):
            assert rule["from"], name  # an empty list were everybody
            assert all(peer for peer in rule["from"]), name
            assert all(isinstance(p["port"], int) or p["port"] in ports for p in rule["ports"]), name
    for policy in policies:
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        assert all(rule["ports"] for rule in policy["spec"].get("egress", ()))


def test_workers_listen_where_the_network_is_open() -> None:
    values = {"agents": {"v100": {"workerPorts": {"first": 50000, "last": 50999}}}}
    manifests = render(values)
    (agent,) = (pod for name, pod in pods(manifests) if name == "gpukernel-agent-v100")
    (policy,) = (
        p for p in of_kind(manifests, "NetworkPolicy") if p["metadata"]["name"].endswith("agent-v100")
    )
    (opened,) = policy["spec"]["ingress"][0]["ports"]
    (setting,) = agent["spec"]["securityContext"]["sysctls"]
    assert setting == {
        "name": "net.ipv4.ip_local_port_range",
        "value": f"{opened['port']} {opened['endPort']}",
    }


def test_an_eviction_leaves_a_pool_and_nothing_stands_in_the_way_of_one(
    manifests: list[dict[str, Any]],
) -> None:
    pools = next(
        m["spec"]["replicas"]
        for m in manifests
        if m["metadata"]["name"] == "gpukernel-pool" and "replicas" in m["spec"]
    )
    budgets = {b["metadata"]["name"]: b["spec"] for b in of_kind(manifests, "PodDisruptionBudget")}
    if pools > 1:
        assert pools - budgets["gpukernel-pool"]["maxUnavailable"] >= 1
    else:
        # One pool may go: slices live without it for the grace.  A budget would keep its node from ever being drained.
        assert "gpukernel-pool" not in budgets
    labels = dict(pods(manifests))
    for name, budget in budgets.items():
        assert budget["selector"]["matchLabels"].items() <= labels[name]["metadata"]["labels"].items()
        assert budget["maxUnavailable"] == 1
        # A DaemonSet has no number of replicas that a budget could count.
        assert not any(m["metadata"]["name"] == name for m in of_kind(manifests, "DaemonSet"))


def test_names_and_selectors_are_each_other_s(manifests: list[dict[str, Any]]) -> None:
    names = [(m["kind"], m["metadata"]["name"]) for m in manifests]
    assert len(names) == len(set(names))
    for manifest in of_kind(manifests, "StatefulSet", "Deployment", "DaemonSet"):
        spec = manifest["spec"]
        assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    for service in of_kind(manifests, "Service"):
        (pod,) = (
            p
            for _, p in pods(manifests)
            if service["spec"]["selector"].items() <= p["metadata"]["labels"].items()
        )
        ports = {port["name"] for c in pod["spec"]["containers"] for port in c["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_two_releases_side_by_side_share_nothing() -> None:
    values = VALUES["the DRA driver"]
    names = [
        {(m["kind"], m["metadata"]["name"]) for m in render(values, name=name)}
        for name in ("gpukernel", "lab")
    ]
    assert not names[0] & names[1]
    assert ("StatefulSet", "lab-gpukernel-pool") in names[1]


def test_the_chart_and_the_plain_files_give_the_dra_driver_the_same_rights() -> None:
    def rights(roles: list[dict[str, Any]], name: str) -> set[tuple[str, ...]]:
        (role,) = (one for one in roles if one["metadata"]["name"].endswith(name))
        return {
            (r, verb, *rule.get("resourceNames", ()))
            for rule in role["rules"]
            for r in rule["resources"]
            for verb in rule["verbs"]
        }

    plain = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "rbac.yaml").read_text()))
    chart = of_kind(render(VALUES["the DRA driver"]), "ClusterRole")
    for ours, theirs in (("dra-controller", "gpukernel-controller"), ("dra-node", "gpukernel-node")):
        assert rights(chart, ours) == rights(plain, theirs)
