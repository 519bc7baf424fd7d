"""Kueue's queues: their fields are those of its API, and what admits agents is what the chart's agents ask for."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpukernel.engines.kubernetes.classes import ClassLimits, class_manifests
from tests.deploy.helm.chart import ROOT, VALUES, needs_helm, render

FILE = ROOT / "deploy" / "kubernetes" / "kueue.yaml"
QUANTITY = re.compile(r"[1-9]\d*(m|[KMGTPE]i?)?")
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")

# The fields of kueue.x-k8s.io/v1beta2 that the file may use: an object by its fields, a list by its entries' form, a leaf by its pattern.
SELECTOR = {"matchLabels": {re.compile(r"[a-z0-9./-]+"): NAME}}
SPECS: dict[str, Any] = {
    "ResourceFlavor": {},
    "LocalQueue": {"clusterQueue": NAME},
    "ClusterQueue": {
        "cohortName": NAME,
        "namespaceSelector": SELECTOR,
        "queueingStrategy": re.compile("StrictFIFO|BestEffortFIFO"),
        "preemption": {
            "reclaimWithinCohort": re.compile("Never|LowerPriority|Any"),
            "withinClusterQueue": re.compile("Never|LowerPriority|LowerOrNewerEqualPriority"),
        },
        "resourceGroups": [
            {
                "coveredResources": [re.compile(r"cpu|memory|[a-z0-9.-]+/[a-z0-9-]+")],
                "flavors": [
                    {
                        "name": NAME,
                        "resources": [
                            {
                                "name": re.compile(".+"),
                                "nominalQuota": QUANTITY,
                                "borrowingLimit": QUANTITY,
                            }
                        ],
                    }
                ],
            }
        ],
    },
}


def queues() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(FILE.read_text()))


def wrong(value: Any, form: Any, where: str = "") -> Iterator[str]:
    """Yield the places of a value that are not of a form."""
    if isinstance(form, list):
        if not isinstance(value, list):
            yield where
            return
        for number, one in enumerate(value):
            yield from wrong(one, form[0], f"{where}[{number}]")
    elif isinstance(form, dict):
        for name, one in value.items() if isinstance(value, dict) else [("", value)]:
            known = [of for key, of in form.items() if key == name or (key not in ("", name) and not isinstance(key, str) and key.fullmatch(name))]  # fmt: skip
            if not known:
                yield f"{where}.{name}"
            else:
                yield from wrong(one, known[0], f"{where}.{name}")
    elif not form.fullmatch(str(value)):
        yield where


def troubles(objects: list[dict[str, Any]]) -> list[str]:
    found = []
    for one in objects:
        name = f"{one['kind']} {one['metadata']['name']}"
        if one["apiVersion"] != "kueue.x-k8s.io/v1beta2" or ("namespace" in one["metadata"]) != (
            one["kind"] == "LocalQueue"
        ):
            found.append(name)
        found += [f"{name}{place}" for place in wrong(one.get("spec", {}), SPECS[one["kind"]])]
        for group in one.get("spec", {}).get("resourceGroups", []):
            for flavor in group["flavors"]:  # Kueue wants the same resources, in the same order
                if [each["name"] for each in flavor["resources"]] != group["coveredResources"]:
                    found.append(f"{name}: resources of {flavor['name']}")
    return found


def test_every_field_is_one_of_kueue_s_api() -> None:
    assert troubles(queues()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one["spec"].update(cohort="whole-gpus"),  # of v1beta1
        lambda one: one["spec"]["preemption"].update(reclaimWithinCohort="Always"),
        lambda one: one["spec"]["resourceGroups"][0]["flavors"][0]["resources"].pop(),
        lambda one: one["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0].update(nominalQuota=-1),
    ],
)
def test_a_wrong_field_is_noticed(change: Any) -> None:
    objects = copy.deepcopy(queues())
    change(next(one for one in objects if one["metadata"]["name"] == "batch-gpus"))
    assert len(troubles(objects)) == 1


def test_queues_and_flavors_name_each_other() -> None:
    objects = queues()
    names = {kind: {one["metadata"]["name"] for one in objects if one["kind"] == kind} for kind in SPECS}
    for one in objects:
        if one["kind"] == "LocalQueue":
            assert one["spec"]["clusterQueue"] in names["ClusterQueue"]
        for group in one.get("spec", {}).get("resourceGroups", []):
            assert {flavor["name"] for flavor in group["flavors"]} <= names["ResourceFlavor"]
    (slices,) = (one for one in objects if one["metadata"]["name"] == "gpukernel-slices")
    limits = ClassLimits(count=1, memory="4Gi", total="4Gi")
    shown = {
        one["spec"].get("extendedResourceName") for one in class_manifests([("v100", "Tesla V100")], limits)
    }
    assert shown & set(slices["spec"]["resourceGroups"][0]["coveredResources"])


@needs_helm
def test_the_chart_s_agents_ask_in_a_queue_that_is_there() -> None:
    local = {one["metadata"]["name"] for one in queues() if one["kind"] == "LocalQueue"}
    asked = {
        m["metadata"]["name"]: m["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
        for m in render(VALUES["agents that give whole GPUs back at night"])
        if "kueue.x-k8s.io/queue-name" in m["metadata"].get("labels", {})
    }
    assert asked == {"gpukernel-agent-a100": "agents"}
    assert set(asked.values()) <= local
