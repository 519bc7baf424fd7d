"""The chart's values: what is wrong is refused before anything is installed, with its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.deploy.helm.chart import CHART, ChartRefused, needs_helm, render


def described(schema: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the description of every value, by its path."""
    for name, one in schema.get("properties", {}).items():
        yield f"{path}.{name}", one.get("description", "")
        yield from described(one, f"{path}.{name}")
        for part in (one.get("additionalProperties"), *one.get("anyOf", ())):
            if isinstance(part, dict):
                yield from described(part, f"{path}.{name}.*")


def paths(values: Any, path: str = "") -> Iterator[str]:
    for name, one in values.items() if isinstance(values, dict) else ():
        yield f"{path}.{name}"
        yield from paths(one, f"{path}.{name}")


def test_every_value_is_described_by_a_sentence() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    found = dict(described(schema))
    for path, sentence in found.items():
        assert sentence.endswith((".", ")")), path
        assert sentence[:1].isupper() or sentence.startswith("net."), path
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    open_ended = (".resources.", ".peers", ".clients", ".agents", ".annotations.", ".labels.")
    unknown = [
        path for path in paths(values) if path not in found and not any(o in f"{path}." for o in open_ended)
    ]
    assert unknown == []


def test_a_group_of_agents_may_set_what_the_defaults_have() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    own = schema["agents"]["additionalProperties"]["anyOf"][1]["properties"]
    assert own == schema["agentDefaults"]["properties"]
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(values["agentDefaults"]) == set(own)


@needs_helm
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"pool": {"replicas": 3}}, "pool.replicas is 3, and SQLite has room for one pool"),
        (
            {"database": {"secretName": "x", "bundled": {"enabled": True}}},
            "database.bundled.enabled and database.secretName exclude each other",
        ),
        (
            {"pool": {"clientCertificates": "require", "tls": {"enabled": False}}},
            "“require”, which needs pool.tls.enabled",
        ),
        (
            {"agents": {"a": {"workerPorts": {"first": 50000, "last": 40000}}}},
            "agents.a.workerPorts begin at 50000 and end at 40000",
        ),
        (
            {"agents": {"a": {"simulate": "v100", "resourceClaims": [{"name": "gpus"}]}}},
            "agents.a simulates GPUs and claims real ones",
        ),
        (
            {"agents": {"a": {"simulate": "v100", "wholeGpus": {"deviceClassName": "gpu.nvidia.com"}}}},
            "agents.a simulates GPUs and claims real ones",
        ),
        ({"agents": {"a": {"wholeGpus": {"deviceClassName": "x", "count": -1}}}}, "/agents/a"),
        ({"agents": {"a": {"queue": "agents"}}}, "agents.a.queue is for a Deployment"),
        (
            {"agents": {"a": {"kind": "Deployment", "queue": "q", "wholeGpus": {"deviceClassName": "x"}}}},
            "so it is not 0 with a queue",
        ),
        ({"pool": {"replica": 3}}, "'replica' not allowed"),
        ({"pool": {"replicas": 0}}, "/pool/replicas"),
        ({"pool": {"grace": "soon"}}, "/pool/grace"),
        ({"agents": {"a": {"gracePeriodSeconds": 10}}}, "/agents/a"),
        ({"agents": {"a": {"kind": "Job"}}}, "/agents/a"),
        ({"agents": {"a b": {}}}, "'a b' does not match"),
        ({"image": {"pool": {"digest": "latest"}}}, "/image/pool/digest"),
        ({"database": {"url": "postgresql://pool:secret@db/pool"}}, "'url' not allowed"),
        ({"networkPolicy": {"clients": [{}]}}, "/networkPolicy/clients/0"),
        ({"dra": {"cluster": "-lab"}}, "/dra/cluster"),
        ({"dra": {"roundTrip": {"gpu": ""}}}, "/dra/roundTrip/gpu"),
        ({"dra": {"roundTrip": {"a=b": "near"}}}, "'a=b' does not match pattern"),
        ({"dra": {"driverVersion": {"gpu": "newest"}}}, "/dra/driverVersion/gpu"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ChartRefused) as refused:
        render(values)
    assert said in str(refused.value)


@needs_helm
def test_a_group_says_only_what_is_other_than_the_defaults() -> None:
    manifests = render(
        {"agentDefaults": {"simulate": "t4"}, "agents": {"a": None, "b": {"simulate": "v100:2"}}}
    )
    simulated = {
        manifest["metadata"]["name"]: [
            word
            for word in manifest["spec"]["template"]["spec"]["containers"][0]["args"]
            if "simulate" in word
        ]
        for manifest in manifests
        if manifest["kind"] == "DaemonSet"
    }
    assert simulated == {
        "gpukernel-agent-a": ["--simulate=t4"],
        "gpukernel-agent-b": ["--simulate=v100:2"],
    }


@needs_helm
def test_the_database_s_password_is_another_one_each_time() -> None:
    def password(values: dict[str, Any]) -> str:
        (secret,) = (m for m in render(values) if m["kind"] == "Secret")
        assert secret["stringData"]["password"] in secret["stringData"]["url"]
        assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"  # as its volume
        return str(secret["stringData"]["password"])

    bundled = {"database": {"bundled": {"enabled": True}}}
    assert len(password(bundled)) == 32
    assert password(bundled) != password({**bundled, "agents": {"a": None}})
