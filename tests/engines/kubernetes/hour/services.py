"""A stand-in for kube-proxy and cluster DNS: ``python -m tests.engines.kubernetes.hour.services KUBECONFIG ADDRESS``, in the node's network.

Each Service's address leads to its first ready endpoint, by a rule of nftables; names of Services and of pods of headless ones are answered
over UDP, all others with NXDOMAIN.  What has changed is seen within half a second.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

EVERY = 0.5
_NO_SUCH_NAME, _A = 3, 1
_RULES = """
table ip services
delete table ip services
table ip services {{
  chain to {{ type nat hook prerouting priority -100;
{rules}
  }}
  chain out {{ type nat hook output priority -100;
{rules}
  }}
  # An endpoint beside the pod on the bridge would answer past the rule otherwise.
  chain back {{ type nat hook postrouting priority 100; ct status dnat masquerade; }}
}}
"""


class Services:
    """The Services as the API has them now: `names`, and `rules` from an address and port to an endpoint."""

    def __init__(self, kubeconfig: Path) -> None:
        told = json.loads(kubeconfig.read_text())
        cluster = told["clusters"][0]["cluster"]
        trusted = ssl.create_default_context(cafile=cluster["certificate-authority"])
        token = {"Authorization": f"Bearer {told['users'][0]['user']['token']}"}
        self._http = httpx.Client(base_url=cluster["server"], verify=trusted, headers=token, timeout=30)
        self._api = urlsplit(cluster["server"])
        self.names: dict[str, list[str]] = {}
        self.rules: list[str] = []

    def _list(self, path: str) -> list[dict[str, Any]]:
        return list(self._http.get(path).raise_for_status().json()["items"])

    def look(self) -> None:
        """Ask the API."""
        names: dict[str, list[str]] = {}
        rules = []
        slices = self._list("/apis/discovery.k8s.io/v1/endpointslices")
        for one in self._list("/api/v1/services"):
            about, address = one["metadata"], one["spec"].get("clusterIP", "None")
            name = f"{about['name']}.{about['namespace']}.svc.cluster.local"
            if (about["namespace"], about["name"]) == ("default", "kubernetes"):
                ends = [(None, self._api.port, self._api.hostname)]
            else:
                ends = _endpoints(slices, about["namespace"], about["name"])
            if address == "None":
                names[name] = sorted({str(where) for _, _, where in ends})
                continue
            names[name] = [address]
            for port in one["spec"].get("ports", ()):
                fitting = [(to, where) for called, to, where in ends if called in (None, port.get("name"))]
                for to, where in fitting[:1]:
                    rules.append(f"    ip daddr {address} tcp dport {port['port']} dnat to {where}:{to};")
        if rules != self.rules:
            text = _RULES.format(rules="\n".join(rules))
            subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)
        self.names, self.rules = names, rules


def _endpoints(
    slices: list[dict[str, Any]], namespace: str, service: str
) -> list[tuple[str | None, int, str]]:
    """Return the ready endpoints of a Service: the port's name, its number and the address."""
    found = []
    for one in slices:
        about = one["metadata"]
        if (about["namespace"], about["labels"].get("kubernetes.io/service-name")) == (namespace, service):
            for end in one.get("endpoints") or ():
                if end.get("conditions", {}).get("ready"):
                    found += [(p.get("name", ""), p["port"], end["addresses"][0]) for p in one["ports"]]
    return found


def answer(request: bytes, names: dict[str, list[str]]) -> bytes:
    """Return the answer to a request for a name's addresses (RFC 1035)."""
    labels, place = [], 12
    while length := request[place]:
        labels.append(request[place + 1 : place + 1 + length].decode().lower())
        place += 1 + length
    (kind,) = struct.unpack_from("!H", request, place + 1)
    known = names.get(".".join(labels))
    found = known if known and kind == _A else []
    head = struct.pack("!HHHHHH", *struct.unpack_from("!H", request), 0x8580, 1, len(found), 0, 0)
    if known is None:
        head = head[:3] + bytes([head[3] | _NO_SUCH_NAME]) + head[4:]
    records = [struct.pack("!HHHIH", 0xC00C, _A, 1, 1, 4) + socket.inet_aton(one) for one in found]
    return head + request[12 : place + 5] + b"".join(records)


def main(kubeconfig: str, address: str) -> None:
    services = Services(Path(kubeconfig))
    door = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    door.bind((address, 53))

    def serve() -> None:
        while True:
            request, whom = door.recvfrom(4096)
            door.sendto(answer(request, services.names), whom)

    threading.Thread(target=serve, daemon=True).start()
    while True:
        try:
            services.look()
        except (httpx.HTTPError, OSError, subprocess.CalledProcessError) as error:
            print(error, file=sys.stderr, flush=True)
        time.sleep(EVERY)


if __name__ == "__main__":
    main(*sys.argv[1:])
