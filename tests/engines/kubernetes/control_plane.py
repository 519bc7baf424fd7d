"""A control plane of Kubernetes on this machine, from its own programs in a folder: etcd, API server, scheduler and controllers.

``GPUKERNEL_TEST_KUBERNETES=FOLDER`` names the folder; the programs are those of a release of Kubernetes 1.36 or newer.
Everything listens at 127.0.0.1, or at the one address that a node with a network of its own sees, and ends with the context.  A kubelet of
the folder is another file's, ``real_node.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.conftest import eventually
from tests.ports import free_port

__all__ = ["NEEDED", "NODE", "PROGRAMS", "SERVICES", "ControlPlane", "running_control_plane"]

PROGRAMS = "GPUKERNEL_TEST_KUBERNETES"
NEEDED = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager")
NODE = "node-real"
SERVICES = "10.254.0.0/24"
"""Addresses of Services; the first is the API's own."""
_CONTROLLERS = (
    "resourceclaim-controller",
    "device-taint-eviction-controller",
    "namespace-controller",
    "garbage-collector-controller",
    "serviceaccount-controller",
    "clusterrole-aggregation-controller",
)


class ControlPlane:
    """A control plane; `kubeconfig` is its administrator's, `node_token` the kubelet's, and `home` has each program's log, ``NAME.log``.

    Parameters
    ----------
    address
        The address of this machine at which the API server listens.
    controllers
        Those of Kubernetes that run; ``*`` is all that it starts by default.
    node
        The node that may have a kubelet.
    """

    def __init__(
        self,
        programs: Path,
        home: Path,
        address: str = "127.0.0.1",
        controllers: Sequence[str] = _CONTROLLERS,
        node: str = NODE,
    ) -> None:
        self.programs, self.home, self.node = programs, home, node
        self.address, self._controllers = address, controllers
        self.url = f"https://{address}:{free_port()}"
        self.token, self.node_token = secrets.token_hex(16), secrets.token_hex(16)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start everything, and wait until the API answers."""
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._run(
            "etcd",
            data_dir=str(self.home / "etcd"),
            listen_client_urls=client,
            advertise_client_urls=client,
            listen_peer_urls=peer,
            initial_advertise_peer_urls=peer,
            initial_cluster=f"default={peer}",
            unsafe_no_fsync="true",
            log_level="warn",
        )
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (self.home / "accounts.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        (self.home / "tokens.csv").write_text(
            f"{self.token},admin,admin,system:masters\n"
            f"{self.node_token},system:node:{self.node},{self.node},system:nodes\n"
        )
        accounts = str(self.home / "accounts.key")
        self._run(
            "kube-apiserver",
            etcd_servers=client,
            bind_address=self.address,
            advertise_address=self.address,
            secure_port=self.url.rpartition(":")[2],
            cert_dir=str(self.home / "certificates"),
            endpoint_reconciler_type="none",
            service_cluster_ip_range=SERVICES,
            service_account_issuer="https://kubernetes.default.svc",
            service_account_key_file=accounts,
            service_account_signing_key_file=accounts,
            authorization_mode="Node,RBAC",
            token_auth_file=str(self.home / "tokens.csv"),
            # Older versions of the API, by which a policy for v1 could be passed.
            runtime_config="resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true",
            allow_privileged="true",
            kubelet_preferred_address_types="InternalIP",
        )
        eventually(self._answers, seconds=180)
        self._http = httpx.Client(verify=self._trusted(), timeout=60)
        self.kubeconfig = self.config_for("admin", self.token)
        common = {
            "kubeconfig": str(self.kubeconfig),
            "authentication_kubeconfig": str(self.kubeconfig),
            "authorization_kubeconfig": str(self.kubeconfig),
            "bind_address": "127.0.0.1",
            "leader_elect": "false",
        }
        self._run("kube-scheduler", **common, secure_port=str(free_port()))
        self._run(
            "kube-controller-manager",
            **common,
            secure_port=str(free_port()),
            controllers=",".join(self._controllers),
            # A machine that is busy for minutes with something else has lost no node.
            node_monitor_grace_period="1h",
            root_ca_file=str(self.home / "certificates" / "apiserver.crt"),
            use_service_account_credentials="true",
            service_account_private_key_file=accounts,
        )

    def config_for(self, name: str, token: str) -> Path:
        """Write the kubeconfig of whoever has a token."""
        file = self.home / f"{name}.conf"
        cluster = {
            "server": self.url,
            "certificate-authority": str(self.home / "certificates" / "apiserver.crt"),
        }
        file.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": name, "user": {"token": token}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
                    "current-context": "test",
                }
            )
        )
        return file

    def ask(
        self, method: str, path: str, body: Any = None, *, token: str = "", user: str = "", **query: str
    ) -> httpx.Response:
        """Ask the API as the administrator, as `user`, or as whoever has `token`; a write that names an unknown field is refused."""
        kind = {
            "PATCH": "application/merge-patch+json",
            "APPLY": "application/apply-patch+yaml",
        }.get(method, "application/json")
        if method == "APPLY":
            method, query = "PATCH", {"fieldManager": "tests", "force": "true", **query}
        headers = {"Authorization": f"Bearer {token or self.token}", "Content-Type": kind}
        return self._http.request(
            method,
            f"{self.url}{path}",
            content=None if body is None else json.dumps(body),
            params=({} if method in ("GET", "DELETE") else {"fieldValidation": "Strict"}) | query,
            headers=headers | ({"Impersonate-User": user} if user else {}),
        )

    def apply(self, manifest: dict[str, Any], **query: str) -> httpx.Response:
        """Apply a manifest, in its namespace if it has one."""
        return self.ask("APPLY", f"{_folder(manifest)}/{manifest['metadata']['name']}", manifest, **query)

    def token_of(self, namespace: str, account: str) -> str:
        """Return a token of a service account."""
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        made = self.ask("POST", path, asked)
        assert made.status_code == 201, made.text
        return str(made.json()["status"]["token"])

    def stop(self) -> None:
        """End everything, the API server before its database."""
        for process in reversed(self._processes.values()):
            process.kill()
            process.wait()

    def _run(self, program: str, **options: str) -> None:
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        with open(self.home / f"{program}.log", "ab") as log:
            self._processes[program] = subprocess.Popen(
                [str(self.programs / program), *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.home / "certificates" / "apiserver.crt"))

    def _answers(self) -> bool:
        for program, process in self._processes.items():
            log = self.home / f"{program}.log"
            assert process.poll() is None, f"{program} has ended: {log.read_text()[-2000:]}"
        with contextlib.suppress(httpx.HTTPError, OSError):
            head = {"Authorization": f"Bearer {self.token}"}
            return httpx.get(f"{self.url}/readyz", headers=head, verify=self._trusted()).status_code == 200
        return False


def _folder(manifest: dict[str, Any]) -> str:
    """Return the address under which objects of a manifest's kind are, as the API's conventions have it."""
    kind, version = manifest["kind"].lower(), manifest["apiVersion"]
    plural = {"y": f"{kind[:-1]}ies", "s": f"{kind}es"}.get(kind[-1], f"{kind}s")
    where = manifest["metadata"].get("namespace", "")
    return (
        f"/{'apis' if '/' in version else 'api'}/{version}/{f'namespaces/{where}/' if where else ''}{plural}"
    )


@contextlib.contextmanager
def running_control_plane(
    home: Path,
    address: str = "127.0.0.1",
    controllers: Sequence[str] = _CONTROLLERS,
    node: str = NODE,
) -> Iterator[ControlPlane]:
    """The control plane of the programs that `PROGRAMS` names."""
    plane = ControlPlane(Path(os.environ[PROGRAMS]), home, address, controllers, node)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
