"""The values file for Zero to JupyterHub and this chart's network policies: what one side lets out, the other lets in."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.deploy.helm.chart import ROOT, needs_helm, pods, render

pytestmark = needs_helm

THEIRS = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "z2jh-values.yaml").read_text())
LABELS = {"hub": THEIRS["hub"]["labels"], "singleuser": THEIRS["singleuser"]["extraLabels"]}
NAMESPACE = {"kubernetes.io/metadata.name": "gpukernel"}


def selects(peer: dict[str, Any], labels: dict[str, str], namespace: dict[str, str]) -> bool:
    """Return whether a NetworkPolicyPeer selects a pod with these labels, in a namespace with those; one without a namespace selector, its own."""
    if "namespaceSelector" not in peer:
        return False
    space = peer["namespaceSelector"].get("matchLabels", {})
    pod = peer.get("podSelector", {}).get("matchLabels", {})
    return space.items() <= namespace.items() and pod.items() <= labels.items()


def ports(rule: dict[str, Any], names: dict[str, int]) -> set[tuple[int, int]]:
    found = ((names.get(port["port"], port["port"]), port) for port in rule["ports"])
    return {(first, port.get("endPort", first)) for first, port in found}


def let_in(manifests: list[dict[str, Any]], policy: str, labels: dict[str, str]) -> set[tuple[int, int]]:
    (found,) = (m for m in manifests if m["kind"] == "NetworkPolicy" and m["metadata"]["name"] == policy)
    names = {"grpc": 7437, "metrics": 9437}
    return {
        one
        for rule in found["spec"]["ingress"]
        if any(selects(peer, labels, {"kubernetes.io/metadata.name": "jupyter"}) for peer in rule["from"])
        for one in ports(rule, names)
    }


def let_out(whose: str, pod: dict[str, Any]) -> set[tuple[int, int]]:
    return {
        one
        for rule in THEIRS[whose]["networkPolicy"]["egress"]
        if any(selects(peer, pod["metadata"]["labels"], NAMESPACE) for peer in rule["to"])
        for one in ports(rule, {})
    }


@pytest.mark.parametrize(
    ("whose", "pod", "wanted"),
    [
        ("hub", "pool", {(7437, 7437)}),
        ("singleuser", "pool", {(7437, 7437)}),
        ("singleuser", "agent-v100", {(40000, 48191)}),
    ],
)
def test_hub_and_servers_reach_what_they_need_and_no_figures(
    whose: str, pod: str, wanted: set[tuple[int, int]]
) -> None:
    manifests = render({"agents": {"v100": None}})
    found = dict(pods(manifests))[f"gpukernel-{pod}"]
    assert let_out(whose, found) == wanted
    assert let_in(manifests, f"gpukernel-{pod}", LABELS[whose]) == wanted
    assert let_in(manifests, f"gpukernel-{pod}", {"app": "anything"}) == set()
