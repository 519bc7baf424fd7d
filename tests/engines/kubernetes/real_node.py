"""A node of Kubernetes on this machine: containerd and the kubelet, for the control plane of ``control_plane.py``.

Both run in a mount namespace of their own, with ``/run``, ``/var/log`` and ``/var/lib`` for themselves: a plugin that starts in it finds a
node's folders where they always are, and nothing of them is left behind.  Pods have this machine's network, and no plugin for networks is
needed, unless the node is given a network of its own (``hour/network.py``).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import eventually
from tests.engines.containers.test_cri import IMAGE, image
from tests.engines.kubernetes.control_plane import PROGRAMS, ControlPlane
from tests.engines.kubernetes.hour.network import NODE_ADDRESS, Network

__all__ = ["Node", "running_node"]

_NEEDED = ("containerd", "ctr", "containerd-shim-runc-v2", "runc", "nsenter", "unshare", "setpriv", "cc")
_SOCKET = "/run/containerd/containerd.sock"
# What the kubelet would change of the whole machine; it finds that done.
_TUNABLES = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
_RUNTIME = """
version = 3
root = '{home}/root'
state = '/run/containerd/state'
disabled_plugins = ['io.containerd.nri.v1.nri']
[grpc]
  address = '{socket}'
[plugins.'io.containerd.internal.v1.opt']
  path = '{home}/opt'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '{image}'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  conf_dir = '{home}/networks'
"""
# Never used, since pods have the machine's network; without one the node would not be ready.
_NETWORK = {"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "loopback"}]}
_KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "enableServer": False,
    "healthzPort": 0,
    "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "containerRuntimeEndpoint": f"unix://{_SOCKET}",
    "cgroupDriver": "cgroupfs",
    "cgroupsPerQOS": False,  # no cgroups above those of containers
    "enforceNodeAllocatable": [],
    "failCgroupV1": False,
    "failSwapOn": False,
    "makeIPTablesUtilChains": False,
    "resolvConf": "",
    "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
    "imageGCHighThresholdPercent": 100,
    "nodeStatusUpdateFrequency": "2s",
}
# What a node with a network of its own has besides: the API server asks it for logs and to run commands, and nobody else reaches it.
_REACHED = {
    "enableServer": True,
    "address": NODE_ADDRESS,
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "clusterDomain": "cluster.local",
}


class Node:
    """A node; `home` has its files, and `log` the logs of containerd, the kubelet and plugins."""

    def __init__(self, home: Path, plane: ControlPlane, network: Network | None) -> None:
        self.home, self.plane, self._network = home, plane, network
        self.log = home / "log"
        for name in ("log", "lib/kubelet", "networks", "tunables"):
            (home / name).mkdir(parents=True)
        self._configure()
        self._runtime = self._started("containerd", ["sh", "-e", "-c", self._script()], new=True)
        self.kubelet: subprocess.Popen[bytes] | None = None

    def _configure(self) -> None:
        home = self.home
        (home / "config.toml").write_text(_RUNTIME.format(home=home, socket=_SOCKET, image=IMAGE))
        if self._network is None:
            (home / "networks" / "none.conflist").write_text(json.dumps(_NETWORK))
        else:
            self._network.configure(home / "networks")
        settings = _KUBELET | (_REACHED | {"clusterDNS": [NODE_ADDRESS]} if self._network else {})
        (home / "kubelet.json").write_text(json.dumps(settings))
        for name, value in _TUNABLES.items():
            (home / "tunables" / name.replace("/", ".")).write_text(f"{value}\n")

    def _script(self) -> str:
        binds = {self.home / "lib": "/var/lib", self.log: "/var/log"} | {
            self.home / "tunables" / name.replace("/", "."): f"/proc/sys/{name}" for name in _TUNABLES
        }
        lines = ["mount -t tmpfs node /run", *(f"mount --bind {own} {place}" for own, place in binds.items())]
        return "\n".join([*lines, f"exec containerd --config {self.home}/config.toml"])

    def _started(self, name: str, command: list[str], new: bool = False) -> subprocess.Popen[bytes]:
        words = ["unshare", "--mount", "--propagation", "private"] if new else self.inside
        if new and self._network is not None:
            words = [*self._network.words, *words]
        with (self.log / f"{name}.log").open("ab") as log:
            return subprocess.Popen([*words, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def inside(self) -> list[str]:
        """The words before a command that let it run on the node."""
        spaces = [f"--mount=/proc/{self._runtime.pid}/ns/mnt"]
        if self._network is not None:
            spaces.append(f"--net=/proc/{self._runtime.pid}/ns/net")
        return ["nsenter", *spaces, "--"]

    @property
    def powerless(self) -> list[str]:
        """The same, as root without a capability, like the containers of ``deploy/kubernetes/driver.yaml``."""
        none = ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs"]
        return [*self.inside, "setpriv", *none, "--"]

    def path(self, place: str) -> Path:
        """Return where this machine finds a path of the node."""
        return Path(f"/proc/{self._runtime.pid}/root{place}")

    def begin(self) -> None:
        """Give the runtime its image, start the kubelet, and wait until the node is there."""
        eventually(lambda: self._ctr("version").returncode == 0, seconds=120)
        self.have(image(self.home))
        self.start_kubelet()
        eventually(self._is_ready, seconds=600)
        # Kubernetes' controller of nodes, which does not run here, takes the taint of a new node away.
        self.plane.ask("PATCH", f"/api/v1/nodes/{self.plane.node}", {"spec": {"taints": None}})

    def have(self, archive: Path) -> None:
        """Give the runtime the image of an archive."""
        imported = self._ctr("images", "import", str(archive))
        assert imported.returncode == 0, imported.stderr

    def start_kubelet(self) -> None:
        """Start the kubelet, as the account of a node."""
        words = [f"--config={self.home}/kubelet.json", f"--hostname-override={self.plane.node}"]
        words += [f"--kubeconfig={self.plane.config_for(self.plane.node, self.plane.node_token)}", "-v=2"]
        words += [] if self._network is None else [f"--node-ip={NODE_ADDRESS}"]
        self.kubelet = self._started("kubelet", [str(self.plane.programs / "kubelet"), *words])

    def kill_kubelet(self) -> None:
        """End it without giving it a chance."""
        assert self.kubelet is not None
        self.kubelet.kill()
        self.kubelet.wait()

    def _is_ready(self) -> bool:
        assert self.kubelet is not None
        if self.kubelet.poll() is not None:
            self.start_kubelet()  # as systemd does: on a busy machine it gives up after two minutes
        told = self.status().get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in told)

    def status(self) -> dict[str, Any]:
        """Return what the kubelet says of its node; nothing where the API has no such node yet."""
        asked = self.plane.ask("GET", f"/api/v1/nodes/{self.plane.node}")
        return dict(asked.json()["status"]) if asked.is_success else {}

    def output(self, pod: dict[str, Any]) -> str:
        """Return what the first container of a pod has printed."""
        about = pod["metadata"]
        name = pod["spec"]["containers"][0]["name"]
        file = self.log / "pods" / f"{about['namespace']}_{about['name']}_{about['uid']}" / name / "0.log"
        lines = file.read_text().splitlines() if file.exists() else []
        return "".join(f"{line.split(' ', 3)[3]}\n" for line in lines)

    def files(self, *places: str) -> list[str]:
        """Return the files below folders of the node."""
        found = (one for place in places for one in self.path(place).rglob("*") if not one.is_dir())
        return sorted(one.name for one in found)

    def _ctr(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*self.inside, "ctr", "--address", _SOCKET, "--namespace", "k8s.io", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    def runs(self, container: str) -> bool:
        """Return whether a container's program runs."""
        listed = self._ctr("task", "ls").stdout.splitlines()
        return any(line.startswith(container) and "RUNNING" in line for line in listed)

    def stop(self) -> None:
        """End everything, containers too, and take the node away."""
        if self.kubelet is not None:
            self.kubelet.terminate()
            self.kubelet.wait(60)
        for name in self._ctr("task", "ls", "--quiet").stdout.split():
            self._ctr("task", "delete", "--force", name)
        left = _sharing_mounts(self._runtime.pid) - {self._runtime.pid}
        self._runtime.terminate()
        self._runtime.wait(60)
        for one in left:  # what containerd leaves running for pods
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        for folder in [Path("/sys/fs/cgroup/k8s.io"), *Path("/sys/fs/cgroup").glob("*/k8s.io")]:
            with contextlib.suppress(OSError):
                folder.rmdir()
        self.plane.ask("DELETE", f"/api/v1/nodes/{self.plane.node}")


def _sharing_mounts(process: int) -> set[int]:
    """Return the processes in the mount namespace of one; none where that is this process's own."""
    found: dict[str, set[int]] = {}
    for link in Path("/proc").glob("[0-9]*/ns/mnt"):
        with contextlib.suppress(OSError):
            found.setdefault(os.readlink(link), set()).add(int(link.parts[2]))
    (members,) = [one for one in found.values() if process in one]
    return set() if os.getpid() in members else members


@contextlib.contextmanager
def running_node(plane: ControlPlane, network: Network | None = None) -> Iterator[Node]:
    """A node of a control plane; skips where it cannot be had."""
    path = f"{plane.programs}{os.pathsep}{os.environ['PATH']}"
    missing = [one for one in _NEEDED if not shutil.which(one, path=path)]
    missing += [] if (plane.programs / "kubelet").exists() else [f"kubelet in {PROGRAMS}"]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root, a kubelet and containerd 2; missing: {', '.join(missing) or 'root'}")
    home = Path(tempfile.mkdtemp(prefix="node-", dir="/var/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", path)
        node = Node(home, plane, network)
        try:
            node.begin()
            yield node
        finally:
            node.stop()
            shutil.copytree(node.log, plane.home / plane.node, symlinks=True)  # to be read after a failure
            shutil.rmtree(home, ignore_errors=True)
