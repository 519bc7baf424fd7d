"""A whole cluster of one node, empty but for images: Kubernetes' own programs, pods with a network, and a shell for its administrator."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import eventually
from tests.deploy.helm.chart import ROOT
from tests.deploy.images.builder import BASE, running_builder
from tests.e2e.machines import Shell
from tests.engines.kubernetes.control_plane import PROGRAMS, ControlPlane, running_control_plane
from tests.engines.kubernetes.hour.network import ADDRESS, Network, running_network
from tests.engines.kubernetes.hour.page import asked, steps
from tests.engines.kubernetes.real_node import Node, running_node

NODE = "gpu1"
"""As the page calls it."""
IMAGES = ("pool", "agent")
# What there is of storage in a cluster without a provisioner: one volume, which the pool's claim is bound to.
VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOncePod]
  persistentVolumeReclaimPolicy: Delete
  local: {path: /var/lib/disk}
  nodeAffinity:
    required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [gpu1]}]}]}
"""


@pytest.fixture(scope="package")
def network() -> Iterator[Network | None]:
    """A network for the node and its pods; None without Kubernetes' programs."""
    if not os.environ.get(PROGRAMS):
        yield None
        return
    with running_network() as network:
        yield network


@pytest.fixture(scope="package", autouse=True)
def control_plane(
    network: Network | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane | None]:
    """A control plane with all of its controllers; None without Kubernetes' programs."""
    if network is None:
        yield None
        return
    home = tmp_path_factory.mktemp("whole")
    with running_control_plane(home, ADDRESS, ("*",), NODE) as plane:
        network.serve(plane, home / "services.log")
        yield plane


@pytest.fixture(scope="package")
def archives(control_plane: ControlPlane | None) -> Iterator[list[Path]]:
    """The images' archives, by the names that the page and the chart have for them; Debian's Python is ``python:3.12``.

    ``GPUKERNEL_TEST_ARCHIVES=FOLDER`` has them from before, without minutes of building.
    """
    if control_plane is None:
        pytest.skip("needs Kubernetes' programs: make control-plane KUBERNETES=FOLDER")
    missing = [one for one in ("kubectl", "buildah", "debootstrap") if not shutil.which(one)]
    if missing:
        pytest.skip(f"needs kubectl, and buildah on a Debian; missing: {', '.join(missing)}")
    if kept := os.environ.get("GPUKERNEL_TEST_ARCHIVES"):
        yield sorted(Path(kept).glob("*.tar"))
        return
    version = str(yaml.safe_load((ROOT / "deploy/helm/gpukernel/Chart.yaml").read_text())["appVersion"])
    with running_builder() as builder:
        names = {BASE: "docker.io/library/python:3.12"}
        for name in IMAGES:
            builder.image(name)
            names[f"localhost/{name}:1"] = f"registry.example.edu/gpukernel-{name}:{version}"
        found = []
        for number, (built, called) in enumerate(names.items()):
            found.append(builder.home / f"{number}.tar")
            builder("push", built, f"docker-archive:{found[-1]}:{called}")
        yield found


@pytest.fixture(scope="package")
def node(control_plane: ControlPlane, network: Network, archives: list[Path]) -> Iterator[Node]:
    with running_node(control_plane, network) as node:
        for archive in archives:
            node.have(archive)
        node.path("/var/lib/disk").mkdir()
        (made,) = yaml.safe_load_all(VOLUME)
        assert control_plane.apply(made).is_success
        yield node


@pytest.fixture(scope="package")
def shell(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """The administrator's, in a folder with what of the checkout the page names; ``helm`` is Helm's SDK."""
    pytest.importorskip("helm_python", reason="needs Helm's SDK: pip install helm-python-sdk")
    home = tmp_path_factory.mktemp("administrator")
    (home / "deploy").symlink_to(ROOT / "deploy")
    programs = home / "programs"
    programs.mkdir()
    (programs / "kubectl").symlink_to(str(shutil.which("kubectl")))
    for name, module in (("helm", "tests.engines.kubernetes.hour.helm"), ("gpukernel", "gpukernel.cli")):
        (programs / name).write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m {module} "$@"\n')
        (programs / name).chmod(0o755)
    shell = Shell([], "root")
    shell.run(f"cd {home}; export HOME={home} PATH={programs}:$PATH KUBECONFIG={node.plane.kubeconfig}")
    yield shell
    shell.close()


@pytest.fixture(scope="package")
def hour(shell: Shell, node: Node) -> dict[str, str]:
    """The outputs of all of the hour's commands, once they have run."""
    said = {}
    for name, text in steps():
        if name:
            shell.run(f"cat > {name} <<'END'\n{text}END")
            continue
        print(f"$ {text}", flush=True)
        said[text] = shell.run(text)
        print(said[text], flush=True)
        if text.endswith("list-gpus"):
            eventually(lambda: "V100" in shell.run("$in_pool gpukernel list-gpus"), 120)
        elif text.startswith("kubectl apply -f classes"):
            eventually(lambda: asked(shell, "kubectl get resourceslices")["items"], 120)
    return said
