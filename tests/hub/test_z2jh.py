"""The values file for Zero to JupyterHub as far as it goes without a cluster: what the chart would run, in a real Hub with KubeSpawner."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.cli.test_tls import Secured, done
from tests.conftest import eventually
from tests.hub.conftest import COURSES
from tests.hub.hub import Hub, environment_of

pytest.importorskip("kubespawner")

VALUES = Path(__file__).parents[2] / "deploy" / "kubernetes" / "z2jh-values.yaml"
# KubeSpawner wants to know where its cluster is; none is there.
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: none
contexts: [{name: none, context: {cluster: none, user: none}}]
clusters: [{name: none, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: none, user: {}}]
"""


@pytest.fixture(scope="module")
def values() -> Any:
    return yaml.safe_load(VALUES.read_text())


@pytest.fixture(scope="module")
def hub(values: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A Hub whose configuration ends with the file's own lines; only places are this machine's."""
    home = tmp_path_factory.mktemp("z2jh")
    (home / "kubeconfig").write_text(KUBECONFIG)
    (home / "courses.yaml").write_text(COURSES)
    secured = Secured(home / "pool")
    agent = secured.agent("--pool", str(secured.file("gpu1", "--scope", "agent")))
    try:
        shutil.copy(secured.file("hub", "--scope", "service"), home / "hub.pool")
        admin = str(secured.file("rector", "--scope", "admin"))
        done("quota", "import", str(home / "courses.yaml"), "--pool", admin)
        environment = {
            **environment_of(home / "unused", home),
            "KUBECONFIG": str(home / "kubeconfig"),
        }
        own = [{"display_name": "Large memory", "slug": "large", "kubespawner_override": {"mem_limit": "8G"}}]
        extra = f'c.KubeSpawner.namespace = "hub"\nc.KubeSpawner.profile_list = {own!r}\n'
        found = Hub(home, environment, {}, extra=extra, spawner="kubespawner.KubeSpawner")
        file = home / "jupyterhub_config.py"
        before, _, call = file.read_text().partition("from hub_spawner import configure\n")
        (lines,) = values["hub"]["extraConfig"].values()
        lines = lines.replace('# "', '"')  # the environments of images that the page does not build
        port = call.split("http://127.0.0.1:")[1].split("'")[0]
        for theirs, ours in (
            ("/etc/gpukernel", str(home)),
            ("http://hub:10171", f"http://127.0.0.1:{port}"),
        ):
            assert theirs in lines
            lines = lines.replace(theirs, ours)
        file.write_text(before + lines)
        with found:
            yield found
    finally:
        agent.stop()
        secured.pool.stop()


def test_courses_are_profiles_with_the_file_s_images_beside_the_administrator_s_own(hub: Hub) -> None:
    both = hub.browse("both")
    page = both.get(f"{hub.url}/hub/spawn/both", timeout=60)
    assert page.status_code == 200
    assert "Large memory" in page.text
    assert "Machine learning" in page.text
    assert "50 free now" in page.text
    assert 'name="profile-option-gpu-ml101--environment"' in page.text
    for name in ("Numba", "PyTorch", "TensorFlow"):
        assert name in page.text
    assert "<script>alert(1)" not in page.text


@pytest.mark.parametrize("page", ["kubernetes.md", "helm.md"])
def test_the_images_that_the_file_names_are_those_that_the_page_builds(values: Any, page: str) -> None:
    """No server starts from an image that is in nobody's registry."""
    built = " ".join(
        re.findall(r'make images IMAGES="([^"]+)"', (VALUES.parents[2] / "docs" / page).read_text())
    )
    version = yaml.safe_load((VALUES.parents[1] / "helm/gpukernel/Chart.yaml").read_text())["appVersion"]
    (lines,) = values["hub"]["extraConfig"].values()
    named = {f"{one['image']['name']}:{one['image']['tag']}" for one in (values["hub"], values["singleuser"])}
    offered = re.findall(r'^ *"\w+": {"image": "([^"]+)"}', lines, re.MULTILINE)
    assert offered
    assert named | set(offered) <= {
        f"registry.example.edu/gpukernel-{one}:{version}" for one in built.split()
    }


def test_the_console_answers_and_takes_nobody_s_word(hub: Hub) -> None:
    at = f"{hub.url}/services/gpukernel"
    assert requests.get(f"{at}/ready", timeout=60).text == "ready\n"
    assert requests.get(f"{at}/api/courses", timeout=60).status_code == 401
    prof = hub.browse("prof")
    assert "Machine learning" in prof.get(f"{at}/course/ml101", timeout=60).text


def test_without_a_cluster_a_start_fails_and_what_it_says_holds_no_token(hub: Hub) -> None:
    hub.ask("POST", "/users/anna")
    options = {"profile": "gpu-ml101", "environment": "PyTorch"}
    answer = hub.ask("POST", "/users/anna/server", options)
    assert answer.status_code in (202, 500, 503)
    eventually(lambda: "failed" in hub.last_failure("anna"), 120)
    assert "gpk" not in hub.last_failure("anna")


def test_every_way_that_the_console_is_asked_is_let_through(values: Any) -> None:
    """As the chart's own policies are narrow: the proxy and the Hub reach the console's port, and both may leave for it."""
    (port,) = values["hub"]["service"]["extraPorts"]
    assert f":{port['port']}" in next(iter(values["hub"]["extraConfig"].values()))

    def to_the_console(rule: Any) -> bool:
        return any(one["port"] == port["targetPort"] for one in rule.get("ports", []))

    (ingress,) = filter(to_the_console, values["hub"]["networkPolicy"]["ingress"])
    labels = [one["podSelector"]["matchLabels"] for one in ingress["from"]]
    assert {"hub.jupyter.org/network-access-hub": "true"} in labels  # the proxy has it
    assert {"app": "jupyterhub", "component": "hub"} in labels
    for whose in (values["hub"], values["proxy"]["chp"]):
        (egress,) = filter(to_the_console, whose["networkPolicy"]["egress"])
        assert egress["to"] == [{"podSelector": {"matchLabels": {"app": "jupyterhub", "component": "hub"}}}]
