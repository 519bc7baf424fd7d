"""The kubelet's plugin, asked by a kubelet, whoever is killed on the way."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from gpukernel import native
from gpukernel.remoting.lease_file import read_lease_file
from tests.conftest import Pool, eventually
from tests.engines.containers.podman import RUNTIME_FOLDER, Podman, root_filesystem, running_podman
from tests.engines.kubernetes.cluster import Cluster
from tests.engines.kubernetes.fake_kubelet import Kubelet, mode, running_kubelet

MIB = 2**20
LOOK = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
size = ctypes.c_size_t()
print(cuda.cuInit(0), cuda.cuDeviceTotalMem_v2(ctypes.byref(size), 0), size.value >> 20)
"""


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    yield from running_podman()


@pytest.fixture
def kubelet(cluster: Cluster, pool: Pool) -> Iterator[Kubelet]:
    with cluster.running(pool, "controller", "--every", "0.3"):
        eventually(cluster.slices)
        with running_kubelet(cluster, pool) as kubelet:
            yield kubelet


def allocated(cluster: Cluster, name: str = "one", memory: str = "655Mi", count: int = 1) -> str:
    """Create a claim and allocate it; return its uid."""
    uid = str(cluster.claim(name, memory, count).metadata.uid)
    assert cluster.allocate(name)
    return uid


@contextlib.contextmanager
def no_room(pool: Pool) -> Iterator[None]:
    """Have something hold all of the device, so that claims wait for their leases."""
    (device,) = (one for one in pool.devices() if one.decided_by == "kubernetes")
    words = ("--engine", "kubernetes", "--key", "other/all")
    size = f"{device.uuid}={device.memory_bytes // MIB}MiB"
    held = pool.gpukernel("lease", "acquire", *words, "--for", "anna", "--placed-on", size)
    assert held.returncode == 0, held.stderr
    yield
    assert pool.gpukernel("lease", "release", *words).returncode == 0


def test_the_kubelet_registers_the_plugin_at_sockets_of_its_own(kubelet: Kubelet) -> None:
    info = kubelet.register()
    assert (info.type, info.name) == ("DRAPlugin", "gpukernel.io")
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
    sockets = [kubelet.registry / "gpukernel.io-reg.sock", kubelet.plugins / "gpukernel.io" / "dra.sock"]
    assert [mode(one) for one in sockets] == [0o600, 0o600]


@pytest.mark.parametrize(
    ("plugins", "sentence"),
    [
        ("/dev/null/plugins", "cannot be used: Not a directory."),
        ("/dev/shm/" + "x" * 100, "cannot be listened at; its path has at most 107 characters."),
    ],
)
def test_a_folder_that_cannot_be_used_gets_one_sentence(
    cluster: Cluster, pool: Pool, tmp_path: Path, plugins: str, sentence: str
) -> None:
    claims = Path(tempfile.mkdtemp(prefix="claims-", dir="/dev/shm"))
    words = ("--plugins", plugins, "--registry", plugins, "--cdi", str(tmp_path), "--claims", str(claims))
    try:
        assert cluster.start(pool, "node", *words, log=tmp_path / "log").wait(30) == 1
    finally:
        shutil.rmtree(claims)
        shutil.rmtree(plugins, ignore_errors=True)
    said = (tmp_path / "log").read_text()
    assert said.endswith(f"{sentence}\n")
    assert len(said.splitlines()) == 1


def test_preparing_twice_is_one_lease_that_a_program_can_use(
    cluster: Cluster, pool: Pool, kubelet: Kubelet
) -> None:
    uid = allocated(cluster)
    first = kubelet.prepare("one")
    assert first.error == ""
    (device,) = first.devices
    assert list(device.request_names) == ["gpu"]
    assert list(device.cdi_device_ids) == [f"gpukernel.io/claim={uid}-gpu"]
    (lease,) = pool.live()
    folder = kubelet.lease_folder(device.cdi_device_ids[0])
    secret = read_lease_file(folder / "lease").secret
    assert read_lease_file(folder / "lease").lease == lease.id
    assert kubelet.prepare("one", beta=True).SerializeToString() == first.SerializeToString()
    assert [one.id for one in pool.live()] == [lease.id]
    assert read_lease_file(folder / "lease").secret == secret != ""

    edits = kubelet.device(device.cdi_device_ids[0])
    environment = dict(one.split("=", 1) for one in edits["env"])
    assert not [value for value in environment.values() if str(native.shim_dir().parent) in value]
    for mount in edits["mounts"]:  # no container here: the same places on this machine
        environment = {
            k: v.replace(mount["containerPath"], mount["hostPath"]) for k, v in environment.items()
        }
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "0 0 655\n"


def test_the_secret_is_in_memory_and_for_the_containers_of_the_claim_only(
    cluster: Cluster, pool: Pool, kubelet: Kubelet
) -> None:
    allocated(cluster)
    (device,) = kubelet.prepare("one").devices
    folder = kubelet.lease_folder(device.cdi_device_ids[0])
    secret = read_lease_file(folder / "lease").secret
    assert mode(kubelet.claims) == 0o700  # nobody else of the node gets past it
    assert mode(folder / "lease") == 0o444  # and any account in the container reads it
    having = [one for one in kubelet.files() if secret in (kubelet.home / one).read_text()]
    assert having == [str((folder / "lease").relative_to(kubelet.home))]
    assert {mode(one) for one in kubelet.cdi.iterdir()} == {0o600}
    eventually(lambda: cluster.is_ready("one"))
    if cluster.stand_in is not None:
        assert secret not in str(cluster.stand_in.store.history)


def test_giving_up_twice_removes_the_files_and_leaves_the_lease_to_the_claim(
    cluster: Cluster, pool: Pool, kubelet: Kubelet
) -> None:
    uid = allocated(cluster)
    kubelet.prepare("one")
    assert kubelet.files()
    assert [kubelet.unprepare("one", uid), kubelet.unprepare("one", uid, beta=True)] == ["", ""]
    assert kubelet.files() == []
    assert len(pool.live()) == 1  # another pod may use the claim
    cluster.deallocate("one")
    eventually(lambda: not pool.promised())


def test_a_claim_that_was_never_prepared_is_given_up_without_an_error(kubelet: Kubelet) -> None:
    assert kubelet.unprepare("gone", "7a1c1f4e-0000-0000-0000-000000000000") == ""
    assert kubelet.unprepare("gone", "../../etc") != ""


def test_claims_that_cannot_be_prepared_say_why_and_the_others_are(
    cluster: Cluster, pool: Pool, kubelet: Kubelet
) -> None:
    uid, other = allocated(cluster), str(cluster.claim("waiting", "1Gi").metadata.uid)
    answer = kubelet.start_preparing("one", "waiting").result()
    assert answer.claims[uid].error == ""
    assert "has no device of this driver" in answer.claims[other].error


def test_a_claim_whose_files_cannot_be_written_leaves_none(
    cluster: Cluster, pool: Pool, kubelet: Kubelet
) -> None:
    uid = allocated(cluster)
    kubelet.cdi.rmdir()
    kubelet.cdi.write_text("no folder")
    assert "Not a directory" in kubelet.prepare("one").error
    assert list(kubelet.claims.iterdir()) == []
    assert kubelet.unprepare("one", uid) == ""
    kubelet.cdi.unlink()
    kubelet.cdi.mkdir()
    assert kubelet.prepare("one").error == ""


def test_a_plugin_that_is_killed_in_any_state_goes_on(cluster: Cluster, pool: Pool, kubelet: Kubelet) -> None:
    kubelet.kill()  # nothing is prepared
    kubelet.start()
    with no_room(pool):
        uid = allocated(cluster)
        call = kubelet.start_preparing("one")
        eventually(lambda: cluster.condition("one")[1] == "Full")
        kubelet.kill()  # in the middle of it
        with pytest.raises(grpc.RpcError):
            call.result()
        assert kubelet.files() == []
    kubelet.start()
    before = kubelet.prepare("one")
    kubelet.kill()  # prepared: pods go on, and the kubelet asks again
    assert kubelet.lease_folder(before.devices[0].cdi_device_ids[0]).is_dir()
    kubelet.start()
    assert kubelet.prepare("one").SerializeToString() == before.SerializeToString()
    assert len(pool.live()) == 1
    kubelet.unprepare("one", uid)
    kubelet.kill()  # given up
    kubelet.start()
    assert kubelet.unprepare("one", uid) == ""
    assert kubelet.files() == []


def test_a_pod_that_is_deleted_while_its_claim_is_prepared_leaves_nothing(
    cluster: Cluster, pool: Pool, kubelet: Kubelet
) -> None:
    with no_room(pool):
        uid = allocated(cluster)
        call = kubelet.start_preparing("one")
        eventually(lambda: cluster.condition("one")[1] == "Full")
        call.cancel()  # the kubelet's patience is over, the pod goes
        cluster.deallocate("one")
        cluster.delete("one")
        assert kubelet.unprepare("one", uid) == ""
        assert kubelet.files() == []
    eventually(lambda: not pool.promised())
    again = allocated(cluster)  # another claim of this name
    assert kubelet.prepare("one").error == ""
    assert [lease.key.partition(".")[0] for lease in pool.live()] == [again]


def test_a_lease_that_is_lost_is_held_again_and_its_file_follows(
    cluster: Cluster, pool: Pool, kubelet: Kubelet
) -> None:
    allocated(cluster)
    (device,) = kubelet.prepare("one").devices
    file = kubelet.lease_folder(device.cdi_device_ids[0]) / "lease"
    before = read_lease_file(file)
    (held,) = pool.live()
    ended = pool.gpukernel("lease", "release", "--engine", "kubernetes", "--key", held.key)
    assert ended.returncode == 0, ended.stderr

    def follows() -> bool:
        now = read_lease_file(file)
        return now.state == "live" and now.lease != before.lease

    eventually(follows)
    (lease,) = pool.live()
    assert read_lease_file(file).lease == lease.id
    assert read_lease_file(file).secret != before.secret


def test_a_claim_of_another_s_name_or_uid_is_not_prepared(
    cluster: Cluster, pool: Pool, kubelet: Kubelet
) -> None:
    uid = allocated(cluster)
    other = allocated(cluster, "other", "64Mi")
    assert kubelet.prepare("one").error == ""
    for name, asked in (("one", other), ("other", uid), ("one", "7a1c1f4e-0000-0000-0000-000000000000")):
        assert "is another one now" in kubelet.prepare(name, uid=asked).error
    assert [one.parent.parent.name for one in kubelet.claims.rglob("lease")] == [uid]


def test_an_allocation_that_is_forged_after_its_lease_gives_nothing_more(
    cluster: Cluster, pool: Pool, kubelet: Kubelet
) -> None:
    allocated(cluster)
    eventually(lambda: cluster.is_ready("one"))
    refused = cluster.forge("one", memory="16Gi")
    if cluster.stand_in is None:  # Kubernetes itself keeps an allocation as it is
        assert "immutable" in refused
    else:
        assert "is not what was allocated" in kubelet.prepare("one").error
        assert kubelet.files() == []
    assert [one.slices[0].memory_bytes for one in pool.live()] == [655 * MIB]


def test_two_parts_of_one_device_are_one_slice(cluster: Cluster, pool: Pool, kubelet: Kubelet) -> None:
    allocated(cluster, memory="1Gi", count=2)
    answer = kubelet.prepare("one")
    assert answer.error == ""
    assert len(answer.devices) == 2
    assert len([name for one in answer.devices for name in one.cdi_device_ids]) == 1
    (lease,) = pool.live()
    assert [one.memory_bytes for one in lease.slices] == [2048 * MIB]


def test_a_runtime_gives_a_container_of_any_account_the_slice_of_its_claim(
    cluster: Cluster, pool: Pool, podman: Podman, tmp_path: Path
) -> None:
    sockets = ("--sockets", str(pool.state / "containers"), "--libraries", str(tmp_path / "libraries"))
    with cluster.running(pool, "controller", "--every", "0.3"):
        eventually(cluster.slices)
        with running_kubelet(cluster, pool, *sockets) as kubelet:
            allocated(cluster)
            (device,) = kubelet.prepare("one").devices
            (file,) = kubelet.cdi.iterdir()
            found = RUNTIME_FOLDER / file.name
            RUNTIME_FOLDER.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, found)
            try:
                done = podman.start(
                    device.cdi_device_ids[0],
                    root_filesystem(tmp_path / "image"),
                    "/usr/bin/python3",
                    "-c",
                    LOOK,
                    options=("--rm", "--user", "1234:77"),
                )
            finally:
                found.unlink()
            assert (done.stdout, done.returncode) == ("0 0 655\n", 0), done.stderr
