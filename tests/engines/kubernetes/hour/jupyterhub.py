"""A stand-in for Zero to JupyterHub's chart: a Hub in a pod with what that chart makes of the values file, and KubeSpawner's pods beside it.

The Hub's image and the single-user image that the page builds are empty, with the names of the values file and, like those, with no entry
point; pods have this machine's Python mounted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import requests
import yaml

from tests.deploy.helm.chart import ROOT
from tests.engines.containers.test_cri import image
from tests.engines.kubernetes.real_node import Node
from tests.hub.containers import folders_of_this_python
from tests.hub.hub import Hub

__all__ = ["ClusterHub"]

VALUES: dict[str, Any] = yaml.safe_load((ROOT / "deploy/kubernetes/z2jh-values.yaml").read_text())
WHERE = "jupyter"
_HUB, _SINGLE = (
    f"{one['name']}:{one['tag']}" for one in (VALUES["hub"]["image"], VALUES["singleuser"]["image"])
)
_PLACES = folders_of_this_python()
_VOLUMES = [{"name": f"m{number}", "hostPath": {"path": place}} for number, place in enumerate(_PLACES)]
_MOUNTS = [
    {"name": f"m{number}", "mountPath": place, "readOnly": True} for number, place in enumerate(_PLACES)
]
_HOME = {"name": "home", "emptyDir": {}}
_OWN = [
    {"name": "home", "mountPath": "/home/jovyan"},
    {"name": "home", "mountPath": "/tmp", "subPath": "tmp"},
]
_EXTRA = f"""
c.JupyterHub.hub_ip = "0.0.0.0"
c.JupyterHub.hub_connect_ip = "hub"
c.KubeSpawner.namespace = "{WHERE}"
c.KubeSpawner.image = "{_SINGLE}"
c.KubeSpawner.image_pull_policy = "Never"
c.KubeSpawner.cmd = [{str(Path(sys.executable).parent / "jupyterhub-singleuser")!r}]
c.KubeSpawner.working_dir = "/home/jovyan"
c.KubeSpawner.environment = {{"HOME": "/home/jovyan", "JUPYTER_PREFER_ENV_PATH": "0"}}
c.KubeSpawner.uid = c.KubeSpawner.fs_gid = 1000
c.KubeSpawner.extra_labels = {VALUES["singleuser"]["extraLabels"]!r}
c.KubeSpawner.volumes = {[*_VOLUMES, _HOME]!r}
c.KubeSpawner.volume_mounts = {[*_MOUNTS, *_OWN]!r}
c.KubeSpawner.start_timeout = c.KubeSpawner.http_timeout = 300
"""
_MANIFESTS = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: hub, namespace: jupyter}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: hub, namespace: jupyter}
rules:
  - apiGroups: [""]
    resources: [pods, persistentvolumeclaims, secrets, services]
    verbs: [get, watch, list, create, delete]
  - apiGroups: [""]
    resources: [events]
    verbs: [get, watch, list]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: hub, namespace: jupyter}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: hub}
subjects: [{kind: ServiceAccount, name: hub, namespace: jupyter}]
"""


class ClusterHub(Hub):
    """A Hub whose process is a pod; `start` returns when it and its console answer."""

    patience = 600.0

    def __init__(self, node: Node, home: Path) -> None:
        super().__init__(home, dict(os.environ), {}, extra=_EXTRA, spawner="kubespawner.KubeSpawner")
        self._plane = node.plane
        (home / "images").mkdir()
        node.have(image(home / "images", (_HUB, _SINGLE), ()))
        file = home / "jupyterhub_config.py"
        before, _, _ = file.read_text().partition("from hub_spawner import configure\n")
        (lines,) = VALUES["hub"]["extraConfig"].values()
        before = before.replace(str(home), "/srv/jupyterhub")
        before = before.replace(
            f'bind_url = "http://127.0.0.1:{self.port}"', f'bind_url = "http://:{self.port}"'
        )
        self._config = before + lines
        (self._hub_port,) = [
            int(line.rpartition("=")[2]) for line in before.splitlines() if "JupyterHub.hub_port" in line
        ]

    def manifests(self) -> list[dict[str, Any]]:
        """Return the Hub's objects: its account, configuration, Service and pod, with what the values file has for them."""
        own = VALUES["hub"]
        labels = {"app": "jupyterhub", "component": "hub"}
        variables = {"CONFIGPROXY_AUTH_TOKEN": "proxy", "POD_NAMESPACE": WHERE, "HOME": "/srv/jupyterhub"}
        variables["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        config = {"name": "config", "mountPath": "/etc/jupyterhub"}
        state = {"name": "state", "mountPath": "/srv/jupyterhub"}
        container = {
            "name": "hub",
            "image": _HUB,
            "imagePullPolicy": "Never",
            "command": [sys.executable, "-m", "jupyterhub", "-f", "/etc/jupyterhub/jupyterhub_config.py"],
            "workingDir": "/srv/jupyterhub",
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "volumeMounts": [*_MOUNTS, config, state, *own["extraVolumeMounts"]],
        }
        pod = {
            "serviceAccountName": "hub",
            "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000},
            "containers": [container],
            "volumes": [
                *_VOLUMES,
                {"name": "config", "configMap": {"name": "hub"}},
                {"name": "state", "emptyDir": {}},
                *own["extraVolumes"],
            ],
        }
        data = {"jupyterhub_config.py": self._config}
        ports = [{"name": "hub", "port": self._hub_port}, *own["service"]["extraPorts"]]
        ports.append({"name": "proxy", "port": self.port})
        about = {"name": "hub", "namespace": WHERE}
        return [
            *yaml.safe_load_all(_MANIFESTS),
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": data},
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": about,
                "spec": {"selector": labels, "ports": ports},
            },
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": about,
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels | own["labels"]}, "spec": pod},
                },
            },
        ]

    def start(self) -> None:
        for one in self.manifests():
            made = self._plane.apply(one)
            assert made.is_success, f"{one['kind']}: {made.text}"
        end = time.monotonic() + 600
        while not self._answers():
            assert time.monotonic() < end, self.said()
            time.sleep(0.5)

    def _answers(self) -> bool:
        listed = self._plane.ask(
            "GET", f"/api/v1/namespaces/{WHERE}/pods", labelSelector="component=hub"
        ).json()
        if addresses := [pod["status"].get("podIP") for pod in listed["items"]]:
            self.url = f"http://{addresses[0]}:{self.port}"
            try:
                console = f"{self.url}/services/gpukernel/ready"
                return self.ask("GET", "/info").ok and requests.get(console, timeout=60).ok
            except requests.RequestException:
                pass
        return False

    def said(self) -> str:
        """Return the end of what the Hub's pod has logged."""
        pods = self._plane.ask("GET", f"/api/v1/namespaces/{WHERE}/pods").json()["items"]
        events = self._plane.ask("GET", f"/api/v1/namespaces/{WHERE}/events").json()["items"]
        text = "\n".join(f"{one['involvedObject'].get('name')}: {one['message']}" for one in events[-30:])
        for pod in pods:
            name = pod["metadata"]["name"]
            log = self._plane.ask("GET", f"/api/v1/namespaces/{WHERE}/pods/{name}/log", tailLines="2000")
            lines = [line for line in log.text.splitlines() if " 200 GET " not in line]
            text += "\n".join([f"\n{name}: {json.dumps(pod['status'])[-2000:]}", *lines[-60:]])
        return text

    def stop(self) -> None:
        """Leave it: the cluster goes with all that is in it."""
