"""The chart as Helm renders it: Helm's SDK in a process of its own, since its Go runtime changes how signals are handled."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

__all__ = ["CHART", "VALUES", "ChartRefused", "containers", "lint", "needs_helm", "pods", "render"]

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "helm" / "gpukernel"
RELEASE, NAMESPACE = "gpukernel", "gpukernel-system"

# What administrators would write, each a way of its own through the templates.
VALUES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "one pool on SQLite": {
        "agents": {"v100": {"resources": {"limits": {"nvidia.com/gpu": 4}}}},
        "pool": {"storage": {"className": "fast"}, "nodeSelector": {"disk": "ssd"}},
    },
    "three pools on PostgreSQL elsewhere": {
        "pool": {
            "replicas": 3,
            "clientCertificates": "require",
            "hubApi": "https://hub.example.edu/hub/api",
            "service": {"type": "LoadBalancer", "annotations": {"lb": "internal"}},
        },
        "database": {"secretName": "pool-database", "peers": [{"ipBlock": {"cidr": "10.0.3.0/24"}}]},
        "networkPolicy": {"hub": {"peers": [{"podSelector": {"matchLabels": {"component": "hub"}}}]}},
        "imagePullSecrets": [{"name": "registry"}],
        "image": {"pool": {"digest": "sha256:" + "a" * 64}},
    },
    "three pools on the bundled PostgreSQL": {
        "pool": {"replicas": 3},
        "database": {"bundled": {"enabled": True, "storage": {"className": "fast"}}},
        "monitoring": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    },
    "no agents, no TLS, nothing closed": {
        "agents": {},
        "pool": {"tls": {"enabled": False}},
        "networkPolicy": {"enabled": False},
    },
    "agents of every kind, drained with ten minutes": {
        "agentDefaults": {"gracePeriodSeconds": 600, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
        "agents": {
            "v100": {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "four-v100"}]},
            "a100": {"kind": "Deployment", "replicas": 7, "runtimeClassName": "nvidia"},
            "simulated": {"simulate": "v100:2", "gracePeriodSeconds": 60},
            "plain": None,
        },
    },
    "agents that give whole GPUs back at night": {
        "agents": {
            "v100": {"wholeGpus": {"deviceClassName": "gpu.nvidia.com"}, "schedule": "Mo-Fr 8-18"},
            "a100": {
                "kind": "Deployment",
                "replicas": 3,
                "wholeGpus": {"deviceClassName": "gpu.nvidia.com", "count": 4},
                "schedule": "Mo,We 8:30-12; Sa 22-6",
                "scheduleZone": "Europe/Berlin",
                "queue": "agents",
            },
            "always": {"simulate": "v100:2"},
        },
    },
    "the DRA driver": {
        "dra": {
            "enabled": True,
            "cluster": "lab",
            "roundTrip": {"gpu": "near", "far-": "far"},
            "driverVersion": {"gpu": "570.86.10"},
            "node": {"nodeSelector": {"slices": "yes"}},
        },
        "networkPolicy": {"apiServer": {"peers": [{"ipBlock": {"cidr": "10.96.0.1/32"}}]}},
    },
}

needs_helm = pytest.mark.skipif(
    importlib.util.find_spec("helm_python") is None, reason="needs Helm's SDK: pip install helm-python-sdk"
)

_PROGRAM = """
import json, sys
import helm_python as helm
what, chart, values, name, namespace = json.load(sys.stdin)
try:
    if what == "lint":
        found = helm.lint(chart, values, strict=True)
    else:
        found = helm.Chart.load(chart).render(values, name=name, namespace=namespace)
    print(json.dumps({"found": found}))
except helm.HelmError as error:
    print(json.dumps({"refused": str(error)}))
"""


class ChartRefused(Exception):
    """An error: Helm does not render the chart with these values; its text is Helm's."""


@cache
def _helm(what: str, chart: Path, values: str, name: str) -> Any:
    asked = json.dumps([what, str(chart), json.loads(values), name, NAMESPACE])
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=asked,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    answer = json.loads(done.stdout)
    if "refused" in answer:
        raise ChartRefused(answer["refused"])
    return answer["found"]


def lint(values: Mapping[str, Any], chart: Path = CHART) -> list[str]:
    """Return what ``helm lint --strict`` says of the chart with `values`, but for what is only information."""
    found = _helm("lint", chart, json.dumps(values), RELEASE)
    return [*(m["error"] for m in found["messages"] if m["severity"] != 1), *found["errors"]]


def render(values: Mapping[str, Any], chart: Path = CHART, name: str = RELEASE) -> list[dict[str, Any]]:
    """Return the manifests that ``helm template`` makes with `values`.

    Raises
    ------
    ChartRefused
        Where Helm, the values' schema or the chart itself refuses them.
    """
    rendered = _helm("render", chart, json.dumps(values), name)
    texts = (text for path, text in rendered.items() if not path.endswith("NOTES.txt"))
    return [manifest for text in texts for manifest in yaml.safe_load_all(text) if manifest]


def pods(manifests: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of what makes pods, and the pods' template."""
    for manifest in manifests:
        if "template" in manifest.get("spec", {}):
            yield manifest["metadata"]["name"], manifest["spec"]["template"]


def containers(manifests: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield all containers, those that initialize pods among them, with a name to show."""
    for name, pod in pods(manifests):
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            yield f"{name}/{container['name']}", container
