"""A network for a node and its pods: a namespace of this machine with a bridge for pods, and what stands for kube-proxy and cluster DNS.

The node and this machine, where the API server is, see each other over one virtual cable; the bridge, its addresses and its rules are in the
node's namespace and go with it.  Pods reach each other, the node, this end of the cable and Services; nobody keeps NetworkPolicies.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.engines.kubernetes.control_plane import ControlPlane

__all__ = ["ADDRESS", "NODE_ADDRESS", "Network", "running_network"]

ADDRESS, NODE_ADDRESS, PODS = "10.213.9.1", "10.213.9.2", "10.213.10.0/24"
"""Of this machine's end of the cable, of the node's, and of pods."""
_CARDS = "gpukernel-api", "gpukernel-node"
_NEEDED = ("ip", "nft", "iptables", "unshare", "nsenter")
_CNI = Path("/usr/lib/cni")
_PLUGINS = ("bridge", "host-local", "loopback", "portmap")


class Network:
    """The network of a node; `words` come before a command that is to run in it."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.words = ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--"]
        eventually(self._is_own, seconds=60)
        api, node = _CARDS
        self._ip("link", "add", "name", api, "type", "veth", "peer", "name", node, "netns", self._holder.pid)
        self._ip("address", "add", f"{ADDRESS}/30", "dev", api)
        self._ip("link", "set", api, "up")
        self._ip("route", "add", PODS, "via", NODE_ADDRESS)
        for words in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{NODE_ADDRESS}/30", "dev", node),
            ("link", "set", node, "up"),
            ("route", "add", "default", "via", ADDRESS),
        ):
            self._ip(*words, inside=True)
        self._services: subprocess.Popen[bytes] | None = None

    def _is_own(self) -> bool:
        return Path(f"/proc/{self._holder.pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()

    def _ip(self, *words: object, inside: bool = False) -> None:
        command = [*(self.words if inside else []), "ip", *map(str, words)]
        subprocess.run(command, check=True, capture_output=True, text=True)

    def configure(self, folder: Path) -> None:
        """Write what containerd has its plugins for networks do into a folder."""
        ranges = {"ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "hairpinMode": True}
        plugins = [
            bridge | {"ipam": {"type": "host-local", "dataDir": str(folder / "addresses"), **ranges}},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ]
        text = json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins})
        (folder / "pods.conflist").write_text(text)

    def serve(self, plane: ControlPlane, log: Path) -> None:
        """Let Services be reached by their addresses, and by their names at the node's port 53."""
        words = [sys.executable, "-m", "tests.engines.kubernetes.hour.services"]
        words += [str(plane.kubeconfig), NODE_ADDRESS]
        with log.open("ab") as file:
            self._services = subprocess.Popen([*self.words, *words], stdout=file, stderr=file)

    def close(self) -> None:
        """Take it away; what runs in it has ended."""
        for process in (self._services, self._holder):
            if process is not None:
                process.kill()
                process.wait()
        with contextlib.suppress(subprocess.CalledProcessError):  # it may have gone with the namespace
            self._ip("link", "delete", _CARDS[0])


@contextlib.contextmanager
def running_network() -> Iterator[Network]:
    """A network; skips where it cannot be had."""
    missing = [one for one in _NEEDED if not shutil.which(one)]
    missing += [f"{_CNI}/{one}" for one in _PLUGINS if not (_CNI / one).exists()]
    if missing:
        pytest.skip(f"needs a network for pods; missing: {', '.join(missing)}")
    tried = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "tried", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        pytest.skip(f"this machine's kernel makes no bridge: {tried.stderr.strip()}")
    network = Network()
    try:
        yield network
    finally:
        network.close()
