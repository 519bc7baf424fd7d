"""Agents' pods by schedule: a week passes in moments, and a real agent of a real pool comes and goes with its DaemonSet."""

from __future__ import annotations

import asyncio
import datetime
import logging
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from lightkube import AsyncClient, KubeConfig
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import DaemonSet, Deployment
from lightkube.types import PatchType

from gpukernel.engines.kubernetes.agent_hours import CLOSED, HOURS, REPLICAS, ZONE, AgentHours
from tests.agent.test_notice import Site
from tests.agent.test_notice import site as site
from tests.conftest import eventually
from tests.engines.kubernetes.cluster import Cluster

MONDAY = datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC)
HOUR = 3600.0


def at(day: int, clock: str) -> float:
    hours, minutes = map(int, clock.split(":"))
    return (MONDAY + datetime.timedelta(days=day, hours=hours, minutes=minutes)).timestamp()


class Agents:
    """Agents of a namespace, at a time that the test says."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.now = cluster, at(0, "0:00")

    def make(
        self, kind: Any, name: str, annotations: Mapping[str, str] | None = None, grace: int | None = 300
    ) -> None:
        labels = {"app": name}
        spec: dict[str, Any] = {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": {"gpu": "v100"},
                    "containers": [{"name": "agent", "image": "agent"}],
                    **({} if grace is None else {"terminationGracePeriodSeconds": grace}),
                },
            },
        }
        if kind is Deployment:
            spec["replicas"] = 3
        metadata = ObjectMeta(
            name=name, namespace=self.cluster.namespace, annotations=dict(annotations or {})
        )
        self.cluster.api.create(kind.from_dict({"metadata": metadata.to_dict(), "spec": spec}))

    def get(self, kind: Any, name: str) -> Any:
        return self.cluster.api.get(kind, name, namespace=self.cluster.namespace)

    def change(self, kind: Any, name: str, patch: dict[str, Any]) -> None:
        self.cluster.api.patch(
            kind, name, patch, namespace=self.cluster.namespace, patch_type=PatchType.MERGE
        )

    def is_open(self, kind: Any, name: str) -> bool:
        one = self.get(kind, name)
        if kind is Deployment:
            assert one.spec.replicas in (0, 3)
            return bool(one.spec.replicas)
        selector = one.spec.template.spec.nodeSelector
        assert selector["gpu"] == "v100"
        return CLOSED not in selector

    def look(self) -> None:
        async def work() -> None:
            api = AsyncClient(KubeConfig.from_file(str(self.cluster.kubeconfig)).get())
            try:
                await AgentHours(api, self.cluster.namespace, lambda: self.now).look()
            finally:
                await api.close()

        asyncio.run(work())


@pytest.fixture
def agents(cluster: Cluster) -> Agents:
    return Agents(cluster)


@pytest.mark.parametrize("kind", [DaemonSet, pytest.param(Deployment, marks=pytest.mark.thorough)])
def test_a_week_of_hours(agents: Agents, kind: Any) -> None:
    agents.make(kind, "v100", {HOURS: "Mo-Fr 8-18", ZONE: "UTC"})
    agents.make(kind, "always")
    changes = []
    is_open = True
    for quarter in range(7 * 24 * 12):
        agents.now = at(0, "0:00") + quarter * 300.0
        if quarter % 12 not in (0, 11):  # each hour, and 5 minutes before
            continue
        agents.look()
        if agents.is_open(kind, "v100") != is_open:
            is_open = not is_open
            moment = datetime.datetime.fromtimestamp(agents.now, datetime.UTC)
            changes.append(f"{moment:%a %H:%M} {'open' if is_open else 'closed'}")
    # Pods have 5 minutes: told to stop at 17:55, they are gone at 18:00.
    assert changes == ["Mon 00:00 closed"] + [
        f"{day} {change}"
        for day in ("Mon", "Tue", "Wed", "Thu", "Fri")
        for change in ("08:00 open", "17:55 closed")
    ]
    assert agents.is_open(kind, "always")
    assert agents.get(kind, "always").metadata.generation == 1  # nobody touched it


def test_hours_are_those_of_their_zone_also_when_clocks_change(agents: Agents) -> None:
    agents.make(DaemonSet, "v100", {HOURS: "Mo-Su 8-18", ZONE: "Europe/Berlin"}, grace=None)
    for day, opens in ((0, "7:00"), (-31, "6:00")):  # winter, and before 25 October
        agents.now = at(day, opens) - 1
        agents.look()
        assert not agents.is_open(DaemonSet, "v100")
        agents.now += 1
        agents.look()
        assert agents.is_open(DaemonSet, "v100")


def test_only_what_it_wrote_is_taken_back(agents: Agents) -> None:
    agents.make(Deployment, "v100", {HOURS: "Mo-Fr 8-18", ZONE: "UTC"})
    agents.change(Deployment, "v100", {"spec": {"replicas": 0}})  # an administrator's
    for clock in ("0:00", "9:00"):
        agents.now = at(0, clock)
        agents.look()
        assert agents.get(Deployment, "v100").spec.replicas == 0
    agents.change(Deployment, "v100", {"spec": {"replicas": 3}})
    agents.now = at(0, "19:00")
    agents.look()
    assert agents.get(Deployment, "v100").metadata.annotations[REPLICAS] == "3"
    agents.change(Deployment, "v100", {"spec": {"replicas": 2}})  # "helm upgrade" at night
    agents.look()
    assert agents.get(Deployment, "v100").spec.replicas == 0
    agents.now = at(1, "8:00")
    agents.look()
    again = agents.get(Deployment, "v100")
    assert (again.spec.replicas, REPLICAS in again.metadata.annotations) == (2, False)


@pytest.mark.parametrize(
    ("annotations", "sentence"),
    [
        ({HOURS: "weekdays"}, "“weekdays” is no entry of a schedule; write days and hours"),
        ({HOURS: "Mo-Fr 8-18", ZONE: "Mars/Olympus"}, "“Mars/Olympus” is no time zone here; write one such as Europe/Berlin."),
        ({HOURS: "Mo-Fr 8-18", ZONE: "../../etc/passwd"}, "“../../etc/passwd” is no time zone here"),
    ],
)  # fmt: skip
def test_what_is_not_understood_changes_nothing_and_is_said(
    agents: Agents, caplog: pytest.LogCaptureFixture, annotations: dict[str, str], sentence: str
) -> None:
    agents.make(DaemonSet, "v100", annotations)
    with caplog.at_level(logging.ERROR):
        agents.look()
    assert agents.get(DaemonSet, "v100").metadata.generation == 1
    assert f"DaemonSet v100 is left as it is: {sentence}" in caplog.text


def ended(process: Any) -> Callable[[], bool]:
    return lambda: process.process.poll() is not None


def test_a_real_agent_gives_its_gpu_back_at_night_and_lends_it_again(
    agents: Agents, site: Site, tmp_path: Path
) -> None:
    agents.make(DaemonSet, "v100", {HOURS: "Mo-Fr 8-18", ZONE: "UTC"}, grace=60)

    def pods() -> int:
        """The pods that the DaemonSet's controller wants on the one node with GPUs."""
        agents.look()
        return int(agents.is_open(DaemonSet, "v100"))

    agents.now = at(0, "8:00")
    assert pods() == 1
    pod = site.agent("--notice", "4s")
    holder = site.hold()
    agents.now = at(0, "17:59") - 1
    assert pods() == 1
    agents.now = at(0, "17:59")
    assert pods() == 0
    pod.process.send_signal(signal.SIGTERM)  # as its kubelet does
    told = eventually(lambda: [one["notice"] for one in site.ask("leases", "--json") if one["notice"]])
    assert "its GPU server is being drained" in told[0]
    eventually(ended(pod), 60)
    assert pod.process.returncode == 0, pod.said
    assert site.ask("leases", "--json") == []
    holder.end()
    assert site.run().returncode != 0  # nobody gets a slice at night
    agents.now = at(1, "8:00")
    assert pods() == 1
    site.agent("--notice", "4s")
    assert site.run().returncode == 0
