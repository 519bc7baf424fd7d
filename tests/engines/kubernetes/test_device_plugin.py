"""The device plugin for clusters before 1.34, against a kubelet's side of its protocols."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

import gpukernel.engines.kubernetes.proto.device_plugin_pb2 as pb
import gpukernel.engines.kubernetes.proto.device_plugin_pb2_grpc as rpc
import gpukernel.engines.kubernetes.proto.pod_resources_pb2 as resources_pb
import gpukernel.engines.kubernetes.proto.pod_resources_pb2_grpc as resources_rpc
from gpukernel.client.engines import EngineClient
from gpukernel.engines.kubernetes.claim_files import Prepared
from gpukernel.engines.kubernetes.device_plugin import _knows_all
from gpukernel.engines.kubernetes.slots import Slots
from gpukernel.remoting.lease_file import read_lease_file
from tests.conftest import Pool, eventually

RESOURCE = "gpukernel.io/v100-slice"
MIB = 2**20


class Kubelet:
    """The kubelet of a node: it takes plugins, and tells which slots `containers` have."""

    def __init__(self, home: Path, pool: Pool) -> None:
        self.home, self._pool = home, pool
        self.registered: list[pb.RegisterRequest] = []
        self.containers: dict[str, list[str]] = {}
        self.lists, self.in_vain = 0, 0
        (home / "plugins").mkdir()
        self.start()

    def start(self) -> None:
        """Start, as a kubelet does: it removes what plugins have left in its folder."""
        for one in (self.home / "plugins").iterdir():
            one.unlink()
        self._server = grpc.server(ThreadPoolExecutor(4))
        rpc.add_RegistrationServicer_to_server(self, self._server)  # type: ignore[arg-type]
        resources_rpc.add_PodResourcesListerServicer_to_server(self, self._server)  # type: ignore[arg-type]
        self._server.add_insecure_port(f"unix:{self.home}/plugins/kubelet.sock")
        self._server.start()

    def restart(self) -> None:
        self._server.stop(None).wait()
        self.start()

    def stop(self) -> None:
        self._server.stop(None).wait()

    def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:
        if not (self.home / "plugins" / request.endpoint).exists():
            self.in_vain += 1
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "failed to dial device plugin")
        self.registered.append(request)
        return pb.Empty()

    def List(self, request: Any, context: Any) -> resources_pb.ListPodResourcesResponse:
        self.lists += 1
        reply = resources_pb.ListPodResourcesResponse()
        for name, slots in self.containers.items():
            container = reply.pod_resources.add(name=name, namespace="ml101").containers.add(name="train")
            container.devices.add(resource_name=RESOURCE, device_ids=slots)
        return reply

    def plugin(self, *options: str) -> subprocess.Popen[bytes]:
        words = [
            "--plugins",
            str(self.home / "plugins"),
            "--pod-resources",
            f"{self.home}/plugins/kubelet.sock",
        ]
        words += ["--cdi", str(self.home / "cdi"), "--claims", str(self.home / "slots"), "--node", "n1"]
        command = [sys.executable, "-m", "gpukernel.cli", "kubernetes", "device-plugin", "--model", "v100"]
        return subprocess.Popen(
            [*command, *words, "--every", "0.3", "--slots", "3", "--share", "0.02", *options],
            env=self._pool.environment,
            stdin=subprocess.DEVNULL,
        )

    def stub(self) -> rpc.DevicePluginStub:
        return rpc.DevicePluginStub(
            grpc.insecure_channel(f"unix:{self.home}/plugins/gpukernel.io-v100-slice.sock")
        )

    def allocate(self, container: str, *slots: str) -> pb.ContainerAllocateResponse:
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=slots)])
        (answer,) = self.stub().Allocate(request, timeout=60).container_responses
        self.containers[container] = list(slots)
        return answer


@pytest.fixture
def kubelet(pool: Pool) -> Iterator[Kubelet]:
    home = Path(tempfile.mkdtemp(prefix="kubelet-", dir="/dev/shm"))
    kubelet = Kubelet(home, pool)
    process = kubelet.plugin()
    try:
        eventually(lambda: kubelet.registered)
        yield kubelet
    finally:
        process.kill()
        process.wait()
        kubelet.stop()
        shutil.rmtree(home)


def lease_file(answer: pb.ContainerAllocateResponse) -> Path:
    (mount,) = (one for one in answer.mounts if one.container_path == "/run/gpukernel")
    assert mount.read_only
    return Path(mount.host_path) / "lease"


def test_a_container_with_slots_has_one_slice_until_it_ends(kubelet: Kubelet, pool: Pool) -> None:
    (request,) = kubelet.registered
    assert (request.version, request.resource_name) == ("v1beta1", RESOURCE)
    assert request.endpoint == "gpukernel.io-v100-slice.sock"
    told = next(iter(kubelet.stub().ListAndWatch(pb.Empty(), timeout=10)))
    assert [(one.ID, one.health) for one in told.devices] == [(f"v100-slot-{n}", "Healthy") for n in range(3)]
    first = kubelet.allocate("a", "v100-slot-2", "v100-slot-0")
    second = kubelet.allocate("b", "v100-slot-1")
    leases = {lease.id: lease for lease in pool.live()}
    assert sorted(one.slices[0].memory_bytes // MIB for one in leases.values()) == [655, 1310]
    mine = read_lease_file(lease_file(first))
    assert leases[mine.lease].slices[0].memory_bytes == 1310 * MIB
    assert len(mine.devices) == 1
    assert first.envs["GPUKERNEL_LEASE_FILE"] == "/run/gpukernel/lease"
    del kubelet.containers["a"]
    eventually(lambda: [one.id for one in pool.live()] == [read_lease_file(lease_file(second)).lease])
    eventually(lambda: not lease_file(first).exists())


def test_a_slot_that_is_named_anew_gets_another_lease(kubelet: Kubelet, pool: Pool) -> None:
    before = read_lease_file(lease_file(kubelet.allocate("a", "v100-slot-0", "v100-slot-1")))
    after = read_lease_file(lease_file(kubelet.allocate("a", "v100-slot-1")))
    assert after.secret != before.secret
    assert [one.id for one in pool.live()] == [after.lease]


def test_a_pod_without_room_fails_with_a_sentence(kubelet: Kubelet, pool: Pool) -> None:
    (device,) = (one for one in pool.devices() if one.decided_by == "kubernetes")
    words = ("--engine", "kubernetes", "--key", "other/all", "--for", "anna")
    size = f"{device.uuid}={device.memory_bytes // MIB}MiB"
    assert pool.gpukernel("lease", "acquire", *words, "--placed-on", size).returncode == 0
    with pytest.raises(grpc.RpcError) as caught:
        kubelet.allocate("a", "v100-slot-0")
    assert "has 0 MiB free, not the 655 MiB that are asked for" in caught.value.details()
    with pytest.raises(grpc.RpcError) as caught:
        kubelet.allocate("a", "v100-slot-9")
    assert "v100-slot-9" in caught.value.details()


def test_plugin_and_kubelet_may_start_anew_and_slices_stay(kubelet: Kubelet, pool: Pool) -> None:
    answer = kubelet.allocate("a", "v100-slot-0")
    (lease,) = pool.live()
    kubelet.restart()
    eventually(lambda: len(kubelet.registered) > 1)
    assert not kubelet.in_vain
    second = kubelet.plugin()  # beside the first, as while a DaemonSet is updated
    try:
        eventually(lambda: len(kubelet.registered) > 2)
        assert [one.id for one in pool.live()] == [lease.id]
        assert read_lease_file(lease_file(answer)).lease == lease.id
        kubelet.containers.clear()
        eventually(lambda: not pool.promised())
    finally:
        second.kill()
        second.wait()


def test_a_kubelet_that_knows_no_pods_yet_costs_no_slice(kubelet: Kubelet, pool: Pool) -> None:
    kubelet.allocate("a", "v100-slot-0", "v100-slot-2")
    kubelet.allocate("b", "v100-slot-1")
    kept = {one.id for one in pool.live()}
    containers, kubelet.containers = kubelet.containers, {}
    kubelet.restart()  # while the API server is away: it has nobody's word for its pods
    known = kubelet.lists
    eventually(lambda: kubelet.lists > known + 4)
    assert {one.id for one in pool.live()} == kept
    kubelet.containers = {"a": ["v100-slot-2", "v100-slot-0"]}  # of b it has not heard yet
    known = kubelet.lists
    eventually(lambda: kubelet.lists > known + 4)
    assert {one.id for one in pool.live()} == kept
    kubelet.containers = {"b": containers["b"]}
    eventually(lambda: len(pool.live()) == 1)
    kubelet.containers = {}
    eventually(lambda: not pool.promised())


def test_a_kubelet_of_ten_minutes_knows_its_pods() -> None:
    began = 1_800_000_000
    kubelet = (7, began * 10**9)
    assert [_knows_all(kubelet, began + passed) for passed in (0, 600, 601)] == [False, False, True]
    assert not _knows_all(None, began)


def test_plugins_of_other_models_and_clusters_leave_slots_alone(kubelet: Kubelet, pool: Pool) -> None:
    kubelet.allocate("a", "v100-slot-0")
    (lease,) = pool.live()

    class Files:
        """A folder without prepared slots."""

        def all(self) -> list[Prepared]:
            return []

        def remove(self, uid: str) -> None:
            raise AssertionError(uid)

    async def nothing_in_use() -> set[str]:
        return set()

    async def sweep() -> None:
        async with EngineClient(pool.address) as client:
            client.engine = "kubernetes"
            for model, cluster in (("a100", ""), ("v100", "other")):
                other = Slots(client, Files(), "n1", model, 0.02, 3, cluster)  # type: ignore[arg-type]
                for _ in range(3):
                    await other.sweep(nothing_in_use)

    asyncio.run(sweep())
    assert [one.id for one in pool.live()] == [lease.id]
