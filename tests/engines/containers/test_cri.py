"""Pods of containerd 2 get slices as the kubelet asks for them, by names of CDI devices over CRI, the Container Runtime Interface."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Pool, eventually
from tests.engines.containers.podman import SLICE, root_filesystem
from tests.engines.containers.test_cdi import LOOK
from tests.engines.containers.test_containerd import PROGRAMS, version

IMAGE = "localhost/plain:1"
_CONFIGURATION = f"""
version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '{IMAGE}'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
"""
_PAUSE = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"
_NODE = 2  # the pod is in the network namespace of this machine: no plugin for networks is needed


def image(home: Path, names: Sequence[str] = (IMAGE,), program: Sequence[str] = ("/pause",)) -> Path:
    """Write an image's archive into `home`: empty folders, names of accounts, and a program that does nothing, which is the entry point."""
    root = root_filesystem(home / "image")
    (home / "pause.c").write_text(_PAUSE)
    subprocess.run(["cc", "-static", "-o", str(root / "pause"), str(home / "pause.c")], check=True)
    with tarfile.open(home / "layer.tar", "w") as layer:
        layer.add(root, ".")
    settings = {"architecture": "amd64", "os": "linux", "config": {"Entrypoint": list(program)}}
    digest = subprocess.run(["sha256sum", home / "layer.tar"], capture_output=True, text=True, check=True)
    settings["rootfs"] = {"type": "layers", "diff_ids": [f"sha256:{digest.stdout.split()[0]}"]}
    manifest = [{"Config": "config.json", "RepoTags": list(names), "Layers": ["layer.tar"]}]
    with tarfile.open(home / "image.tar", "w") as archive:
        for name, content in (("config.json", settings), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(name)
            text = json.dumps(content).encode()
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
        archive.add(home / "layer.tar", "layer.tar")
    return home / "image.tar"


class Runtime:
    """A containerd with its files below `home`, and what a kubelet says to it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "config.toml").write_text(_CONFIGURATION)
        self.address = str(home / "socket")
        words = ["--config", str(home / "config.toml"), "--address", self.address]
        words += ["--root", str(home / "root"), "--state", str(home / "state")]
        with (home / "log").open("w") as log:
            self.process = subprocess.Popen(["containerd", *words], stdout=log, stderr=log)

    def begin(self) -> None:
        """Wait until it answers, and give it the image `IMAGE`."""
        eventually(lambda: self("info", check=False).returncode == 0, 60)
        words = ["ctr", "--address", self.address, "--namespace", "k8s.io", "images", "import"]
        subprocess.run([*words, str(image(self.home))], check=True, capture_output=True)

    def __call__(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        endpoint = f"unix://{self.address}"
        command = ["crictl", "--runtime-endpoint", endpoint, "--image-endpoint", endpoint, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert not check or done.returncode == 0, (done.stderr, (self.home / "log").read_text()[-3000:])
        return done

    def pod(self, name: str) -> tuple[str, Path]:
        """Run a pod without containers; return its id and the file of its settings."""
        options = {"security_context": {"namespace_options": {"network": _NODE}}}
        metadata = {"name": name, "namespace": "default", "uid": name, "attempt": 1}
        return self._written(
            f"{name}.pod", {"metadata": metadata, "log_directory": str(self.home), "linux": options}
        )

    def _written(self, name: str, settings: dict[str, Any]) -> tuple[str, Path]:
        file = self.home / f"{name}.json"
        file.write_text(json.dumps(settings))
        return self("runp", str(file)).stdout.strip(), file

    def container(self, name: str, pod: tuple[str, Path], *command: str) -> str:
        """Create a container with a slice in a pod, start it, and return its id; this machine's ``/usr`` stands for an image's."""
        settings = {
            "metadata": {"name": name, "attempt": 1},
            "image": {"image": IMAGE},
            "command": list(command),
            "log_path": f"{name}.log",
            "mounts": [{"host_path": "/usr", "container_path": "/usr", "readonly": True}],
            "CDI_devices": [{"name": SLICE}],
            "linux": {},
        }
        file = self.home / f"{name}.json"
        file.write_text(json.dumps(settings))
        made = self("create", pod[0], str(file), str(pod[1])).stdout.strip()
        self("start", made)
        return made

    def look(self, container: str) -> dict[str, Any]:
        """Return what the runtime says of a container."""
        found: dict[str, Any] = json.loads(self("inspect", container).stdout)
        return found

    def stop(self) -> None:
        self("rmp", "--all", "--force", check=False)
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    missing = [one for one in (*PROGRAMS, "crictl", "cc") if not shutil.which(one)]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root with containerd 2 and crictl; missing: {', '.join(missing) or 'root'}")
    if version() < (2, 0):
        pytest.skip(f"containerd is {'.'.join(map(str, version()))}; this is about 2")
    home = Path(tempfile.mkdtemp(prefix="cri-", dir="/var/tmp"))
    running = Runtime(home)
    try:
        running.begin()
        yield running
    finally:
        running.stop()
        mounts = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
        for mount in sorted((one for one in mounts if one.startswith(f"{home}/")), reverse=True):
            subprocess.run(["umount", mount], capture_output=True, check=False)
        shutil.rmtree(home, ignore_errors=True)


def test_a_pod_s_container_sees_its_share_as_the_whole_device(runtime: Runtime, pool: Pool) -> None:
    pod = runtime.pod("looks")
    made = runtime.container("look", pod, "/usr/bin/python3", "-c", LOOK)
    eventually(lambda: runtime.look(made)["status"]["state"] == "CONTAINER_EXITED")
    assert runtime("logs", made).stdout == "0 0 655 0\n"
    runtime("rmp", "--force", pod[0])
    eventually(lambda: pool.promised() == 0)
    assert len(pool.leases(ended=True)[0]) == 1


def test_a_container_that_is_killed_frees_its_slice_and_the_next_one_gets_another(
    runtime: Runtime, pool: Pool
) -> None:
    pod = runtime.pod("restarts")
    made = runtime.container("first", pod, "/bin/sleep", "600")
    assert len(pool.live()) == 1
    os.kill(int(runtime.look(made)["info"]["pid"]), signal.SIGKILL)
    eventually(lambda: pool.promised() == 0, 30)
    runtime.container("second", pod, "/bin/sleep", "600")  # as a kubelet restarts it
    assert len(pool.live()) == 1
    runtime("rmp", "--force", pod[0])
    eventually(lambda: pool.promised() == 0, 30)
    assert len(pool.leases(ended=True)[0]) == 2
