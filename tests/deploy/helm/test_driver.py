"""The DRA driver's manifests for those without Helm: the chart's pods, in a file that kubectl applies as it is."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import yaml

from tests.deploy.helm.chart import ROOT, VALUES, needs_helm, pods, render

FOLDER = ROOT / "deploy" / "kubernetes"
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / "driver.yaml").read_text()))


def named(kind: str, file: str = "driver.yaml") -> set[str]:
    found = yaml.safe_load_all((FOLDER / file).read_text())
    return {one["metadata"]["name"] for one in found if one["kind"] == kind}


@needs_helm
@pytest.mark.parametrize("part", ["controller", "node"])
def test_its_pods_are_the_chart_s(part: str) -> None:
    chart = dict(pods(render({"dra": {"enabled": True, "secretName": "gpukernel-pool"}})))
    theirs, ours = chart[f"gpukernel-dra-{part}"]["spec"], dict(pods(MANIFESTS))[f"gpukernel-{part}"]["spec"]
    assert theirs.pop("serviceAccountName") == f"gpukernel-dra-{part}"
    assert ours == theirs | {"serviceAccountName": f"gpukernel-{part}"}


@needs_helm
def test_the_controller_is_told_what_selectors_ask_for() -> None:
    (told,) = (
        pod["spec"]["containers"][0]["args"]
        for name, pod in pods(render(VALUES["the DRA driver"]))
        if name == "gpukernel-dra-controller"
    )
    assert {word for word in told if word.startswith(("--round-trip", "--driver-version"))} == {
        "--round-trip=gpu=near",
        "--round-trip=far-=far",
        "--driver-version=gpu=570.86.10",
    }


def test_accounts_have_the_roles_of_the_other_file() -> None:
    assert named("ServiceAccount") == {"gpukernel-controller", "gpukernel-node"}
    for binding in (one for one in MANIFESTS if one["kind"] == "ClusterRoleBinding"):
        (subject,) = binding["subjects"]
        assert subject["name"] == binding["roleRef"]["name"]
        assert subject["name"] in named("ServiceAccount")
        assert binding["roleRef"]["name"] in named("ClusterRole", "rbac.yaml")
    for name, pod in pods(MANIFESTS):
        (kept,) = (
            one["spec"]["selector"]["matchLabels"]
            for one in MANIFESTS
            if one["metadata"].get("labels") == {"app": name}
        )
        assert kept == pod["metadata"]["labels"]


def test_its_image_is_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {one["spec"]["containers"][0]["image"].rpartition(":")[2] for _, one in pods(MANIFESTS)} == {
        version
    }


@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36", "1.37"])
def test_every_manifest_is_one_of_this_kubernetes(version: str) -> None:
    validation = pytest.importorskip("kubernetes_validate")
    for manifest in MANIFESTS:
        assert validation.validate(manifest, version, strict=True) == version
