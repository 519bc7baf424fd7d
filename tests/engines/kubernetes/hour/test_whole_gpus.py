"""Agents as pods of a real kubelet: whole GPUs claimed from a vendor's DRA driver, drained on eviction within their grace, given back by schedule.

The vendor's driver is a stand-in, and there is no GPU behind it: the agent simulates its devices.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import eventually
from tests.e2e.machines import Shell
from tests.engines.kubernetes.hour.page import IN_POOL, asked
from tests.engines.kubernetes.real_node import Node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

PATIENCE = 300.0
GRACE = 60
"""Seconds of an agent's pod; holders of slices have 30 s less."""
HOLD = "import signal, sys; print('holds', flush=True); signal.sigwait([signal.SIGTERM])"
DRAINED = "its GPU server gpu1 was drained"


class Vendor:
    """The stand-in for the vendor's driver on the node."""

    def __init__(self, node: Node) -> None:
        self._log = node.log / "vendor"
        words = ["-m", "tests.engines.kubernetes.hour.vendor_driver", str(node.plane.kubeconfig)]
        with self._log.open("wb") as log:
            command = [*node.inside, sys.executable, *words, node.plane.node, "2"]
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def prepared(self) -> list[list[str]]:
        """Return which GPUs were in somebody's hands, one time after the other."""
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("[")]


class Agents:
    """The cluster's agents, by their administrator's shell."""

    def __init__(self, shell: Shell, node: Node) -> None:
        self._shell, self._node = shell, node
        self._values = yaml.safe_load(shell.run("cat values.yaml"))

    def have(self, **group: Any) -> None:
        """Have one group of agents, ``lent``, with a claim of all GPUs of a node; it simulates them, which the chart would refuse."""
        whole = {"wholeGpus": {"deviceClassName": "gpu.nvidia.com"}, "gracePeriodSeconds": GRACE}
        values = self._values | {"agents": {"lent": whole | group}}
        self._shell.run(f"cat > lent.yaml <<'END'\n{yaml.safe_dump(values)}END")
        self._shell.run("helm upgrade gpukernel deploy/helm/gpukernel -n gpukernel -f lent.yaml")
        kind = group.get("kind", "DaemonSet").lower()
        more = [
            {"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--simulate=v100:2"}
        ]
        patch = f"--type=json -p '{json.dumps(more)}'"
        self._shell.run(f"kubectl -n gpukernel patch {kind} gpukernel-agent-lent {patch}")

    def pods(self) -> list[dict[str, Any]]:
        listed = asked(self._shell, "kubectl -n gpukernel get pods -l gpukernel.io/agent=true")
        return list(listed["items"])

    def ready(self) -> str:
        """Wait until there is one pod, which simulates and serves; return its name."""

        def one() -> str:
            running = ""
            for pod in self.pods():
                name, ends = pod["metadata"]["name"], pod["metadata"].get("deletionTimestamp")
                if "--simulate=v100:2" in pod["spec"]["containers"][0]["args"] and not ends:
                    running = name if pod["status"]["phase"] == "Running" else ""
                    continue
                if not ends:  # made before the patch: whoever administers agents says when they are replaced
                    self._shell.run(f"kubectl -n gpukernel delete pod {name} --wait=false")
                return ""
            return str(running)

        name = str(eventually(one, seconds=PATIENCE))
        eventually(lambda: len(self.devices()) == 2, PATIENCE)
        eventually(lambda: not [one for one in self.devices() if one["trouble"]], PATIENCE)
        return name

    def devices(self) -> list[dict[str, Any]]:
        return list(json.loads(self._shell.run(f"{IN_POOL} gpukernel list-gpus --json")))

    def evict(self, name: str) -> None:
        """Ask for a pod's eviction, as ``kubectl drain`` does."""
        path = f"/api/v1/namespaces/gpukernel/pods/{name}/eviction"
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        made = self._node.plane.ask("POST", path, body)
        assert made.is_success, made.text

    def leases(self) -> list[dict[str, Any]]:
        return list(json.loads(self._shell.run(f"{IN_POOL} gpukernel leases --all --json")))


@pytest.fixture(scope="module")
def vendor(node: Node) -> Iterator[Vendor]:
    made = Vendor(node)
    yield made
    made.process.kill()
    made.process.wait()


@pytest.fixture(scope="module")
def agents(shell: Shell, node: Node, vendor: Vendor, hour: dict[str, str]) -> Agents:
    return Agents(shell, node)


@pytest.fixture
def holder(shell: Shell, tmp_path: Path) -> Iterator[Any]:
    """Start a program that holds a slice of the pool's own device; return what it has said so far."""
    running: list[subprocess.Popen[bytes]] = []
    log = tmp_path / "held"

    def hold() -> None:
        words = f"{IN_POOL} gpukernel run -p 0.25 --wait 60s -- /opt/gpukernel/bin/python3 -c".split()
        environment = {
            "KUBECONFIG": shell.run("echo $KUBECONFIG").strip(),
            "PATH": shell.run("echo $PATH").strip(),
        }
        with log.open("wb") as file:
            running.append(subprocess.Popen([*words, HOLD], env=environment, stdout=file, stderr=file))
        eventually(lambda: "holds" in log.read_text(), PATIENCE)

    yield hold
    for one in running:
        one.kill()
        one.wait()


def test_an_evicted_agent_drains_within_its_grace_and_its_gpus_are_free_again(
    agents: Agents, vendor: Vendor, holder: Any
) -> None:
    agents.have()
    name = agents.ready()
    assert vendor.prepared()[-1] == ["gpu-0", "gpu-1"]
    holder()
    (held,) = [one for one in agents.leases() if one["state"] == "live"]
    agents.evict(name)
    began, times = time.monotonic(), len(vendor.prepared())
    eventually(
        lambda: [one for one in agents.leases() if "is being drained" in (one["notice"] or "")], PATIENCE
    )
    print(f"told {time.monotonic() - began:.1f} s after the eviction")
    eventually(lambda: name not in [pod["metadata"]["name"] for pod in agents.pods()], PATIENCE)
    print(f"gone {time.monotonic() - began:.1f} s after it, of {GRACE} s")
    (ended,) = [one for one in agents.leases() if one["id"] == held["id"]]
    assert (ended["state"], ended["end_reason"]) == ("ended", DRAINED)
    # Nobody had its GPUs, and then the DaemonSet's next pod did, which serves again.
    eventually(lambda: [] in vendor.prepared()[times:], PATIENCE)
    assert agents.ready() != name


def test_kubectl_drain_evicts_a_deployment_s_agent(
    agents: Agents, vendor: Vendor, holder: Any, shell: Shell
) -> None:
    agents.have(kind="Deployment")
    name = agents.ready()
    holder()
    (held,) = [one for one in agents.leases() if one["state"] == "live"]
    drained = "kubectl drain gpu1 --pod-selector gpukernel.io/agent=true --delete-emptydir-data --timeout=5m"
    said = shell.run(drained)
    assert "evicted" in said, said
    (ended,) = [one for one in agents.leases() if one["id"] == held["id"]]
    assert (ended["state"], ended["end_reason"]) == ("ended", DRAINED)
    eventually(lambda: vendor.prepared()[-1] == [], PATIENCE)
    shell.run("kubectl uncordon gpu1")
    assert agents.ready() != name


def test_outside_of_its_hours_a_group_s_gpus_are_the_cluster_s(
    agents: Agents, vendor: Vendor, shell: Shell
) -> None:
    days = ("Mo", "Tu", "We", "Th", "Fr", "Sa", "Su")
    today = datetime.datetime.now(datetime.UTC).weekday()
    agents.have(schedule=f"{days[today]} 0-24")
    name = agents.ready()
    assert vendor.prepared()[-1] == ["gpu-0", "gpu-1"]
    closed = f"gpukernel.io/schedule='{days[(today + 3) % 7]} 8-18' --overwrite"
    shell.run(f"kubectl -n gpukernel annotate daemonset gpukernel-agent-lent {closed}")
    eventually(lambda: not agents.pods(), PATIENCE)
    eventually(lambda: vendor.prepared()[-1] == [], PATIENCE)
    opened = f"gpukernel.io/schedule='{days[today]} 0-24' --overwrite"
    shell.run(f"kubectl -n gpukernel annotate daemonset gpukernel-agent-lent {opened}")
    assert agents.ready() != name
